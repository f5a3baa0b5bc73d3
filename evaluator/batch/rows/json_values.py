"""Rows from Python objects, and the error for rows that cannot be used."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from functools import partial
from typing import Any, TypeAlias, cast
from uuid import UUID

from evaluator.errors import UsageError
from evaluator.errors.messages import MAX_DIGITS
from evaluator.language.scopes import plain_integer


class RowError(UsageError):
    """A row, or the source of the rows, cannot be used; reading ends there.

    `source` is a file's path or the type of the object with the rows. `line` and `column` count
    from 1, `place` counts rows from 0; None where unknown, or for the whole source. `id` is the
    row's id, if known.
    """

    def __init__(
        self,
        message: str,
        *,
        source: str,
        line: int | None = None,
        column: int | None = None,
        place: int | None = None,
        id: str | None = None,
    ) -> None:
        where = source
        if line is not None:
            where += f":{line}" if column is None else f":{line}:{column}"
        elif place is not None:
            where += f":row {place}"
        super().__init__(f"{where}{'' if id is None else f' (id {id!r})'}: {message}")
        self.message = message
        self.source = source
        self.line = line
        self.column = column
        self.place = place
        self.id = id

    def __reduce__(self) -> tuple[Any, ...]:
        fields = {name: getattr(self, name) for name in ("source", "line", "column", "place", "id")}
        return (partial(RowError, **fields), (self.message,))


Rows: TypeAlias = Generator[tuple[int | None, dict[str, Any]], None, None]
"""The rows that a reader returns, each with the line of its file where it begins."""

MAX_DEPTH = 100


def read_objects(rows: Iterable[Any], source: str, start: int = 0) -> Rows:
    """Each row with JSON values; the first has the place `start`. Raises: RowError."""
    for place, row in enumerate(rows, start):
        yield None, read_object(row, source, place=place)


def read_object(row: Any, source: str, place: int) -> dict[str, Any]:
    """A row with JSON values. Raises: RowError."""
    try:
        return json_row(row)
    except UsageError as error:
        raise RowError(str(error), source=source, place=place) from error


def json_row(row: Any) -> dict[str, Any]:
    """A copy of a row with JSON values.

    Tuples and NumPy arrays become arrays; dates, times and UUIDs text (ISO 8601); decimals numbers;
    the missing values of pandas (NaT, NA) null.

    Raises: UsageError, for a row that is not an object with text keys, for NaN and infinity, and
    for any value without a JSON form, such as bytes and images.
    """
    if not isinstance(row, Mapping):
        raise UsageError(
            f"a row is an object (a mapping of names to values), not {type(row).__name__}"
        )
    values: dict[str, Any] = {}
    for name, value in cast("Mapping[Any, Any]", row).items():
        # Most are plain texts, which need no call.
        if name.__class__ is str:
            key = name
        else:
            key = _key(name, "the row")
        values[key] = value if value.__class__ is str else json_value(value, str(name))
    return values


def json_value(value: Any, path: str, depth: int = 0) -> Any:
    """`value` as a JSON value; `path` is its place in the row. Raises: as `json_row`."""
    kind = value.__class__
    if value is None or kind is str or kind is bool:
        return value
    if isinstance(value, int):
        return plain_integer(value, path)
    if depth > MAX_DEPTH:
        raise UsageError(f"{path[:60]}… is nested more than {MAX_DEPTH} deep, or contains itself")
    if isinstance(value, float):
        if not math.isfinite(value):
            raise _not_finite(value, path)
        return float(value)
    if isinstance(value, Mapping):
        return {
            _key(name, path): json_value(inner, f"{path}.{name}", depth=depth + 1)
            for name, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [
            json_value(inner, f"{path}.{index}", depth=depth + 1)
            for index, inner in enumerate(value)
        ]
    return _leaf(value, path, depth=depth)


def _not_finite(value: object, path: str) -> UsageError:
    return UsageError(f"{path} is {value!s}, which is not a JSON value; use null or a number")


def _key(name: Any, path: str) -> str:
    if not isinstance(name, str):
        raise UsageError(f"{path} has the field {name!r}, expected a text as name")
    return str.__str__(name)


def _leaf(value: Any, path: str, depth: int) -> Any:
    if isinstance(value, str):
        return str.__str__(value)
    # NaT and NA of pandas, recognised by their type, as pandas may not be installed.
    if type(value).__name__ in ("NaTType", "NAType") and type(value).__module__.startswith(
        "pandas"
    ):
        return None
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal):
        exponent = value.as_tuple().exponent
        if not isinstance(exponent, int):
            raise _not_finite(value, path)
        if value.adjusted() >= MAX_DIGITS:
            raise UsageError(f"{path}: the number has more than {MAX_DIGITS:,} digits")
        if exponent >= 0:
            return int(value)
        return float(value)
    if isinstance(value, UUID):
        return str(value)
    number_type = getattr(getattr(value, "dtype", None), "kind", None)
    if number_type == "M" and not getattr(value, "shape", None):
        return str(value)
    if number_type in ("b", "i", "u", "f", "O", "U", "T"):
        return json_value(value.tolist(), path, depth=depth + 1)
    raise UsageError(
        f"{path} is {type(value).__name__}, which has no JSON form; omit it or convert it to text"
    )
