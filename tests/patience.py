"""Time limits in tests of what a time limit does: short on an idle machine, and as long as a busy one needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
_LONGEST_S = 60.0


def with_enough_time(attempt: Callable[[float], T], has_begun: Callable[[T], bool], first_s: float = 0.5) -> T:
    """What `attempt(limit_s)` returns, tried with longer limits until what it runs had the time to begin."""
    limit_s = first_s
    while not has_begun(result := attempt(limit_s)) and limit_s < _LONGEST_S:
        limit_s *= 4
    return result
