"""Histograms of durations and tokens by group, in bins that all groups share.

The bins are of equal width up to the 99th percentile. The last one holds everything above, so that
a few slow results do not compress all others into one bar.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

from evaluator.batch.records import SampleResult, Verdict
from evaluator.batch.statistics import percentiles

BINS = 24
QUANTITIES = ("duration_s", "input_tokens", "output_tokens")
Group = tuple[int, str, str]


class Distributions:
    """The values of each quantity by group (batch, template, variant), 8 bytes each."""

    def __init__(self) -> None:
        self._values: dict[str, dict[Group, array[float]]] = {name: {} for name in QUANTITIES}
        self._of: dict[Group, int] = {}

    def add(self, batch: int, result: SampleResult) -> None:
        """Adds a result."""
        group = (batch, result.template, result.variant)
        values = (result.duration_s, result.usage.input_tokens, result.usage.output_tokens)
        self.add_values(group, result.verdict, values=values)

    def add_values(self, group: Group, verdict: Verdict, values: Sequence[float | None]) -> None:
        """Adds the values of QUANTITIES of a result. Unknown counts are in no bin, and neither are
        errors.
        """
        self._of[group] = self._of.get(group, 0) + 1
        if verdict is Verdict.ERROR:
            return
        for name, value in zip(QUANTITIES, values, strict=True):
            if value is not None and math.isfinite(value):
                self._values[name].setdefault(group, array("d")).append(value)

    def to_list(self) -> list[dict[str, Any]]:
        """Each quantity with the `edges` of its bins (where each begins) and the counts of each
        group.
        """
        return [
            {"quantity": name, **_binned(groups, self._of)}
            for name, groups in self._values.items()
            if any(max(values) > 0 for values in groups.values())
        ]


def _binned(groups: Mapping[Group, array[float]], of: Mapping[Group, int]) -> dict[str, Any]:
    edges = _edges(array("d", (value for values in groups.values() for value in values)))
    return {
        "edges": edges,
        "groups": [
            {
                "batch": batch,
                "template": template,
                "variant": variant,
                "counts": _counts(
                    values := groups.get((batch, template, variant), array("d")), edges
                ),
                "n": len(values),
                "of": count,
            }
            for (batch, template, variant), count in of.items()
        ],
    }


def _edges(values: array[float]) -> list[float]:
    """The beginnings of the bins; the last bin has no end."""
    (most,) = percentiles(values, (0.99,))
    least = min(values)
    if most is None or most <= least:
        return [least]
    step = _round((most - least) / BINS)
    start = math.floor(least / step) * step
    return [
        round(start + step * place, 10) for place in range(math.ceil((most - start) / step) + 1)
    ]


def _round(step: float) -> float:
    """The next 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= step * (1 - 1e-9))


def _counts(values: array[float], edges: list[float]) -> list[int]:
    counts = [0] * len(edges)
    for value in values:
        counts[max(0, bisect_right(edges, value) - 1)] += 1
    return counts
