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
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import field
from functools import partial
from itertools import count
from operator import countOf
from typing import TYPE_CHECKING, Any

from evaluator import clock
from evaluator.batch.display import SafeDisplay
from evaluator.batch.engines import ClusterLost, Engine
from evaluator.batch.engines.base import Done, WatchedEngine, unanswered_result
from evaluator.batch.engines.packing import ResultLines
from evaluator.batch.folder import BatchFolder
from evaluator.batch.looks import Looks
from evaluator.batch.options import OnChanged, State, Stop, limits_to_dict
from evaluator.batch.pending import Counts, MakeWork, PendingWork
from evaluator.batch.plan import BatchPlan
from evaluator.batch.progress import TICK_S, EndpointStatus, Snapshot
from evaluator.batch.records import Sample, Verdict, kind_of_error
from evaluator.batch.result_index import EarlierResults, ResultEntry, ResultIndex
from evaluator.batch.result_writer import ResultWriter, results_of
from evaluator.batch.steering import SKIPPED, Steering
from evaluator.batch.work import Worker
from evaluator.batch.work_items import WorkItem, WorkResult
from evaluator.errors import UsageError
from evaluator.errors.messages import amount
from evaluator.lazy_dataclass import dataclass, frozen
from evaluator.limits.endpoints import host_of
from evaluator.limits.rate_limiter import RateLimiter
from evaluator.store.owners import current_owner, owner_text

if TYPE_CHECKING:
    from evaluator.batch.waves import Waves

CONTROL_TICKS = 2
"""Commands of other processes are looked for at each of so many ticks."""
PROGRESS_TICKS = 4
"""The progress for other processes is written at each of so many ticks."""


@frozen
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

    `results` are written at the end of each turn of the event loop. `_ahead` is work that was read
    and not taken yet. `make_work` returns other work than that of the rows.
    `looks` decide whether the batch continues. With `waves`, further passes over the rows resume
    the samples whose provider batches are over.
    """

    plan: BatchPlan
    folder: BatchFolder
    worker: Worker
    limiter: RateLimiter
    engine: Engine
    stop: Stop
    display: SafeDisplay
    steering: Steering
    results: ResultWriter
    make_work: MakeWork | None = None
    looks: Looks | None = None
    waves: Waves | None = None
    _work: AsyncGenerator[Sequence[WorkItem]] = field(init=False)
    _ahead: Sequence[WorkItem] = ()
    _has_read_all: bool = False
    _taken: int = 0
    _is_idle: asyncio.Event = field(default_factory=asyncio.Event)
    _repeated: tuple[str, int] = ("", 0)
    _error: Exception | None = None
    _write_error: Exception | None = None
    _reads_since: float | None = None
    _wait: asyncio.Timeout | None = None
    _parked: set[str] = field(default_factory=set[str])

    async def run(self, earlier: ResultIndex) -> SessionEnd:
        """Evaluates the samples that have no result in `earlier`. A row that cannot be read ends
        the session after the samples in flight; it is the `error` of the returned SessionEnd.

        Cancelling it cancels the samples in flight. Raises: RecordError, if a result cannot be
        written.
        """
        pending = self._make_pending(earlier)
        self.results.tally.total = pending.counts.samples if pending.is_counted else self.plan.total
        self.results.tally.earlier = len(pending.earlier)
        if self.plan.options.retry_errors:
            verdicts = (entry.verdict for entry in pending.earlier.values())
            self.results.tally.earlier -= countOf(verdicts, Verdict.ERROR)
        rows = self.plan.rows.slices()
        work = self._work = self._work_from(rows, pending)
        self._is_idle.set()
        snapshot = self._snapshot()
        self.display.show("start", self.plan.name, snapshot)
        self.steering.poll()
        ticker = asyncio.ensure_future(self._tick(snapshot))
        try:
            end_wait = partial(_call_in, asyncio.get_running_loop(), self._end_wait)
            with self.stop.calling(end_wait):
                await self._run_engine()
                while self.waves is not None and await self.waves.advance():
                    self._write_results()
                    # A budget may have ended the first pass: it counts all rows.
                    async for _ in work:
                        pass
                    self._start_wave(pending)
                    await self._run_engine()
            self._write_results()
            total = self.results.tally.total = await self._count_rest(work, pending)
            self.results.tally.earlier = 0
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
            await self._work.aclose()
            await work.aclose()
            await rows.aclose()
        return self._end(total, pending)

    def _make_pending(self, earlier: ResultIndex) -> PendingWork:
        """The work of the first pass over the rows."""
        if self.make_work is not None:
            return self.make_work(self.folder, earlier, self.results.tally.keep)
        options = self.plan.options
        return PendingWork(
            self.plan.cells,
            options.epochs,
            earlier=earlier,
            read_result=self.folder.read_at,
            on_kept=self.results.tally.keep,
            scoring_part=self.plan.scoring_part,
            versions=self.worker.versions,
            retry_errors=options.retry_errors,
            on_changed=options.on_changed,
            settings=self.folder.manifest().get("settings", {}),
        )

    def _end(self, total: int | None, pending: PendingWork) -> SessionEnd:
        """The end of an orderly session."""
        self.steering.poll()
        self.steering.close(read_all=self._has_read_all)
        state = self._state(total)
        reason = self.stop.reason
        if state == "waiting" and self.waves is not None:
            reason = self.waves.reason()
        elif state == "incomplete" and not reason and self.waves is not None:
            reason = self.waves.cancel_reason()
        elif self.looks is not None and not reason:
            reason = self.looks.decision.status
        snapshot = self._snapshot()
        self.display.show("end", snapshot, state)
        return SessionEnd(
            state,
            reason,
            ran=self.results.tally.ran,
            total=total,
            counts=pending.counts,
            snapshot=snapshot,
            stale=frozenset(pending.stale),
            orphans=frozenset(pending.earlier),
            error=self._error,
        )

    def _work_from(
        self, rows: AsyncIterator[Sequence[Sample]], pending: PendingWork
    ) -> AsyncGenerator[Sequence[WorkItem]]:
        if self.looks is None:
            return pending.work(rows)
        return self._work_of_looks(pending, self.looks)

    async def _work_of_looks(
        self, pending: PendingWork, looks: Looks
    ) -> AsyncGenerator[Sequence[WorkItem]]:
        """The work of one look after the other, until the batch is decided. The first work of a
        look waits until that of the look before is done. It ends where calls wait for a provider
        batch. The rows of looks that were taken earlier are read in any case: their results are
        part of the batch.
        """
        cells = self.plan.cells
        design = looks.decision.design
        for look in range(design.looks):
            taken = looks.decision.looks
            if look > len(taken) or (looks.decision.is_over and look == len(taken)):
                return
            left = looks.cells_at(look)
            pending.cells = [(cell, variant) for cell, variant in cells if cell in left]
            async with aclosing(pending.work(self.plan.slices(look))) as slices:
                async for works in slices:
                    yield works
            if look < len(taken):
                continue
            await self._is_idle.wait()
            self._write_results()
            if self.stop.state is not None or self._is_waiting:
                return
            problem = looks.take(pending.stale)
            if problem:
                self.stop.ask("incomplete", problem)
                return
            self.display.show("notice", looks.decision.looks[-1].line(design))
            self.results.tally.total = looks.total

    async def _run_engine(self) -> None:
        await self.engine.run(
            self.worker, self._next, self._finish, lambda: self.stop.state is not None
        )

    @property
    def _is_waiting(self) -> bool:
        """Whether calls wait for a provider batch."""
        return self.waves is not None and self.waves.calls > 0

    def _start_wave(self, pending: PendingWork) -> None:
        """Begins a further pass, for the samples that have no result yet."""
        self.stop.state = None
        self.stop.reason = ""
        self.limiter.start_again()
        self._ahead = ()
        self._work = self._unanswered(pending)

    async def _next(self, most: int) -> Sequence[WorkItem]:
        """The next works, as soon as the limiter has room for one more sample, at most so many;
        none at the end.
        """
        places = self.steering.places_of(most)
        while self.stop.state is None:
            if not self._ahead:
                found = await self._read(self._work)
                if found is None:
                    if self.stop.state is not None or not self._has_retries():
                        return ()
                    continue
                self._ahead = self._wanted(found)
                continue
            room = await self.limiter.start_samples(min(most, len(self._ahead)), places)
            # A command may have come while it waited.
            taken: Sequence[WorkItem] = ()
            if self.stop.state is None:
                taken = self._ahead[:room]
                self._ahead = self._ahead[room:]
                if self.steering.skips:
                    taken = [work for work in taken if not self._skip(work)]
            if len(taken) < room:
                self.limiter.end_samples(room - len(taken))
            if taken:
                self.steering.begin(taken)
                self.results.continued.begin(taken)
                self._taken += len(taken)
                self._is_idle.clear()
                return taken
        return ()

    def _wanted(self, works: Sequence[WorkItem]) -> Sequence[WorkItem]:
        """Those that no command skips and that wait for no provider batch."""
        waves = self.waves
        if self.steering.skips:
            works = [work for work in works if not self._skip(work)]
        if waves is not None:
            works = [work for work in works if not waves.waits_for(work.identity.value)]
        return works

    def _skip(self, work: WorkItem) -> bool:
        """Stores the result of a sample that a command skips."""
        command = self.steering.take_skip(work)
        if command is None:
            return False
        self._store(WorkResult(work, unanswered_result(work, SKIPPED)))
        # A command is answered when its effect is on the disk.
        self._write_results()
        self.steering.finish_skip(command)
        return True

    def _has_retries(self) -> bool:
        """Begins to run samples again, if commands ask for it; at the end of the rows."""
        self._has_read_all = True
        self._write_results()
        self.steering.all_retries_begun()
        entries = self.steering.take_retries()
        if entries:
            self._work = self._again(entries)
        return bool(entries)

    async def _unanswered(self, first: PendingWork) -> AsyncGenerator[Sequence[WorkItem]]:
        """The work for the samples that have no result, or that were parked again; `first`: that of
        the first pass.
        """
        entries = self.folder.index()
        for key in self._parked:
            entries.pop(key, None)
        self._parked.clear()
        pending = self._pending(entries, on_changed="keep")
        pending.stale = first.stale
        async with (
            aclosing(self.plan.rows.slices()) as rows,
            aclosing(self._work_from(rows, pending)) as slices,
        ):
            async for works in slices:
                yield works

    async def _again(
        self, entries: Mapping[str, ResultEntry]
    ) -> AsyncGenerator[Sequence[WorkItem]]:
        """The work for the samples of `entries`, which ended with an error."""
        pending = self._pending(dict(entries), on_changed="run")
        async with aclosing(self.plan.rows.slices()) as rows:
            async for works in pending.work(rows):
                found = [work for work in works if work.identity.key in entries]
                if found:
                    yield found

    def _pending(self, entries: EarlierResults, on_changed: OnChanged) -> PendingWork:
        """The work of a further pass; with "run", that of errors too."""
        return PendingWork(
            self.plan.cells,
            self.plan.options.epochs,
            earlier=entries,
            read_result=self.folder.read_at,
            on_kept=lambda verdict: None,
            scoring_part=self.plan.scoring_part,
            versions=self.worker.versions,
            retry_errors=on_changed == "run",
            on_changed=on_changed,
        )

    async def _read(self, work: AsyncGenerator[Sequence[WorkItem]]) -> Sequence[WorkItem] | None:
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

    async def _read_live(
        self, work: AsyncGenerator[Sequence[WorkItem]]
    ) -> Sequence[WorkItem] | None:
        """The next work of rows that may take long to arrive; None if the session ends first."""
        if self._reads_since is None:
            self._reads_since = asyncio.get_running_loop().time()
        found = None
        wait = asyncio.timeout_at(self._reads_until())
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
        max_time = self.steering.limits.max_time
        if max_time is not None:
            self.stop.ask("budget", f"the batch has used its {max_time:g} s")
        return None

    def _reads_until(self) -> float | None:
        """The time of the loop when no further row is waited for; None without a limit."""
        since = self._reads_since
        max_time = self.steering.limits.max_time
        return None if since is None or max_time is None else since + max_time

    def _poll(self) -> None:
        """Carries out the commands of other processes, which look for results on the disk."""
        self._write_soon()
        self.steering.poll()
        wait = self._wait
        until = self._reads_until()
        is_open = wait is not None and self.stop.state is None and not wait.expired()
        if wait is not None and is_open and wait.when() != until:
            wait.reschedule(until)

    def _end_wait(self) -> None:
        if self._wait is not None and not self._wait.expired():
            self._wait.reschedule(asyncio.get_running_loop().time())

    def _finish(self, done: Done) -> None:
        works = [done.work] if isinstance(done, WorkResult) else done.works
        self.limiter.end_samples(len(works))
        self._taken -= len(works)
        if not self._taken:
            self._is_idle.set()
        if self._write_error is not None:
            raise self._write_error
        if isinstance(done, WorkResult) and done.result is None:
            self._leave_pending(done)
            return
        replaced = bool(self.steering.retrying) and self._take_back_replaced(works)
        self._store(done)
        if replaced:
            self._write_results()
        self.steering.end(works, have_results=True)
        self._stop_on_repetition(done)

    def _leave_pending(self, done: WorkResult) -> None:
        """A sample has ended without a result."""
        if done.parked is None:
            self.steering.end([done.work])
            # Without a call that the limiter rejected, it is this machine that could not do the
            # work.
            self.stop.ask("incomplete" if self.limiter.refused is None else "budget", done.pending)
            return
        # A call that waits is paid: its sample counts as in flight.
        if self.waves is not None and self.waves.waits_for(done.work.identity.value):
            self.steering.wait(done.work)
        else:
            self.steering.end([done.work])
        self.worker.unrecorded.update(done.parked)
        self._parked.add(done.work.identity.key)

    def _take_back_replaced(self, works: Sequence[WorkItem]) -> bool:
        """Counts no more the results that those of `works` replace. Returns: whether there are
        any.
        """
        retrying = self.steering.retrying
        found = [entry for work in works if (entry := retrying.get(work.identity.key)) is not None]
        for entry in found:
            self.results.tally.replace(self.folder.read_at(entry.offset))
        return bool(found)

    def _store(self, done: Done) -> None:
        """Writes results with the others of this turn of the event loop."""
        if not self.results:
            asyncio.get_running_loop().call_soon(self._write_soon)
        self.results.add(done)
        # At once: a display that asks to stop does so before the next sample starts.
        if self.display.shows_results:
            for result in results_of(done):
                self.display.show("result", result)

    def _write_soon(self) -> None:
        """Writes the results of this turn of the event loop. Nothing new starts after an error,
        which the next result raises.
        """
        try:
            if self._write_error is None:
                self.results.write()
        except Exception as error:
            self._write_error = error
            self.stop.ask("incomplete", str(error))

    def _write_results(self) -> None:
        """Raises: RecordError, if results cannot be written."""
        if self._write_error is not None:
            raise self._write_error
        self.results.write()

    def _stop_on_repetition(self, done: Done) -> None:
        """Ends the session if the same error keeps coming: then the samples are not the cause."""
        if isinstance(done, ResultLines) and not done.has_errors:
            self._repeated = ("", 0)
            return
        limit = self.steering.limits.stop_after
        for result in results_of(done):
            if result.verdict is not Verdict.ERROR:
                self._repeated = ("", 0)
                continue
            kind = kind_of_error(result)
            self._repeated = (kind, self._repeated[1] + 1 if kind == self._repeated[0] else 1)
            if limit and self._repeated[1] >= limit:
                samples = amount(self._repeated[1], "sample")
                self.stop.ask("repeated error", f"{samples} in a row ended with: {kind}")

    async def _count_rest(
        self, work: AsyncGenerator[Sequence[WorkItem]], pending: PendingWork
    ) -> int | None:
        """The number of samples, if the rest of the rows can be read without evaluating them."""
        if self.looks is not None:
            # Results of rows that were not read would seem to belong to no row.
            if self._error is None:
                async for _ in work:
                    pass
            return self.looks.total
        counts = pending.counts
        if pending.is_counted or self.stop.state is None or self._has_read_all:
            return counts.samples
        if self._error is not None or self.plan.rows.is_live or not self.plan.rows.is_repeatable:
            return None
        async for _ in work:
            pass
        return counts.samples

    def _state(self, total: int | None) -> State:
        if total is not None and self.results.tally.done >= total:
            return "complete"
        if self._is_waiting and self.stop.state in (None, "budget"):
            return "waiting"
        return self.stop.state or "incomplete"

    async def _tick(self, snapshot: Snapshot) -> None:
        for tick in count():
            if tick:
                snapshot = self._snapshot()
                self.display.show("progress", snapshot)
            if tick % CONTROL_TICKS == 0:
                self._poll()
            if tick % PROGRESS_TICKS == 0:
                self.folder.write_progress(self._progress(snapshot))
            await clock.sleep(TICK_S)

    def _progress(self, snapshot: Snapshot) -> Mapping[str, Any]:
        """What another process may show of this session."""
        return {
            "at": clock.wall(),
            "owner": owner_text(current_owner()),
            "stop": self.stop.reason,
            "limits": limits_to_dict(self.steering.limits),
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
        silent = ()
        if isinstance(self.engine, WatchedEngine):
            silent = tuple(self.engine.silent())
        return self.results.tally.snapshot(self.engine.in_flight(), tuple(endpoints), silent=silent)


def interrupted_state(error: BaseException) -> tuple[State, str]:
    """The state and the reason of a session that `error` ended."""
    if isinstance(error, asyncio.CancelledError | KeyboardInterrupt):
        return "stopped", "interrupted: calls in flight were cancelled"
    return "incomplete", f"{type(error).__name__}: {error}".removesuffix(": ")


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
