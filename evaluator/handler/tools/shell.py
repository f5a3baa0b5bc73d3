"""A bash session that stays from command to command, in the bounds of `script`.

The shell is one script for its whole life, so what `run_script` guarantees holds for it: a session of its own, a
scrubbed environment, limited memory and processes, and nothing that it started runs on when it ends, is ended, or
the evaluating process is killed. Commands reach it through a named pipe; output and exit codes come back through
three others, whose names are gone before the first command runs. An exit code comes by a pipe that a command does
not inherit, behind a mark drawn for that command, so output cannot pass for the end of it; a background process
that holds the output open holds nothing up, for nobody waits for the output's end.
"""

from __future__ import annotations

import asyncio
import codecs
import math
import os
import re
import secrets
import shlex
import shutil
import tempfile
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from evaluator.errors import ToolError
from evaluator.handler.tools.script import MEMORY_BYTES, ScriptResult, run_script

TIMEOUT_S = 120.0
_OUTPUT_BYTES = 50_000
_FLOOD_FACTOR = 100
_LEAST_FLOOD_BYTES = 10_000_000
_START_S = 30.0
_READ_BYTES = 1 << 20  # more than a pipe holds, so that one read empties it
_CONTINUING = bytes(range(0x80, 0xC0))  # bytes of UTF-8 that begin no character
_PIPES = ("commands", "codes", "stdout", "stderr")
# Descriptors that no command is likely to choose itself. The shell reads its lines as a script comes from a pipe: in a
# loop of our own a stray `break` would end more than it should, and in a function what is declared would be gone.
_START = (
    'exec <"$1/commands" 201>"$1/codes" 202>"$1/stdout" 203>"$1/stderr" >/dev/null 2>&1 || exit; '
    "exec bash --noprofile --norc -s"
)
# The empty line is for the parser, which remembers a command that was cut off.
_LINE = '\n{ eval -- %s; } </dev/null >&202 2>&203 201>&- 202>&- 203>&-; printf "%%s:%%s." %s "$?" >&201\n'

Ending = Literal["exit", "timeout", "output", "processes", "memory"]


@dataclass(frozen=True, slots=True)
class ShellResult:
    """How one command ended and what it wrote, a long output without its middle.

    `exit_code` and `signal` are the command's, or the shell's where `ended` says that it is gone: by itself, for
    its time, for output without end, for too many processes or too much memory; both are None where it was killed.
    `new`: the command began a new shell.
    """

    stdout: str
    stderr: str
    exit_code: int | None
    signal: int | None = None
    ended: Ending | None = None
    new: bool = False


class Shell:
    """A bash in `cwd` that starts at its first command and again after it has ended.

    One command runs at a time, for `timeout_s` at most; past it the shell is killed with all that it started.
    `max_output_bytes` of each stream are kept; past 100 times that, and past 10 MB, the shell is killed.
    `memory_bytes` and `max_processes` are those of `run_script`, for the shell and all that it started.
    """

    def __init__(
        self,
        cwd: Path | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        max_output_bytes: int = _OUTPUT_BYTES,
        memory_bytes: int | None = MEMORY_BYTES,
        max_processes: int = 512,
    ) -> None:
        self.cwd = cwd
        self.timeout_s = timeout_s
        self.max_output_bytes = max_output_bytes
        self.memory_bytes = memory_bytes
        self.max_processes = max_processes
        self._session: _Session | None = None
        self._one_command = asyncio.Lock()

    async def run(self, command: str, *, remaining_s: float = math.inf) -> ShellResult:
        """Runs a command with nothing to read, and returns when it has ended, also where it left others running.

        What these write comes with a later command's output. When cancelled it raises CancelledError, after all is
        dead.

        Raises: ToolError, for a command that is empty or no text, and where no shell can be started or its
        supervisor was killed.
        """
        line, mark = _line(command)
        async with self._one_command:
            new = self._session is None or self._session.life.done()
            try:
                session = await self._start() if new or self._session is None else self._session
                reply = await session.exchange(line, mark, min(self.timeout_s, remaining_s), self.max_output_bytes)
                if not isinstance(reply.code, int):
                    await self.end()
            except BaseException:
                await self.end()
                raise
            stdout, stderr = reply.stdout.text(), reply.stderr.text()
            if isinstance(reply.code, int):
                return ShellResult(stdout, stderr, reply.code, new=new)
            if reply.code is not None:
                return ShellResult(stdout, stderr, None, ended=reply.code, new=new)
            last = _last(session.life)
            ended: Ending = last.overrun if last.overrun in ("processes", "memory") else "exit"
            return ShellResult(stdout, stderr, last.exit_code, last.signal, ended, new)

    async def end(self) -> None:
        """Kills the shell and all that it started; returns when they are dead. The next command starts a new one."""
        session, self._session = self._session, None
        if session is not None:
            await session.end()

    async def _start(self) -> _Session:
        await self.end()
        session = self._session = _Session(self)
        reply = await session.exchange(*_line(":"), _START_S, self.max_output_bytes)
        if reply.code is None:
            _last(session.life)  # says why
        if reply.code != 0:
            raise ToolError("the shell does not start")
        session.hide()
        return session


def _line(command: str) -> tuple[bytes, str]:
    """What the shell reads for a command, and the mark that its exit code will come with."""
    if not command.strip():
        raise ToolError("the command is empty")
    if "\0" in command:
        raise ToolError("the command holds a NUL character")
    mark = secrets.token_hex(16)
    try:
        return (_LINE % (shlex.quote(command), mark)).encode(), mark
    except UnicodeEncodeError as error:
        raise ToolError(f"the command holds a character that the system cannot take: {error.reason}") from error


def _last(life: asyncio.Task[ScriptResult]) -> ScriptResult:
    try:
        return life.result()
    except ToolError as error:
        raise ToolError(f"the shell is gone: {error}; the next command begins a new one") from error


class _Capture:
    """The beginning and the end of a stream, `bound` bytes together."""

    def __init__(self, bound: int) -> None:
        self.half = bound // 2
        self.flood = max(bound * _FLOOD_FACTOR, _LEAST_FLOOD_BYTES)
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
        """Undecodable bytes and NUL as U+FFFD; a character that a cut went through is left out."""
        self._trim()
        left_out = self.seen - len(self.head) - len(self.tail)
        if not left_out:
            return _decoded(bytes(self.head + self.tail))
        tail = bytes(self.tail)
        tail = tail[:3].lstrip(_CONTINUING) + tail[3:]
        return f"{_decoded(bytes(self.head), whole=False)}\n[… {left_out:,} bytes left out …]\n{_decoded(tail)}"


def _decoded(data: bytes, *, whole: bool = True) -> str:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    return decoder.decode(data, final=whole).replace("\0", "\ufffd")


class _Reply:
    """What one command has written; `code` is None where the shell ended by itself."""

    def __init__(self, bound: int) -> None:
        self.stdout = _Capture(bound)
        self.stderr = _Capture(bound)
        self.code: int | Ending | None = None


class _Session:
    """One shell, from its start to its end."""

    def __init__(self, shell: Shell) -> None:
        self.folder = tempfile.mkdtemp(prefix="evaluator-shell-")
        pipes: dict[str, int] = {}
        self._free = weakref.finalize(self, _free, pipes, self.folder)
        try:
            for name in _PIPES:
                path = os.path.join(self.folder, name)
                os.mkfifo(path, 0o600)
                # For both directions, so that opening waits for nobody and no pipe ever ends.
                pipes[name] = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        except OSError as error:
            self._free()
            raise ToolError(f"the shell's pipes cannot be made: {error.strerror or error}") from error
        self.pipes = pipes
        self.life = asyncio.create_task(
            run_script(
                ["bash", "--noprofile", "--norc", "-c", _START, "bash", self.folder],
                timeout_s=math.inf,
                cwd=shell.cwd,
                memory_bytes=shell.memory_bytes,
                max_processes=shell.max_processes,
            )
        )

    def hide(self) -> None:
        """Takes the pipes' names away, which the shell needs only to open them."""
        shutil.rmtree(self.folder, ignore_errors=True)

    async def exchange(self, line: bytes, mark: str, timeout_s: float, bound: int) -> _Reply:
        """Sends a line and waits for its exit code, for the shell's end, for a flood or for the end of its time."""
        loop = asyncio.get_running_loop()
        reply = _Reply(bound)
        done: asyncio.Future[int | Ending] = loop.create_future()
        unsent, codes = memoryview(line), bytearray()
        wanted = re.compile(rf"{mark}:(\d+)\.".encode())

        def send() -> None:
            nonlocal unsent
            unsent = unsent[_write(self.pipes["commands"], unsent) :]
            if not unsent:
                loop.remove_writer(self.pipes["commands"])

        def collect(name: str, capture: _Capture) -> None:
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
            limit = None if math.isinf(timeout_s) else timeout_s
            await asyncio.wait([done, self.life], timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for name in ("stdout", "stderr", "codes"):
                loop.remove_reader(self.pipes[name])
            loop.remove_writer(self.pipes["commands"])
        if done.done():
            reply.code = done.result()
        elif not self.life.done():
            reply.code = "timeout"
        # Written before the exit code was, and perhaps not seen before it.
        reply.stdout.add(_read(self.pipes["stdout"]))
        reply.stderr.add(_read(self.pipes["stderr"]))
        return reply

    async def end(self) -> None:
        self.life.cancel()
        cancelled: asyncio.CancelledError | None = None
        while not self.life.done():
            try:
                await asyncio.wait([self.life])
            except asyncio.CancelledError as error:
                cancelled = error  # first all has to be dead
        if not self.life.cancelled():
            self.life.exception()  # told already, or of no interest any more
        self._free()
        if cancelled is not None:
            raise cancelled


def _free(pipes: dict[str, int], folder: str) -> None:
    for descriptor in pipes.values():
        os.close(descriptor)
    shutil.rmtree(folder, ignore_errors=True)


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
