"""Ray, as far as it is needed here: a cluster joined or started, its nodes, one actor a process.

A cluster that is there is left running; one that was started here ends with the context. Ray's own telemetry is
off in what is started here, and its log stays in its files.
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
# Calls of one actor that are under way at once: one to listen, one to post, one to close.
_METHODS_AT_ONCE = 4


class RayCluster:
    """The nodes of the cluster that this process is connected to."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray

    def nodes(self, processes: int | None) -> list[Node]:
        """Those that are alive, each with a process for every CPU that Ray counts there, or `processes`."""
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
        return await self._said(self._actor.versions.remote())

    async def open(self, recipe: bytes, probe: Probe | None, first_id: int) -> Opened | EvaluatorError:
        return await self._said(self._actor.open.remote(recipe, probe, first_id))

    async def post(self, messages: Sequence[bytes]) -> None:
        await self._said(self._actor.post.remote(messages))

    async def listen(self) -> list[bytes]:
        return await self._said(self._actor.listen.remote())

    async def close(self) -> None:
        await self._said(self._actor.close.remote())

    def kill(self) -> None:
        try:
            self._ray.kill(self._actor)
        except Exception as error:
            # It is gone already, or the cluster is.
            logging.getLogger("evaluator").debug("an actor could not be ended: %s", error)

    async def _said(self, reference: Awaitable[Any]) -> Any:
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
    """The package. Raises: MissingExtra, where it is not installed."""
    try:
        return import_module("ray")
    except ImportError as error:
        raise MissingExtra("ray", "ray") from error


@asynccontextmanager
async def connected(address: str | None) -> AsyncGenerator[RayCluster]:
    """The cluster at `address`, else the one that this process or `RAY_ADDRESS` names, else one on this machine, which
    ends with the context.

    Raises: MissingExtra, without Ray; ConfigurationError, if it cannot be reached.
    """
    with _telemetry_off():
        ray = import_ray()
        was_connected = ray.is_initialized()
        if not was_connected:
            await _connect(ray, address or os.environ.get("RAY_ADDRESS") or "local")
    try:
        yield RayCluster(ray)
    finally:
        if not was_connected:
            await _to_the_end(asyncio.to_thread(ray.shutdown))


async def _connect(ray: Any, address: str) -> None:
    options: dict[str, Any] = {"include_dashboard": False} if address == "local" else {}

    def connect() -> None:
        with _quiet():
            ray.init(address=address, log_to_driver=False, configure_logging=False, **options)
        _mute()

    try:
        await _to_the_end(asyncio.to_thread(connect))
    except asyncio.CancelledError:
        await _to_the_end(asyncio.to_thread(ray.shutdown))
        raise
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigurationError(f"the Ray cluster at {address!r} cannot be reached: {error}") from error


async def _to_the_end(work: Awaitable[Any]) -> None:
    """What cannot be cancelled half way: cancellation is raised after it."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.gather(task, return_exceptions=True)
        raise


@contextmanager
def _telemetry_off() -> Generator[None]:
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
    """Ray writes what happens to processes to standard output whatever it is told; a lost process is our own news."""
    worker: Any = import_module("ray._private.worker")
    if hasattr(worker, "print_to_stdstream"):
        worker.print_to_stdstream = _nothing


def _nothing(*_: Any, **__: Any) -> None:
    pass
