"""Identifies the process that writes a task file, even if its process id was reused."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from functools import lru_cache
from typing import cast

from evaluator.record.steps import Owner


@lru_cache(maxsize=1)
def _owner_of(pid: int) -> Owner:
    try:
        started = _start_of(pid)
        boot_id = _boot_id()
    except (OSError, ValueError, IndexError):
        started = 0
        boot_id = "0"
    return Owner(pid, started, boot_id, os.uname().nodename)


def _start_of(pid: int) -> int:
    """Raises: FileNotFoundError, also if the process has ended and its parent has not asked for its
    exit status, as the first process of many containers never does.
    """
    with open(f"/proc/{pid}/stat", "rb") as file:
        # The second field, the program's name in brackets, may hold anything. The next one, the
        # third, is the state; the 20th is the number of threads, and the 22nd the start.
        after_name = file.read().rpartition(b")")[2].split()
    if after_name[0] in (b"Z", b"X") and int(after_name[17]) <= 1:
        raise FileNotFoundError(f"process {pid} has ended")
    return int(after_name[19])


@lru_cache(maxsize=1)
def _boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def is_gone(owner: Owner | None) -> bool:
    """Whether that process has certainly ended. False if that is unknown.

    A process on this machine has ended if the machine was booted since, if there is no process with
    its id, or if the process with its id started at another time.
    """
    if owner is None or owner.started == 0 or owner.host != os.uname().nodename:
        return False
    try:
        return owner.boot_id != _boot_id() or _start_of(owner.pid) != owner.started
    except FileNotFoundError:
        return True
    except (OSError, ValueError, IndexError):
        return False


def current_owner() -> Owner:
    """This process. Start and boot are 0 except on Linux."""
    return _owner_of(os.getpid())


def owner_text(owner: Owner) -> str:
    """The owner as text for a database."""
    return json.dumps(asdict(owner))


def parse_owner(text: str) -> Owner | None:
    """The owner that `owner_text` wrote; None for another text."""
    try:
        owner = Owner(**json.loads(text))
    except (ValueError, TypeError, RecursionError):
        return None
    numbers = cast("tuple[object, ...]", (owner.pid, owner.started))
    names = cast("tuple[object, ...]", (owner.boot_id, owner.host))
    if all(type(n) is int for n in numbers) and all(type(n) is str for n in names):
        return owner
    return None


def is_visible(owner: Owner) -> bool:
    """Whether `is_gone` can tell: the process is or was on this machine, and its start is known."""
    return owner.started != 0 and owner.host == os.uname().nodename
