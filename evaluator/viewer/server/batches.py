"""The list of batches, one batch, and one of its samples."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from evaluator import clock
from evaluator.batch import Batch
from evaluator.batch.export.output_path import About
from evaluator.batch.folder import MANIFEST, BatchFolder
from evaluator.batch.labels import Label, shown_digest
from evaluator.batch.reading import open_batch
from evaluator.batch.records import SampleResult
from evaluator.errors import EvaluatorError
from evaluator.fields.records import items_of, mapping_of
from evaluator.lazy_dataclass import frozen
from evaluator.viewer.json_form import JsonForm, Page, Query
from evaluator.viewer.samples import Distributions, result_data, transcripts
from evaluator.viewer.server.batch_index import BatchIndex
from evaluator.viewer.server.matrix import Matrix, MatrixQuery, read_query
from evaluator.viewer.server.progress import (
    batch_state,
    control_data,
    live_ms_of,
    progress_data,
    resume_command,
    simulated_cells,
)
from evaluator.viewer.server.state import LATER, NoSuchPage, State, minute, with_query

ROWS_PER_PAGE = 50
MAX_BATCHES = 500
MAX_CELL_CHARS = 1_500
MAX_CELLS = 12
MAX_EPOCHS = 20
QUERY = ("chip", "cell", "base", "text", "where", "between", "sort", "order", "group", "cols")
"""What an address says about the matrix; `cols` are the columns that the page shows."""


@frozen
class BatchEntry:
    """A batch of the project. `problem` is why it cannot be read."""

    id: str
    name: str
    batch: Batch | None
    problem: str = ""

    @property
    def created(self) -> str:
        return "" if self.batch is None else str(self.batch.manifest.get("created", ""))


def entries(state: State) -> list[BatchEntry]:
    """The batches, the newest first; those that cannot be read at the end."""
    found: list[BatchEntry] = []
    for key, path in list(state.project.folders().batches.items())[:MAX_BATCHES]:
        name = state.project.name_of(path)
        try:
            found.append(BatchEntry(key, name, batch=open_batch(path)))
        except (EvaluatorError, OSError) as error:
            found.append(BatchEntry(key, name, batch=None, problem=str(error)))
    return sorted(found, key=lambda entry: entry.created, reverse=True)


def entry_data(entry: BatchEntry) -> dict[str, Any]:
    """A batch in a list, with its counts and the share that passed, from its summary."""
    data: dict[str, Any] = {"id": entry.id, "name": entry.name, "problem": entry.problem}
    batch = entry.batch
    if batch is None:
        return data
    about = About(batch.manifest)
    summary = mapping_of(BatchFolder.reader(batch.folder).summary())
    groups = [mapping_of(each) for each in items_of(summary.get("groups"))[:MAX_CELLS]]
    return data | {
        "href": f"/batch/{entry.id}",
        "title": batch.name,
        "state": batch_state(about),
        "unfinished": about.unfinished,
        "resume": resume_command(entry.name) if about.unfinished else "",
        "created": entry.created[:16].replace("T", " "),
        "total": batch.manifest.get("total"),
        "templates": sorted({template for template, _ in batch.cells})[:MAX_CELLS],
        "cells": cell_names(batch)[:MAX_CELLS],
        "counts": mapping_of(summary.get("counts")),
        "groups": [
            {
                "name": cell_name((str(each.get("template")), str(each.get("variant") or ""))),
                "estimate": mapping_of(mapping_of(each.get("accuracy")).get("estimate")),
            }
            for each in groups
        ],
        "simulated": any(simulated_cells(batch)),
    }


def cell_name(cell: tuple[str, str]) -> str:
    return " × ".join(part for part in cell if part)


def cell_names(batch: Batch) -> list[str]:
    """The names of its columns: the template is left out where all have the same."""
    cells = batch.cells
    variants = [variant for _, variant in cells if variant]
    if len(variants) == len(cells) > 1 and len({template for template, _ in cells}) == 1:
        return variants
    return [cell_name(cell) for cell in cells]


def batches_page(state: State, query: Query) -> Page:
    found = entries(state)
    return Page(
        "batches",
        "Batches",
        {
            "entries": [entry_data(entry) for entry in found],
            "is_cut": len(found) == MAX_BATCHES,
            "searches": [
                (f"/improvement/{key}", state.project.name_of(path))
                for key, path in state.project.folders().searches.items()
            ],
        },
    )


def opened(
    state: State, folder_id: str, *, wait_s: float = math.inf, with_texts: bool = False
) -> tuple[Batch, Matrix]:
    """A batch and the matrix of its results, as they are now, or as far as they can be read in
    `wait_s`.

    Raises: NoSuchPage; RecordError, if it cannot be read.
    """
    path = state.project.find("batches", folder_id)
    batch = open_batch(path)
    matrix = state.matrix(path)
    matrix.index.update(
        batch.cells, batch.manifest.get("left_out", ()), wait_s=wait_s, with_texts=with_texts
    )
    return batch, matrix


def batch_page(state: State, query: Query) -> Page:
    """Progress, numbers and a page of the matrix."""
    begun_s = clock.cpu()
    has_text = bool(query.get("text", "").strip())
    batch, matrix = opened(state, query["folder"], wait_s=state.wait_s, with_texts=has_text)
    index = matrix.index
    about = About(batch.manifest)
    unread = index.unread or (index.unsearched if has_text else 0.0)
    version = (index.stamp, (batch.folder / MANIFEST).stat().st_mtime_ns)
    # The numbers read the whole file too, so they wait until the samples are there.
    numbers = LATER
    if not index.unread:
        numbers = state.summaries.get(batch.folder, version, lambda: _numbers(batch, index))
    is_running = batch_state(about) == "running"
    shown = matrix_data(matrix, batch, query)
    progress = progress_data(batch, state.project.name_of(batch.folder), index, about)
    values = {
        "name": state.project.name_of(batch.folder),
        "href": f"/batch/{query['folder']}",
        "runs": f"/runs?folder={query['folder']}",
        "compare": f"/compare?a={query['folder']}",
        "label": f"/label/{query['folder']}",
        "progress": progress | {"unread": unread, "is_searching": has_text},
        "control": control_data(
            state,
            batch,
            is_running=progress["session"] is not None,
            errors=_error_kinds(numbers.value),
        ),
        "matrix": shown,
        "numbers": numbers.to_dict(),
    }
    cost_ms = 1_000 * (clock.cpu() - begun_s)
    is_computing = unread > 0 or not numbers.is_current
    live_ms = live_ms_of(
        batch.folder, is_running=is_running, is_computing=is_computing, cost_ms=cost_ms
    )
    return Page("batch", batch.name, values, live_ms=live_ms)


def matrix_data(matrix: Matrix, batch: Batch, query: Query) -> dict[str, Any]:
    """A page of rows with the results of each cell, and what can be chosen."""
    cells = batch.cells
    wanted = read_query(query, len(cells))
    selection = matrix.select(wanted, cells)
    page, pages = page_of(len(selection.samples), ROWS_PER_PAGE, query=query)
    samples = selection.samples[(page - 1) * ROWS_PER_PAGE : page * ROWS_PER_PAGE]
    fields = matrix.index.fields
    x, _, y = query.get("plot", "").partition("|")
    return {
        "cells": [
            {"number": number, "name": name, "simulated": is_simulated}
            for number, (name, is_simulated) in enumerate(
                zip(cell_names(batch)[:MAX_CELLS], simulated_cells(batch), strict=False)
            )
        ],
        "query": {name: query.get(name, "") for name in QUERY} | {"plot": query.get("plot", "")},
        "chips": selection.chips,
        "fields": list(fields),
        "choices": matrix.choices(),
        "columns": matrix.columns,
        "groups": _groups(matrix, wanted, selection.groups),
        "shares": selection.shares[:MAX_CELLS],
        "rows": [_row(matrix, sample, batch, query, wanted) for sample in samples],
        "count": len(selection.samples),
        "total": matrix.count(cells),
        "page": page,
        "pages": pages,
        "plot": matrix.plot(x, y, wanted, cells) if x else None,
    }


def _groups(
    matrix: Matrix, wanted: MatrixQuery, groups: Mapping[int, tuple[int, int, int]]
) -> dict[str, Any]:
    if not groups:
        return {}
    names = {code: name for name, code in matrix.index.fields[wanted.group].numbers.items()}
    return {
        names.get(code, ""): {"rows": rows, "passed": passed, "judged": judged}
        for code, (rows, passed, judged) in groups.items()
    }


def _row(
    matrix: Matrix, sample: int, batch: Batch, query: Query, wanted: MatrixQuery
) -> dict[str, Any]:
    index = matrix.index
    places: dict[int, list[Any]] = {}
    first: SampleResult | None = None
    numbers = {index.group_number(cell): place for place, cell in enumerate(batch.cells)}
    for row in index.results_of(sample):
        place = numbers.get(index.groups[row])
        if place is None or (wanted.cell is not None and place != wanted.cell):
            continue
        results = places.setdefault(place, [])
        if len(results) < MAX_EPOCHS:
            result = index.result(row)
            first = first or result
            results.append(_brief(result, sample_href(query, index.key(row))))
    group = ""
    known = index.fields.get(wanted.group)
    if known is not None:
        code = known.code(sample)
        group = next((text for text, number in known.numbers.items() if number == code), "")
    if first is None:
        return {"title": "", "results": {}, "group": group}
    row_values = {
        "id": first.sample_id,
        "title": first.title or "(empty id)",
        "place": first.place,
        "group": group,
        "results": places,
    }
    sources = {"inputs": first.inputs, "target": first.target, "metadata": first.metadata}
    return row_values | JsonForm(MAX_CELL_CHARS, note=False).plain(sources)


def _brief(result: SampleResult, href: str) -> dict[str, Any]:
    """A result in a cell: without what its row has, and with long texts cut."""
    data = result_data(result, href)
    for name in ("inputs", "target", "metadata", "parsed", "identity", "template", "variant"):
        del data[name]
    return JsonForm(MAX_CELL_CHARS, note=False).plain(data)


def sample_href(query: Query, key: str) -> str:
    """The address of a result in the list that `query` describes."""
    chosen = {name: query[name] for name in QUERY if query.get(name)}
    return with_query(f"/sample/{query['folder']}/{key}", **chosen)


def _error_kinds(numbers: Any) -> list[str]:
    """The kinds of errors in a summary."""
    summaries = [
        mapping_of(each).get("summary") for each in items_of(mapping_of(numbers).get("batches"))
    ]
    groups = [group for each in summaries for group in items_of(mapping_of(each).get("groups"))]
    errors = [error for group in groups for error in items_of(mapping_of(group).get("errors"))]
    return sorted({str(mapping_of(error).get("kind")) for error in errors})


def _numbers(batch: Batch, index: BatchIndex) -> Any:
    """The summary of a batch and the distributions for its plots, as plain JSON."""
    summary = batch.summarise()
    distributions = Distributions()
    for group, verdict, values in index.measures():
        distributions.add_values((0, *group), verdict, values)
    return JsonForm().plain(
        {
            "batches": [{"name": batch.name, "summary": summary.to_dict()}],
            "distributions": distributions.to_list(),
        }
    )


def page_of(count: int, per_page: int, query: Query) -> tuple[int, int]:
    """The number of the page, and of pages."""
    pages = max(1, -(-count // per_page))
    text = query.get("page", "")
    number = 1
    if text.isascii() and text.isdigit() and len(text) < 10:
        number = int(text)
    return min(max(number, 1), pages), pages


def sample_page(state: State, query: Query) -> Page:
    """One result with its scores and transcripts; the results before and after it in the order of
    the list, and the others of its sample.
    """
    batch, matrix = opened(state, query["folder"])
    index = matrix.index
    row = index.row(query["key"])
    if row is None:
        raise NoSuchPage(f"{batch.folder}: there is no such result now; open the batch")
    result = index.result(row)
    wanted = read_query(query, len(batch.cells))
    order = matrix.select(wanted, batch.cells).samples
    sample = index.samples[row]
    place = None
    page = ""
    if sample in order:
        place = order.index(sample)
        page = str(place // ROWS_PER_PAGE + 1)
    address = f"/batch/{query['folder']}"
    chosen = {name: query[name] for name in QUERY if query.get(name)}
    names = dict(zip(batch.cells, cell_names(batch), strict=True))
    back = urlencode(chosen | {"page": page}, errors="replace")
    values = {
        "result": result_data(result, query["key"]),
        "batch": {"name": batch.name, "href": f"{address}?{back}"},
        "place": place,
        "count": len(order),
        "previous": _neighbour(matrix, order, place, -1, row, query),
        "next": _neighbour(matrix, order, place, 1, row, query),
        "others": [
            _brief(other, sample_href(query, index.key(each)))
            | {"cell": names[cell], "is_this": each == row}
            for each in index.results_of(sample)
            if (other := index.result(each)) and (cell := (other.template, other.variant)) in names
        ][: MAX_CELLS * MAX_EPOCHS],
        "run": f"/run/{query['folder']}/",
        "attachments": f"/attachment/{query['folder']}/",
        "command": repeat_command(batch, result),
        "labels": label_data(index.labels_of(row), shown_digest(result)),
        "transcripts": [each.to_dict() for each in transcripts(batch.folder, result)],
    }
    return Page("sample", result.title or "(empty id)", values)


def label_data(labels: Sequence[Label], shown: str) -> list[dict[str, Any]]:
    """Labels of one result. `shown` is the digest of its text now."""
    return [
        {
            "labeller": label.labeller,
            "scorer": label.scorer,
            "verdict": label.verdict.value,
            "grade": label.grade,
            "value": label.value,
            "note": label.note,
            "at": minute(label.at),
            "seconds": label.seconds,
            "is_stale": label.shown != shown,
        }
        for label in labels
    ]


def _neighbour(
    matrix: Matrix,
    order: Sequence[int],
    place: int | None,
    step: int,
    row: int,
    query: Query,
) -> str:
    """The address of a result in the next row: in the same column, if there is one."""
    if place is None or not 0 <= place + step < len(order):
        return ""
    index = matrix.index
    rows = index.results_of(order[place + step])
    same = [each for each in rows if index.groups[each] == index.groups[row]]
    return sample_href(query, index.key((same or rows)[0]))


def repeat_command(batch: Batch, result: SampleResult) -> str:
    """The command that evaluates the sample again, once; empty where its answer existed before, and
    no model was called for it.
    """
    settings = batch.manifest.get("settings")
    parts = ["evaluator run --template", shlex.quote(result.template)]
    for cell in batch.manifest.get("cells", []):
        if (cell.get("template"), cell.get("variant")) == (result.template, result.variant):
            # The settings of a model are there for each cell that calls one.
            part = cell.get("handler_part")
            if isinstance(settings, Mapping) and isinstance(part, str) and part not in settings:
                return ""
            for name in ("handler", "model"):
                value = cell.get(name)
                if isinstance(value, str) and value:
                    parts += [f"--{name}", shlex.quote(value)]
    for name, value in result.inputs.items():
        if isinstance(value, str):
            text = value
        else:
            text = json.dumps(value, ensure_ascii=False)
        parts += ["--input", shlex.quote(f"{name}={text}")]
    return " ".join(parts)
