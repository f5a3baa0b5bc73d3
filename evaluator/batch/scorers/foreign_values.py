"""Values from and for user code: containers are copied, numbers of other libraries converted, types
named.
"""

from __future__ import annotations

from decimal import Decimal
from numbers import Real
from typing import Any, cast


def copied(value: Any) -> Any:
    """A copy of the lists and dicts in `value`, at any depth; other values are shared."""
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
    """A number or boolean of NumPy, PyTorch, `decimal`, `fractions` and others as a bool, int or
    float.

    Any other value is returned unchanged.

    Raises: ValueError or OverflowError, for a number outside the range of floats.
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
        # For example an array of several numbers: the caller reports it.
        return value
    if type(found) in (bool, int, float):
        return found
    return value


def type_name(value: object) -> str:
    """The type of a value with its module, except for built-in types: `numpy.ndarray`, `list`."""
    kind = type(value)
    if kind.__module__ == "builtins":
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"
