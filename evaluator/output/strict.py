"""Reads standard JSON in C: the fast path, which the lenient reader also uses for valid parts."""

from __future__ import annotations

import json
from typing import Any, NoReturn, cast

from evaluator.output.escapes import has_unmeant

MAX_DEPTH = 200
"""The deepest nesting that is read: a deeper value could not be written or copied without
overflow.
"""

_MAX_FAILURES = 100


class NotPlain(ValueError):
    """JSON that needs a warning: a key occurs twice, NaN, a number outside the range of a float, or
    an escape that nobody meant.
    """


class Unreadable(Exception):
    """A block is not JSON. `resume` is the position from which to look for the next; `reason` is
    for a message.
    """

    def __init__(self, reason: str, at: int, resume: int, committed: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.at = at
        self.resume = resume
        self.committed = committed


def _constant(name: str) -> NoReturn:
    raise NotPlain(name)


def _float(digits: str) -> float:
    number = float(digits)
    if number - number != 0.0:
        raise NotPlain(digits)
    return number


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise NotPlain("a key twice")
    return value


_decoder = json.JSONDecoder(object_pairs_hook=_object, parse_float=_float, parse_constant=_constant)
_scan = cast(Any, _decoder.scan_once)  # type: ignore[attr-defined]


def read_strict(text: str) -> Any:
    """The value of a text that is one standard JSON value.

    Raises: ValueError, if it is anything else; RecursionError, if it is nested too deeply for the C
    reader.
    """
    try:
        value, end = _scan(text, 0)
        if end != len(text) and text[end:].strip(" \t\r\n"):
            raise ValueError("text after the value")
    except StopIteration:
        value = _decoder.decode(text)
    if text.count("[") + text.count("{") > MAX_DEPTH and too_deep(value):
        raise RecursionError
    return value


def read_as_meant(text: str) -> Any:
    """As `read_strict`. Raises NotPlain also for an escape that nobody meant."""
    value = read_strict(text)
    if has_unmeant(text, 0, len(text)):
        raise NotPlain("an escape")
    return value


def too_deep(value: Any, allowed: int = MAX_DEPTH) -> bool:
    """Whether a value contains containers nested more than `allowed` deep."""
    level: list[Any] = [value]
    for _ in range(allowed):
        following: list[Any] = []
        for item in level:
            if item.__class__ is dict:
                following.extend(item.values())
            elif item.__class__ is list:
                following.extend(item)
        if not following:
            return False
        level = following
    return any(item.__class__ is dict or item.__class__ is list for item in level)


class StrictScanner:
    """Reads values inside a longer text, with a bound on all failures together, so that time stays
    linear.

    `steps` is the number of repairs that the lenient reader may still try on this text. A failed
    attempt costs the characters that it read and, in the standard library, all those before it.
    """

    __slots__ = ("_failures", "_spare", "steps", "text")

    def __init__(self, text: str, steps: int) -> None:
        self.text = text
        self.steps = steps
        self._failures = 0
        self._spare = 2 * len(text) + 1000

    def read(self, start: int, depth: int) -> tuple[Any, int] | None:
        """The value that begins at `start` and its end; None if there is none, no attempt is left,
        or an escape in it has another meaning.
        """
        if self._failures >= _MAX_FAILURES or self._spare < 0:
            return None
        try:
            value, end = _scan(self.text, start)
        except json.JSONDecodeError as error:
            self._failures += 1
            self._spare -= max(error.pos - start, 0)
            return None
        except (ValueError, RecursionError, StopIteration):
            # How far it read is unknown, so only a few such failures are allowed.
            self._failures += 10
            return None
        if has_unmeant(self.text, start, end):
            self._failures += 1
            self._spare -= end - start
            return None
        if end - start > MAX_DEPTH - depth:
            count = self.text.count("[", start, end) + self.text.count("{", start, end)
            if count > MAX_DEPTH - depth and too_deep(value, MAX_DEPTH - depth):
                self._failures += 10
                return None
        return value, end
