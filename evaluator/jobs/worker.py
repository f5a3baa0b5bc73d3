"""Works on a queue in one process: several entries at once, each under a lease that is renewed
while it runs.

A worker that is cancelled releases its entries. A worker whose lease is lost stops the attempt and
changes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import field

from evaluator import clock
from evaluator.jobs.attempt_runs import CannotResume
from evaluator.jobs.dispatch import AttemptAborted, AttemptEnd, Dispatcher, released
from evaluator.jobs.entries import EntryStatus, QueueEntry, timestamp
from evaluator.jobs.queue_store import Claim, QueueStore
from evaluator.lazy_dataclass import dataclass
from evaluator.processes.concurrency import run_together
from evaluator.store import leases

LEASE_S = 60.0
_POLL_S = 0.3


@dataclass(slots=True)
class WorkSummary:
    """What a worker did: the attempts that ended, by the state that followed; `lost` ended under
    another worker's lease.
    """

    ended: dict[EntryStatus, int] = field(default_factory=dict[EntryStatus, int])
    lost: int = 0

    def count(self, entry: QueueEntry | None) -> None:
        """Counts the end of an attempt."""
        if entry is None:
            self.lost += 1
        else:
            self.ended[entry.status] = self.ended.get(entry.status, 0) + 1


class QueueWorker:
    """Runs entries of a store. `on_start` and `on_end` get each entry when an attempt begins and
    when it has ended; `before_claim` is called before each look for work.
    """

    def __init__(
        self,
        store: QueueStore,
        dispatcher: Dispatcher,
        before_claim: Callable[[], None] = lambda: None,
        *,
        on_start: Callable[[QueueEntry], None] = lambda entry: None,
        on_end: Callable[[QueueEntry], None] = lambda entry: None,
        lease_s: float = LEASE_S,
    ) -> None:
        self._store = store
        self._dispatcher = dispatcher
        self._before_claim = before_claim
        self._on_start = on_start
        self._on_end = on_end
        self._lease_s = lease_s
        self._has_ended = asyncio.Event()
        self.summary = WorkSummary()

    async def run(self, workers: int, *, until_empty: bool) -> WorkSummary:
        """Works with `workers` entries at once, until it is cancelled.

        `until_empty`: until no entry runs and none could: those left wait for a time, for the user,
        or for an entry that is not done.

        Raises: EvaluatorError, if an attempt cannot run because of the configuration or the
        machine.
        """
        await run_together(*(self._serve(until_empty) for _ in range(workers)))
        return self.summary

    async def _serve(self, until_empty: bool) -> None:
        while True:
            self._before_claim()
            claim = self._store.claim(self._lease_s)
            if claim is not None:
                self._on_start(claim.entry)
                await self._work_on(claim)
            elif until_empty and self._store.is_idle():
                return
            else:
                # Until an entry of this process ends, or for a moment, because other processes
                # change the queue too.
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._has_ended.wait(), _POLL_S)
                self._has_ended.clear()

    async def _work_on(self, claim: Claim) -> None:
        """Runs an attempt of the entry. In place of one that cannot be resumed, a new one begins at
        once.
        """
        while True:
            try:
                return self._count(await self._attempt(claim))
            except CannotResume as error:
                following = self._store.give_up_attempt(claim, str(error))
                if following is None:
                    return self._count(None)
                claim = following

    async def _attempt(self, claim: Claim) -> QueueEntry | None:
        """The entry after an attempt; None if the lease is lost. Raises: CannotResume."""
        strategy = self._dispatcher.choose(claim)
        try:
            if strategy is not None:
                begun = self._store.begin_attempt(claim, strategy, *self._dispatcher.task_files())
                if begun is None:
                    return None
                claim = begun
            return await self._run(claim, strategy)
        except CannotResume:
            raise
        except BaseException as error:
            self._store.end(claim, released(claim, strategy, now=timestamp(clock.wall())))
            if isinstance(error, AttemptAborted):
                raise error.reason from error
            raise

    async def _run(self, claim: Claim, strategy: str | None) -> QueueEntry | None:
        """Runs the attempt while its lease is renewed; None if the lease is lost."""
        attempt = asyncio.create_task(self._dispatcher.attempt(claim, strategy))
        beat = asyncio.create_task(self._keep_lease(claim, attempt))
        try:
            end = await attempt
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if beat.done() and not (task and task.cancelling()):
                return None  # `beat` cancelled the attempt, because the lease is lost
            raise
        finally:
            beat.cancel()
        return self._store.end(claim, end.change, tried=end.tried)

    async def _keep_lease(self, claim: Claim, attempt: asyncio.Task[AttemptEnd]) -> None:
        while True:
            await clock.sleep(self._lease_s / leases.BEATS)
            if not self._store.extend(claim, self._lease_s):
                attempt.cancel()
                return

    def _count(self, entry: QueueEntry | None) -> None:
        self.summary.count(entry)
        self._has_ended.set()
        if entry is not None:
            self._on_end(entry)
