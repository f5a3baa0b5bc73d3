"""Labels in files of other programs: CSV, and JSON as Label Studio exports it (an array, or one
task a line).

A CSV file has a row for each label. A result is named by `key`, or by `sample_id` with `epoch`,
`template` and `variant` where these are needed to tell it from others. In JSON the same names are
members of a task's `data`; each annotation is a label, its choice the verdict, its number the value
and its text the note.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, cast

from evaluator.batch.export.output_path import output_file
from evaluator.batch.label_sheet import LabelSheet, as_text
from evaluator.batch.labels import (
    CurrentLabels,
    Label,
    append_labels,
    read_labels,
    shown_digest,
)
from evaluator.batch.reading import Batch
from evaluator.batch.records import SampleResult
from evaluator.batch.rows.table_rows import read_csv
from evaluator.errors import UsageError
from evaluator.errors.messages import json_problem
from evaluator.files.open_below import read_regular
from evaluator.lazy_dataclass import dataclass
from evaluator.record.journal import now
from evaluator.record.steps import Scrub

_MAX_BYTES = 1_000_000_000
_RESULT = ("key", "sample_id", "epoch", "template", "variant")
_LABEL = ("scorer", "labeller", "verdict", "value", "grade", "note", "at", "seconds", "shown")
# Cells that begin with one of these are formulas for a spreadsheet.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True, slots=True)
class _Row:
    """A label of a file: where it is, and its texts by the names of columns."""

    where: str
    values: Mapping[str, str]

    def get(self, name: str) -> str:
        return self.values.get(name, "").strip()


def import_labels(
    batch: Batch,
    path: Path,
    *,
    scorer: str,
    labeller: str | None,
    scrub: Scrub | None = None,
) -> int:
    """Appends the labels of a file, all or none. `scorer` and `labeller` are for rows that name
    none. Returns: their number.

    Raises: UsageError, with the row, for a result that the batch does not have, a verdict that
    cannot be read, or a row without a labeller.
    """
    rows = list(_read(path))
    results = _find_results(batch, rows)
    labels: list[Label] = []
    scorers: Mapping[str, Any] = batch.manifest.get("scorers") or {}
    for row in rows:
        name = row.get("scorer") or scorer
        result = results[row.where]
        sheet = LabelSheet.of(scorers.get(name) or {})
        word = row.get("grade") or row.get("value") or row.get("verdict")
        try:
            answer = sheet.read(word)
            labels.append(
                Label(
                    result.key,
                    result.identity,
                    row.get("shown") or shown_digest(result),
                    scorer=name,
                    labeller=row.get("labeller") or labeller or "",
                    verdict=answer.verdict,
                    value=answer.value,
                    grade=answer.grade,
                    note=row.get("note"),
                    at=row.get("at") or now(),
                    seconds=float(row.get("seconds") or 0),
                )
            )
        except (ValueError, UsageError) as error:
            hint = ""
            if not (row.get("labeller") or labeller):
                hint = "; name the labeller with --labeller NAME"
            raise UsageError(f"{row.where}: {error}{hint}") from error
    append_labels(batch.folder, labels, scrub)
    return len(labels)


def export_labels(batch: Batch, path: Path) -> int:
    """Writes the labels that count into a file, in the form that its name ends with. Returns: their
    number.

    Raises: UsageError, for another ending, or a file of the batch's own record; RecordError, if it
    cannot be written.
    """
    labels = CurrentLabels(read_labels(batch.folder))
    found: list[tuple[SampleResult, list[Label]]] = []
    for result in batch.results():
        own = [
            label
            for scorer in labels.scorers
            for label in labels.of(scorer).get(result.key, {}).values()
        ]
        if own:
            found.append((result, own))
    if path.suffix == ".csv":
        text = _csv_text(found)
    elif path.suffix in (".json", ".jsonl"):
        by_scorer = [
            (result, list(own))
            for result, every in found
            for _, own in groupby(every, key=lambda label: label.scorer)
        ]
        tasks = [_task(number, *each) for number, each in enumerate(by_scorer, 1)]
        if path.suffix == ".json":
            text = json.dumps(tasks, ensure_ascii=False, indent=1) + "\n"
        else:
            text = "".join(json.dumps(task, ensure_ascii=False) + "\n" for task in tasks)
    else:
        raise _unknown_form(path)
    with output_file(path) as file:
        file.write(text.encode("utf-8", "backslashreplace"))
    return sum(len(own) for _, own in found)


def _unknown_form(path: Path) -> UsageError:
    return UsageError(f"{path}: labels are in files that end with .csv, .json or .jsonl")


def _read(path: Path) -> Iterator[_Row]:
    if path.suffix == ".csv":
        for line, values in read_csv(path, ","):
            texts = {name: value for name, value in values.items() if isinstance(value, str)}
            yield _Row(f"{path}:{line}", {name: _plain(text) for name, text in texts.items()})
    elif path.suffix in (".json", ".jsonl"):
        for number, task in enumerate(_tasks(path), 1):
            yield from _labels_of_task(f"{path}, task {number}", task)
    else:
        raise _unknown_form(path)


def _tasks(path: Path) -> list[Any]:
    try:
        text = read_regular(path, _MAX_BYTES).decode("utf-8-sig")
        if text.lstrip().startswith("["):
            return json.loads(text)
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: invalid JSON: {json_problem(error)}") from error


def _labels_of_task(where: str, task: Any) -> Iterator[_Row]:
    """Each annotation of a task of Label Studio."""
    fields = _mapping(task)
    data = {
        name: as_text(value)
        for name, value in _mapping(fields.get("data")).items()
        if name in _RESULT or name == "scorer"
    }
    annotations: Any = fields.get("annotations")
    if not isinstance(annotations, list):
        raise UsageError(f"{where}: has no annotations; export it from Label Studio as JSON")
    for number, each in enumerate(cast("list[Any]", annotations), 1):
        annotation = _mapping(each)
        if annotation.get("was_cancelled"):
            continue
        values = dict(data)
        by = annotation.get("completed_by")
        if isinstance(by, Mapping):
            by = _mapping(by).get("email") or _mapping(by).get("id")
        if by is not None:
            values["labeller"] = str(by)
        values["at"] = str(annotation.get("created_at") or "")
        values["seconds"] = str(annotation.get("lead_time") or 0)
        results: Any = annotation.get("result")
        for result in cast("list[Any]", results) if isinstance(results, list) else ():
            value = _mapping(_mapping(result).get("value"))
            choices: Any = value.get("choices")
            texts: Any = value.get("text")
            if isinstance(choices, list) and choices:
                values["verdict"] = str(cast("list[Any]", choices)[0])
            elif "number" in value:
                values["value"] = str(value["number"])
            elif texts:
                note = cast("list[Any]", texts) if isinstance(texts, list) else [texts]
                values["note"] = "\n".join(map(str, note))
        yield _Row(f"{where}, annotation {number}", values)


def _find_results(batch: Batch, rows: Sequence[_Row]) -> dict[str, SampleResult]:
    """The result of each row, by where the row is. Raises: UsageError, for a row without one, or
    with several.
    """
    wanted: dict[str, list[_Row]] = {}
    for row in rows:
        wanted.setdefault(row.get("key") or row.get("sample_id"), []).append(row)
    found: dict[str, SampleResult] = {}
    for result in batch.results():
        for row in (*wanted.get(result.key, ()), *wanted.get(result.sample_id, ())):
            if not _fits(row, result):
                continue
            if row.where in found:
                raise UsageError(
                    f"{row.where}: the batch has several results of the sample "
                    f"{result.sample_id!r}; name one by epoch, template and variant, or by key"
                )
            found[row.where] = result
    for row in rows:
        if row.where not in found:
            name = row.get("key") or row.get("sample_id")
            raise UsageError(
                f"{row.where}: the batch has no result {name!r:.80}; a row needs the column key, "
                "or sample_id, as evaluator label --export writes them"
            )
    return found


def _fits(row: _Row, result: SampleResult) -> bool:
    if row.get("key"):
        return row.get("key") == result.key
    own = {
        "epoch": str(result.epoch),
        "template": result.template,
        "variant": result.variant,
    }
    return all(row.get(name) in ("", value) for name, value in own.items())


def _csv_text(found: Iterable[tuple[SampleResult, list[Label]]]) -> str:
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow((*_RESULT, *_LABEL, "inputs", "target", "answer"))
    for result, labels in found:
        inputs = as_text(dict(result.inputs))
        target = "" if result.target is None else as_text(result.target)
        for label in labels:
            values = label.to_dict()
            cells = [getattr(result, name) for name in _RESULT]
            cells += ["" if values[name] is None else values[name] for name in _LABEL]
            writer.writerow([_cell(each) for each in (*cells, inputs, target, result.content)])
    return text.getvalue()


def _cell(value: Any) -> Any:
    """A text that a spreadsheet does not take for a formula."""
    if isinstance(value, str) and value.startswith(_FORMULA):
        return f"'{value}"
    return value


def _plain(cell: str) -> str:
    """The text from which `_cell` made a cell."""
    if cell.startswith("'") and cell[1:].startswith(_FORMULA):
        return cell[1:]
    return cell


def _task(number: int, result: SampleResult, labels: Sequence[Label]) -> dict[str, Any]:
    """A result as a task of Label Studio, for a project with the fields verdict, value and note."""
    data: dict[str, Any] = {name: getattr(result, name) for name in _RESULT}
    data |= {
        "scorer": labels[0].scorer,
        "inputs": as_text(dict(result.inputs)),
        "target": "" if result.target is None else as_text(result.target),
        "answer": result.content,
    }
    return {
        "id": number,
        "data": data,
        "annotations": [_annotation(label) for label in labels],
    }


def _annotation(label: Label) -> dict[str, Any]:
    parts: list[tuple[str, str, dict[str, Any]]] = [
        ("verdict", "choices", {"choices": [label.grade or label.verdict.value]})
    ]
    if label.value is not None and not label.grade:
        parts.append(("value", "number", {"number": label.value}))
    if label.note:
        parts.append(("note", "textarea", {"text": [label.note]}))
    return {
        "completed_by": label.labeller,
        "created_at": label.at,
        "lead_time": label.seconds,
        "was_cancelled": False,
        "result": [
            {"from_name": name, "to_name": "answer", "type": kind, "value": value}
            for name, kind, value in parts
        ],
    }


def _mapping(value: Any) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return cast("Mapping[str, Any]", value)
    return {}
