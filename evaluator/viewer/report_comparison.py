"""Two batches in a report, and two texts with the parts marked that differ.

samples.

The answers of a flipped sample are side by side, with their differences marked.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from difflib import SequenceMatcher
from typing import Any

from evaluator.batch import Batch
from evaluator.batch.compare import Comparison, compare
from evaluator.batch.records import SampleResult

MAX_PARTS = 400
"""Words, or else lines, that are compared one by one; the time grows with their square."""
_WORD = re.compile(r"\s*\S+|\s+")


@dataclass(frozen=True, slots=True)
class MarkedPart:
    text: str
    is_changed: bool


def marked(a: str, b: str) -> tuple[list[MarkedPart], list[MarkedPart]]:
    """The parts of each text, in order: what is between the equal ends is compared by word, or by
    line if it is long; if it has very many lines it is marked as a whole.
    """
    first = _WORD.findall(a)
    second = _WORD.findall(b)
    start, end = _equal_ends(first, second)
    between = [words[start : len(words) - end] for words in (first, second)]
    if max(map(len, between)) > MAX_PARTS:
        between = ["".join(words).splitlines(keepends=True) for words in between]
    if max(map(len, between)) > MAX_PARTS:
        between = [["".join(lines)] for lines in between]
    head = first[:start]
    tail = first[len(first) - end :]
    sides = _compared(*between)
    for parts in sides:
        before, after = (
            [MarkedPart("".join(words), False)] if words else [] for words in (head, tail)
        )
        parts[:] = [*before, *parts, *after]
    return sides


def _equal_ends(a: Sequence[str], b: Sequence[str]) -> tuple[int, int]:
    """The numbers of equal words at the beginning, and of further ones at the end."""
    most = min(len(a), len(b))
    start = next((at for at in range(most) if a[at] != b[at]), most)
    end = next((at for at in range(most - start) if a[-1 - at] != b[-1 - at]), most - start)
    return start, end


def _compared(a: Sequence[str], b: Sequence[str]) -> tuple[list[MarkedPart], list[MarkedPart]]:
    first: list[MarkedPart] = []
    second: list[MarkedPart] = []
    for tag, a_from, a_to, b_from, b_to in SequenceMatcher(
        None, a, b, autojunk=False
    ).get_opcodes():
        for parts, texts in ((first, a[a_from:a_to]), (second, b[b_from:b_to])):
            if texts:
                parts.append(MarkedPart("".join(texts), tag != "equal"))
    return first, second


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
    return [_compared_answers(a, b, *cells) for cells in _cells(a.cells, b.cells)]


def _cells(a: Sequence[Cell], b: Sequence[Cell]) -> list[tuple[Cell, Cell]]:
    if len(a) == len(b) == 1:
        return [(a[0], b[0])]
    return [(cell, cell) for cell in a if cell in b]


def _compared_answers(a: Batch, b: Batch, cell_a: Cell, cell_b: Cell) -> dict[str, Any]:
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
