"""What identifies a process: its id, its start, the machine and the machine's boot.

Call the functions through the module (`this_process.pid()`), so that simulations can replace them.
"""

from __future__ import annotations

import os
from functools import lru_cache

__all__ = ["boot_id", "host", "machine", "pid", "start_of"]

pid = os.getpid


def host() -> str:
    """The name of this machine."""
    return os.uname().nodename


def machine() -> str:
    """The name of the processor's architecture, as `uname -m`."""
    return os.uname().machine


@lru_cache(maxsize=1)
def boot_id() -> str:
    """A value that is new after each start of the machine. Raises: OSError, except on Linux."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def start_of(pid: int) -> int:
    """The start of a process in the kernel's clock ticks since boot. With its id and the boot id it
    identifies the process, also after its id was given to another one.

    Raises: FileNotFoundError, if there is no such process, also if it has ended and its parent has
    not asked for its exit status, as the first process of many containers never does;
    ProcessLookupError, if it goes meanwhile. OSError, ValueError or IndexError, where that is
    unknown.
    """
    with open(f"/proc/{pid}/stat", "rb") as file:
        # The second field, the program's name in brackets, may hold anything. The next one, the
        # third, is the state; the 20th is the number of threads, and the 22nd the start.
        after_name = file.read().rpartition(b")")[2].split()
    if after_name[0] in (b"Z", b"X") and int(after_name[17]) <= 1:
        raise FileNotFoundError(f"process {pid} has ended")
    return int(after_name[19])
