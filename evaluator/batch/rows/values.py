"""Values of Python objects as JSON values: rows from lists, iterators, frames, Parquet and `datasets`."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, TypeAlias
from uuid import UUID

from evaluator.errors import UsageError

Rows: TypeAlias = Generator[tuple[int | None, dict[str, Any]], None, None]
"""What a reader gives: rows, each with the line of its file on which it begins."""

MAX_DEPTH = 100


def json_row(row: Any) -> dict[str, Any]:
    """A row whose values are JSON values, copied.

    Tuples and NumPy arrays become arrays; dates, times and UUIDs text (ISO 8601); decimals numbers; the missing values
    of pandas (NaT, NA) null.

    Raises: UsageError, for a row that is no object with names for keys, for NaN and infinity, and for all that has no
    JSON form, such as bytes and images.
    """
    if not isinstance(row, Mapping):
        raise UsageError(f"a row is an object (a mapping of names to values), not {type(row).__name__}")
    return {_key(name, "the row"): json_value(value, str(name)) for name, value in row.items()}


def json_value(value: Any, path: str, depth: int = 0) -> Any:
    """`value` as a JSON value, `path` being its place in the row. Raises as `json_row`."""
    kind = value.__class__
    if value is None or kind is str or kind is int or kind is bool:
        return value
    if depth > MAX_DEPTH:
        raise UsageError(f"{path[:60]}… is nested more than {MAX_DEPTH} deep, or contains itself")
    if isinstance(value, float):
        if not math.isfinite(value):
            raise UsageError(f"{path} is {float(value)}, which is no JSON value; put null or a number there")
        return float(value)
    if isinstance(value, Mapping):
        return {_key(name, path): json_value(inner, f"{path}.{name}", depth + 1) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(inner, f"{path}.{index}", depth + 1) for index, inner in enumerate(value)]
    return _leaf(value, path, depth)


def _key(name: Any, path: str) -> str:
    if not isinstance(name, str):
        raise UsageError(f"{path} has the field {name!r}: the name of a field is text")
    return str.__str__(name)


def _leaf(value: Any, path: str, depth: int) -> Any:
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if is_missing(value):
        return None
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal):
        if not value.is_finite():
            raise UsageError(f"{path} is {value}, which is no JSON value; put null or a number there")
        exponent = value.as_tuple().exponent
        return int(value) if isinstance(exponent, int) and exponent >= 0 else float(value)
    if isinstance(value, UUID):
        return str(value)
    number_type = getattr(getattr(value, "dtype", None), "kind", None)
    if number_type == "M" and not getattr(value, "shape", None):
        return str(value)
    if number_type in ("b", "i", "u", "f", "O", "U", "T"):
        return json_value(value.tolist(), path, depth + 1)
    raise UsageError(f"{path} is {type(value).__name__}, which has no JSON form; leave it out, or make it text")


def is_missing(value: Any) -> bool:
    """Whether a value is NaT or NA of pandas, told by its type, for pandas may not be there."""
    return type(value).__name__ in ("NaTType", "NAType") and type(value).__module__.startswith("pandas")
