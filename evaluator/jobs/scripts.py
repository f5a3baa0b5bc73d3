"""Type `b`: a script process, whose output goes to its file without secrets.

Type `r`: a command that runs on another node, or a template that is evaluated there.

A `NodeCommand` on the node runs the command below the supervisor of all scripts, with its output in
a file there; this process copies the file as it grows. What starts one on a node is passed to
`NodeWork`, see `evaluator.batch.engines.ray_engine` for Ray, and `node_template` there for
templates.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from evaluator.errors import ToolError
from evaluator.errors.messages import amount
from evaluator.jobs.output import MAX_BYTES, Output, RedactedOutput
from evaluator.jobs.tasks import End, TaskType, Work
from evaluator.processes.sandboxes import NO_SANDBOX, Sandbox
from evaluator.processes.supervisor import (
    MEMORY_BYTES,
    Command,
    OutputPipe,
    ProcessEnd,
    SupervisedProcess,
)
from evaluator.record.redact import Redactor

_SILENCE_S = 0.05
_PIPE_GRACE_S = 1.0

_REASONS = {
    "timeout": "stopped at its time limit",
    "processes": "killed for too many processes",
    "memory": "killed for too much memory",
}


class CommandWork(Work):
    """Runs a command below the supervisor of all scripts. When the task ends, nothing that it
    started is running.
    """

    type: TaskType = "b"
    is_watched = True

    def __init__(
        self, command: Command, *, has_input: bool = False, redactor: Redactor | None = None
    ) -> None:
        self._command = command
        self._has_input = has_input
        self._redactor = redactor or Redactor.from_environment()
        self._process: SupervisedProcess | None = None
        self._input: asyncio.WriteTransport | None = None

    async def run(self, output: Output) -> End:
        """Runs the command to its end. One that cannot be started has failed."""
        if self._is_killed:
            return End("killed")
        # One pipe, so that output and errors stay in their order.
        reading, writing = os.pipe()
        try:
            process = SupervisedProcess(
                self._command, writing, stderr=writing, has_input=self._has_input
            )
        except ToolError as error:
            os.close(reading)
            return End("failed", reason=str(error))
        finally:
            os.close(writing)
        copy = _Copy(RedactedOutput(output, self._redactor))
        await asyncio.get_running_loop().connect_read_pipe(lambda: copy, os.fdopen(reading, "rb"))
        try:
            if self._has_input:
                self._input = await process.open_input()
            self._process = process
            if self._is_killed:
                process.kill()
            end = _end_of(await process.run())
        except ToolError as error:
            end = End("killed" if self._is_killed else "failed", reason=str(error))
        finally:
            self._process = self._input = None
            await process.end()
            await asyncio.wait([copy.ended], timeout=_PIPE_GRACE_S)
            copy.close()
        if copy.error is not None:
            raise copy.error
        return end

    def is_waiting(self) -> bool | None:
        if self._process is None:
            return None
        return self._process.is_waiting()

    def kill(self, reason: str = "") -> None:
        super().kill(reason)
        if self._process is not None:
            self._process.kill()


class _Copy(OutputPipe):
    """Copies a pipe to an output; an unfinished line after a moment of silence."""

    def __init__(self, output: RedactedOutput) -> None:
        super().__init__()
        self.error: OSError | None = None
        self._output = output
        self._timer: asyncio.TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(_SILENCE_S, self._flush)
        try:
            self._output.write(data)
        except OSError as error:
            self.error = self.error or error

    def connection_lost(self, exc: Exception | None) -> None:
        self._flush()
        super().connection_lost(exc)

    def close(self) -> None:
        """Ends the copy; a process that is not of the tree may still hold the pipe."""
        if self.transport is not None:
            self.transport.close()
        if not self.ended.done():
            self._flush()

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        try:
            self._output.flush()
        except OSError as error:
            self.error = self.error or error


class ScriptWork(CommandWork):
    """Runs `argv` (a string is passed to `/bin/sh -c`) under the supervisor of all scripts, with
    the same limits.

    Its standard input is empty; with `has_input` it stays open, and `write` sends to it.
    """

    def __init__(
        self,
        argv: Sequence[str] | str,
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        timeout_s: float = float("inf"),
        memory_bytes: int | None = MEMORY_BYTES,
        sandbox: Sandbox = NO_SANDBOX,
        has_input: bool = False,
        redactor: Redactor | None = None,
    ) -> None:
        words = argv
        if isinstance(argv, str):
            if argv.strip():
                words = ["/bin/sh", "-c", argv]
            else:
                words = []
        command = Command(
            tuple(words), timeout_s, cwd=cwd, env=env, memory_bytes=memory_bytes, sandbox=sandbox
        )
        super().__init__(command, has_input=has_input, redactor=redactor)

    def write(self, data: bytes) -> None:
        """Sends `data` to the script's standard input. Raises: ToolError, if it has none or has
        ended.
        """
        if self._input is None:
            raise ToolError("the script has no open standard input")
        self._input.write(data)


def _end_of(end: ProcessEnd) -> End:
    """The end of a task that was this process."""
    reason = _REASONS.get(end.reason)
    if end.survivors:
        left = f"{amount(end.survivors, 'process')} of another user could not be killed"
        reason = f"{reason}; {left}" if reason else left
    status = "failed"
    if end.reason == "killed":
        status = "killed"
    elif end.exit_code == 0 and end.reason == "ended":
        status = "completed"
    return End(status, end.exit_code, signal=end.signal, reason=reason)


POLL_S = 0.25
BLOCK_BYTES = 1 << 20
_BLOCKS_AFTER_KILL = 16
_KILL_S = 2.0
"""Seconds after which a node that does not answer is left; its processes end with the
connection.
"""


class RemoteCommand(Protocol):
    """A NodeCommand in another process. A method raises an exception if the node is lost."""

    async def run(self, command: Any) -> Any: ...

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
        self._work: Work | None = None

    async def run(self, command: Any) -> Any:
        """Runs the Command to its end. Returns: its End."""
        # Ray kills the children of a process that ends.
        return await self.perform(CommandWork(replace(command, is_nested=True)))

    async def perform(self, work: Work) -> End:
        """Runs `work` to its end."""
        self._work = work
        if self._is_killed:
            work.kill()
        return await work.run(Output(Path(), self._output.fileno()))

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

    def __init__(self, command: Any, open_node: OpenNode) -> None:
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

    async def run_on(self, remote: RemoteCommand) -> End:
        """Runs the command on the node to its end."""
        return await remote.run(self._command)

    async def _follow(self, remote: RemoteCommand, output: Output) -> End:
        """Copies the output until the command has ended."""
        running = asyncio.ensure_future(self.run_on(remote))
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
