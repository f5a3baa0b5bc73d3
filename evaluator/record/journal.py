"""One open task file: records are added in memory, and are on disk when `flush` returns.

What survives what:

    sync     the process is killed        the machine loses power
    off      everything flushed           what the kernel had written back by then
    task     everything flushed           every task whose `close` returned
    step     everything flushed           everything flushed

A cut or unwritten end is found when the file is read, in every mode. `task` costs one fdatasync and one fsync
of each folder a task; `step` one fdatasync a flush besides.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from typing import Any, Literal

from evaluator.errors import RecordError, UsageError
from evaluator.record.grammar import (
    STATUS_HINTS,
    encode_begin,
    encode_end,
    encode_header,
    encode_summary,
)
from evaluator.record.payload import Scrub
from evaluator.record.steps import Header, StepEnd, StepStart, Summary

Sync = Literal["off", "task", "step"]
SYNC_POLICIES: tuple[Sync, ...] = ("off", "task", "step")

# O_EXCL: never another run's file; O_NOFOLLOW: never through a link that someone left there.
CREATE_FLAGS = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Folders:
    """The two folders of a task file as open descriptors: what is put at their paths later has no effect."""

    __slots__ = ("active", "active_fd", "done", "done_fd")

    def __init__(self, active: Path, active_fd: int, done: Path, done_fd: int) -> None:
        self.active, self.active_fd, self.done, self.done_fd = active, active_fd, done, done_fd

    def __del__(self) -> None:
        # Journals share the descriptors with their store: the last one that lets go closes them.
        for fd in (self.active_fd, self.done_fd):
            if fd >= 0:
                os.close(fd)


class Journal:
    """The task file of one run, held under an exclusive lock from creation to `close` or `abandon`.

    Made by `TaskStore.create`. For use from one thread at a time. After a write has failed the file is cut
    back to its last whole flush and every further call raises RecordError.
    """

    __slots__ = (
        "_buffer", "_chain", "_failure", "_fd", "_folders", "_hint_offset", "_is_done", "_last", "_name",
        "_numbers", "_offset", "_open", "_scrub", "_sync", "_synced", "id", "retries", "steps",
    )  # fmt: skip

    def __init__(
        self, fd: int, folders: Folders, name: str, header: Header, *, sync: Sync, scrub: Scrub | None
    ) -> None:
        self.id = header.task_id
        self.steps = 0
        self.retries = 0
        self._fd, self._folders, self._name = fd, folders, name
        self._sync, self._scrub = sync, scrub
        self._is_done = False
        self._offset = 0
        self._synced = False
        self._failure: str | None = None
        self._open: dict[int, StepStart] = {}
        self._numbers: dict[str, int] = {}
        self._last: int | None = None
        record, self._hint_offset = encode_header(header, scrub)
        self._buffer: list[bytes] = [record.data]
        self._chain = record.chain

    @property
    def path(self) -> Path:
        """Where the file is now."""
        folder = self._folders.done if self._is_done else self._folders.active
        return folder / self._name

    def begin(self, start: StepStart) -> int:
        """Adds that a step begins; the effect may follow once `flush` has returned.

        Returns: the step's number, from 1; a retry (`attempt` above 1) has that of the failed attempt before.
        Raises: UsageError, if `args` is not JSON. RecordError, if the journal is closed or has failed.
        """
        self._check()
        number = self._numbers.get(start.path) if start.attempt > 1 else None
        if number is not None and number in self._open:
            raise UsageError(f"step {number} ({start.path}) has not ended; it cannot be retried")
        number = self.steps + 1 if number is None else number
        record = encode_begin(number, start, self._chain, self._scrub)
        self._add(record.data, record.chain)
        if number > self.steps:
            self.steps = number
        else:
            self.retries += 1
        self._open[number] = start
        self._last = number
        return number

    def end(self, number: int, end: StepEnd) -> None:
        """Adds how a begun step ended. On disk after the next `flush` or `close`.

        Raises: UsageError, if no such step is open or a value is not JSON. RecordError, as `begin`.
        """
        self._check()
        start = self._open.get(number)
        if start is None:
            raise UsageError(f"step {number} is not open")
        restate = None if self._last == number else start.name
        record = encode_end(number, end, self._chain, self._scrub, restate=restate)
        self._add(record.data, record.chain)
        del self._open[number]
        if end.status == "success":
            self._numbers.pop(start.path, None)
        else:
            self._numbers[start.path] = number
        self._last = None

    def flush(self) -> None:
        """Writes what was added since the last flush, in one write; with `sync="step"` to the disk itself.

        Raises: RecordError, if the disk is full or fails; the file then ends where it ended before.
        """
        self._check()
        if not self._buffer:
            return
        data = self._buffer[0] if len(self._buffer) == 1 else b"".join(self._buffer)
        self._write(data)
        self._buffer.clear()
        if self._sync == "step":
            self._to_disk(self._fd)
            if not self._synced:
                self._to_disk(self._folders.active_fd)
                self._synced = True

    def close(self, summary: Summary) -> Path:
        """Writes the summary, moves the file to the folder of finished tasks and lets go of it.

        Returns: where the file is now. Raises: RecordError; the file then stays with the active ones.
        """
        self._check()
        record = encode_summary(summary, self._chain, self._scrub)
        self._add(record.data, record.chain)
        self.flush()
        folders = self._folders
        try:
            # The same number of bytes in place of others: cannot run out of space, and is not checksummed.
            os.pwrite(self._fd, STATUS_HINTS[summary.status], self._hint_offset)
        except OSError as error:
            raise self._fail("write to", error) from error
        if self._sync != "off":
            self._to_disk(self._fd)
        try:
            os.rename(self._name, self._name, src_dir_fd=folders.active_fd, dst_dir_fd=folders.done_fd)
        except OSError as error:
            raise self._fail("move", error) from error
        self._is_done = True
        if self._sync != "off":
            self._to_disk(folders.done_fd)
            self._to_disk(folders.active_fd)
        self._release("is closed")
        return self.path

    def abandon(self) -> None:
        """Lets go of the file without a summary, after writing what was added: it will read as interrupted.

        Does nothing after `close`; never raises.
        """
        if self._fd < 0:
            return
        if self._failure is None:
            with contextlib.suppress(RecordError):
                self.flush()
        self._release("was abandoned")

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: Any) -> None:
        self.abandon()

    def _add(self, data: bytes, chain: int) -> None:
        self._buffer.append(data)
        self._chain = chain

    def _check(self) -> None:
        if self._failure is not None:
            raise RecordError(f"{self.path}: {self._failure}")

    def _write(self, data: bytes) -> None:
        # At explicit offsets: an interrupt between a write and the line after it repeats the same bytes.
        done, size = 0, len(data)
        try:
            while done < size:
                written = os.pwrite(self._fd, data[done:] if done else data, self._offset + done)
                if written == 0:
                    raise OSError(5, "nothing was written")
                done += written
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._offset)
            raise self._fail("write to", error) from error
        self._offset += size

    def _to_disk(self, fd: int) -> None:
        try:
            if fd == self._fd:
                os.fdatasync(fd)
            else:
                os.fsync(fd)
        except OSError as error:
            # The kernel may have dropped the pages: a second fsync would report success and prove nothing.
            raise self._fail("sync", error) from error

    def _fail(self, what: str, error: OSError) -> RecordError:
        text = f"cannot {what} the task file: {error.strerror}"
        self._failure = f"is closed to writing, because it failed: {text}"
        return RecordError(f"{self.path}: {text}; free space or choose another folder, then run the task again")

    def _release(self, why: str) -> None:
        fd, self._fd = self._fd, -1
        self._failure = why
        self._buffer.clear()
        # Closing the only descriptor drops the lock too; a forked child may hold another one.
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)
