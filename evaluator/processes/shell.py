"""A bash session that persists from command to command, within the limits of a script.

The whole session is one script, so the guarantees of `run_script` hold for it: its own session, a
scrubbed environment, limited memory and processes, and nothing that it started keeps running when
it ends, is ended, or the evaluating process is killed. Commands reach it through a named pipe;
output and exit codes come back through three others, whose names are deleted before the first
command runs. The exit code comes through a pipe that commands do not inherit, after a random mark
made for the command, so output cannot be mistaken for it. A background process that keeps the
output pipe open delays nothing, because nothing waits for the end of the output.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
import shlex
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Literal

from evaluator import randomness
from evaluator.errors import ToolError
from evaluator.lazy_dataclass import frozen
from evaluator.processes.sandboxes import MAX_PROCESSES, MEMORY_BYTES, NO_SANDBOX, Sandbox
from evaluator.processes.script_folders import TemporaryFolder
from evaluator.processes.scripts import ScriptResult, run_script
from evaluator.processes.supervisor import decode_output, flood_limit, run_to_end

TIMEOUT_S = 120.0
_OUTPUT_BYTES = 50_000
_START_S = 30.0
_READ_BYTES = 1 << 20  # more than the capacity of a pipe, so that one read empties it
_CONTINUATION = bytes(range(0x80, 0xC0))  # bytes of UTF-8 that do not begin a character
_PIPES = ("commands", "codes", "stdout", "stderr")
# Descriptor numbers that a command is unlikely to use. The shell reads its commands from the pipe
# like a script: in a loop of our own, a stray `break` in a command would end the loop; in a
# function, declarations would be local.
_START = (
    'exec <"$1/commands" 201>"$1/codes" 202>"$1/stdout" 203>"$1/stderr" >/dev/null 2>&1 || exit; '
    "exec bash --noprofile --norc -s"
)
# The empty line ends an incomplete command that the parser still has.
_LINE = (
    '\n{ eval -- %s; } </dev/null >&202 2>&203 201>&- 202>&- 203>&-; printf "%%s:%%s." %s '
    '"$?" >&201\n'
)

Ending = Literal["exit", "timeout", "output", "processes", "memory"]


@frozen
class ShellResult:
    """The end of a command, and its output; a long output lacks its middle.

    `ended` is set if the shell ended: by itself, at the time limit, for endless output, too many
    processes or too much memory. `exit_code` and `signal` are those of the command, or of the shell
    if it ended; both are None if it was killed. `new`: the command started a new shell.
    """

    stdout: str
    stderr: str
    exit_code: int | None
    signal: int | None = None
    ended: Ending | None = None
    new: bool = False


class Shell:
    """A bash process in `cwd`, started at the first command and again after it has ended.

    One command runs at a time, for at most `timeout_s`; then the shell is killed with everything
    that it started. `max_output_bytes` of each stream are kept; above 100 times that, and above 10
    MB, the shell is killed. `memory_bytes`, `max_processes` and `sandbox` are those of `Command`,
    for the shell and everything that it started.
    """

    def __init__(
        self,
        cwd: Path | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        max_output_bytes: int = _OUTPUT_BYTES,
        memory_bytes: int | None = MEMORY_BYTES,
        max_processes: int = MAX_PROCESSES,
        sandbox: Sandbox = NO_SANDBOX,
    ) -> None:
        self.cwd = cwd
        self.sandbox = sandbox
        self.timeout_s = timeout_s
        self.max_output_bytes = max_output_bytes
        self.memory_bytes = memory_bytes
        self.max_processes = max_processes
        self._session: _ShellProcess | None = None
        self._one_command = asyncio.Lock()

    async def run(self, command: str, *, remaining_s: float = math.inf) -> ShellResult:
        """Runs a command with empty input and returns when it has ended, even if it left processes
        running.

        Their later output is returned with that of a later command. When cancelled, it raises
        CancelledError after all processes are dead.

        Raises: ToolError, for an empty command or one that is not text, and if no shell can be
        started or its supervisor was killed.
        """
        line, mark = _line(command)
        async with self._one_command:
            session = self._session
            new = session is None or session.script.done()
            try:
                if session is None or session.script.done():
                    session = await self._start()
                reply = await session.exchange(
                    line, mark, min(self.timeout_s, remaining_s), self.max_output_bytes
                )
                if not isinstance(reply.code, int):
                    await self.end()
            except BaseException:
                await self.end()
                raise
            stdout = reply.stdout.text()
            stderr = reply.stderr.text()
            if isinstance(reply.code, int):
                return ShellResult(stdout, stderr, exit_code=reply.code, new=new)
            if reply.code is not None:
                return ShellResult(stdout, stderr, exit_code=None, ended=reply.code, new=new)
            last = _result(session.script)
            ended: Ending
            if last.overrun in ("processes", "memory"):
                ended = last.overrun
            else:
                ended = "exit"
            return ShellResult(
                stdout, stderr, exit_code=last.exit_code, signal=last.signal, ended=ended, new=new
            )

    async def end(self) -> None:
        """Kills the shell and everything it started; returns when all is dead. The next command
        starts a new shell.
        """
        session = self._session
        self._session = None
        if session is not None:
            await session.end()

    async def _start(self) -> _ShellProcess:
        await self.end()
        session = self._session = _ShellProcess(self)
        reply = await session.exchange(*_line(":"), _START_S, self.max_output_bytes)
        if reply.code is None:
            _result(session.script)  # raises the reason
        if reply.code != 0:
            raise ToolError("the shell cannot be started")
        session.hide()
        return session


def _line(command: str) -> tuple[bytes, str]:
    """The line that the shell reads for a command, and the mark that precedes its exit code."""
    if not command.strip():
        raise ToolError("the command is empty")
    if "\0" in command:
        raise ToolError("the command contains a NUL character")
    mark = randomness.token_hex(16)
    try:
        return (_LINE % (shlex.quote(command), mark)).encode(), mark
    except UnicodeEncodeError as error:
        raise ToolError(
            f"the command contains a character that the system cannot take: {error.reason}"
        ) from error


def _result(script: asyncio.Task[ScriptResult]) -> ScriptResult:
    try:
        return script.result()
    except ToolError as error:
        raise ToolError(f"the shell is gone: {error}; the next command begins a new one") from error


class _HeadAndTail:
    """The beginning and the end of a stream, together `max_bytes`."""

    def __init__(self, max_bytes: int) -> None:
        self.half = max_bytes // 2
        self.flood = flood_limit(max_bytes)
        self.seen = 0
        self.head = bytearray()
        self.tail = bytearray()

    def add(self, data: bytes) -> None:
        self.seen += len(data)
        room = self.half - len(self.head)
        self.head += data[:room]
        self.tail += data[room:]
        if len(self.tail) > self.half + _READ_BYTES:
            self._trim()

    def _trim(self) -> None:
        del self.tail[: max(len(self.tail) - self.half, 0)]

    def text(self) -> str:
        """Undecodable bytes and NUL become U+FFFD; a character that was cut is left out."""
        self._trim()
        head = bytes(self.head)
        tail = bytes(self.tail)
        left_out = self.seen - len(head) - len(tail)
        if left_out:
            tail = tail[:3].lstrip(_CONTINUATION) + tail[3:]
            text = (
                f"{decode_output(head, is_cut=True)}\n[… {left_out:,} bytes left out "
                f"…]\n{decode_output(tail)}"
            )
        else:
            text = decode_output(head + tail)
        return text.replace("\0", "\ufffd")


class _Reply:
    """The output of a command; `code` is None if the shell ended by itself."""

    def __init__(self, max_bytes: int) -> None:
        self.stdout = _HeadAndTail(max_bytes)
        self.stderr = _HeadAndTail(max_bytes)
        self.code: int | Ending | None = None


class _ShellProcess:
    """One bash process, from its start to its end."""

    def __init__(self, shell: Shell) -> None:
        self.folder = TemporaryFolder()
        pipes: dict[str, int] = {}
        self._free = weakref.finalize(self, _free, pipes, self.folder)
        try:
            for name in _PIPES:
                path = self.folder.path / name
                os.mkfifo(path, 0o600)
                # Opened for reading and writing, so that opening does not wait and no pipe ends.
                pipes[name] = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        except OSError as error:
            self._free()
            raise ToolError(
                f"the shell's pipes cannot be created: {error.strerror or error}"
            ) from error
        self.pipes = pipes
        self.script = asyncio.create_task(
            run_script(
                ["bash", "--noprofile", "--norc", "-c", _START, "bash", str(self.folder.path)],
                timeout_s=math.inf,
                cwd=shell.cwd,
                memory_bytes=shell.memory_bytes,
                max_processes=shell.max_processes,
                sandbox=replace(
                    shell.sandbox, writable=(*shell.sandbox.writable, self.folder.path)
                ),
            )
        )

    def hide(self) -> None:
        """Deletes the names of the pipes, which the shell needs only to open them."""
        self.folder.remove()

    async def exchange(self, line: bytes, mark: str, timeout_s: float, max_bytes: int) -> _Reply:
        """Sends a line and waits for its exit code, the end of the shell, a flood of output or the
        time limit.
        """
        loop = asyncio.get_running_loop()
        reply = _Reply(max_bytes)
        done: asyncio.Future[int | Ending] = loop.create_future()
        unsent = memoryview(line)
        codes = bytearray()
        wanted = re.compile(rf"{mark}:(\d+)\.".encode())

        def send() -> None:
            nonlocal unsent
            unsent = unsent[_write(self.pipes["commands"], unsent) :]
            if not unsent:
                loop.remove_writer(self.pipes["commands"])

        def collect(name: str, capture: _HeadAndTail) -> None:
            capture.add(_read(self.pipes[name]))
            if capture.seen > capture.flood and not done.done():
                done.set_result("output")

        def look() -> None:
            codes.extend(_read(self.pipes["codes"]))
            found = wanted.search(codes)
            if found is not None and not done.done():
                done.set_result(int(found[1]))
            del codes[:-100]

        loop.add_reader(self.pipes["stdout"], collect, "stdout", reply.stdout)
        loop.add_reader(self.pipes["stderr"], collect, "stderr", reply.stderr)
        loop.add_reader(self.pipes["codes"], look)
        loop.add_writer(self.pipes["commands"], send)
        try:
            if math.isinf(timeout_s):
                limit = None
            else:
                limit = timeout_s
            await asyncio.wait(
                [done, self.script], timeout=limit, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            for name in ("stdout", "stderr", "codes"):
                loop.remove_reader(self.pipes[name])
            loop.remove_writer(self.pipes["commands"])
        if done.done():
            reply.code = done.result()
        elif not self.script.done():
            reply.code = "timeout"
        # Output that was written before the exit code may arrive after it.
        reply.stdout.add(_read(self.pipes["stdout"]))
        reply.stderr.add(_read(self.pipes["stderr"]))
        return reply

    async def end(self) -> None:
        self.script.cancel()
        try:
            await run_to_end(asyncio.wait([self.script]))
        finally:
            if not self.script.cancelled():
                self.script.exception()  # already reported, or no longer of interest
            self._free()


def _free(pipes: dict[str, int], folder: TemporaryFolder) -> None:
    for descriptor in pipes.values():
        os.close(descriptor)
    folder.remove()


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, _READ_BYTES)
    except BlockingIOError:
        return b""


def _write(descriptor: int, data: memoryview) -> int:
    try:
        return os.write(descriptor, data)
    except BlockingIOError:
        return 0
