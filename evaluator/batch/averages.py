"""Averages over the results of a batch: macro averages over groups, and weighted averages."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from evaluator.batch.fields import reader_of
from evaluator.batch.records import SampleResult, Verdict
from evaluator.batch.summary.columns import fault_of
from evaluator.batch.summary.parts import MetricValue

_NONE = "(none)"
_MOST_NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class _Average:
    """`of`: a scorer, whose values are averaged; None: whether results passed."""

    type: ClassVar[str]
    name: str = ""
    of: str | None = None

    @property
    def values(self) -> Sequence[str]:
        return ()

    @property
    def reads(self) -> str | None:
        """The metadata field or expression that it needs."""
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        return {"type": self.type, **{each.name: getattr(self, each.name) for each in fields(self)}}

    def _value(self, result: SampleResult) -> float | None:
        if self.of is None:
            return {Verdict.PASSED: 1.0, Verdict.FAILED: 0.0}.get(result.verdict)
        score = result.scores.get(self.of)
        return None if score is None or fault_of(score) is not None else score.value


@dataclass(frozen=True, slots=True, kw_only=True)
class MacroAverage(_Average):
    """The mean over the groups of `by` of each group's mean, so that each group counts the same, whatever its size.

    `by`: a metadata field or an expression; None: that of `group_by`. `weights`: how much each group counts; None: all
    the same. Without a value for some group there is no average.
    """

    type: ClassVar[str] = "macro"
    by: str | None = None
    weights: Mapping[str, float] | None = None

    @property
    def reads(self) -> str | None:
        return self.by

    def compute(self, results: Iterable[SampleResult]) -> Mapping[str, MetricValue]:
        read, groups, n = reader_of(self.by or "", "metrics.by"), dict[str, list[float]](), 0
        for result in results:
            key = read(result)
            group = groups.setdefault(_NONE if key is None else str(key), [])
            if (value := self._value(result)) is not None:
                group.append(value)
                n += 1
        weights = dict.fromkeys(groups, 1.0) if self.weights is None else self.weights
        error = ""
        if empty := [name for name, values in groups.items() if not values]:
            error = f"{len(empty)} of {len(groups)} groups of {self.by} have no value: {_some(empty)}"
        elif missing := [name for name in groups if name not in weights]:
            error = f"weights has no weight for {_some(missing)}"
        elif unused := [name for name in weights if name not in groups]:
            error = f"there are no results of {_some(unused)}, which has a weight"
        elif not groups:
            error = "there is no result"
        if error:
            return {self.name: MetricValue(None, n, error=error)}
        means = {name: math.fsum(values) / len(values) for name, values in groups.items()}
        value = math.fsum(weights[name] * mean for name, mean in means.items()) / math.fsum(weights.values())
        return {self.name: MetricValue(value, n)}


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightedAverage(_Average):
    """The average of results weighted by `weight`, a metadata field or an expression with a number of at least 0."""

    type: ClassVar[str] = "weighted"
    weight: str = ""

    @property
    def reads(self) -> str | None:
        return self.weight

    def compute(self, results: Iterable[SampleResult]) -> Mapping[str, MetricValue]:
        read, sums, weights = reader_of(self.weight, "metrics.weight"), list[float](), list[float]()
        for result in results:
            weight = _number(read(result))
            if weight is None or not 0 <= weight < math.inf:
                error = f"the weight of sample {result.sample_id!r:.80} is not a number of at least 0"
                return {self.name: MetricValue(None, len(weights), error=error)}
            if (value := self._value(result)) is not None:
                sums.append(weight * value)
                weights.append(weight)
        total = math.fsum(weights)
        if not total:
            return {
                self.name: MetricValue(None, len(weights), error="the weights of the results with a value add up to 0")
            }
        return {self.name: MetricValue(math.fsum(sums) / total, len(weights))}


def _number(value: Any) -> float | None:
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_MOST_NAMED])
    return f"{shown} and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else shown
