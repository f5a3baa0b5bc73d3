"""What statistics are asked with, checked where it enters: a wrong argument is refused, never made the best of."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence, Sized
from typing import Any

from evaluator.errors import UsageError


def check_confidence(confidence: float) -> None:
    """Raises: UsageError, if it is not within 0 and 1, or so near to 1 that no quantile can be told from infinity."""
    if not _is_number(confidence) or not (confidence > 0 and (1 + confidence) / 2 < 1):
        percent = _is_number(confidence) and 1 < confidence < 100
        hint = f"; did you mean {confidence / 100:g}?" if percent else ""
        raise UsageError(f"confidence is {confidence!r}, expected a number within 0 and 1, such as 0.95{hint}")


def check_share(name: str, share: float) -> None:
    """Raises: UsageError, if it is not in [0, 1]."""
    if not _is_number(share) or not 0 <= share <= 1:
        raise UsageError(f"{name} is {share!r}, expected a number from 0 to 1")


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Raises: UsageError, if it is none of the choices."""
    if value not in choices:
        raise UsageError(f"{name} is {value!r}, expected one of {', '.join(choices)}")


def whole(name: str, count: Any) -> int:
    """A count as an int, also where it is one of NumPy's. Raises: UsageError, if it is not whole or below 0."""
    try:
        found = operator.index(count)
    except TypeError:
        found = -1
    if found < 0:
        raise UsageError(f"{name} is {count!r}, expected a whole number, 0 or more")
    return found


def check_finite(values: Sequence[float]) -> None:
    """Raises: UsageError, at the first value that is no number, or NaN or infinite; says where it is."""
    for place, value in enumerate(values):
        if not _is_number(value):
            raise UsageError(f"value {place} is {value!r}; statistics are of finite numbers only")


def check_clusters(values: Sized, clusters: Sized | None) -> None:
    """Raises: UsageError, if there are clusters and not one for each value."""
    if clusters is not None and len(clusters) != len(values):
        raise UsageError(f"{len(clusters)} clusters for {len(values)} values")


def _is_number(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except (TypeError, ValueError, OverflowError):
        return False
