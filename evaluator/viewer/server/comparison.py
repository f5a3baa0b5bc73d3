"""Two batches, or two templates × variants of one, compared sample by sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evaluator.batch import Batch
from evaluator.batch.compare import Comparison, compare
from evaluator.batch.compare.differences import (
    MetricDifference,
    compare_metrics,
    metric_tables,
)
from evaluator.batch.folder import MANIFEST
from evaluator.batch.reading import open_batch
from evaluator.batch.records import SampleResult, key_of
from evaluator.batch.summary import Table
from evaluator.errors import UsageError
from evaluator.viewer.report_comparison import MarkedPart, marked
from evaluator.viewer.server.batch_index import BatchIndex
from evaluator.viewer.server.batches import entries, opened, page_of
from evaluator.viewer.server.rendering import Page
from evaluator.viewer.server.state import COMPUTING_MS, State

FLIPS_PER_PAGE = 10
MAX_EPOCHS = 100
KINDS = ("lost", "gained")


@dataclass(frozen=True, slots=True)
class ComparedCell:
    """One side of a comparison: a batch, and the number of its cell."""

    id: str
    batch: Batch
    index: BatchIndex
    cell: int

    @property
    def group(self) -> tuple[str, str]:
        return self.batch.cells[self.cell]

    def result(self, sample_id: str, epoch: int) -> tuple[str, SampleResult] | None:
        key = key_of(sample_id, epoch, *self.group)
        row = self.index.row(key)
        if row is None:
            return None
        return (key, self.index.result(row))


@dataclass(frozen=True, slots=True)
class Flip:
    """A sample whose verdict differs, at an epoch where it does. Keys are those of the results'
    pages.
    """

    a: SampleResult
    b: SampleResult
    a_key: str
    b_key: str
    a_parts: Sequence[MarkedPart]
    b_parts: Sequence[MarkedPart]


@dataclass(frozen=True, slots=True)
class ComparedNumbers:
    """The comparison of two sides, and that of their batches' metrics."""

    comparison: Comparison
    metrics: Sequence[MetricDifference]

    def tables(self) -> list[Table]:
        return [*self.comparison.tables(), *metric_tables(self.metrics)]


def compare_page(state: State, query: Mapping[str, str]) -> Page:
    """The choice of the sides; with both, the comparison and a page of flipped samples."""
    shown: dict[str, Any] = {
        "title": "Compare",
        "entries": entries(state),
        "a": None,
        "b": None,
        "numbers": None,
        "flips": [],
        "scorers": [],
        "chosen": {},
        "live_ms": 0,
        "page": 1,
        "pages": 1,
        "comparison": None,
        "problem": "",
    }
    if not query.get("a"):
        return Page("compare.html", shown)
    a = _side(state, query["a"], cell=query.get("cell_a", ""), default=0)
    is_same = query.get("b", "") in ("", a.id)
    b = _side(
        state, query.get("b") or a.id, cell=query.get("cell_b", ""), default=1 if is_same else 0
    )
    scorers = sorted(
        {*a.batch.manifest.get("scorers", {})} & {*b.batch.manifest.get("scorers", {})}
    )
    if query.get("scorer") in scorers:
        scorer = query.get("scorer", "")
    else:
        scorer = ""
    if query.get("kind") in KINDS:
        kind = query.get("kind", "")
    else:
        kind = KINDS[0]
    chosen = {
        "a": a.id,
        "b": b.id,
        "cell_a": a.cell,
        "cell_b": b.cell,
        "scorer": scorer,
        "kind": kind,
    }
    shown |= {"a": a, "b": b, "scorers": scorers, "chosen": chosen}
    if a.id == b.id and a.cell == b.cell:
        shown["problem"] = (
            "Both sides are the same; choose another batch or another template × variant."
        )
        return Page("compare.html", shown)
    numbers = state.comparisons.get(
        (a.batch.folder, b.batch.folder, a.cell, b.cell, scorer),
        (_version(a), _version(b)),
        lambda: _compared(a, b, scorer=scorer),
    )
    shown |= {"numbers": numbers, "live_ms": 0 if numbers.is_current else COMPUTING_MS}
    if isinstance(numbers.value, ComparedNumbers):
        comparison = numbers.value.comparison
        if kind == "lost":
            ids = comparison.lost
        else:
            ids = comparison.gained
        page, pages = page_of(len(ids), FLIPS_PER_PAGE, query=query)
        these = ids[(page - 1) * FLIPS_PER_PAGE : page * FLIPS_PER_PAGE]
        flips = [
            flip for sample_id in these if (flip := _flip(a, b, sample_id=sample_id)) is not None
        ]
        shown |= {"comparison": comparison, "flips": flips, "page": page, "pages": pages}
    return Page("compare.html", shown)


def _side(state: State, folder_id: str, cell: str, default: int) -> ComparedCell:
    batch, index = opened(state, folder_id)
    if not batch.cells:
        raise UsageError(f"{batch.folder}: has no templates × variants to compare")
    numbers = [str(number) for number in range(len(batch.cells))]
    if cell in numbers:
        number = int(cell)
    else:
        number = min(default, len(numbers) - 1)
    return ComparedCell(folder_id, batch, index=index, cell=number)


def _version(side: ComparedCell) -> tuple[int, int]:
    return side.index.end, (side.batch.folder / MANIFEST).stat().st_mtime_ns


def _compared(a: ComparedCell, b: ComparedCell, scorer: str) -> ComparedNumbers:
    first, second = (open_batch(side.batch.folder) for side in (a, b))
    found = compare(first.results(a.group), second.results(b.group), scorer=scorer or None)
    return ComparedNumbers(
        found, compare_metrics(first.metrics_of(a.group), second.metrics_of(b.group))
    )


def _flip(a: ComparedCell, b: ComparedCell, sample_id: str) -> Flip | None:
    """The sample at the first epoch where its verdict differs; None if its results are gone."""
    declared = a.batch.manifest.get("epochs")
    if isinstance(declared, int):
        epochs = min(declared, MAX_EPOCHS)
    else:
        epochs = 1
    pairs = [
        (first, second)
        for epoch in range(1, epochs + 1)
        if (first := a.result(sample_id, epoch)) is not None
        and (second := b.result(sample_id, epoch)) is not None
    ]
    if not pairs:
        return None
    (a_key, one), (b_key, other) = next(
        (pair for pair in pairs if pair[0][1].verdict != pair[1][1].verdict), pairs[0]
    )
    return Flip(one, other, a_key, b_key, *marked(one.content, other.content))
