"""Values that come from somebody else's code or go to it: containers copied, numbers made Python's own, types named."""

from __future__ import annotations

from decimal import Decimal
from numbers import Real
from typing import Any, cast


def copied(value: Any) -> Any:
    """`value` with lists and dicts of its own, at any depth; all else in it is shared."""
    if not isinstance(value, dict | list):
        return value
    whole = cast("dict[Any, Any] | list[Any]", value).copy()
    filled: list[Any] = [whole]
    while filled:
        inner = filled.pop()
        for key, item in inner.items() if isinstance(inner, dict) else enumerate(inner):
            if isinstance(item, dict | list):
                inner[key] = cast("dict[Any, Any] | list[Any]", item).copy()
                filled.append(inner[key])
    return whole


def plain_scalar(value: Any) -> Any:
    """A number or truth value of NumPy, PyTorch, `decimal`, `fractions` or the like as a bool, int or float; anything
    else as it is.

    Raises: ValueError or OverflowError, for a number that no float can hold.
    """
    if value is None or type(value) in (bool, int, float):
        return value
    if isinstance(value, Real | Decimal):
        return float(value)
    item = getattr(value, "item", None)
    if not callable(item):
        return value
    try:
        found = item()
    except Exception:
        # An array of several numbers, say: the caller says what it expects.
        return value
    return found if type(found) in (bool, int, float) else value


def type_name(value: object) -> str:
    """The type of a value with its module, unless that is Python's own: `numpy.ndarray`, `list`."""
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
