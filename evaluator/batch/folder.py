"""A batch's folder: what it is, what came of each sample, and the task files.

    manifest.json    what was run, complete enough to run it again; replaced atomically
    results.jsonl    a line a result, appended as results come; of several lines with one key the last counts
    summary.json     the numbers, replaced atomically at the end of each session
    changed.txt      what has changed of the results that answer another question than the last session's
    tasks/           the task file of each sample, and of each judge's call

One process at a time has the folder: `results.jsonl` is locked while it does. A killed process loses no line that
was written; a torn last line is cut off when the folder is opened again, and its sample is looked for in `tasks/`.
Nothing here follows a link. Files are 0600.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from evaluator.batch.compact import Numbering
from evaluator.batch.records import SampleResult, Verdict
from evaluator.errors import RecordError, TaskBusy
from evaluator.record.folder import checked_folder
from evaluator.record.steps import Scrub, json_encoder

MANIFEST, RESULTS, SUMMARY, TASKS, CHANGED = "manifest.json", "results.jsonl", "summary.json", "tasks", "changed.txt"
_HEAD = re.compile(
    rb'\{"key":"([0-9a-f]{16})","identity":"([0-9a-f]{32})","scored_by":"([0-9a-f]*)",'
    rb'"verdict":"([a-z]+)","retryable":(true|false),'
)
_compact = json_encoder((",", ":"), ascii_only=True, allow_nan=False)
_VERDICTS = {verdict.value.encode(): verdict for verdict in Verdict}


@dataclass(frozen=True, slots=True)
class Entry:
    """What the index keeps of a result: where its line is and what decides whether it has to run again."""

    offset: int
    identity: bytes
    scored_by: bytes
    verdict: Verdict
    retryable: bool


class BatchFolder:
    """The files of one batch. `create` or `open` makes one; `reader` looks at one without taking it."""

    def __init__(self, path: Path, fd: int | None) -> None:
        self.path = path
        self._fd = fd
        self._end = 0 if fd is None else os.fstat(fd).st_size
        self.torn_bytes = 0

    @classmethod
    def create(cls, path: str | Path) -> BatchFolder:
        """A new, empty folder.

        Raises: RecordError, if there is something in it, or it is a link, not ours, or cannot be written.
        """
        path = Path(path)
        os.close(checked_folder(path))
        there = sorted(name for name in os.listdir(path) if not name.startswith("."))
        if MANIFEST in there:
            raise RecordError(f"{path}: there is a batch already; go on with it (--resume), or name another folder")
        # A process that was killed before it wrote its manifest had run nothing.
        if there and not (there == [RESULTS] and (path / RESULTS).lstat().st_size == 0):
            raise RecordError(f"{path}: holds other files ({there[0]}, …); a batch needs a folder of its own")
        return cls._taken(path, create=True)

    @classmethod
    def open(cls, path: str | Path) -> BatchFolder:
        """An existing batch, to go on with. A torn last line is cut off: `torn_bytes` says how much.

        Raises: RecordError, if there is no batch or it cannot be written; TaskBusy, if another process has it.
        """
        path = Path(path)
        _expect_batch(path)
        os.close(checked_folder(path))
        folder = cls._taken(path, create=False)
        folder._cut_torn_end()
        return folder

    @classmethod
    def reader(cls, path: str | Path) -> BatchFolder:
        """An existing batch, to look at, also while a process works on it.

        Raises: RecordError, if there is none.
        """
        path = Path(path)
        _expect_batch(path)
        return cls(path, None)

    @classmethod
    def _taken(cls, path: Path, *, create: bool) -> BatchFolder:
        flags = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        try:
            fd = os.open(path / RESULTS, flags, 0o600)
        except OSError as error:
            raise RecordError(f"{path / RESULTS}: cannot be opened for writing: {error.strerror}") from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            raise TaskBusy(f"{path}: another process works on this batch") from error
        return cls(path, fd)

    def _cut_torn_end(self) -> None:
        assert self._fd is not None
        with open(self.path / RESULTS, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            keep = size
            while keep:
                start = max(0, keep - 65_536)
                file.seek(start)
                newline = file.read(keep - start).rfind(b"\n")
                if newline >= 0:
                    keep = start + newline + 1
                    break
                keep = start
        if keep < size:
            os.ftruncate(self._fd, keep)
        self.torn_bytes, self._end = size - keep, keep

    @property
    def tasks(self) -> Path:
        return self.path / TASKS

    # -- results -------------------------------------------------------------------------------------------------

    def append(self, result: SampleResult, scrub: Scrub | None = None) -> None:
        """Writes a line, in one piece, without the secrets that `scrub` knows; it is there for every reader when
        this returns.

        Raises: RecordError, if the disk is full or fails; the file then ends where it ended before.
        """
        assert self._fd is not None
        data = result.to_dict()
        text = _written(data)
        if scrub is not None and scrub.suspects(text):
            text = _written(cast("dict[str, Any]", scrub.redact_value(data)))
        line = text.encode() + b"\n"
        try:
            written = os.write(self._fd, line)
            while written < len(line):
                written += os.write(self._fd, line[written:])
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._end)
            raise RecordError(f"{self.path / RESULTS}: a result cannot be written: {error.strerror}") from error
        self._end += len(line)

    def sync(self) -> None:
        """Results on the disk itself, against a loss of power."""
        if self._fd is not None:
            os.fsync(self._fd)

    def index(self) -> dict[str, Entry]:
        """The current result of each key. Reads only the head of each line.

        Raises: RecordError, with file and line, where a line is not what was written.
        """
        found: dict[str, Entry] = {}
        for number, offset, line in self._lines():
            head = _HEAD.match(line)
            if head is None or head[4] not in _VERDICTS or not line.endswith(b"}\n"):
                raise _corrupt(self.path, number, "not a line of results")
            found[head[1].decode()] = Entry(offset, head[2], head[3], _VERDICTS[head[4]], head[5] == b"true")
        return found

    def results(self) -> Iterator[SampleResult]:
        """The current result of each key, in the order in which they were written; memory holds one at a time
        and some 40 bytes for each.

        Raises: RecordError, with file and line, where a line is not what was written.
        """
        keys, last = Numbering(), array("q")
        for number, offset, line in self._lines():
            head = _HEAD.match(line)
            if head is None:
                raise _corrupt(self.path, number, "not a line of results")
            place = keys.number(head[1])
            if place == len(last):
                last.append(offset)
            else:
                last[place] = offset
        for number, offset, line in self._lines():
            head = _HEAD.match(line)
            place = None if head is None else keys.find(head[1])
            # What was written since is not known yet, and left to the next reader.
            if place is not None and last[place] == offset:
                yield self._parsed(line, number)

    def lines(self) -> Iterator[SampleResult]:
        """Every result that was ever written, in order, also those that later ones took the place of.

        Raises: as `results`.
        """
        for number, _, line in self._lines():
            yield self._parsed(line, number)

    def read_at(self, offset: int) -> SampleResult:
        """The result whose line begins at `offset` (see `index`)."""
        with open(self.path / RESULTS, "rb") as file:
            file.seek(offset)
            return self._parsed(file.readline(), None)

    def _parsed(self, line: bytes, number: int | None) -> SampleResult:
        try:
            return SampleResult.from_dict(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise _corrupt(self.path, number, f"{type(error).__name__}: {error}") from error

    def _lines(self) -> Iterator[tuple[int, int, bytes]]:
        """`(line number, offset, line)`; a last line without an end, still being written, is left out."""
        try:
            with open(self.path / RESULTS, "rb") as file:
                offset = 0
                for number, line in enumerate(file, 1):
                    if line.endswith(b"\n"):
                        yield number, offset, line
                    offset += len(line)
        except FileNotFoundError:
            return

    # -- the rest ------------------------------------------------------------------------------------------------

    def write_manifest(self, manifest: Mapping[str, Any]) -> None:
        _replace(self.path / MANIFEST, manifest)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        _replace(self.path / SUMMARY, summary)

    def write_changed(self, changed: Sequence[object]) -> None:
        """Says of each result that answers another question what has changed; of none, takes an older file away."""
        path = self.path / CHANGED
        if changed:
            _replace_text(path, "".join(f"{_one_line(str(each))}\n" for each in changed))
        else:
            path.unlink(missing_ok=True)

    def manifest(self) -> dict[str, Any]:
        """Raises: RecordError, if it cannot be read."""
        return _object_in(self.path / MANIFEST)

    def summary(self) -> dict[str, Any] | None:
        """The numbers as of the last session's end; None if none has ended."""
        return _object_in(self.path / SUMMARY) if (self.path / SUMMARY).exists() else None

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __enter__(self) -> BatchFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _written(data: dict[str, Any]) -> str:
    try:
        return _compact(data)
    except ValueError:
        # JSON has no word for them; a scorer or a row of Python's own may hold one.
        return _compact(_finite(data))


def _finite(value: Any) -> Any:
    """`value` with NaN and the infinities as texts."""
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in cast("dict[str, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in cast("list[Any]", value)]
    return value


def _expect_batch(path: Path) -> None:
    if not path.is_dir():
        raise RecordError(f"{path}: there is no such folder; a batch's folder is named when it is run (--output)")
    if not (path / MANIFEST).is_file():
        raise RecordError(f"{path}: is no batch: there is no {MANIFEST} in it")


def _corrupt(path: Path, number: int | None, what: str) -> RecordError:
    where = f"{path / RESULTS}" if number is None else f"{path / RESULTS}:{number}"
    return RecordError(f"{where}: {what}; the file was changed. Take the line out to have its sample run again")


def _replace(path: Path, value: Mapping[str, Any]) -> None:
    _replace_text(path, json.dumps(value, ensure_ascii=False, indent=2, allow_nan=False) + "\n")


def _one_line(text: str) -> str:
    """On one line, whatever is in it."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _replace_text(path: Path, text: str) -> None:
    """Atomically: a reader sees the old file or the new one. Raises: RecordError, if it cannot be written."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(text.encode("utf-8", "surrogatepass"))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise RecordError(f"{path}: cannot be written: {error.strerror}") from error


def _object_in(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise RecordError(f"{path}: is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise RecordError(f"{path}: holds a {type(value).__name__}, expected an object")
    return cast("dict[str, Any]", value)
