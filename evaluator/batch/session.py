"""One session of a batch: what is left is evaluated, written down as it comes, and summed up.

A session ends when nothing is left, or before: it was asked to stop (what is in flight is finished), the budget is
spent, or the same error came too often in a row. Whatever ended it, a later session does what is left and nothing
else. A killed one leaves its task files: the samples that were in flight go on from there.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from evaluator.batch.engines import Engine
from evaluator.batch.folder import BatchFolder, Entry
from evaluator.batch.pending import Counts, OnChanged, Pending
from evaluator.batch.plan import BatchPlan
from evaluator.batch.progress import TICK_S, Display, Endpoint, Snapshot, Tally
from evaluator.batch.records import SampleResult, Verdict
from evaluator.batch.work import SAMPLE_LABEL, Done, Work, Worker
from evaluator.record.steps import Scrub
from evaluator.record.store import TaskStore

State = Literal["complete", "incomplete", "stopped", "budget", "repeated error"]
_NUMBERS = re.compile(r"[0-9]+(?:\.[0-9]+)?|0x[0-9a-f]+")


@dataclass(slots=True)
class Stop:
    """Asks a session to end: nothing new is begun, what is in flight is finished. `reason` is shown."""

    state: State | None = None
    reason: str = ""

    def ask(self, state: State = "stopped", reason: str = "asked to stop") -> None:
        if self.state is None:
            self.state, self.reason = state, reason


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

    async def run(self, earlier: dict[str, Entry]) -> Ended:
        """Evaluates what `earlier` lacks. A row that cannot be read ends the session: it is the `error` of what is
        returned, after what was in flight is finished.

        Raises: RecordError, if a result cannot be written.
        """
        pending = Pending(
            self.plan.cells, self.plan.epochs, earlier, self.folder.read_at, self.tally.kept,
            self.plan.scorers_part, self.retry_errors, self.on_changed,
        )  # fmt: skip
        self.tally.total = self.plan.total
        work = pending.work(aiter(self.plan.rows))
        self.display.begun(self.plan.name, self._snapshot())
        # What is there before the first sample stays: the search for garbage need not look at it again and again.
        gc.freeze()
        ticker = asyncio.ensure_future(self._tick())
        try:
            await self.engine.run(
                self.worker, lambda: self._next(work), self._done, lambda: self.stop.state is not None
            )
            total = self.tally.total = await self._count_the_rest(work, pending.counts)
        finally:
            gc.unfreeze()
            ticker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await ticker
            await work.aclose()
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
            return await anext(work, None)
        except Exception as error:
            # What is in flight is paid for: it is finished first.
            self._error = error
            self.stop.ask("incomplete", str(error))
            return None

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
        if self._error is not None or not self.plan.rows.is_repeatable:
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
