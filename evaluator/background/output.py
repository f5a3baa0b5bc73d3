"""The output file of a task: written by descriptor, read by anybody at any time.

The file is created new, never through a link, readable by its owner only. Its name is the task's
id, so nothing that another program created before is ever written to.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evaluator import clock, disk
from evaluator.files.open_below import FILE, open_private_folder
from evaluator.record.redact import Redactor

MAX_BYTES = 1 << 30
"""The size of an output at which its task is killed."""
WINDOW_MESSAGES = 50
SUFFIXES = ("log", "jsonl")
"""Of output as a program writes it, and of messages and events in JSON lines."""
_BLOCK_BYTES = 1 << 16
_HELD_BYTES = 1 << 12
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Output:
    """An open output file."""

    path: Path
    descriptor: int

    @classmethod
    def create(cls, folder: Path, name: str) -> Output:
        """Creates the file. Raises: FileExistsError; OSError; RecordError, if others may change the
        folder.
        """
        parent = open_private_folder(folder, "folder of background tasks")
        try:
            return cls(folder / name, disk.open(name, _FLAGS, 0o600, dir_fd=parent))
        finally:
            os.close(parent)

    def size(self) -> int:
        """Bytes written so far."""
        return os.fstat(self.descriptor).st_size

    def cut(self, max_bytes: int) -> None:
        """Removes what is past `max_bytes`; nothing may write to the file any more."""
        if self.size() > max_bytes:
            disk.ftruncate(self.descriptor, max_bytes)

    def write(self, data: bytes) -> None:
        """Appends `data`. Raises: OSError."""
        view = memoryview(data)
        while view:
            view = view[disk.write(self.descriptor, view) :]

    def write_record(self, record: Mapping[str, Any], redactor: Redactor) -> None:
        """Appends a line of JSON: `record` with the time, redacted. Raises: OSError."""
        shown = redactor.redact_value({"time": round(clock.wall(), 3), **record})
        self.write(
            json.dumps(shown, ensure_ascii=False, default=str).encode("utf-8", "backslashreplace")
            + b"\n"
        )

    def tail(self, max_bytes: int) -> bytes:
        """The last bytes, also if another file has taken its name."""
        return os.pread(self.descriptor, max_bytes, max(0, self.size() - max_bytes))

    def close(self) -> None:
        disk.close(self.descriptor)


class RedactedOutput:
    """Writes what a program prints to an output, without secrets.

    The last `_HELD_BYTES` wait for `flush`, because a secret may continue in what the program
    prints next.
    """

    def __init__(self, output: Output, redactor: Redactor) -> None:
        self._output = output
        self._redactor = redactor
        self._held = b""

    def write(self, data: bytes) -> None:
        """Raises: OSError."""
        self._held += data
        if len(self._held) > _BLOCK_BYTES:
            # At the end of a line, if there is one.
            end = self._held.rfind(b"\n", 0, len(self._held) - _HELD_BYTES) + 1
            self._write(end or len(self._held) - _HELD_BYTES)

    def flush(self) -> None:
        """Writes all of it. Raises: OSError."""
        self._write(len(self._held))

    def _write(self, end: int) -> None:
        text = self._held[:end].decode("utf-8", "surrogateescape")
        self._held = self._held[end:]
        self._output.write(self._redactor.redact(text).encode("utf-8", "surrogateescape"))


def _open(path: Path) -> int:
    try:
        return os.open(path, FILE)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(
                errno.ELOOP, "the output was replaced by a link, which is not followed", str(path)
            ) from error
        raise


def read_output(path: Path, offset: int, max_bytes: int) -> bytes:
    """At most `max_bytes` of the file from `offset`; empty past its end. Raises: OSError, also for
    a link.
    """
    descriptor = _open(path)
    try:
        return os.pread(descriptor, max_bytes, offset)
    finally:
        os.close(descriptor)


def window_start(path: Path, messages: int = WINDOW_MESSAGES) -> int:
    """The offset of the last `messages` lines of a transcript. Reads only as much of the file as
    these take.
    """
    with open(_open(path), "rb") as file:
        start = file.seek(0, os.SEEK_END)
        seen = 0
        while start > 0:
            size = min(_BLOCK_BYTES, start)
            start -= size
            block = os.pread(file.fileno(), size, start)
            lines = block.count(b"\n")
            if seen + lines <= messages:
                seen += lines
                continue
            end = len(block)
            for _ in range(messages + 1 - seen):
                end = block.rindex(b"\n", 0, end)
            return start + end + 1
    return 0
