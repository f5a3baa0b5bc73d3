"""A command on a node of a Ray cluster, for background tasks: one actor, which ends with the
task.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from evaluator import this_process
from evaluator.background.nodes import NodeCommand, OpenNode, RemoteCommand
from evaluator.background.tasks import End
from evaluator.batch.engines.link import HostLost
from evaluator.batch.engines.pool import Node
from evaluator.batch.engines.ray_cluster import RayActor, RayCluster, connect, import_ray
from evaluator.errors import ConfigurationError
from evaluator.processes.supervisor import Command

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
