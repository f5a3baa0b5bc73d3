"""The engine of a cluster: evaluates samples on all nodes of Ray, with one limiter and one budget.

This process reads rows, hands out samples, applies rate limits and the budget, and writes the results; the nodes
evaluate and judge.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack

from evaluator.batch.engines.base import ConcurrentRun, IsStopping, NextWork, OnDone
from evaluator.batch.engines.pool import Pool
from evaluator.batch.engines.ray_cluster import connect, import_ray
from evaluator.batch.engines.recipe import make_recipe
from evaluator.batch.engines.taskfiles import make_probe
from evaluator.batch.work import Worker
from evaluator.errors import UsageError


class RayEngine:
    """Evaluates `concurrency` samples at once, on all nodes together.

    `address`: a running cluster's; without it the one that this process is connected to or `RAY_ADDRESS` names, else a
    new one on this machine, which ends with the batch. `processes` per node, at most and by default one for each of its
    CPUs; each runs one event loop. `variables`: environment variables that the nodes get besides keys, tokens and the
    addresses of models. `gather`: nodes write task files into folders of their own and send them with the results, even
    if they see the batch's folder.

    Raises: UsageError, for numbers below 1.
    """

    name = "ray"

    def __init__(
        self, concurrency: int, *, address: str | None = None, processes: int | None = None,
        variables: Iterable[str] = (), gather: bool = False,
    ) -> None:  # fmt: skip
        for name, value in (("concurrency", concurrency), ("processes", processes)):
            if value is not None and (type(value) is not int or value < 1):
                raise UsageError(f"{name} is {value!r}, expected an integer, at least 1")
        self._concurrency = concurrency
        self._address = address
        self._processes = processes
        self._variables = tuple(variables)
        self._gather = gather
        self._run = ConcurrentRun(concurrency)

    def in_flight(self) -> int:
        return self._run.in_flight

    async def run(self, worker: Worker, next_work: NextWork, on_done: OnDone, is_stopping: IsStopping) -> None:
        """See `Engine`.

        Raises: MissingExtra, without Ray; UsageError, for objects that cannot be sent to the nodes; ConfigurationError,
        for a cluster or a node that cannot be used; ClusterLost, if no node is left.
        """
        import_ray()
        recipe, store = make_recipe(worker, self._variables)
        async with connect(self._address) as cluster:
            with ExitStack() as stack:
                probe = None if self._gather else stack.enter_context(make_probe(store.root))
                async with Pool(worker, cluster.start, recipe, store, self._concurrency, probe) as pool:
                    pool.start(cluster.nodes(self._processes))
                    await self._run.run(lambda work: pool.perform(work, is_stopping), next_work, on_done)
