"""Averages over the results of a batch: macro averages over groups, and weighted averages."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, ClassVar, Protocol

from evaluator.batch.fields import reader_of
from evaluator.batch.records import SampleResult, Verdict
from evaluator.batch.scorers.builtin_scorer import Declared
from evaluator.batch.statistics import Estimate, stratified_interval, weighted_interval
from evaluator.batch.summary.parts import MetricValue
from evaluator.batch.summary.rows import fault_of
from evaluator.errors import UsageError
from evaluator.fields import Count
from evaluator.lazy_dataclass import dataclass, frozen

_NONE = "(none)"
_MOST_NAMED = 5


class Counter(Protocol):
    """Counts results one by one, so that several averages need one pass."""

    def add(self, result: SampleResult) -> None: ...

    def values(self) -> Mapping[str, MetricValue]: ...


@frozen(kw_only=True)
class Average(Declared):
    """`of`: a scorer, whose values are averaged; None: whether results passed. `cluster`: the
    metadata field or expression of related samples, as that of a batch.
    """

    of: str | None = None
    cluster: str | None = None

    @property
    def values(self) -> Sequence[str]:
        return ()

    @property
    def reads(self) -> str | None:
        """The metadata field or expression that it needs."""
        return None

    @property
    def of_scorers(self) -> Sequence[str]:
        """The scorers whose values it needs."""
        return () if self.of is None else (self.of,)

    def counter(self) -> Counter:
        raise NotImplementedError

    def compute(self, results: Iterable[SampleResult]) -> Mapping[str, MetricValue]:
        counter = self.counter()
        for result in results:
            counter.add(result)
        return counter.values()

    def value_of(self, result: SampleResult) -> float | None:
        if self.of is None:
            return {Verdict.PASSED: 1.0, Verdict.FAILED: 0.0}.get(result.verdict)
        score = result.scores.get(self.of)
        if score is None or fault_of(score) is not None:
            return None
        return score.value

    def cluster_reader(self) -> Callable[[SampleResult], Hashable]:
        """The cluster of a result: its sample, whose epochs are related, or the value of
        `cluster`.
        """
        if self.cluster is None:
            return lambda result: result.sample_id
        read = reader_of(self.cluster, "cluster")

        def cluster_of(result: SampleResult) -> Hashable:
            value = read(result)
            if value is None:
                return ("sample", result.sample_id)
            return ("cluster", str(value))

        return cluster_of


@frozen(kw_only=True)
class MacroAverage(Average):
    """The mean over the groups of `by` of each group's mean, so that each group counts the same,
    whatever its size.

    `by`: a metadata field or an expression; None: that of `group_by`. `weights`: how much each
    group counts; None: each the same. Without a value for some group there is no average. The
    groups are taken as given, not as drawn: the interval is of the samples within them, and there
    is none if a cluster has samples of several groups.
    """

    type: ClassVar[str] = "macro"
    by: str | None = None
    weights: Mapping[str, float] | None = None

    def check(self) -> None:
        weights = self.weights
        if weights is not None and (
            not weights or min(weights.values()) < 0 or not sum(weights.values())
        ):
            raise UsageError("macro: weights has to have numbers of at least 0, and not only 0")

    @property
    def reads(self) -> str | None:
        return self.by

    def counter(self) -> Counter:
        return _MacroCounter(self)


@dataclass(slots=True)
class _GroupMean:
    values: array[float] = field(default_factory=lambda: array("d"))
    clusters: list[Hashable] = field(default_factory=list[Hashable])

    def stratum(self) -> tuple[Sequence[float], Sequence[Hashable] | None]:
        is_clustered = len(set(self.clusters)) < len(self.clusters)
        return self.values, self.clusters if is_clustered else None


class _MacroCounter:
    def __init__(self, average: MacroAverage) -> None:
        self.average = average
        self.read = reader_of(average.by or "", "metrics.by")
        self.cluster_of = average.cluster_reader()
        self.groups: dict[str, _GroupMean] = {}

    def add(self, result: SampleResult) -> None:
        key = self.read(result)
        group = self.groups.setdefault(_NONE if key is None else str(key), _GroupMean())
        if (value := self.average.value_of(result)) is not None:
            group.values.append(value)
            group.clusters.append(self.cluster_of(result))

    def values(self) -> Mapping[str, MetricValue]:
        name = self.average.name
        groups = self.groups
        if self.average.weights is None:
            weights = dict.fromkeys(groups, 1.0)
        else:
            weights = self.average.weights
        if error := self._error(weights):
            return {
                name: MetricValue(
                    None, sum(len(group.values) for group in groups.values()), error=error
                )
            }
        strata = [group.stratum() for group in groups.values()]
        found = stratified_interval(strata, [weights[group] for group in groups])
        clusters = [set(group.clusters) for group in groups.values()]
        if sum(map(len, clusters)) > len(set[Hashable]().union(*clusters)):
            found = replace(found, se=None, low=None, high=None)
        return {name: _metric_value(found)}

    def _error(self, weights: Mapping[str, float]) -> str:
        groups = self.groups
        by = self.average.by
        if empty := [name for name, group in groups.items() if not group.values]:
            return f"{len(empty)} of {len(groups)} groups of {by} have no value: {_some(empty)}"
        if missing := [name for name in groups if name not in weights]:
            return f"weights has no weight for {_some(missing)}"
        if unused := [name for name in weights if name not in groups]:
            return f"there are no results of {_some(unused)}, which has a weight"
        if groups:
            return ""
        return "there is no result"


@frozen(kw_only=True)
class WeightedAverage(Average):
    """The average of results weighted by `weight`, a metadata field or an expression with a number
    of at least 0.
    """

    type: ClassVar[str] = "weighted"
    weight: str

    @property
    def reads(self) -> str | None:
        return self.weight

    def counter(self) -> Counter:
        return _WeightedCounter(self)


class _WeightedCounter:
    def __init__(self, average: WeightedAverage) -> None:
        self.average = average
        self.read = reader_of(average.weight, "metrics.weight")
        self.cluster_of = average.cluster_reader()
        self.found = array("d")
        self.weights = array("d")
        self.clusters = list[Hashable]()
        self.error = ""

    def add(self, result: SampleResult) -> None:
        weight = _number(self.read(result))
        if weight is None or not 0 <= weight < math.inf:
            self.error = (
                self.error
                or f"the weight of sample {result.sample_id!r:.80} is not a number of at least 0"
            )
        elif (value := self.average.value_of(result)) is not None:
            self.found.append(value)
            self.weights.append(weight)
            self.clusters.append(self.cluster_of(result))

    def values(self) -> Mapping[str, MetricValue]:
        name = self.average.name
        n = len(self.found)
        error = self.error or (
            "" if any(self.weights) else "the weights of the results with a value add up to 0"
        )
        if error:
            return {name: MetricValue(None, n, error=error)}
        return {
            name: _metric_value(weighted_interval(self.found, self.weights, clusters=self.clusters))
        }


@frozen(kw_only=True)
class Calibrated(Average):
    """How far confidences are from the truth. `confidence`: a scorer whose values in [0, 1] are the
    confidences; the truth is whether results passed, or the value of the scorer `of`.
    """

    confidence: str

    @property
    def of_scorers(self) -> Sequence[str]:
        return (self.confidence, *([] if self.of is None else [self.of]))

    def pair_of(self, result: SampleResult) -> tuple[float, float] | None:
        """The confidence and the truth of a result; None without both."""
        truth = self.value_of(result)
        score = result.scores.get(self.confidence)
        if truth is None or score is None or score.value is None:
            return None
        return score.value, truth


@frozen(kw_only=True)
class BrierScore(Calibrated):
    """The mean of the squared differences between confidence and truth: 0 is perfect.

    Source: Brier, Monthly Weather Review 78 (1950) 1.
    """

    type: ClassVar[str] = "brier"

    def counter(self) -> Counter:
        return _CalibrationCounter(self)


@frozen(kw_only=True)
class CalibrationError(Calibrated):
    """The expected calibration error: the mean difference between confidence and truth in `bins` of
    confidences of equal width, by their numbers of results. It has no interval.

    Source: Guo et al., "On Calibration of Modern Neural Networks" (2017, arXiv:1706.04599).
    """

    type: ClassVar[str] = "ece"
    bins: Count = 10

    def counter(self) -> Counter:
        return _CalibrationCounter(self)


class _CalibrationCounter:
    def __init__(self, average: BrierScore | CalibrationError) -> None:
        self.average = average
        self.cluster_of = average.cluster_reader()
        self.confidences = array("d")
        self.truths = array("d")
        self.clusters = list[Hashable]()

    def add(self, result: SampleResult) -> None:
        pair = self.average.pair_of(result)
        if pair is not None:
            self.confidences.append(pair[0])
            self.truths.append(pair[1])
            self.clusters.append(self.cluster_of(result))

    def values(self) -> Mapping[str, MetricValue]:
        average = self.average
        n = len(self.truths)
        if not n:
            error = f"no result has a value and one of {average.confidence}"
            return {average.name: MetricValue(None, 0, error=error)}
        if any(not 0 <= each <= 1 for each in (*self.confidences, *self.truths)):
            error = "a confidence, or what it is compared with, is not between 0 and 1"
            return {average.name: MetricValue(None, n, error=error)}
        pairs = list(zip(self.confidences, self.truths, strict=True))
        if isinstance(average, BrierScore):
            squares = [(confidence - truth) ** 2 for confidence, truth in pairs]
            found = weighted_interval(squares, [1.0] * n, clusters=self.clusters)
            return {average.name: _metric_value(found)}
        bins: dict[int, list[tuple[float, float]]] = {}
        for confidence, truth in pairs:
            place = min(average.bins - 1, math.ceil(confidence * average.bins) - 1)
            bins.setdefault(max(0, place), []).append((confidence, truth))
        total = math.fsum(
            abs(math.fsum(confidence - truth for confidence, truth in own)) for own in bins.values()
        )
        return {average.name: MetricValue(total / n, n)}


def _metric_value(found: Estimate) -> MetricValue:
    return MetricValue(found.mean, found.n, se=found.se, low=found.low, high=found.high)


def _number(value: Any) -> float | None:
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return None
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    return None


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_MOST_NAMED])
    if len(names) > _MOST_NAMED:
        return f"{shown} and {len(names) - _MOST_NAMED} more"
    return shown
