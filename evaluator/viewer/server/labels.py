"""The page on which people label answers, and the action that stores a label.

A page of a question has neither the verdict, nor the template, the variant or the model, nor the
labels of others. They follow when the labeller has finished. The page asks as `evaluator label`
does, see `evaluator.batch.label_session`.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from evaluator.batch import Batch
from evaluator.batch.folder import MANIFEST
from evaluator.batch.label_session import (
    DEFAULT_PRECISION,
    LabelSession,
    Question,
    label_answers,
    scorer_to_label,
)
from evaluator.batch.labels import Label
from evaluator.batch.preferences import label_pairs, preference_table, preferences
from evaluator.batch.records import SampleResult
from evaluator.batch.summary.calibrated import calibration_tables
from evaluator.errors import UsageError
from evaluator.viewer.json_form import JsonForm, Page, Query
from evaluator.viewer.server.batch_index import BatchIndex
from evaluator.viewer.server.batches import cell_names, opened, sample_href
from evaluator.viewer.server.state import COMPUTING_MS, LATER, State, Value, with_query

MAX_SHOWN = 200
_SETTINGS = ("labeller", "scorer", "sides", "precision")


def label_page(state: State, query: Query) -> Page:
    """The choice of who labels what; with it the next question, or the result at the end."""
    batch, matrix = opened(state, query["folder"], wait_s=state.wait_s)
    shown: dict[str, Any] = {
        "name": batch.name,
        "batch": f"/batch/{query['folder']}",
        "href": f"/label/{query['folder']}",
        "settings": {name: query.get(name, "") for name in _SETTINGS},
        "question": None,
        "finished": None,
        "problem": "",
    }
    title = f"Label {batch.name}"
    if not query.get("labeller", "").strip():
        return Page("label", title, shown | {"choices": _choices(batch)})
    if matrix.index.unread:
        value = LATER
    else:
        value = _session(state, batch, matrix.index, query)
    if value.value is None:
        shown["problem"] = value.error
        return Page("label", title, shown, live_ms=0 if value.error else COMPUTING_MS)
    session: LabelSession = value.value
    with state.labelling:
        chosen = query.get("question")
        question = session.question(chosen) if chosen else session.next()
        shown |= {"count": len(session.given), "needed": session.subject.needed()}
        if question is None or query.get("finish"):
            shown["finished"] = _finished(batch, matrix.index, session, query)
        else:
            shown["question"] = _question_data(question)
            shown["token"] = state.form_token
    return Page("label", title, shown)


def _choices(batch: Batch) -> dict[str, Any]:
    names = cell_names(batch)
    numbers = range(len(names))
    return {
        "scorers": list(batch.manifest.get("scorers") or {}),
        "judges": list(batch.manifest.get("judges") or {}),
        "sides": [(f"{a},{b}", f"{names[a]} or {names[b]}") for b in numbers for a in range(b)][
            :MAX_SHOWN
        ],
        "precision": DEFAULT_PRECISION,
    }


def give_label(state: State, query: Query) -> str:
    """Stores a label, skips a question or withdraws the last label.

    Returns: the address of the next question. Raises: UsageError, without the form's token, for an
    answer that cannot be read, or if the text has changed since it was shown.
    """
    state.check_form(query)
    batch, matrix = opened(state, query["folder"])
    value = _session(state, batch, matrix.index, query)
    if value.value is None:
        raise UsageError(value.error or "the results are being read; open the page again")
    session: LabelSession = value.value
    settings = {name: query.get(name) for name in _SETTINGS}
    address = f"/label/{query['folder']}"
    with state.labelling:
        if query.get("action") == "undo":
            again = session.undo()
            if again is None:
                raise UsageError("there is no label to undo")
            return with_query(address, **settings, question=again.id)
        question = session.question(query.get("question", ""))
        if query.get("action") == "skip":
            session.skip(question)
        else:
            if question.shown != query.get("shown"):
                raise UsageError("the answer has changed since it was shown; open the page again")
            try:
                session.answer(
                    question,
                    query.get("answer", ""),
                    note=query.get("note", "").replace("\r\n", "\n").strip(),
                    seconds=_seconds(query.get("seconds", "")),
                )
            except ValueError as error:
                raise UsageError(str(error)) from error
    return with_query(address, **settings)


def _session(state: State, batch: Batch, index: BatchIndex, query: Query) -> Value:
    """The labeller's session; it is made again where results were added, after a while.

    Raises: UsageError, without a labeller, or for a scorer or sides that the batch does not have.
    """
    labeller = query.get("labeller", "").strip()
    if not labeller:
        raise UsageError("who labels? open the page again, and give a name")
    precision = _precision(query.get("precision", ""))
    sides = query.get("sides", "")
    if sides:
        numbers = [int(text) for text in sides.split(",") if text.isdecimal() and len(text) < 5]
        if len(numbers) != 2 or max(numbers) >= len(batch.cells):
            raise UsageError("the batch has no such two templates or variants; open it again")
        cells = tuple(batch.cells[number] for number in numbers)
        scorer = ""
    else:
        cells = ()
        scorer = scorer_to_label(batch, query.get("scorer") or None)

    def find(key: str) -> SampleResult | None:
        row = index.row(key)
        return None if row is None else index.result(row)

    def make() -> LabelSession:
        if cells:
            return label_pairs(batch, cells, labeller, precision=precision, find=find)
        return label_answers(batch, scorer, labeller, precision=precision, find=find)

    version = (index.end, (batch.folder / MANIFEST).stat().st_mtime_ns)
    return state.labellers.get((batch.folder, labeller, scorer, cells, precision), version, make)


def _question_data(question: Question) -> dict[str, Any]:
    return JsonForm().plain(
        {
            "id": question.id,
            "shown": question.shown,
            "sections": question.sections,
            "answers": len(question.keys),
            "choices": question.choices,
            "has_value": question.has_value,
        }
    )


def _finished(
    batch: Batch, index: BatchIndex, session: LabelSession, query: Query
) -> dict[str, Any]:
    """What was hidden: the labels beside the verdicts, and how well they fit the judge."""
    scorer = session.subject.scorer
    if scorer:
        tables = [
            table
            for cell, found in batch.calibrations(scorer).items()
            for one in found.values()
            for table in calibration_tables(" × ".join(filter(None, cell)), one)
        ]
    else:
        found = preferences(batch)
        if found:
            tables = [preference_table(found)]
        else:
            tables = []
    given = list(session.given.values())
    return {
        "lines": session.subject.lines(),
        "tables": [asdict(table) for table in tables],
        "labels": [_given(index, label, query) for label in reversed(given[-MAX_SHOWN:])],
        "count": len(given),
    }


def _given(index: BatchIndex, label: Label, query: Query) -> dict[str, Any]:
    """A label beside the verdict of the scorer."""
    row = index.row(label.key)
    if row is None:
        return {"title": "", "href": "", "label": label.grade or label.verdict.value, "judge": ""}
    result = index.result(row)
    score = result.scores.get(label.scorer)
    judge = ""
    if score is not None and score.passed is not None:
        judge = "passed" if score.passed else "failed"
    return {
        "title": result.title or "(empty id)",
        "href": sample_href({"folder": query["folder"]}, index.key(row)),
        "cell": " × ".join(filter(None, (result.template, result.variant))),
        "label": label.grade or label.verdict.value,
        "verdict": label.verdict.value,
        "judge": judge,
        "note": label.note,
    }


def _precision(text: str) -> float:
    try:
        value = float(text or DEFAULT_PRECISION)
    except ValueError:
        value = math.nan
    if not 0 < value <= 50:
        raise UsageError(f"the precision is {text!r:.40}, expected points above 0 and at most 50")
    return value


def _seconds(text: str) -> float:
    """How long a labeller looked; 0 where the browser says nothing that is a time."""
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if math.isfinite(value) and value >= 0 else 0.0
