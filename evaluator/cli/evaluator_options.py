"""The options with which commands make an Evaluator: each is declared once, and a command names
those it has.

Options of commands, made from declared fields (`evaluator.fields`), and help in sections.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from evaluator.cli.common import load_library, stdin_is_terminal, warn_of_unknown_roles
from evaluator.cli.echo import echo
from evaluator.cli.trust import permit_schemas, project_profiles, shown_profiles
from evaluator.errors import UsageError
from evaluator.fields import Before, Checked, FieldError, Flag, Place, fields_of
from evaluator.fields.listing import Entry, entries_of, put
from evaluator.interpreter.evaluator_flags import LIBRARY, MODEL_ROLE, ROOT, SANDBOX, Roles
from evaluator.lazy_dataclass import frozen
from evaluator.record.journal import Sync

if TYPE_CHECKING:
    from evaluator.interpreter.evaluator import Evaluator
    from evaluator.memory import Memory
    from evaluator.tools import Asker


OTHER = "Other options"
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class SectionOption(click.Option):
    """An option below the heading `section` of its command's help."""

    def __init__(self, *declarations: Any, section: str = OTHER, **settings: Any) -> None:
        super().__init__(*declarations, **settings)
        self.section = section


class SectionedCommand(click.Command):
    """A command whose help has its options in sections."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and isinstance(parameter, click.Option):
                section = getattr(parameter, "section", OTHER)
                sections.setdefault(section, []).append(record)
        others = sections.pop(OTHER, [])
        for title, records in [*sections.items(), (OTHER, others)]:
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def flag_options(
    cls: type, flags: Iterable[str] | None = None, *, with_defaults: bool = False
) -> Decorator:
    """Gives a command the flags of a class of declared fields, or those of them in `flags`. A flag
    that is not given is None, or with `with_defaults` its default.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        entries = {entry.flag.name: entry for entry in entries_of(cls) if entry.flag is not None}
        for name in reversed(list(entries if flags is None else flags)):
            command = _option(entries[name], with_default=with_defaults)(command)
        return command

    return decorate


def _option(entry: Entry, *, with_default: bool) -> Decorator:
    flag = entry.flag
    assert flag is not None
    place = entry.field.mark(Place)
    settings: dict[str, Any] = {}
    if with_default:
        settings["default"] = entry.field.default
    words = entry.field.kind.words
    if words.of is bool:
        settings["is_flag"] = True
    elif words.choices:
        settings["type"] = click.Choice(words.choices)
    elif place is not None:
        settings["type"] = click.Path(
            exists=place.must_exist,
            file_okay=place.file,
            dir_okay=place.folder,
            path_type=Path if words.of is Path else None,
        )
    elif words.of in (int, float) and entry.field.mark(Before) is None:
        settings["type"] = words.of
    return click.option(
        *flag.name.split("/"),
        entry.parameter,
        cls=SectionOption,
        section=entry.section or OTHER,
        multiple=words.several,
        metavar=flag.metavar,
        help=entry.help + " May be repeated." * words.several,
        **settings,
    )


def read_flags(cls: type, given: Mapping[str, Any], *, is_stored: bool = True) -> dict[str, Any]:
    """The flags that were given, as a table of those fields of `cls` that are stored, or not.

    Raises: UsageError, for an invalid value.
    """
    table: dict[str, Any] = {}
    for entry in entries_of(cls):
        value = given.get(entry.parameter)
        if value is None or value is False or value == ():
            continue
        if entry.flag is None or entry.field.is_stored != is_stored:
            continue
        kind = entry.field.kind
        if kind.words.is_table:
            value = _read_pairs(entry.flag, value)
        try:
            put(table, entry.path, kind.accept(value))
        except FieldError as error:
            raise UsageError(str(error.inside(entry.flag.name))) from None
    return table


def refuse_flags(given: Mapping[str, Any], why: str) -> None:
    """Raises: UsageError, if an option of the current command among `given` was given."""
    for option in click.get_current_context().command.params:
        if given.get(option.name or "") not in (None, False, ()):
            raise UsageError(f"{option.opts[0]} {why}")


def _read_pairs(flag: Flag, texts: Iterable[str]) -> dict[str, str]:
    """The values of `NAME=VALUE` texts. Raises: UsageError."""
    values: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip() or not value.strip():
            example = f", as in {flag.example}" if flag.example else ""
            raise UsageError(f"{flag.name} {text!r}: expected {flag.metavar}{example}")
        if name in values:
            raise UsageError(f"{flag.name} {name} is given twice")
        values[name] = value
    return values


BACKGROUND_FOLDER = "background"
"""The folder below the task files that holds the states and outputs of background tasks."""


@frozen
class EvaluatorOptions(Checked, error=UsageError):
    """The values of a command's options; options that the command does not have keep their
    default.
    """

    folders: Annotated[tuple[Path, ...], Place(), LIBRARY] = ()
    handler: Annotated[
        str | None, Flag("--handler", "The handler profile. See: evaluator handlers", "NAME")
    ] = None
    model: Annotated[
        str | None, Flag("--model", "The model, e.g. openai/gpt-4o-mini.", "MODEL")
    ] = None
    model_roles: Annotated[Roles, MODEL_ROLE] = field(default_factory=dict[str, str])
    tasks_dir: Annotated[Path, Place(), Flag("--tasks", "The folder of task files.")] = Path(
        "tasks"
    )
    roots: Annotated[tuple[Path, ...], Place(file=False, must_exist=True), ROOT] = ()
    memory: Annotated[
        Path | None,
        Place(folder=False),
        Flag(
            "--memory",
            "An index made by `evaluator memory index`, for fresh_context and described "
            "file_paths.",
            metavar="FILE",
        ),
    ] = None
    ask_in: Annotated[
        Path | None,
        Place(file=False),
        Flag("--ask-in", "Ask in files: question-N.txt is answered in answer-N.txt.", "FOLDER"),
    ] = None
    sync: Annotated[
        Sync,
        Flag(
            "--sync",
            "Which task files survive a loss of power: only what the system wrote back (off), "
            "every ended task, or every step. A killed process loses nothing with any of them.",
        ),
    ] = "off"
    reparse: Annotated[
        bool,
        Flag("--reparse", "Decompose a task that runs out of turns, context or output, once."),
    ] = False
    rerank: Annotated[
        bool,
        Flag(
            "--rerank",
            "Let the model choose among the best templates, or none, where the words of a request "
            "do not decide; that is one more call.",
        ),
    ] = False
    sandbox: Annotated[str | None, SANDBOX] = None
    trace: Annotated[
        bool,
        Flag(
            "--trace",
            "Send spans of the run to OpenTelemetry, as set up by opentelemetry-instrument. Needs "
            "evaluator[otel].",
        ),
    ] = False
    trust: Annotated[
        bool,
        Flag(
            "--trust",
            "Allow what the files of this project name (hosts, keys, commands, code), as "
            "`evaluator trust` does.",
        ),
    ] = False

    def make_evaluator(self, *, sends: bool = True, template: str | None = None) -> Evaluator:
        """The Evaluator that these options describe, which is closed when the command ends;
        notices go to standard error. `sends`: it makes calls, so that the profiles of the project
        need the user's permission. `template`: the only one that is used, if that is known; errors
        of others are only counted.

        Raises: UsageError or ConfigurationError, for an option that cannot be used.
        """
        from evaluator.interpreter.evaluator import Evaluator
        from evaluator.jobs.background_tools import BackgroundTools

        if self.model is not None and not self.model.strip():
            raise UsageError("--model is empty; name one, e.g. openai/gpt-4o-mini, or leave it out")
        library = load_library(self.folders, name=template)
        warn_of_unknown_roles(library, self.model_roles)
        if sends:
            permit_schemas(library, self.trust)
        evaluator = Evaluator(
            library,
            self.handler,
            model=self.model,
            model_roles=self.model_roles,
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
        return click.get_current_context().with_resource(evaluator)


tasks_option = flag_options(EvaluatorOptions, ["--tasks"], with_defaults=True)
library_option = flag_options(EvaluatorOptions, ["--library"])
trace_option = flag_options(EvaluatorOptions, ["--trace"])
trust_option = flag_options(EvaluatorOptions, ["--trust"])


def evaluator_options(*flags: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Gives a command these flags; it receives their values as one argument, `options`."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def call(**values: Any) -> Any:
            table = read_flags(EvaluatorOptions, values)
            others = {
                name: values[name] for name in values if name not in fields_of(EvaluatorOptions)
            }
            return command(options=EvaluatorOptions.from_table(table), **others)

        return flag_options(EvaluatorOptions, flags)(call)

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
