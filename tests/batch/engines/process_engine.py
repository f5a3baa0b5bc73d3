"""The shipped engine of processes, whose processes a test can kill."""

from __future__ import annotations

from typing import Any

from evaluator.batch.engines.base import HostLost
from evaluator.batch.engines.pool import Node
from evaluator.batch.engines.process_engine import ProcessEngine, ProcessHost


class KillableEngine(ProcessEngine):
    """`lose_one` sends SIGKILL to one process at work. `lose_all` does so to all of them, and no other starts after it,
    as when all nodes die."""

    def __init__(self, concurrency: int, **options: Any) -> None:
        super().__init__(concurrency, 2, **options)
        self._alive: list[ProcessHost] = []
        self._is_gone = False

    def start(self, node: Node) -> ProcessHost:
        if self._is_gone:
            return _NoHost()
        host = super().start(node)
        self._alive.append(host)
        return host

    def lose_one(self) -> None:
        self._alive.pop(0).kill()

    def pid(self, number: int) -> int:
        """The process that was started as the `number`th, from 0."""
        process = self._alive[number]._process
        assert process is not None
        return process.pid

    def lose_all(self) -> None:
        self._is_gone = True
        for host in self._alive:
            host.kill()


class _NoHost(ProcessHost):
    """A process that cannot be started."""

    def __init__(self) -> None:
        pass

    async def call(self, method: str, *arguments: Any) -> Any:
        raise HostLost("the node is gone")

    def kill(self) -> None:
        pass
