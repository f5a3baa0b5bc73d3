"""The selection of rows from a source."""

from __future__ import annotations

import re
from collections.abc import Iterator
from random import Random
from typing import Annotated, Any, Generic, TypeVar

from evaluator.errors import UsageError
from evaluator.fields import After, Checked, Count, Expected, Flag, Name, Natural
from evaluator.lazy_dataclass import dataclass

T = TypeVar("T")


_SHARDS = "K/N with K from 1 to N, such as 2/8"
_SHARD = re.compile(r"([0-9]{1,6})/([0-9]{1,6})")


@dataclass(frozen=True, slots=True)
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

    def takes(self, place: int) -> bool:
        """Whether the selected row at `place`, counted from 0, belongs to this part."""
        return place % self.of == self.number - 1

    def size(self, rows: int) -> int:
        return len(range(self.number - 1, rows, self.of))


def _check_shard(text: str) -> str:
    Shard.parse(text)
    return text


@dataclass(frozen=True, slots=True)
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
