"""Patterns and conditions from a batch's definition or its rows: bounded work, and an error that names the row.

Time limits are set to almost nothing, so that a search that is not stopped fails by the limit of the test.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evaluator import BatchResult, SimulatedBackend, UsageError, run_batch_sync
from evaluator.batch import Selection
from evaluator.batch.rows.object_rows import RowError
from evaluator.batch.scorers import text_scorers

QUIZ = (
    '<task name="quiz" type="atomic"><description>Answer a quiz question</description>'
    '<inputs><input name="question" type="string" required="true">it</input></inputs>'
    "<instructions>{{ question }}</instructions></task>"
)
# Exponential in the number of letters, also for the library `regex`.
SLOW = r"^(?:(\w|\w\w)(?=(\w*)))*\d\2$"
TEXT = "ab" * 40


@pytest.fixture
def run(make_evaluator: Any, tmp_path: Path) -> Any:
    def act(*rows: dict[str, Any], **options: Any) -> BatchResult:
        evaluator = make_evaluator(QUIZ, backend=SimulatedBackend(script=lambda request: TEXT))
        return run_batch_sync(
            "quiz", [*rows], evaluator=evaluator, output=tmp_path / "batch", **options
        )

    return act


def row(id: str, **more: Any) -> dict[str, Any]:
    return {"id": id, "question": "q", **more}


@pytest.mark.parametrize("where", ["definition", "row"])
def test_a_catastrophic_pattern_is_stopped_and_its_sample_names_it(
    run: Any, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setattr(text_scorers, "INLINE_S", 0.01)
    monkeypatch.setattr(text_scorers, "TIMEOUT_S", 0.05)
    if where == "definition":
        result = run(row("r1"), scorers=[{"type": "regex", "pattern": SLOW}])
    else:
        result = run(row("r1", target=SLOW), row("r2", target="^ab"), scorers=["regex"])
    (slow,) = [each for each in result.results() if each.sample_id == "r1"]
    error = slow.scores["regex"].error
    assert error is not None and "took more than" in error and repr(SLOW)[:20] in error
    # The control: the other row is judged.
    others = [each.verdict.value for each in result.results() if each.sample_id != "r1"]
    assert others == (["passed"] if where == "row" else [])


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("(((a{100}){100}){100}){100}", "more than 10000 parts"),
        ("a{%s}" % ("9" * 900), "more than 10000 parts"),
        ("a" * 2_000, "the limit is 1000"),
        ("(" * 500, "is invalid"),
        ("(?P<x>a)(?P<x>", "is invalid"),
        ("[[" * 400, "is invalid"),
    ],
)
def test_a_pattern_that_cannot_be_compiled_is_refused_before_the_first_call(
    run: Any, pattern: str, says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        run(row("r1"), scorers=[{"type": "regex", "pattern": pattern}])


@pytest.mark.parametrize(
    ("condition", "says"),
    [
        ("(question * 99999999)|length > 1", "cannot multiply|makes values of more than"),
        ("(('a' * 9999999)|replace('a', 'bb'))|length", "makes values of more than"),
        ("(10 ** 3000) ** 3 > 1", "too many digits"),
        ("question.__class__.__mro__", "has no field '__class__'"),
        ("'%999999999d'|format(1) == ''", "format|more than"),
    ],
)
def test_a_condition_that_needs_too_much_is_an_error_that_names_the_row(
    run: Any, condition: str, says: str
) -> None:
    with pytest.raises(RowError, match=says) as refused:
        run(row("r1"), select=Selection(where=condition))
    assert "row 0" in str(refused.value) and "where:1:" in str(refused.value)


@pytest.mark.parametrize(
    ("condition", "says"),
    [
        ("not " * 5_000 + "question", "nested too deeply"),
        ("(" * 3_000 + "question" + ")" * 3_000, "nested more than 40 deep"),
        ("question" + "|upper" * 5_000, "nested more than 150 deep"),
        ("9" * 5_000 + " > 1", "too many digits"),
        ("question is match('(x+)+$')", "there is no test 'match'"),
    ],
)
def test_a_condition_that_cannot_be_read_is_refused_before_the_first_row(
    run: Any, condition: str, says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        run(row("r1"), select=Selection(where=condition))


def test_an_ordinary_condition_and_pattern_still_work(run: Any) -> None:
    result = run(
        row("r1", level=1),
        row("r2", level=2),
        select=Selection(where="level > 1"),
        scorers=[{"type": "regex", "pattern": r"^(ab)+$"}],
    )
    assert [(each.sample_id, each.verdict.value) for each in result.results()] == [("r2", "passed")]
