"""Arithmetic, comparisons and tests of plain values, each charged to the meter first.

The tests after `is`, with Jinja's names and meaning, over plain values.
`defined` and `undefined` are in the compiler, because their subject may be undefined.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

from evaluator.language.locating import LocatedError, nearest
from evaluator.language.scopes import describe, is_number
from evaluator.language.values import MAX_BITS, Rendering, guard


def _check_numbers(verb: str, left: Any, right: Any) -> None:
    if not (is_number(left) and is_number(right)):
        raise LocatedError(f"cannot {verb} {describe(left)} and {describe(right)}", "wrong-type")


def _check_bits(bits: float) -> None:
    if bits > MAX_BITS:
        raise LocatedError("the number has too many digits", "too-large", forbidden=True)


def _small(value: Any) -> Any:
    _check_bits(value.bit_length() if isinstance(value, int) else 0)
    return value


def add(run: Rendering, left: Any, right: Any) -> Any:
    """Returns the sum of two numbers, or two texts or two lists joined."""
    if isinstance(left, str) and isinstance(right, str):
        run.charge(len(left) + len(right))
        return left + right
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        run.charge_items(len(left) + len(right))
        return [*left, *right]
    if isinstance(left, str) or isinstance(right, str):
        message = f"cannot add {describe(left)} and {describe(right)}; join text with ~"
        raise LocatedError(message, "wrong-type")
    _check_numbers("add", left, right=right)
    return _small(left + right)


def _of_numbers(
    verb: str, operation: Callable[[Any, Any], Any]
) -> Callable[[Rendering, Any, Any], Any]:
    def operate(run: Rendering, left: Any, right: Any) -> Any:
        _check_numbers(verb, left, right=right)
        return _small(operation(left, right))

    return operate


def _multiply(run: Rendering, left: Any, right: Any) -> Any:
    if isinstance(right, str | list | tuple):
        left, right = right, left
    if (
        isinstance(left, str | list | tuple)
        and isinstance(right, int)
        and not isinstance(right, bool)
    ):
        count = len(left) * max(right, 0)
        if isinstance(left, str):
            run.charge(count)
            return left * right
        run.charge_items(count)
        return list(left) * right
    _check_numbers("multiply", left, right=right)
    if isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() + right.bit_length())
    return left * right


def modulo(run: Rendering, left: Any, right: Any) -> Any:
    """Returns the remainder of a division of numbers; `%` does not format text."""
    if isinstance(left, str):
        raise LocatedError(
            "cannot divide string; write values into text with {{ … }} or ~", "wrong-type"
        )
    _check_numbers("divide", left, right=right)
    return left % right


def _power(run: Rendering, left: Any, right: Any) -> Any:
    _check_numbers("raise to a power", left, right=right)
    if isinstance(left, int) and isinstance(right, int) and right >= 0:
        _check_bits(left.bit_length() * right if abs(left) > 1 else 0)
        return left**right
    if left < 0 and isinstance(right, float) and not right.is_integer():
        raise LocatedError("cannot raise a negative number to a fraction", "wrong-type")
    return float(left) ** right


BINARY: dict[str, Callable[[Rendering, Any, Any], Any]] = {
    "Add": add,
    "Sub": _of_numbers("subtract", operator.sub),
    "Mul": _multiply,
    "Div": _of_numbers("divide", operator.truediv),
    "FloorDiv": _of_numbers("divide", operator.floordiv),
    "Mod": modulo,
    "Pow": _power,
}
"""The arithmetic operators, by the name of their node in Jinja's tree."""


def equal(run: Rendering, left: Any, right: Any) -> bool:
    """Returns whether two values are equal; unlike in Python, a boolean is never equal to a
    number.
    """
    if isinstance(left, bool) != isinstance(right, bool):
        return False
    guard(run, left)
    guard(run, right)
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return list(left) == list(right)
    return bool(left == right)


def less(run: Rendering, left: Any, right: Any) -> bool:
    """Returns whether `left` is less than `right`. Raises: LocatedError, if the two have no
    order.
    """
    if (is_number(left) and is_number(right)) or (isinstance(left, str) and isinstance(right, str)):
        guard(run, left)
        return left < right
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        guard(run, left)
        guard(run, right)
        return list(left) < list(right)
    raise LocatedError(f"cannot order {describe(left)} and {describe(right)}", "wrong-type")


def _not_less(run: Rendering, left: Any, right: Any) -> bool:
    # Every comparison with a float that is not a number is false.
    return left == left and right == right and not less(run, left, right=right)


def contains(run: Rendering, item: Any, container: Any) -> bool:
    """Returns whether a text, list or mapping holds `item`."""
    if isinstance(container, str):
        if not isinstance(item, str):
            raise LocatedError(f"cannot look for {describe(item)} in string", "wrong-type")
        run.tick(1 + (len(container) >> 8))
        return item in container
    if isinstance(container, Mapping):
        return isinstance(item, str | int | float) and item in container
    if isinstance(container, list | tuple):
        guard(run, container)
        guard(run, item)
        return any(equal(run, item, right=other) for other in container)
    raise LocatedError(f"cannot look for a value in {describe(container)}", "wrong-type")


COMPARE: dict[str, Callable[[Rendering, Any, Any], bool]] = {
    "eq": equal,
    "ne": lambda run, left, right: not equal(run, left, right=right),
    "lt": less,
    "gt": lambda run, left, right: less(run, right, right=left),
    "lteq": lambda run, left, right: _not_less(run, right, right=left),
    "gteq": _not_less,
    "in": contains,
    "notin": lambda run, left, right: not contains(run, left, container=right),
}
"""The comparisons, by the name of their operator in Jinja's tree."""


def _plain(test: Callable[[Any], bool]) -> Callable[[Rendering, Any], bool]:
    return lambda run, value: test(value)


def _divisible(run: Rendering, value: Any, by: Any) -> bool:
    return modulo(run, value, right=by) == 0


def _remainder_of_two(wanted: int) -> Callable[[Rendering, Any], bool]:
    return lambda run, value: modulo(run, value, right=2) == wanted


def _same(run: Rendering, value: Any, other: Any) -> bool:
    return type(value) is type(other) and equal(run, value, right=other)


_listed = _plain(lambda value: isinstance(value, str | list | tuple | Mapping))
_none = _plain(lambda value: value is None)

TESTS: dict[str, Callable[..., bool]] = {
    "boolean": _plain(lambda value: isinstance(value, bool)),
    "divisibleby": _divisible,
    "even": _remainder_of_two(0),
    "false": _plain(lambda value: value is False),
    "float": _plain(lambda value: isinstance(value, float)),
    "integer": _plain(lambda value: isinstance(value, int) and not isinstance(value, bool)),
    "iterable": _listed,
    "lower": _plain(lambda value: isinstance(value, str) and value.islower()),
    "mapping": _plain(lambda value: isinstance(value, Mapping)),
    "none": _none,
    "null": _none,
    "number": _plain(is_number),
    "odd": _remainder_of_two(1),
    "sameas": _same,
    "sequence": _listed,
    "string": _plain(lambda value: isinstance(value, str)),
    "true": _plain(lambda value: value is True),
    "upper": _plain(lambda value: isinstance(value, str) and value.isupper()),
}
_SPELLINGS = {
    "eq": "eq == equalto",
    "ne": "ne !=",
    "lt": "lt < lessthan",
    "lteq": "le <=",
    "gt": "gt > greaterthan",
    "gteq": "ge >=",
    "in": "in",
}
for _operator, _names in _SPELLINGS.items():
    TESTS.update(dict.fromkeys(_names.split(), COMPARE[_operator]))

TEST_NAMES = frozenset({*TESTS, "defined", "undefined"})
"""The names of all tests."""


def unknown_test(name: str) -> LocatedError:
    """Returns the error for a test that does not exist."""
    return LocatedError(
        f"there is no test {name!r}{nearest(name, sorted(TEST_NAMES))}", "unknown-test"
    )


def run_test(run: Rendering, name: Any, value: Any, args: tuple[Any, ...]) -> bool:
    """Returns the result of a test by its name, as `select("odd")` needs it. Raises:
    LocatedError.
    """
    if name in ("defined", "undefined"):
        return (value is not None) == (name == "defined")
    if not isinstance(name, str):
        raise LocatedError("a test is named by a string", "wrong-type")
    if name not in TESTS:
        raise unknown_test(name)
    run.tick()
    return bool(TESTS[name](run, value, *args))
