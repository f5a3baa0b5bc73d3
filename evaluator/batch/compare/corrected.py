"""The difference of two batches as people's labels correct it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from evaluator.batch.calibration import Cell, Grouping, JudgedResults, judge_cells
from evaluator.batch.labels import CurrentLabels, read_labels
from evaluator.batch.reading import Batch
from evaluator.batch.statistics import PairedDifference, corrected_difference
from evaluator.batch.summary.calibrated import CORRECTED_HEAD, CorrectedShare, corrected_row
from evaluator.batch.summary.tables import UNKNOWN, Table, number
from evaluator.fields import JsonForm
from evaluator.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
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
        difference = PairedDifference(None, None, None, None, None, len(common), "corrected")
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
                f"{number(difference.p)} ({difference.method}), {one.samples:,} samples"
            )
        if one.missing:
            lines.append(one.missing)
        yield Table(
            f"Corrected by labels: {one.scorer}",
            ["side", *CORRECTED_HEAD[1:]],
            rows=rows,
            lines=lines,
        )


def _interval(difference: PairedDifference) -> str:
    if difference.low is None or difference.high is None:
        return f"95 % interval {UNKNOWN}"
    return f"95 % interval {difference.low:+.4g} to {difference.high:+.4g}"
