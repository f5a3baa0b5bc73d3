"""The launcher program: runs one script and ends only when no process that the script started is
left.

`supervisor` starts it with `python -I -S`, so it imports only the standard library, and as little
of it as it can: each script has a launcher of its own in memory. Its argument is a socket: the
launcher receives an order on it (marshal) and sends one report; any byte or the end of the file in
between means: kill. As the subreaper of the script's tree it inherits every orphan, including one
that called setsid or forked twice, so it knows for certain when no child is left. On systems
without subreapers it reaches only the script's process group. Where the kernel supports it
(Landlock, since Linux 6.12), the script can send signals only to processes that it started: it can
neither kill nor stop the launcher.
"""

from __future__ import annotations

import ctypes
import marshal
import os
import select
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Iterator
    from typing import Any, NoReturn
else:
    import _signal as signal  # without the enumerations, which take 0.8 MB

_SET_PDEATHSIG = 1
_SET_CHILD_SUBREAPER = 36
_LINGER_S = 0.2
_GIVE_UP_S = 5.0
_CLEAN_UP_S = 10.0
_LOOK_S = 0.1
# A tree that has neither run nor changed since the last look is looked at less often, at least this
# often.
_IDLE_LOOK_S = 0.5
# The largest share of the time that is spent on measuring the tree's memory.
_LOOK_SHARE = 0.01
_MOST_LOOK_S = 2.0
_SET_NO_NEW_PRIVS = 38
_LANDLOCK_CREATE_RULESET = 444
_LANDLOCK_RESTRICT_SELF = 446
_LANDLOCK_VERSION = 1
_LANDLOCK_SCOPE_SIGNAL = 1 << 1
_LANDLOCK_ABI_WITH_SCOPES = 6
_JOIN_SESSION_KEYRING = 1
# Indices in the fields of `_stat`: pages in memory; CPU time in user and kernel mode, in ticks.
_RSS = 21
_TIMES = slice(11, 13)


def main() -> NoReturn:
    # A low number, which `select` accepts, and not inherited.
    given = int(sys.argv[1])
    control = os.dup(given)
    os.close(given)
    order = _receive(control)
    if order["is_nested"]:
        _go_on_in_child(control)
    prctl = _find_prctl()
    subreaper = prctl is not None and prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    wake, wake_end = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(wake_end, False)
    signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, _ignore)

    started = time.monotonic()
    status, status_end = os.pipe()
    os.set_blocking(status, False)
    pid, failure = _start(order, prctl, status=status_end)
    os.close(status_end)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    if failure is not None:
        os.waitpid(pid, 0)
        _report(control, {"failure": failure})
    family = _Family(
        pid, subreaper, max_processes=order["max_processes"], memory_bytes=order["memory_bytes"]
    )
    reason = _wait(control, wake, family=family, deadline=started + order["timeout_s"])
    ended = time.monotonic()
    if reason == "ended":
        _linger(control, wake, family=family)
    survivors = family.kill(wake)
    is_started = reason != "ended" or _has_started(order, status)
    _clean_up(order["cleanup"], order["env"])
    _report(
        control,
        {
            "reason": reason,
            "status": family.status,
            "survivors": survivors,
            "duration_s": ended - started,
            "is_started": is_started,
        },
    )


def _go_on_in_child(control: int) -> None:
    """Leaves the work to a child, and ends as it does."""
    pid = os.fork()
    if pid:
        os.close(control)
        os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) & 0xFF)
    os.setsid()


def _ignore(number: int, frame: object) -> None:
    """A handler is needed so that the signal wakes `select`."""


def _has_started(order: dict[str, Any], status: int) -> bool:
    """Whether the sandbox, if there is one, started the script before it ended."""
    if order["status_option"] is not None:
        try:
            return b"exit-code" in os.read(status, 65536)
        except BlockingIOError:
            return False
    return order["status_file"] is None or os.path.exists(order["status_file"])


def _clean_up(argv: list[bytes], env: dict[bytes, bytes]) -> None:
    """Removes a container, which is not a descendant of this process; normally it is gone
    already.
    """
    if not argv:
        return
    try:
        pid = os.posix_spawn(argv[0], argv, env, setsid=True)
    except OSError:
        return  # the script was started by the same program, so it was removed meanwhile
    give_up = time.monotonic() + _CLEAN_UP_S
    while os.waitpid(pid, os.WNOHANG)[0] == 0:
        if time.monotonic() > give_up:
            _send(os.kill, pid)
        time.sleep(0.005)


class _Family:
    """The script and all its descendants. `status` is the wait status of the script, None while it
    runs.
    """

    def __init__(
        self, pid: int, subreaper: bool, max_processes: int, memory_bytes: int | None
    ) -> None:
        self.pid = pid
        self.subreaper = subreaper
        self.max_processes = max_processes
        self.memory_bytes = memory_bytes
        self.next_look = time.monotonic() + _LOOK_S
        self.look_s = _LOOK_S
        self.seen: object = None
        self.status: int | None = None
        self.before = _tasks_of_system() if subreaper else 0

    def too_many(self) -> bool:
        """Whether more than `max_processes` processes of the tree are alive."""
        if not self.subreaper or _tasks_of_system() - self.before < self.max_processes:
            return False
        return sum(1 for _ in members(os.getpid())) > self.max_processes

    def too_large(self) -> bool:
        """Whether the tree uses more memory than allowed. Memory that processes share is counted
        once.
        """
        if self.memory_bytes is None or not self.subreaper or time.monotonic() < self.next_look:
            return False
        began = time.monotonic()
        page = os.sysconf("SC_PAGE_SIZE")
        held: dict[int, int] = {}
        state: list[object] = []
        for pid, fields in members(os.getpid()):
            held[pid] = int(fields[_RSS]) * page
            state += (pid, fields[_RSS], *fields[_TIMES])
        if state == self.seen:
            self.look_s = min(2 * self.look_s, _IDLE_LOOK_S)
        else:
            self.look_s = _LOOK_S
        self.seen = state
        ended = time.monotonic()
        self.next_look = ended + min((ended - began) / _LOOK_SHARE, _MOST_LOOK_S)
        # The exact figure is expensive, and it is never above the sum of the resident sizes.
        return (
            sum(held.values())
            > self.memory_bytes
            < sum(_share(pid, size) for pid, size in held.items())
        )

    def reap(self) -> bool:
        """Collects children that have ended. Returns whether a child is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self.pid:
                self.status = status

    def kill(self, wake: int) -> int:
        """Kills until no child is left or 5 s have passed. Returns how many are left (those of
        another user).
        """
        give_up = time.monotonic() + _GIVE_UP_S
        while True:
            if self.status is None or not self.subreaper:
                _send(os.killpg, self.pid)
            if self.subreaper:
                found = kill_descendants(os.getpid())
            else:
                found = 0
            if not self.reap():
                return 0
            if time.monotonic() > give_up:
                return max(found, 1)
            if select.select([wake], [], [], 0.002)[0]:
                _drain(wake)


def kill_descendants(root: int) -> int:
    """Kills each descendant of `root` and its process group, in one pass over /proc. Returns their
    number.

    A group is killed at once, which also catches a process that forks faster than /proc can be
    read. Killing while reading shortens the time in which a process can escape; the caller repeats
    until none is left.
    """
    groups = {os.getpgid(0), os.getpgid(root)}
    found = 0
    for pid, fields in _descendants(root):
        found += 1
        group = int(fields[2])
        if group not in groups:
            groups.add(group)
            _send(os.killpg, group)
        _send(os.kill, pid)
    return found


def _descendants(root: int) -> Iterator[tuple[int, list[bytes]]]:
    """Each living descendant and its `_stat` fields, usually parents first."""
    family = {root}
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdecimal()):
        fields = _stat(pid)
        if fields is not None and int(fields[1]) in family:
            family.add(pid)
            if fields[0] != b"Z":
                yield pid, fields


def members(root: int) -> Iterator[tuple[int, list[bytes]]]:
    """As `_descendants`, for counting: asks the kernel for the children of each process, which does
    not cost more on a system with many other processes. It may miss a child of a process that ends
    meanwhile.
    """
    if not os.path.exists(f"/proc/{root}/task/{root}/children"):
        yield from _descendants(root)
        return
    waiting = _children(root)
    while waiting:
        pid = waiting.pop()
        fields = _stat(pid)
        if fields is not None and fields[0] != b"Z":
            yield pid, fields
            waiting += _children(pid)


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return found  # it has ended, and its children belong to the launcher
    for thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += map(int, file.read().split())
        except OSError:
            pass  # the thread has ended, and its children belong to another one
    return found


def _share(pid: int, resident: int) -> int:
    """The memory of a process in bytes, with its part of shared memory; `resident` if that is
    unknown.
    """
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(b"Pss:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass  # the process ended or is another user's, or the kernel is old
    return resident


def _tasks_of_system() -> int:
    """The number of processes and threads of the system: a cheap test for when to count exactly."""
    descriptor = os.open("/proc/loadavg", os.O_RDONLY)
    try:
        return int(os.read(descriptor, 200).split()[3].partition(b"/")[2])
    finally:
        os.close(descriptor)


def _stat(pid: int) -> list[bytes] | None:
    """State, parent, group, … of a process; None if it has ended."""
    try:
        descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    except OSError:
        return None
    try:
        data = os.read(descriptor, 4096)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    # The command's name is in brackets and may contain brackets and spaces.
    return data[data.rfind(b")") + 2 :].split() or None


def _send(kill: Callable[[int, int], None], target: int) -> None:
    try:
        kill(target, signal.SIGKILL)
    except OSError:
        pass  # it has ended or is another user's; the caller counts what is left


def _wait(control: int, wake: int, family: _Family, deadline: float) -> str:
    while True:
        family.reap()
        if family.status is not None:
            return "ended"
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            return "timeout"
        ready, _, _ = select.select([control, wake], [], [], min(remaining, family.look_s))
        if control in ready:
            return "killed"
        if family.too_many():
            return "processes"
        if family.too_large():
            return "memory"
        if wake in ready:
            _drain(wake)


def _linger(control: int, wake: int, family: _Family) -> None:
    """Gives processes that outlive the script, such as the `tee` of a redirection, a moment to
    end.
    """
    deadline = time.monotonic() + _LINGER_S
    while family.reap() and (remaining := deadline - time.monotonic()) > 0:
        ready, _, _ = select.select([control, wake], [], [], remaining)
        if control in ready:
            return
        _drain(wake)


def _drain(wake: int) -> None:
    try:
        os.read(wake, 65536)
    except BlockingIOError:
        pass


def _start(
    order: dict[str, Any], prctl: Callable[..., int] | None, status: int
) -> tuple[int, tuple[str, int] | None]:
    """Forks and executes the script. Returns its pid and, if it could not be started, stage and
    errno.
    """
    reading, writing = os.pipe()
    launcher = os.getpid()
    pid = os.fork()
    if pid == 0:
        stage = "start"
        try:
            os.setsid()
            if prctl is not None:
                prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
                if os.getppid() != launcher:
                    os._exit(127)
            _restrict(order["memory_bytes"])
            if order["keyctl"] is not None:
                # The keys of the user's session stay with the evaluator. Fails only where the
                # kernel has no keys, or forbids the call to the script as well.
                ctypes.CDLL(None).syscall(order["keyctl"], _JOIN_SESSION_KEYRING, None)
            if order["is_confined"] and prctl is not None:
                _confine(prctl)
            stage = "cwd"
            if order["cwd"] is not None:
                os.chdir(order["cwd"])
            stage = "exec"
            argv = order["argv"]
            if order["status_option"] is not None:
                os.set_inheritable(status, True)
                argv = [argv[0], order["status_option"].encode(), str(status).encode(), *argv[1:]]
            if order["seccomp"] is not None:
                program, program_end = os.pipe()
                os.write(program_end, order["seccomp"])
                os.close(program_end)
                os.set_inheritable(program, True)
                argv = [argv[0], b"--seccomp", str(program).encode(), *argv[1:]]
            os.execvpe(argv[0], argv, order["env"])
        except OSError as error:
            os.write(writing, marshal.dumps((stage, error.errno or 0)))
        finally:
            os._exit(127)
    os.close(writing)
    failure = os.read(reading, 4096)
    os.close(reading)
    return pid, marshal.loads(failure) if failure else None


def _restrict(memory_bytes: int | None) -> None:
    import resource

    signal.set_wakeup_fd(-1)
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory_bytes is not None:
        # Not the address space if possible: some runtimes reserve far more of it than they use.
        if sys.platform.startswith("linux"):
            limit = resource.RLIMIT_DATA
        else:
            limit = resource.RLIMIT_AS
        _, hard = resource.getrlimit(limit)
        if hard == resource.RLIM_INFINITY:
            soft = memory_bytes
        else:
            soft = min(memory_bytes, hard)
        resource.setrlimit(limit, (soft, soft))


def can_confine() -> bool:
    """Whether the kernel can keep a script from sending signals to, and tracing, processes that it
    did not start.
    """
    if not sys.platform.startswith("linux"):
        return False
    size = ctypes.c_size_t(0)
    version = ctypes.c_uint32(_LANDLOCK_VERSION)
    return (
        ctypes.CDLL(None).syscall(_LANDLOCK_CREATE_RULESET, None, size, version)
        >= _LANDLOCK_ABI_WITH_SCOPES
    )


def _confine(prctl: Callable[..., int]) -> None:
    """Restricts signals to processes started from now on. Does nothing if the kernel does not
    support it.

    This requires `no_new_privs`: programs with a set-user-id bit (sudo) then run with the script's
    own rights.
    """
    if not can_confine():
        return
    syscall = ctypes.CDLL(None).syscall
    attributes = (ctypes.c_uint64 * 3)(0, 0, _LANDLOCK_SCOPE_SIGNAL)
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    rules = syscall(_LANDLOCK_CREATE_RULESET, ctypes.byref(attributes), size, ctypes.c_uint32(0))
    if rules < 0:
        return
    prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    syscall(_LANDLOCK_RESTRICT_SELF, ctypes.c_int(rules), ctypes.c_uint32(0))
    os.close(rules)


def _find_prctl() -> Callable[..., int] | None:
    if sys.platform.startswith("linux"):
        return ctypes.CDLL(None).prctl
    return None


def _receive(control: int) -> dict[str, Any]:
    head = _read_exactly(control, 8)
    return marshal.loads(_read_exactly(control, int.from_bytes(head, "big")))


def _read_exactly(descriptor: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = os.read(descriptor, size - len(data))
        if not piece:
            os._exit(1)
        data += piece
    return data


def _report(control: int, report: dict[str, Any]) -> NoReturn:
    try:
        os.write(control, marshal.dumps(report))
    except OSError:
        pass  # the supervisor is gone; the script is dead in any case
    os._exit(0)


if __name__ == "__main__":
    main()
