"""Checks of the arguments of statistics: a wrong argument is refused, never corrected."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence, Sized
from typing import Any

from evaluator.errors import UsageError


def check_confidence(confidence: float) -> None:
    """Raises: UsageError, if it is not between 0 and 1, or so close to 1 that its quantile is
    infinite.
    """
    if not _is_number(confidence) or not (confidence > 0 and (1 + confidence) / 2 < 1):
        percent = _is_number(confidence) and 1 < confidence < 100
        if percent:
            hint = f"; did you mean {confidence / 100:g}?"
        else:
            hint = ""
        raise UsageError(
            f"confidence is {confidence!r}, expected a number between 0 and 1, such as 0.95{hint}"
        )


def check_share(name: str, share: float) -> None:
    """Raises: UsageError, if it is not in [0, 1]."""
    if not _is_number(share) or not 0 <= share <= 1:
        raise UsageError(f"{name} is {share!r}, expected a number from 0 to 1")


def whole(name: str, count: Any) -> int:
    """A count as an int, from NumPy too. Raises: UsageError, if it is not a whole number or
    negative.
    """
    try:
        found = operator.index(count)
    except TypeError:
        found = -1
    if found < 0:
        raise UsageError(f"{name} is {count!r}, expected a whole number, 0 or more")
    return found


def check_finite(values: Sequence[float]) -> None:
    """Raises: UsageError with the index of the first value that is not a finite number."""
    for place, value in enumerate(values):
        if not _is_number(value):
            raise UsageError(f"value {place} is {value!r}, expected a finite number")


def check_clusters(values: Sized, clusters: Sized | None) -> None:
    """Raises: UsageError, if there are clusters, but not one for each value."""
    if clusters is not None and len(clusters) != len(values):
        raise UsageError(f"{len(clusters)} clusters for {len(values)} values")


def _is_number(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except (TypeError, ValueError, OverflowError):
        return False
