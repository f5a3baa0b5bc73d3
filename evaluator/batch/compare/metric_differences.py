"""The metrics of two batches side by side. They are numbers over all results, so a difference has
no interval.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evaluator.batch.summary import MetricValue, Table
from evaluator.batch.summary.tables import UNKNOWN, number


@dataclass(frozen=True, slots=True)
class MetricDifference:
    """One metric of both sides; None where a side does not have it."""

    name: str
    a: MetricValue | None
    b: MetricValue | None

    @property
    def difference(self) -> float | None:
        """b − a; None if a value is unknown."""
        if self.a is None or self.b is None or self.a.value is None or self.b.value is None:
            return None
        return self.b.value - self.a.value

    def to_dict(self) -> dict[str, Any]:
        sides = {
            name: None if side is None else side.to_dict()
            for name, side in (("a", self.a), ("b", self.b))
        }
        return {**sides, "difference": self.difference}


def compare_metrics(
    a: Mapping[str, MetricValue], b: Mapping[str, MetricValue]
) -> list[MetricDifference]:
    return [MetricDifference(name, a.get(name), b=b.get(name)) for name in {**a, **b}]


def metric_tables(found: Sequence[MetricDifference]) -> list[Table]:
    """The table of the metrics; empty without metrics."""
    rows = [
        [
            each.name,
            *_cells(each.a),
            *_cells(each.b),
            UNKNOWN if each.difference is None else f"{each.difference:+.4g}",
        ]
        for each in found
    ]
    head = ["metric", "a", "interval", "n of N in a", "b", "interval", "n of N in b", "b − a"]
    if rows:
        return [Table("Metrics", head, rows=rows)]
    return []


def _cells(value: MetricValue | None) -> tuple[str, str, str]:
    if value is None:
        return UNKNOWN, UNKNOWN, UNKNOWN
    if value.low is None or value.high is None:
        interval = UNKNOWN
    else:
        interval = f"{value.low:.4g} to {value.high:.4g}"
    return number(value.value), interval, f"{value.n:,} of {value.of:,}"
