"""The folder of task files as it is read: lists them, reads them, and finds interrupted ones."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import replace
from heapq import merge
from itertools import islice
from pathlib import Path
from typing import Any

from evaluator import disk
from evaluator.errors import CorruptRecord, RecordError, TaskNotBegun, UsageError
from evaluator.files.atomic import (
    try_lock,
    unlock,
)
from evaluator.files.locations import given_path
from evaluator.files.open_below import (
    open_regular,
    read_regular,
)
from evaluator.lazy_dataclass import frozen
from evaluator.patterns import Pattern
from evaluator.record import grammar
from evaluator.record.segments import ENDED, PackedTask, SegmentIndex, Segments, is_live, labels_of
from evaluator.record.segments import task_file as packed_file
from evaluator.record.steps import (
    Header,
    Recording,
    RunStatus,
    Summary,
)
from evaluator.store.owners import Owner, is_gone

_FILE = Pattern(r"TASK-([0-9]{1,18})\.md")
_UNNUMBERED = Pattern(r"TASK-[A-Za-z0-9._-]+\.md")
# Other programs have all their task files in one folder.
FLAT = "."
_HEAD_BYTES = 4096
MAX_FILE_BYTES = 1_000_000_000
"""Larger task files are not read: memory holds the whole file. Attachments are files of their own.
"""


@frozen
class TaskSummary:
    """An entry of `list`: a task file without its steps. `error` is why a file cannot be read.
    `path` is that of the segment, if the task is in one.
    """

    id: int
    path: Path
    status: RunStatus
    header: Header | None
    summary: Summary | None
    error: str | None = None


Labelled = tuple[int, RunStatus, Mapping[str, Any] | None]
"""The id of a task, its status, and its labels."""


class TaskFolder:
    """Reads the task files under `root`: those of running or interrupted tasks in `active/`, the
    others in `done/`, and those in the segments in `segments/`.
    """

    def __init__(self, root: Path | str) -> None:
        self.root = given_path(root, "the folder of task files")
        self._segments = Segments(self.root)

    def read(self, task: int | Path, *, repair: bool = False) -> Recording:
        """The recording of a task, by id or by path. Running tasks can be read; status
        "interrupted" if the owner is gone. `repair`: see `reopen`.

        Raises: RecordError, if there is no such file; CorruptRecord, if it has been changed.
        """
        if isinstance(task, Path):
            path = task
        else:
            try:
                path = self.path_of(task)
            except TaskNotBegun:
                packed = self._segments.find(task)
                if packed is None:
                    raise
                return _read_packed(*packed, repair=repair)
        try:
            try:
                fd = open_regular(path, max_bytes=MAX_FILE_BYTES)
            except FileNotFoundError:
                # The task was finished, and its file moved, after it was found.
                if not isinstance(task, Path):
                    path = self.path_of(task)
                fd = open_regular(path, max_bytes=MAX_FILE_BYTES)
            with open(fd, "rb") as file:
                alive = _is_owned(file.fileno())
                data = file.read()
        except OSError as error:
            raise RecordError(f"{path}: cannot read the task file: {error.strerror}") from error
        return _with_status(grammar.decode(data, str(path), repair=repair), alive)

    def path_of(self, task_id: int) -> Path:
        """The path of a task's own file. Raises: TaskNotBegun, if there is none, as for a task in a
        segment; RecordError, if that cannot be seen; UsageError, for an invalid id.
        """
        if type(task_id) is not int or task_id < 0:
            raise UsageError(f"a task id is a whole number, not {task_id!r}")
        # Twice: a task that is closed meanwhile moves from the first folder to the second.
        name = f"TASK-{task_id}.md"
        for folder in ("active", "done", "active", "done", FLAT):
            path = os.path.join(self.root, folder, name)
            try:
                if stat.S_ISREG(os.stat(path).st_mode):
                    return Path(path)
            except (FileNotFoundError, NotADirectoryError, ValueError):
                continue
            except OSError as error:
                # A task that was taken for lost would be run, and paid for, again.
                raise RecordError(
                    f"{path}: cannot look for the task file: {error.strerror}"
                ) from error
        raise TaskNotBegun(f"{self.root}: there is no task {task_id}")

    def check(self, task_id: int) -> None:
        """Raises: TaskNotBegun, if there is no such task; RecordError, if that cannot be read."""
        try:
            self.path_of(task_id)
        except TaskNotBegun:
            if self._segments.find(task_id) is None:
                raise

    def content_of(self, task_id: int) -> bytes:
        """The task file of a task, also of one in a segment.

        Raises: as `read`, except that the content is not checked.
        """
        try:
            path = self.path_of(task_id)
        except TaskNotBegun:
            packed = self._segments.find(task_id)
            if packed is None:
                raise
            return packed_file(*packed)
        try:
            return read_regular(path, MAX_FILE_BYTES)
        except OSError as error:
            raise RecordError(f"{path}: cannot read the task file: {error.strerror}") from error

    def ids(self) -> Iterator[int]:
        """The id of each task, in no order; a task with a file and in a segment comes twice.

        Raises: RecordError, if a folder cannot be listed.
        """
        for folder in (FLAT, "active", "done"):
            yield from ids_in(self.root / folder)
        for number in self._segments.numbers():
            yield from self._segments.index(number).tasks

    def labelled(self, after: int = 0, packed_by: Owner | None = None) -> Iterator[Labelled]:
        """Each task above the id `after` with its labels; with `packed_by` only those that this
        process wrote to segments.

        Raises: RecordError, as `list`.
        """
        files: set[int] = set()
        if packed_by is None:
            for task in self._listed_files((FLAT, "active", "done")):
                if task.id <= after:
                    break
                files.add(task.id)
                yield task.id, task.status, labels_of(task.header)
        for number in self._segments.numbers():
            if packed_by is not None and self._segments.owner(number) != packed_by:
                continue
            index = self._segments.index(number)
            alive = is_live(index)
            for task in index.tasks.values():
                if task.id > after and task.id not in files:
                    yield task.id, _status_of(task, alive), task.labels

    def damage(self, *, repair: bool = False) -> list[CorruptRecord]:
        """What is wrong with each segment that can only be read up to a damage.

        `repair`: such a segment then ends before the damage, and a copy of it stays beside it.
        Raises: RecordError, if a segment cannot be read or written.
        """
        found: list[CorruptRecord] = []
        for number in self._segments.numbers():
            index = self._segments.index(number)
            if index.damage is None:
                continue
            found.append(index.damage)
            if repair and not is_live(index):
                self._segments.cut(number)
        return found

    def list(
        self,
        status: RunStatus | None = None,
        limit: int | None = None,
        *,
        before: int | None = None,
    ) -> Iterator[TaskSummary]:
        """Tasks, newest first, with the checksums of their files checked; unreadable ones too,
        empty ones not.

        `before`: only those with a lower id.
        """
        # Only finished tasks are in done/: their files need not be read.
        if status in ("running", "interrupted"):
            folders = (FLAT, "active")
        else:
            folders = (FLAT, "active", "done")
        packed = self._packed(status, before)
        items = merge(self._listed_files(folders, before), packed, key=lambda task: -task.id)
        yield from islice((item for item in items if status in (None, item.status)), limit)

    def _listed_files(
        self, folders: tuple[str, ...], before: int | None = None
    ) -> Iterator[TaskSummary]:
        """The tasks that have files of their own, newest first."""
        found = {task_id: folder for folder in folders for task_id in ids_in(self.root / folder)}
        ids = sorted(
            (task_id for task_id in found if before is None or task_id < before), reverse=True
        )
        items = (self._look(task_id, found[task_id]) for task_id in ids)
        return (item for item in items if item is not None)

    def _packed(self, status: RunStatus | None, before: int | None) -> Iterator[TaskSummary]:
        """The tasks in segments, newest first, except those that have files of their own. A damaged
        segment is an unreadable task with its number.
        """
        places: list[tuple[int, int]] = []
        may_match = status not in ("running", "interrupted")
        for number in self._segments.numbers():
            if not may_match and self._segments.is_finished(number):
                continue
            index = self._segments.index(number)
            if index.damage is not None and status in (None, "unreadable"):
                places.append((number, -number))
            places += [
                (task.id, number)
                for task in index.tasks.values()
                if (may_match or task.status not in ENDED) and (before is None or task.id < before)
            ]
        for task_id, number in sorted(places, reverse=True):
            if number < 0:
                index = self._segments.index(-number)
                yield TaskSummary(
                    task_id,
                    index.path,
                    status="unreadable",
                    header=None,
                    summary=None,
                    error=str(index.damage),
                )
            elif not self._has_file(task_id):
                index = self._segments.index(number)
                yield _look_packed(index, index.tasks[task_id])

    def _has_file(self, task_id: int) -> bool:
        name = f"TASK-{task_id}.md"
        return any((self.root / folder / name).is_file() for folder in ("active", "done", "active"))

    def unnumbered(self) -> list[str]:
        """The names of files that another program wrote in this folder and whose ids are not
        numbers.
        """
        try:
            names = [name for name in os.listdir(self.root) if _UNNUMBERED.fullmatch(name)]
        except OSError:
            return []
        return sorted(name for name in names if not _FILE.fullmatch(name))

    def interrupted(self) -> Iterator[TaskSummary]:
        """Tasks without an end whose owner is gone, newest first."""
        return self.list(status="interrupted")

    def _look(self, task_id: int, folder: str) -> TaskSummary | None:
        name = f"TASK-{task_id}.md"
        for place in (folder, "done"):
            path = self.root / place / name
            try:
                fd = open_regular(path, max_bytes=MAX_FILE_BYTES)
            except FileNotFoundError:
                continue
            except OSError as error:
                return TaskSummary(
                    task_id,
                    path,
                    status="unreadable",
                    header=None,
                    summary=None,
                    error=error.strerror,
                )
            try:
                alive = _is_owned(fd)
                if not alive and os.fstat(fd).st_size == 0:
                    return (
                        None  # its process was killed before it wrote anything: there was no task
                    )
                return _peek(task_id, path, fd=fd, alive=alive)
            except (RecordError, OSError) as error:
                return TaskSummary(
                    task_id, path, status="unreadable", header=None, summary=None, error=str(error)
                )
            finally:
                disk.close(fd)
        return None


def ids_in(folder: Path) -> Iterator[int]:
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                match = _FILE.fullmatch(entry.name)
                # Only the one spelling of a number that `path_of` uses.
                if match is not None and str(int(match[1])) == match[1]:
                    yield int(match[1])
    except FileNotFoundError:
        return
    except OSError as error:
        raise RecordError(f"{folder}: cannot list the task folder: {error.strerror}") from error


def _peek(task_id: int, path: Path, fd: int, alive: bool) -> TaskSummary:
    if alive and path.parent.name != "done":
        # The file of a running task may be large, and its beginning says all.
        header = grammar.header_of(os.pread(fd, _HEAD_BYTES, 0), str(path))
        if header is not None and not is_gone(header.owner):
            return TaskSummary(task_id, path, status="running", header=header, summary=None)
    data = os.pread(fd, os.fstat(fd).st_size, 0)
    try:
        found = _with_status(grammar.decode(data, str(path), steps=False), alive)
    except CorruptRecord as error:
        return TaskSummary(
            task_id,
            path,
            status="unreadable",
            header=grammar.header_of(data, str(path)),
            summary=None,
            error=str(error),
        )
    if found.summary is None:
        summary = None
    else:
        summary = replace(found.summary, result=None)
    return TaskSummary(task_id, path, status=found.status, header=found.header, summary=summary)


def _status_of(task: PackedTask, alive: bool) -> RunStatus:
    """The status of a task in a segment; `alive`: its process still writes."""
    if task.status == "running" and alive:
        return "running"
    if task.status == "running" or task.status == "released":
        return "interrupted"
    return task.status


def packed_status(index: SegmentIndex, task: PackedTask) -> RunStatus:
    return _status_of(task, task.status == "running" and is_live(index))


def _read_packed(
    index: SegmentIndex, task: PackedTask, *, repair: bool = False, steps: bool = True
) -> Recording:
    data = packed_file(index, task, steps=steps)
    path = f"{index.path} (TASK-{task.id})"
    recording = grammar.decode(data, path, steps=steps, repair=repair)
    if recording.header is None or recording.header.task_id != task.id:
        raise RecordError(f"{path}: the frames are not those of this task")
    return _with_status(recording, packed_status(index, task) == "running")


def _look_packed(index: SegmentIndex, task: PackedTask) -> TaskSummary:
    try:
        found = _read_packed(index, task, steps=False)
    except (RecordError, OSError) as error:
        return TaskSummary(
            task.id, index.path, status="unreadable", header=None, summary=None, error=str(error)
        )
    summary = found.summary and replace(found.summary, result=None)
    return TaskSummary(
        task.id, index.path, status=found.status, header=found.header, summary=summary
    )


def _with_status(recording: Recording, alive: bool) -> Recording:
    """`recording`, interrupted if it has not ended and its process is gone."""
    if recording.status == "running" and (not alive or is_gone(recording.owner)):
        return replace(recording, status="interrupted")
    return recording


def _is_owned(fd: int) -> bool:
    """Whether a process holds the file open for writing."""
    try:
        if not try_lock(fd, shared=True):
            return True
    except OSError:
        return False
    unlock(fd)
    return False
