"""The one place where commands print. Text from outside cannot control the terminal.

A batch continues without standard error. If it cannot be written (the program that read the
progress has ended, the terminal is closed, the disk is full), nothing raises, and nothing more is
written. With `--progress json` every line of it
is a JSON object: a line that is not an event becomes a `notice`.

The option -v: what the loggers of evaluator say, on standard error. It stands before or after a
command. What else is logged, and errors that nobody handles, are messages without a traceback.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import sys
import threading
from collections.abc import Generator, Sequence
from typing import Any, TextIO, cast

import click

from evaluator.errors.messages import LOGGER, visible


def echo(
    text: str = "",
    *,
    err: bool = False,
    nl: bool = True,
    colour: str | None = None,
    dim: bool = False,
) -> None:
    """Prints a message on standard output, or with `err` on standard error, its control characters
    made visible.

    `colour` and `dim` apply to the whole message.
    """
    shown = visible(text)
    click.echo(
        click.style(shown, fg=colour, dim=True if dim else None) if colour or dim else shown,
        err=err,
        nl=nl,
    )


def echo_raw(text: str, *, nl: bool = True, colour: bool | None = None) -> None:
    """Prints text whose parts are already made visible, such as a rendered record with its colours,
    or output that goes into a pipe unchanged. `colour`: as `color` of `click.echo`.
    """
    click.echo(text, nl=nl, color=colour)


class SafeStream:
    """A text stream whose writes never fail. Other attributes are those of `stream`."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str, /) -> int:
        try:
            self._stream.write(text)
        except OSError:
            _redirect_to_null(self._stream)
        return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            _redirect_to_null(self._stream)


class JsonStream(SafeStream):
    """Writes every line as an event. `lines` takes lines that are events already."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self.lines = cast("TextIO", SafeStream(stream))
        self._partial = ""

    def write(self, text: str, /) -> int:
        *whole, self._partial = (self._partial + text).split("\n")
        for line in whole:
            if line.strip():
                self.print_event("notice", message=line)
        return len(text)

    def isatty(self) -> bool:
        return False

    def print_event(self, event: str, **fields: Any) -> None:
        import json

        self.lines.write(json.dumps({"event": event, **fields}) + "\n")
        self.lines.flush()

    def finish(self) -> None:
        """Writes the last line, if it has no line end."""
        if self._partial:
            self.write("\n")


def json_stderr() -> JsonStream | None:
    """Standard error, if it consists of events; else None."""
    stream = cast("object", sys.stderr)
    if isinstance(stream, JsonStream):
        return stream
    return None


@contextlib.contextmanager
def batch_stderr(arguments: Sequence[str]) -> Generator[None]:
    """Inside the context, standard error is safe or JSON, if `arguments` are those of `evaluator
    batch`.
    """
    plain = sys.stderr
    if plain is None or arguments[:1] != ["batch"]:  # pyright: ignore[reportUnnecessaryComparison]
        yield
        return
    stream = (JsonStream if _progress(arguments) == "json" else SafeStream)(plain)
    sys.stderr = cast("TextIO", stream)
    try:
        yield
    finally:
        if isinstance(stream, JsonStream):
            stream.finish()
        sys.stderr = plain


def _progress(arguments: Sequence[str]) -> str | None:
    found = None
    for argument, following in zip(arguments, [*arguments[1:], None], strict=True):
        if argument == "--progress":
            found = following
        elif argument.startswith("--progress="):
            found = argument.partition("=")[2]
    return found


@contextlib.contextmanager
def ignore_closed_reader(stream: TextIO | None) -> Generator[None]:
    """Skips the rest of the block when the reader of `stream` has gone.

    Raises: OSError, for anything else, such as a full disk.
    """
    try:
        yield
    except OSError as error:
        if stream is None or error.errno not in (errno.EPIPE, errno.EIO):
            raise
        _redirect_to_null(stream)


def _redirect_to_null(stream: TextIO) -> None:
    """Without this, Python tries to write what is still buffered at exit, and fails."""
    with contextlib.suppress(OSError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


_LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)


class _StderrHandler(logging.Handler):
    """Prints on standard error as it is at that time: a live display or `--progress json` may have
    replaced it.
    """

    verbosity = 0

    def emit(self, record: logging.LogRecord) -> None:
        # Commands print the warnings of single tasks themselves.
        if self.verbosity or record.name == LOGGER.name:
            _print_record(record)


class _LastResort(logging.Handler):
    """Prints the message of a record of another library, or of a project's code, for which nobody
    has set a handler; without the traceback that it may carry.
    """

    def emit(self, record: logging.LogRecord) -> None:
        _print_record(record)


def _print_record(record: logging.LogRecord) -> None:
    # The caller goes on, even where its arguments do not fit the message, or nobody reads it.
    with contextlib.suppress(Exception):
        try:
            message = record.getMessage()
        except Exception:
            message = f"{record.msg} {record.args}"
        echo(f"{record.levelname.lower()}: {message}", err=True)


def print_unhandled_as_lines() -> None:
    """From now on this process prints a message without a traceback for each record of a logger
    without a handler, and for each exception that ends a thread or is raised while an object is
    freed. With EVALUATOR_DEBUG set, Python prints them with their tracebacks.
    """
    if os.environ.get("EVALUATOR_DEBUG"):
        return
    logging.lastResort = _LastResort(logging.WARNING)
    threading.excepthook = _print_thread_error
    sys.unraisablehook = _print_unraisable


def _print_thread_error(error: threading.ExceptHookArgs) -> None:
    if error.exc_type is SystemExit:
        return
    name = "?" if error.thread is None else error.thread.name
    _print_error(f"the thread {name} ended", error.exc_type, error.exc_value)


def _print_unraisable(error: sys.UnraisableHookArgs) -> None:
    what = error.err_msg or "an exception was ignored in"
    _print_error(f"{what} {type(error.object).__name__}", error.exc_type, error.exc_value)


def _print_error(what: str, exc_type: type[BaseException], exc_value: BaseException | None) -> None:
    # The process may be at its end, and the error's text may come from code of a project.
    with contextlib.suppress(Exception):
        echo(f"warning: {what}: {exc_type.__name__}: {exc_value}".removesuffix(": None"), err=True)


def verbose_option(*, hidden: bool = False) -> click.Option:
    """`-v` for a command; `hidden` for those below the group, whose help shows it."""
    return click.Option(
        ["-v", "--verbose"],
        count=True,
        expose_value=False,
        hidden=hidden,
        callback=_configure,
        is_eager=True,
        help="Log retries and repairs on standard error; -vv also logs each call. May follow the "
        "command.",
    )


def add_verbose_option(command: click.Command) -> None:
    """Adds the option to a command and those below it."""
    if isinstance(command, click.Group):
        for below in command.commands.values():
            add_verbose_option(below)
    elif not any("-v" in parameter.opts for parameter in command.params):
        command.params.append(verbose_option(hidden=True))


def _configure(context: click.Context, parameter: click.Parameter, count: int) -> Any:
    """Logs from now until the command ends. The higher count of the group and the command
    applies.
    """
    root = context.find_root()
    handler = root.meta.get(__name__)
    if handler is None:
        before = LOGGER.level
        handler = root.meta[__name__] = _StderrHandler()
        LOGGER.addHandler(handler)
        root.call_on_close(lambda: (LOGGER.removeHandler(handler), LOGGER.setLevel(before)))
    handler.verbosity = max(handler.verbosity, min(count, len(_LEVELS) - 1))
    LOGGER.setLevel(_LEVELS[handler.verbosity])
