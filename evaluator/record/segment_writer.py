"""Appends to a segment: one file for all tasks that this process begins (see `segments`).

A `SegmentJournal` is the journal of one of these tasks. Its promises are those of `Journal`, with
two differences. Unless each step is synced, the end of a step is written with what follows it in
the same turn of the event loop: nothing outside this process can depend on it earlier, and most
tasks need two writes. And one sync is enough for all tasks that wait for the disk.

A task that ends, fails or is given up never continues in its segment: a later run of it gets a file
of its own, with a copy of its records (`TaskStore.reopen`).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evaluator import disk
from evaluator.errors import RecordError
from evaluator.files.atomic import NEW_FILE, lock, unlock
from evaluator.record.encoding import milliseconds
from evaluator.record.entries import Entry, EntryKind, Note, scrubbed, to_json
from evaluator.record.journal import Journal, OpenFolders, Sync
from evaluator.record.redact import find_texts
from evaluator.record.segments import (
    ENDED,
    PackedStatus,
    PackedTask,
    frame_head,
    index_body,
    labels_of,
    make_frame,
)
from evaluator.record.steps import FinalStatus, Header, Scrub, Summary
from evaluator.store.owners import current_owner, owner_text

# Bounds the index in memory, and what is read again after a kill.
MAX_TASKS = 10_000
MAX_BYTES = 64_000_000
_NONE: frozenset[str] = frozenset()


class Segment:
    """A new segment, held under an exclusive lock until `close`. For use from several threads.

    Raises: OSError, if it cannot be created; FileExistsError, if it exists.
    """

    def __init__(self, folder: Path, folder_fd: int, number: int) -> None:
        name = f"SEGMENT-{number}.md"
        self.path = folder / name
        self._folder_fd = os.dup(folder_fd)
        try:
            self._fd = disk.open(name, NEW_FILE, 0o600, dir_fd=folder_fd)
        except BaseException:
            os.close(self._folder_fd)
            raise
        self._size = self._chain = 0
        self._tasks: dict[int, PackedTask] = {}
        self._open: set[int] = set()
        self._is_closing = False
        # Bytes known to be on the disk itself; -1: neither they nor the file's name.
        self._durable = -1
        self._failure: OSError | None = None
        self._writing = threading.RLock()
        self._syncing = threading.Lock()
        # The journals that are flushed at the end of this turn of the event loop.
        self._later: dict[SegmentJournal, None] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        lock(self._fd)
        try:
            owner = owner_text(current_owner())
            first = f"# Segment {number}\n\n<!-- owner {owner} -->\n".encode()
            self._write("segment", number, first)
        except BaseException:
            with contextlib.suppress(OSError):
                disk.unlink(name, dir_fd=folder_fd)
            self._release()
            raise

    @property
    def is_full(self) -> bool:
        """Whether new tasks should go to another segment."""
        return len(self._tasks) >= MAX_TASKS or self._size >= MAX_BYTES

    def begin(self, task_id: int, labels: Mapping[str, Any] | None) -> None:
        """A task will be written to this segment; `labels` are without secrets."""
        with self._writing:
            self._tasks[task_id] = PackedTask(task_id, labels=labels)
            self._open.add(task_id)

    def flush_later(self, journal: SegmentJournal) -> bool:
        """Flushes the journal at the end of this turn of the event loop, as those of other tasks.
        False, if another event loop has journals to flush.
        """
        loop = asyncio.get_running_loop()
        with self._writing:
            if self._loop is None or self._loop.is_closed():
                self._later.clear()
                loop.call_soon(self._flush_all)
                self._loop = loop
            if self._loop is not loop:
                return False
            self._later[journal] = None
            return True

    def _flush_all(self) -> None:
        with self._writing:
            journals = self._later
            self._later = {}
            self._loop = None
        for journal in journals:
            journal.flush_quietly()

    def append(self, task_id: int, data: bytes, status: PackedStatus) -> None:
        """Writes the next bytes of a task, as one frame in one write.

        Raises: OSError, if the disk is full or fails; the file then ends where it ended before.
        """
        with self._writing:
            start = self._write(status, task_id, data)
            task = self._tasks[task_id]
            task.status = status
            if data:
                task.places += (start, len(data))

    def end(self, task_id: int) -> None:
        """Nothing more of the task is written. The last one of a closing segment closes it."""
        with self._writing:
            self._open.discard(task_id)
            if not self._tasks[task_id].places:
                del self._tasks[task_id]
            if self._is_closing:
                self._close_if_done()

    def sync(self) -> None:
        """Waits until everything that was written is on the disk itself. Raises: OSError."""
        wanted = self._size
        with self._syncing:
            # Another task's sync may have included this one; a closed file was synced.
            if self._durable >= wanted or self._fd < 0:
                return
            self._check()
            size = self._size
            try:
                disk.fdatasync(self._fd)
                if self._durable < 0:
                    disk.fsync(self._folder_fd)
            except OSError as error:
                # The kernel may have dropped the pages: a second sync would prove nothing.
                self._failure = error
                raise
            self._durable = size

    def close(self) -> None:
        """Writes the index, as soon as no task is open, and releases the file."""
        with self._writing:
            self._is_closing = True
            self._close_if_done()

    def _close_if_done(self) -> None:
        if self._open or self._fd < 0:
            return
        # Without an index, which a full disk prevents, the frames are read instead.
        with contextlib.suppress(OSError):
            self._check()
            if self._tasks:
                # Who reads the index does not read the frames before it.
                self.sync()
                last = max(self._tasks)
                body = index_body(self._tasks, self._size, last)
                self._write("index", len(self._tasks), body)
                if self._durable >= 0:
                    self.sync()
            else:
                disk.unlink(self.path.name, dir_fd=self._folder_fd)
        with self._syncing:
            self._release()

    def _release(self) -> None:
        fd = self._fd
        self._fd = -1
        with contextlib.suppress(OSError):
            unlock(fd)
        disk.close(fd)
        os.close(self._folder_fd)

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _write(self, kind: str, number: int, data: bytes) -> int:
        """Writes a frame. Returns: the offset of its data."""
        if self._failure is not None:
            raise self._failure
        if self._fd < 0:
            raise OSError(errno.EBADF, "the segment is closed")
        status = os.fstat(self._fd)
        if status.st_nlink == 0:
            raise OSError(errno.ENOENT, "the segment was removed while it was written")
        if status.st_size != self._size:
            raise OSError(errno.EIO, "the segment was changed while it was written")
        head, chain = frame_head(kind, number, data, self._chain)
        frame = head + data
        done = 0
        try:
            while done < len(frame):
                written = disk.pwrite(self._fd, frame[done:] if done else frame, self._size + done)
                if written == 0:
                    raise OSError(errno.EIO, "nothing was written")
                done += written
        except BaseException:
            # Also after an interrupt: the frame of another task may follow.
            with contextlib.suppress(OSError):
                disk.ftruncate(self._fd, self._size)
            raise
        start = self._size + len(head)
        self._size += len(frame)
        self._chain = chain
        return start


_Arguments = tuple[EntryKind, int, tuple[Any, ...], str | None, Note | None]
"""The fields of an `Entry`, which is only made where it holds a secret."""


class SegmentJournal(Journal):
    """The journal of one task in a segment."""

    __slots__ = ("_key", "_known", "_packed", "_segment", "_signature", "_status", "_texts_packed")

    def __init__(
        self,
        segment: Segment,
        folders: OpenFolders,
        task_id: int,
        *,
        sync: Sync,
        scrub: Scrub | None,
    ) -> None:
        super().__init__(
            0, folders, name=f"TASK-{task_id}.md", task_id=task_id, sync=sync, scrub=scrub
        )
        self._segment = segment
        self._status: PackedStatus = "running"
        self._key: bytes | None = None
        # That of the task's last frame.
        self._signature = b""
        # What the next flush writes, and the texts in it that may hold a secret.
        self._packed: list[tuple[_Arguments, bytes]] = []
        self._texts_packed: list[str] = []
        self._known: set[str] | frozenset[str] = _NONE if scrub is None else scrub.known

    def start(self, header: Header, key: bytes | None) -> None:
        self._key = key
        labels = labels_of(header)
        scrub = self._scrub
        if labels is not None and scrub is not None:
            texts: list[str] = []
            find_texts((labels,), scrub.known, texts)
            if scrub.suspects_any(texts):
                labels = scrub.redact_value(labels)
        self._segment.begin(self.id, labels)
        self._add("header", 0, (header,))

    @property
    def path(self) -> Path:
        """The segment."""
        return self._segment.path

    def flush_end(self) -> bool:
        if self.policy != "step" and self._segment.flush_later(self):
            return False
        self.flush()
        return True

    def flush(self) -> None:
        if self._failure is not None:
            raise self._refusal(self._failure)
        if not self._packed:
            return
        body = b",".join([data for _, data in self._packed])
        scrub = self._scrub
        if scrub is not None and scrub.suspects_any(self._texts_packed):
            entries = [scrubbed(Entry(*entry), scrub) for entry, _ in self._packed]
            body = b",".join([to_json(*entry, _NONE, []) for entry in entries])
        frame, self._signature = make_frame(body, self._signature, self._key)
        try:
            self._segment.append(self.id, frame, self._status)
        except OSError as error:
            self._status = "running"
            raise self._fail("write to", error) from error
        self._offset += len(frame)
        self._packed.clear()
        self._texts_packed.clear()

    def flush_quietly(self) -> None:
        """As `flush`, unless the journal is closed or has failed."""
        if self._fd >= 0 and self._failure is None:
            # The next call of the journal raises it again.
            with contextlib.suppress(RecordError):
                self.flush()

    def sync(self) -> None:
        if self._fd < 0:
            return
        if self._failure is not None:
            raise self._refusal(self._failure)
        try:
            self._segment.sync()
        except OSError as error:
            raise self._fail("sync", error) from error

    def write_summary(self, summary: Summary) -> None:
        self._status = summary.status
        super().write_summary(summary)

    def settle(self, status: FinalStatus) -> None:
        if self.policy != "off":
            self.sync()
        self._release("is closed")

    def discard(self) -> None:
        self._packed.clear()
        self._release("was abandoned")

    def _add(
        self,
        kind: EntryKind,
        number: int,
        parts: tuple[Any, ...],
        name: str | None = None,
        note: Note | None = None,
    ) -> None:
        if kind != "header" and kind != "begin":
            duration_s = parts[-1].duration_s
            if not 0 <= duration_s < 1e9:
                milliseconds(duration_s)
        data = to_json(kind, number, parts, name, note, known=self._known, texts=self._texts_packed)
        self._packed.append(((kind, number, parts, name, note), data))

    def _release(self, why: str) -> None:
        if self._fd < 0:
            return
        self._fd = -1
        self._failure = why
        self._packed.clear()
        if self._offset and self._status not in ENDED:
            # If it cannot be written, the task is released with the end of this process.
            with contextlib.suppress(OSError):
                self._segment.append(self.id, b"", "released")
        self._segment.end(self.id)
