"""Owners: the process that writes a task file or runs a job, even if its process id was reused."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import lru_cache

from evaluator import this_process
from evaluator.fields import JsonForm, kind_of
from evaluator.lazy_dataclass import frozen


@frozen
class Owner(JsonForm):
    """A process. `started` is its start in the kernel's clock ticks since boot."""

    pid: int
    started: int
    boot_id: str
    host: str


@lru_cache(maxsize=1)
def _owner_of(pid: int) -> Owner:
    try:
        started = this_process.start_of(pid)
        boot_id = this_process.boot_id()
    except (OSError, ValueError, IndexError):
        started = 0
        boot_id = "0"
    return Owner(pid, started, boot_id, this_process.host())


def is_gone(owner: Owner | None) -> bool:
    """Whether that process has certainly ended. False if that is unknown.

    A process on this machine has ended if the machine was booted since, if there is no process with
    its id, or if the process with its id started at another time.
    """
    if owner is None or owner.started == 0 or owner.host != this_process.host():
        return False
    try:
        if owner.boot_id != this_process.boot_id():
            return True
        return this_process.start_of(owner.pid) != owner.started
    except (FileNotFoundError, ProcessLookupError):
        return True
    except (OSError, ValueError, IndexError):
        return False


def current_owner() -> Owner:
    """This process. Start and boot are 0 except on Linux."""
    return _owner_of(this_process.pid())


def owner_text(owner: Owner) -> str:
    """The owner as text for a database."""
    return json.dumps(asdict(owner))


def parse_owner(text: str) -> Owner | None:
    """The owner that `owner_text` wrote; None for another text."""
    try:
        return kind_of(Owner).accept(json.loads(text))
    except (ValueError, RecursionError):
        return None


def is_visible(owner: Owner) -> bool:
    """Whether `is_gone` can tell: the process is or was on this machine, and its start is known."""
    return owner.started != 0 and owner.host == this_process.host()
