"""The engine of a cluster: evaluates samples on all nodes of Ray, with one limiter and one budget.

This process reads rows, hands out samples, applies rate limits and the budget, and writes the
results; the nodes evaluate and judge.
"""

from __future__ import annotations

from collections.abc import Iterable

from evaluator.batch.engines.base import IsStopping, NextWork, OnDone
from evaluator.batch.engines.pool_engine import PoolEngine
from evaluator.batch.engines.ray_cluster import connect, import_ray
from evaluator.batch.engines.recipe import make_recipe
from evaluator.batch.work import Worker


class RayEngine(PoolEngine):
    """Evaluates `concurrency` samples at once, on all nodes together.

    `address`: a running cluster's; without it the one that this process is connected to or
    `RAY_ADDRESS` names, else a new one on this machine, which ends with the batch. `processes` per
    node, at most and by default one for each of its CPUs; each runs one event loop. `variables` and
    `gather`: see `PoolEngine`.

    Raises: UsageError, for numbers below 1.
    """

    name = "ray"

    def __init__(
        self,
        concurrency: int,
        *,
        address: str | None = None,
        processes: int | None = None,
        variables: Iterable[str] = (),
        gather: bool = False,
    ) -> None:
        super().__init__(concurrency, processes, variables, gather)
        self._address = address

    async def run(
        self, worker: Worker, next_work: NextWork, on_done: OnDone, is_stopping: IsStopping
    ) -> None:
        """See `Engine`.

        Raises: MissingExtra, without Ray; UsageError, for objects that cannot be sent to the nodes;
        ConfigurationError, for a cluster or a node that cannot be used; ClusterLost, if no node is
        left.
        """
        import_ray()
        made = make_recipe(worker, self._variables)
        async with connect(self._address, is_stopping) as cluster:
            if cluster is None:
                return
            await self._run_pool(
                worker,
                made,
                cluster.start,
                lambda: cluster.nodes(self._processes),
                next_work,
                on_done,
                is_stopping,
                cluster.watch,
            )
