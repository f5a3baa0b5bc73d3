"""The names of types and what they mean: any, string, number, integer, boolean, object, array, [], T[].

They follow JSON Schema: a boolean is not a number, and 3.0 is an integer.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, NoReturn

from evaluator.errors import UsageError

TYPE_NAMES = ("any", "string", "number", "integer", "boolean", "object", "array", "[]")
"""The names without their `T[]` forms; `[]` is another spelling of `array`."""

_MAX_DIGITS = 1000
_INTEGER = re.compile(r"[+-]?\d+", re.A)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.A)


def is_type_name(name: str) -> bool:
    """Whether `name` is a type, `T[]` to any depth included."""
    return _parts(name)[0] in TYPE_NAMES


def matches(value: Any, type_name: str) -> bool:
    """Whether a plain value is of a type. Raises: UsageError, if there is no such type."""
    base, depth = _parts(type_name)
    if base not in TYPE_NAMES:
        _no_type(type_name)
    return _matches(value, base, depth)


def describe(value: Any) -> str:
    """The type of a value in a template author's words: `string`, `integer`, `null`, …"""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, str):
        return "string"
    if isinstance(value, int):
        return "integer"
    if isinstance(value, float):
        return "number"
    if isinstance(value, list | tuple):
        return "array"
    if isinstance(value, Mapping):
        return "object"
    return type(value).__name__


def read_typed(text: str, type_name: str) -> Any:
    """A value of a type from its text, as in a `default` or on the command line.

    `any` and `string` keep the text as it is. Numbers are decimal, booleans `true` or `false` in any case;
    arrays and objects are JSON. White space around these does not matter. Nothing else is guessed.

    Raises: UsageError, if the text is not of the type, or if there is no such type.
    """
    base, depth = _parts(type_name)
    if base not in TYPE_NAMES:
        _no_type(type_name)
    if depth == 0 and base in ("any", "string"):
        return text
    stripped = text.strip()
    if depth == 0 and base == "boolean":
        lowered = stripped.lower()
        if lowered not in ("true", "false"):
            _refuse(text, type_name, "write true or false")
        return lowered == "true"
    if depth == 0 and base in ("integer", "number"):
        return _read_number(stripped, base, text)
    return _read_json(stripped, base, depth, type_name)


def _read_number(stripped: str, base: str, text: str) -> int | float:
    if len(stripped) > _MAX_DIGITS:
        _refuse(text, base, "it has too many digits")
    if _INTEGER.fullmatch(stripped):
        return int(stripped)
    if _NUMBER.fullmatch(stripped):
        number = float(stripped)
        if math.isinf(number):
            _refuse(text, base, "it is too large")
        if base == "number":
            return number
        if number.is_integer():
            return int(number)
    _refuse(text, base)


def _read_json(stripped: str, base: str, depth: int, type_name: str) -> Any:
    try:
        value = json.loads(stripped, parse_constant=_no_constant)
    except RecursionError as error:
        raise UsageError(f"expected {type_name}: the JSON is nested too deeply") from error
    except ValueError as error:
        raise UsageError(f"expected {type_name} as JSON, got {_shown(stripped)}: {error}") from error
    if not _matches(value, base, depth):
        raise UsageError(f"expected {type_name}, got {describe(value)}{_wrong_item(value, base, depth)}")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _parts(name: str) -> tuple[str, int]:
    """The base type and how many `[]` follow it; `[]` alone is a base type."""
    base, depth = name, 0
    while len(base) > 2 and base.endswith("[]"):
        base, depth = base[:-2], depth + 1
    return base, depth


def _matches(value: Any, base: str, depth: int) -> bool:
    if depth:
        return isinstance(value, list | tuple) and all(_matches(item, base, depth - 1) for item in value)
    if base == "any":
        return True
    if base == "string":
        return isinstance(value, str)
    if base == "boolean":
        return isinstance(value, bool)
    if base == "number":
        return isinstance(value, int | float) and not isinstance(value, bool)
    if base == "integer":
        if isinstance(value, float):
            return value.is_integer()
        return isinstance(value, int) and not isinstance(value, bool)
    if base == "object":
        return isinstance(value, Mapping)
    return isinstance(value, list | tuple)


def wrong_item(value: Any, type_name: str) -> str:
    """`" whose item 3 is string"` for the first item that makes an array not match, or an empty string."""
    return _wrong_item(value, *_parts(type_name))


def _wrong_item(value: Any, base: str, depth: int) -> str:
    if not depth or not isinstance(value, list | tuple):
        return ""
    for index, item in enumerate(value):
        if not _matches(item, base, depth - 1):
            return f" whose item {index} is {describe(item)}{_wrong_item(item, base, depth - 1)}"
    return ""


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:39] + "…")


def _refuse(text: str, type_name: str, hint: str = "") -> NoReturn:
    raise UsageError(f"expected {type_name}, got {_shown(text)}" + (f"; {hint}" if hint else ""))


def _no_type(name: str) -> NoReturn:
    raise UsageError(f"there is no type {name!r}; types are {', '.join(TYPE_NAMES)} and T[]")
