"""The engine of several processes on this machine, for scorers that compute.

This process reads rows, hands out samples, applies rate limits and the budget, and writes the
results; the workers evaluate and judge.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable

from evaluator.batch.engines.base import IsStopping, NextWork, OnDone
from evaluator.batch.engines.pool import Node
from evaluator.batch.engines.pool_engine import PoolEngine
from evaluator.batch.engines.process_host import ProcessHost
from evaluator.batch.engines.recipe import make_recipe
from evaluator.batch.work import Worker


class ProcessEngine(PoolEngine):
    """Evaluates `concurrency` samples at once in `processes` worker processes together; default:
    one for each CPU that this process may use. `variables` and `gather`: see `PoolEngine`.

    Raises: UsageError, for numbers below 1.
    """

    name = "processes"

    def __init__(
        self,
        concurrency: int,
        processes: int | None = None,
        *,
        variables: Iterable[str] = (),
        gather: bool = False,
    ) -> None:
        super().__init__(concurrency, processes, variables, gather)
        self._hosts: list[ProcessHost] = []

    def start(self, node: Node) -> ProcessHost:
        """Starts a worker process; returns at once."""
        host = ProcessHost()
        self._hosts.append(host)
        return host

    async def run(
        self, worker: Worker, next_work: NextWork, on_done: OnDone, is_stopping: IsStopping
    ) -> None:
        """See `Engine`.

        Raises: UsageError, for objects that cannot be sent to a process; ClusterLost, if no process
        is left.
        """
        made = make_recipe(worker, self._variables)
        processes = min(self._processes or _usable_cpus(), self._concurrency)
        try:
            await self._run_pool(
                worker,
                made,
                self.start,
                lambda: [Node("here", "this machine", processes=processes)],
                next_work,
                on_done,
                is_stopping,
            )
        finally:
            hosts = self._hosts
            self._hosts = []
            await asyncio.gather(*(host.finish() for host in hosts))


def _usable_cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
