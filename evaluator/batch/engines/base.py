"""The Engine protocol, and the concurrent run that the shipped engines share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from evaluator import clock
from evaluator.batch.work import Worker, WorkItem, WorkResult
from evaluator.errors import EvaluatorError
from evaluator.processes.tasks import run_together

NextWork = Callable[[], Awaitable[WorkItem | None]]
OnDone = Callable[[WorkResult], None]
IsStopping = Callable[[], bool]


class ClusterLost(EvaluatorError):
    """No process is left to evaluate in. Finished samples are stored, and the batch can be
    resumed.
    """


class Engine(Protocol):
    """Takes work until there is none, has a Worker perform it, and hands in the results.

    `next_work` returns the next Work, as soon as it may start, or None at the end and from then on;
    it is never called twice at once. `on_done` is called once for each Work that was taken, in the
    caller's event loop, as soon as it is done, in any order; it does not block for long. Work that
    has not started yet when `is_stopping` becomes true is handed in as pending. An exception from
    either of them ends the run; `run` raises it after it has cancelled everything in flight.

    No work is lost: when a node or a process dies, another does its work again, and at most the
    work that was in flight there is repeated. If none is left, `run` raises ClusterLost. Cancelling
    `run` cancels everything in flight.
    """

    @property
    def name(self) -> str: ...

    async def run(
        self, worker: Worker, next_work: NextWork, on_done: OnDone, is_stopping: IsStopping
    ) -> None: ...

    def in_flight(self) -> int:
        """How many samples are being evaluated now."""
        ...


class ConcurrentRun:
    """Performs at most `concurrency` works at once. The result of each is handed in before the next
    one starts.
    """

    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self.in_flight = 0

    async def run(
        self,
        perform: Callable[[WorkItem], Awaitable[WorkResult]],
        next_work: NextWork,
        on_done: OnDone,
    ) -> None:
        """Returns when all work is handed in. Raises what any of the three raises, after everything
        in flight was cancelled and has ended.
        """
        one_at_a_time = asyncio.Lock()

        async def work_on() -> None:
            while True:
                async with one_at_a_time:
                    work = await next_work()
                if work is None:
                    return
                self.in_flight += 1
                try:
                    done = await perform(work)
                finally:
                    self.in_flight -= 1
                on_done(done)
                # A backend that never waits would keep a cancellation and the display from their
                # turn.
                await clock.sleep(0)

        await run_together(*(work_on() for _ in range(self._concurrency)))


class LocalEngine:
    """Evaluates `concurrency` samples at once in this process. The limiter bounds the calls to each
    endpoint.
    """

    name = "local"

    def __init__(self, concurrency: int) -> None:
        self._run = ConcurrentRun(concurrency)

    def in_flight(self) -> int:
        return self._run.in_flight

    async def run(
        self, worker: Worker, next_work: NextWork, on_done: OnDone, is_stopping: IsStopping
    ) -> None:
        """See `Engine`. Work starts when it is taken, so that `is_stopping` has no effect."""
        await self._run.run(worker.perform, next_work, on_done)
