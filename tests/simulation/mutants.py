"""Faults of ordering and recovery that are planted, to see whether the simulation finds them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from evaluator import disk
from evaluator.batch import folder as batch_folder
from evaluator.batch import run as batch_run
from evaluator.batch.folder import BatchFolder
from evaluator.batch.work import Worker
from evaluator.errors import RecordError, TaskNotBegun
from evaluator.files.atomic import write_atomic
from evaluator.record.journal import Journal
from evaluator.record.recorded_steps import SharedRunState
from evaluator.record.segment_writer import Segment
from evaluator.record.segments import Segments
from evaluator.record.step_log import StepLog
from evaluator.record.store import TaskStore
from tests.simulation.schedule import plan_of, run, warm


@dataclass(frozen=True)
class Mutant:
    """`value` replaces the `attribute` of `owner`."""

    name: str
    owner: Any
    attribute: str
    value: Any
    workload: str = "single"

    @contextmanager
    def planted(self) -> Iterator[None]:
        with patch.object(self.owner, self.attribute, self.value):
            yield


def _nothing(*_: Any, **__: Any) -> None:
    return None


async def _nothing_async(*_: Any, **__: Any) -> None:
    return None


_begin = StepLog.begin
_reopen = TaskStore.reopen
_reuse = SharedRunState.reuse
_take_over = Journal._take_over
_write = Journal._write


async def _begin_late(self: StepLog, *args: Any, **named: Any) -> int:
    with patch.object(StepLog, "_flush", _nothing_async):
        return await _begin(self, *args, **named)


async def _end_later(self: StepLog, number: int, end: Any) -> None:
    if self.journal is not None:
        self.journal.end(number, end)


def _reopen_existing(self: TaskStore, task_id: int, **named: Any) -> Any:
    try:
        return _reopen(self, task_id, **named)
    except TaskNotBegun as error:
        raise RecordError(str(error)) from error


def _sync_file_only(self: Journal) -> None:
    self._to_disk(self._fd)


def _keep_torn_end(self: Journal, cut_bytes: int) -> None:
    self._offset += cut_bytes
    _take_over(self, 0)


def _charge_twice(self: SharedRunState, path: str, end: Any) -> Any:
    usage = {name: 2 * value for name, value in (end.usage or {}).items()}
    return _reuse(self, path, replace(end, usage=usage or None))


def _write_if_possible(self: Journal, data: bytes) -> None:
    with suppress(RecordError):
        _write(self, data)
    self._failure = None


def _worker_without_repair(*args: Any, **named: Any) -> Worker:
    return Worker(*args, **{**named, "repair": False})


def _publish_unsynced(path: Any, data: bytes, **named: Any) -> None:
    write_atomic(path, data, **{**named, "sync": False})


MUTANTS = [
    Mutant("nothing is synced", Journal, "sync", _nothing),
    Mutant("a file is synced and its name is not", Journal, "sync", _sync_file_only),
    Mutant("a call is made before its beginning is recorded", StepLog, "begin", _begin_late),
    Mutant("an answer is used before it is recorded", StepLog, "_end", _end_later),
    Mutant("a recorded answer is not used", StepLog, "recorded", _nothing),
    Mutant("a recorded charge is counted twice", SharedRunState, "reuse", _charge_twice),
    Mutant("a torn end is not cut off", Journal, "_take_over", _keep_torn_end),
    Mutant("an error of the disk is ignored", Journal, "_write", _write_if_possible),
    Mutant(
        "a subtask's file is synced after the step that names it",
        StepLog,
        "begin_file",
        _nothing_async,
    ),
    Mutant("an id that a record names is given again", TaskStore, "skip_to", _nothing),
    Mutant("a subtask that never began is an error", TaskStore, "reopen", _reopen_existing),
    Mutant("no folder is synced", disk, "sync_folder", _nothing, "batch"),
    Mutant(
        "a manifest is published before its content is synced",
        batch_folder,
        "write_atomic",
        _publish_unsynced,
        "batch",
    ),
    Mutant(
        "an incomplete line of results stays", BatchFolder, "_remove_torn_line", _nothing, "batch"
    ),
    Mutant(
        "task files of samples are not repaired",
        batch_run,
        "Worker",
        _worker_without_repair,
        "batch",
    ),
    Mutant("a segment is not synced", Segment, "sync", _nothing, "packed"),
    Mutant("a task in a segment is not found", Segments, "find", _nothing, "packed"),
    Mutant(
        "interrupted samples are not looked for",
        batch_run,
        "find_unrecorded",
        lambda *_: {},
        "batch",
    ),
]


def found_after(mutant: Mutant, first: int, most: int) -> int | None:
    """How many schedules from the seed `first` until one violates an invariant."""
    for seed in range(first, first + most):
        plan = plan_of(seed, mutant.workload)
        warm(plan)  # by the right code
        with mutant.planted():
            if run(plan).violation is not None:
                return seed - first + 1
    return None
