"""One session of a batch: evaluates the samples that have no result yet and writes each result as
it arrives.

A session ends when no work is left, or earlier: a stop was requested (samples in flight are
finished), the budget is spent, this machine cannot continue, the engine has lost all processes, or
the same error came too often in a row. The first two also end a wait for the next row of an
asynchronous iterator. A later session does the rest and nothing else. A session that was cancelled
or killed leaves its task files: the samples that were in flight continue from them.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import count
from typing import Any

from evaluator import clock
from evaluator.batch.engines import ClusterLost, Engine
from evaluator.batch.folder import BatchFolder, ResultEntry
from evaluator.batch.options import State, Stop
from evaluator.batch.pending import Counts, PendingWork
from evaluator.batch.plan import BatchPlan
from evaluator.batch.progress import TICK_S, EndpointStatus, SafeDisplay, Snapshot, Tally
from evaluator.batch.records import SampleResult, Verdict
from evaluator.batch.summary import Columns
from evaluator.batch.work import Worker, WorkItem, WorkResult, sample_label
from evaluator.errors import UsageError
from evaluator.limits.endpoints import host_of
from evaluator.limits.rate_limiter import RateLimiter
from evaluator.record.store import TaskStore

PROGRESS_TICKS = 4
"""The progress for other processes is written at each of so many ticks."""
_NUMBERS = re.compile(r"0x[0-9a-f]+|[0-9]+(?:\.[0-9]+)?")


@dataclass(frozen=True, slots=True)
class SessionEnd:
    """The end of a session.

    `ran` results were added. `total` samples are wanted; None if unknown, because the rows were not
    read to their end. `stale` are the keys of results whose question has changed, `orphans` those
    of results that no row asks for. `error` is why reading the rows failed.
    """

    state: State
    reason: str
    ran: int
    total: int | None
    counts: Counts
    snapshot: Snapshot
    stale: frozenset[str]
    orphans: frozenset[str]
    error: Exception | None = None


@dataclass(slots=True)
class Session:
    """One session of a batch. Its `run` may be called once.

    `columns` gets each result that is written; None if there are earlier results, and after an
    error, which the summary raises again.
    """

    plan: BatchPlan
    folder: BatchFolder
    worker: Worker
    limiter: RateLimiter
    engine: Engine
    stop: Stop
    display: SafeDisplay
    tally: Tally = field(default_factory=Tally)
    columns: Columns | None = None
    _repeated: tuple[str, int] = ("", 0)
    _error: Exception | None = None
    _written_next: list[SampleResult] = field(default_factory=list[SampleResult])
    _write_error: Exception | None = None
    _ends_at: float | None = None
    _wait: asyncio.Timeout | None = None

    async def run(self, earlier: dict[str, ResultEntry]) -> SessionEnd:
        """Evaluates the samples that have no result in `earlier`. A row that cannot be read ends
        the session after the samples in flight; it is the `error` of the returned SessionEnd.

        Cancelling it cancels the samples in flight. Raises: RecordError, if a result cannot be
        written.
        """
        options = self.plan.options
        pending = PendingWork(
            self.plan.cells,
            options.epochs,
            earlier=earlier,
            read_result=self.folder.read_at,
            on_kept=self.tally.keep,
            scoring_part=self.plan.scoring_part,
            retry_errors=options.retry_errors,
            on_changed=options.on_changed,
            settings=self.folder.manifest().get("settings", {}),
        )
        self.tally.total = self.plan.total
        if options.retry_errors:
            is_retried = {Verdict.ERROR}
        else:
            is_retried = set[Verdict]()
        self.tally.earlier = sum(entry.verdict not in is_retried for entry in earlier.values())
        rows = aiter(self.plan.rows)
        work = pending.work(rows)
        self.display.show("start", self.plan.name, self._snapshot())
        ticker = asyncio.ensure_future(self._tick())
        try:
            with self.stop.calling(partial(_call_in, asyncio.get_running_loop(), self._end_wait)):
                await self.engine.run(
                    self.worker,
                    lambda: self._next(work),
                    self._finish,
                    lambda: self.stop.state is not None,
                )
            self._write_results()
            total = self.tally.total = await self._count_rest(work, pending.counts)
            self.tally.earlier = 0
        except ClusterLost as error:
            # Its samples in flight are lost, and reading the rows was interrupted.
            self.stop.ask("incomplete", str(error))
            total = self.plan.total
        except BaseException as error:
            self.display.show("end", self._snapshot(), interrupted_state(error)[0])
            raise
        finally:
            ticker.cancel()
            await asyncio.wait([ticker])
            with contextlib.suppress(Exception):
                self._write_results()
            self.folder.write_progress(None)
            await work.aclose()
            await rows.aclose()
        state = self._state(total)
        snapshot = self._snapshot()
        self.display.show("end", snapshot, state)
        return SessionEnd(
            state,
            self.stop.reason,
            ran=self.tally.ran,
            total=total,
            counts=pending.counts,
            snapshot=snapshot,
            stale=frozenset(pending.stale),
            orphans=frozenset(earlier),
            error=self._error,
        )

    async def _next(self, work: AsyncGenerator[WorkItem]) -> WorkItem | None:
        """The next work, as soon as the limiter has room for one more sample; None at the end."""
        if self.stop.state is None:
            found = await self._read(work)
        else:
            found = None
        if found is None:
            return None
        await self.limiter.start_sample()
        if self.stop.state is None:
            return found
        self.limiter.end_sample()
        return None

    async def _read(self, work: AsyncGenerator[WorkItem]) -> WorkItem | None:
        try:
            return await (self._read_live(work) if self.plan.rows.is_live else anext(work, None))
        except asyncio.CancelledError as error:
            if _is_cancelled():
                raise
            self._error = UsageError(
                "reading the rows raised CancelledError, but nobody cancelled the batch"
            )
            self._error.__cause__ = error
        except Exception as error:
            self._error = error
        # Samples in flight have already cost money, so they are finished first.
        self.stop.ask("incomplete", str(self._error))
        return None

    async def _read_live(self, work: AsyncGenerator[WorkItem]) -> WorkItem | None:
        """The next work of rows that may take long to arrive; None if the session ends first."""
        max_time = self.plan.options.limits.max_time
        if self._ends_at is None and max_time is not None:
            self._ends_at = asyncio.get_running_loop().time() + max_time
        found = None
        wait = asyncio.timeout_at(self._ends_at)
        self._wait = wait
        try:
            async with wait:
                found = await anext(work, None)
        except Exception:
            # An error that the iterator raises because its wait ended is not an error of the rows.
            if not wait.expired():
                raise
        finally:
            self._wait = None
        if not wait.expired():
            return found
        # A row that arrived nevertheless is not started.
        if max_time is not None:
            self.stop.ask("budget", f"the batch has used its {max_time:g} s")
        return None

    def _end_wait(self) -> None:
        if self._wait is not None and not self._wait.expired():
            self._wait.reschedule(asyncio.get_running_loop().time())

    def _finish(self, done: WorkResult) -> None:
        self.limiter.end_sample()
        if self._write_error is not None:
            raise self._write_error
        if done.result is None:
            # Without a call that the limiter rejected, it is this machine that could not do the
            # work.
            self.stop.ask("incomplete" if self.limiter.refused is None else "budget", done.pending)
            return
        if not self._written_next:
            asyncio.get_running_loop().call_soon(self._write_soon)
        self._written_next.append(done.result)
        # At once: a display that asks to stop does so before the next sample starts.
        self.display.show("result", done.result)
        self._stop_on_repetition(done.result)

    def _write_soon(self) -> None:
        """Writes the results of this turn of the event loop. Nothing new starts after an error,
        which the next result raises.
        """
        try:
            self._write_results()
        except Exception as error:
            self._write_error = error
            self.stop.ask("incomplete", str(error))

    def _write_results(self) -> None:
        """Raises: RecordError, if results cannot be written."""
        if self._write_error is not None:
            raise self._write_error
        results = self._written_next
        if not results:
            return
        self._written_next = []
        store = self.worker.evaluator.services.store
        stored = self.folder.extend(results, None if store is None else store.redactor)
        if self.columns is not None:
            try:
                for result in stored:
                    self.columns.add(result)
            except UsageError:
                self.columns = None
        for result in results:
            self.tally.add(result)

    def _stop_on_repetition(self, result: SampleResult) -> None:
        """Ends the session if the same error keeps coming: then the samples are not the cause."""
        if result.verdict is not Verdict.ERROR:
            self._repeated = ("", 0)
            return
        kind = kind_of_error(result)
        self._repeated = (kind, self._repeated[1] + 1 if kind == self._repeated[0] else 1)
        limit = self.plan.options.limits.stop_after
        if limit and self._repeated[1] >= limit:
            self.stop.ask(
                "repeated error", f"{self._repeated[1]} samples in a row ended with: {kind}"
            )

    async def _count_rest(self, work: AsyncGenerator[WorkItem], counts: Counts) -> int | None:
        """The number of samples, if the rest of the rows can be read without evaluating them."""
        if self.stop.state is None:
            return counts.samples
        if self._error is not None or self.plan.rows.is_live or not self.plan.rows.is_repeatable:
            return None
        async for _ in work:
            pass
        return counts.samples

    def _state(self, total: int | None) -> State:
        if total is not None and self.tally.before + self.tally.ran >= total:
            return "complete"
        return self.stop.state or "incomplete"

    async def _tick(self) -> None:
        for tick in count():
            snapshot = self._snapshot()
            if tick:
                self.display.show("progress", snapshot)
            if tick % PROGRESS_TICKS == 0:
                self.folder.write_progress(self._progress(snapshot))
            await clock.sleep(TICK_S)

    def _progress(self, snapshot: Snapshot) -> Mapping[str, Any]:
        """What another process may show of this session."""
        limits = {
            name: value
            for name, value in asdict(self.plan.options.limits).items()
            if value is not None
        }
        return {
            "at": clock.wall(),
            "stop": self.stop.reason,
            "limits": limits,
            **snapshot.to_dict(),
        }

    def _snapshot(self) -> Snapshot:
        endpoints = [
            EndpointStatus(
                each.label,
                each.in_flight,
                limit=each.limit,
                waiting=each.waiting,
                host=host_of(each.endpoint),
                held_s=each.held_s,
                connections=each.connections,
            )
            for each in self.limiter.state()
        ]
        return self.tally.snapshot(self.engine.in_flight(), tuple(endpoints))


def interrupted_state(error: BaseException) -> tuple[State, str]:
    """The state and the reason of a session that `error` ended."""
    if isinstance(error, asyncio.CancelledError | KeyboardInterrupt):
        return "stopped", "interrupted: calls in flight were cancelled"
    return "incomplete", f"{type(error).__name__}: {error}"


def _call_in(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    """Makes `loop` call `call`, from any thread; does nothing if the loop has ended."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(call)


def _is_cancelled() -> bool:
    """Whether the current task is being cancelled; an awaited object may also raise CancelledError
    on its own.
    """
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def kind_of_error(result: SampleResult) -> str:
    """An error without its numbers, so that two errors of one kind are equal."""
    if result.failure is not None:
        return _NUMBERS.sub("#", f"{result.failure.kind}: {result.failure.message}")[:300]
    found = [f"{name}: {score.error}" for name, score in result.scores.items() if score.error]
    return _NUMBERS.sub("#", "; ".join(found))[:300]


def find_unrecorded(store: TaskStore, earlier: Mapping[str, ResultEntry]) -> dict[str, int]:
    """Task files of samples and of their judges that no result refers to: label → the newest task's
    id.

    For a sample that ended with an error, those of a further try that was interrupted.
    """
    recorded = {entry.identity.decode(): entry for entry in earlier.values()}
    found: dict[str, int] = {}
    for task_id, status, labels in store.labelled():
        label = sample_label(labels)
        if not label:
            continue
        identity, is_judge, rest = label.partition("/")
        entry = recorded.get(identity)
        if entry is None:
            is_recorded = False
        elif is_judge:
            is_recorded = entry.scored_by.decode() == rest.partition("/")[0]
        else:
            is_recorded = entry.verdict is not Verdict.ERROR or status == "failed"
        if not is_recorded:
            found[label] = max(task_id, found.get(label, 0))
    return found
