"""A batch's folder: its manifest, the result of each sample, and the task files.

    manifest.json    what was run, complete enough to run it again; replaced atomically; checksummed
    results.jsonl    one line per result, with a checksum, appended as results arrive; of several
                     lines with one key the last counts
    labels.jsonl     labels of answers by people, see `evaluator.batch.labels`
    damaged.jsonl    lines that were removed from results or labels, because they were damaged
    summary.json     the numbers, replaced atomically at the end of each session
    progress.json    while a session runs: its progress of a moment ago
    control.jsonl    the commands of other processes and their states, see `control`
    provider/        the log of provider batches, their requests and answers, see `waves`
    changed.txt      for each result whose question has changed since: what has changed
    tasks/           the task file of each sample, and of each judge's call

One process at a time works on the folder and holds the lock on `results.jsonl`. A killed process
loses no line that was written. An incomplete last line is removed when the folder is opened again,
and the task of its sample is resumed from `tasks/`. Links are not followed. Files are 0600.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias, cast
from zlib import crc32

from evaluator import disk
from evaluator.batch.identity import (
    ALTERED,
    REPAIR,
    decode_line,
    encode_results,
    indented_json,
    is_sealed,
    parse_line,
    read_manifest,
    seal_manifest,
)
from evaluator.batch.records import SampleResult
from evaluator.batch.result_index import VERDICT_CODES, ResultIndex
from evaluator.errors import BatchDamaged, RecordError, RecordNotWritten, TaskBusy, advice_on
from evaluator.files.atomic import atomic_file, remove_unfinished, try_lock, write_atomic
from evaluator.files.open_below import open_private_folder, open_regular, read_regular
from evaluator.record.steps import Scrub
from evaluator.store.columns import Column, Interner, Spool

if TYPE_CHECKING:
    from evaluator.batch.summary import Columns

MANIFEST = "manifest.json"
RESULTS = "results.jsonl"
SUMMARY = "summary.json"
LABELS = "labels.jsonl"
TASKS = "tasks"
CHANGED = "changed.txt"
DAMAGED = "damaged.jsonl"
PROGRESS = "progress.json"
PROVIDER = "provider"
_HEAD = re.compile(
    rb'\{"crc32":"[0-9a-f]{8}","key":"([0-9a-f]{16})","identity":"([0-9a-f]{32})","scored_by":"(['
    rb'0-9a-f]*)",'
    rb'"verdict":"([a-z]+)","retryable":(true|false),'
)
_MAX_PROGRESS_BYTES = 1_000_000
MAX_MANIFEST_BYTES = 256_000_000
MAX_LINE_BYTES = 128_000_000
_BLOCK_BYTES = 1_000_000
_CHECKSUM = slice(10, 18)
_CHECKED = slice(18, None)
"""The parts of a line: see `identity.seal_line`."""
_NOT_RESULTS = (ValueError, KeyError, TypeError, AttributeError, OverflowError)
Add: TypeAlias = Callable[[Mapping[str, Any]], object]
"""Takes a result as JSON, see `SampleResult.to_dict`."""


class BatchFolder:
    """The files of one batch. `create` and `open` lock it for writing; `reader` only reads it."""

    def __init__(self, path: Path, fd: int | None) -> None:
        self.path = path
        self._fd = fd
        self._end = 0 if fd is None else os.fstat(fd).st_size
        self._results = os.fspath(path / RESULTS)
        self.torn_bytes = self.damaged_lines = 0

    @property
    def size(self) -> int:
        """The size of `results.jsonl` in bytes: results are only ever appended."""
        return self.last_write()[0]

    def last_write(self) -> tuple[int, int]:
        """The size of `results.jsonl` in bytes, and when it was written last, in nanoseconds."""
        try:
            status = os.stat(self._results)
        except OSError:
            return 0, 0
        return status.st_size, status.st_mtime_ns

    @classmethod
    def create(cls, path: str | Path) -> BatchFolder:
        """A new, empty folder.

        Raises: RecordError, if it is not empty, is a link, belongs to another user, or cannot be
        written.
        """
        path = Path(path)
        os.close(open_private_folder(path, "folder of the batch", sync=True))
        there = sorted(name for name in os.listdir(path) if not name.startswith("."))
        if MANIFEST in there:
            raise RecordError(
                f"{path}: there is a batch already; resume it (--resume), or name another folder"
            )
        # A process that was killed before it wrote its manifest has run nothing.
        if there and not (there == [RESULTS] and (path / RESULTS).lstat().st_size == 0):
            raise RecordError(
                f"{path}: holds other files ({there[0]}, …); a batch needs a folder of its own"
            )
        folder = cls._lock(path, create=True)
        try:
            # The manifest must not survive a loss of power without the file of results.
            disk.sync_folder(path)
        except OSError as error:
            folder.close()
            raise RecordNotWritten(
                f"{path}: cannot be synced: {error.strerror}; {advice_on(error)}"
            ) from error
        return folder

    @classmethod
    def open(cls, path: str | Path, *, repair: bool = False) -> BatchFolder:
        """An existing batch, to resume it. Removes an incomplete last line; `torn_bytes` is its
        length.

        `repair`: damaged lines, `damaged_lines` of them, are moved to `damaged.jsonl`, and a
        missing file of results is created.

        Raises: RecordError, if there is no batch or it cannot be written; TaskBusy, if another
        process works on it.
        """
        path = Path(path)
        _expect_batch(path)
        os.close(open_private_folder(path, "folder of the batch"))
        folder = cls._lock(path, create=repair)
        try:
            folder._remove_torn_line()
            if repair:
                folder._remove_damaged_lines()
        except OSError as error:
            folder.close()
            raise RecordError(f"{path / RESULTS}: cannot be repaired: {error.strerror}") from error
        except BaseException:
            folder.close()
            raise
        return folder

    @classmethod
    def reader(cls, path: str | Path) -> BatchFolder:
        """An existing batch, to read it, also while a process works on it.

        Raises: RecordError, if there is none.
        """
        path = Path(path)
        _expect_batch(path)
        return cls(path, None)

    @classmethod
    def _lock(cls, path: Path, *, create: bool) -> BatchFolder:
        flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        try:
            fd = open_regular(path / RESULTS, flags=flags)
        except FileNotFoundError:
            raise _missing(path) from None
        except OSError as error:
            raise RecordError(
                f"{path / RESULTS}: cannot be opened for writing: {error.strerror}"
            ) from error
        try:
            is_free = try_lock(fd)
        except OSError:
            is_free = False
        if not is_free:
            disk.close(fd)
            raise TaskBusy(
                f"{path}: another process works on this batch; wait for its end, or end it: "
                f"evaluator batch stop {path}"
            )
        remove_unfinished(path)
        return cls(path, fd)

    @property
    def _writable(self) -> int:
        """The descriptor of `results.jsonl`."""
        if self._fd is None:
            raise RecordError(f"{self.path}: is open for reading only")
        return self._fd

    def _remove_torn_line(self) -> None:
        with self._open_results() as file:
            size = os.fstat(file.fileno()).st_size
            keep = size
            while keep:
                if size - keep > MAX_LINE_BYTES:
                    raise _too_long(self.path, None)
                start = max(0, keep - 65_536)
                file.seek(start)
                newline = file.read(keep - start).rfind(b"\n")
                if newline >= 0:
                    keep = start + newline + 1
                    break
                keep = start
        if keep < size:
            disk.ftruncate(self._writable, keep)
        self.torn_bytes = size - keep
        self._end = keep

    def _remove_damaged_lines(self) -> None:
        damaged = [line for line in self._whole_lines() if not is_sealed(line)]
        if not damaged:
            return
        with disk.fdopen(
            disk.open(
                self.path / DAMAGED, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600
            ),
            "ab",
        ) as aside:
            aside.writelines(damaged)
        fd = -1
        try:
            with atomic_file(self.path / RESULTS, error=None) as file:
                # The new file has the lock before it has the name.
                try_lock(file.fileno())
                fd = disk.dup(file.fileno())
                fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND)
                file.writelines(line for line in self._whole_lines() if is_sealed(line))
        except BaseException:
            if fd >= 0:
                disk.close(fd)
            raise
        self.close()
        self._fd = fd
        self._end = os.fstat(fd).st_size
        self.damaged_lines = len(damaged)

    @property
    def tasks(self) -> Path:
        return self.path / TASKS

    # -- results -----------------------------------------------------------------------------------

    def append(self, *results: SampleResult, scrub: Scrub | None = None) -> None:
        """Writes a line for each result, all in one write, without the secrets that `scrub` knows.

        Raises: as `append_lines`.
        """
        lines, _ = encode_results(results, scrub)
        self.append_lines(b"".join(lines))

    def append_lines(self, lines: bytes) -> None:
        """Writes lines of results as they are. Every reader sees them when this returns.

        Raises: RecordError, if the disk is full or fails; the file then ends where it ended before.
        RecordError too, if the file is no longer what this process wrote.
        """
        fd = self._writable
        self._check_unchanged(fd)
        try:
            written = disk.write(fd, lines)
            while written < len(lines):
                written += disk.write(fd, lines[written:])
        except OSError as error:
            with contextlib.suppress(OSError):
                disk.ftruncate(fd, self._end)
            raise RecordNotWritten(
                f"{self.path / RESULTS}: a result cannot be written: {error.strerror}; "
                f"{advice_on(error)}"
            ) from error
        self._end += len(lines)

    def _check_unchanged(self, fd: int) -> None:
        """Raises: RecordError, if the file of results was removed, replaced, cut or written to by
        somebody else.
        """
        here = os.fstat(fd)
        try:
            there = os.stat(self._results, follow_symlinks=False)
        except FileNotFoundError:
            raise _missing(self.path) from None
        if (here.st_ino, here.st_dev) != (there.st_ino, there.st_dev):
            raise BatchDamaged(f"{self._results}: was replaced while the batch ran; {REPAIR}")
        if here.st_size != self._end:
            raise BatchDamaged(
                f"{self._results}: was changed while the batch ran: it has {here.st_size:,} bytes "
                "instead of "
                f"{self._end:,}; {REPAIR}"
            )

    def sync(self) -> None:
        """Flushes the results to the disk, so that they survive a loss of power.

        Raises: RecordError, if that fails, or if the file is no longer what this process wrote.
        """
        fd = self._writable
        self._check_unchanged(fd)
        try:
            disk.fsync(fd)
        except OSError as error:
            raise RecordNotWritten(
                f"{self._results}: cannot be synced: {error.strerror}; {advice_on(error)}"
            ) from error

    def index(self, columns: Columns | None = None) -> ResultIndex:
        """The current result of each key. Parses only the head of each line; with `columns`, which
        are empty and get every result that was ever written, all of it.

        Raises: RecordError, with file and line, if a line is not a result or was changed; what
        `Columns.add` raises.
        """
        if columns is None:
            keys = Interner()
        else:
            keys = columns.keys
        found = ResultIndex(keys)
        for number, offset, line, head in self._lines():
            if columns is None:
                place = keys.number(head[1].decode())
            else:
                try:
                    place = columns.add(decode_line(line))
                except _NOT_RESULTS as error:
                    raise _not_a_result(self.path, number, error) from error
            found.put(place, offset, words=head.groups())
        return found

    def results(self) -> Iterator[SampleResult]:
        """The current result of each key, in the order in which they were written. Memory holds one
        result at a time.

        Raises: RecordError, with file and line, if a line is not a result.
        """
        for number, line in self._current():
            yield self._parsed(line, number)

    def give_stored_lines(self, add: Callable[[bytes, Mapping[str, Any]], None]) -> None:
        """Calls `add` with every line, as `lines`, without its line end, and the result as JSON.

        Raises: as `index`.
        """
        for number, _, line, _ in self._lines():
            self._give(partial(add, line), line, number)

    def _current(self) -> Iterator[tuple[int, bytes]]:
        """The number and the line of each current result."""
        keys = Interner()
        last = Column("q", Spool())
        replaced: set[int] = set()
        count = end = 0
        for _, offset, line, head in self._lines(is_checked=False):
            place = keys.number(head[1])
            if place == count:
                last.append(offset)
                count += 1
            else:
                replaced.add(last[place])
                last[place] = offset
            end = offset + len(line) + 1
        for number, offset, line, _ in self._lines():
            if offset >= end:
                return  # it was written meanwhile
            if offset not in replaced:
                yield number, line

    def lines(self) -> Iterator[SampleResult]:
        """Every result that was ever written, in order, including those that a later one replaces.

        Raises: as `results`.
        """
        for number, _, line, _ in self._lines():
            yield self._parsed(line, number)

    def give_lines(self, add: Add, identities: Collection[bytes] | None = None) -> None:
        """Calls `add` with every result as JSON, as `lines`; or only with those of some samples.

        Raises: as `index`.
        """
        for number, _, line, head in self._lines():
            if identities is None or head[2] in identities:
                self._give(add, line, number)

    def _give(self, add: Add, line: bytes, number: int | None) -> None:
        try:
            add(decode_line(line))
        except _NOT_RESULTS as error:
            raise _not_a_result(self.path, number, error) from error

    def entries(self, start: int = 0) -> Iterator[tuple[int, int, dict[str, Any]]]:
        """Each line from byte `start` on: where it begins, where it ends, and the result as JSON,
        see `SampleResult.from_dict`.

        Raises: RecordError, with the line's number from `start` on, if it is not a result or was
        changed.
        """
        for _, offset, line, _ in self._lines(start):
            yield offset, offset + len(line) + 1, decode_line(line)

    def read_at(self, offset: int) -> SampleResult:
        """The result whose line begins at `offset` (see `index`)."""
        with self._open_results() as file:
            file.seek(offset)
            line = file.readline(MAX_LINE_BYTES)
        if not is_sealed(line):
            raise _corrupt(self.path, None, what=f"the line at byte {offset} {ALTERED}")
        return self._parsed(line, None)

    def _parsed(self, line: bytes, number: int | None) -> SampleResult:
        try:
            return parse_line(line)
        except _NOT_RESULTS as error:
            raise _not_a_result(self.path, number, error) from error

    def _lines(
        self, start: int = 0, *, is_checked: bool = True
    ) -> Iterator[tuple[int, int, bytes, re.Match[bytes]]]:
        """`(line number, offset, line without its end, its head)`, without an incomplete last line
        that is still being written.

        Raises: RecordError, with file and line, if a line is not a result, and with `is_checked`
        if it is not as it was written.
        """
        for number, offset, lines in self._blocks(start):
            for line in lines:
                head = _HEAD.match(line)
                if (
                    head is None
                    or head[4] not in VERDICT_CODES
                    or (is_checked and line[_CHECKSUM] != b"%08x" % crc32(line[_CHECKED]))
                ):
                    is_changed = is_checked and not is_sealed(line + b"\n")
                    if is_changed:
                        what = f"the line {ALTERED}"
                    else:
                        what = "not a line of results"
                    raise _corrupt(self.path, number, what=what)
                yield number, offset, line, head
                number += 1
                offset += len(line) + 1

    def _whole_lines(self) -> Iterator[bytes]:
        """The lines with their ends."""
        return (line + b"\n" for _, _, lines in self._blocks(0) for line in lines)

    def _blocks(self, start: int) -> Iterator[tuple[int, int, list[bytes]]]:
        """Many lines at once, with the number and the offset of the first one."""
        with self._open_results() as file:
            offset = file.seek(start)
            number = 1
            rest = b""
            while data := file.read(max(_BLOCK_BYTES, len(rest))):
                lines = (rest + data).split(b"\n")
                if max(map(len, lines)) >= MAX_LINE_BYTES:
                    too_long = (at for at, line in enumerate(lines) if len(line) >= MAX_LINE_BYTES)
                    raise _too_long(self.path, number + next(too_long))
                rest = lines.pop()
                yield number, offset, lines
                number += len(lines)
                offset += sum(map(len, lines)) + len(lines)

    def _open_results(self) -> BinaryIO:
        try:
            return open(open_regular(self.path / RESULTS), "rb")
        except FileNotFoundError:
            raise _missing(self.path) from None
        except OSError as error:
            raise RecordError(f"{self.path / RESULTS}: cannot be read: {error.strerror}") from error

    # -- the rest ----------------------------------------------------------------------------------

    def write_manifest(self, manifest: Mapping[str, Any]) -> None:
        write_atomic(self.path / MANIFEST, seal_manifest(manifest))

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        write_atomic(self.path / SUMMARY, indented_json(summary))

    def summary(self) -> Mapping[str, Any] | None:
        """The numbers as the last session wrote them; None if there are none or they cannot be
        read.
        """
        return _read_object(self.path / SUMMARY, MAX_MANIFEST_BYTES)

    def write_progress(self, progress: Mapping[str, Any] | None) -> None:
        """Writes the progress of the session, or removes it. Nothing depends on it, so a failure is
        not an error.
        """
        path = self.path / PROGRESS
        with contextlib.suppress(OSError):
            if progress is None:
                disk.remove(path)
            else:
                write_atomic(path, indented_json(progress), sync=False, error=None)

    def progress(self) -> Mapping[str, Any] | None:
        """The progress of the running session, as it was written; None if there is none or it
        cannot be read.
        """
        return _read_object(self.path / PROGRESS, _MAX_PROGRESS_BYTES)

    def write_changed(self, changed: Sequence[object]) -> None:
        """Writes a line for each of `changed`; without any, removes an older file."""
        path = self.path / CHANGED
        if changed:
            # As JSON strings, so that each is one line whatever it contains.
            lines = [json.dumps(str(each), ensure_ascii=False)[1:-1] + "\n" for each in changed]
            write_atomic(path, "".join(lines).encode("utf-8", "backslashreplace"))
        else:
            try:
                disk.remove(path)
            except OSError as error:
                raise RecordNotWritten(
                    f"{path}: cannot be removed: {error.strerror}; {advice_on(error)}"
                ) from error

    def manifest(self, *, repair: bool = False) -> dict[str, Any]:
        """The manifest. `repair`: also one that was changed, as long as it is JSON.

        Raises: RecordError, if it cannot be read or was changed.
        """
        path = self.path / MANIFEST
        try:
            return read_manifest(read_regular(path, MAX_MANIFEST_BYTES), repair=repair)
        except OSError as error:
            raise RecordError(f"{path}: cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise BatchDamaged(f"{path}: {error}") from error

    def close(self) -> None:
        if self._fd is not None:
            disk.close(self._fd)
            self._fd = None

    def __enter__(self) -> BatchFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _read_object(path: Path, max_bytes: int) -> dict[str, Any] | None:
    try:
        found = json.loads(read_regular(path, max_bytes))
    except (OSError, ValueError, RecursionError):
        return None
    if isinstance(found, dict):
        return cast("dict[str, Any]", found)
    return None


def _expect_batch(path: Path) -> None:
    if not path.is_dir():
        raise RecordError(
            f"{path}: no such folder; give the folder that the batch was run with (--output)"
        )
    if not (path / MANIFEST).is_file():
        raise RecordError(f"{path}: not a batch: it has no {MANIFEST}")


def _corrupt(path: Path, number: int | None, what: str) -> BatchDamaged:
    if number is None:
        where = f"{path / RESULTS}"
    else:
        where = f"{path / RESULTS}:{number}"
    return BatchDamaged(
        f"{where}: {what}; to remove damaged lines and evaluate their samples again, {REPAIR}"
    )


def _not_a_result(path: Path, number: int | None, error: Exception) -> BatchDamaged:
    return _corrupt(path, number, what=f"{type(error).__name__}: {error}")


def _too_long(path: Path, number: int | None) -> BatchDamaged:
    where = "" if number is None else f":{number}"
    return BatchDamaged(
        f"{path / RESULTS}{where}: a line has more than {MAX_LINE_BYTES:,} bytes; restore the "
        "file, "
        "or run the batch into a new folder"
    )


def _missing(path: Path) -> BatchDamaged:
    return BatchDamaged(
        f"{path / RESULTS}: was removed; to start it again from the task files, {REPAIR}"
    )
