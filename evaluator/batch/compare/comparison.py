"""The result of comparing two batches: as values, JSON, text and Markdown, against a minimum
difference, and as people's labels correct it.

The metrics of the batches stand side by side: they are numbers over all results, so a difference
has no interval. Other differences between the sides, which may explain different scores, are named.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

from evaluator.batch.calibration import Cell, Grouping, JudgedResults, judge_cells
from evaluator.batch.compare.sides import SideSamples
from evaluator.batch.labels import CurrentLabels, read_labels
from evaluator.batch.reading import Batch
from evaluator.batch.statistics import (
    PairedDifference,
    corrected_difference,
    pairs_needed,
    smallest_difference,
)
from evaluator.batch.summary import MetricValue, Table
from evaluator.batch.summary.calibrated import CORRECTED_HEAD, CorrectedShare, corrected_row
from evaluator.batch.summary.tables import UNKNOWN, Tabular, number
from evaluator.batch.thresholds import ThresholdStatus
from evaluator.errors import UsageError
from evaluator.errors.messages import amount
from evaluator.fields import JsonForm, to_dict
from evaluator.lazy_dataclass import frozen


@frozen
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
            yield (
                f"the {what} of {differs:,} of {amount(len(shared), 'sample')} on both sides differ"
            )


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


VERSION = 1
POWER = 0.8
DIFFERENCES = (0.01, 0.02, 0.05, 0.1)
_SHOWN_IDS = 20
_CLUSTERS_DIFFER = (
    "the sides are clustered by different fields, or only one is: name the field as `cluster`, or "
    "treat pairs as "
    "independent with an empty one"
)


@frozen
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


@frozen
class Comparison(Tabular, JsonForm):
    """The result of `compare`. `n` of `of` samples make a pair.

    `gained` are the ids that fail in a and pass in b, `lost` the reverse, by the majority of
    epochs, in the order of the dataset; `labels` name those of rows without an id by number and
    first words. `spread` is the standard deviation of the pairs' differences, None for fewer than
    two pairs. `cluster` is the metadata field by which pairs were clustered, None where they were
    treated as independent.
    `design_effect` is the clustered variance of their mean divided by the plain one, None without
    clusters or without such a variance. `is_at_odds`: no field was named and the batches are
    clustered by different fields, or only one is, so pairs were treated as independent.

    `undecided` are the samples of both sides with a result that is an error or unscored, except
    those that no scorer could judge on either side. `if_worst` is the difference if each of these
    results had the worst value for b (0 in b, 1 in a), `if_best` the reverse; None where values are
    not known to lie in [0, 1].

    `noise_floor` is the difference that judges alone make in 5 % of cases, if they judge the same
    answers on both sides; None where no judge is asked several times.

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
    noise_floor: float | None = None

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
        yield f"{self.n:,} of {amount(self.of, 'sample')} make a pair, by {self.by}"
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
            if self.cluster:
                clustered = f" by {self.cluster}"
            else:
                clustered = ""
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


@frozen
class CorrectedComparison(JsonForm):
    """The corrected share of both sides that a scorer passed, over the samples that it judged on
    both, and the difference b − a. `missing` says why a number is missing.
    """

    scorer: str
    samples: int
    a: CorrectedShare
    b: CorrectedShare
    difference: PairedDifference
    missing: str = ""


def compare_corrected(
    a: Batch,
    b: Batch,
    cells: tuple[Cell, Cell],
    *,
    scorer: str | None = None,
    cluster: str | None = None,
) -> list[CorrectedComparison]:
    """The corrected difference for each scorer with labels on both sides, or for `scorer`. Samples
    are paired by their ids; those with equal values of the field `cluster` are related.

    Raises: RecordError, for damaged results or labels.
    """
    labels = [CurrentLabels(read_labels(batch.folder)) for batch in (a, b)]
    names = [
        name for name in labels[0].scorers if name in labels[1].scorers and scorer in (None, name)
    ]
    if not names:
        return []
    judged_a, judged_b = (
        judge_cells(
            batch.results(cell), own, dict(zip(names, names, strict=True)), Grouping(cluster)
        ).get(cell, {})
        for batch, cell, own in zip((a, b), cells, labels, strict=True)
    )
    return [
        _compared(name, judged_a[name], judged_b[name])
        for name in names
        if name in judged_a and name in judged_b
    ]


def _compared(scorer: str, a: JudgedResults, b: JudgedResults) -> CorrectedComparison:
    common = set(a.samples) & set(b.samples)
    places = [
        [place for place, sample in enumerate(side.samples) if sample in common] for side in (a, b)
    ]
    first = a.share(places[0])
    second = b.share(places[1])
    missing = "; ".join(
        f"{name}: {share.missing}" for name, share in (("a", first), ("b", second)) if share.missing
    )
    if first.corrected.mean is None or second.corrected.mean is None:
        difference = PairedDifference(
            None, None, low=None, high=None, p=None, n=len(common), method="corrected"
        )
    else:
        difference = corrected_difference(
            a.partly_labelled(places[0]), b.partly_labelled(places[1])
        )
    return CorrectedComparison(
        scorer, len(common), a=first, b=second, difference=difference, missing=missing
    )


def corrected_tables(found: Iterable[CorrectedComparison]) -> Iterator[Table]:
    """The shares of both sides and their difference, for each scorer."""
    for one in found:
        rows = [corrected_row(name, share) for name, share in (("a", one.a), ("b", one.b))]
        difference = one.difference
        lines: list[str] = []
        if difference.mean is not None:
            lines.append(
                f"b − a: {difference.mean:+.4g}, {_interval(difference)}, p = "
                f"{number(difference.p)} ({difference.method}), {amount(one.samples, 'sample')}"
            )
        if one.missing:
            lines.append(one.missing)
        yield Table(
            f"Corrected by labels: {one.scorer}",
            ["side", *CORRECTED_HEAD[1:]],
            rows=rows,
            lines=lines,
        )
