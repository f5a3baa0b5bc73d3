"""Differences between the sides of a comparison besides their answers: metrics, settings, inputs.

The metrics of two batches side by side. They are numbers over all results, so a difference has
no interval.

Finds differences between the sides of a comparison, besides their answers, that may explain
different scores.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evaluator.batch.compare.sides import SideSamples
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


_MOST_CHARS = 40
_DESCRIPTIONS = {
    "judges": "its judge's model or settings",
    "templates": "its templates",
    "source_sha256": "its source",
}


def other_differences(a: SideSamples, b: SideSamples, shared: Sequence[int]) -> Iterator[str]:
    """Differences in the templates' names, in how answers were scored, and in the rows of the
    `shared` samples.

    Scorers, with their settings, templates and judges, are compared by the manifests where both
    sides have one. Else their names in the results are compared.
    """
    templates = [sorted({template for template, _ in side.groups}) for side in (a, b)]
    if all(templates) and templates[0] != templates[1]:
        yield f"the templates differ: {', '.join(templates[0])} and {', '.join(templates[1])}"
    yield from _scorers(a, b)
    for what, differs in (
        ("inputs", sum(a.inputs(sample) != b.inputs(sample) for sample in shared)),
        ("target", sum(a.target(sample) != b.target(sample) for sample in shared)),
    ):
        if differs:
            yield f"the {what} of {differs:,} of {len(shared):,} samples on both sides differ"


def _scorers(a: SideSamples, b: SideSamples) -> Iterator[str]:
    if (
        a.scorers is not None
        and b.scorers is not None
        and (only := set(a.scorers) ^ set(b.scorers))
    ):
        yield f"the scorers differ: only one side has {', '.join(sorted(only))}"
    if a.declared is None or b.declared is None:
        return
    ours = a.declared.scorers or {}
    theirs = b.declared.scorers or {}
    for name in sorted(ours.keys() & theirs.keys()):
        judges = [declared.judges.get(name, ()) for declared in (a.declared, b.declared)]
        if what := list(_settings(ours[name], theirs[name], judges=judges)):
            yield f"the scorer {name} differs: {', '.join(what)}"
    reasons = [declared.count_as_failed for declared in (a.declared, b.declared)]
    if (
        reasons[0] is not None
        and reasons[1] is not None
        and (only := set(reasons[0]) ^ set(reasons[1]))
    ):
        yield f"only one side counts the error {', '.join(sorted(only))} as failed"
    limited = [declared.limited for declared in (a.declared, b.declared)]
    if None not in limited and limited[0] != limited[1]:
        yield f"cut-off answers are {limited[0]} on one side and {limited[1]} on the other"


def _settings(
    a: Mapping[str, Any], b: Mapping[str, Any], judges: Sequence[Collection[str]]
) -> Iterator[str]:
    for name in sorted(a.keys() | b.keys()):
        if a.get(name) != b.get(name):
            values = [json.dumps(side.get(name)) for side in (a, b)]
            if name == "judges" and all(judges) and judges[0] != judges[1]:
                yield f"its judge ({', '.join(judges[0])} and {', '.join(judges[1])})"
            elif name in _DESCRIPTIONS or any(len(text) > _MOST_CHARS for text in values):
                yield _DESCRIPTIONS.get(name, name)
            else:
                yield f"{name} ({values[0]} and {values[1]})"
