"""What is counted of results while a batch runs, and what the rest of it is expected to take.

Several processes may count parts of the results; their totals are merged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import field
from math import sqrt
from typing import Any

from evaluator.batch.records import Verdict
from evaluator.lazy_dataclass import dataclass, frozen

EXPECTED_FROM = 20
"""After so many results the rest of the batch is expected with an interval."""
_Z = 1.96


@frozen
class Remaining:
    """What the samples that are left are expected to take, with a 95 % prediction interval."""

    mean: float
    low: float
    high: float


class Spread:
    """Mean and variance of values that arrive one at a time.

    Source: Welford, "Note on a method for calculating corrected sums of squares and products",
    Technometrics 4(3), 1962.
    """

    __slots__ = ("_count", "_mean", "_squares")

    def __init__(self) -> None:
        self._count = 0
        self._mean = self._squares = 0.0

    def add(self, value: float) -> None:
        self._count += 1
        step = value - self._mean
        self._mean += step / self._count
        self._squares += step * (value - self._mean)

    def state(self) -> tuple[int, float, float]:
        """What `merge` takes."""
        return self._count, self._mean, self._squares

    def merge(self, count: int, mean: float, squares: float) -> None:
        """Adds the values that another Spread has got.

        Source: Chan, Golub, LeVeque, "Algorithms for computing the sample variance", The American
        Statistician 37(3), 1983.
        """
        both = self._count + count
        if not both:
            return
        step = mean - self._mean
        self._squares += squares + step * step * self._count * count / both
        self._mean += step * count / both
        self._count = both

    def sum_of(self, further: int) -> Remaining | None:
        """The sum of `further` values like these; None while there are fewer than EXPECTED_FROM.

        The samples are taken as drawn at random: rows that are sorted by length mislead it.
        """
        if self._count < EXPECTED_FROM:
            return None
        variance = self._squares / (self._count - 1)
        # The values to come vary, and so does the mean that they are expected to have.
        half = _Z * sqrt(variance * further * (1 + further / self._count))
        mean = self._mean * further
        return Remaining(mean, max(0.0, mean - half), mean + half)


@dataclass(slots=True)
class Totals:
    """What is counted of results. `ran` is their number."""

    ran: int = 0
    verdicts: Counter[str] = field(default_factory=Counter[str])
    errors: Counter[str] = field(default_factory=Counter[str])
    cached_calls: int = 0
    interrupted_calls: int = 0
    _used: dict[str, float | None] = field(default_factory=dict[str, "float | None"])
    _known: Counter[str] = field(default_factory=Counter[str])
    _costs: Spread = field(default_factory=Spread)
    _durations: Spread = field(default_factory=Spread)

    def add(self, result: Mapping[str, Any]) -> None:
        """Counts a result, as JSON (see `SampleResult.to_dict`)."""
        self.ran += 1
        verdict = result["verdict"]
        self.verdicts[verdict] += 1
        failure = result["failure"]
        if verdict == Verdict.ERROR:
            self.errors["a scorer failed" if failure is None else failure["kind"]] += 1
        cost = 0.0
        used_by = [result["usage"]]
        for score in result["scores"].values():
            if "usage" in score:
                used_by.append(score["usage"])
        for used in used_by:
            cost += used.get("cost_usd") or 0.0
            for name, amount in used.items():
                self._use(name, amount)
                self._known[name] += amount or 0
        self._costs.add(cost)
        self._durations.add(result["duration_s"])
        self.cached_calls += result["cached_calls"]
        self.interrupted_calls += result["interrupted_calls"]

    def _use(self, name: str, amount: float | None) -> None:
        before = self._used.get(name, 0)
        self._used[name] = None if before is None or amount is None else before + amount

    def state(self) -> tuple[Any, ...]:
        """What `merge` takes, as plain data."""
        return (
            self.ran,
            dict(self.verdicts),
            dict(self.errors),
            self.cached_calls,
            self.interrupted_calls,
            self._used,
            dict(self._known),
            self._costs.state(),
            self._durations.state(),
        )

    def merge(self, state: tuple[Any, ...]) -> None:
        """Adds the results that other Totals have counted."""
        ran, verdicts, errors, cached, interrupted, used, known, costs, durations = state
        self.ran += ran
        for verdict, count in verdicts.items():
            self.verdicts[verdict] += count
        for kind, count in errors.items():
            self.errors[kind] += count
        self.cached_calls += cached
        self.interrupted_calls += interrupted
        for name, amount in used.items():
            self._use(name, amount)
        for name, amount in known.items():
            self._known[name] += amount
        self._costs.merge(*costs)
        self._durations.merge(*durations)
