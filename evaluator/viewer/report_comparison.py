"""The comparison of two batches for a report: the tables of `evaluator compare`, and the flipped
samples.

The answers of a flipped sample are side by side, with their differences marked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from evaluator.batch import Batch
from evaluator.batch.compare import Comparison, compare
from evaluator.batch.records import SampleResult
from evaluator.viewer.differences import MarkedPart, marked

MAX_FLIPS = 100
"""Flipped samples of each direction whose answers are in the page."""
MAX_ANSWER_CHARS = 20_000
Cell = tuple[str, str]


def compare_batches(a: Batch, b: Batch) -> list[dict[str, Any]]:
    """The comparison of each template × variant that both batches have, as JSON; if each batch has
    only one, of these.

    Raises: RecordError, if a line of the results was changed; UsageError, if results cannot be
    compared.
    """
    return [_compared(a, b, *cells) for cells in _cells(a.cells, b.cells)]


def _cells(a: Sequence[Cell], b: Sequence[Cell]) -> list[tuple[Cell, Cell]]:
    if len(a) == len(b) == 1:
        return [(a[0], b[0])]
    return [(cell, cell) for cell in a if cell in b]


def _compared(a: Batch, b: Batch, cell_a: Cell, cell_b: Cell) -> dict[str, Any]:
    comparison = compare(a.results(cell_a), b.results(cell_b))
    shown = {*comparison.lost[:MAX_FLIPS], *comparison.gained[:MAX_FLIPS]}
    first = _flipped(a, cell_a, ids=shown)
    second = _flipped(b, cell_b, ids=shown)
    return {
        "names": [a.name, b.name],
        "cells": [" × ".join(part for part in cell if part) for cell in (cell_a, cell_b)],
        "tables": [asdict(table) for table in comparison.tables()],
        **{
            kind: {
                "count": len(ids),
                "flips": [_flip(first, second, sample_id=each) for each in ids if each in shown],
            }
            for kind, ids in _directions(comparison)
        },
    }


def _directions(comparison: Comparison) -> list[tuple[str, Sequence[str]]]:
    return [("lost", comparison.lost), ("gained", comparison.gained)]


def _flipped(batch: Batch, cell: Cell, ids: set[str]) -> dict[str, list[SampleResult]]:
    """The results of these samples, one for each epoch."""
    found: dict[str, list[SampleResult]] = {}
    for result in batch.results(cell) if ids else ():
        if result.sample_id in ids:
            found.setdefault(result.sample_id, []).append(result)
    return found


def _flip(
    a: dict[str, list[SampleResult]], b: dict[str, list[SampleResult]], sample_id: str
) -> dict[str, Any]:
    """A sample at the first epoch where its verdict differs."""
    by_epoch = {result.epoch: result for result in b[sample_id]}
    pairs = [(one, by_epoch[one.epoch]) for one in a[sample_id] if one.epoch in by_epoch]
    pairs = pairs or [(a[sample_id][0], b[sample_id][0])]
    one, other = next((pair for pair in pairs if pair[0].verdict != pair[1].verdict), pairs[0])
    parts = marked(one.content[:MAX_ANSWER_CHARS], other.content[:MAX_ANSWER_CHARS])
    return {
        "title": one.title,
        "inputs": dict(one.inputs),
        "target": one.target,
        "sides": [_side(result, side) for result, side in zip((one, other), parts, strict=True)],
    }


def _side(result: SampleResult, parts: Sequence[MarkedPart]) -> dict[str, Any]:
    return {
        "verdict": result.verdict.value,
        "epoch": result.epoch,
        "failure": None if result.failure is None else result.failure.message,
        "parts": [[part.text, part.is_changed] for part in parts],
    }
