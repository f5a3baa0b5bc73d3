"""Pages that compare: two sides of a batch, and the candidates of a search.

Two batches, or two templates × variants of one, compared sample by sample.

Searches for better templates: their certificates with the tree of candidates.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection
from typing import Any

from evaluator.batch import Batch
from evaluator.batch.folder import MANIFEST
from evaluator.batch.records import Verdict
from evaluator.errors import RecordError, UsageError
from evaluator.improve.certificate import CERTIFICATE, diff_of, read_certificate, tables_of
from evaluator.improve.evidence import BATCHES
from evaluator.improve.search import BASE
from evaluator.lazy_dataclass import frozen
from evaluator.viewer.json_form import JsonForm, Page, Query
from evaluator.viewer.report import numbers_data, pair_data, verdict_matrix
from evaluator.viewer.server.batch_index import VERDICTS, BatchIndex
from evaluator.viewer.server.batches import cell_name, entries, opened, page_of, sample_href
from evaluator.viewer.server.state import COMPUTING_MS, State

PAIRS_PER_PAGE = 10
Pair = tuple[int, int]


@frozen
class ComparedCell:
    """One side of a comparison: a batch, and the number of its cell."""

    id: str
    batch: Batch
    index: BatchIndex
    cell: int

    @property
    def group(self) -> tuple[str, str]:
        return self.batch.cells[self.cell]

    @property
    def version(self) -> tuple[object, ...]:
        return self.index.stamp, (self.batch.folder / MANIFEST).stat().st_mtime_ns

    def rows(self) -> dict[tuple[int, int], int]:
        """The numbers of its results by sample and epoch."""
        index = self.index
        group = index.group_number(self.group)
        return {index.sample_key(row): row for row in index.rows() if index.groups[row] == group}

    def to_dict(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "name": self.batch.name,
            "href": f"/batch/{self.id}",
            "cell": self.cell,
            "cells": [cell_name(cell) for cell in self.batch.cells],
            "problem": self.index.problem,
        }


def compare_page(state: State, query: Query) -> Page:
    """The choice of the sides; with both, the comparison and a page of pairs."""
    shown: dict[str, Any] = {
        "entries": [
            {"id": each.id, "name": each.name} for each in entries(state) if each.batch is not None
        ],
        "chosen": {},
        "sides": [],
    }
    if not query.get("a"):
        return Page("compare", "Compare", shown)
    a = _side(state, query["a"], cell=query.get("cell_a", ""), default=0)
    is_same = query.get("b", "") in ("", a.id)
    b = _side(
        state, query.get("b") or a.id, cell=query.get("cell_b", ""), default=1 if is_same else 0
    )
    names = ({*side.batch.manifest.get("scorers", {})} for side in (a, b))
    scorers = sorted(set.intersection(*names))
    scorer = query.get("scorer", "")
    scorer = scorer if scorer in scorers else ""
    shown |= {
        "sides": [a.to_dict(), b.to_dict()],
        "scorers": scorers,
        "chosen": {
            "a": a.id,
            "b": b.id,
            "cell_a": a.cell,
            "cell_b": b.cell,
            "scorer": scorer,
        },
    }
    if a.id == b.id and a.cell == b.cell:
        problem = "Both sides are the same; choose another batch or another template × variant."
        return Page("compare", "Compare", shown | {"problem": problem})
    numbers = state.comparisons.get(
        (a.batch.folder, b.batch.folder, a.cell, b.cell, scorer),
        (a.version, b.version),
        lambda: JsonForm().plain(
            numbers_data(a.batch, b.batch, (a.group, b.group), scorer or None)
        ),
    )
    first = a.rows()
    second = b.rows()
    # The rows of the results that have the same sample and epoch.
    pairs = [(row, second[key]) for key, row in first.items() if key in second]
    verdicts = [
        (VERDICTS[a.index.verdicts[one]], VERDICTS[b.index.verdicts[other]]) for one, other in pairs
    ]
    flip = _flip(query, verdicts=verdicts)
    shown["chosen"] |= {"from": flip[0].value, "to": flip[1].value}
    chosen = [pair for pair, both in zip(pairs, verdicts, strict=True) if both == flip]
    places = a.index.places
    samples = a.index.samples
    chosen.sort(key=lambda pair: places[samples[pair[0]]])
    page, pages = page_of(len(chosen), PAIRS_PER_PAGE, query=query)
    these = chosen[(page - 1) * PAIRS_PER_PAGE : page * PAIRS_PER_PAGE]
    shown |= {
        "numbers": numbers.to_dict(),
        "matrix": verdict_matrix(verdicts),
        "pairs": [_pair(a, b, each) for each in these],
        "count": len(chosen),
        "page": page,
        "pages": pages,
    }
    return Page("compare", "Compare", shown, live_ms=0 if numbers.is_current else COMPUTING_MS)


def _flip(query: Query, verdicts: Collection[tuple[Verdict, Verdict]]) -> tuple[Verdict, Verdict]:
    """The cell of the table of verdicts that is shown: the one that the query names, else the lost
    results, or the gained ones if none is lost.
    """
    lost = (Verdict.PASSED, Verdict.FAILED)
    gained = (Verdict.FAILED, Verdict.PASSED)
    if lost not in verdicts and gained in verdicts:
        default = gained
    else:
        default = lost
    try:
        return Verdict(query.get("from", "")), Verdict(query.get("to", ""))
    except ValueError:
        return default


def _side(state: State, folder_id: str, cell: str, default: int) -> ComparedCell:
    batch, matrix = opened(state, folder_id)
    if not batch.cells:
        raise UsageError(f"{batch.folder}: has no templates × variants to compare")
    number = min(default, len(batch.cells) - 1)
    if cell in map(str, range(len(batch.cells))):
        number = int(cell)
    return ComparedCell(folder_id, batch, index=matrix.index, cell=number)


def _pair(a: ComparedCell, b: ComparedCell, pair: Pair) -> dict[str, Any]:
    hrefs = [
        sample_href({"folder": side.id}, side.index.key(row))
        for side, row in zip((a, b), pair, strict=True)
    ]
    return pair_data(a.index.result(pair[0]), b.index.result(pair[1]), hrefs)


def improvement_page(state: State, query: Query) -> Page:
    """The certificate of a search, as `evaluator improve` prints it; nothing is recomputed."""
    folder = state.project.find("searches", query["folder"])
    name = state.project.name_of(folder)
    path = folder / CERTIFICATE
    command = f"evaluator improve --verify {shlex.quote(str(path))}"
    values: dict[str, Any] = {"name": name, "command": command}
    if not path.exists():
        return Page("improvement", name, {**values, "tables": None}, live_ms=2_000)
    certificate, is_own = read_certificate(path)
    candidate = certificate.content["candidate"]
    sides = [f"{each}-sealed" for each in (BASE, candidate and candidate["id"]) if each]
    batches = [folder / BATCHES / side for side in sides]
    ids = [state.project.id_of(batch) for batch in batches if batch.is_dir()]
    try:
        diff = diff_of(certificate)
    except RecordError as error:
        diff = str(error)
    return Page(
        "improvement",
        name,
        {
            **values,
            "tables": [
                {"title": each.title, "head": each.head, "rows": each.rows, "lines": each.lines}
                for each in tables_of(certificate)
            ],
            "diff": diff,
            "is_own": is_own,
            "compare": f"/compare?a={ids[0]}&b={ids[1]}" if len(ids) == 2 else None,
        },
    )
