"""Hides this process's variables and memory from programs of the same user, such as scripts.

Linux shows the environment with which a process was started in `/proc/PID/environ`: it is a block
of the process's own memory, which may be overwritten. Programs of root can still read the memory of
the process (`/proc/PID/mem`).
"""

from __future__ import annotations

import ctypes
import os
import sys

_KEPT_VARIABLES = ("PATH", "HOME", "LANG", "TMPDIR")
_SET_DUMPABLE = 4
# Fields of /proc/self/stat after the program's name, see proc(5).
_ENV_START = 47
_ENV_END = 48


def is_kept_variable(name: str) -> bool:
    """Whether scripts get this variable of the evaluator's environment."""
    return name in _KEPT_VARIABLES or name.startswith("LC_")


def hide_own_environment() -> None:
    """Removes all variables that scripts do not get from `/proc/PID/environ`, and forbids other
    processes of the user to read this one's memory. `os.environ`, `getenv` and the environment of
    children stay as they are.

    Only for a process that is this program's own, such as the command: it can then not be traced,
    and writes no core files. Does nothing on other systems than Linux.
    """
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(_SET_DUMPABLE, 0, 0, 0, 0)
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    start = int(fields[_ENV_START])
    end = int(fields[_ENV_END])
    if not 0 < start < end:
        return  # the system does not say where it is
    for name, value in os.environ.items():
        if not is_kept_variable(name):
            os.putenv(name, value)  # the C library then uses a copy
    at = start
    for entry in ctypes.string_at(start, end - start).split(b"\0"):
        if entry and not is_kept_variable(os.fsdecode(entry.partition(b"=")[0])):
            ctypes.memset(at, 0, len(entry))
        at += len(entry) + 1
