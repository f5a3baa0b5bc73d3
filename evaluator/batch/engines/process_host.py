"""A Host in a worker process on this machine, as the pool uses it: calls and answers are pickles on
a socket.
"""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import socket
import sys
from itertools import count
from typing import Any

from evaluator.batch.engines.link import HostLost
from evaluator.batch.engines.process_worker import HEAD
from evaluator.processes import starting
from evaluator.processes.supervisor import scrubbed_environment

# The worker imports what this process can import. -P: nothing is added to the path before it is
# set.
_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1])\n"
    "from evaluator.batch.engines.process_worker import main; main(int(sys.argv[2]))"
)


class ProcessHost:
    """Starts a worker process. A Remote; `finish` ends it and waits for its end."""

    def __init__(self) -> None:
        self._numbers = count()
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._lost: HostLost | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._started = asyncio.ensure_future(self._start())

    async def _start(self) -> asyncio.StreamWriter:
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
                    json.dumps([str(path) for path in sys.path]),
                    str(theirs.fileno()),
                    pass_fds=(theirs.fileno(),),
                    stdin=asyncio.subprocess.DEVNULL,
                    start_new_session=True,
                    env=_environment_at_start(),
                )
            except OSError as error:
                ours.close()
                raise HostLost(f"a process cannot be started: {error.strerror}") from error
        reader, self._writer = await asyncio.open_unix_connection(sock=ours)
        variables = pickle.dumps(dict(os.environ), pickle.HIGHEST_PROTOCOL)
        self._writer.write(HEAD.pack(len(variables)) + variables)
        self._reading = asyncio.ensure_future(self._read(reader, self._process))
        return self._writer

    async def _read(
        self, reader: asyncio.StreamReader, process: asyncio.subprocess.Process
    ) -> None:
        try:
            while True:
                (size,) = HEAD.unpack(await reader.readexactly(HEAD.size))
                number, value = pickle.loads(await reader.readexactly(size))
                answer = self._answers.pop(number)
                if not answer.done():
                    answer.set_result(value)
        except (asyncio.IncompleteReadError, OSError):
            self._lost = HostLost(_ending_of(await process.wait()))
            for answer in self._answers.values():
                if not answer.done():
                    answer.set_exception(self._lost)

    async def call(self, method: str, *arguments: Any) -> Any:
        """See `Remote`."""
        writer = await asyncio.shield(self._started)
        if self._lost is not None:
            raise self._lost
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        packed = pickle.dumps((number, method, arguments), pickle.HIGHEST_PROTOCOL)
        try:
            writer.write(HEAD.pack(len(packed)) + packed)
            await writer.drain()
        except OSError as error:
            raise HostLost(f"the process has ended: {error}") from error
        return await answer

    def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    async def finish(self) -> None:
        """Ends the process. Returns when nothing of it is left in the event loop."""
        await asyncio.gather(self._started, return_exceptions=True)
        self.kill()
        if self._writer is not None:
            self._writer.close()
            await asyncio.gather(self._writer.wait_closed(), return_exceptions=True)
        if self._process is not None:
            await self._process.wait()
        if self._reading is not None:
            await asyncio.gather(self._reading, return_exceptions=True)


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
