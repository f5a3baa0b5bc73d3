"""The engine of a Ray cluster, and single commands on its nodes.

This process reads rows, hands out samples, applies rate limits and the budget, and writes the
results; the nodes evaluate and judge.

A command on a node of a Ray cluster, for background tasks: one actor, which ends with the
task.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from evaluator import this_process
from evaluator.background.nodes import NodeCommand, OpenNode, RemoteCommand
from evaluator.background.tasks import End
from evaluator.batch.engines.base import HostLost, IsStopping, NextWork, OnDone
from evaluator.batch.engines.pool import Node
from evaluator.batch.engines.process_engine import PoolEngine
from evaluator.batch.engines.ray_cluster import RayActor, RayCluster, connect, import_ray
from evaluator.batch.engines.recipe import make_recipe
from evaluator.batch.work import Worker
from evaluator.errors import ConfigurationError
from evaluator.processes.supervisor import Command


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


ANY = "any"


def ray_node(name: str = ANY, *, address: str | None = None) -> OpenNode:
    """For `NodeWork`: a node of the cluster at `address` (as `connect`) by its name or id, or any
    with a free CPU, if possible not this machine.

    Raises: MissingExtra, without Ray.
    """
    import_ray()

    def open_node(
        is_killed: Callable[[], bool],
    ) -> AbstractAsyncContextManager[RemoteCommand | None]:
        return _open(name, address, is_killed=is_killed)

    return open_node


@asynccontextmanager
async def _open(
    name: str, address: str | None, is_killed: Callable[[], bool]
) -> AsyncGenerator[RemoteCommand | None]:
    async with connect(address, is_killed) as cluster:
        if cluster is None:
            yield None
            return
        actor = RayCommand(cluster, _choose(cluster.nodes(1), name))
        try:
            yield actor
        finally:
            actor.kill()


def _choose(nodes: list[Node], name: str) -> Node:
    here = this_process.host()
    fit = [node for node in nodes if name in (ANY, node.name, node.id)]
    if not fit:
        known = ", ".join(f"{node.name} ({node.id})" for node in nodes) or "none"
        raise ConfigurationError(
            f"the Ray cluster has no node {name!r} with a CPU; its nodes are: {known}"
        )
    return min(fit, key=lambda node: node.name == here)


class RayCommand(RayActor):
    """A NodeCommand in an actor: a RemoteCommand. It ends if the head of the cluster does not
    answer.
    """

    def __init__(self, cluster: RayCluster, node: Node) -> None:
        super().__init__(cluster, NodeCommand, node)
        self._lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._watching = asyncio.ensure_future(cluster.watch(self._lose))

    def _lose(self, why: str) -> None:
        if not self._lost.done():
            self._lost.set_result(why)

    async def run(self, command: Command) -> End:
        running = asyncio.ensure_future(self.call("run", command))
        try:
            await asyncio.wait([running, self._lost], return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                raise HostLost(self._lost.result())
            return running.result()
        finally:
            running.cancel()

    async def read(self, offset: int) -> bytes:
        if self._lost.done():
            raise HostLost(self._lost.result())
        return await self.call("read", offset)

    async def stop(self) -> None:
        await self.call("stop")

    def kill(self) -> None:
        self._watching.cancel()
        super().kill()
