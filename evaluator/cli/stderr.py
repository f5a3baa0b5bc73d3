"""Standard error of `evaluator batch`: the batch continues when standard error can no longer be
written.

If it cannot be written (the program that read the progress has ended, the terminal is closed, the
disk is full), nothing raises, and nothing more is written. With `--progress json` every line of it
is a JSON object: a line that is not an event becomes a `notice`.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
from collections.abc import Generator, Sequence
from typing import Any, TextIO, cast


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
