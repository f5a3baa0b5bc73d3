"""Which rows of a source are evaluated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any, Generic, TypeVar

from evaluator.errors import UsageError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Selection:
    """Which rows, in this order: the range, then `where`, then `sample`, then `limit`.

    `start` and `stop`: rows by their place in the source, counted from 0, `stop` not included. `where`: an expression
    over a row's fields that says true or false, such as `kind == 'choice'`; rows for which it is true are kept.
    `sample`: so many rows drawn without replacement, each row as likely as any other, in the order of the source; fewer
    where there are no more. The draw depends on `seed` and on how many rows there are to draw from, and holds that
    many rows in memory. `limit`: at most so many rows.

    Raises: UsageError, for a number that makes no sense.
    """

    limit: int | None = None
    start: int | None = None
    stop: int | None = None
    where: str | None = None
    sample: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("limit", 1), ("start", 0), ("stop", 0), ("sample", 1)):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < least):
                raise UsageError(f"{name} is {value!r}, expected a whole number from {least} on")
        if type(self.seed) is not int:
            raise UsageError(f"seed is {self.seed!r}, expected a whole number")
        if self.stop is not None and self.stop <= (self.start or 0):
            raise UsageError(f"no row lies between start {self.start or 0} and stop {self.stop}")
        if self.where is not None and (type(self.where) is not str or not self.where.strip()):
            raise UsageError(f"where is {self.where!r}, expected an expression such as: kind == 'choice'")

    def expected(self, rows: int | None) -> int | None:
        """How many of `rows` rows are selected; None where only reading them tells."""
        if rows is None or self.where is not None:
            return None
        stop = rows if self.stop is None else min(self.stop, rows)
        bounds = [max(0, stop - (self.start or 0)), self.sample, self.limit]
        return min(bound for bound in bounds if bound is not None)


class Reservoir(Generic[T]):
    """A sample of fixed size out of a stream whose length is not known.

    Source: Algorithm R in J. S. Vitter, "Random Sampling with a Reservoir", ACM TOMS 11 (1), 1985.
    """

    def __init__(self, size: int, seed: int) -> None:
        self._size, self._seen = size, 0
        # Of all the methods of Random only this one gives the same numbers in every version of Python.
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
        """What was drawn, in the order in which it was offered."""
        kept: list[Any] = sorted(self._kept, key=lambda pair: pair[0])
        return (item for _, item in kept)
