"""The result of comparing two batches: as values, JSON, text and Markdown, and against a minimum
difference.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from evaluator.batch.statistics import PairedDifference, pairs_needed, smallest_difference
from evaluator.batch.summary.tables import Table, Tabular, number
from evaluator.batch.thresholds import ThresholdStatus
from evaluator.errors import UsageError
from evaluator.fields import JsonForm, to_dict

VERSION = 1
POWER = 0.8
DIFFERENCES = (0.01, 0.02, 0.05, 0.1)
_SHOWN_IDS = 20
_CLUSTERS_DIFFER = (
    "the sides are clustered by different fields, or only one is: name the field as `cluster`, or "
    "treat pairs as "
    "independent with an empty one"
)


@dataclass(frozen=True, slots=True)
class Side(JsonForm):
    """One batch of a comparison. `only` of its `samples` are missing on the other side.

    Of the samples on both sides, `errors` and `unscored` have no value here. `mean` is over the
    pairs. There are `results` of `of` results, one for each epoch of a sample; `of` is None where
    the total is unknown or the results come from no folder. `unfinished` says why the side is not
    complete; empty where it is, or where that is unknown.
    """

    samples: int
    results: int
    of: int | None
    pending: int | None
    unfinished: str
    only: int
    errors: int
    unscored: int
    mean: float | None
    templates: tuple[str, ...]
    variants: tuple[str, ...]
    scorers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Comparison(Tabular, JsonForm):
    """The result of `compare`. `n` of `of` samples make a pair.

    `gained` are the ids that fail in a and pass in b, `lost` the reverse, by the majority of
    epochs; `labels` name those of rows without an id by number and first words. `spread` is the
    standard deviation of the pairs' differences, None for fewer than two pairs. `cluster` is the
    metadata field by which pairs were clustered, None where they were treated as independent.
    `design_effect` is the clustered variance of their mean divided by the plain one, None without
    clusters or without such a variance. `is_at_odds`: no field was named and the batches are
    clustered by different fields, or only one is, so pairs were treated as independent.

    `undecided` are the samples of both sides with a result that is an error or unscored, except
    those that no scorer could judge on either side. `if_worst` is the difference if each of these
    results had the worst value for b (0 in b, 1 in a), `if_best` the reverse; None where values are
    not known to lie in [0, 1].

    `str` gives the text for a terminal, `to_text(width)` for another width, `to_markdown()` the
    Markdown that a notebook shows. The JSON is version 1: keys may be added without a new version,
    and none changes its meaning.
    """

    by: str
    scorer: str | None
    cluster: str | None
    is_at_odds: bool
    seed: int
    n: int
    of: int
    a: Side
    b: Side
    difference: PairedDifference
    undecided: int
    if_worst: PairedDifference | None
    if_best: PairedDifference | None
    spread: float | None
    design_effect: float | None
    gained: tuple[str, ...]
    lost: tuple[str, ...]
    warnings: tuple[str, ...]
    labels: Mapping[str, str] = field(default_factory=dict[str, str])

    def __repr__(self) -> str:
        if self.scorer is None:
            compared = "passed"
        else:
            compared = repr(self.scorer)
        found = ""
        if self.difference.mean is not None:
            found = (
                f"b − a is {_signed(self.difference.mean)}, {_interval(self.difference)}, "
                f"p = {number(self.difference.p)}, "
            )
        return f"<Comparison of {compared}: {found}{self.n:,} of {self.of:,} samples make a pair>"

    def needed(self, difference: float, power: float = POWER) -> int | None:
        """The number of pairs, in clusters like these, that show a true difference of that size
        with that power.

        None where no spread was observed. With clusters it is the number for independent pairs
        times `design_effect`.
        Source: Kish, Survey Sampling (1965), page 258.

        Raises: UsageError, as `statistics.pairs_needed`.
        """
        spread = self._spread_of_the_mean()
        if spread:
            return pairs_needed(spread, difference, power=power)
        return None

    def smallest(self, power: float = POWER) -> float | None:
        """The smallest true difference that as many pairs show with that power; None as with
        `needed`.
        """
        spread = self._spread_of_the_mean()
        if spread:
            return smallest_difference(spread, self.n, power=power)
        return None

    def _spread_of_the_mean(self) -> float | None:
        """The spread of as many independent pairs whose mean is as uncertain as this one."""
        if self.spread is None or self.cluster is None:
            return self.spread
        if self.design_effect is None:
            return None
        return self.spread * math.sqrt(self.design_effect)

    def at_least(self, least: float) -> tuple[ThresholdStatus, str]:
        """Whether b − a is certainly `least` or more, and why not; an empty text where it is.

        Met where the whole interval is `least` or more, as it is, `if_worst` and `if_best`; missed
        where none of the three is. Incomplete where some of them are, where there is no interval,
        where a side is `unfinished`, and where `is_at_odds`, as the interval may be too narrow
        then.

        Raises: UsageError, if `least` is not finite.
        """
        if not math.isfinite(least):
            raise UsageError(f"the least difference is {least!r}, expected a finite number")
        sides = (("a", self.a), ("b", self.b))
        unfinished = [
            f"side {name} is not complete: {side.unfinished}"
            for name, side in sides
            if side.unfinished
        ]
        if unfinished:
            return ThresholdStatus.INCOMPLETE, "; ".join(unfinished)
        if self.is_at_odds:
            return ThresholdStatus.INCOMPLETE, _CLUSTERS_DIFFER
        low = self.difference.low
        if low is None:
            return (
                ThresholdStatus.INCOMPLETE,
                f"there is no interval, expected one that begins at {least:g} or more",
            )
        found = f"the interval begins at {_signed(low)}, expected at least {least:g}"
        undecided = (
            f"{self.undecided:,} of {self.a.samples - self.a.only:,} samples with an "
            "error or no score"
        )
        worst, best = (None if each is None else each.low for each in (self.if_worst, self.if_best))
        if worst is None or best is None:
            return ThresholdStatus.INCOMPLETE, f"{found}; the effect of {undecided} is unknown"
        if min(low, worst, best) >= least:
            return ThresholdStatus.MET, ""
        if max(low, worst, best) < least:
            return ThresholdStatus.MISSED, found
        bounds = f"{_signed(worst)} or {_signed(best)}"
        return (
            ThresholdStatus.INCOMPLETE,
            f"{found}; with the worst or best values for {undecided} it is {bounds}",
        )

    def to_dict(self) -> dict[str, Any]:
        data = to_dict(self)
        warnings = data.pop("warnings")
        needed = {str(size): self.needed(size) for size in DIFFERENCES}
        power = {"power": POWER, "needed": needed, "smallest": self.smallest()}
        return {"version": VERSION, **data, **power, "warnings": warnings}

    def tables(self) -> Iterable[Table]:
        yield Table("Comparison", lines=list(self._lines()))
        head = [
            "side",
            "template × variant",
            "results",
            "samples",
            "only here",
            "error",
            "unscored",
            "mean of pairs",
        ]
        yield Table("Sides", head, rows=[_side_row("a", self.a), _side_row("b", self.b)])
        gained = _flipped(
            f"{len(self.gained):,} failed in a and passed in b", self.gained, labels=self.labels
        )
        lost = _flipped(
            f"{len(self.lost):,} passed in a and failed in b", self.lost, labels=self.labels
        )
        yield Table("Flipped", lines=[*gained, *lost])
        smallest = self.smallest()
        effect = self.design_effect
        if smallest is not None:
            rows = [[number(size), f"{self.needed(size):,}"] for size in DIFFERENCES]
            if effect is None:
                clusters = ""
            else:
                clusters = f", in clusters like these (design effect {number(effect)})"
            lines = [
                f"for a power of {POWER:.0%}, at this spread of differences "
                f"({number(self.spread)}){clusters};",
                f"these {self.n:,} pairs show a difference of {number(smallest)}",
            ]
            yield Table("Samples needed", ["true difference", "pairs"], rows=rows, lines=lines)

    def _lines(self) -> Iterator[str]:
        difference = self.difference
        yield f"{self.n:,} of {self.of:,} samples make a pair, by {self.by}"
        if difference.mean is None:
            yield "without a pair there is no difference"
        else:
            if self.scorer is None:
                compared = "passed"
            else:
                compared = f"value of {self.scorer}"
            yield (
                f"{compared}, b − a: {_signed(difference.mean)} ± {number(difference.se)} "
                "(standard error)"
            )
            clustered = f" by {self.cluster}" if self.cluster else ""
            yield (
                f"{_interval(difference)}, p = {number(difference.p)} "
                f"({difference.method}{clustered})"
            )
        if self.undecided:
            yield self._undecided_line()
        yield from (f"warning: {warning}" for warning in self.warnings)

    def _undecided_line(self) -> str:
        both = self.a.samples - self.a.only
        worst = self.if_worst
        best = self.if_best
        undecided = (
            f"{self.undecided:,} of {both:,} samples on both sides have an error or no "
            "score on a side"
        )
        if worst is None or best is None or worst.mean is None or best.mean is None:
            return (
                f"{undecided}; their effect is unknown, as values of {self.scorer} need not "
                "lie in [0, 1]"
            )
        bounds = f"{_signed(worst.mean)} to {_signed(best.mean)}"
        return f"{undecided}: with the worst and the best values for b, b − a is {bounds}"


def _side_row(name: str, side: Side) -> list[str]:
    group = " × ".join(part for part in (*side.templates, *side.variants) if part)
    if side.of is None:
        results = f"{side.results:,}"
    else:
        results = f"{side.results:,} of {side.of:,}"
    counts = (side.samples, side.only, side.errors, side.unscored)
    return [name, group, results, *(f"{count:,}" for count in counts), number(side.mean)]


def _flipped(what: str, ids: Sequence[str], labels: Mapping[str, str]) -> list[str]:
    """The first samples: ids in one line, labels in a line each."""
    shown = [labels.get(each, each) for each in ids[:_SHOWN_IDS]]
    more = len(ids) - _SHOWN_IDS
    rest = f"and {more:,} more" if more > 0 else ""
    if any(each in labels for each in ids[:_SHOWN_IDS]):
        return [f"{what}:", *(f"- {each}" for each in shown), *([f"- {rest}"] if rest else [])]
    return [f"{what}: {', '.join(shown)} {rest}".rstrip() if shown else what]


def _interval(difference: PairedDifference) -> str:
    if difference.low is None or difference.high is None:
        return "95 % interval –"
    return f"95 % interval {_signed(difference.low)} to {_signed(difference.high)}"


def _signed(value: float) -> str:
    return f"{value:+.4g}"
