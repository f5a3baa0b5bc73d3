"""Runs a script in bounds: its own session, a scrubbed environment, limited time, output and memory.

Each script runs under a small launcher process that is the subreaper of its tree (see `_launcher`), which
costs about 15 ms and buys a certainty: when `run_script` returns or raises, nothing that the script started
is running, also what called setsid or forked twice. Should the evaluating process be killed, the launcher
notices and kills the tree as well. What a script can still do: a fork bomb lives until the next look at
the tree, a tenth of a second. Where the kernel does not keep scripts from sending signals to what they did not start
(Landlock, since Linux 6.12), a script that kills its launcher is swept up by a mark in its environment, which a
process that cleared its environment and called setsid first escapes.
"""

from __future__ import annotations

import asyncio
import codecs
import errno
import marshal
import math
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from evaluator.errors import ToolError
from evaluator.handler.tools import _launcher
from evaluator.handler.tools.threads import in_thread

MARK = "EVALUATOR_SCRIPT_ID"
MEMORY_BYTES = 8 << 30
_KEPT = ("PATH", "HOME", "LANG", "TMPDIR")
_FLOOD_FACTOR = 100
_LEAST_FLOOD_BYTES = 10_000_000
_LATE_S = 1.0
_BACKSTOP_S = 8.0
_PIPE_GRACE_S = 1.0
_IS_CONFINED = True

Overrun = Literal["output", "processes", "memory"]


@dataclass(frozen=True, slots=True)
class ScriptResult:
    """How a script ended and the beginning of what it wrote, undecodable bytes as U+FFFD.

    Exactly one of `exit_code` and `signal` is set. `overrun`: killed for output without end, for too
    many processes or for too much memory. `survivors` counts processes that could not be killed (another user's);
    0 otherwise.
    `stdout_bytes` is what `stdout` was decoded from.
    """

    stdout: str
    stderr: str
    exit_code: int | None
    signal: int | None
    timed_out: bool
    stdout_truncated: bool
    stderr_truncated: bool
    duration_s: float
    overrun: Overrun | None = None
    survivors: int = 0
    stdout_bytes: bytes = field(default=b"", repr=False)


def scrubbed_environment() -> dict[str, str]:
    """PATH, HOME, LANG, LC_* and TMPDIR of this process, and nothing else: no key, no token."""
    return {name: value for name, value in os.environ.items() if name in _KEPT or name.startswith("LC_")}


async def run_script(
    argv: Sequence[str] | str,
    *,
    stdin: bytes | str | None = None,
    timeout_s: float,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    max_output_bytes: int = 1_000_000,
    memory_bytes: int | None = MEMORY_BYTES,
    max_processes: int = 512,
) -> ScriptResult:
    """Runs a program to its end and returns what it wrote. A string is handed to `/bin/sh -c`.

    The script has no terminal; its input is `stdin`, or nothing. `env` replaces the scrubbed environment.
    Up to `max_output_bytes` of each stream are kept and the rest is discarded as it comes; past 100 times
    that, and past 10 MB, the script is killed. `memory_bytes` (None: no bound) is what each of its
    processes may allocate (RLIMIT_DATA; the address space where there is no /proc) and what all of them may hold
    together: the tree is killed when it is seen to hold more, or to have more than `max_processes` (looked at every
    0.1 s, for memory less often where there are very many processes; on Linux). Files are not counted, those in
    /dev/shm neither. Processes that outlive the script have 0.2 s to end before they are killed.

    Raises: ToolError, where it cannot be started (not found, not executable, no such folder, empty argv).
    When cancelled it raises CancelledError, after the tree is dead.
    """
    words = ["/bin/sh", "-c", argv] if isinstance(argv, str) else list(argv)
    environment = scrubbed_environment() if env is None else dict(env)
    mark = secrets.token_hex(16)
    environment[MARK] = mark
    _check(words, argv, environment, timeout_s)
    order = marshal.dumps(
        {
            "argv": [_encode(word) for word in words],
            "env": {_encode(name): _encode(value) for name, value in environment.items()},
            "cwd": None if cwd is None else _encode(str(cwd)),
            "timeout_s": float(timeout_s),
            "memory_bytes": memory_bytes,
            "max_processes": max_processes,
            "is_confined": _IS_CONFINED,
        }
    )
    data = stdin.encode("utf-8", "surrogatepass") if isinstance(stdin, str) else stdin
    run = _Run(mark, data is not None, max_output_bytes)
    try:
        report = await run.finish(order, data, timeout_s)
    except BaseException:
        await run.abort()
        raise
    finally:
        run.close()
    if "failure" in report:
        raise _start_failure(words[0], cwd, *report["failure"])
    return _result(run, report)


def _check(words: list[str], argv: Sequence[str] | str, environment: Mapping[str, str], timeout_s: float) -> None:
    if os.name != "posix":
        raise ToolError("scripts need a POSIX system (Linux or macOS)")
    if not words or not words[0] or (isinstance(argv, str) and not argv.strip()):
        raise ToolError("the command is empty: give the program's name, then its arguments")
    for word in words:
        if not isinstance(word, str):  # pyright: ignore[reportUnnecessaryIsInstance]  (models and templates)
            raise ToolError(f"an argument of the command is a {type(word).__name__}; each has to be a string")
    if any("\0" in text for text in (*words, *environment, *environment.values())):
        raise ToolError("the command or its environment holds a NUL character")
    if any("=" in name or not name for name in environment):
        raise ToolError("a name in the script's environment is empty or holds '='")
    if math.isnan(timeout_s) or timeout_s <= 0:
        raise ToolError("there is no time left to run the script")
    if not sys.executable:
        raise ToolError("no Python executable is known to supervise the script with")


def _encode(text: str) -> bytes:
    try:
        return os.fsencode(text)
    except UnicodeEncodeError as error:
        raise ToolError(f"the command holds a character that the system cannot take: {error.reason}") from error


def _start_failure(program: str, cwd: Path | None, stage: str, code: int) -> ToolError:
    if stage == "cwd":
        return ToolError(f"the working folder {str(cwd)!r} cannot be entered: {os.strerror(code)}")
    if code in (errno.ENOENT, errno.ENOTDIR):
        return ToolError(f"program not found: {program!r} (or the interpreter that its first line names)")
    if code == errno.EACCES:
        return ToolError(f"{program!r} is not executable (no execute permission, or a folder)")
    if code == errno.ENOEXEC:
        return ToolError(f"{program!r} is no program that the system can run; does it lack a first line '#!…'?")
    if code == errno.E2BIG:
        return ToolError("the command's arguments and environment are too long for the system; use stdin")
    return ToolError(f"{program!r} cannot be started: {os.strerror(code)}")


def _result(run: _Run, report: dict[str, Any]) -> ScriptResult:
    status: int | None = report["status"]
    code = None if status is None else os.waitstatus_to_exitcode(status)
    return ScriptResult(
        stdout=run.stdout.text(),
        stderr=run.stderr.text(),
        exit_code=code if code is not None and code >= 0 else None,
        signal=signal.SIGKILL.value if code is None else -code if code < 0 else None,
        timed_out=report["reason"] == "timeout" or run.is_late,
        stdout_truncated=run.stdout.truncated,
        stderr_truncated=run.stderr.truncated,
        duration_s=report["duration_s"],
        overrun=report["reason"] if report["reason"] in ("processes", "memory") else "output" if run.flooded else None,
        survivors=report["survivors"],
        stdout_bytes=bytes(run.stdout.kept),
    )


class _Capture(asyncio.Protocol):
    """Keeps the first `bound` bytes of a pipe, counts the rest, calls `on_flood` once past 100 times that."""

    def __init__(self, bound: int, on_flood: Callable[[], None]) -> None:
        self.kept = bytearray()
        self.seen = 0
        self.bound = bound
        self.on_flood = on_flood
        self.ended = asyncio.get_running_loop().create_future()
        self.transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        flood = max(self.bound * _FLOOD_FACTOR, _LEAST_FLOOD_BYTES)
        if self.seen <= flood < self.seen + len(data):
            self.on_flood()
        self.seen += len(data)
        if len(self.kept) < self.bound:
            self.kept += data[: self.bound - len(self.kept)]

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    @property
    def truncated(self) -> bool:
        return self.seen > len(self.kept)

    def text(self) -> str:
        # A character that the bound cut in two is left out, not shown as broken.
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        return decoder.decode(bytes(self.kept), final=not self.truncated)


class _Run:
    """One launcher, its pipes and its control socket. `close` frees them all and may be called twice."""

    def __init__(self, mark: str, has_input: bool, bound: int) -> None:
        self.mark = mark
        self.flooded = False
        self.is_late = False
        self.report = b""
        self.stdout = _Capture(bound, self._flood)
        self.stderr = _Capture(bound, self._flood)
        self.writer: asyncio.WriteTransport | None = None
        self.control, theirs = socket.socketpair()
        self.control.setblocking(False)
        environment = scrubbed_environment()
        if "LD_LIBRARY_PATH" in os.environ:  # some Pythons need it to start
            environment["LD_LIBRARY_PATH"] = os.environ["LD_LIBRARY_PATH"]
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", _launcher.__file__, str(theirs.fileno())],
                stdin=subprocess.PIPE if has_input else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            self.control.close()
            raise ToolError(f"no process can be started: {error.strerror or error}") from error
        finally:
            theirs.close()

    async def finish(self, order: bytes, data: bytes | None, timeout_s: float) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: self.stdout, self.process.stdout)
        await loop.connect_read_pipe(lambda: self.stderr, self.process.stderr)
        if data is not None:
            self.writer, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, self.process.stdin)
            self.writer.write(data)
            self.writer.write_eof()
        try:
            async with asyncio.timeout(None if math.isinf(timeout_s) else timeout_s + _LATE_S):
                await loop.sock_sendall(self.control, len(order).to_bytes(8, "big") + order)
                await self._read_report()
        except TimeoutError:
            self.is_late = True  # the launcher keeps the time itself; late means that it was stopped
            self._kill()
            await self._read_report_within(_BACKSTOP_S)
        except OSError:
            pass  # it died before it had read its order
        if not self.report:
            await self.abort()
            raise ToolError("the script's supervisor was killed or stopped from outside; the script was killed")
        # Pipes can be held open only by a process that was given them and is not of the tree.
        await asyncio.wait([self.stdout.ended, self.stderr.ended], timeout=_PIPE_GRACE_S)
        return marshal.loads(self.report)

    async def _read_report(self) -> None:
        try:
            while piece := await asyncio.get_running_loop().sock_recv(self.control, 65536):
                self.report += piece
        except ConnectionResetError:
            pass  # it ended without reading a last "kill"; what it wrote was read before

    async def _read_report_within(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._read_report()
        except TimeoutError:
            pass  # the caller looks at what has come

    def _flood(self) -> None:
        self.flooded = True
        self._kill()

    def _kill(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)  # the script may have stopped its launcher
        try:
            self.control.send(b"k")
            self.control.shutdown(socket.SHUT_WR)  # a launcher that still reads its order learns of it too
        except OSError:
            pass  # the launcher is gone; `abort` looks for what it left

    async def abort(self) -> None:
        """Kills the tree and returns when it is dead, however often this task is cancelled meanwhile."""
        if self.report and self.process.poll() == 0:
            return
        self._kill()
        waiting = asyncio.ensure_future(self._see_it_dead())
        while not waiting.done():
            try:
                await asyncio.shield(waiting)
            except asyncio.CancelledError:
                continue

    async def _see_it_dead(self) -> None:
        try:
            await self._read_report_within(_BACKSTOP_S)
            self.process.wait(_PIPE_GRACE_S)
        except (OSError, subprocess.TimeoutExpired):
            pass  # killed, or stopped again by the script
        if self.process.poll() != 0:
            await in_thread(lambda: _kill_marked(self.process, self.mark))

    def close(self) -> None:
        if self.writer is not None and not self.writer.is_closing():
            self.writer.abort()  # input that nobody read
        for transport in (self.stdout.transport, self.stderr.transport):
            if transport is not None and not transport.is_closing():
                transport.close()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None and not pipe.closed:
                _close_quietly(pipe)
        self.control.close()
        try:
            self.process.wait(_PIPE_GRACE_S)  # it has reported and is a few instructions from its end
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _close_quietly(pipe: Any) -> None:
    try:
        pipe.close()
    except OSError:
        pass  # unsent input of a script that has ended


def _kill_marked(process: subprocess.Popen[bytes], mark: str) -> None:
    """The last resort, after the launcher is lost: kills its descendants and whatever carries the mark."""
    needle = f"{MARK}={mark}".encode()
    deadline = time.monotonic() + _BACKSTOP_S
    while time.monotonic() < deadline:
        found = 0
        if os.path.isdir("/proc/self"):
            if process.poll() is None:
                found += _launcher.kill_descendants(process.pid)
            found += sum(_kill_if_marked(int(name), needle) for name in os.listdir("/proc") if name.isdecimal())
        if process.poll() is None:
            process.kill()
            found += 1
        if not found:
            return
        time.sleep(0.002)


def _kill_if_marked(pid: int, needle: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            if needle not in file.read(4_000_000):
                return False
        os.kill(pid, signal.SIGKILL)
    except OSError:
        return False
    return True
