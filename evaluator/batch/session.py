"""One session of a batch: what is left is evaluated, written down as it comes, and summed up.

A session ends when nothing is left, or before: it was asked to stop (what is in flight is finished), the budget is
spent, or the same error came too often in a row; the first two also while it waits for the next row of an asynchronous
iterator. Whatever ended it, a later session does what is left and nothing else. One that was cancelled or killed
leaves its task files: the samples that were in flight go on from there.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from evaluator.batch.engines import Engine
from evaluator.batch.folder import BatchFolder, Entry
from evaluator.batch.garbage import rarely_searched
from evaluator.batch.pending import Counts, OnChanged, Pending
from evaluator.batch.plan import BatchPlan
from evaluator.batch.progress import TICK_S, Display, Endpoint, Snapshot, Tally
from evaluator.batch.records import SampleResult, Verdict
from evaluator.batch.work import SAMPLE_LABEL, Done, Work, Worker
from evaluator.errors import UsageError
from evaluator.record.steps import Scrub
from evaluator.record.store import TaskStore

State = Literal["complete", "incomplete", "stopped", "budget", "repeated error"]
_NUMBERS = re.compile(r"[0-9]+(?:\.[0-9]+)?|0x[0-9a-f]+")


@dataclass(slots=True)
class Stop:
    """Asks a session to end: nothing new is begun, what is in flight is finished. `reason` is shown.

    `ask` may be called from any thread, and from a signal's handler; the first call counts.
    """

    state: State | None = None
    reason: str = ""
    _listeners: list[Callable[[], object]] = field(
        default_factory=list[Callable[[], object]], init=False, repr=False, compare=False
    )

    def ask(self, state: State = "stopped", reason: str = "asked to stop") -> None:
        if self.state is None:
            self.reason, self.state = reason, state
            for listener in tuple(self._listeners):
                listener()

    @contextlib.contextmanager
    def told_to(self, listener: Callable[[], object]) -> Generator[None]:
        """Within it, `listener` is called when the session is asked to end, in the thread that asks."""
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a session ended. `ran` results were added; `total` samples are asked for (None: nobody knows, since the
    rows were not read to their end). `stale` are the keys of results that answer another question, `orphans` those
    of results that no row asks for. `error` is why the rows could not be read on."""

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
    """Runs once. `endpoints` says how the calls stand, for a display."""

    plan: BatchPlan
    folder: BatchFolder
    engine: Engine
    worker: Worker
    display: Display
    stop: Stop
    retry_errors: bool = False
    on_changed: OnChanged = "leave"
    scrub: Scrub | None = None
    endpoints: Callable[[], tuple[Endpoint, ...]] = tuple
    tally: Tally = field(default_factory=Tally)
    _same: tuple[str, int] = ("", 0)
    _error: Exception | None = None
    _ends_at: float | None = None
    _wait: asyncio.Timeout | None = None

    async def run(self, earlier: dict[str, Entry]) -> Ended:
        """Evaluates what `earlier` lacks. A row that cannot be read ends the session: it is the `error` of what is
        returned, after what was in flight is finished.

        Cancelling it cancels what is in flight. Raises: RecordError, if a result cannot be written.
        """
        pending = Pending(
            self.plan.cells, self.plan.epochs, earlier, self.folder.read_at, self.tally.kept,
            self.plan.scorers_part, self.retry_errors, self.on_changed, self.folder.manifest().get("settings", {}),
        )  # fmt: skip
        self.tally.total = self.plan.total
        rows = aiter(self.plan.rows)
        work = pending.work(rows)
        self.display.begun(self.plan.name, self._snapshot())
        ticker = asyncio.ensure_future(self._tick())
        try:
            told = self.stop.told_to(partial(_call_in, asyncio.get_running_loop(), self._end_wait))
            with told, rarely_searched():
                await self.engine.run(
                    self.worker, lambda: self._next(work), self._done, lambda: self.stop.state is not None
                )
            total = self.tally.total = await self._count_the_rest(work, pending.counts)
        except BaseException as error:
            self.display.ended(self._snapshot(), broken_off(error)[0])
            raise
        finally:
            ticker.cancel()
            await asyncio.wait([ticker])
            await work.aclose()
            await rows.aclose()
        state, snapshot = self._state(total), self._snapshot()
        self.display.ended(snapshot, state)
        return Ended(
            state, self.stop.reason, self.tally.ran, total, pending.counts, snapshot,
            frozenset(pending.stale), frozenset(earlier), self._error,
        )  # fmt: skip

    async def _next(self, work: AsyncGenerator[Work]) -> Work | None:
        if self.stop.state is not None:
            return None
        try:
            return await (self._next_of_live(work) if self.plan.rows.is_live else anext(work, None))
        except asyncio.CancelledError as error:
            if _is_cancelled():
                raise
            self._error = UsageError("the rows ended with CancelledError; nobody had cancelled the batch")
            self._error.__cause__ = error
        except Exception as error:
            self._error = error
        # What is in flight is paid for: it is finished first.
        self.stop.ask("incomplete", str(self._error))
        return None

    async def _next_of_live(self, work: AsyncGenerator[Work]) -> Work | None:
        """The next of rows that may be long in coming; nothing, where the session is to end before."""
        max_time = self.plan.limits.max_time
        if self._ends_at is None and max_time is not None:
            self._ends_at = asyncio.get_running_loop().time() + max_time
        found, wait = None, asyncio.timeout_at(self._ends_at)
        self._wait = wait
        try:
            async with wait:
                found = await anext(work, None)
        except Exception:
            # What the iterator makes of the end of the wait is not an error of the rows.
            if not wait.expired():
                raise
        finally:
            self._wait = None
        if not wait.expired():
            return found
        # A row that was given in spite of it is not begun.
        if max_time is not None:
            self.stop.ask("budget", f"the batch has used its {max_time:g} s")
        return None

    def _end_wait(self) -> None:
        if self._wait is not None and not self._wait.expired():
            self._wait.reschedule(asyncio.get_running_loop().time())

    def _done(self, done: Done) -> None:
        if done.result is None:
            self.stop.ask("budget", done.pending)
            return
        self.folder.append(done.result, self.scrub)
        self.tally.add(done.result)
        self.display.result(done.result)
        self._look_for_repetition(done.result)

    def _look_for_repetition(self, result: SampleResult) -> None:
        """Ends the session where the same error comes again and again: what is wrong is not the samples."""
        if result.verdict is not Verdict.ERROR:
            self._same = ("", 0)
            return
        kind = kind_of_error(result)
        self._same = (kind, self._same[1] + 1 if kind == self._same[0] else 1)
        limit = self.plan.limits.stop_after
        if limit and self._same[1] >= limit:
            self.stop.ask("repeated error", f"{self._same[1]} samples in a row ended with: {kind}")

    async def _count_the_rest(self, work: AsyncGenerator[Work], counts: Counts) -> int | None:
        """How many samples there are, where the rest of the rows can be read without evaluating them."""
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
        while True:
            await asyncio.sleep(TICK_S)
            self.display.progress(self._snapshot())

    def _snapshot(self) -> Snapshot:
        return self.tally.snapshot(self.engine.in_flight(), self.endpoints())


def broken_off(error: BaseException) -> tuple[State, str]:
    """The state and the reason of a session that `error` ended."""
    if isinstance(error, asyncio.CancelledError | KeyboardInterrupt):
        return "stopped", "cut off: calls in flight were cancelled"
    return "incomplete", f"{type(error).__name__}: {error}"


def _call_in(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    """Has `loop` make the call, from any thread; one that has ended needs it no more."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(call)


def _is_cancelled() -> bool:
    """Whether somebody cancels the task that asks: what it awaits may raise CancelledError on its own."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def kind_of_error(result: SampleResult) -> str:
    """An error without its numbers, so that two of a kind are the same."""
    if result.failure is not None:
        return _NUMBERS.sub("#", f"{result.failure.kind}: {result.failure.message}")[:300]
    found = [f"{name}: {score.error}" for name, score in result.scores.items() if score.error]
    return _NUMBERS.sub("#", "; ".join(found))[:300]


def unrecorded_tasks(store: TaskStore, earlier: Mapping[str, Entry]) -> dict[str, int]:
    """Task files of samples, and of their judges, that no result speaks of: label → the newest task's id.

    Of a sample that ended with an error, those of a further try that was broken off.
    """
    recorded = {entry.identity.decode(): entry for entry in earlier.values()}
    found: dict[str, int] = {}
    for task in store.list():
        labels = None if task.header is None else task.header.extra.get("labels")
        label = labels.get(SAMPLE_LABEL) if isinstance(labels, Mapping) else None
        if not isinstance(label, str):
            continue
        identity, is_judge, rest = label.partition("/")
        entry = recorded.get(identity)
        if entry is None:
            is_spoken_of = False
        elif is_judge:
            is_spoken_of = entry.scored_by.decode() == rest.partition("/")[0]
        else:
            is_spoken_of = entry.verdict is not Verdict.ERROR or task.status == "failed"
        if not is_spoken_of:
            found[label] = max(task.id, found.get(label, 0))
    return found
