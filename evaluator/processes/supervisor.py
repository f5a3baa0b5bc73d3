"""Supervised child processes: a program under a launcher process that ends only when its whole
process tree is dead.

The launcher (see `launcher`) is the subreaper of the program's tree. It costs about 15 ms and gives
a guarantee: when `SupervisedProcess.end` returns, nothing that the program started is running,
including processes that called setsid or forked twice. If the evaluating process is killed, the
launcher notices and kills the tree too. What a program can still do: a fork bomb lives until the
next look at the tree, a tenth of a second. Where the kernel cannot restrict signals to the
program's own tree (Landlock, since Linux 6.12), a program may kill its launcher; the tree is then
found by a mark in its environment, which a process that cleared its environment and called setsid
before escapes.
"""

from __future__ import annotations

import asyncio
import codecs
import errno
import marshal
import math
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeVar

from evaluator import clock, disk, randomness
from evaluator.errors import ConfigurationError, ToolError
from evaluator.errors.messages import type_of
from evaluator.lazy_dataclass import frozen
from evaluator.processes import launcher, starting
from evaluator.processes.concurrency import in_thread
from evaluator.processes.own_environment import is_kept_variable
from evaluator.processes.sandboxes import (
    MAX_PROCESSES,
    MEMORY_BYTES,
    NO_SANDBOX,
    Sandbox,
    SandboxedCommand,
    ScriptPlace,
    sandboxed_command,
)
from evaluator.processes.script_folders import ReservedNames, TemporaryFolder
from evaluator.processes.seccomp import keyctl_number
from evaluator.processes.waiting import is_waiting

_MARK = "EVALUATOR_SCRIPT_ID"
# As a module, the launcher is not compiled again for each script.
_PROGRAM = """
import sys
sys.path.append(sys.argv.pop(1).rpartition("/")[0])
import launcher
launcher.main()
"""
_FLOOD_FACTOR = 100
_MIN_FLOOD_BYTES = 10_000_000
_LATE_S = 1.0
_BACKSTOP_S = 8.0
_PIPE_GRACE_S = 1.0
_IS_CONFINED = True
_T = TypeVar("_T")

EndReason = Literal["ended", "timeout", "killed", "processes", "memory"]


def scrubbed_environment() -> dict[str, str]:
    """The variables PATH, HOME, LANG, LC_* and TMPDIR of this process: no keys, no tokens."""
    return {name: value for name, value in os.environ.items() if is_kept_variable(name)}


def flood_limit(max_bytes: int) -> int:
    """The bytes of output after which a program is killed, where the first `max_bytes` of it are
    kept.
    """
    return max(max_bytes * _FLOOD_FACTOR, _MIN_FLOOD_BYTES)


def decode_output(data: bytes, *, is_cut: bool = False) -> str:
    """Output as text; undecodable bytes become U+FFFD. `is_cut`: an incomplete last character is
    left out.
    """
    return codecs.getincrementaldecoder("utf-8")("replace").decode(data, final=not is_cut)


async def run_to_end(
    work: Coroutine[Any, Any, _T] | asyncio.Future[_T], on_cancel: Callable[[], None] | None = None
) -> _T:
    """Waits until `work` has ended, even if this task is cancelled meanwhile; then raises the
    CancelledError. The end of the event loop cancels a coroutine too, but not a future.

    `on_cancel` is called at each cancellation.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
            if on_cancel is not None:
                on_cancel()
    if cancelled is not None:
        raise cancelled
    return task.result()


@frozen
class Command:
    """A program with its arguments and limits.

    `env` replaces the scrubbed environment. `memory_bytes` (None: no limit) is what each process
    may allocate (RLIMIT_DATA; the address space where there is no /proc) and what all of them may
    hold together: the tree is killed when it holds more, or has more than `max_processes`. The tree
    is checked every 0.1 s, every 0.5 s while it is idle, and its memory less often if there are
    very many processes (on Linux only). Files are not counted, not even those in /dev/shm. In a
    `sandbox`, `cwd` is an absolute path, and its `folder` says where the command works.
    `is_nested`: the launcher is not a child
    of this process, but of one that waits for it; for a process whose children are killed when it
    ends.
    """

    argv: Sequence[str]
    timeout_s: float = math.inf
    cwd: Path | None = None
    env: Mapping[str, str] | None = None
    memory_bytes: int | None = MEMORY_BYTES
    max_processes: int = MAX_PROCESSES
    sandbox: Sandbox = NO_SANDBOX
    is_nested: bool = False

    def order(self, mark: str, place: ScriptPlace) -> bytes:
        """The message that tells the launcher what to run. Raises: ToolError, for a command that
        cannot be run.
        """
        environment = {**(scrubbed_environment() if self.env is None else self.env), _MARK: mark}
        self._check(environment)
        start = self._in_sandbox(environment, mark, place=place)
        order = {
            "argv": [_encode(word) for word in start.argv],
            "env": {_encode(name): _encode(value) for name, value in start.env.items()},
            "cwd": None if self.cwd is None else _encode(str(self.cwd)),
            "status_option": start.status_option,
            "status_file": start.status_file,
            "cleanup": [_encode(word) for word in start.cleanup],
            "seccomp": start.seccomp,
            "keyctl": keyctl_number(),
            "timeout_s": float(self.timeout_s),
            "memory_bytes": self.memory_bytes,
            "max_processes": self.max_processes,
            "is_nested": self.is_nested,
            "is_confined": _IS_CONFINED and self.sandbox.kind == "none",
        }
        data = marshal.dumps(order)
        return len(data).to_bytes(8, "big") + data

    def _in_sandbox(
        self, environment: Mapping[str, str], mark: str, place: ScriptPlace
    ) -> SandboxedCommand:
        if self.sandbox.kind == "none":
            return SandboxedCommand(tuple(self.argv), environment)
        try:
            return sandboxed_command(
                self.sandbox,
                tuple(self.argv),
                env=environment,
                place=place,
                name=f"evaluator-{mark}",
                memory_bytes=self.memory_bytes,
                max_processes=self.max_processes,
            )
        except ConfigurationError as error:
            raise ToolError(str(error)) from error

    def _check(self, environment: Mapping[str, str]) -> None:
        if not self.argv or not self.argv[0]:
            raise ToolError("the command is empty: give the program's name, then its arguments")
        for word in self.argv:
            # Models and templates name them.
            if not isinstance(word, str):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ToolError(
                    f"an argument of the command is {type_of(word)}; each has to be a string"
                )
        if any("\0" in text for text in (*self.argv, *environment, *environment.values())):
            raise ToolError("the command or its environment contains a NUL character")
        if any("=" in name or not name for name in environment):
            raise ToolError("a name in the script's environment is empty or contains '='")
        if math.isnan(self.timeout_s) or self.timeout_s <= 0:
            raise ToolError("there is no time left to run the script")

    def start_error(self, stage: str, code: int) -> ToolError:
        """The ToolError for a program that could not be started: the failed stage and its errno."""
        if self.sandbox.kind == "none":
            program = self.argv[0]
        else:
            program = self.sandbox.program() or ""
        if stage == "cwd":
            return ToolError(
                f"the working folder {str(self.cwd)!r} cannot be entered: {os.strerror(code)}"
            )
        reasons = {
            errno.ENOENT: f"program not found: {program!r} (or the interpreter that its first "
            "line names)",
            errno.ENOTDIR: f"program not found: {program!r} (or the interpreter that its first "
            "line names)",
            errno.EACCES: f"{program!r} is not executable (no execute permission, or a folder)",
            errno.ENOEXEC: f"{program!r} is not a program that the system can run; is its first "
            "line '#!…' missing?",
            errno.E2BIG: "the command's arguments and environment are too long for the system; "
            "use stdin",
        }
        return ToolError(reasons.get(code, f"{program!r} cannot be started: {os.strerror(code)}"))

    def sandbox_error(self, stderr: str) -> ToolError:
        """The ToolError for a sandbox that ended before it started the program; `stderr` says
        why.
        """
        said = " ".join(stderr.split()) or "it gave no reason"
        return ToolError(
            f"the sandbox {self.sandbox.kind} cannot start {self.argv[0]!r}: {said[:1_000]}"
        )


def _encode(text: str) -> bytes:
    try:
        return os.fsencode(text)
    except UnicodeEncodeError as error:
        raise ToolError(
            f"the command contains a character that the system cannot take: {error.reason}"
        ) from error


@frozen
class ProcessEnd:
    """The end of a supervised process: exactly one of `exit_code` and `signal` is set.

    `reason`: "ended" by itself; killed by its time limit, by a call of `kill`, or for too many
    processes or too much memory. `survivors` counts processes that could not be killed because they
    belong to another user.
    """

    reason: EndReason
    exit_code: int | None
    signal: int | None
    duration_s: float
    survivors: int


class OutputPipe(asyncio.Protocol):
    """Reads an output stream of a supervised process; subclasses keep what they need of it."""

    def __init__(self) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.transport: asyncio.BaseTransport | None = None
        self.on_flood: Callable[[], None] | None = None
        """Set by SupervisedProcess: kills the process."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


class Capture(OutputPipe):
    """Keeps the first `max_bytes` of a stream, discards the rest, and kills the process past the
    flood limit.
    """

    def __init__(self, max_bytes: int) -> None:
        super().__init__()
        self.kept = bytearray()
        self.seen = 0
        self.max_bytes = max_bytes
        self.flooded = False

    def data_received(self, data: bytes) -> None:
        self.seen += len(data)
        if self.seen > flood_limit(self.max_bytes) and not self.flooded:
            self.flooded = True
            if self.on_flood is not None:
                self.on_flood()
        if len(self.kept) < self.max_bytes:
            self.kept += data[: self.max_bytes - len(self.kept)]

    @property
    def truncated(self) -> bool:
        return self.seen > len(self.kept)

    def text(self) -> str:
        return decode_output(bytes(self.kept), is_cut=self.truncated)


class SupervisedProcess:
    """A launcher, its pipes and its control socket. `run` runs the command; `end` has to be awaited
    in any case.
    """

    def __init__(
        self,
        command: Command,
        stdout: OutputPipe | int,
        stderr: OutputPipe | int,
        *,
        has_input: bool,
    ) -> None:
        """Starts the launcher only. An output may be the descriptor of a file, to which the program
        then writes itself.

        Raises: ToolError, for a command that cannot be run.
        """
        self.input: asyncio.WriteTransport | None = None
        self._command = command
        self._mark = randomness.token_hex(16)
        self._place = _Place(command)
        try:
            self._order = command.order(self._mark, self._place.place)
        except BaseException:
            self._place.release()
            raise
        self._report = b""
        self._pipes = tuple(pipe for pipe in (stdout, stderr) if not isinstance(pipe, int))
        if isinstance(stderr, Capture):
            self._errors = stderr
        else:
            self._errors = None
        for pipe in self._pipes:
            pipe.on_flood = self.kill
        self._control, theirs = socket.socketpair()
        self._control.setblocking(False)
        environment = scrubbed_environment()
        if "LD_LIBRARY_PATH" in os.environ:  # some Pythons need it to start
            environment["LD_LIBRARY_PATH"] = os.environ["LD_LIBRARY_PATH"]
        try:
            self._process = starting.popen(
                [
                    sys.executable,
                    "-I",
                    "-S",
                    "-c",
                    _PROGRAM,
                    launcher.__file__,
                    str(theirs.fileno()),
                ],
                stdin=subprocess.PIPE if has_input else subprocess.DEVNULL,
                stdout=stdout if isinstance(stdout, int) else subprocess.PIPE,
                stderr=stderr if isinstance(stderr, int) else subprocess.PIPE,
                pass_fds=[theirs.fileno()],
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            self._control.close()
            self._place.release()
            raise ToolError(f"no process can be started: {error.strerror or error}") from error
        finally:
            theirs.close()

    def is_waiting(self) -> bool | None:
        """Whether the program waits for its standard input or a terminal; None: unknown."""
        stdin = self._process.stdin
        if stdin is None or stdin.closed:
            pipe = None
        else:
            pipe = os.fstat(stdin.fileno()).st_ino
        return is_waiting(self._process.pid, pipe)

    async def open_input(self) -> asyncio.WriteTransport:
        """The standard input of the program, if it was made with `has_input`."""
        loop = asyncio.get_running_loop()
        self.input, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, self._process.stdin)
        return self.input

    async def run(self) -> ProcessEnd:
        """Runs the command to its end.

        Raises: ToolError, if it could not be started, or if its launcher was killed or stopped.
        """
        loop = asyncio.get_running_loop()
        streams = [
            stream for stream in (self._process.stdout, self._process.stderr) if stream is not None
        ]
        for pipe, stream in zip(self._pipes, streams, strict=True):
            await loop.connect_read_pipe(lambda pipe=pipe: pipe, stream)
        is_late = False
        timeout_s = self._command.timeout_s
        try:
            async with asyncio.timeout(None if math.isinf(timeout_s) else timeout_s + _LATE_S):
                await loop.sock_sendall(self._control, self._order)
                await self._read_report()
        except TimeoutError:
            # The launcher keeps the time itself: being late means that it was stopped.
            is_late = True
            self.kill()
            await self._read_report_within(_BACKSTOP_S)
        except OSError:
            pass  # the launcher died before it had read its order
        if not self._report:
            raise ToolError(
                "the script's supervisor was killed or stopped from outside; the script was killed"
            )
        # Only a process that was given a pipe and is not of the tree can keep it open.
        if self._pipes:
            await asyncio.wait([pipe.ended for pipe in self._pipes], timeout=_PIPE_GRACE_S)
        report = marshal.loads(self._report)
        if "failure" in report:
            raise self._command.start_error(*report["failure"])
        if not report["is_started"] and not is_late:
            raise self._command.sandbox_error("" if self._errors is None else self._errors.text())
        status: int | None = report["status"]
        if status is None:
            code = -signal.SIGKILL
        else:
            code = os.waitstatus_to_exitcode(status)
        return ProcessEnd(
            reason="timeout" if is_late else report["reason"],
            exit_code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            duration_s=report["duration_s"],
            survivors=report["survivors"],
        )

    def kill(self) -> None:
        """Tells the launcher to kill the tree; `run` then returns soon."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)  # the program may have stopped its launcher
        with suppress(OSError):  # the launcher is gone; `end` looks for what it left
            self._control.send(b"k")
            # Also seen by a launcher that still reads its order.
            self._control.shutdown(socket.SHUT_WR)

    async def end(self) -> None:
        """Kills what is left of the tree and closes the pipes. Returns or raises when everything is
        dead.

        Must not run at the same time as `run`. When cancelled, it raises CancelledError at its end.
        """
        try:
            if self._report:
                self._wait_for_launcher()  # it has reported and is a few instructions from its end
            if not self._report or self._process.poll() != 0:
                self.kill()
                await run_to_end(self._ensure_dead())
        finally:
            self._close()
            await run_to_end(in_thread(self._place.release))

    async def _read_report(self) -> None:
        # A launcher that ends without reading a last "kill" resets the connection; its report was
        # read before.
        with suppress(ConnectionResetError):
            while piece := await asyncio.get_running_loop().sock_recv(self._control, 65536):
                self._report += piece

    async def _read_report_within(self, seconds: float) -> None:
        with suppress(TimeoutError):  # the caller checks what has arrived
            async with asyncio.timeout(seconds):
                await self._read_report()

    async def _ensure_dead(self) -> None:
        with suppress(OSError):  # the launcher was killed
            await self._read_report_within(_BACKSTOP_S)
        self._wait_for_launcher()
        if self._process.poll() != 0:
            await in_thread(lambda: _kill_marked(self._process, self._mark))

    def _wait_for_launcher(self) -> None:
        with suppress(subprocess.TimeoutExpired):  # the program has stopped it again
            self._process.wait(_PIPE_GRACE_S)

    def _close(self) -> None:
        if self.input is not None and not self.input.is_closing():
            self.input.abort()  # input that the program did not read
        for pipe in self._pipes:
            if pipe.transport is not None and not pipe.transport.is_closing():
                pipe.transport.close()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None and not stream.closed:
                with suppress(OSError):  # unsent input of a program that has ended
                    stream.close()
        self._control.close()
        self._wait_for_launcher()
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


class _Place:
    """The folders on this machine of a command in a sandbox, from its start to its end."""

    def __init__(self, command: Command) -> None:
        sandbox = command.sandbox
        self._temporary: TemporaryFolder | None = None
        self._reserved: ReservedNames | None = None
        fresh: Path | None = None
        status_file: str | None = None
        is_fresh = sandbox.kind != "none" and (sandbox.folder == "fresh" or command.cwd is None)
        if is_fresh or sandbox.is_container:
            self._temporary = TemporaryFolder()
        if self._temporary is not None and is_fresh:
            fresh = self._temporary.path / "work"
            disk.mkdir(fresh, 0o700)
        if self._temporary is not None and sandbox.is_container:
            # The engine creates the file, which must not exist before.
            status_file = str(self._temporary.path / "id")
        if sandbox.kind != "none" and sandbox.folder == "root" and command.cwd is not None:
            self._reserved = ReservedNames(command.cwd)
        self.place = ScriptPlace(command.cwd, fresh, status_file=status_file)

    def release(self) -> None:
        """Removes what was made for the command."""
        if self._temporary is not None:
            self._temporary.remove()
        if self._reserved is not None:
            self._reserved.release()


def _kill_marked(process: subprocess.Popen[bytes], mark: str) -> None:
    """The last resort if the launcher was lost: kills its descendants and all processes that carry
    the mark.
    """
    needle = f"{_MARK}={mark}".encode()
    deadline = clock.monotonic() + _BACKSTOP_S
    while clock.monotonic() < deadline:
        found = 0
        if os.path.isdir("/proc/self"):
            if process.poll() is None:
                found += launcher.kill_descendants(process.pid)
            found += sum(
                _kill_if_marked(int(name), needle)
                for name in os.listdir("/proc")
                if name.isdecimal()
            )
        if process.poll() is None:
            process.kill()
            found += 1
        if not found:
            return
        clock.pause(0.002)


def _kill_if_marked(pid: int, needle: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            if needle not in file.read(4_000_000):
                return False
        os.kill(pid, signal.SIGKILL)
    except OSError:
        return False
    return True
