"""Ray as the pool needs it: connects to a cluster or starts one, lists its nodes, and starts one actor per process.

A running cluster is left running; one that was started here ends with the context. Ray's telemetry is off in everything
that is started here, and its log stays in its files.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Awaitable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from importlib import import_module
from typing import Any

from evaluator.batch.engines.host import Host, Opened
from evaluator.batch.engines.link import Lost
from evaluator.batch.engines.pool import Node
from evaluator.batch.engines.taskfiles import Probe
from evaluator.errors import ConfigurationError, EvaluatorError, MissingExtra

_TELEMETRY = "RAY_USAGE_STATS_ENABLED"
# Concurrent calls of one actor: one to listen, one to post, one to close.
_METHODS_AT_ONCE = 4


class RayCluster:
    """The nodes of the cluster that this process is connected to."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray

    def nodes(self, processes: int | None) -> list[Node]:
        """The living nodes, each with one process for each CPU that Ray counts there, or `processes`."""
        found: list[Node] = []
        for node in self._ray.nodes():
            cpus = int(node["Resources"].get("CPU", 0)) if node["Alive"] else 0
            if cpus:
                wanted = cpus if processes is None else min(cpus, processes)
                found.append(Node(node["NodeID"], node["NodeManagerHostname"], wanted))
        return found

    def start(self, node: Node) -> RayHost:
        """A new Host on `node`; returns at once."""
        return RayHost(self._ray, node)


class RayHost:
    """A Host in an actor: a Remote."""

    def __init__(self, ray: Any, node: Node) -> None:
        self._ray = ray
        strategies = import_module("ray.util.scheduling_strategies")
        options = {
            "num_cpus": 1, "max_restarts": 0, "max_task_retries": 0, "max_concurrency": _METHODS_AT_ONCE,
            "scheduling_strategy": strategies.NodeAffinitySchedulingStrategy(node.id, soft=False),
        }  # fmt: skip
        self._actor = ray.remote(Host).options(**options).remote()

    async def versions(self) -> str:
        return await self._await(self._actor.versions.remote())

    async def open(self, recipe: bytes, probe: Probe | None, first_id: int) -> Opened | EvaluatorError:
        return await self._await(self._actor.open.remote(recipe, probe, first_id))

    async def post(self, messages: Sequence[bytes]) -> None:
        await self._await(self._actor.post.remote(messages))

    async def listen(self) -> list[bytes]:
        return await self._await(self._actor.listen.remote())

    async def close(self) -> None:
        await self._await(self._actor.close.remote())

    def kill(self) -> None:
        try:
            self._ray.kill(self._actor)
        except Exception as error:
            # The actor or the cluster is gone already.
            logging.getLogger("evaluator").debug("an actor could not be ended: %s", error)

    async def _await(self, reference: Awaitable[Any]) -> Any:
        try:
            return await reference
        except self._ray.exceptions.RayTaskError as error:
            raise EvaluatorError(f"a process of the cluster failed: {error}") from error
        except self._ray.exceptions.RayError as error:
            raise Lost(_first_lines(error)) from error


def _first_lines(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines)[:600]


def import_ray() -> Any:
    """The package. Raises: MissingExtra, if it is not installed."""
    try:
        return import_module("ray")
    except ImportError as error:
        raise MissingExtra("ray", "ray") from error


@asynccontextmanager
async def connect(address: str | None) -> AsyncGenerator[RayCluster]:
    """The cluster at `address`, else the one that this process is connected to or `RAY_ADDRESS` names, else a new one
    on this machine, which ends with the context.

    Raises: MissingExtra, without Ray; ConfigurationError, if it cannot be reached.
    """
    with _without_telemetry():
        ray = import_ray()
        was_connected = ray.is_initialized()
        if not was_connected:
            await _connect(ray, address or os.environ.get("RAY_ADDRESS") or "local")
    try:
        yield RayCluster(ray)
    finally:
        if not was_connected:
            await _uninterrupted(asyncio.to_thread(ray.shutdown))


async def _connect(ray: Any, address: str) -> None:
    options: dict[str, Any] = {"include_dashboard": False} if address == "local" else {}

    def init() -> None:
        with _quiet():
            ray.init(address=address, log_to_driver=False, configure_logging=False, **options)
        _mute()

    try:
        await _uninterrupted(asyncio.to_thread(init))
    except asyncio.CancelledError:
        await _uninterrupted(asyncio.to_thread(ray.shutdown))
        raise
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigurationError(f"the Ray cluster at {address!r} cannot be reached: {error}") from error


async def _uninterrupted(work: Awaitable[Any]) -> None:
    """Completes `work` even if the caller is cancelled; cancellation is raised afterwards."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.gather(task, return_exceptions=True)
        raise


@contextmanager
def _without_telemetry() -> Generator[None]:
    before = os.environ.get(_TELEMETRY)
    os.environ[_TELEMETRY] = "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_TELEMETRY]
        else:
            os.environ[_TELEMETRY] = before


@contextmanager
def _quiet() -> Generator[None]:
    log = logging.getLogger("ray")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def _mute() -> None:
    """Stops Ray from printing about lost processes on standard output, which no option does; the pool reports them."""
    worker: Any = import_module("ray._private.worker")
    if hasattr(worker, "print_to_stdstream"):
        worker.print_to_stdstream = _nothing


def _nothing(*_: Any, **__: Any) -> None:
    pass
