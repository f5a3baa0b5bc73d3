"""The filter of system calls for scripts in bubblewrap, as a program of classic BPF.

The calls below reach parts of the kernel that namespaces do not divide, and that ordinary programs
do not need: key rings, io_uring (whose requests pass by every other filter), page faults handled by
the program, performance counters, and BPF. They fail with EPERM, as in a container of Docker. A
call in the convention of another processor ends the program: its numbers mean other calls.

Source: seccomp(2); `linux/audit.h`, `asm/unistd_64.h` and `asm-generic/unistd.h` of Linux.
"""

from __future__ import annotations

import errno
import struct
import sys
from collections.abc import Mapping
from functools import cache

from evaluator import this_process

_SHARED: Mapping[str, int] = {
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
}
_BLOCKED: Mapping[str, Mapping[str, int]] = {
    "x86_64": {
        "add_key": 248,
        "request_key": 249,
        "keyctl": 250,
        "perf_event_open": 298,
        "bpf": 321,
        "userfaultfd": 323,
        **_SHARED,
    },
    "aarch64": {
        "add_key": 217,
        "request_key": 218,
        "keyctl": 219,
        "perf_event_open": 241,
        "bpf": 280,
        "userfaultfd": 282,
        **_SHARED,
    },
}
_AUDIT_ARCH: Mapping[str, int] = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
# On x86_64, the numbers from here on are those of the x32 convention.
_X32_BIT = 0x40000000

# Offsets in `struct seccomp_data`.
_NUMBER = 0
_ARCH = 4

_LOAD = 0x20  # BPF_LD | BPF_W | BPF_ABS
_JUMP_IF_EQUAL = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_JUMP_IF_AT_LEAST = 0x35  # BPF_JMP | BPF_JGE | BPF_K
_RETURN = 0x06  # BPF_RET | BPF_K
_ALLOW = 0x7FFF0000
_FAIL = 0x00050000
_KILL_PROCESS = 0x80000000


@cache
def machine() -> str | None:
    """The processor for which the programs of this system are built; None if no filter is known for
    it.
    """
    name = this_process.machine()
    if not sys.platform.startswith("linux") or sys.maxsize < 1 << 32 or name not in _BLOCKED:
        return None
    return name


def keyctl_number() -> int | None:
    """The number of the call `keyctl` on this system; None if it is not known."""
    name = machine()
    if name is None:
        return None
    return _BLOCKED[name]["keyctl"]


def syscall_filter(name: str) -> bytes:
    """The filter for the processor `name` (see `machine`), as `bwrap --seccomp` reads it: 8 bytes
    an instruction.
    """
    blocked = sorted(_BLOCKED[name].values())
    has_x32 = name == "x86_64"
    # Jumps count the instructions that they skip. The four returns are at the end.
    tests = len(blocked) + has_x32
    program = [
        _instruction(_LOAD, _ARCH),
        _instruction(_JUMP_IF_EQUAL, _AUDIT_ARCH[name], if_not=tests + 4),
        _instruction(_LOAD, _NUMBER),
    ]
    if has_x32:
        program.append(_instruction(_JUMP_IF_AT_LEAST, _X32_BIT, if_so=tests + 1))
    for index, number in enumerate(blocked):
        program.append(_instruction(_JUMP_IF_EQUAL, number, if_so=len(blocked) - index))
    program += [
        _instruction(_RETURN, _ALLOW),
        _instruction(_RETURN, _FAIL | errno.EPERM),
        _instruction(_RETURN, _FAIL | errno.ENOSYS),
        _instruction(_RETURN, _KILL_PROCESS),
    ]
    return b"".join(program)


def _instruction(code: int, operand: int, *, if_so: int = 0, if_not: int = 0) -> bytes:
    """`struct sock_filter`: operation, jumps if the test holds and if not, operand."""
    return struct.pack("=HBBI", code, if_so, if_not, operand)
