"""One open task file: records are added in memory and are on disk when `flush` returns.

What survives:

    sync     the process is killed        the machine loses power
    off      everything flushed           what the kernel had written back by then
    task     everything flushed           every task whose `close` returned
    step     everything flushed           everything flushed

A cut or unwritten end is found when the file is read, in every mode. `task` costs one fdatasync and
one fsync of each folder for each task; `step` adds one fdatasync before and one after each effect.

The thread that evaluates writes, which is quick; calls that wait for the disk (`sync` and
`settle`) may be made from another thread. Files that are synced concurrently share
the commits of the disk, and steps of one file that wait at the same time share one sync.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Any, Literal, get_args

from evaluator import clock, disk
from evaluator.errors import RecordError, RecordNotWritten, UsageError, advice_on
from evaluator.files.atomic import NEW_FILE, unlock
from evaluator.files.trust import signing_key
from evaluator.record.encoding import STATUS_HINTS, Chain, Encoded, encode, encode_header
from evaluator.record.entries import Entry, EntryKind, Note, scrubbed, values_of_others
from evaluator.record.grammar import JournalState, content_text
from evaluator.record.redact import find_texts
from evaluator.record.steps import (
    FinalStatus,
    Header,
    Resumption,
    Scrub,
    StepEnd,
    StepStart,
    Summary,
)

# A result's content is not repeated where a step has it, unless it is shorter than the reference.
_MIN_SHARED_CHARS = 40
_START = Chain()
IN_FLIGHT = "in flight when the run was interrupted; its end is not recorded"

Sync = Literal["off", "task", "step"]
SYNC_POLICIES: tuple[Sync, ...] = get_args(Sync)


class OpenFolders:
    """The two folders of a task file and the counter of their store as open descriptors, so that
    replacing a folder has no effect.
    """

    __slots__ = ("_close", "active", "active_fd", "counter_fd", "done", "done_fd")

    def __init__(self, active: Path, done: Path) -> None:
        self.active = active
        self.active_fd = -1
        self.done = done
        self.done_fd = -1
        self.counter_fd = -1
        # A simulation, which gives other numbers, may be over when they are closed.
        self._close = disk.close

    def __del__(self) -> None:
        # Journals share the descriptors with their store: the last one closes them.
        for fd in (self.active_fd, self.done_fd, self.counter_fd):
            if fd >= 0:
                self._close(fd)


class Journal:
    """The task file of one run, held under an exclusive lock from creation to `close` or `abandon`.

    Made by `TaskStore.create` and `TaskStore.reopen`. For use from one thread at a time, except
    `sync`. After a write has failed the file is cut back to its last whole flush and every further
    call raises RecordError.
    """

    __slots__ = (
        "_chain",
        "_durable",
        "_failure",
        "_fd",
        "_folders",
        "_hint_offset",
        "_is_done",
        "_is_subtask",
        "_last",
        "_name",
        "_numbers",
        "_offset",
        "_open",
        "_pending",
        "_scrub",
        "_syncing",
        "_takeover",
        "_texts",
        "id",
        "models",
        "policy",
        "retries",
        "steps",
    )

    def __init__(
        self,
        fd: int,
        folders: OpenFolders,
        name: str,
        task_id: int,
        *,
        sync: Sync,
        scrub: Scrub | None,
    ) -> None:
        self.id = task_id
        self.policy: Sync = sync
        self.steps = 0
        self.retries = 0
        # A dict for its order: the models that were called.
        self.models: dict[str, None] = {}
        self._fd = fd
        self._folders = folders
        self._name = name
        self._scrub = scrub
        self._is_done = self._is_subtask = False
        self._offset = self._hint_offset = 0
        self._chain = _START
        # Bytes known to be on the disk itself; -1: neither they nor the file's name in its folder.
        self._durable = -1
        self._syncing = threading.Lock()
        self._failure: str | None = None
        self._open: dict[int, StepStart] = {}
        self._numbers: dict[str, int] = {}
        self._texts: dict[str, int] = {}
        self._last: int | None = None
        # Bytes to cut off before the first write to a reopened file; None: the file is this
        # process's already.
        self._takeover: int | None = None
        # What the next flush writes. `_chain` is the one before them.
        self._pending: list[tuple[Entry, Encoded]] = []

    def start(self, header: Header, key: bytes | None) -> None:
        """Begins a new file; its records are signed with `key`, unless it is None.

        Raises: UsageError, if the inputs are not JSON.
        """
        self._is_subtask = header.parent is not None
        self._chain = Chain(key=key)
        self._add("header", 0, (header,))

    def resume(
        self,
        state: JournalState,
        size: int,
        resumption: Resumption,
        *,
        is_done: bool,
        ends: Mapping[int, StepEnd],
    ) -> None:
        """Continues where `state` ends, in a file of `size` bytes; steps in flight get their end in
        `ends`, by number, else are ended as aborted.

        Nothing is changed on disk before the first `flush`.
        """
        self._is_done = is_done
        self._offset = state.offset
        self._chain = state.chain
        if state.header is not None and state.header.version > 1:
            self._chain = state.chain._replace(key=signing_key(create=True))
        self._hint_offset = state.hint_offset
        self._takeover = size - state.offset
        for step in state.steps:
            self._count_model(step.start)
            self.steps = max(self.steps, step.number)
            self.retries += step.is_retry
            if step.end is None or step.status != "success":
                self._numbers[step.start.path] = step.number
            else:
                self._numbers.pop(step.start.path, None)
                self._remember(step.number, step.end)
        self._add("resume", 0, (resumption,))
        for number, index in state.open.items():
            self._open[number] = state.steps[index].start
            self.end(number, ends.get(number) or StepEnd("aborted", None, 0.0, IN_FLIGHT))

    @property
    def path(self) -> Path:
        """Where the file is now."""
        if self._is_done:
            folder = self._folders.done
        else:
            folder = self._folders.active
        return folder / self._name

    @property
    def never_began(self) -> bool:
        """Whether not even the header could be written, so that there is no task to resume."""
        return self._failure is not None and self._offset == 0

    @property
    def is_untouched(self) -> bool:
        """Whether the file was reopened and nothing was written to it yet."""
        return self._takeover is not None

    def begin(self, start: StepStart) -> int:
        """Adds the beginning of a step; its effect may follow once `flush` has returned.

        Returns: the step's number, from 1; a retry (`attempt` above 1) has that of the failed
        attempt before.
        Raises: UsageError, if `args` is not JSON. RecordError, if the journal is closed or has
        failed.
        """
        if self._failure is not None:
            raise self._refusal(self._failure)
        if start.attempt > 1:
            number = self._numbers.get(start.path)
        else:
            number = None
        if number is not None and number in self._open:
            raise UsageError(f"step {number} ({start.path}) has not ended; it cannot be retried")
        if number is None:
            number = self.steps + 1
        self._add("begin", number, (start,))
        if number > self.steps:
            self.steps = number
        else:
            self.retries += 1
        self._open[number] = start
        self._last = number
        self._count_model(start)
        return number

    def end(self, number: int, end: StepEnd) -> None:
        """Adds the end of a step. On disk after the next `flush` or `close`.

        Raises: UsageError, if no such step is open or a value is not JSON. RecordError, as `begin`.
        """
        if self._failure is not None:
            raise self._refusal(self._failure)
        start = self._open.get(number)
        if start is None:
            raise UsageError(f"step {number} is not open")
        restate = None
        if self._last != number:
            restate = start.name
        self._add("end", number, (end,), restate)
        del self._open[number]
        if end.status == "success":
            self._numbers.pop(start.path, None)
            self._remember(number, end)
        else:
            self._numbers[start.path] = number
        self._last = None

    def note(self, start: StepStart, end: StepEnd) -> None:
        """Adds a step that begins and ends at once, in one record. On disk after the next `flush`
        or `close`.

        Raises: UsageError, if a value is not JSON. RecordError, as `begin`.
        """
        self.add_note(Note(start, end))

    def add_note(self, note: Note) -> None:
        """As `note`, for a note that other tasks may have too."""
        if self._failure is not None:
            raise self._refusal(self._failure)
        self._add("note", self.steps + 1, (note.start, note.end), None, note)
        self.steps += 1
        self._last = None

    @property
    def root(self) -> Path:
        """The folder that the folders of task files are in."""
        return self._folders.active.parent

    def flush(self) -> None:
        """Writes what was added since the last flush, in one write; see `sync` for the disk itself.

        Raises: RecordError, if the disk is full or fails; the file then ends where it ended before.
        """
        if self._failure is not None:
            raise self._refusal(self._failure)
        if not self._pending:
            return
        if self._takeover is not None:
            self._take_over(self._takeover)
        scrub = self._scrub
        if scrub is not None and scrub.suspects_any(self._new_texts(scrub)):
            self._remove_secrets(scrub)
        self._write(b"".join([record.data for _, record in self._pending]))
        self._chain = self._pending[-1][1].chain
        self._pending.clear()

    def _new_texts(self, scrub: Scrub) -> list[str]:
        """The texts that the next flush writes and that were not searched yet."""
        values: list[Any] = []
        for entry, _ in self._pending:
            values.append(entry.name)
            for part in entry.parts:
                values += values_of_others[type(part)](part)
        texts: list[str] = []
        find_texts(values, scrub.known, texts)
        return texts

    def _remove_secrets(self, scrub: Scrub) -> None:
        """Encodes again what the next flush writes."""
        entries = [scrubbed(entry, scrub) for entry, _ in self._pending]
        self._pending.clear()
        for entry in entries:
            self._add(*entry)

    def flush_end(self) -> bool:
        """As `flush`, for the end of a step. Returns: False, if it is only written in this turn of
        the event loop, or with what follows.
        """
        self.flush()
        return True

    async def flush_together(self) -> None:
        """As `flush`, for tasks of an event loop that may share a write. A cancellation does not
        prevent it.
        """
        self.flush()

    def sync(self) -> None:
        """Waits until what was flushed is on the disk itself, whatever the policy. From any thread.

        Raises: RecordError, if the disk fails.
        """
        wanted = self._offset
        with self._syncing:
            # Another step's sync may have included this one; a released file was synced or
            # abandoned.
            if self._durable >= wanted or self._fd < 0:
                return
            if self._failure is not None:
                raise self._refusal(self._failure)
            size = self._offset
            is_new = self._durable < 0
            self._to_disk(self._fd)
            if is_new:
                self._to_disk(self._folders.active_fd)
            self._durable = size

    def close(self, summary: Summary) -> None:
        """Writes the summary, moves the file to the folder of finished tasks and releases it.

        Raises: RecordError; the file then stays with the active ones.
        """
        self.add_summary(summary)
        self.flush()
        self.settle(summary.status)

    def add_summary(self, summary: Summary) -> None:
        """Adds the end of the task; once it is flushed, `settle` follows. Raises: RecordError."""
        if self._failure is not None:
            raise self._refusal(self._failure)
        if isinstance(summary.result, dict):
            content = summary.result.get("content")
        else:
            content = None
        if isinstance(content, str):
            number = self._texts.get(content)
        else:
            number = None
        if number is not None:
            result = {key: value for key, value in summary.result.items() if key != "content"}
            summary = replace(summary, result=result)
        self._add("summary", number or 0, (summary,))

    def settle(self, status: FinalStatus) -> None:
        """Writes the status into the title, moves the file to the folder of finished tasks and
        releases it. May be called from another thread.

        The last part of `close`, also for a file whose writer was killed in between. Raises as
        `close`.
        """
        folders = self._folders
        try:
            # Replaces the same number of bytes: it cannot run out of space, and is not checksummed.
            disk.pwrite(self._fd, STATUS_HINTS[status], self._hint_offset)
        except OSError as error:
            raise self._fail("write to", error) from error
        with self._syncing:
            if self.policy != "off":
                self._to_disk(self._fd)
            if not self._is_done:
                self._move(folders.active_fd, folders.done_fd)
                self._is_done = True
            if self.policy != "off":
                self._to_disk(folders.done_fd)
                self._to_disk(folders.active_fd)
            self._release("is closed")

    def abandon(self) -> None:
        """Releases the file without a summary, after writing what was added: it will read as
        interrupted.

        A file that was reopened and not written to stays unchanged. Does nothing after `close`;
        never raises.
        """
        if self._fd < 0:
            return
        if self._failure is None and self._takeover is None:
            with contextlib.suppress(RecordError):
                self.flush()
        with self._syncing:
            self._release("was abandoned")

    def discard(self) -> None:
        """Releases the file without writing what was added, and removes a new one: its task did not
        begin.
        """
        if self._fd >= 0 and self._takeover is None:
            with contextlib.suppress(OSError):
                disk.unlink(self._name, dir_fd=self._folders.active_fd)
        self._pending.clear()
        self.abandon()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: Any) -> None:
        self.abandon()

    def _add(
        self,
        kind: EntryKind,
        number: int,
        parts: tuple[Any, ...],
        name: str | None = None,
        note: Note | None = None,
    ) -> None:
        """Adds an `Entry`. Raises: UsageError, if a value in it is not JSON."""
        if self._pending:
            chain = self._pending[-1][1].chain
        else:
            chain = self._chain
        entry = Entry(kind, number, parts, name, note)
        if kind == "header":
            record, self._hint_offset = encode_header(parts[0], key=chain.key)
        else:
            record = encode(entry, chain)
        self._pending.append((entry, record))

    def _count_model(self, start: StepStart) -> None:
        if start.kind == "model":
            self.models[start.name] = None

    def _remember(self, number: int, end: StepEnd) -> None:
        text = content_text(end)
        if text is not None and len(text) >= _MIN_SHARED_CHARS:
            self._texts[text] = number

    def _refusal(self, failure: str) -> RecordNotWritten:
        return RecordNotWritten(f"{self.path}: {failure}")

    def _write(self, data: bytes) -> None:
        # At explicit offsets: an interrupt between a write and the line after it repeats the same
        # bytes.
        done = 0
        size = len(data)
        try:
            while done < size:
                written = disk.pwrite(self._fd, data[done:] if done else data, self._offset + done)
                if written == 0:
                    raise OSError(5, "nothing was written")
                done += written
        except OSError as error:
            with contextlib.suppress(OSError):
                disk.ftruncate(self._fd, self._offset)
                if self._offset == 0 and not self._is_subtask:
                    # The task never began: an empty file would only confuse. The parent of a
                    # subtask names its file.
                    disk.unlink(self._name, dir_fd=self._folders.active_fd)
            raise self._fail("write to", error) from error
        self._offset += size

    def _take_over(self, cut_bytes: int) -> None:
        """Makes a reopened file a running one: saves and cuts off its torn end, and moves the file
        to active/.
        """
        try:
            if cut_bytes:
                self._save_torn_end(os.pread(self._fd, cut_bytes, self._offset))
                disk.ftruncate(self._fd, self._offset)
        except OSError as error:
            raise self._fail("cut the torn end off", error) from error
        if self._is_done:
            self._move(self._folders.done_fd, self._folders.active_fd)
            self._is_done = False
        try:
            disk.pwrite(self._fd, STATUS_HINTS["running"], self._hint_offset)
        except OSError as error:
            raise self._fail("write to", error) from error
        self._takeover = None

    def _save_torn_end(self, tail: bytes) -> None:
        """Saves the torn end in a file next to the task file, so that no written byte is lost."""
        if self._is_done:
            folder = self._folders.done_fd
        else:
            folder = self._folders.active_fd
        names = (f"{self._name}.torn-{turn}" for turn in count(1))
        name = next(name for name in names if not os.access(name, os.F_OK, dir_fd=folder))
        with disk.fdopen(disk.open(name, NEW_FILE, 0o600, dir_fd=folder)) as file:
            file.write(tail)

    def _move(self, source_fd: int, target_fd: int) -> None:
        try:
            disk.rename(self._name, self._name, src_dir_fd=source_fd, dst_dir_fd=target_fd)
        except OSError as error:
            raise self._fail("move", error) from error

    def _to_disk(self, fd: int) -> None:
        try:
            if fd == self._fd:
                disk.fdatasync(fd)
            else:
                disk.fsync(fd)
        except OSError as error:
            # The kernel may have dropped the pages: a second fsync would report success and prove
            # nothing.
            raise self._fail("sync", error) from error

    def _fail(self, what: str, error: OSError) -> RecordNotWritten:
        text = f"cannot {what} the task file: {error.strerror}"
        self._failure = f"cannot be written any more: {text}"
        return RecordNotWritten(
            f"{self.path}: {text}; {advice_on(error)}, then resume the task or run it again"
        )

    def _release(self, why: str) -> None:
        fd = self._fd
        self._fd = -1
        self._failure = why
        self._pending.clear()
        # Closing the only descriptor drops the lock too; a forked child may hold another one.
        with contextlib.suppress(OSError):
            unlock(fd)
        disk.close(fd)


def now() -> str:
    """The current time in the form of task files: ISO 8601 in UTC with milliseconds."""
    milliseconds = clock.wall_ns() // 1_000_000
    return f"{_second(milliseconds // 1000)}.{milliseconds % 1000:03d}Z"


@lru_cache(maxsize=2)
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
