"""A scorer that fails is an error, never a zero; changes that it makes to its input are invisible to others."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy
import pytest

from evaluator import Usage
from evaluator.batch import Score, Verdict
from evaluator.batch.records import verdict_of
from evaluator.batch.scorers import SCORERS, Scorer, ScorerInput, make_scorer, run_scorer, scorer
from evaluator.batch.scorers.builtin_scorer import TargetScorer
from evaluator.batch.scorers.contract import copied
from tests.batch.scorers.scorer_inputs import score, seen, spec_of


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (ValueError("too bad"), "ValueError: too bad"),
        (RecursionError(), "RecursionError"),
        (SystemExit(3), "SystemExit: 3"),
        (TimeoutError("late"), "TimeoutError: late"),
        (Unspeakable(), "Unspeakable"),
        (ValueError("x" * 10_000), "ValueError: xxx"),
    ],
)
def test_an_exception_of_a_scorer_is_an_error(raised: BaseException, expected: str) -> None:
    def crashes(output: str) -> bool:
        raise raised

    given = score(crashes, "text")
    assert (given.value, given.passed) == (None, None)
    assert (
        given.error is not None and given.error.startswith(expected) and len(given.error) <= 2_000
    )
    assert verdict_of(None, [given]) is Verdict.ERROR


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        (lambda: pytest.fail("not good enough"), "Failed: not good enough"),
        (lambda: pytest.skip("no time"), "Skipped: no time"),
        (lambda: pytest.exit("enough"), "Exit: enough"),
        (lambda: sys.exit("bye"), "SystemExit: bye"),
    ],
)
def test_an_exception_that_ends_a_test_or_process_is_an_error_of_the_sample(
    ends: Any, expected: str
) -> None:
    def checks(output: str) -> None:
        ends()

    given = score(checks, "text")
    assert given.error == expected and (given.value, given.passed) == (None, None)


def test_ctrl_c_passes_through() -> None:
    def interrupts(output: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(run_scorer(make_scorer(interrupts), seen("x")))


@pytest.mark.parametrize("spec", ["waits", {"type": "reference", "judge_epochs": 2}])
def test_waiting_for_something_cancelled_is_an_error(spec: Any) -> None:
    async def waits(*_: Any, **__: Any) -> Any:
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    given = score(
        scorer(name="waits")(lambda: waits()) if spec == "waits" else spec,
        "text",
        "text",
        evaluate=waits,
    )
    assert "CancelledError: something that the scorer waited for was cancelled" in (
        given.error or ""
    )


def test_cancelling_the_task_that_judges_passes_through() -> None:
    async def run() -> None:
        begun = asyncio.Event()

        async def waits(output: str) -> None:
            begun.set()
            await asyncio.get_running_loop().create_future()

        judging = asyncio.ensure_future(run_scorer(make_scorer(waits), seen("x")))
        await begun.wait()
        judging.cancel()
        await asyncio.gather(judging, return_exceptions=True)
        assert judging.cancelled()

    asyncio.run(run())


@pytest.mark.parametrize(
    "given",
    [
        Score(float("nan"), False),
        Score(float("inf"), True),
        Score(True, True),
        Score("1", True),  # type: ignore[arg-type]
        Score(None, True),
        Score(1.0, 1),  # type: ignore[arg-type]
        Score(1.0, True, answer=5),  # type: ignore[arg-type]
        Score(1.0, True, explanation=None),  # type: ignore[arg-type]
        Score(1.0, True, explanation=b"why"),  # type: ignore[arg-type]
        Score(None, None, error=5),  # type: ignore[arg-type]
        Score(None, None, error=""),
        Score(0.0, False, error="it broke"),
        Score(1.0, True, metadata=["a"]),  # type: ignore[arg-type]
        Score(1.0, True, metadata="abc"),  # type: ignore[arg-type]
        Score(1.0, True, metadata=[]),  # type: ignore[arg-type]
        Score(1.0, True, metadata=5),  # type: ignore[arg-type]
        Score(1.0, True, metadata=None),  # type: ignore[arg-type]
        Score(1.0, True, usage=None),  # type: ignore[arg-type]
        Score(1.0, True, usage={"turns": 1}),  # type: ignore[arg-type]
        Score(1.0, numpy.int64(1)),  # type: ignore[arg-type]
        Score(numpy.bool_(True), True),  # type: ignore[arg-type]
        Score(numpy.array([0.5, 0.5]), True),  # type: ignore[arg-type]
        Score(numpy.float32("nan"), True),  # type: ignore[arg-type]
        numpy.array([1.0, 0.0]),
        Decimal("sNaN"),
        Score(1.0, True, metadata={"x": {1, 2}}),
        Score(1.0, True, metadata={"x": float("nan")}),
        None,
        "yes",
        1.5,
        -0.1,
        float("nan"),
    ],
    ids=repr,
)
def test_an_invalid_score_is_an_error_and_its_usage_is_kept(given: object) -> None:
    result = score(lambda_of(given), "text")
    assert result.error and (result.value, result.passed) == (None, None)
    assert result.metadata == {} and Score.from_dict(result.to_dict()) == result


def lambda_of(given: object):
    def returns() -> object:
        return given

    return returns


@pytest.mark.parametrize(
    ("given", "value", "passed"),
    [
        (numpy.bool_(True), 1.0, True),
        (numpy.bool_(False), 0.0, False),
        (numpy.float32(0.75), 0.75, True),
        (numpy.float64(0.25), 0.25, False),
        (numpy.int64(1), 1.0, True),
        (numpy.array(0.75), 0.75, True),
        (Decimal("0.75"), 0.75, True),
        (Fraction(1, 4), 0.25, False),
        (Score(numpy.float32(0.5), numpy.bool_(False)), 0.5, False),
        (Score(Decimal("0.1"), True), 0.1, True),
        (Score(3, True), 3, True),
    ],
    ids=repr,
)
def test_numbers_and_booleans_of_other_libraries_are_converted(
    given: Any, value: float, passed: bool
) -> None:
    result = score(lambda_of(given), "text")
    assert (result.error, result.value, result.passed) == (None, value, passed)
    assert type(result.value) is type(value) and type(result.passed) is bool


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (numpy.array([True, False]), "returned numpy.ndarray, expected a bool"),
        (None, "returned NoneType, expected a bool, a number or a Score; is a return missing?"),
        (Score(1.0, numpy.int64(1)), "passed='1' (numpy.int64), expected True, False or None"),  # type: ignore[arg-type]
        (Score(1.0, True, metadata=["a"]), "metadata=\"['a']\" (list), expected a mapping"),  # type: ignore[arg-type]
        (Score(0.0, False, error="it broke"), "a value with the error 'it broke'"),
    ],
)
def test_a_refused_value_is_named_with_its_type(given: object, expected: str) -> None:
    assert expected in (score(lambda_of(given), "text").error or "")


class Spoils:
    """A scorer that changes all that it is given."""

    name = "spoils"

    def describe(self) -> dict[str, Any]:
        return {}

    async def score(self, scored: ScorerInput) -> Score:
        spoil(
            scored.sample.inputs,
            scored.sample.target,
            scored.sample.metadata,
            scored.outcome.parsed_content,
            scored.outcome.notes,
        )
        return Score(1.0, True)


def spoil(*values: Any) -> None:
    for value in values:
        value["list"].append("spoilt")
        value["list"][0]["deep"] = "spoilt"
        value["spoilt"] = True
        del value["gone"]


def spoils_as_a_function(inputs: Any, target: Any, metadata: Any, parsed: Any, result: Any) -> bool:
    spoil(inputs, target, metadata, parsed, result.parsed_content, result.notes)
    return True


@pytest.mark.parametrize("spec", [Spoils(), spoils_as_a_function], ids=["scorer", "function"])
@pytest.mark.parametrize("alone", [True, False], ids=["alone", "in a majority"])
def test_a_scorer_cannot_change_its_input_for_others(spec: Any, alone: bool) -> None:
    def value() -> dict[str, Any]:
        return {"list": [{"deep": 1}, [2]], "gone": None}

    given = seen("text", value(), parsed=value(), inputs=value(), metadata=value())
    given = replace(given, outcome=replace(given.outcome, notes=value()))
    scorer = make_scorer(spec if alone else {"type": "majority", "graders": [spec, "json_equal"]})
    assert asyncio.run(run_scorer(scorer, given)).passed is True
    sample, outcome = given.sample, given.outcome
    for left in (
        sample.inputs,
        sample.target,
        sample.metadata,
        outcome.parsed_content,
        outcome.notes,
    ):
        assert left == value()


def test_a_value_of_any_depth_is_copied() -> None:
    deep: list[Any] = []
    for _ in range(50_000):
        deep = [deep]
    copy = copied(deep)
    copy[0].append(1)
    assert len(deep[0]) == 1


def test_an_invalid_score_keeps_its_cost() -> None:
    used = Usage(input_tokens=7, cost_usd=0.25, turns=1)
    assert score(lambda_of(Score(None, True, usage=used))).usage == used


def test_a_long_answer_is_cut() -> None:
    answer = score("regex:pattern=x+", "x" * 100_000).answer
    assert answer is not None and len(answer) == 500


WITHOUT_TARGET = {"confidence", "ifeval", "perplexity"}
"""Scorers that compare with something else, or that measure."""
WITH_TARGETS = {
    "regex",
    "numeric",
    "drop",
    *(k for k, scorer in SCORERS.items() if issubclass(scorer, TargetScorer)),
}


@pytest.mark.parametrize(
    ("kind", "target"),
    [(kind, None) for kind in SCORERS if kind not in WITHOUT_TARGET]
    + [(kind, []) for kind in SCORERS if kind in WITH_TARGETS]
    + [("regex:pattern=x,group=0", None)],
    ids=str,
)
def test_without_a_target_there_is_no_score_and_no_call(kind: str, target: object) -> None:
    given = score(spec_of(kind) if kind in SCORERS else kind, "x", target)
    needed = "return NO_TARGET for a row without a target, or list a scorer that needs none in WITHOUT_TARGET here"
    assert given.error is None, needed
    assert (given.value, given.passed, given.explanation) == (None, None, "no target"), needed


def test_any_object_with_name_describe_and_score_is_a_scorer() -> None:
    assert isinstance(make_scorer("exact"), Scorer)
    assert not isinstance(len, Scorer)
