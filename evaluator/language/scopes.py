"""Lexical scopes: immutable chains of names and plain values.

A standard template sees the whole chain; a function sees only `Scope(its parameters)`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from evaluator.errors import ExpressionError, UsageError
from evaluator.errors.messages import MAX_DIGITS
from evaluator.language.locating import undefined_name
from evaluator.language.types import describe
from evaluator.nodes import Span

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


def plain(value: Any, path: str = "value") -> Any:
    """Returns a copy of `value` as plain data: str, int, float, bool, None, list and dict with
    string keys.

    Subclasses of these (a string enum, a named tuple, any Mapping) become the plain type. The copy
    keeps later changes outside from reaching a running evaluation.

    Raises: UsageError for anything else, for a key that is not a string, and past 100 levels (a
    value that contains itself); the message has the path, such as `doc.pages[2]`.
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
    if value is None or kind is str or kind is float or kind is bool:
        return value
    if isinstance(value, int):
        return plain_integer(value, path)
    if depth > MAX_DEPTH:
        raise UsageError(f"{path[:60]}…: nested more than {MAX_DEPTH} deep, or contains itself")
    if isinstance(value, Mapping):
        result: dict[str, Any] = {}
        for key, item in value.items():
            if not isinstance(key, str):
                raise UsageError(f"{path}: the key {key!r} is {describe(key)}, not string")
            if item.__class__ is not str:
                item = _plain(item, f"{path}.{key}", depth=depth + 1)
            result[str.__str__(key)] = item
        return result
    if isinstance(value, list | tuple):
        return [
            _plain(item, f"{path}[{index}]", depth=depth + 1) for index, item in enumerate(value)
        ]
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, float):
        return float.__float__(value)
    raise UsageError(
        f"{path}: {kind.__name__} is not plain data (text, number, boolean, null, list or mapping)"
    )
