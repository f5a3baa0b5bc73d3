"""Type `b`: a script process, whose output goes to its file without secrets."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from evaluator.background.output import Output, RedactedOutput
from evaluator.background.tasks import End, TaskType, Work
from evaluator.errors import ToolError
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
        if not isinstance(argv, str):
            words = argv
        elif argv.strip():
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
        left = f"{end.survivors} processes of another user could not be killed"
        reason = f"{reason}; {left}" if reason else left
    if end.exit_code == 0 and end.reason == "ended":
        status = "completed"
    else:
        status = "failed"
    if end.reason == "killed":
        status = "killed"
    return End(status, end.exit_code, signal=end.signal, reason=reason)
