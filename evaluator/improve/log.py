"""Append-only files of signed entries, each with the hash of the one before: the log of a search,
and the count of looks.

A process that is killed while it writes leaves an incomplete last line, which is removed when the
file is opened again. Any other change of the file is an error that names the line.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from evaluator import disk
from evaluator.batch.identity import is_sealed, seal_line
from evaluator.errors import ConfigurationError, RecordError, TaskBusy
from evaluator.fields.records import mapping_of
from evaluator.files.atomic import lock, try_lock
from evaluator.files.locations import user_folder
from evaluator.files.open_below import open_regular
from evaluator.files.trust import is_signed, signature

MAX_BYTES = 256_000_000
_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
_ADDED = ("crc32", "previous", "signature")


class SealedLog:
    """The entries of a file that is open and locked for writing."""

    def __init__(self, path: Path, descriptor: int, lines: list[bytes]) -> None:
        self.path = path
        self.entries = [_content(line) for line in lines]
        self._descriptor = descriptor
        self._last = _hash(b"".join(lines[-1:]))

    def append(self, entry: Mapping[str, Any]) -> None:
        """Writes an entry, which is on the disk when this returns.

        Raises: RecordError, ConfigurationError.
        """
        chained = {**entry, "previous": self._last}
        mark = signature(_signed(chained))
        if mark is None:
            raise ConfigurationError(
                f"{user_folder()}: the key that signs this user's records cannot be read or "
                "written; set EVALUATOR_CONFIG_DIR to a folder of your own"
            )
        line = seal_line(json.dumps({**chained, "signature": mark}))
        try:
            disk.write_all(self._descriptor, line)
            disk.fsync(self._descriptor)
        except OSError as error:
            raise RecordError(f"{self.path}: cannot be written: {error.strerror}") from error
        self._last = _hash(line)
        self.entries.append(dict(entry))


@contextmanager
def open_log(path: Path, *, waits: bool = False) -> Generator[SealedLog]:
    """The log at `path`, made if it is missing. `waits`: for another process that has it open.

    Raises: TaskBusy, RecordError; ConfigurationError, for entries that this user did not write.
    """
    try:
        descriptor = open_regular(path, max_bytes=MAX_BYTES, flags=_FLAGS)
    except OSError as error:
        raise RecordError(f"{path}: cannot be opened: {error.strerror}") from error
    try:
        if waits:
            lock(descriptor)
        elif not try_lock(descriptor):
            raise TaskBusy(f"{path}: another process works on this search")
        data = os.pread(descriptor, MAX_BYTES, 0)
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            disk.ftruncate(descriptor, len(whole))
        lines = whole.splitlines(keepends=True)
        if not _check(path, lines):
            raise ConfigurationError(
                f"{path}: was written by another user or on another machine, so it is not "
                "continued; start a new search"
            )
        disk.sync_folder(path.parent)
        yield SealedLog(path, descriptor, lines)
    finally:
        disk.close(descriptor)


def read_log(path: Path) -> tuple[list[dict[str, Any]], bool]:
    """The entries of a log, and whether this user's programs wrote all of them.

    Raises: RecordError, for a log that is missing or was changed.
    """
    try:
        with open(open_regular(path, max_bytes=MAX_BYTES), "rb") as file:
            data = file.read()
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error.strerror}") from error
    lines = data[: data.rfind(b"\n") + 1].splitlines(keepends=True)
    is_own = _check(path, lines)
    return [_content(line) for line in lines], is_own


def _check(path: Path, lines: list[bytes]) -> bool:
    """Whether this user's programs wrote all lines. Raises: RecordError, for a changed file."""
    is_own = True
    last = _hash(b"")
    for number, line in enumerate(lines, 1):
        entry: Any = None
        if is_sealed(line):
            with suppress(ValueError):
                entry = json.loads(line)
        values = mapping_of(entry)
        if values.get("previous") != last:
            raise RecordError(f"{path}, line {number}: was changed after it was written")
        is_own = is_own and is_signed(_signed(values), values.get("signature"))
        last = _hash(line)
    return is_own


def _content(line: bytes) -> dict[str, Any]:
    return {name: value for name, value in json.loads(line).items() if name not in _ADDED}


def _signed(entry: Mapping[str, Any]) -> bytes:
    content = {name: entry[name] for name in entry if name not in ("crc32", "signature")}
    return json.dumps(["improve", content], sort_keys=True).encode()


def _hash(line: bytes) -> str:
    return sha256(line).hexdigest()
