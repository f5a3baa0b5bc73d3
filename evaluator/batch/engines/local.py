"""The engine of one machine: one process, one event loop, so many samples side by side."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from evaluator.batch.engines.base import NextWork
from evaluator.batch.work import Done, Work, Worker


class LocalEngine:
    """`concurrency` samples at once. How many calls go to one endpoint at once is the gate's matter."""

    def __init__(self, concurrency: int) -> None:
        self._side = SideBySide(concurrency)

    @property
    def name(self) -> str:
        return "local"

    def in_flight(self) -> int:
        return self._side.in_flight

    async def run(
        self, worker: Worker, next_work: NextWork, on_done: Callable[[Done], None], is_stopping: Callable[[], bool]
    ) -> None:
        """See `Engine`."""
        await self._side.run(lambda work: worker.perform(work, is_stopping), next_work, on_done)


class SideBySide:
    """At most `concurrency` samples in flight: one is handed in before its place takes another."""

    __slots__ = ("_concurrency", "in_flight")

    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self.in_flight = 0

    async def run(
        self, perform: Callable[[Work], Awaitable[Done]], next_work: NextWork, on_done: Callable[[Done], None]
    ) -> None:
        """Returns when there is no more work and all is handed in. What any of the three raises is raised, after
        what is in flight was cancelled and has ended."""
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

        tasks = [asyncio.ensure_future(work_on()) for _ in range(self._concurrency)]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
