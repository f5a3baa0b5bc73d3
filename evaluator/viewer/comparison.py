"""Two batches compared, as JSON: the result in words, the numbers, the verdicts as a matrix, and
the samples of one of its cells side by side. The report and the server show the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from evaluator.batch import Batch
from evaluator.batch.compare import Comparison, compare
from evaluator.batch.compare.comparison import compare_metrics, metric_tables
from evaluator.batch.compare.corrected import compare_corrected, corrected_tables
from evaluator.batch.preferences import preference_table, preferences
from evaluator.batch.records import SampleResult, Verdict
from evaluator.viewer.json_form import JsonForm
from evaluator.viewer.samples import result_data

MAX_FLIPS = 100
"""Flipped samples of each direction whose answers are in a report."""
MAX_ANSWER_CHARS = 20_000
FLIPS = ((Verdict.PASSED, Verdict.FAILED), (Verdict.FAILED, Verdict.PASSED))
Cell = tuple[str, str]


def in_words(comparison: Comparison) -> str:
    """The result in one sentence, with its interval and its size."""
    difference = comparison.difference
    if difference.mean is None:
        return "There is no difference to report: no sample has a value on both sides."
    unit, scale = ("points", 100) if comparison.scorer is None else (f"of {comparison.scorer}", 1)
    size = abs(difference.mean) * scale
    if scale > 1:
        amount = f"{size:.1f} {unit}"
    else:
        amount = f"{size:.3g} {unit}"
    rows = f"{comparison.n:,} pair{'' if comparison.n == 1 else 's'}"
    if difference.low is not None and difference.high is not None:
        digits = ".0f" if scale > 1 else ".3g"
        ends = [difference.low * scale, difference.high * scale]
        if difference.mean < 0:
            ends = [-end for end in reversed(ends)]
        low, high = (f"{end:{digits}}".replace("-", "−") for end in ends)
        rows = f"95 %: {low} to {high}, {rows}"
    flips = f"{len(comparison.gained):,} rows gained, {len(comparison.lost):,} lost"
    if difference.mean == 0:
        return f"b is as good as a ({rows}; {flips})."
    word = "better" if difference.mean > 0 else "worse"
    is_certain = difference.low is not None and difference.high is not None
    if is_certain and (difference.low or 0) <= 0 <= (difference.high or 0):
        return f"b is {word} by {amount}, which may be chance ({rows}; {flips})."
    return f"b is {word} by {amount} ({rows}; {flips})."


def numbers_data(
    a: Batch, b: Batch, cells: tuple[Cell, Cell], scorer: str | None = None
) -> dict[str, Any]:
    """The result in words, and the tables of `evaluator compare`.

    Raises: RecordError, if a line of the results was changed; UsageError, if results cannot be
    compared.
    """
    comparison = compare(a.results(cells[0]), b.results(cells[1]), scorer=scorer)
    metrics = compare_metrics(a.metrics_of(cells[0]), b.metrics_of(cells[1]))
    corrected = compare_corrected(a, b, cells, scorer=scorer, cluster=comparison.cluster or None)
    tables = [*comparison.tables(), *corrected_tables(corrected), *metric_tables(metrics)]
    if a.folder == b.folder:
        preferred = [one for one in preferences(a) if {one.a, one.b} == set(cells)]
        tables += [preference_table(preferred)] if preferred else []
    return {
        "words": in_words(comparison),
        "difference": asdict(comparison.difference),
        "sides": [comparison.a.mean, comparison.b.mean],
        "warnings": list(comparison.warnings),
        "tables": [asdict(table) for table in tables],
    }


def verdict_matrix(pairs: Iterable[tuple[Verdict, Verdict]]) -> list[dict[str, Any]]:
    """How many results have each pair of verdicts: that of a and that of b."""
    counted = Counter(pairs)
    return [
        {"a": one.value, "b": other.value, "count": counted[one, other]}
        for one in Verdict
        for other in Verdict
        if counted[one, other]
    ]


def pair_data(
    one: SampleResult, other: SampleResult, hrefs: Sequence[str | None]
) -> dict[str, Any]:
    """A sample and its two results."""
    form = JsonForm(MAX_ANSWER_CHARS)
    results = [result_data(result, href) for result, href in zip((one, other), hrefs, strict=True)]
    return form.plain(
        {
            "title": one.title or "(empty id)",
            "epoch": one.epoch,
            "inputs": one.inputs,
            "target": one.target,
            "results": results,
        }
    )


def compare_batches(a: Batch, b: Batch) -> list[dict[str, Any]]:
    """The comparison of each template × variant that both batches have, for a report; if each batch
    has only one, of these.

    Raises: as `numbers_data`.
    """
    return [_compared(a, b, cells) for cells in _cells(a.cells, b.cells)]


def _cells(a: Sequence[Cell], b: Sequence[Cell]) -> list[tuple[Cell, Cell]]:
    if len(a) == len(b) == 1:
        return [(a[0], b[0])]
    return [(cell, cell) for cell in a if cell in b]


def _compared(a: Batch, b: Batch, cells: tuple[Cell, Cell]) -> dict[str, Any]:
    verdicts = {(each.sample_id, each.epoch): each.verdict for each in a.results(cells[0])}
    pairs = [
        (key, verdicts[key], each.verdict)
        for each in b.results(cells[1])
        if (key := (each.sample_id, each.epoch)) in verdicts
    ]
    shown = {
        key: flip
        for flip in FLIPS
        for key in [key for key, *both in pairs if tuple(both) == flip][:MAX_FLIPS]
    }
    first, second = (
        _results_of(batch, cell, shown) for batch, cell in zip((a, b), cells, strict=True)
    )
    return {
        "names": [a.name, b.name],
        "cells": [" × ".join(part for part in cell if part) for cell in cells],
        "numbers": numbers_data(a, b, cells),
        "matrix": verdict_matrix((one, other) for _, one, other in pairs),
        "pairs": [
            pair_data(first[key], second[key], (None, None))
            for key in sorted(shown, key=lambda key: FLIPS.index(shown[key]))
        ],
    }


def _results_of(
    batch: Batch, cell: Cell, keys: Mapping[tuple[str, int], Any]
) -> dict[tuple[str, int], SampleResult]:
    found: Iterator[SampleResult]
    if keys:
        found = batch.results(cell)
    else:
        found = iter(())
    return {key: each for each in found if (key := (each.sample_id, each.epoch)) in keys}
