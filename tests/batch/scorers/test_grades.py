"""Judges with more than two grades."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from evaluator import Status, TaskResult, UsageError
from evaluator.batch import SampleResult, Score, Verdict
from evaluator.batch.records import NOTHING
from evaluator.batch.scorers import make_scorer, run_scorer
from evaluator.batch.scorers.model_graded import InvalidJudgement, find_grade
from evaluator.batch.summary import summarise
from tests.batch.scorers.scorer_inputs import seen

GRADES = {"CORRECT": 1, "INCORRECT": 0, "NOT_ATTEMPTED": "unscored"}


def graded(content: str, parsed: Any = None, grades: Any = GRADES, **more: Any) -> Score:
    async def judge(*_: Any, **__: Any) -> TaskResult:
        return TaskResult(Status.COMPLETE, content, parsed)

    scorer = make_scorer({"type": "graded", "template": "judge", "grades": grades, **more})
    return asyncio.run(run_scorer(scorer, seen("x", "y", evaluate=judge)))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("CORRECT", "CORRECT"),
        ("INCORRECT", "INCORRECT"),
        ("Not attempted.", "NOT_ATTEMPTED"),
        ("A", "CORRECT"),
        ("**B**", "INCORRECT"),
        ("It hedges.\n\nGrade: C", "NOT_ATTEMPTED"),
        ("It is correct in part.\nINCORRECT", "INCORRECT"),
        ("The answer is correct", "CORRECT"),
        ("I think the answer is B.", "INCORRECT"),
        ("C is the grade", "NOT_ATTEMPTED"),
        ("\\boxed{A}", "CORRECT"),
        ("<grade>B</grade>\nThe answer contradicts the target.", "INCORRECT"),
        ("A fact is missing.\nC", "NOT_ATTEMPTED"),
        ("It is not A, it is B.", None),
        ("I'd say that A's closer", None),
        ("D", None),
        ("CORRECT or INCORRECT", None),
        ("A good answer", None),
        ("", None),
    ],
)
def test_a_grade_is_found_by_its_name_or_letter(text: str, name: str | None) -> None:
    if name is not None:
        assert find_grade(text, list(GRADES)) == name
        return
    with pytest.raises(InvalidJudgement):
        find_grade(text, list(GRADES))


def test_letters_may_be_the_grades_themselves() -> None:
    assert find_grade("C", ["C", "I"]) == "C" and find_grade("grade: I", ["C", "I"]) == "I"


@pytest.mark.parametrize(
    ("content", "parsed", "value", "passed"),
    [
        ("CORRECT", None, 1.0, True),
        ("B", None, 0.0, False),
        ("NOT_ATTEMPTED", None, None, None),
        ("{…}", {"grade": "incorrect", "reason": "wrong year"}, 0.0, False),
    ],
)
def test_grades_have_values_or_are_unscored(
    content: str, parsed: Any, value: float | None, passed: bool | None
) -> None:
    given = graded(content, parsed)
    assert (given.error, given.value, given.passed) == (None, value, passed)
    assert given.answer in GRADES


def test_a_judge_without_a_grade_is_an_error() -> None:
    assert "it names none of the grades" in (graded("I cannot say").error or "")
    assert "expected a grade" in (graded("{}", {"score": 1}).error or "")


def test_grades_between_zero_and_one_pass_at_a_value() -> None:
    grades = {"good": 1, "fair": 0.5, "bad": 0}
    assert graded("fair", grades=grades).passed is True
    assert graded("fair", grades=grades, pass_at=0.6).passed is False


@pytest.mark.parametrize(
    "grades", [{"a": 1}, {"a": 1, "A": 0}, {"a": 2, "b": 0}, {"a": "none", "b": 0}]
)
def test_invalid_grades_are_refused(grades: Any) -> None:
    with pytest.raises(UsageError, match="grade"):
        make_scorer({"type": "graded", "template": "judge", "grades": grades})


def test_the_summary_counts_each_grade() -> None:
    answers = ["CORRECT", "NOT_ATTEMPTED", "CORRECT", "INCORRECT"]
    results = [
        SampleResult(
            str(number),
            str(number),
            number,
            1,
            "t",
            "v",
            Verdict.PASSED,
            {},
            scores={"g": graded(answer), "exact": Score(1.0, True, "x", usage=NOTHING)},
        )
        for number, answer in enumerate(answers)
    ]
    summary = summarise(results)
    scorers = summary.groups[0].part.scorers
    assert scorers["g"].grades == {"CORRECT": 2, "NOT_ATTEMPTED": 1, "INCORRECT": 1}
    assert scorers["exact"].grades == {}
    assert "g: CORRECT 2 of 4 (50.0 %), NOT_ATTEMPTED 1 of 4 (25.0 %)" in str(summary)
