"""Appends to a segment: one file for all tasks that this process begins (see `segments`).

A `SegmentJournal` is the journal of one of these tasks. Its promises are those of `Journal`, with
two differences. What the tasks of one turn of the event loop add is written together, in one write
of a frame for each; a task waits for it before a step takes effect, and before its result is used.
Unless each step is synced, the end of a step is not waited for: nothing outside this process can
depend on it before the next step begins or the task ends. And one sync is enough for all tasks that
wait for the disk.

A task that ends, fails or is given up never continues in its segment: a later run of it gets a file
of its own, with a copy of its records (`TaskStore.reopen`).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any

from evaluator import disk
from evaluator.errors import RecordError, RecordNotWritten
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
# More than this is not written together: every frame of a write is in memory several times.
MAX_SHARED_BYTES = 1_000_000
_NONE: frozenset[str] = frozenset()
TaskFrame = tuple[PackedStatus, int, bytes]
"""The next bytes of a task: its status after them, its id, and the bytes."""


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
        # Frames may be in the file that are not noted yet. Where an exception such as
        # KeyboardInterrupt ends the bookkeeping, it stays, and nothing more is written: a frame
        # could come twice.
        self._is_noting = False
        self._writing = threading.RLock()
        self._syncing = threading.Lock()
        # The journals that are flushed at the end of this turn of the event loop.
        self._later: dict[SegmentJournal, None] = {}
        self._later_bytes = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        lock(self._fd)
        try:
            owner = owner_text(current_owner())
            first = f"# Segment {number}\n\n<!-- owner {owner} -->\n".encode()
            self._write([("segment", number, first)])
            self._is_noting = False
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
        """Flushes the journal after this turn of the event loop, with those of other tasks and
        before any of them continues. False, if another event loop has journals to flush, or if
        they would have too many bytes.
        """
        loop = asyncio.get_running_loop()
        size = journal.pending_bytes
        with self._writing:
            if self._loop is None or self._loop.is_closed():
                self._later.clear()
                self._later_bytes = 0
                loop.call_soon(self._flush_all)
                self._loop = loop
            if self._loop is not loop or self._later_bytes + size > MAX_SHARED_BYTES:
                return False
            self._later[journal] = None
            self._later_bytes += size
            return True

    def flush_left(self, journal: SegmentJournal) -> None:
        """Flushes all journals, if `journal` still waits: an interrupt has ended the flush at the
        end of its turn before it began.
        """
        with self._writing:
            is_left = journal in self._later and self._loop is asyncio.get_running_loop()
        if is_left:
            self._flush_all()

    def _flush_all(self) -> None:
        with self._writing:
            # First: whatever happens below, the next journal has the others flushed again.
            self._loop = None
            journals = list(filter(_has_frame, self._later))
            self._later = {}
        if journals:
            self.flush(journals)

    def flush(self, journals: Sequence[SegmentJournal]) -> None:
        """Writes a frame for each of the journals, all in one write. Where it fails, the file ends
        where it ended before, and the journals have failed.
        """
        frames = list(map(SegmentJournal.next_frame, journals))
        with self._writing:
            try:
                self._append(frames)
            except OSError as error:
                for journal in journals:
                    journal.fail_flush(error)
            else:
                for journal in journals:
                    journal.end_flush()
                self._is_noting = False

    def release(self, task_id: int) -> None:
        """Writes that a task that has not ended does not continue here."""
        # If it cannot be written, the task is released with the end of this process.
        with contextlib.suppress(OSError):
            self.append([("released", task_id, b"")])

    def append(self, frames: Sequence[TaskFrame]) -> None:
        """Writes the next bytes of each of these tasks. Raises: OSError."""
        with self._writing:
            self._append(frames)
            self._is_noting = False

    def _append(self, frames: Sequence[TaskFrame]) -> None:
        """As `append`; the caller notes that the frames were written."""
        offsets = self._write(frames)
        for (status, task_id, data), offset in zip(frames, offsets, strict=True):
            task = self._tasks[task_id]
            task.status = status
            if data:
                task.places += (offset, len(data))

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
                self._write([("index", len(self._tasks), body)])
                if self._durable >= 0:
                    self.sync()
            elif not self._is_noting:
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

    def _write(self, frames: Sequence[tuple[str, int, bytes]]) -> list[int]:
        """Writes frames of a kind, a number and data. Returns: the offset of the data of each. The
        caller notes them, and then that it has.
        """
        if self._failure is not None:
            raise self._failure
        if self._is_noting:
            raise OSError(errno.EINTR, "an earlier write was interrupted before it was noted")
        if self._fd < 0:
            raise OSError(errno.EBADF, "the segment is closed")
        status = os.fstat(self._fd)
        if status.st_nlink == 0:
            raise OSError(errno.ENOENT, "the segment was removed while it was written")
        if status.st_size != self._size:
            raise OSError(errno.EIO, "the segment was changed while it was written")
        chain = self._chain
        end = self._size
        pieces: list[bytes] = []
        offsets: list[int] = []
        for kind, number, data in frames:
            head, chain = frame_head(kind, number, data, chain)
            pieces += (head, data)
            end += len(head)
            offsets.append(end)
            end += len(data)
        content = b"".join(pieces)
        done = 0
        self._is_noting = True
        try:
            while done < len(content):
                rest = content[done:] if done else content
                written = disk.pwrite(self._fd, rest, self._size + done)
                if written == 0:
                    raise OSError(errno.EIO, "nothing was written")
                done += written
        except BaseException:
            # Also after an interrupt: the frame of another task may follow.
            with contextlib.suppress(OSError):
                disk.ftruncate(self._fd, self._size)
                self._is_noting = False
            raise
        self._size = end
        self._chain = chain
        return offsets


_Arguments = tuple[EntryKind, int, tuple[Any, ...], str | None, Note | None]
"""The fields of an `Entry`, which is only made where it holds a secret."""
_data_of: Callable[[tuple[_Arguments, bytes]], bytes] = itemgetter(1)
_has_frame: Callable[[SegmentJournal], object] = attrgetter("_packed")
"""Whether there is something to write."""


class SegmentJournal(Journal):
    """The journal of one task in a segment."""

    __slots__ = (
        "_error",
        "_key",
        "_known",
        "_next_signature",
        "_next_size",
        "_packed",
        "_segment",
        "_signature",
        "_status",
        "_texts_packed",
        "pending_bytes",
    )

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
        # That of the task's last frame, and of the one that is being written, with its size.
        self._signature = b""
        self._next_signature = b""
        self._next_size = 0
        # Why the last flush failed, until it is raised.
        self._error: RecordError | None = None
        # What the next flush writes, nothing after a failure; and the texts in it that may hold a
        # secret.
        self._packed: list[tuple[_Arguments, bytes]] = []
        self._texts_packed: list[str] = []
        # About how many bytes the next flush writes.
        self.pending_bytes = 0
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

    async def flush_together(self) -> None:
        if self._segment.flush_later(self):
            try:
                await asyncio.sleep(0)
            except BaseException:
                # Who stops the task gets that, also where the write fails.
                with contextlib.suppress(RecordError):
                    self.flush()
                raise
            if self._packed:
                self._segment.flush_left(self)
        self.flush()

    def flush(self) -> None:
        if self._packed:
            self._segment.flush([self])
        if self._error is not None:
            error = self._error
            self._error = None
            raise error
        if self._failure is not None:
            raise self._refusal(self._failure)

    def next_frame(self) -> TaskFrame:
        """The frame of what was added since the last one."""
        body = b",".join(map(_data_of, self._packed))
        scrub = self._scrub
        texts = self._texts_packed
        if texts and scrub is not None and scrub.suspects_any(texts):
            entries = [scrubbed(Entry(*entry), scrub) for entry, _ in self._packed]
            body = b",".join([to_json(*entry, _NONE, []) for entry in entries])
        frame, self._next_signature = make_frame(body, self._signature, self._key)
        self._next_size = len(frame)
        return self._status, self.id, frame

    def end_flush(self) -> None:
        """The next frame was written."""
        self._signature = self._next_signature
        self._offset += self._next_size
        self.pending_bytes = 0
        self._packed.clear()
        self._texts_packed.clear()

    def fail_flush(self, error: OSError) -> None:
        """The next frame could not be written; the next call raises why."""
        self._status = "running"
        self._error = self._fail("write to", error)
        self._error.__cause__ = error

    def _fail(self, what: str, error: OSError) -> RecordNotWritten:
        self._packed.clear()
        return super()._fail(what, error)

    def sync(self) -> None:
        if self._fd < 0:
            return
        if self._failure is not None:
            raise self._refusal(self._failure)
        try:
            self._segment.sync()
        except OSError as error:
            raise self._fail("sync", error) from error

    def add_summary(self, summary: Summary) -> None:
        super().add_summary(summary)
        self._status = summary.status

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
        self.pending_bytes += len(data)

    def _release(self, why: str) -> None:
        if self._fd < 0:
            return
        self._fd = -1
        self._failure = why
        self._packed.clear()
        if self._offset and self._status not in ENDED:
            self._segment.release(self.id)
        self._segment.end(self.id)
