"""Answers that are cut off, empty or unreadable are judged as the references judge them, and marked."""

from __future__ import annotations

import json

import pytest

from evaluator import ModelResponse, ProviderError, Resource, Span, TaskError, Usage
from evaluator.batch import open_batch
from evaluator.batch.records import existing_answer, is_limited, limited_answer
from evaluator.nodes import OutputFormat
from tests.batch.conftest import QUIZ, ROWS, Calls, Run, Scripted


def cut_off(content: str) -> ModelResponse:
    return ModelResponse(content, finish_reason="length", usage=Usage(output_tokens=5))


def states(result) -> list[tuple[str, str, str | None]]:
    found = sorted(result.results(), key=lambda each: each.sample_id)
    return [
        (each.verdict.value, each.content, each.failure and each.failure.resource) for each in found
    ]


@pytest.fixture
def answers(calls: Calls) -> Calls:
    texts = ["0", "2, I th", "", "8"]
    calls.answers = {
        f"Answer in a word: What is {n} + {n}?": cut_off(text) for n, text in enumerate(texts[:3])
    }
    return calls


def test_a_cut_off_answer_is_scored_and_marked(run: Run, answers: Calls) -> None:
    result = run(ROWS[:3])
    assert states(result) == [
        ("passed", "0", "output"),
        ("failed", "2, I th", "output"),
        ("failed", "", "output"),
    ]
    counts = result.summary.counts
    assert (counts.passed, counts.failed, counts.error) == (1, 2, 0)
    assert [(each.kind, each.count) for each in result.summary.errors] == [
        ("output limit, not an error", 3)
    ]


@pytest.mark.parametrize(("limited", "verdict"), [("failed", "failed"), ("error", "error")])
def test_the_stricter_readings_of_a_cut_off_answer(
    run: Run, answers: Calls, limited: str, verdict: str
) -> None:
    assert [each[0] for each in states(run(ROWS[:3], limited=limited))] == [verdict] * 3


def test_another_reading_judges_again_without_a_call(run: Run, answers: Calls) -> None:
    run(ROWS[:3])
    answers.clear()
    again = run(ROWS[:3], limited="error", resume=True)
    assert [each[0] for each in states(again)] == ["error"] * 3 and answers == []
    assert json.loads((again.folder / "manifest.json").read_text())["limited"] == "error"
    back = run(ROWS[:3], resume=True)
    assert [each[0] for each in states(back)] == ["passed", "failed", "failed"] and answers == []
    assert open_batch(back.folder).summarise().counts.failed == 2


def test_without_scorers_nothing_is_judged(run: Run, answers: Calls) -> None:
    assert [each[0] for each in states(run(ROWS[:3], scorers=[]))] == ["error"] * 3


def test_an_empty_answer_is_failed_and_an_error_where_that_is_asked_for(
    run: Run, calls: Calls
) -> None:
    calls.otherwise = lambda prompt: ModelResponse(
        "", finish_reason="stop", usage=Usage(output_tokens=1)
    )
    assert [each[0] for each in states(run(ROWS[:2]))] == ["failed"] * 2
    assert [each[0] for each in states(run(ROWS[:2], resume=True, count_as_failed=[]))] == [
        "error"
    ] * 2


def test_a_provider_that_is_down_is_an_error_unless_its_type_counts_as_failed(
    run: Run, calls: Calls
) -> None:
    calls.otherwise = lambda prompt: ProviderError("down", kind="auth")
    assert [each[0] for each in states(run(ROWS[:1]))] == ["error"]
    assert [
        each[0] for each in states(run(ROWS[:1], resume=True, count_as_failed=["TASK_FAILURE"]))
    ] == ["failed"]


def test_a_cut_off_answer_is_read_in_the_declared_format(
    run: Run, make_evaluator, calls: Calls
) -> None:
    strict = make_evaluator(
        QUIZ.replace("</task>", '<output_format type="json" schema="number"/></task>'),
        backend=Scripted(script=calls),
    )
    calls.otherwise = lambda prompt: cut_off("two or" if "1 + 1" in prompt else "0")
    result = run(ROWS[:2], evaluator=strict, scorers=["numeric"])
    assert [each[0] for each in states(result)] == ["passed", "failed"]
    failed = next(each for each in result.results() if each.verdict == "failed")
    assert failed.scores["numeric"].explanation.startswith("ended by the limit of output: ")


@pytest.mark.parametrize(
    ("resource", "content", "scored"),
    [
        ("output", "", True),
        ("turns", "", True),
        ("time", "", False),
        ("time", "so 5", True),
        ("context", "", False),
    ],
)
def test_a_limit_that_may_be_the_servers_fault_needs_a_text(
    resource, content: str, scored: bool
) -> None:
    error = TaskError(
        "RESOURCE_EXHAUSTION", "m", resource=Resource(resource, 1, 1), content=content
    )
    assert is_limited(error) is scored


def test_no_error_without_a_limit_is_a_limited_answer() -> None:
    assert not is_limited(TaskError("TASK_FAILURE", "m", "provider_failure", content="half"))
    wanted = OutputFormat(type="json", schema=None, span=Span())
    error = TaskError("RESOURCE_EXHAUSTION", "m", content='{"a": 1, ')
    read = limited_answer(error, existing_answer(error.content, wanted))
    assert not isinstance(read, str) and read.parsed_content == {"a": 1}
