"""Type `r`: a command that runs on another node.

A `NodeCommand` on the node runs the command below the supervisor of all scripts, with its output in
a file there; this process copies the file as it grows. What starts one on a node is passed to
`NodeWork`, see `evaluator.batch.engines.ray_engine` for Ray.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import weakref
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from evaluator.background.output import MAX_BYTES, Output, RedactedOutput
from evaluator.background.scripts import CommandWork
from evaluator.background.tasks import End, TaskType, Work
from evaluator.processes.supervisor import Command
from evaluator.record.redact import Redactor

POLL_S = 0.25
BLOCK_BYTES = 1 << 20
_BLOCKS_AFTER_KILL = 16
_KILL_S = 2.0
"""Seconds after which a node that does not answer is left; its processes end with the
connection.
"""


class RemoteCommand(Protocol):
    """A NodeCommand in another process. A method raises an exception if the node is lost."""

    async def run(self, command: Command) -> End: ...

    async def read(self, offset: int) -> bytes: ...

    async def stop(self) -> None: ...


OpenNode = Callable[[Callable[[], bool]], AbstractAsyncContextManager[RemoteCommand | None]]
"""Starts a NodeCommand on a node; at the end of the context nothing of it is running. It gets a
function that says whether the task was killed, in which case it may give up and return None.
"""


class NodeCommand:
    """One command on this node. Its output ends at `max_bytes`, where it is killed."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._output = tempfile.TemporaryFile(prefix="evaluator-")  # noqa: SIM115
        weakref.finalize(self, self._output.close)
        self._max_bytes = max_bytes
        self._is_killed = False
        self._work: CommandWork | None = None

    async def run(self, command: Command) -> End:
        """Runs the command to its end."""
        # Ray kills the children of a process that ends.
        self._work = CommandWork(replace(command, is_nested=True))
        if self._is_killed:
            self._work.kill()
        return await self._work.run(Output(Path(), self._output.fileno()))

    async def read(self, offset: int) -> bytes:
        """The next bytes of the output."""
        if os.fstat(self._output.fileno()).st_size > self._max_bytes:
            await self.stop()
        return os.pread(self._output.fileno(), BLOCK_BYTES, offset)

    async def stop(self) -> None:
        """Kills the command with everything that it started."""
        self._is_killed = True
        if self._work is not None:
            self._work.kill()


class NodeWork(Work):
    """Runs `command` on the node that `open_node` gives."""

    type: TaskType = "r"
    is_watched = True

    def __init__(self, command: Command, open_node: OpenNode) -> None:
        self._command = command
        self._open_node = open_node
        self._wake = asyncio.Event()

    async def run(self, output: Output) -> End:
        """Runs the command to its end. A node that is lost, and a command that cannot be started,
        are failures.
        """
        try:
            async with self._open_node(lambda: self._is_killed) as remote:
                if remote is None or self._is_killed:
                    return End("killed")
                return await self._follow(remote, output)
        except Exception:
            if self._is_killed:
                return End("killed")
            raise

    def kill(self, reason: str = "") -> None:
        super().kill(reason)
        self._wake.set()

    async def _follow(self, remote: RemoteCommand, output: Output) -> End:
        """Copies the output until the command has ended."""
        running = asyncio.ensure_future(remote.run(self._command))
        waking = asyncio.ensure_future(self._wake.wait())
        offset = 0
        left = _BLOCKS_AFTER_KILL
        shown = RedactedOutput(output, Redactor.from_environment())
        try:
            while True:
                has_ended = running.done()
                while left and (data := await remote.read(offset)):
                    shown.write(data)
                    offset += len(data)
                    left -= waking.done()
                    if waking.done() and not has_ended:
                        break
                shown.flush()
                if has_ended:
                    return running.result()
                await asyncio.wait([running, *([] if waking.done() else [waking])], timeout=POLL_S)
                if waking.done() and not running.done():
                    async with asyncio.timeout(_KILL_S):
                        await remote.stop()
                        await asyncio.wait([running])
        finally:
            running.cancel()
            waking.cancel()
