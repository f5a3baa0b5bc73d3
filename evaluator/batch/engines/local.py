"""The engine of one machine: one process, one event loop."""

from __future__ import annotations

from evaluator.batch.engines.base import ConcurrentRun, IsStopping, NextWork, OnDone
from evaluator.batch.work import Worker


class LocalEngine:
    """Evaluates `concurrency` samples at once in this process. The limiter bounds the calls to each endpoint."""

    name = "local"

    def __init__(self, concurrency: int) -> None:
        self._run = ConcurrentRun(concurrency)

    def in_flight(self) -> int:
        return self._run.in_flight

    async def run(self, worker: Worker, next_work: NextWork, on_done: OnDone, is_stopping: IsStopping) -> None:
        """See `Engine`. Work starts when it is taken, so that `is_stopping` has no effect."""
        await self._run.run(worker.perform, next_work, on_done)
