"""Existing answers are scored without a call; everything else is that of any batch."""

from __future__ import annotations

import json

import pytest

from evaluator import UsageError
from evaluator.batch import open_batch
from evaluator.batch.compare import compare
from tests.batch.conftest import QUIZ, Calls, Run, Scripted

ROWS = [
    {"id": "a", "question": "What is 1 + 1?", "output": "2", "target": "2"},
    {"id": "b", "output": "3", "target": "4"},
    {"id": "c", "output": None, "target": "6"},
]


def verdicts(result) -> dict[str, str]:
    return {each.sample_id: each.verdict.value for each in result.results()}


def test_existing_answers_are_scored_and_no_model_is_asked(run: Run, calls: Calls) -> None:
    result = run(ROWS, answers="output")
    assert verdicts(result) == {"a": "passed", "b": "failed", "c": "failed"} and calls == []
    one = next(each for each in result.results() if each.sample_id == "a")
    assert (one.content, one.variant, one.usage.turns, one.metadata) == ("2", "answers", 0, {})
    manifest = json.loads((result.folder / "manifest.json").read_text())
    assert manifest["call_bound"] == {"min": 0, "max": 0} and manifest["arguments"] is not None


def test_no_key_is_needed_and_models_name_the_variant(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    result = run(ROWS, answers="output", models=["openai/gpt-4o"])
    assert {each.variant for each in result.results()} == {"openai/gpt-4o"}


def test_a_changed_answer_is_a_changed_result(run: Run) -> None:
    run(ROWS, answers="output")
    assert run(ROWS, answers="output", resume=True).ended.ran == 0
    changed = [{**ROWS[0], "output": "5"}, *ROWS[1:]]
    again = run(changed, answers="output", resume=True, on_changed="run")
    assert again.ended.ran == 1 and verdicts(again)["a"] == "failed"


def test_the_output_format_reads_existing_answers(run: Run, make_evaluator, calls: Calls) -> None:
    strict = make_evaluator(
        QUIZ.replace("</task>", '<output_format type="json" schema="object"/></task>'),
        backend=Scripted(script=calls),
    )
    rows = [
        {"id": "a", "output": {"n": 2}, "target": "2"},
        {"id": "b", "output": 'It is {"n": 3}.', "target": "3"},
        {"id": "c", "output": "none", "target": "3"},
    ]
    result = run(
        rows, evaluator=strict, answers="output", scorers=[{"type": "numeric", "of": "parsed.n"}]
    )
    assert verdicts(result) == {"a": "passed", "b": "passed", "c": "failed"} and calls == []


def test_a_row_without_the_field_is_refused(run: Run) -> None:
    with pytest.raises(UsageError, match="output"):
        run([{"id": "a", "target": "2"}], answers="output")


def test_two_sets_of_answers_are_compared(run: Run, tmp_path) -> None:
    first = run(ROWS, answers="output", output=tmp_path / "one")
    second = run(
        [{**row, "output": row["target"]} for row in ROWS],
        answers="output",
        output=tmp_path / "two",
    )
    sides = [open_batch(each.folder).results() for each in (first, second)]
    found = compare(*sides)
    assert found.difference.mean == pytest.approx(2 / 3)
