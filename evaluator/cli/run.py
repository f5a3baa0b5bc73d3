"""`evaluator run`: one evaluation, its text streamed to the terminal."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evaluator.cli.common import (
    echo_text,
    exit_code_of,
    handler_option,
    input_option,
    json_option,
    library_option,
    load_library,
    model_option,
    print_json,
    read_inputs,
    read_roles,
    role_option,
    stderr_is_terminal,
    stdin_is_terminal,
    stdout_is_terminal,
    trace_option,
    warn_of_unknown_roles,
)
from evaluator.errors import UsageError
from evaluator.record.render import visible
from evaluator.results import TaskError, TaskResult

if TYPE_CHECKING:
    from evaluator.handler.tools import Asker
    from evaluator.memory import Memory

root_option = click.option(
    "--root", "roots", multiple=True, type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="A folder that the task may read; the first is where scripts run. Default: here.",
)  # fmt: skip
memory_option = click.option(
    "--memory", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False),
    help="An index made by `evaluator memory index`: what fresh_context and described file_paths are looked up in.",
)  # fmt: skip
ask_option = click.option(
    "--ask-in", metavar="FOLDER", type=click.Path(path_type=Path, file_okay=False),
    help="Ask in files: question-N.txt is answered by answer-N.txt, written by whoever looks there.",
)  # fmt: skip
sync_option = click.option(
    "--sync", type=click.Choice(["off", "task", "step"]), default="off", show_default=True,
    help="What of the task file survives a loss of power: what the system wrote back, every ended task, every step. "
    "A killed process loses nothing with any of them.",
)  # fmt: skip


@click.command(
    epilog="Examples:\n\n\b\n  evaluator run --template summarise --input document=@notes.md\n"
    '  evaluator run "translate this into French" --input text="Good morning" --input language=French'
)
@click.argument("request", required=False)
@click.option("--template", metavar="NAME", help="Evaluate this template instead of matching a request.")
@input_option
@library_option
@handler_option
@model_option
@role_option
@click.option("--tasks", "tasks_dir", default="tasks", show_default=True, type=click.Path(path_type=Path),
              help="Where task files are written.")  # fmt: skip
@root_option
@memory_option
@ask_option
@sync_option
@click.option("--reparse", is_flag=True, help="Decompose a task that runs out of turns, context or output, once.")
@trace_option
@json_option
def run(
    request: str | None,
    template: str | None,
    inputs: tuple[str, ...],
    folders: tuple[Path, ...],
    handler: str | None,
    model: str | None,
    model_roles: tuple[str, ...],
    tasks_dir: Path,
    roots: tuple[Path, ...],
    memory: Path | None,
    ask_in: Path | None,
    sync: Any,
    reparse: bool,
    trace: bool,
    as_json: bool,
) -> None:
    """Evaluate a template, or a REQUEST in words that is matched to one.

    The result goes to standard output, everything else to standard error. Exit code 1 if the task fails.
    """
    from evaluator.interpreter.evaluator import Evaluator

    if (request is None) == (template is None):
        raise UsageError("give either a REQUEST in words or --template NAME")
    if request is not None and not request.strip():
        raise UsageError("the REQUEST is empty: say what to do, or name a --template")
    if model is not None and not model.strip():
        raise UsageError("--model is empty; name one, e.g. openai/gpt-4o-mini, or leave it out")
    library = load_library(folders)
    name = template or request or ""
    node = None
    if template is not None:
        node = library.get(template).node
    elif name in library:
        node = library.get(name).node
    roles = read_roles(model_roles)
    warn_of_unknown_roles(library, roles)
    evaluator = Evaluator(
        library, handler, model=model, model_roles=roles, tasks_dir=tasks_dir, roots=roots,
        reparse=reparse, sync=sync, memory=open_memory(memory), asker=asker_of(ask_in),
        notice=lambda line: click.echo(line, err=True), tracer=trace or None,
    )  # fmt: skip
    streaming = stdout_is_terminal() and not as_json
    outcome = evaluator.evaluate_sync(
        name, read_inputs(inputs, node), ask_model=True,
        on_text=write_piece if streaming else None, on_event=None if as_json else announce,
    )  # fmt: skip
    evaluator.close()
    if streaming:
        click.echo()
    if as_json:
        print_json(outcome.to_dict())
    else:
        print_outcome(outcome, tasks_dir, shown=streaming)
    if isinstance(outcome, TaskError):
        raise click.exceptions.Exit(exit_code_of(outcome))


def asker_of(folder: Path | None) -> Asker | None:
    """Who answers questions: files in `folder`, else the person at the terminal, if there is one."""
    from evaluator.handler.tools import FileAsker, TerminalAsker

    if folder is not None:
        if folder.exists() and not folder.is_dir():
            raise UsageError(f"--ask-in {folder}: it is no folder; name one, which is made where it is missing")
        return FileAsker(folder)
    return TerminalAsker() if stdin_is_terminal() else None


def open_memory(file: Path | None) -> Memory | None:
    """The index in `file`. Raises: UsageError, if there is none."""
    if file is None:
        return None
    if not file.is_file():
        raise UsageError(f"--memory {file}: there is no such index; make one with: evaluator memory index")
    from evaluator.memory import GlobalIndex

    return GlobalIndex(file)


def write_piece(piece: str) -> None:
    sys.stdout.write(visible(piece))
    sys.stdout.flush()


def announce(path: str, what: str) -> None:
    if path and stderr_is_terminal():
        click.echo(click.style(f"· {path} {what}", dim=True), err=True)


def printed(outcome: TaskResult) -> str:
    """What goes to standard output: the value that was read, as JSON, where a format was declared; else the text."""
    if outcome.parsed_content is None or isinstance(outcome.parsed_content, str):
        return outcome.content
    return json.dumps(outcome.parsed_content, ensure_ascii=False)


def print_outcome(outcome: TaskResult | TaskError, tasks_dir: Path, *, shown: bool) -> None:
    for warning in outcome.notes.get("warnings", ()):
        click.echo(f"warning: {warning}", err=True)
    matched = outcome.notes.get("matched")
    if matched is not None:
        click.echo(f"matched: {matched['template']} ({matched['score']:.2f})", err=True)
    if str(outcome.notes.get("model", "")).startswith("simulated"):
        click.echo("note: the answer is simulated", err=True)
    if isinstance(outcome, TaskResult):
        if not shown or outcome.notes.get("steps") or outcome.notes.get("processed_inputs"):
            echo_text(printed(outcome))
    else:
        if outcome.violations:
            # Each finding says the same as the message, with its place.
            click.echo(f"error: {outcome.type}({outcome.reason})", err=True)
            for violation in outcome.violations:
                click.echo(str(violation), err=True)
        else:
            click.echo(f"error: {outcome}", err=True)
        if outcome.details.get("reparse"):
            click.echo(f"reparse: {visible(str(outcome.details['reparse']))}", err=True)
        if outcome.content and not shown:
            click.echo(f"what there was of an answer:\n{visible(outcome.content)}", err=True)
    if outcome.task_id is not None:
        # A file that could not be closed stays with the active ones.
        path = tasks_dir / "done" / f"TASK-{outcome.task_id}.md"
        path = path if path.exists() else tasks_dir / "active" / path.name
        click.echo(f"task file: {path}", err=True)
