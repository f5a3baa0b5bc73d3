"""The engine of a cluster: samples on all nodes that Ray has, paced and paid from one place.

This process reads rows, hands samples out, keeps the pace and the budget and writes the results; the nodes evaluate
and judge. A process of a node gets a sample as soon as it may begin, with all others that may at that moment.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from contextlib import ExitStack

from evaluator.batch.engines.base import NextWork
from evaluator.batch.engines.local import SideBySide
from evaluator.batch.engines.pool import Pool
from evaluator.batch.engines.ray_cluster import connected, import_ray
from evaluator.batch.engines.recipe import make_recipe
from evaluator.batch.engines.taskfiles import HeldProbe
from evaluator.batch.work import Done, Work, Worker
from evaluator.errors import UsageError


class RayEngine:
    """`concurrency` samples at once, over all nodes together.

    `address`: a running cluster's; without it the one that this process is connected to or `RAY_ADDRESS` names, else
    one that is started on this machine and ended with the batch. `processes` of a node, at most one for each of its
    CPUs and as many by default; each runs one event loop. `variables`: what of this process's environment the nodes
    get besides keys, tokens and the addresses of models. `gather`: task files are written on the nodes and brought
    here with the results, also where a node sees the batch's folder.

    Raises: UsageError, for numbers below 1.
    """

    def __init__(
        self, concurrency: int, *, address: str | None = None, processes: int | None = None,
        variables: Iterable[str] = (), gather: bool = False,
    ) -> None:  # fmt: skip
        for name, value in (("concurrency", concurrency), ("processes", processes)):
            if value is not None and (type(value) is not int or value < 1):
                raise UsageError(f"{name} is {value!r}, expected an integer, 1 or more")
        self._concurrency = concurrency
        self._address = address
        self._processes = processes
        self._variables = tuple(variables)
        self._gather = gather
        self._side = SideBySide(concurrency)

    @property
    def name(self) -> str:
        return "ray"

    def in_flight(self) -> int:
        return self._side.in_flight

    async def run(
        self, worker: Worker, next_work: NextWork, on_done: Callable[[Done], None], is_stopping: Callable[[], bool]
    ) -> None:
        """See `Engine`.

        Raises: MissingExtra, without Ray; UsageError, for what cannot be taken to the nodes; ConfigurationError, for
        a cluster or a node that cannot be used; ClusterLost, where no node is left.
        """
        import_ray()
        recipe = make_recipe(worker, self._variables)
        async with connected(self._address) as cluster:
            with ExitStack() as stack:
                store = worker.evaluator.services.store
                assert store is not None
                probe = None if self._gather else stack.enter_context(HeldProbe(store.root))
                pool = Pool(worker, cluster, pickle.dumps(recipe), recipe, self._concurrency, probe)
                async with pool:
                    pool.start(cluster.nodes(self._processes))

                    async def perform(work: Work) -> Done:
                        await worker.turns.start_sample()
                        try:
                            if is_stopping():
                                return Done(work, None, "asked to stop")
                            return await pool.perform(work, is_stopping)
                        finally:
                            worker.turns.end_sample()

                    await self._side.run(perform, next_work, on_done)
