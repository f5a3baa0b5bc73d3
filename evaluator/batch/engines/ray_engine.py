"""The engine of a Ray cluster, and single commands on its nodes.

This process reads rows, hands out samples, applies rate limits and the budget, and writes the
results; the nodes evaluate and judge. Each of their processes is an actor. A command on a node, for
background tasks, is an actor too, which ends with the task.

A running cluster is left running; one that was started here ends with the context. Ray's telemetry
is off in everything that is started here, and its log stays in its files.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Iterable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any

from evaluator import clock, this_process
from evaluator.batch.engines.base import HostLost, IsStopping, NextWork, OnDone
from evaluator.batch.engines.host import Host, make_recipe
from evaluator.batch.engines.pool import Node
from evaluator.batch.engines.process_engine import PoolEngine
from evaluator.batch.work import Worker
from evaluator.errors import ConfigurationError, EvaluatorError
from evaluator.errors.messages import LOGGER
from evaluator.files.project_code import import_extra, import_library
from evaluator.jobs.scripts import NodeCommand, OpenNode, RemoteCommand
from evaluator.processes.concurrency import in_thread

_TELEMETRY = "RAY_USAGE_STATS_ENABLED"
_EXCEPTION = re.compile(r"(?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit): ")
_MOST_LINES = 4
_ADDRESS = re.compile(r"(?:ray://)?\[?([^\[\]/]+?)\]?:([0-9]{1,5})")
_CONNECT_S = 120.0
_ANSWER_S = 5.0
_DISCONNECT_S = 20.0
_FRAME_HEAD = 9
_SETTINGS = 4
_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, _SETTINGS, 0, 0, 0, 0, 0))
# How often the head is asked, and how many times in a row it may stay silent.
_WATCH_S = 3.0
_WATCH_TIMES = 3
_LOOK_S = 0.2
# Concurrent calls of one actor: one to listen or run, one to post or read, one to close or stop.
_METHODS_AT_ONCE = 4


class RayCluster:
    """The nodes of the cluster that this process is connected to."""

    def __init__(self, ray: Any) -> None:
        self.ray = ray
        self.is_lost = False
        """Whether the head no longer answers."""

    async def watch(self, lose: Callable[[str], None]) -> None:
        """Calls `lose`, with the reason, when the head no longer answers. Ray waits for it for a
        minute and then ends this process without a message.
        """
        address = self.ray.get_runtime_context().gcs_address
        endpoint = endpoint_of(address)
        failed = 0
        while endpoint is not None and failed < _WATCH_TIMES:
            await clock.sleep(_WATCH_S)
            if await refusal_of(endpoint) is None:
                failed = 0
            else:
                failed = failed + 1
        if endpoint is not None:
            self.is_lost = True
            lose(f"the head of the Ray cluster at {address} does not answer")

    def nodes(self, processes: int | None) -> list[Node]:
        """The living nodes, each with one process for each CPU that Ray counts there, or
        `processes`.
        """
        found: list[Node] = []
        for node in self.ray.nodes():
            if node["Alive"]:
                cpus = int(node["Resources"].get("CPU", 0))
            else:
                cpus = 0
            if cpus:
                if processes is None:
                    wanted = cpus
                else:
                    wanted = min(cpus, processes)
                found.append(Node(node["NodeID"], node["NodeManagerHostname"], processes=wanted))
        return found

    def start(self, node: Node) -> RayActor:
        """A new Host on `node`; returns at once."""
        return RayActor(self, Host, node=node)


class RayActor:
    """An object of type `kind` in a process of its own on `node`. A Remote, if that is a Host."""

    def __init__(self, cluster: RayCluster, kind: type, node: Node) -> None:
        self._cluster = cluster
        self._node = node.name
        strategies = import_library("ray.util.scheduling_strategies")
        options = {
            "num_cpus": 1,
            "max_restarts": 0,
            "max_task_retries": 0,
            "max_concurrency": _METHODS_AT_ONCE,
            "scheduling_strategy": strategies.NodeAffinitySchedulingStrategy(node.id, soft=False),
        }
        self._actor = cluster.ray.remote(kind).options(**options).remote()

    async def call(self, method: str, *arguments: Any) -> Any:
        """The answer of a method. Raises: HostLost, if the process is gone; EvaluatorError, if it
        failed.
        """
        if self._cluster.is_lost:
            raise HostLost("the cluster is lost")
        try:
            return await getattr(self._actor, method).remote(*arguments)
        except self._cluster.ray.exceptions.RayError as error:
            reason = reason_of(str(error))
            if "No module named 'evaluator" in reason:
                raise ConfigurationError(
                    f"{self._node}: {reason}; install evaluator there, the same version as here, "
                    "for the Python that "
                    "runs Ray"
                ) from error
            if isinstance(error, self._cluster.ray.exceptions.RayTaskError):
                raise EvaluatorError(f"a process on {self._node} failed: {reason}") from error
            raise HostLost(reason) from error

    async def listen(self, deliver: Callable[[bytes], None]) -> None:
        """See `Remote`."""
        while True:
            deliver(await self.call("listen"))

    def kill(self) -> None:
        """Ends the process at once."""
        if self._cluster.is_lost:
            # Ray would wait for the head. The actors end without it.
            return
        try:
            self._cluster.ray.kill(self._actor)
        except Exception as error:
            # The actor or the cluster is gone already.
            LOGGER.debug("an actor could not be ended: %s", error)


def reason_of(text: str) -> str:
    """The error in a message of Ray on one line: the last exception of a traceback first, if there
    is one.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    last = next((line for line in reversed(lines) if _EXCEPTION.match(line)), None)
    if last is None:
        return " ".join(lines)
    rest = " ".join(lines[: lines.index(last)] if len(lines) < _MOST_LINES else lines[:2])
    if rest:
        return f"{last} ({rest})"
    return last


def import_ray() -> Any:
    """The package. Raises: MissingExtra, if it is not installed."""
    return import_extra("ray", "ray")


@asynccontextmanager
async def connect(
    address: str | None, is_stopping: Callable[[], bool]
) -> AsyncGenerator[RayCluster | None]:
    """The cluster at `address`, else the one that this process is connected to or `RAY_ADDRESS`
    names, else a new one on this machine, which ends with the context. None if `is_stopping`
    becomes true before there is a connection.

    Raises: MissingExtra, without Ray; ConfigurationError, if it cannot be reached.
    """
    with _without_telemetry():
        ray = import_ray()
        has_ended = threading.Event()
        was_connected = ray.is_initialized()
        if not was_connected:
            await _connect(
                ray,
                address or os.environ.get("RAY_ADDRESS") or "local",
                is_stopping=is_stopping,
                has_ended=has_ended,
            )
    try:
        yield RayCluster(ray) if ray.is_initialized() else None
    finally:
        if not was_connected:
            await _disconnect(ray)
            has_ended.set()


async def _connect(
    ray: Any, address: str, is_stopping: Callable[[], bool], has_ended: threading.Event
) -> None:
    """Connects in a thread that is left behind if it takes too long, `is_stopping` or the caller is
    cancelled.

    The processes of a cluster on this machine are killed when the thread that started them ends, so
    it stays until `has_ended`.
    """
    options: dict[str, Any]
    if address == "local":
        options = {"include_dashboard": False}
    else:
        options = {}
    endpoint = endpoint_of(address)
    is_left = threading.Event()
    if endpoint is None:
        refusal = None
    else:
        refusal = await refusal_of(endpoint)
    if refusal is not None:
        raise ConfigurationError(
            f"the Ray cluster at {address!r} cannot be reached: {refusal}; give the address that "
            "`ray start --head` "
            "has printed, or start the cluster"
        )

    def init() -> None:
        with _quiet():
            ray.init(address=address, log_to_driver=False, configure_logging=False, **options)
        _mute()
        if is_left.is_set():
            ray.shutdown()

    try:
        async with asyncio.timeout(_CONNECT_S):
            connecting = asyncio.ensure_future(
                in_thread(lambda: _in_lasting_thread(init, has_ended))
            )
            while not connecting.done() and not is_stopping():
                await asyncio.wait((connecting,), timeout=_LOOK_S)
            if connecting.done():
                connecting.result()
            else:
                is_left.set()
    except BaseException as error:
        is_left.set()
        has_ended.set()
        if ray.is_initialized():
            await _disconnect(ray)
        if isinstance(error, TimeoutError):
            error = OSError(f"no connection within {_CONNECT_S:g} s")
        if not isinstance(error, (OSError, RuntimeError, ValueError)):
            raise
        raise ConfigurationError(
            f"the Ray cluster at {address!r} cannot be reached: {error}"
        ) from error


def _in_lasting_thread(function: Callable[[], None], has_ended: threading.Event) -> None:
    """Calls `function` in a thread that ends when it fails, or with `has_ended`."""
    outcome: Future[None] = Future()

    def work() -> None:
        try:
            function()
        except BaseException as error:
            outcome.set_exception(error)
            return
        outcome.set_result(None)
        has_ended.wait()

    threading.Thread(target=work, name="evaluator-ray", daemon=True).start()
    outcome.result()


async def _disconnect(ray: Any) -> None:
    """Disconnects, also if the caller is cancelled meanwhile; a cluster that does not answer is
    left after a while.
    """
    task = asyncio.ensure_future(asyncio.wait_for(in_thread(ray.shutdown), _DISCONNECT_S))
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.gather(task, return_exceptions=True)
        raise
    except TimeoutError:
        LOGGER.warning("Ray did not disconnect within %g s", _DISCONNECT_S)


def endpoint_of(address: str) -> tuple[str, int] | None:
    """Host and port; None for an address of another kind, such as `auto`."""
    match = _ADDRESS.fullmatch(address)
    if match is None:
        return None
    return (match[1], int(match[2]))


async def refusal_of(endpoint: tuple[str, int]) -> str | None:
    """Why no server of Ray can be reached at `endpoint`; None if one answers there.

    Ray itself would wait for an answer without end, and hold Python's global lock meanwhile. Its
    servers speak HTTP/2 and begin with a SETTINGS frame (RFC 9113, section 3.4); behind TLS only
    the connection is tried.
    """
    writer = None
    try:
        async with asyncio.timeout(_ANSWER_S):
            reader, writer = await asyncio.open_connection(*endpoint)
            if os.environ.get("RAY_USE_TLS", "0") in ("", "0"):
                writer.write(_HTTP2_PREFACE)
                head = await reader.readexactly(_FRAME_HEAD)
                if head[3] != _SETTINGS:
                    return "what answers there is not Ray"
    except TimeoutError:
        return f"no answer within {_ANSWER_S:g} s"
    except asyncio.IncompleteReadError:
        return "what answers there is not Ray"
    except OSError as error:
        return f"nothing answers there ({error.strerror or error})"
    except OverflowError as error:
        return str(error)
    finally:
        if writer is not None:
            writer.close()
    return None


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
    """Stops Ray from printing about lost processes on standard output, which no option does; the
    pool reports them.
    """
    worker: Any = import_library("ray._private.worker")
    if hasattr(worker, "print_to_stdstream"):
        worker.print_to_stdstream = _nothing


def _nothing(*_: Any, **__: Any) -> None:
    pass


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


def ray_node(
    name: str = ANY, *, address: str | None = None, kind: type[NodeCommand] = NodeCommand
) -> OpenNode:
    """For `NodeWork`: a node of the cluster at `address` (as `connect`) by its name or id, or any
    with a free CPU, if possible not this machine. `kind` runs there.

    Raises: MissingExtra, without Ray.
    """
    import_ray()

    def open_node(
        is_killed: Callable[[], bool],
    ) -> AbstractAsyncContextManager[RemoteCommand | None]:
        return _open(name, address, is_killed=is_killed, kind=kind)

    return open_node


@asynccontextmanager
async def _open(
    name: str, address: str | None, is_killed: Callable[[], bool], kind: type[NodeCommand]
) -> AsyncGenerator[RemoteCommand | None]:
    async with connect(address, is_killed) as cluster:
        if cluster is None:
            yield None
            return
        actor = RayCommand(cluster, _choose(cluster.nodes(1), name), kind)
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

    def __init__(self, cluster: RayCluster, node: Node, kind: type[NodeCommand]) -> None:
        super().__init__(cluster, kind, node)
        self._lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._watching = asyncio.ensure_future(cluster.watch(self._lose))

    def _lose(self, why: str) -> None:
        if not self._lost.done():
            self._lost.set_result(why)

    async def run(self, command: Any) -> Any:
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
