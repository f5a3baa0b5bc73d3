"""The options with which commands make an Evaluator: each is declared once, and a command names
those it has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from evaluator.cli.common import (
    handler_option,
    library_option,
    load_library,
    model_option,
    read_roles,
    role_option,
    stdin_is_terminal,
    trace_option,
    warn_of_unknown_roles,
)
from evaluator.cli.echo import echo
from evaluator.cli.trust import permit_schemas, project_profiles, shown_profiles, trust_option
from evaluator.errors import UsageError
from evaluator.processes.sandboxes import HELP as SANDBOX_HELP
from evaluator.record.journal import Sync

if TYPE_CHECKING:
    from evaluator.interpreter.evaluator import Evaluator
    from evaluator.memory import Memory
    from evaluator.tools import Asker

tasks_option = click.option(
    "--tasks",
    "tasks_dir",
    default="tasks",
    show_default=True,
    type=click.Path(path_type=Path),
    help="The folder of task files.",
)
root_option = click.option(
    "--root",
    "roots",
    multiple=True,
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="A folder that the task may read; the first is where scripts run. Default: here.",
)
BACKGROUND_FOLDER = "background"
"""The folder below the task files that holds the states and outputs of background tasks."""
sandbox_option = click.option("--sandbox", metavar="KIND", help=SANDBOX_HELP)
_OPTIONS = {
    "library": library_option,
    "handler": handler_option,
    "model": model_option,
    "model-role": role_option,
    "tasks": tasks_option,
    "root": root_option,
    "memory": click.option(
        "--memory",
        metavar="FILE",
        type=click.Path(path_type=Path, dir_okay=False),
        help="An index made by `evaluator memory index`, for fresh_context and described "
        "file_paths.",
    ),
    "ask-in": click.option(
        "--ask-in",
        metavar="FOLDER",
        type=click.Path(path_type=Path, file_okay=False),
        help="Ask in files: question-N.txt is answered in answer-N.txt.",
    ),
    "sync": click.option(
        "--sync",
        type=click.Choice(get_args(Sync)),
        default="off",
        show_default=True,
        help="Which task files survive a loss of power: only what the system wrote back (off), "
        "every ended task, or "
        "every step. A killed process loses nothing with any of them.",
    ),
    "reparse": click.option(
        "--reparse",
        is_flag=True,
        help="Decompose a task that runs out of turns, context or output, once.",
    ),
    "rerank": click.option(
        "--rerank",
        is_flag=True,
        help="Let the model choose among the best templates, or none, where the words of a "
        "request do not decide; that is one more call.",
    ),
    "sandbox": sandbox_option,
    "trace": trace_option,
    "trust": trust_option,
}


@dataclass(frozen=True, slots=True)
class EvaluatorOptions:
    """The values of a command's options; options that the command does not have keep their
    default.
    """

    folders: tuple[Path, ...] = ()
    handler: str | None = None
    model: str | None = None
    model_roles: tuple[str, ...] = ()
    tasks_dir: Path = Path("tasks")
    roots: tuple[Path, ...] = ()
    memory: Path | None = None
    ask_in: Path | None = None
    sync: Sync = "off"
    reparse: bool = False
    rerank: bool = False
    trace: bool = False
    sandbox: str | None = None
    trust: bool = False

    def make_evaluator(self, *, sends: bool = True) -> Evaluator:
        """The Evaluator that these options describe; notices go to standard error. `sends`: it
        makes calls, so that the profiles of the project need the user's permission.

        Raises: UsageError or ConfigurationError, for an option that cannot be used.
        """
        from evaluator.background.tools import BackgroundTools
        from evaluator.interpreter.evaluator import Evaluator

        if self.model is not None and not self.model.strip():
            raise UsageError("--model is empty; name one, e.g. openai/gpt-4o-mini, or leave it out")
        library = load_library(self.folders)
        roles = read_roles(self.model_roles)
        warn_of_unknown_roles(library, roles)
        if sends:
            permit_schemas(library, self.trust)
        return Evaluator(
            library,
            self.handler,
            model=self.model,
            model_roles=roles,
            tasks_dir=self.tasks_dir,
            roots=self.roots,
            reparse=self.reparse,
            rerank=self.rerank,
            sync=self.sync,
            memory=_open_memory(self.memory),
            asker=_make_asker(self.ask_in),
            notice=lambda line: echo(line, err=True),
            tracer=self.trace or None,
            sandbox=self.sandbox,
            background=BackgroundTools(self.tasks_dir / BACKGROUND_FOLDER),
            profiles=project_profiles(self.trust) if sends else shown_profiles(),
            trust=self.trust,
        )


def evaluator_options(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Gives a command the options called `names`; it receives them as one argument, `options`."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def call(**values: Any) -> Any:
            own = {
                field.name: values.pop(field.name)
                for field in fields(EvaluatorOptions)
                if field.name in values
            }
            return command(options=EvaluatorOptions(**own), **values)

        for name in reversed(names):
            call = _OPTIONS[name](call)
        return call

    return decorate


def _make_asker(folder: Path | None) -> Asker | None:
    """The asker: files in `folder`, else the person at the terminal, if there is one."""
    from evaluator.tools import FileAsker

    if folder is not None:
        if folder.exists() and not folder.is_dir():
            raise UsageError(
                f"--ask-in {folder}: not a folder; name one, which is made where it is missing"
            )
        return FileAsker(folder)
    return terminal_asker()


def terminal_asker() -> Asker | None:
    """An asker for the person at the terminal; None if there is none."""
    from evaluator.tools import TerminalAsker

    if stdin_is_terminal():
        return TerminalAsker()
    return None


def _open_memory(file: Path | None) -> Memory | None:
    """The index in `file`. Raises: UsageError, if there is none."""
    if file is None:
        return None
    if not file.is_file():
        raise UsageError(
            f"--memory {file}: there is no such index; make one with: evaluator memory index"
        )
    from evaluator.memory import GlobalIndex

    return GlobalIndex(file)
