"""The folder of task files as it is written: assigns ids, and opens files."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from evaluator import clock, disk, this_process
from evaluator.errors import RecordError, TaskBusy, TaskNotBegun, UsageError
from evaluator.files.atomic import (
    NEW_FILE,
    lock,
    locked,
    remove_unfinished,
    try_lock,
    write_atomic,
)
from evaluator.files.open_below import (
    not_writable,
    open_private_folder,
    open_regular,
)
from evaluator.files.trust import signing_key
from evaluator.record import grammar
from evaluator.record.blobs import FOLDER as ATTACHMENTS
from evaluator.record.journal import SYNC_POLICIES, Journal, OpenFolders, Sync, now
from evaluator.record.segment_writer import Segment, SegmentJournal
from evaluator.record.segments import ENDED
from evaluator.record.segments import FOLDER as SEGMENTS
from evaluator.record.segments import task_file as packed_file
from evaluator.record.steps import (
    Header,
    Recording,
    Resumption,
    Scrub,
    StepEnd,
)
from evaluator.record.task_folder import FLAT, MAX_FILE_BYTES, TaskFolder, ids_in, packed_status
from evaluator.store.owners import Owner, current_owner, is_gone

_COUNTER = ".last-id"
# Larger files have steps.
_HEADER_BYTES = 65_536
# Ids that a process reserves at once for tasks in segments.
_BLOCK = 64
_LOCK_TRIES = 50
_LOCK_WAIT_S = 0.02


class TaskStore(TaskFolder):
    """Task files under `root`: those of running or interrupted tasks in `active/`, the others in
    `done/`. With `is_packed`, new tasks are written to segments in `segments/` instead.

    Creates the folders (0700) when the first task is created; nothing is ever deleted. Ids only
    increase, across threads, processes and machines that share the folder, if its locks work.
    """

    def __init__(
        self,
        root: Path | str,
        *,
        redactor: Scrub | None = None,
        sync: Sync = "off",
        is_packed: bool = False,
    ) -> None:
        """`redactor` removes secrets from all that is written (see `redact`); `sync`: see
        `journal`.
        """
        super().__init__(root)
        self._folders: OpenFolders | None = None
        self._is_counted = False
        self.is_packed = is_packed
        self._segment: Segment | None = None
        # The ids that this process reserved and has not given yet.
        self._ids = range(0)
        self._is_swept = False
        self.redactor = redactor
        # The end of a call that was parked, by its custom id; None while it is in flight.
        self.parked_end: Callable[[str], StepEnd | None] | None = None
        self._sync: Sync = sync
        self._lock = threading.Lock()
        self._pid = 0
        self._owner: Owner | None = None
        self._key: bytes | None = None
        if sync not in SYNC_POLICIES:
            raise UsageError(f"sync is one of {', '.join(SYNC_POLICIES)}, not {sync!r}")

    @property
    def option(self) -> str:
        """The option, after a space, with which a command uses this folder; "" for the default."""
        if str(self.root) == "tasks":
            return ""
        from shlex import quote

        return f" --tasks {quote(str(self.root))}"

    def create(
        self,
        request: str = "",
        inputs: Mapping[str, Any] | None = None,
        *,
        template: str | None = None,
        template_sha256: str | None = None,
        template_version: str | None = None,
        model: str | None = None,
        parent: int | None = None,
        extra: Mapping[str, Any] | None = None,
        sync: Sync | None = None,
        created: str | None = None,
        is_own: bool = True,
    ) -> Journal:
        """Opens a new task file under the next id. Its header is written with the journal's first
        flush.

        `created` is when the task began, if that is not now. Without `is_own` the file is not
        signed: it says what somebody else recorded.

        Raises: RecordError, if the folder is a link, is not ours, cannot be written or the disk is
        full. UsageError, if `inputs` or `extra` is not JSON.
        """
        policy = sync or self._sync
        with self._lock:
            folders = self._prepared()
            if self.is_packed:
                journal = self._new_packed(folders, policy)
            else:
                journal = self._new_journal(folders, policy)
            key = None
            if is_own:
                key = self._key
            owner = self._owner
        try:
            header = Header(
                journal.id,
                created or now(),
                request=request,
                inputs=inputs or {},
                template=template,
                template_sha256=template_sha256,
                template_version=template_version,
                model=model,
                parent=parent,
                owner=owner,
                extra=extra or {},
            )
            journal.start(header, key)
        except BaseException:
            # Nothing was written yet: an empty file of a task that never began would only confuse.
            journal.discard()
            raise
        return journal

    def _new_journal(self, folders: OpenFolders, policy: Sync) -> Journal:
        """The journal of a new file. Raises: RecordError."""
        try:
            task_id, name, fd = self._new_file(folders)
        except FileNotFoundError:
            # The folder was removed while it was open.
            self._folders = None
            folders = self._prepared()
            task_id, name, fd = self._new_file(folders)
        return Journal(fd, folders, name=name, task_id=task_id, sync=policy, scrub=self.redactor)

    def _new_packed(self, folders: OpenFolders, policy: Sync) -> Journal:
        """The journal of a new task in this process's segment. Raises: as `create`."""
        try:
            segment, task_id = self._next_packed(folders)
        except OSError as error:
            raise not_writable(self.root, error) from error
        return SegmentJournal(segment, folders, task_id, sync=policy, scrub=self.redactor)

    def _next_packed(self, folders: OpenFolders) -> tuple[Segment, int]:
        """The segment and the id of a new task. Raises: OSError, RecordError."""
        while True:
            if not self._ids:
                self._ids = self._reserve(folders, _BLOCK)
            task_id = self._ids[0]
            try:
                if self._segment is None:
                    self._segment = self._new_segment(task_id)
                elif self._segment.is_full:
                    self._segment.close()
                    self._segment = None
                    continue
            except FileExistsError:
                # The counter is behind the folder, as after a restored backup.
                self._is_counted = False
                self._ids = range(0)
                continue
            self._ids = range(task_id + 1, self._ids.stop)
            return self._segment, task_id

    def _new_segment(self, number: int) -> Segment:
        """Raises: OSError, RecordError."""
        path = self.root / SEGMENTS
        folder = open_private_folder(path, sync=self._sync != "off")
        try:
            return Segment(path, folder, number)
        finally:
            os.close(folder)

    def reserve(self, count: int) -> range:
        """Reserves the next `count` ids, for tasks that another machine records.

        Raises: RecordError, as `create`.
        """
        with self._lock:
            folders = self._prepared()
            try:
                return self._reserve(folders, count)
            except OSError as error:
                raise not_writable(self.root, error) from error

    def _reserve(self, folders: OpenFolders, count: int) -> range:
        """The next ids, which no other task gets. Raises: OSError, RecordError."""
        with locked(folders.counter_fd):
            last = max(self._remove_leftovers(folders), self._last_id(folders))
            disk.pwrite(folders.counter_fd, b"%020d\n" % (last + count), 0)
            return range(last + 1, last + 1 + count)

    def close(self) -> None:
        """Ends this process's segment as soon as its tasks have ended, and gives back reserved ids.
        The store can still be used.
        """
        with self._lock:
            if self._pid != this_process.pid():
                return
            if self._segment is not None:
                self._segment.close()
                self._segment = None
            if self._ids and self._folders is not None:
                counter = self._folders.counter_fd
                with contextlib.suppress(OSError), locked(counter):
                    if os.pread(counter, 32, 0) == b"%020d\n" % self._ids[-1]:
                        disk.pwrite(counter, b"%020d\n" % (self._ids[0] - 1), 0)
                self._ids = range(0)

    def reopen(
        self, task_id: int, *, allowed: str | None = None, repair: bool = False
    ) -> tuple[Journal, Recording]:
        """Opens the file of an unfinished, failed or aborted task to resume it; blocks for up to a
        second.

        The file stays as it is until the journal's first flush, which cuts a torn end off (a copy
        stays beside the file) and records the new owner and which changes are `allowed`. `repair`:
        what follows the last whole record before any damage counts as a torn end. Steps in flight
        are then ended as aborted. The recording is the state before; a completed task can be
        reopened too, and has nothing left to do.

        Raises: TaskBusy, if a process has the task; TaskNotBegun, if there is no such task or
        nothing of it was written; RecordError, if it is another program's; CorruptRecord, if it has
        been changed, with `repair` only if its header has been.
        """
        folders = self._unpack(task_id)
        path, fd = self._locked(task_id)
        try:
            data = bytearray()
            while piece := os.pread(fd, 1 << 24, len(data)):
                data += piece
            content = bytes(data)
            if not grammar.is_own(content):
                raise RecordError(
                    f"{path}: not written by this program; it can be read, but not resumed"
                )
            state = grammar.scan(content, str(path), repair=repair)
            if state.header is not None and state.header.task_id != task_id:
                raise RecordError(
                    f"{path}: its title is TASK-{state.header.task_id}: it is a copy of "
                    "another task"
                )
            if state.header is None:
                raise TaskNotBegun(
                    f"{path}: ends inside its header: nothing was done yet; run the task again, "
                    "or for a subtask "
                    "resume the task that asked for it"
                )
            recording = state.recording()
            if recording.status == "running":
                recording = replace(recording, status="interrupted")
            ends = {
                number: self._parked_end(task_id, state.steps[place].start.custom_id or "")
                for number, place in state.open.items()
                if state.steps[place].start.custom_id is not None
            }
            if ends:
                steps = [
                    step if step.end is not None else replace(step, end=ends.get(step.number))
                    for step in recording.steps
                ]
                recording = replace(recording, steps=tuple(steps))
            # After a loss of power there may be no file of a subtask, and an older count of ids.
            self.skip_to(max((step.subtask_id or 0 for step in recording.steps), default=0))
            journal = Journal(
                fd, folders, name=path.name, task_id=task_id, sync=self._sync, scrub=self.redactor
            )
            resumption = Resumption(now(), current_owner(), len(content) - state.offset, allowed)
            journal.resume(
                state,
                len(content),
                resumption,
                is_done=path.parent.name == "done",
                ends=ends,
            )
            return journal, recording
        except OSError as error:
            disk.close(fd)
            raise RecordError(f"{path}: cannot read the task file: {error.strerror}") from error
        except BaseException:
            disk.close(fd)
            raise

    def _parked_end(self, task_id: int, custom_id: str) -> StepEnd:
        """The end of a call that was parked. Raises: TaskBusy, if it may still be answered."""
        end = None
        if self.parked_end is not None:
            end = self.parked_end(custom_id)
        if end is None:
            raise TaskBusy(
                f"TASK-{task_id} waits for a provider batch; resume the batch that it belongs to"
            )
        return end

    def _unpack(self, task_id: int) -> OpenFolders:
        """Makes the task file of a task in a segment, which then is the task's record. Nothing is
        created for a task that does not exist. Raises: TaskBusy, if a process runs it; RecordError,
        as `reopen`.
        """
        packed = None
        try:
            self.path_of(task_id)
        except TaskNotBegun:
            packed = self._segments.find(task_id)
            if packed is None:
                raise
        with self._lock:
            folders = self._prepared()
        if packed is None:
            return folders
        index, task = packed
        if packed_status(index, task) == "running":
            owner = index.owner
            by = "another process"
            if owner is not None:
                by = f"process {owner.pid} on {owner.host}"
            raise TaskBusy(f"TASK-{task_id} is run by {by}")
        if task.status in ENDED:
            folder = folders.done_fd
        else:
            folder = folders.active_fd
        # FileExistsError: another process was faster. It is synced also with `sync` off: the file
        # hides the record in the segment, and must not be less than that after a loss of power.
        with contextlib.suppress(FileExistsError):
            write_atomic(
                f"TASK-{task_id}.md",
                packed_file(index, task),
                dir_fd=folder,
                sync=True,
                replace=False,
            )
        return folders

    def _locked(self, task_id: int) -> tuple[Path, int]:
        """A task's file, open for writing and locked."""
        tries = 0
        while True:
            path = self.path_of(task_id)
            try:
                fd = open_regular(path, max_bytes=MAX_FILE_BYTES, flags=os.O_RDWR | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise RecordError(f"{path}: cannot open the task file: {error.strerror}") from error
            try:
                if not try_lock(fd):
                    raise BlockingIOError
                here = os.fstat(fd)
                there = os.stat(path, follow_symlinks=False)
                if (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino):
                    return path, fd
                disk.close(fd)
            except BlockingIOError:
                # A reader locks the file for some microseconds, an owner for long.
                disk.close(fd)
                tries += 1
                if tries > _LOCK_TRIES:
                    raise TaskBusy(self._busy_message(task_id, path)) from None
                clock.pause(_LOCK_WAIT_S)
            except FileNotFoundError:
                # It was finished, and moved, meanwhile.
                disk.close(fd)
            except BaseException:
                disk.close(fd)
                raise

    def _busy_message(self, task_id: int, path: Path) -> str:
        with contextlib.suppress(RecordError):
            owner = self.read(path).owner
            if owner is not None and is_gone(owner):
                return (
                    f"TASK-{task_id}: its process {owner.pid} is gone, but a child of it holds "
                    f"its file {path}"
                )
            if owner is not None:
                return f"TASK-{task_id} is run by process {owner.pid} on {owner.host}"
        return f"TASK-{task_id} is run by another process"

    def _prepared(self) -> OpenFolders:
        """The folders, checked and open. A forked child opens its own: locks belong to open file
        descriptions.
        """
        if self._folders is not None and self._pid == this_process.pid():
            return self._folders
        # A segment and reserved ids of a parent process stay its own.
        self._segment = None
        self._ids = range(0)
        is_durable = self._sync != "off"
        root = open_private_folder(self.root, sync=is_durable)
        try:
            folders = OpenFolders(self.root / "active", self.root / "done")
            folders.active_fd = open_private_folder(folders.active, sync=is_durable)
            folders.done_fd = open_private_folder(folders.done, sync=is_durable)
            folders.counter_fd = disk.open(
                _COUNTER, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=root
            )
        except OSError as error:
            raise not_writable(self.root / _COUNTER, error) from error
        finally:
            disk.close(root)
        self._folders = folders
        self._pid = this_process.pid()
        self._owner = current_owner()
        self._key = signing_key(create=True)
        return folders

    def _new_file(self, folders: OpenFolders) -> tuple[int, str, int]:
        """The next id and its new, empty file."""
        try:
            with locked(folders.counter_fd):
                last = max(self._remove_leftovers(folders), self._last_id(folders))
                while True:
                    last += 1
                    name = f"TASK-{last}.md"
                    if os.access(name, os.F_OK, dir_fd=folders.done_fd):
                        last = max(last, self._highest())
                        continue
                    try:
                        fd = disk.open(name, NEW_FILE, 0o600, dir_fd=folders.active_fd)
                    except FileExistsError:
                        # The counter is behind the folder, as after a restored backup.
                        last = max(last, self._highest())
                        continue
                    lock(fd)
                    # One write of fixed width, in place: whole or not at all, also on a full disk.
                    disk.pwrite(folders.counter_fd, b"%020d\n" % last, 0)
                    return last, name, fd
        except FileNotFoundError:
            raise
        except OSError as error:
            raise not_writable(self.root, error) from error

    def _remove_leftovers(self, folders: OpenFolders) -> int:
        """Once per process: removes what killed processes left: files of tasks that never began,
        and incomplete attachments. Returns: the highest id of a file that was removed, or 0.

        A process locks a new file before it releases the counter, which the caller holds, so an
        unlocked file has no process.
        """
        if self._is_swept:
            return 0
        self._is_swept = True
        highest = 0
        remove_unfinished(self.root / ATTACHMENTS)
        for task_id in sorted(ids_in(folders.active)):
            name = f"TASK-{task_id}.md"
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
            with contextlib.suppress(OSError):
                fd = os.open(name, flags, dir_fd=folders.active_fd)
                try:
                    if try_lock(fd) and _never_began(fd):
                        disk.unlink(name, dir_fd=folders.active_fd)
                        highest = task_id
                finally:
                    os.close(fd)
        return highest

    def last_id(self) -> int:
        """The highest id that was given to a task, or that `skip_to` left out; 0 if there is none.

        Raises: RecordError, as `create`.
        """
        with self._lock:
            return self._last_id(self._prepared())

    def skip_to(self, task_id: int) -> None:
        """The next task gets an id above `task_id`. Raises: RecordError, as `create`."""
        with self._lock:
            folders = self._prepared()
            if self._ids and self._ids[0] <= task_id:
                self._ids = range(0)
            try:
                with locked(folders.counter_fd):
                    # The folders are listed only if the counter does not decide.
                    if self._last_id(folders) < task_id and self._highest() < task_id:
                        disk.pwrite(folders.counter_fd, b"%020d\n" % task_id, 0)
            except OSError as error:
                raise not_writable(self.root, error) from error

    def _last_id(self, folders: OpenFolders) -> int:
        text = os.pread(folders.counter_fd, 32, 0)
        is_whole = len(text) == 21 and text[:20].isdigit() and text.endswith(b"\n")
        if is_whole and self._is_counted:
            return int(text)
        # Once in a process: somebody may have copied files into the folders.
        self._is_counted = True
        return max(int(text) if is_whole else 0, self._highest())

    def _highest(self) -> int:
        files = (n for folder in (FLAT, "active", "done") for n in ids_in(self.root / folder))
        return max(max(files, default=0), self._segments.highest())


def _never_began(fd: int) -> bool:
    """Whether nothing was done: the file is empty, a loss of power left zeros only, it ends inside
    its header, or it has the header of a subtask and no step.
    """
    size = os.fstat(fd).st_size
    if size > _HEADER_BYTES:
        return False
    data = os.pread(fd, size, 0)
    if not data.strip(b"\0"):
        return True
    with contextlib.suppress(RecordError):
        state = grammar.scan(data)
        if state.header is None:
            return data.startswith(b"# TASK-") and b" <!-- " in data
        return (
            state.header.parent is not None
            and state.offset == size
            and not state.steps
            and state.summary is None
        )
    return False
