"""What operators, dots and brackets do with plain values, and how values become text.

Nothing here reaches a Python attribute: a dot reads a key of a mapping, a field of `loop` or of a namespace,
and the methods that exist are those of `methods`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from evaluator.binding.bounds import MAX_BITS, MAX_NESTING, Namespace, Run
from evaluator.binding.scopes import MISSING
from evaluator.binding.types import describe
from evaluator.library.syntax import Fault, nearest

FOREIGN = (TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RecursionError, MemoryError)
"""What Python may raise while it works on plain values."""


def text_of(run: Run, value: Any, what: str = "the value") -> str:
    """A value as it stands in a text: strings as they are, `true`, `false`, plain numbers, JSON for the rest.

    Raises: Fault `null-value` for None.
    """
    if isinstance(value, str):
        return value
    if value is None:
        raise Fault(f"{what} is null; write {{{{ … | default('…') }}}} where it may be", None, "null-value")
    if value is True:
        return "true"
    if value is False:
        return "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return json.dumps(value)
    return to_json(run, value)


def to_json(run: Run, value: Any, indent: int | None = None) -> str:
    """A value as JSON, non-ASCII characters as they are."""
    size, depth = measure(run, value)
    run.charge(size * (1 if indent is None else 1 + indent * (depth + 1)))
    return json.dumps(value, ensure_ascii=False, indent=indent, default=_encode)


def _encode(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{describe(value)} is not plain data")


def measure(run: Run, value: Any) -> tuple[int, int]:
    """About how many characters a value has as JSON, and how deep it is nested.

    Lists that hold one another can be exponentially large in little memory: whoever walks one pays for it
    here first. Raises: Fault, past the bounds, or if there is anything in it that is not plain data.
    """
    if isinstance(value, str):
        return len(value) + 2, 0
    size, deepest = 0, 0
    pending: list[tuple[Any, int]] = [(value, 0)]
    while pending:
        item, depth = pending.pop()
        kind = type(item)
        if kind is str:
            size += len(item) + 4
        elif item is None or kind is int or kind is float or kind is bool:
            size += 8
        else:
            run.tick(1)
            deepest = max(deepest, depth)
            if depth > MAX_NESTING:
                raise Fault(f"a value is nested more than {MAX_NESTING} deep", None, "too-large", True)
            if isinstance(item, list | tuple):
                run.tick(len(item) >> 3)
                size += 2 * len(item) + 2
                pending.extend((child, depth + 1) for child in item)
            elif isinstance(item, Mapping):
                run.tick(len(item) >> 3)
                size += 4 * len(item) + 2 + sum(len(str(key)) + 2 for key in item)
                pending.extend((child, depth + 1) for child in item.values())
            elif isinstance(item, str | int | float):
                size += len(str(item)) + 4
            else:
                raise Fault(f"{describe(item)} is not a value", None, "not-plain", True)
        if size > run.bounds.output_chars:
            limit = run.bounds.output_chars
            raise Fault(f"makes values of more than {limit:,} characters", None, "too-large", True)
    return size, deepest


def settled(run: Run, value: Any) -> Any:
    """A value that may leave the text: measured, so that it is plain data within the bounds."""
    if not (value is None or isinstance(value, str | int | float)):
        measure(run, value)
    return value


def guard(run: Run, value: Any) -> None:
    """Pay for a comparison that may walk the whole of `value`."""
    if isinstance(value, str):
        if len(value) > 1000:
            run.tick(len(value) >> 10)
    elif isinstance(value, list | tuple | Mapping):
        measure(run, value)


# Operators


def _numbers(verb: str, left: Any, right: Any) -> None:
    for value in (left, right):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise Fault(f"cannot {verb} {describe(left)} and {describe(right)}", None, "wrong-type")


def _small(value: Any) -> Any:
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise Fault("the number has too many digits", None, "too-large", True)
    return value


def add(run: Run, left: Any, right: Any) -> Any:
    if isinstance(left, str) and isinstance(right, str):
        run.charge(len(left) + len(right))
        return left + right
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        run.charge_items(len(left) + len(right))
        return [*left, *right]
    if isinstance(left, str) or isinstance(right, str):
        message = f"cannot add {describe(left)} and {describe(right)}; join text with ~"
        raise Fault(message, None, "wrong-type")
    _numbers("add", left, right)
    return _small(left + right)


def subtract(run: Run, left: Any, right: Any) -> Any:
    _numbers("subtract", left, right)
    return _small(left - right)


def multiply(run: Run, left: Any, right: Any) -> Any:
    if isinstance(right, str | list | tuple):
        left, right = right, left
    if isinstance(left, str | list | tuple) and isinstance(right, int) and not isinstance(right, bool):
        count = len(left) * max(right, 0)
        if isinstance(left, str):
            run.charge(count)
            return left * right
        run.charge_items(count)
        return list(left) * right
    _numbers("multiply", left, right)
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() + right.bit_length() > MAX_BITS:
        raise Fault("the number has too many digits", None, "too-large", True)
    return left * right


def divide(run: Run, left: Any, right: Any) -> Any:
    _numbers("divide", left, right)
    return left / right


def floor_divide(run: Run, left: Any, right: Any) -> Any:
    _numbers("divide", left, right)
    return left // right


def modulo(run: Run, left: Any, right: Any) -> Any:
    if isinstance(left, str):
        raise Fault("cannot divide string; write values into text with {{ … }} or ~", None, "wrong-type")
    _numbers("divide", left, right)
    return left % right


def power(run: Run, left: Any, right: Any) -> Any:
    _numbers("raise to a power", left, right)
    if isinstance(left, int) and isinstance(right, int) and right >= 0:
        if left.bit_length() * right > MAX_BITS and abs(left) > 1:
            raise Fault("the number has too many digits", None, "too-large", True)
        return left**right
    if left < 0 and isinstance(right, float) and not right.is_integer():
        raise Fault("cannot raise a negative number to a fraction", None, "wrong-type")
    return float(left) ** right


BINARY: dict[str, Callable[[Run, Any, Any], Any]] = {
    "Add": add, "Sub": subtract, "Mul": multiply, "Div": divide, "FloorDiv": floor_divide, "Mod": modulo,
    "Pow": power,
}  # fmt: skip


def equal(run: Run, left: Any, right: Any) -> bool:
    """Equality of values; unlike Python's, a boolean is never equal to a number."""
    if isinstance(left, bool) != isinstance(right, bool):
        return False
    guard(run, left)
    guard(run, right)
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return list(left) == list(right)
    return bool(left == right)


def ordered(run: Run, left: Any, right: Any) -> tuple[Any, Any]:
    """Both sides of an ordering. Raises: Fault, if they cannot be ordered."""
    numbers = isinstance(left, int | float) and isinstance(right, int | float)
    texts = isinstance(left, str) and isinstance(right, str)
    lists = isinstance(left, list | tuple) and isinstance(right, list | tuple)
    if isinstance(left, bool) or isinstance(right, bool) or not (numbers or texts or lists):
        raise Fault(f"cannot order {describe(left)} and {describe(right)}", None, "wrong-type")
    guard(run, left)
    guard(run, right)
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return list(left), list(right)
    return left, right


def contains(run: Run, item: Any, container: Any) -> bool:
    if isinstance(container, str):
        if not isinstance(item, str):
            raise Fault(f"cannot look for {describe(item)} in string", None, "wrong-type")
        run.tick(1 + (len(container) >> 8))
        return item in container
    if isinstance(container, Mapping):
        return isinstance(item, str | int | float) and item in container
    if isinstance(container, list | tuple):
        guard(run, container)
        guard(run, item)
        return any(equal(run, item, other) for other in container)
    raise Fault(f"cannot look for a value in {describe(container)}", None, "wrong-type")


def _less(run: Run, left: Any, right: Any) -> bool:
    left, right = ordered(run, left, right)
    return left < right


COMPARE: dict[str, Callable[[Run, Any, Any], bool]] = {
    "eq": equal,
    "ne": lambda run, left, right: not equal(run, left, right),
    "lt": _less,
    "gt": lambda run, left, right: _less(run, right, left),
    "lteq": lambda run, left, right: not _unordered(left, right) and not _less(run, right, left),
    "gteq": lambda run, left, right: not _unordered(left, right) and not _less(run, left, right),
    "in": contains,
    "notin": lambda run, left, right: not contains(run, left, right),
}


def _unordered(left: Any, right: Any) -> bool:
    return any(isinstance(value, float) and math.isnan(value) for value in (left, right))


# Dots, brackets, loops


def attribute(run: Run, base: Any, name: str, what: str) -> Any:
    """`base.name`, or MISSING where a mapping has no such key. Raises: Fault, if it can have no field."""
    if isinstance(base, Mapping):
        return base.get(name, MISSING)
    if isinstance(base, Namespace):
        return base.fields.get(name, MISSING)
    if isinstance(base, Loop):
        if name in LOOP_FIELDS:
            return LOOP_FIELDS[name](base)
        raise Fault(f"loop has no field {name!r}{nearest(name, LOOP_FIELDS)}", None, "undefined-attribute")
    hint = "; write {{ … | length }}" if name == "length" else ""
    raise Fault(f"{what} is {describe(base)} and has no field {name!r}{hint}", None, "undefined-attribute")


def item(run: Run, base: Any, key: Any, what: str) -> Any:
    """`base[key]`, or MISSING where there is no such key or index."""
    if isinstance(base, Mapping):
        return base.get(key, MISSING) if isinstance(key, str | int | float) else MISSING
    if isinstance(base, list | tuple | str):
        if isinstance(key, slice):
            length = len(range(*key.indices(len(base))))
            run.charge(length if isinstance(base, str) else length * 8)
            return base[key] if isinstance(base, str) else list(base[key])
        if isinstance(key, int) and not isinstance(key, bool):
            return base[key] if -len(base) <= key < len(base) else MISSING
        message = f"{what} is {describe(base)}; its index is an integer, not {describe(key)}"
        raise Fault(message, None, "undefined-attribute")
    if isinstance(base, Namespace | Loop) and isinstance(key, str):
        return attribute(run, base, key, what)
    raise Fault(f"{what} is {describe(base)} and has no items", None, "undefined-attribute")


def absent(base: Any, key: Any, what: str) -> Fault:
    """Why `base[key]` or `base.key` is not there."""
    if isinstance(base, list | tuple | str):
        unit = "character" if isinstance(base, str) else "item"
        count = f"{len(base)} {unit}{'' if len(base) == 1 else 's'}"
        return Fault(f"{what} has no index {key}: it has {count}", None, "undefined-attribute")
    keys = [str(name) for name in (base.fields if isinstance(base, Namespace) else base)]
    listed = ", ".join(keys[:12]) + (", …" if len(keys) > 12 else "")
    has = f"has only: {listed}" if keys else "is empty"
    return Fault(f"{what} has no field {key!r}{nearest(str(key), keys)} ({has})", None, "undefined-attribute")


def items_of(run: Run, value: Any) -> Sequence[Any]:
    """What a loop or a filter goes over: a list's items, a mapping's keys, a string's characters."""
    if isinstance(value, list | tuple):
        return value
    if isinstance(value, Mapping):
        run.charge_items(len(value))
        return list(value)
    if isinstance(value, str):
        run.charge_items(len(value))
        return list(value)
    raise Fault(f"cannot go over {describe(value)}; it is not a list", None, "wrong-type")


class Loop:
    """`loop` inside a `for`."""

    __slots__ = ("depth", "index0", "items", "seen")

    def __init__(self, items: Sequence[Any], depth: int) -> None:
        self.items, self.depth, self.index0 = items, depth, 0
        self.seen: Any = MISSING


def _neighbour(loop: Loop, index: int) -> Any:
    return loop.items[index] if 0 <= index < len(loop.items) else MISSING


LOOP_FIELDS: dict[str, Callable[[Loop], Any]] = {
    "index": lambda loop: loop.index0 + 1,
    "index0": lambda loop: loop.index0,
    "first": lambda loop: loop.index0 == 0,
    "last": lambda loop: loop.index0 == len(loop.items) - 1,
    "length": lambda loop: len(loop.items),
    "revindex": lambda loop: len(loop.items) - loop.index0,
    "revindex0": lambda loop: len(loop.items) - loop.index0 - 1,
    "depth": lambda loop: loop.depth,
    "depth0": lambda loop: loop.depth - 1,
    "previtem": lambda loop: _neighbour(loop, loop.index0 - 1),
    "nextitem": lambda loop: _neighbour(loop, loop.index0 + 1),
}
