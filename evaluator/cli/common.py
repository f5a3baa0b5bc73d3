"""Options, small printers and the progress line that several commands share.

The progress of long work that is not a batch: one line on a terminal, erased when the work has
ended.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any, Self, TypeVar, cast

import click

from evaluator import clock
from evaluator.cli.echo import echo, echo_raw
from evaluator.errors import (
    ConfigurationError,
    Diagnostic,
    MachineError,
    RecordError,
    TemplateError,
    UsageError,
)
from evaluator.errors.messages import amount, cut, did_you_mean, minutes_text, visible, visible_json
from evaluator.errors.results import Outcome, TaskResult
from evaluator.language.scopes import read_typed
from evaluator.library import CallBound, TemplateLibrary
from evaluator.library.calls import parameters, roles_of
from evaluator.nodes import TopLevel

DELAY_S = 1.0
"""How long the work takes before it is shown."""
_TICK_S = 0.25
_Item = TypeVar("_Item")


class WorkProgress:
    """Shows on standard error what a command does, how much of it is done, and for how long;
    nothing in the first DELAY_S, and nothing where standard error is not a terminal. A context
    manager.

    >>> with WorkProgress("comparing", "result") as progress:
    ...     sum(progress.each([1, 2, 3]))
    6
    """

    def __init__(
        self, what: str, unit: str, total: int | None = None, *, is_shown: bool = True
    ) -> None:
        """`unit` names one of what is counted; `total`: how many there will be, None if that is not
        known.
        """
        self._what = what
        self._unit = unit
        self._total = total
        self._is_shown = is_shown
        self._done = 0
        self._started = clock.monotonic()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        stream = cast("IO[str] | None", sys.stderr)
        if self._is_shown and stream is not None and stream.isatty():
            self._thread = threading.Thread(target=self._show, args=(stream,), daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def update(self, done: int) -> None:
        """Sets how many are done."""
        self._done = done

    def each(self, items: Iterable[_Item]) -> Iterator[_Item]:
        """Yields `items` and counts them, after those that are done already."""
        for item in items:
            yield item
            self.update(self._done + 1)

    def _show(self, stream: IO[str]) -> None:
        if self._ended.wait(DELAY_S):
            return
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        live = Live(
            console=Console(file=stream),
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        # A terminal that is gone does not end the work.
        with contextlib.suppress(OSError), live:
            while True:
                elapsed = minutes_text(clock.monotonic() - self._started)
                live.update(
                    Text(self._line(elapsed), overflow="ellipsis", no_wrap=True), refresh=True
                )
                if self._ended.wait(_TICK_S):
                    return

    def _line(self, elapsed: str) -> str:
        if not self._done:
            return f"{self._what}: {elapsed}"
        if self._total is None:
            done = amount(self._done, self._unit)
        else:
            done = f"{self._done:,} of {amount(self._total, self._unit)}"
        return f"{self._what}: {done} · {elapsed}"


MAX_INPUT_BYTES = 50_000_000
PATH = click.Path(path_type=Path)
FILE = click.Path(path_type=Path, dir_okay=False)
FOLDER = click.Path(path_type=Path, file_okay=False)

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for other programs.")
input_option = click.option(
    "--input",
    "-i",
    "inputs",
    multiple=True,
    metavar="KEY=VALUE",
    help="An input; VALUE @FILE takes a file's text, @- standard input. May be repeated.",
)
markdown_option = click.option("--markdown", is_flag=True, help="Print Markdown.")


def refuse_two_formats(markdown: bool, as_json: bool) -> None:
    """Raises: UsageError, for --markdown with --json."""
    if markdown and as_json:
        raise UsageError("--json and --markdown are two formats; give one of them")


def or_templates(paths: tuple[Path, ...], verb: str, command: str) -> tuple[Path, ...]:
    """`paths`, or the folder templates/ here. Raises: UsageError, if there is none."""
    if not paths and not Path("templates").is_dir():
        raise UsageError(
            f"there is no templates/ here; name what to {verb}: evaluator {command} FOLDER"
        )
    return paths or (Path("templates"),)


def read_library(folders: Sequence[Path], *, shows_progress: bool = True) -> TemplateLibrary:
    """The library with its findings. Loading that takes long is shown on a terminal."""
    with WorkProgress("loading templates", "file", is_shown=shows_progress) as progress:
        return TemplateLibrary.load(*folders, on_progress=progress.update)


def load_library(
    folders: Sequence[Path], *, shows_progress: bool = True, name: str | None = None
) -> TemplateLibrary:
    """The library without the templates that have errors, which are reported on standard error.

    Where only the template `name` is used, the errors of templates that it does not name are
    counted and not shown. Raises: TemplateError, if `name` itself has errors, which are not
    reported before.
    """
    library = read_library(folders, shows_progress=shows_progress)
    errors: Sequence[Diagnostic] = library.errors
    own: Sequence[Diagnostic] = ()
    if errors and name is not None and (name in library or name in library.broken):
        errors = library.errors_for(name)
        own = _errors_of(library, name)
    hidden = len(library.errors) - len(errors)
    for diagnostic in errors:
        if diagnostic not in own:
            echo(library.format_diagnostic(diagnostic), err=True)
    if hidden:
        from shlex import join

        command = join(["evaluator", "lint", *map(str, folders)])
        echo(f"note: other templates have {amount(hidden, 'error')}; see: {command}", err=True)
    if own:
        error = TemplateError(own)
        # Each with its line of the source.
        error.args = ("\n".join(map(library.format_diagnostic, own)),)
        raise error
    return library


def _errors_of(library: TemplateLibrary, name: str) -> Sequence[Diagnostic]:
    """The errors for which a template cannot be used."""
    try:
        library.get(name)
    except TemplateError as error:
        return error.diagnostics
    return ()


def read_inputs(pairs: Iterable[str], node: TopLevel | None) -> dict[str, Any]:
    """The values of `KEY=VALUE` pairs, read as the declared type where `node` declares one.

    Raises: UsageError, for a pair without `=`, a file that cannot be read, or a value of another
    type.
    """
    types = {} if node is None else parameters(node)
    values: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise UsageError(f"--input {pair!r}: expected KEY=VALUE or KEY=@FILE")
        if key in values:
            raise UsageError(f"--input {key} is given twice")
        if text == "@":
            raise UsageError(
                f"--input {key}=@: expected a file's name after @, or - for standard input"
            )
        try:
            if text.startswith("@"):
                text = read_text(text[1:])
            values[key] = read_typed(text, types.get(key, ("any",))[0])
        except UsageError as error:
            raise UsageError(f"--input {key}: {error}") from error
    return values


def warn_of_unknown_roles(library: TemplateLibrary, roles: Collection[str]) -> None:
    """Warns on standard error of roles that no template of `library` names, which would have no
    effect.
    """
    if not roles:
        return
    known = {role for template in library.templates.values() for role in roles_of(template.node)}
    for role in roles:
        if role not in known:
            message = f"warning: --model-role {role}: no template names this role"
            if hint := did_you_mean(role, sorted(known)):
                message = f"{message}; {hint}"
            echo(message, err=True)


def refuse_simulated(library: TemplateLibrary, template: str, model: str | None, what: str) -> None:
    """Raises: ConfigurationError, if `model` is a simulated one and answered the shipped
    `template`: its example has nothing of what the user asked for. `what` is what such a model
    cannot do.

    The user's own template of this name may have examples that are meant.
    """
    from evaluator.files.locations import shipped
    from evaluator.handler.backends import is_simulated_model

    if not is_simulated_model(model or ""):
        return
    own = library.templates.get(template)
    if own is None or (
        own.file is not None and Path(own.file).is_relative_to(shipped("templates"))
    ):
        raise ConfigurationError(
            f"a simulated model cannot {what}; name a model with --model, or set the key of a "
            "provider"
        )


def read_text(path: str) -> str:
    """The text of a file, or of standard input for `-`, as UTF-8 and at most MAX_INPUT_BYTES.

    Raises: UsageError, with the reason why it cannot be read.
    """
    try:
        if path == "-":
            if sys.stdin is None:  # pyright: ignore[reportUnnecessaryComparison]
                raise UsageError("standard input is closed; name a file")
            data = sys.stdin.buffer.read(MAX_INPUT_BYTES + 1)
        else:
            with open(path, "rb") as file:
                data = file.read(MAX_INPUT_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:  # a NUL in the path
        raise UsageError(f"{path!r}: cannot be read: {error}") from error
    if len(data) > MAX_INPUT_BYTES:
        raise UsageError(f"{path}: larger than {MAX_INPUT_BYTES:,} bytes; give a part of it")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 (byte {error.start}); save it as UTF-8") from error


def write_new(path: Path, data: bytes) -> bool:
    """Writes a file that does not exist yet, as a whole or not at all. Returns: False, if something
    is there already. Raises: RecordError, if it cannot be written.
    """
    from evaluator.files.atomic import NO_LINKS, atomic_file

    if os.path.lexists(path):
        return False
    write = partial(atomic_file, path, mode=0o666, sync=False)
    try:
        with write(replace=False) as file:
            file.write(data)
    except FileExistsError:
        return False
    except RecordError as error:
        if getattr(error.__cause__, "errno", None) not in NO_LINKS:
            raise
        # A rename, which would replace a file that came meanwhile, is all that is left.
        with write() as file:
            file.write(data)
    return True


def print_json(value: Any) -> None:
    """Prints `value` as JSON that any reader accepts: NaN as null, and escaped where the output is
    not UTF-8.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, indent=2, default=str, allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(value), ensure_ascii=False, indent=2, default=str)
    print_json_text(text)


def print_json_text(text: str) -> None:
    """Prints a JSON text, escaped where the output is not UTF-8."""
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(json.loads(text), indent=2)
    echo_raw(visible_json(text))


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in cast("Sequence[Any]", value)]
    return value


def _is_terminal(stream: IO[str] | None) -> bool:
    return stream is not None and stream.isatty()


def stdin_is_terminal() -> bool:
    return _is_terminal(sys.stdin)


def stdout_is_terminal() -> bool:
    return _is_terminal(sys.stdout)


def stderr_is_terminal() -> bool:
    return _is_terminal(sys.stderr)


def echo_text(text: str) -> None:
    """Prints a model's text on standard output; for a terminal, control characters are escaped."""
    # click removes colour codes from output into a pipe, unless `color` is set.
    echo_raw(visible(text) if stdout_is_terminal() else text, colour=True)


def exit_code_of(outcome: Outcome) -> int:
    """0 for a result; 3 for a problem with a profile, a key, the folder of task files or this
    machine; else 1.
    """
    if isinstance(outcome, TaskResult):
        return 0
    if isinstance(outcome.cause, (ConfigurationError, RecordError, MachineError)):
        return 3
    return 1


def terminal_width() -> int:
    """Columns of the terminal or of the variable COLUMNS; 100 if neither is available."""
    from shutil import get_terminal_size

    return get_terminal_size((100, 24)).columns


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints left-aligned columns; the last one is cut so that a row fits a line of the
    terminal.
    """
    shown = [[visible(" ".join(str(cell).split())) for cell in row] for row in [head, *rows]]
    widths = [max(len(row[i]) for row in shown) for i in range(len(head))]
    room = max(20, terminal_width() - sum(widths[:-1]) - 2 * (len(head) - 1))
    lines: list[str] = []
    for *cells, last in shown:
        padded = [cell.ljust(width) for cell, width in zip(cells, widths, strict=False)]
        lines.append("  ".join([*padded, cut(last, room)]).rstrip())
    echo("\n".join(lines))


def print_json_or_table(
    as_json: bool, value: Any, head: Sequence[str], rows: Sequence[Sequence[str]]
) -> None:
    """Prints `value` as JSON for other programs, or the table for a person."""
    if as_json:
        print_json(value)
    else:
        print_table(head, rows)


def cost_bound(limit: CallBound, model: str | None) -> float | None:
    """The highest cost of the calls in `limit`, in US dollars; None if the calls or the price have
    no bound.
    """
    if model is None or limit.max_calls is None:
        return None
    if limit.max_calls == 0:
        return 0.0
    from evaluator.models.prices import max_call_cost_usd

    each = max_call_cost_usd(model)
    if each is None:
        return None
    return each * limit.max_calls


def describe_bound(limit: CallBound, model: str | None) -> str:
    """One line with the highest number of model calls, and their highest cost if a model was
    named.
    """
    calls = limit.of_model_calls()
    if limit.max_calls is None:
        calls += " before its inputs are known"
    if model is None:
        return calls
    cost_usd = cost_bound(limit, model)
    if cost_usd is None:
        return f"{calls}, cost unknown"
    return f"{calls}, at most ${cost_usd:.4f} with {model}"
