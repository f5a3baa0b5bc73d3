"""Lexical scopes: immutable chains of names and plain values.

A standard template sees the whole chain, a function only `Scope.isolated(its parameters)`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from evaluator.binding.types import describe
from evaluator.errors import ExpressionError, UsageError
from evaluator.library.syntax import nearest
from evaluator.nodes import Span

MISSING: Final = object()
"""What `Scope.get` gives for a name that nothing binds; None is a value."""

MAX_DEPTH = 100


class Scope:
    """Names bound here, and below them those of `parent`.

    The mapping is kept, not copied: whoever makes a scope does not change it afterwards. Values are plain
    data;
    `plain` makes them so where they come from outside.
    """

    __slots__ = ("_parent", "_values")

    def __init__(self, values: Mapping[str, Any] | None = None, parent: Scope | None = None) -> None:
        self._values: Mapping[str, Any] = {} if values is None else values
        self._parent = parent

    @classmethod
    def isolated(cls, values: Mapping[str, Any]) -> Scope:
        """A scope that sees nothing else, for the body of a function."""
        return cls(values)

    def child(self, values: Mapping[str, Any]) -> Scope:
        """A scope in which `values` come before what is bound here."""
        return Scope(values, self)

    def get(self, name: str, default: Any = MISSING) -> Any:
        """The innermost value of `name`, or `default`."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope._values:
                return scope._values[name]
            scope = scope._parent
        return default

    def lookup(self, name: str, span: Span | None = None) -> Any:
        """The innermost value of `name`. Raises: ExpressionError `undefined-variable`, located at `span`."""
        value = self.get(name)
        if value is MISSING:
            known = self.names()
            listed = ", ".join(known) or "nothing"
            message = f"{name!r} is not defined{nearest(name, known)} (defined here: {listed})"
            raise ExpressionError(message, span or Span(), "undefined-variable")
        return value

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.get(name) is not MISSING

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def names(self) -> list[str]:
        """Every visible name, sorted."""
        return sorted(self.flatten())

    def flatten(self) -> dict[str, Any]:
        """Every visible name with its value, as one new dictionary."""
        values = {} if self._parent is None else self._parent.flatten()
        values.update(self._values)
        return values

    def __repr__(self) -> str:
        return f"Scope({', '.join(self.names())})"


def plain(value: Any, path: str = "value") -> Any:
    """`value` as plain data: str, int, float, bool, None, list and dict with string keys, nothing else.

    Subclasses of these (a string enum, a named tuple, any Mapping) become the plain type. What is plain
    already is copied all the same, so that a later change outside does not reach a running evaluation.

    Raises: UsageError for anything else, for a key that is not a string, and past 100 levels (a value that
    contains itself); the message has the path, such as `doc.pages[2]`.
    """
    return _plain(value, path, 0)


def _plain(value: Any, path: str, depth: int) -> Any:
    kind = type(value)
    if value is None or kind is str or kind is int or kind is float or kind is bool:
        return value
    if depth > MAX_DEPTH:
        raise UsageError(f"{path[:60]}…: nested more than {MAX_DEPTH} deep, or contains itself")
    if isinstance(value, Mapping):
        result: dict[str, Any] = {}
        for key, item in value.items():
            if not isinstance(key, str):
                raise UsageError(f"{path}: the key {key!r} is {describe(key)}, not string")
            result[str.__str__(key)] = _plain(item, f"{path}.{key}", depth + 1)
        return result
    if isinstance(value, list | tuple):
        return [_plain(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(value)]
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    raise UsageError(f"{path}: {kind.__name__} is not plain data (text, number, boolean, null, list or mapping)")
