"""An engine of local processes: the pool of the Ray engine without Ray. Not shipped; it runs the engine checks.

Each Host is `python -m tests.batch.engines.process_engine`; calls and answers are pickles on its standard input and
output, so that the end of the process is the end of the stream.
"""

from __future__ import annotations

import asyncio
import io
import os
import pickle
import struct
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

from evaluator.batch.engines.base import ConcurrentRun, IsStopping, NextWork, OnDone
from evaluator.batch.engines.host import Host, Opened
from evaluator.batch.engines.link import Lost
from evaluator.batch.engines.pool import Node, Pool
from evaluator.batch.engines.recipe import make_recipe
from evaluator.batch.engines.taskfiles import Probe, make_probe
from evaluator.batch.work import Worker
from evaluator.errors import EvaluatorError

ROOT = Path(__file__).parents[3]
_HEAD = struct.Struct("!I")


class ProcessHost:
    """A Host in a process of its own: a Remote."""

    def __init__(self, gone: asyncio.Event | None = None) -> None:
        self._numbers = count()
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._gone = gone
        self._is_lost = False
        self._process: asyncio.subprocess.Process | None = None
        self._started = asyncio.ensure_future(self._start())

    async def _start(self) -> asyncio.subprocess.Process:
        if self._gone is not None and self._gone.is_set():
            raise Lost("the node is gone")
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.batch.engines.process_engine", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            cwd=ROOT,
        )  # fmt: skip
        self._reader = asyncio.ensure_future(self._read(self._process))
        return self._process

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        try:
            while True:
                (size,) = _HEAD.unpack(await process.stdout.readexactly(_HEAD.size))
                number, answer = pickle.loads(await process.stdout.readexactly(size))
                if not self._answers[number].done():
                    self._answers.pop(number).set_result(answer)
        except asyncio.IncompleteReadError:
            self._is_lost = True
            lost = Lost(f"the process ended with {await process.wait()}")
            for answer in self._answers.values():
                if not answer.done():
                    answer.set_exception(lost)

    async def _call(self, method: str, *arguments: Any) -> Any:
        process = await asyncio.shield(self._started)
        if self._is_lost or process.stdin is None:
            raise Lost("the process has ended")
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        packed = pickle.dumps((number, method, arguments))
        try:
            process.stdin.write(_HEAD.pack(len(packed)) + packed)
            await process.stdin.drain()
        except OSError as error:
            raise Lost(str(error)) from error
        return await answer

    async def versions(self) -> str:
        return await self._call("versions")

    async def open(self, recipe: bytes, probe: Probe | None, first_id: int) -> Opened | EvaluatorError:
        return await self._call("open", recipe, probe, first_id)

    async def post(self, messages: Sequence[bytes]) -> None:
        await self._call("post", messages)

    async def listen(self) -> list[bytes]:
        return await self._call("listen")

    async def close(self) -> None:
        await self._call("close")

    def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    async def finish(self) -> None:
        """Ends the process, and leaves nothing of it in the event loop."""
        await asyncio.gather(self._started, return_exceptions=True)
        if self._process is not None and self._process.stdin is not None:
            self.kill()
            self._process.stdin.close()
            await asyncio.gather(self._process.stdin.wait_closed(), return_exceptions=True)
            await self._process.wait()
            await self._reader


class ProcessEngine:
    """`processes` local processes. `lose_all` kills them, and no other starts after it, as when all nodes die."""

    name = "processes"

    def __init__(self, concurrency: int, processes: int = 2, *, gather: bool = False) -> None:
        self._concurrency, self._processes, self._gather = concurrency, processes, gather
        self._run = ConcurrentRun(concurrency)
        self._hosts: list[ProcessHost] = []
        self._all: list[ProcessHost] = []
        self._gone = asyncio.Event()

    def in_flight(self) -> int:
        return self._run.in_flight

    def lose_all(self) -> None:
        self._gone.set()
        for host in self._hosts:
            host.kill()

    def lose_one(self) -> None:
        """SIGKILL to one process at work."""
        self._hosts.pop(0).kill()

    def _start(self, node: Node) -> ProcessHost:
        host = ProcessHost(self._gone)
        self._hosts.append(host)
        self._all.append(host)
        return host

    async def run(self, worker: Worker, next_work: NextWork, on_done: OnDone, is_stopping: IsStopping) -> None:
        try:
            await self._run_pool(worker, next_work, on_done, is_stopping)
        finally:
            await asyncio.gather(*(host.finish() for host in self._all))
            self._hosts, self._all = [], []

    async def _run_pool(self, worker: Worker, next_work: NextWork, on_done: OnDone, is_stopping: IsStopping) -> None:
        recipe, store = make_recipe(worker)
        with ExitStack() as stack:
            probe = None if self._gather else stack.enter_context(make_probe(store.root))
            async with Pool(worker, self._start, recipe, store, self._concurrency, probe) as pool:
                pool.start([Node("here", "here", self._processes)])
                await self._run.run(lambda work: pool.perform(work, is_stopping), next_work, on_done)


async def _serve(stdin: io.BufferedReader, stdout: io.BufferedWriter) -> None:
    host, tasks = Host(), set[asyncio.Task[None]]()

    async def answer(number: int, method: str, arguments: tuple[Any, ...]) -> None:
        packed = pickle.dumps((number, await getattr(host, method)(*arguments)))
        stdout.write(_HEAD.pack(len(packed)) + packed)
        stdout.flush()

    while head := await asyncio.to_thread(stdin.read, _HEAD.size):
        packed = await asyncio.to_thread(stdin.read, _HEAD.unpack(head)[0])
        task = asyncio.ensure_future(answer(*pickle.loads(packed)))
        tasks.add(task)
        task.add_done_callback(tasks.discard)


if __name__ == "__main__":
    # What prints must not get between the answers.
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    asyncio.run(_serve(sys.stdin.buffer, output))
