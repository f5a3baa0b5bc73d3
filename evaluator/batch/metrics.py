"""Metrics over all results of a template and variant: averages over groups, weighted averages,
functions of your own.

A metric has one value, or several named ones. Each is n of N results. A metric that cannot be
computed has no value and says why; it is never zero, and no result is left out of N.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import field, replace
from functools import partial
from typing import Any, Protocol, TypeAlias, cast, overload

from evaluator.batch.averages import (
    Average,
    BrierScore,
    CalibrationError,
    MacroAverage,
    WeightedAverage,
)
from evaluator.batch.records import SampleResult
from evaluator.batch.scorers.builtin_scorer import check_name, suggestion
from evaluator.batch.scorers.contract import exception_text, plain_scalar, type_name
from evaluator.batch.scorers.function_scorer import (
    Around,
    load_function,
    source_sha256,
    unloaded,
    value_names,
)
from evaluator.batch.scorers.scorer_registry import read_spec
from evaluator.batch.summary.parts import MetricValue
from evaluator.errors import MachineError, RecordError, UsageError
from evaluator.fields import fits
from evaluator.lazy_dataclass import dataclass, frozen

MetricSpec: TypeAlias = "str | Mapping[str, Any] | Callable[..., Any] | Metric"
_FUNCTION = re.compile(r"(?:.+\.py|[A-Za-z_][\w.]*):[A-Za-z_][\w.]*", re.DOTALL)


class Metric(Protocol):
    """A metric. `values` are the names of its values, NAME.VALUE in summaries; empty: one value,
    called `name`.
    """

    @property
    def name(self) -> str: ...

    @property
    def values(self) -> Sequence[str]: ...

    def describe(self) -> dict[str, Any]: ...

    def compute(self, results: Iterable[SampleResult]) -> Mapping[str, MetricValue]:
        """The values by `metric_names`. `results` can be read once. N is filled in by the
        caller.
        """
        ...


def metric_names(metric: Metric) -> list[str]:
    return [f"{metric.name}.{value}" for value in metric.values] or [metric.name]


def describe_metric(metric: Metric) -> dict[str, Any]:
    """The metric as the manifest stores it."""
    if metric.values:
        values = {"values": list(metric.values)}
    else:
        values = {}
    return {**metric.describe(), "name": metric.name, **values}


def compute_metrics(
    metrics: Sequence[Metric], read: Callable[[], Iterable[SampleResult]], of: int
) -> dict[str, MetricValue]:
    """The values of metrics, of N = `of` results. An exception is the error of the values of its
    metric.

    All averages together read the results once, each function once more, and a StoredMetric never.
    """
    counters = {each.name: each.counter() for each in metrics if isinstance(each, Average)}
    if counters:
        for result in read():
            for counter in counters.values():
                counter.add(result)
    values: dict[str, MetricValue] = {}
    for metric in metrics:
        counter = counters.get(metric.name)
        try:
            if counter is not None:
                found = counter.values()
            else:
                found = metric.compute(read())
        except (MachineError, RecordError):
            raise
        except Exception as error:
            found = {
                name: MetricValue(None, 0, error=exception_text(error))
                for name in metric_names(metric)
            }
        values |= {name: replace(value, of=of) for name, value in found.items()}
    return values


# -- functions -------------------------------------------------------------------------------------


@frozen
class FunctionMetric:
    """A metric made from a function of the results; calling it calls the function.

    The function gets an iterator of `SampleResult`, errors included, and returns a number, or a
    `MetricValue` with the number of results that it is of; with `values` a mapping of these names
    to such. A plain number is of all results. The function runs inside the context that `around`
    gives.

    Raises: UsageError, for invalid names.
    """

    function: Callable[..., Any]
    name: str
    values: Sequence[str] = ()
    around: Around = field(default=nullcontext, repr=False, compare=False, kw_only=True)

    def __post_init__(self) -> None:
        check_name(self.name)
        object.__setattr__(self, "values", value_names(self.name, self.values))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def describe(self) -> dict[str, Any]:
        source = source_sha256(self.function)
        return {"type": "function", "source_sha256": source}

    def compute(self, results: Iterable[SampleResult]) -> Mapping[str, MetricValue]:
        counted = _Counted(results)
        try:
            with self.around():
                given = self.function(iter(counted))
            for _ in counted:
                pass
            if not self.values:
                return {self.name: _metric_value(given, counted.count)}
            if not isinstance(given, Mapping):
                raise UsageError(
                    f"it returned {type_name(given)}, expected a mapping of "
                    f"{', '.join(self.values)}"
                )
            found = cast("Mapping[Any, Any]", given)
            if unknown := [name for name in found if name not in self.values]:
                raise UsageError(
                    f"it returned {str(unknown[0])[:40]!r}, which is not one of its values"
                )
        except (MachineError, RecordError):
            raise
        except Exception as error:
            return {
                name: MetricValue(None, 0, error=exception_text(error))
                for name in metric_names(self)
            }
        return {
            f"{self.name}.{value}": self._of(value, found, count=counted.count)
            for value in self.values
        }

    def _of(self, value: str, found: Mapping[Any, Any], count: int) -> MetricValue:
        if value not in found:
            return MetricValue(None, 0, error="it did not return this value")
        try:
            return _metric_value(found[value], count)
        except Exception as error:
            return MetricValue(None, 0, error=exception_text(error))


@dataclass(slots=True)
class _Counted:
    """Results, counted as they are read; what is left can be read by a second iterator."""

    results: Iterable[SampleResult]
    count: int = 0
    _rest: Any = field(default=None, init=False)

    def __iter__(self) -> Any:
        if self._rest is None:
            self._rest = iter(self.results)
        return self

    def __next__(self) -> SampleResult:
        found = next(self._rest)
        self.count += 1
        return found


def _metric_value(given: Any, count: int) -> MetricValue:
    """Raises: UsageError, for anything but a finite number, None or a MetricValue."""
    if isinstance(given, MetricValue):
        value = plain_scalar(given.value)
        n = given.n
        error = given.error
        interval = {name: getattr(given, name) for name in ("se", "low", "high")}
        if not all(fits(each, float | None) for each in interval.values()):
            raise UsageError(
                "it returned a MetricValue whose se, low or high is not a finite number"
            )
    else:
        value = plain_scalar(given)
        n = count
        error = ""
        interval = {}
    if value is None:
        return MetricValue(None, n, error=error or "it returned no value")
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise UsageError(
            f"it returned {type_name(given)} {str(given)[:40]!r}, expected a finite number or a "
            "MetricValue"
        )
    if not 0 <= n <= count:
        raise UsageError(f"it returned n={n!r}, expected 0 to {count:,}, the number of results")
    return MetricValue(float(value), n, error=error, **interval)


@overload
def metric(function: Callable[..., Any], /) -> FunctionMetric: ...
@overload
def metric(
    *, name: str | None = None, values: Sequence[str] = ()
) -> Callable[[Callable[..., Any]], FunctionMetric]: ...
def metric(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    values: Sequence[str] = (),
) -> FunctionMetric | Callable[[Callable[..., Any]], FunctionMetric]:
    """Decorates a function of results to make it a metric, named after the function unless `name`
    is given.

    Raises: UsageError, as FunctionMetric does.
    """
    if function is None:
        return partial(_of_function, name=name, values=values)
    return _of_function(function, name, values=values)


def _of_function(
    function: Callable[..., Any], name: str | None = None, values: Sequence[str] = ()
) -> FunctionMetric:
    called = name or getattr(function, "__name__", None) or type(function).__name__
    return FunctionMetric(function, called, values=values)


@frozen
class StoredMetric:
    """A function that is not imported: its code is only named, or its values are those of an
    earlier session.
    """

    name: str
    values: Sequence[str] = ()
    stored: Mapping[str, MetricValue] = field(default_factory=dict[str, MetricValue])

    def describe(self) -> dict[str, Any]:
        return {"type": "function"}

    def compute(self, results: Iterable[SampleResult]) -> Mapping[str, MetricValue]:
        unknown = MetricValue(
            None, 0, error="not computed since the results changed; resume the batch"
        )
        return {name: self.stored.get(name, unknown) for name in metric_names(self)}


# -- specs -----------------------------------------------------------------------------------------

AVERAGES: Mapping[str, type[Average]] = {
    "macro": MacroAverage,
    "weighted": WeightedAverage,
    "brier": BrierScore,
    "ece": CalibrationError,
}


def make_metrics(
    specs: Iterable[MetricSpec], group_by: str | None = None, cluster: str | None = None
) -> tuple[Metric, ...]:
    """The metrics of a batch. `group_by` is the field of macro averages that name none, `cluster`
    that of the clusters.

    A spec is a text as for scorers (`macro:by=subject`, `file.py:function`), a table with a `type`,
    a function or a Metric. Raises: UsageError, for an unknown name or argument, and for two metrics
    with one name; MissingExtra.
    """
    made: list[Metric] = []
    names = set[str]()
    for spec in specs:
        one = _made(spec)
        if isinstance(one, MacroAverage) and one.by is None:
            if group_by is None:
                raise UsageError(
                    f"metric {one.name!r} needs the field of its groups: by, or group_by of the "
                    "batch"
                )
            one = replace(one, by=group_by)
        if isinstance(one, Average) and one.cluster is None:
            one = replace(one, cluster=cluster)
        for name in metric_names(one):
            if name in names:
                raise UsageError(f"two metrics are named {name!r}; give one a name")
            names.add(name)
        made.append(one)
    return tuple(made)


def _made(spec: MetricSpec) -> Metric:
    if isinstance(spec, str):
        spec = read_spec(spec, AVERAGES)
    if isinstance(spec, Mapping):
        return _of_table(spec)
    if callable(getattr(spec, "compute", None)):
        return cast("Metric", spec)
    if callable(spec):
        return _of_function(spec)
    raise UsageError(
        f"a metric is a name, a table with a type, a function or a Metric, not {type_name(spec)}"
    )


def _of_table(table: Mapping[str, Any]) -> Metric:
    arguments = dict(table)
    kind = arguments.pop("type", None)
    if isinstance(kind, str) and kind in AVERAGES:
        return AVERAGES[kind].from_table(arguments)
    if not isinstance(kind, str) or not _FUNCTION.fullmatch(kind):
        known = ", ".join(AVERAGES)
        if isinstance(kind, str):
            hint = suggestion(kind, AVERAGES)
        else:
            hint = ""
        raise UsageError(
            f"there is no metric {kind!r}{hint} (metrics: {known}; or file.py:function)"
        )
    name = arguments.pop("name", None)
    if arguments or not fits(name, str | None):
        raise UsageError(
            f"{kind} takes only a name here, not {', '.join(arguments) or f'{name!r:.40}'}"
        )
    if unloaded(kind, name) is not None:
        return StoredMetric(name or kind.rpartition(":")[2])
    found, around = load_function(kind)
    if isinstance(found, FunctionMetric):
        return replace(found, name=name or found.name, around=around)
    if callable(getattr(found, "compute", None)):
        return cast("Metric", found)
    if not callable(found):
        raise UsageError(f"{kind} is {type_name(found)}, expected a function")
    return replace(_of_function(found, name), around=around)


def stored_metrics(described: Any, stored: Any) -> tuple[Metric, ...]:
    """The metrics of a manifest. Functions have only their `stored` values, by name.

    Raises: RecordError, for anything that `describe_metric` and `MetricValue` do not write.
    """
    try:
        return tuple(_stored(each, stored) for each in described)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise RecordError(
            f"the metrics in the manifest cannot be read: {exception_text(error)}"
        ) from error


def _stored(described: Mapping[str, Any], stored: Mapping[str, Any]) -> Metric:
    if described.get("type") in AVERAGES:
        return _of_table(described)
    made = StoredMetric(described["name"], tuple(described.get("values", ())))
    known = {name: MetricValue(**stored[name]) for name in metric_names(made) if name in stored}
    return replace(made, stored=known)
