"""A batch that is asked to stop: what wanted a call that was not let in goes on later, and nobody answers without it."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from evaluator import BatchResult, Evaluator, ModelResponse, ProviderError, Usage, run_batch
from evaluator.batch import EndpointStatus, Stop, Verdict
from evaluator.batch.display import line_of
from evaluator.batch.progress import Tally
from tests.batch.conftest import QUIZ, ROWS, Scripted
from tests.batch.scorers.test_model_graded import TEMPLATES, said

FAMILY = """
<task name="parent" type="atomic"><description>Ask a child</description><tools><tool name="child"/></tools>
  <inputs><input name="question" type="string" required="true">it</input></inputs>
  <instructions>parent {{ question }}</instructions></task>
<task name="child" type="atomic"><description>Answer a part</description>
  <inputs><input name="part" type="string" required="true">it</input></inputs>
  <instructions>child {{ part }}</instructions></task>
"""
AT_ONCE = 4
"""So many calls begin at once with `RATE`; the next a quarter of a second later."""
RATE = {"concurrency": 8, "requests_per_minute": 60 * AT_ONCE}


class SlowLoop(asyncio.SelectorEventLoop):
    """Its time is so slow that a busy machine is in time before the next call of `RATE`."""

    def time(self) -> float:
        return super().time() / 40


def run(
    evaluator: Evaluator, rows: Any, tmp_path: Path, *, name: str = "quiz", **options: Any
) -> BatchResult:
    loop = SlowLoop if options.get("limits") is RATE else None
    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(
            run_batch(name, rows, evaluator=evaluator, output=tmp_path / "batch", **options)
        )


def test_a_parent_is_not_told_that_its_child_was_not_let_in(
    make_evaluator: Any, tmp_path: Path
) -> None:
    stop, calls = Stop(), Counter[str]()

    def answer(request: Any) -> Any:
        told = next((m.content for m in request.messages if m.role == "tool"), None)
        prompt = next(m.content for m in request.messages if m.role == "user")
        calls["told" if told else prompt.partition(" ")[0]] += 1
        if calls.total() == AT_ONCE:
            stop.ask()
        if prompt.startswith("child"):
            return "42"
        return f"final: {told}" if told else {"tool": "child", "arguments": {"part": prompt}}

    evaluator = make_evaluator(FAMILY, backend=Scripted(script=answer))
    rows = [{**row, "target": "final: 42"} for row in ROWS]
    first = run(evaluator, rows, tmp_path, name="parent", scorers=["exact"], stop=stop, limits=RATE)
    assert first.ended.state == "stopped" and first.ended.ran < len(rows)
    second = run(evaluator, rows, tmp_path, name="parent", scorers=["exact"], resume=True)
    assert second.is_complete and second.summary.counts.passed == len(rows)
    assert calls == {"parent": len(rows), "child": len(rows), "told": len(rows)}


def test_a_sample_is_not_judged_by_those_judges_alone_whose_turn_had_come(
    make_evaluator: Any, tmp_path: Path
) -> None:
    stop, calls = Stop(), 0

    def answer(request: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == AT_ONCE:
            stop.ask()
        return said(reason="r", correct=True, score=1) if calls > 1 else "0"

    evaluator = make_evaluator(QUIZ + TEMPLATES, backend=Scripted(script=answer))
    scorers = [{"type": "reference", "judge_epochs": 5}]
    first = run(evaluator, ROWS[:1], tmp_path, scorers=scorers, stop=stop, limits=RATE)
    assert (first.ended.state, first.ended.ran, calls) == ("stopped", 0, AT_ONCE)
    second = run(evaluator, ROWS[:1], tmp_path, scorers=scorers, resume=True)
    (sample,) = second.results()
    assert sample.scores["reference"].explanation.startswith("5 for") and calls == 6


def test_the_wait_before_a_retry_ends_with_the_session(make_evaluator: Any, tmp_path: Path) -> None:
    stop, calls = Stop(), 0

    def answer(request: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            threading.Timer(0.05, stop.ask).start()
            raise ProviderError(
                "later", kind="rate_limit", status=429, retryable=True, retry_after_s=20.0
            )
        return "0"

    evaluator = make_evaluator(QUIZ, backend=Scripted(script=answer))
    first = run(evaluator, ROWS[:1], tmp_path, scorers=["exact"], stop=stop)
    assert (first.ended.state, first.ended.ran, calls) == ("stopped", 0, 1)
    second = run(evaluator, ROWS[:1], tmp_path, scorers=["exact"], resume=True)
    assert second.is_complete and calls == 2


def test_a_retry_that_could_not_begin_in_the_batchs_time_is_not_waited_for(
    make_evaluator: Any, tmp_path: Path
) -> None:
    def answer(request: Any) -> Any:
        raise ProviderError(
            "later", kind="rate_limit", status=429, retryable=True, retry_after_s=20.0
        )

    evaluator = make_evaluator(QUIZ, backend=Scripted(script=answer))
    first = run(evaluator, ROWS[:1], tmp_path, scorers=["exact"], limits={"max_time": 10})
    assert (first.ended.state, first.ended.ran) == ("budget", 0)


def test_a_retry_after_of_years_ends_the_session_with_its_reason(
    make_evaluator: Any, tmp_path: Path
) -> None:
    def answer(request: Any) -> Any:
        raise ProviderError(
            "later", kind="rate_limit", status=429, retryable=True, retry_after_s=1e8
        )

    evaluator = make_evaluator(QUIZ, backend=Scripted(script=answer))
    first = run(evaluator, ROWS[:3], tmp_path, scorers=["exact"])
    assert (first.ended.state, first.ended.ran) == ("budget", 0)
    assert first.ended.reason is not None and "answered with a Retry-After" in first.ended.reason
    assert "a session waits at most 3,600 s; resume the batch later" in first.ended.reason
    second = run(
        make_evaluator(QUIZ, backend=Scripted(script=lambda request: "0")),
        ROWS[:3],
        tmp_path,
        resume=True,
    )
    assert second.is_complete


def test_the_progress_says_which_host_holds_its_calls() -> None:
    endpoints = (
        EndpointStatus("a", 0, 1, 4, "host:1", 26.4),
        EndpointStatus("b", 0, 1, 0, "host:1", 26.4),
        EndpointStatus("c", 1, 1),
    )
    line = line_of(Tally().snapshot(1, endpoints))
    assert (
        "a 0 of 1, 4 waiting" in line
        and line.count("held 27 s by host:1") == 1
        and line.count("held") == 1
    )


def test_the_progress_names_a_cap_on_connections_that_holds_calls_back() -> None:
    endpoints = (
        EndpointStatus("a", 200, 256, host="host:1", connections=256),
        EndpointStatus("b", 57, 256, host="host:1", connections=256),
        EndpointStatus("c", 256, 256, host="host:2", connections=256),
        EndpointStatus("d", 999, 999, host="host:3"),
    )
    line = line_of(Tally().snapshot(1512, endpoints))
    assert "only 256 connections to host:1" in line
    assert line.count("connections") == 1


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -1.0])
def test_what_nothing_can_have_cost_is_not_believed(
    make_evaluator: Any, tmp_path: Path, wrong: float
) -> None:
    class Odd(Scripted):
        async def complete(self, request: Any, *, on_text: Any = None) -> ModelResponse:
            return ModelResponse("0", "stop", usage=Usage(1, 1, 0, 0, wrong, 1))

    result = run(make_evaluator(QUIZ, backend=Odd()), ROWS[:1], tmp_path, scorers=["exact"])
    (sample,) = result.results()
    # What the prices of the profile say.
    assert (sample.verdict, sample.usage.cost_usd) == (Verdict.PASSED, 0.0)


@pytest.mark.parametrize("given", [None, "text", ModelResponse("0", "stop", usage=None)])  # type: ignore[arg-type]
def test_what_is_no_answer_may_have_been_billed(
    make_evaluator: Any, tmp_path: Path, given: Any
) -> None:
    class Odd(Scripted):
        async def complete(self, request: Any, *, on_text: Any = None) -> Any:
            return given

    result = run(make_evaluator(QUIZ, backend=Odd()), ROWS[:1], tmp_path, scorers=["exact"])
    (sample,) = result.results()
    assert sample.failure is not None and "expected a ModelResponse" in sample.failure.message
    assert sample.usage.cost_usd is None
