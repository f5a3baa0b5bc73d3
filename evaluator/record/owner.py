"""Which process writes a task file, so that another with its number can be told from it."""

from __future__ import annotations

import os
from functools import lru_cache

from evaluator.record.steps import Owner


@lru_cache(maxsize=1)
def _owner_of(pid: int) -> Owner:
    try:
        started, boot_id = _start_of(pid), _boot_id()
    except (OSError, ValueError, IndexError):
        started, boot_id = 0, "0"
    return Owner(pid, started, boot_id, os.uname().nodename)


def _start_of(pid: int) -> int:
    with open(f"/proc/{pid}/stat", "rb") as file:
        # The second field, the program's name in brackets, may hold anything; the start is the 22nd.
        return int(file.read().rpartition(b")")[2].split()[19])


@lru_cache(maxsize=1)
def _boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def is_gone(owner: Owner | None) -> bool:
    """Whether that process has certainly ended: on this machine, and it was another boot, or there is no such
    process, or one that started at another time. False where nobody can know."""
    if owner is None or owner.started == 0 or owner.host != os.uname().nodename:
        return False
    try:
        return owner.boot_id != _boot_id() or _start_of(owner.pid) != owner.started
    except FileNotFoundError:
        return True
    except (OSError, ValueError, IndexError):
        return False


def current_owner() -> Owner:
    """This process, so that another with its number can be told from it. Start and boot are 0 off Linux."""
    return _owner_of(os.getpid())
