"""Rows from Python objects, the error for rows that cannot be used, and the selection of rows."""

from __future__ import annotations

import math
import re
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from functools import partial
from random import Random
from typing import Annotated, Any, Generic, TypeAlias, TypeVar, cast
from uuid import UUID

from evaluator.errors import UsageError
from evaluator.errors.messages import MAX_DIGITS
from evaluator.fields import After, Checked, Count, Expected, Flag, Name, Natural
from evaluator.language.scopes import plain_integer
from evaluator.lazy_dataclass import frozen


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
        try:
            values = json_row(row)
        except UsageError as error:
            raise RowError(str(error), source=source, place=place) from error
        yield None, values


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


T = TypeVar("T")


_SHARDS = "K/N with K from 1 to N, such as 2/8"
_SHARD = re.compile(r"([0-9]{1,6})/([0-9]{1,6})")


@frozen
class Shard:
    """Part `number` of `of` equal parts, counted from 1. Rows are dealt in turn, in the order of
    the source.
    """

    number: int
    of: int

    @classmethod
    def parse(cls, text: object) -> Shard:
        """The shard `K/N`. Raises: UsageError, for anything else."""
        if isinstance(text, str):
            match = _SHARD.fullmatch(text)
        else:
            match = None
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise UsageError(f"shard is {text!r}, expected {_SHARDS}")
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    def select(self, rows: Sequence[T], place: int) -> Sequence[T]:
        """Those of `rows` that belong to this part. `place` is that of the first one among all
        selected rows, counted from 0.
        """
        return rows[(self.number - 1 - place) % self.of :: self.of]

    def size(self, rows: int) -> int:
        return len(range(self.number - 1, rows, self.of))


def _check_shard(text: str) -> str:
    Shard.parse(text)
    return text


@frozen
class Selection(Checked, error=UsageError):
    """Which rows are evaluated. The range is applied first, then `where`, `sample` and `limit`,
    then `shard`.

    `start` and `stop`: rows by their place in the source, counted from 0, `stop` excluded. `where`:
    a boolean expression over a row's fields, such as `kind == 'choice'`. `sample`: this many rows
    drawn at random without replacement, in the order of the source; all of them if there are fewer.
    The draw depends on `seed` and on the number of rows to draw from, and holds the drawn rows in
    memory. `limit`: at most this many rows. `shard`: of the selected rows part K of N, as "K/N";
    see `evaluator.batch.merge`.

    Raises: UsageError, for an invalid value.
    """

    limit: Annotated[Count | None, Flag("--limit", "At most this many rows.")] = None
    start: Annotated[
        Natural | None, Flag("--start", "Rows from this position on, counted from 0.")
    ] = None
    stop: Annotated[Natural | None, Flag("--stop", "Rows before this position.")] = None
    where: Annotated[
        Name | None,
        Expected("an expression such as: kind == 'choice'"),
        Flag(
            "--where",
            "Only rows for which this is true, e.g. \"subject == 'physics'\".",
            metavar="EXPRESSION",
        ),
    ] = None
    sample: Annotated[
        Count | None, Flag("--sample", "This many rows, drawn at random with --seed.")
    ] = None
    seed: Annotated[int, Flag("--seed", "Seed of --sample.")] = 0
    shard: Annotated[
        Name | None,
        Expected(_SHARDS),
        Flag(
            "--shard", "Only part K of N of these rows; see: evaluator batch merge.", metavar="K/N"
        ),
        After(_check_shard),
    ] = None

    def check(self) -> None:
        if self.stop is not None and self.stop <= (self.start or 0):
            raise UsageError(
                f"there is no row between start {self.start or 0} and stop {self.stop}"
            )

    def expected(self, rows: int | None) -> int | None:
        """The number of selected rows of `rows`; None if only reading them can tell."""
        if rows is None or self.where is not None:
            return None
        if self.stop is None:
            stop = rows
        else:
            stop = min(self.stop, rows)
        bounds = [max(0, stop - (self.start or 0)), self.sample, self.limit]
        selected = min(bound for bound in bounds if bound is not None)
        if self.shard is None:
            return selected
        return Shard.parse(self.shard).size(selected)


def shard_of(selection: Selection) -> Shard | None:
    """The shard that is selected; None for all rows."""
    if selection.shard is None:
        return None
    return Shard.parse(selection.shard)


class Reservoir(Generic[T]):
    """A random sample of fixed size from a stream of unknown length.

    Source: Algorithm R in J. S. Vitter, "Random Sampling with a Reservoir", ACM TOMS 11 (1), 1985.
    """

    def __init__(self, size: int, seed: int) -> None:
        self._size = size
        self._seen = 0
        # Of the methods of Random, only this one gives the same numbers in every version of Python.
        self._random = Random(seed).random
        self._kept: list[tuple[int, T]] = []

    def offer(self, item: T) -> None:
        self._seen += 1
        if len(self._kept) < self._size:
            self._kept.append((self._seen, item))
            return
        index = int(self._random() * self._seen)
        if index < self._size:
            self._kept[index] = (self._seen, item)

    def drawn(self) -> Iterator[T]:
        """The drawn items, in the order in which they were offered."""
        kept: list[Any] = sorted(self._kept, key=lambda pair: pair[0])
        return (item for _, item in kept)
