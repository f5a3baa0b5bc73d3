"""Waiting in tests, as long as a busy machine needs: for what a time limit ends, and for the end of a process."""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
_LONGEST_S = 60.0


def with_enough_time(
    attempt: Callable[[float], T], has_begun: Callable[[T], bool], first_s: float = 0.5
) -> T:
    """What `attempt(limit_s)` returns, tried with longer limits until what it runs had the time to begin."""
    limit_s = first_s
    result = attempt(limit_s)
    while not has_begun(result) and limit_s < _LONGEST_S:
        limit_s *= 4
        result = attempt(limit_s)
    return result


def is_gone(pid: int) -> bool:
    """Whether a process has ended or ends within 200 s: a killed process still needs a processor to end."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], 200.0)[0])
    finally:
        os.close(descriptor)
