"""The tests after `is`, with Jinja's names and meaning, over plain values.

`defined` and `undefined` are not here: the compiler knows them, since their subject may be undefined.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from evaluator.binding.bounds import Run
from evaluator.binding.operations import COMPARE, modulo
from evaluator.binding.types import matches
from evaluator.library.syntax import Fault, unknown_test


def _of_type(name: str) -> Callable[[Run, Any], bool]:
    return lambda run, value: matches(value, name)


def _compared(operator: str) -> Callable[[Run, Any, Any], bool]:
    compare = COMPARE[operator]
    return lambda run, value, other: compare(run, value, other)


def _cased(function: Callable[[str], bool]) -> Callable[[Run, Any], bool]:
    return lambda run, value: isinstance(value, str) and function(value)


def _same(run: Run, value: Any, other: Any) -> bool:
    return type(value) is type(other) and COMPARE["eq"](run, value, other)


def _listed(run: Run, value: Any) -> bool:
    return isinstance(value, str | list | tuple | Mapping)


def _none(run: Run, value: Any) -> bool:
    return value is None


def _true(run: Run, value: Any) -> bool:
    return value is True


def _false(run: Run, value: Any) -> bool:
    return value is False


def _float(run: Run, value: Any) -> bool:
    return isinstance(value, float)


def _integer(run: Run, value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _divisible(run: Run, value: Any, by: Any) -> bool:
    return modulo(run, value, by) == 0


def _even(run: Run, value: Any) -> bool:
    return modulo(run, value, 2) == 0


def _odd(run: Run, value: Any) -> bool:
    return modulo(run, value, 2) == 1


TESTS: dict[str, Callable[..., bool]] = {
    "boolean": _of_type("boolean"),
    "divisibleby": _divisible,
    "even": _even,
    "false": _false,
    "float": _float,
    "in": _compared("in"),
    "integer": _integer,
    "iterable": _listed,
    "lower": _cased(str.islower),
    "mapping": _of_type("object"),
    "none": _none,
    "null": _none,
    "number": _of_type("number"),
    "odd": _odd,
    "sameas": _same,
    "sequence": _listed,
    "string": _of_type("string"),
    "true": _true,
    "upper": _cased(str.isupper),
}
for _names, _operator in (
    ("eq == equalto", "eq"),
    ("ne !=", "ne"),
    ("lt < lessthan", "lt"),
    ("le <=", "lteq"),
    ("gt > greaterthan", "gt"),
    ("ge >=", "gteq"),
):
    TESTS.update(dict.fromkeys(_names.split(), _compared(_operator)))


def run_test(run: Run, name: Any, value: Any, args: tuple[Any, ...]) -> bool:
    """A test by its name, as `select("odd")` does. Raises: Fault."""
    if name in ("defined", "undefined"):
        return (value is not None) == (name == "defined")
    test = TESTS.get(name) if isinstance(name, str) else None
    if test is None:
        raise unknown_test(str(name), None) if isinstance(name, str) else Fault("a test is named by a string")
    run.tick()
    return bool(test(run, value, *args))
