"""The engine of several processes on this machine, for scorers that compute.

This process reads rows, hands out samples, applies rate limits and the budget, and writes the
results; the workers evaluate and judge. A worker process has a Host; calls of it and its answers
are pickles on a socket.
"""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import socket
import sys
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from contextlib import ExitStack
from itertools import count
from typing import Any

from evaluator.batch.engines.base import ConcurrentRun, HostLost, IsStopping, NextWork, OnDone
from evaluator.batch.engines.host import Recipe, make_recipe
from evaluator.batch.engines.pool import Node, Pool, StartHost
from evaluator.batch.engines.process_worker import HEAD
from evaluator.batch.engines.taskfiles import make_probe
from evaluator.batch.progress import SilentProcess
from evaluator.batch.work import Worker
from evaluator.errors import UsageError
from evaluator.fields import Count, accept
from evaluator.files.project_code import own_path_first
from evaluator.processes import starting
from evaluator.processes.supervisor import scrubbed_environment
from evaluator.record.store import TaskStore

Watch = Callable[[Callable[[str], None]], Coroutine[Any, Any, None]]


class PoolEngine:
    """Evaluates `concurrency` samples at once in all processes together.

    `variables`: environment variables that the processes get besides keys, tokens and the addresses
    of models.
    `gather`: processes write task files into folders of their own and send them with the results,
    even if they see the batch's folder.

    Raises: UsageError, for a `concurrency` or a number of `processes` below 1.
    """

    def __init__(
        self,
        concurrency: int,
        processes: int | None,
        variables: Iterable[str] = (),
        gather: bool = False,
    ) -> None:
        for name, value in (("concurrency", concurrency), ("processes", processes)):
            accept(Count | None, value, name, UsageError)
        self._concurrency = concurrency
        self._processes = processes
        self._variables = tuple(variables)
        self._gather = gather
        self._run = ConcurrentRun(concurrency)
        self._pool: Pool | None = None

    def in_flight(self) -> int:
        return self._run.in_flight

    def resize(self, concurrency: int) -> None:
        """See `ResizableEngine`. The number of processes stays."""
        self._run.resize(concurrency)

    def silent(self) -> Sequence[SilentProcess]:
        """See `WatchedEngine`."""
        return [] if self._pool is None else self._pool.silent()

    async def _run_pool(
        self,
        worker: Worker,
        made: tuple[Recipe, TaskStore],
        start: StartHost,
        nodes: Callable[[], Collection[Node]],
        next_work: NextWork,
        on_done: OnDone,
        is_stopping: IsStopping,
        watch: Watch | None = None,
    ) -> None:
        """Runs all work in processes that `start` starts on `nodes`. `made` is the worker's recipe
        and its store.

        `watch` runs beside it and calls its argument, with the reason, if no process can be reached
        any more.
        """
        recipe, store = made
        with ExitStack() as stack:
            if self._gather:
                probe = None
            else:
                probe = stack.enter_context(make_probe(store.root))
            async with Pool(
                worker,
                start,
                recipe=recipe,
                store=store,
                run=self._run,
                is_stopping=is_stopping,
                probe=probe,
            ) as pool:
                self._pool = pool
                pool.start(nodes())
                if watch is None:
                    watching = None
                else:
                    watching = asyncio.ensure_future(watch(pool.lose_all))
                try:
                    await self._run.run(pool.begin, next_work, on_done)
                finally:
                    self._pool = None
                    if watching is not None:
                        watching.cancel()


# The worker imports what this process can import, but its own program from installed packages. -P:
# nothing is added to the path before it is set.
_PROGRAM = (
    "import json, sys; own, path = json.loads(sys.argv[1]); sys.path[:] = own\n"
    "from evaluator.batch.engines.process_worker import main\n"
    "sys.path[:] = path; main(int(sys.argv[2]))"
)


class _Connection(asyncio.Protocol):
    """The messages of a worker process. `on_message` gets each one, `on_lost` is called once, at
    the end of the connection.
    """

    def __init__(self, on_message: Callable[[bytes], None], on_lost: Callable[[], None]) -> None:
        self._on_message = on_message
        self._on_lost = on_lost
        self._buffer = bytearray()
        self._can_write = asyncio.Event()
        self._can_write.set()

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        while len(buffer) >= HEAD.size:
            (size,) = HEAD.unpack_from(buffer)
            end = HEAD.size + size
            if len(buffer) < end:
                return
            message = bytes(memoryview(buffer)[HEAD.size : end])
            del buffer[:end]
            self._on_message(message)

    def pause_writing(self) -> None:
        self._can_write.clear()

    def resume_writing(self) -> None:
        self._can_write.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._can_write.set()
        self._on_lost()

    async def drain(self) -> None:
        """Returns when the process takes what is written."""
        if not self._can_write.is_set():
            await self._can_write.wait()


class ProcessHost:
    """Starts a worker process. A Remote; `finish` ends it and waits for its end."""

    def __init__(self) -> None:
        self._numbers = count()
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._lost: HostLost | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._transport: asyncio.Transport | None = None
        self._deliver: Callable[[bytes], None] | None = None
        self._listening: asyncio.Future[None] | None = None
        self._is_closed = asyncio.Event()
        self._ending: asyncio.Future[None] | None = None
        self._started = asyncio.ensure_future(self._start())

    async def _start(self) -> tuple[asyncio.Transport, _Connection]:
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:
            raise HostLost(f"a process cannot be started: {error.strerror}") from error
        with theirs:
            try:
                self._process = await starting.create_subprocess(
                    sys.executable,
                    "-P",
                    "-c",
                    _PROGRAM,
                    json.dumps([own_path_first(), [str(path) for path in sys.path]]),
                    str(theirs.fileno()),
                    pass_fds=(theirs.fileno(),),
                    stdin=asyncio.subprocess.DEVNULL,
                    start_new_session=True,
                    env=_environment_at_start(),
                )
            except OSError as error:
                ours.close()
                raise HostLost(f"a process cannot be started: {error.strerror}") from error
        self._transport, connection = await asyncio.get_running_loop().create_unix_connection(
            lambda: _Connection(self._receive, self._note_end), sock=ours
        )
        variables = pickle.dumps(dict(os.environ), pickle.HIGHEST_PROTOCOL)
        self._transport.write(HEAD.pack(len(variables)) + variables)
        return self._transport, connection

    def _receive(self, packed: bytes) -> None:
        number, value = pickle.loads(packed)
        if number is None:
            if self._deliver is not None:
                self._hand_over(self._deliver, value)
            return
        answer = self._answers.pop(number)
        if not answer.done():
            answer.set_result(value)

    def _hand_over(self, deliver: Callable[[bytes], None], messages: bytes) -> None:
        try:
            deliver(messages)
        except Exception as error:
            self._deliver = None
            if self._listening is not None and not self._listening.done():
                self._listening.set_exception(error)

    def _note_end(self) -> None:
        self._is_closed.set()
        self._ending = asyncio.ensure_future(self._lose())

    async def _lose(self) -> None:
        assert self._process is not None
        self._lost = HostLost(_ending_of(await self._process.wait()))
        waiting = list(self._answers.values())
        if self._listening is not None:
            waiting.append(self._listening)
        for answer in waiting:
            if not answer.done():
                answer.set_exception(self._lost)
                answer.exception()  # the caller may have been cancelled meanwhile

    async def call(self, method: str, *arguments: Any) -> Any:
        """See `Remote`. What is posted is not answered: the connection keeps the order."""
        if method == "post":
            await self._send(None, method, arguments)
            return None
        await self._connected()
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        await self._send(number, method, arguments)
        return await answer

    async def listen(self, deliver: Callable[[bytes], None]) -> None:
        """See `Remote`. One request begins it; the process sends each answer as soon as there is
        one.
        """
        await self._connected()
        self._deliver = deliver
        self._listening = asyncio.get_running_loop().create_future()
        try:
            await self._send(None, "listen", ())
            await self._listening
        finally:
            self._deliver = None

    async def _connected(self) -> tuple[asyncio.Transport, _Connection]:
        """The connection, as soon as there is one. Raises: HostLost, if it has ended."""
        connected = await asyncio.shield(self._started)
        if self._lost is not None:
            raise self._lost
        return connected

    async def _send(self, number: int | None, method: str, arguments: tuple[Any, ...]) -> None:
        transport, connection = await self._connected()
        packed = pickle.dumps((number, method, arguments), pickle.HIGHEST_PROTOCOL)
        transport.write(HEAD.pack(len(packed)) + packed)
        await connection.drain()

    def kill(self) -> None:
        if self._process is not None:
            starting.kill(self._process)

    async def finish(self) -> None:
        """Ends the process. Returns when nothing of it is left in the event loop."""
        await asyncio.gather(self._started, return_exceptions=True)
        self.kill()
        if self._transport is not None:
            self._transport.close()
            await self._is_closed.wait()
        if self._process is not None:
            await self._process.wait()
        if self._ending is not None:
            await self._ending


def _ending_of(code: int) -> str:
    if code < 0:
        return f"the process was ended by signal {-code}"
    return f"the process ended with exit code {code}"


def _environment_at_start() -> dict[str, str]:
    """The variables without which Python does not start alike. The others follow on the connection:
    what a process is started with can be read in `/proc`, also by scripts that run while it starts.
    """
    environment = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(("PYTHON", "LD_", "DYLD_"))
    }
    return scrubbed_environment() | environment


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
