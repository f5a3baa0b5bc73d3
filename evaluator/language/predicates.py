"""The tests after `is`, with Jinja's names and meaning, over plain values.

`defined` and `undefined` are in the compiler, because their subject may be undefined.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from evaluator.language.locating import LocatedError, nearest
from evaluator.language.meter import Rendering
from evaluator.language.operators import COMPARE, equal, modulo
from evaluator.language.types import is_number


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
        f"there is no test {name!r}{nearest(name, sorted(TEST_NAMES))}", None, code="unknown-test"
    )


def run_test(run: Rendering, name: Any, value: Any, args: tuple[Any, ...]) -> bool:
    """Returns the result of a test by its name, as `select("odd")` needs it. Raises:
    LocatedError.
    """
    if name in ("defined", "undefined"):
        return (value is not None) == (name == "defined")
    if not isinstance(name, str):
        raise LocatedError("a test is named by a string", None, code="wrong-type")
    if name not in TESTS:
        raise unknown_test(name)
    run.tick()
    return bool(TESTS[name](run, value, *args))
