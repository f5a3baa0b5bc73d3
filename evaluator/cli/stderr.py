"""Standard error of `evaluator batch`: what happens to its reader does not happen to the batch.

Where it cannot be written (the program that read the progress has ended, the terminal is gone, the disk is full) it
is as if nobody looked: nothing raises, and nothing more is written. With `--progress json` every line of it is a JSON
object, whoever wrote the line: one that is no event becomes a `notice`.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import sys
from collections.abc import Generator, Sequence
from typing import Any, TextIO, cast


class Lasting(io.TextIOBase):
    """A text stream on top of `stream` that never fails."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str, /) -> int:
        with _nowhere_if_gone(self._stream):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with _nowhere_if_gone(self._stream):
            self._stream.flush()

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()

    @property
    def encoding(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._stream.encoding

    @property
    def errors(self) -> str | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._stream.errors


class EventLines(Lasting):
    """Every line is an event, as JSON. `lines` takes lines that are one already."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self.lines = cast("TextIO", Lasting(stream))
        self._begun = ""

    def write(self, text: str, /) -> int:
        *whole, self._begun = (self._begun + text).split("\n")
        for line in whole:
            if line.strip():
                self.event("notice", message=line)
        return len(text)

    def isatty(self) -> bool:
        return False

    def event(self, event: str, **fields: Any) -> None:
        self.lines.write(json.dumps({"event": event, **fields}) + "\n")
        self.lines.flush()

    def finish(self) -> None:
        """Writes a last line that has no end."""
        if self._begun:
            self.write("\n")


def events() -> EventLines | None:
    """Standard error, where it holds events; else None."""
    return sys.stderr if isinstance(sys.stderr, EventLines) else None


@contextlib.contextmanager
def batch_stderr(arguments: Sequence[str]) -> Generator[None]:
    """Standard error as a batch has it, where `arguments` are of `evaluator batch`."""
    plain = sys.stderr
    if plain is None or arguments[:1] != ["batch"]:  # pyright: ignore[reportUnnecessaryComparison]
        yield
        return
    lasting = (EventLines if _progress(arguments) == "json" else Lasting)(plain)
    sys.stderr = cast("TextIO", lasting)
    try:
        yield
    finally:
        if isinstance(lasting, EventLines):
            lasting.finish()
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
def reader_may_go(stream: TextIO | None) -> Generator[None]:
    """What is written to `stream` after its reader has gone goes nowhere, and the rest of the block is left out.

    Raises: OSError, for what else may happen, as on a full disk.
    """
    try:
        yield
    except OSError as error:
        if stream is None or error.errno not in (errno.EPIPE, errno.EIO):
            raise
        _lead_nowhere(stream)


@contextlib.contextmanager
def _nowhere_if_gone(stream: TextIO) -> Generator[None]:
    try:
        yield
    except OSError:
        _lead_nowhere(stream)


def _lead_nowhere(stream: TextIO) -> None:
    """What is still buffered cannot be written: without this Python would try again at exit, and fail."""
    with contextlib.suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
