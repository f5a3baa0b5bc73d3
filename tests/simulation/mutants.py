"""Faults of ordering and recovery that are planted, to see whether the simulation finds them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from evaluator import RecordError, ResponseCache, TaskStore, clock, disk
from evaluator.batch import Worker, run_session
from evaluator.batch import folder as batch_folder
from evaluator.batch.engines import pool
from evaluator.batch.folder import BatchFolder
from evaluator.batch.submissions import Submissions
from evaluator.batch.wave_log import WaveLog
from evaluator.errors import TaskNotBegun
from evaluator.files.atomic import write_atomic
from evaluator.jobs import deliverables, queue_files
from evaluator.jobs.attempt_runs import AttemptRuns
from evaluator.jobs.background_store import _NOTICE, BackgroundStore
from evaluator.jobs.queue_files import Imported
from evaluator.jobs.queue_store import QueueStore
from evaluator.jobs.store import JobStore
from evaluator.record.journal import Journal
from evaluator.record.recorded_steps import SharedRunState
from evaluator.record.segment_writer import Segment
from evaluator.record.segments import Segments
from evaluator.record.step_log import StepLog
from evaluator.store import leases
from evaluator.store.database import transaction
from tests.simulation.schedule import plan_of, run, warm


def _claim_of_anybody(self: QueueStore, db: Any, claim: Any) -> bool:
    return True


def _silent_by_wall_clock(
    self: leases.LeaseObserver, seen: Any, token: str, beats: int, length_s: float
) -> bool:
    """As if the lease had ended when the wall clock of its owner said so."""
    self._seen[token] = leases._Seen(beats, clock.monotonic())
    return clock.wall() > 1.8e9 + clock.monotonic() + length_s


def _transaction_unsynced(self: JobStore, kind: str = "IMMEDIATE", *, sync: bool = True) -> Any:
    return _transaction(self, kind, sync=False)


def _write_answer_unsynced(folder: Any, entry_id: str, outcome: Any) -> Any:
    with patch.object(disk, "sync_folder", _nothing), patch.object(disk, "fsync", _nothing):
        return _write_answer(folder, entry_id, outcome)


def _end_again(self: BackgroundStore, task_id: str, end: Any) -> Any:
    """Ends a task whatever its state is."""
    with transaction(self._connection):
        self._connection.execute(
            "DELETE FROM notice WHERE task_id = ? AND kind = 'end'", (task_id,)
        )
        return self._end(self.get(task_id), end)


def _claim_nothing(self: BackgroundStore, **named: Any) -> Any:
    """The open notifications, which stay open."""
    with patch.object(_NOTICE.__class__, "update", _nothing):
        return _claim(self, **named)


async def _absent(self: Submissions, submission: Any) -> bool:
    return True


def _add_unsynced(self: WaveLog, number: int, event: str, **fields: Any) -> Any:
    with patch.object(disk, "fsync", _nothing), patch.object(disk, "sync_folder", _nothing):
        return _add(self, number, event, **fields)


def _close_unsynced(self: Segment) -> None:
    with patch.object(Segment, "sync", _nothing):
        _close(self)


async def _find_none(*_: Any, identities: Any, owner: Any) -> Any:
    return {identity: {} for identity in identities}


def _import_whole_file(store: Any, data: bytes, name: str) -> Any:
    return Imported()


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


async def _cancel_and_drop(self: Submissions, submission: Any) -> None:
    """As if what was cancelled had no answers."""
    await _cancel(self, submission)
    self._drop(submission, "cancelled")


async def _nothing_async(*_: Any, **__: Any) -> None:
    return None


_add = WaveLog.add
_cancel = Submissions._cancel
_close = Segment._close_if_done
_begin = StepLog.begin
_reopen = TaskStore.reopen
_reuse = SharedRunState.reuse
_take_over = Journal._take_over
_write = Journal._write
_transaction = JobStore.transaction
_write_answer = deliverables.write_answer
_claim = BackgroundStore.claim


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
        run_session,
        "Worker",
        _worker_without_repair,
        "batch",
    ),
    Mutant(
        "an index is written before its tasks are synced",
        Segment,
        "_close_if_done",
        _close_unsynced,
        "workers",
    ),
    Mutant(
        "the tasks of a lost worker are not looked for",
        pool,
        "find_unrecorded",
        _find_none,
        "workers",
    ),
    Mutant(
        "a provider batch that may exist is created again",
        Submissions,
        "_find",
        _absent,
        "waves",
    ),
    Mutant("the log of provider batches is not synced", WaveLog, "add", _add_unsynced, "waves"),
    Mutant("parked calls are not synced", Segment, "sync", _nothing, "waves"),
    Mutant(
        "the answers of a cancelled provider batch are not collected",
        Submissions,
        "_cancel",
        _cancel_and_drop,
        "controlled",
    ),
    Mutant("a stored response is not looked for", ResponseCache, "get", _nothing, "together"),
    Mutant("shards give the same ids to tasks", run_session, "SHARD_IDS", 0, "together"),
    Mutant("a segment is not synced", Segment, "sync", _nothing, "packed"),
    Mutant("a task in a segment is not found", Segments, "find", _nothing, "packed"),
    Mutant(
        "interrupted samples are not looked for",
        run_session,
        "find_unrecorded",
        lambda *_: {},
        "batch",
    ),
    Mutant(
        "a worker without its lease ends an entry",
        QueueStore,
        "_is_held",
        _claim_of_anybody,
        "queue",
    ),
    Mutant(
        "a lease ends by the wall clock",
        leases.LeaseObserver,
        "_is_silent",
        _silent_by_wall_clock,
        "queue",
    ),
    Mutant(
        "a queue's transactions are not synced",
        JobStore,
        "transaction",
        _transaction_unsynced,
        "queue",
    ),
    Mutant(
        "an entry is done before its answer is synced",
        deliverables,
        "write_answer",
        _write_answer_unsynced,
        "queue",
    ),
    Mutant(
        "an edit of a person is overwritten",
        queue_files,
        "import_edit",
        _import_whole_file,
        "queue",
    ),
    Mutant("an interrupted attempt is not resumed", AttemptRuns, "_look", lambda *_: {}, "queue"),
    Mutant("a background task ends twice", BackgroundStore, "end", _end_again, "background"),
    Mutant(
        "a background task's state is not synced",
        JobStore,
        "transaction",
        _transaction_unsynced,
        "background",
    ),
    Mutant(
        "a notification is delivered before it is claimed",
        BackgroundStore,
        "claim",
        _claim_nothing,
        "background",
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
