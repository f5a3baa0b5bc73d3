"""Plain values: their types, and the lexical scopes that name them.

A scope is an immutable chain of names and plain values. A standard template sees the whole chain; a
function sees only `Scope(its parameters)`.

The types are any, string, number, integer, boolean, object, array, [] and T[]. They follow JSON
Schema: a boolean is not a number, and 3.0 is an integer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from types import NoneType
from typing import Any, Final, NoReturn

from evaluator.errors import ExpressionError, UsageError
from evaluator.errors.messages import MAX_DIGITS, json_problem, shortened
from evaluator.language.locating import undefined_name
from evaluator.nodes import Span
from evaluator.nodes.values import TYPE_NAMES, Shape, of_type
from evaluator.patterns import Pattern

_MAX_DIGITS = 1000
_MAX_SHOWN = 40
_INTEGER = Pattern(r"[+-]?\d+", "a")
_NUMBER = Pattern(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", "a")


def is_number(value: Any) -> bool:
    """Returns whether a value is an integer or a float; a boolean is not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_array(value: Any) -> bool:
    return isinstance(value, list | tuple)


_CHECKS: dict[str, Callable[[Any], bool]] = {
    "any": lambda value: True,
    "string": lambda value: isinstance(value, str),
    "number": is_number,
    "integer": lambda value: is_number(value) and (isinstance(value, int) or value.is_integer()),
    "boolean": lambda value: isinstance(value, bool),
    "object": lambda value: isinstance(value, Mapping),
    "array": _is_array,
}
_DESCRIPTIONS: tuple[tuple[type, str], ...] = (
    (NoneType, "null"),
    (bool, "boolean"),
    (str, "string"),
    (int, "integer"),
    (float, "number"),
    (list, "array"),
    (tuple, "array"),
    (Mapping, "object"),
)


def is_type_name(name: str) -> bool:
    """Returns whether `name` is a type, `T[]` to any depth included."""
    return of_type(name) is not None


def matches(value: Any, type_name: str) -> bool:
    """Returns whether a plain value is of a type. Raises: UsageError, if there is no such type."""
    return _matches(value, _shape(type_name))


def describe(value: Any) -> str:
    """Returns the type of a value as template authors call it: `string`, `integer`, `null`, …"""
    return next(
        (name for kind, name in _DESCRIPTIONS if isinstance(value, kind)), type(value).__name__
    )


def read_typed(text: str, type_name: str) -> Any:
    """Returns a value of a type from its text, as in a `default` or on the command line.

    `any` and `string` keep the text as it is. Numbers are decimal, booleans `true` or `false` in
    any case; arrays and objects are JSON. White space around these does not matter. Nothing else is
    guessed.

    Raises: UsageError, if the text is not of the type, or if there is no such type.
    """
    shape = _shape(type_name)
    if shape.kind in ("any", "string"):
        return text
    stripped = text.strip()
    if shape.kind == "boolean":
        if stripped.lower() not in ("true", "false"):
            _refuse(text, type_name, hint="write true or false")
        return stripped.lower() == "true"
    if shape.kind in ("integer", "number"):
        return _read_number(stripped, shape.kind, text=text)
    return _read_json(stripped, shape, type_name=type_name)


def _read_number(stripped: str, base: str, text: str) -> int | float:
    if len(stripped) > _MAX_DIGITS:
        _refuse(text, base, hint="it has too many digits")
    if _INTEGER.fullmatch(stripped):
        return int(stripped)
    if _NUMBER.fullmatch(stripped):
        number = float(stripped)
        if math.isinf(number):
            _refuse(text, base, hint="it is too large")
        if base == "number":
            return number
        if number.is_integer():
            return int(number)
    _refuse(text, base)


def _read_json(stripped: str, shape: Shape, type_name: str) -> Any:
    try:
        value = json.loads(stripped, parse_constant=_no_constant)
    except RecursionError as error:
        raise UsageError(f"expected {type_name}: the JSON is nested too deeply") from error
    except ValueError as error:
        raise UsageError(
            f"expected {type_name} as JSON, got {shortened(stripped, _MAX_SHOWN)}: "
            f"{json_problem(error)}"
        ) from error
    if not _matches(value, shape):
        raise UsageError(f"expected {type_name}, got {describe(value)}{_wrong_item(value, shape)}")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _shape(name: str) -> Shape:
    shape = of_type(name)
    if shape is None:
        raise UsageError(f"there is no type {name!r}; types are {', '.join(TYPE_NAMES)} and T[]")
    return shape


def _matches(value: Any, shape: Shape) -> bool:
    item = shape.item
    if item is not None:
        return _is_array(value) and all(_matches(each, item) for each in value)
    return _CHECKS[shape.kind](value)


def wrong_item(value: Any, type_name: str) -> str:
    """Returns `" whose item 3 is string"` for the first item that makes an array not match, or an
    empty string.
    """
    return _wrong_item(value, _shape(type_name))


def _wrong_item(value: Any, shape: Shape) -> str:
    if shape.item is not None and _is_array(value):
        for index, each in enumerate(value):
            if not _matches(each, shape.item):
                return f" whose item {index} is {describe(each)}{_wrong_item(each, shape.item)}"
    return ""


def _refuse(text: str, type_name: str, hint: str = "") -> NoReturn:
    raise UsageError(
        f"expected {type_name}, got {shortened(text, _MAX_SHOWN)}" + (f"; {hint}" if hint else "")
    )


MISSING: Final = object()
"""The result of `Scope.get` for a name that is not bound; None is a value."""

MAX_DEPTH = 100
_TOO_LARGE: Final = 10**MAX_DIGITS


class Scope:
    """Names with their values, in front of the names of `parent`.

    The mapping is used as it is, not copied, and must not change afterwards. Values are plain data;
    `plain` converts values that come from outside.
    """

    __slots__ = ("_parent", "_values")

    def __init__(
        self, values: Mapping[str, Any] | None = None, parent: Scope | None = None
    ) -> None:
        self._values: Mapping[str, Any] = {} if values is None else values
        self._parent = parent

    def child(self, values: Mapping[str, Any]) -> Scope:
        """Returns a scope in which `values` come before the names of this one."""
        return Scope(values, self)

    def get(self, name: str, default: Any = MISSING) -> Any:
        """Returns the innermost value of `name`, or `default`."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope._values:
                return scope._values[name]
            scope = scope._parent
        return default

    def lookup(self, name: str, span: Span | None = None) -> Any:
        """Returns the innermost value of `name`. Raises: ExpressionError `undefined-variable`,
        located at `span`.
        """
        value = self.get(name)
        if value is MISSING:
            raise ExpressionError(
                undefined_name(name, self.names()), span or Span(), code="undefined-variable"
            )
        return value

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.get(name) is not MISSING

    def names(self) -> list[str]:
        """Returns every visible name, sorted."""
        return sorted({*self._values, *(() if self._parent is None else self._parent.names())})


NO_NAMES: Final = Scope()


def plain(value: Any, path: str = "value") -> Any:
    """Returns a copy of `value` as plain data: str, int, float, bool, None, list and dict with
    string keys.

    Subclasses of these (a string enum, a named tuple, any Mapping) become the plain type. The copy
    keeps later changes outside from reaching a running evaluation.

    Raises: UsageError for anything else, NaN and infinity among it, for a key that is not a string,
    and past 100 levels (a value that contains itself); the message has the path, such as
    `doc.pages[2]`.
    """
    return _plain(value, path, depth=0)


def plain_integer(value: int, path: str) -> int:
    """Returns `value` as an int. Raises: UsageError, for more digits than Python writes as text."""
    if -_TOO_LARGE < value < _TOO_LARGE:
        return int.__int__(value)
    raise UsageError(
        f"{path}: the integer has more than {MAX_DIGITS:,} digits; pass it as a string"
    )


def _plain(value: Any, path: str, depth: int) -> Any:
    kind = type(value)
    if value is None or kind is str or kind is bool:
        return value
    if isinstance(value, int):
        return plain_integer(value, path)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise UsageError(
                f"{path} is {value!s}, which is not a JSON value; use null or a number"
            )
        return float.__float__(value)
    if depth > MAX_DEPTH:
        raise UsageError(f"{path[:60]}…: nested more than {MAX_DEPTH} deep, or contains itself")
    # The class first, here and where inputs are checked: asking an abstract class takes ten times
    # as long.
    if kind is dict or isinstance(value, Mapping):
        result: dict[str, Any] = {}
        for key, item in value.items():
            if not isinstance(key, str):
                raise UsageError(f"{path}: the key {key!r} is {describe(key)}, not string")
            if key.__class__ is not str:
                key = str.__str__(key)
            if item.__class__ is not str:
                item = _plain(item, f"{path}.{key}", depth=depth + 1)
            result[key] = item
        return result
    if isinstance(value, list | tuple):
        return [
            _plain(item, f"{path}[{index}]", depth=depth + 1) for index, item in enumerate(value)
        ]
    if isinstance(value, str):
        return str.__str__(value)
    raise UsageError(
        f"{path}: {kind.__name__} is not plain data (text, number, boolean, null, list or mapping)"
    )
