"""A scorer that crashes is an error and never a zero; cancellation passes through."""

from __future__ import annotations

import asyncio

import pytest

from evaluator.batch.records import Score, Verdict, verdict_of
from evaluator.batch.scorers import Scorer, judge, make_scorer
from evaluator.results import Usage
from tests.batch.scorers.looking import score, seen


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
def test_what_a_scorer_raises_is_an_error(raised: BaseException, expected: str) -> None:
    def crashes(output: str) -> bool:
        raise raised

    given = score(crashes, "text")
    assert (given.value, given.passed) == (None, None)
    assert given.error is not None and given.error.startswith(expected) and len(given.error) <= 2_000
    assert verdict_of(None, [given]) is Verdict.ERROR


@pytest.mark.parametrize("raised", [asyncio.CancelledError, KeyboardInterrupt])
def test_cancellation_and_ctrl_c_pass_through(raised: type[BaseException]) -> None:
    class Stops:
        name = "stops"

        def describe(self):
            return {}

        async def score(self, scored):
            raise raised

    async def judged() -> bool:
        coroutine = judge(Stops(), seen("x"))
        try:
            coroutine.send(None)
        except raised:
            return True
        return False

    assert asyncio.run(judged())


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
def test_what_is_no_score_is_an_error_and_its_usage_is_kept(given: object) -> None:
    result = score(lambda_of(given), "text")
    assert result.error and (result.value, result.passed) == (None, None)


def lambda_of(given: object):
    def returns() -> object:
        return given

    return returns


def test_an_invalid_score_keeps_what_it_cost() -> None:
    used = Usage(input_tokens=7, cost_usd=0.25, turns=1)
    assert score(lambda_of(Score(None, True, usage=used))).usage == used


def test_a_long_answer_is_cut() -> None:
    answer = score("regex:pattern=x+", "x" * 100_000).answer
    assert answer is not None and len(answer) == 500


TEXTS = ("exact", "includes", "regex", "numeric", "f1", "rouge_l")
OTHERS = (
    "choice", "json_equal", "json_subset", "json_schema", "reference", "rubric", "pairwise", "majority:repeats=3",
    "regex:pattern=x,group=0", "similarity:model=none/none,pass_at=0.5",
)  # fmt: skip


@pytest.mark.parametrize(("spec", "target"), [(s, None) for s in TEXTS + OTHERS] + [(s, []) for s in TEXTS], ids=str)
def test_without_a_target_there_is_no_judgement_and_no_call(spec: str, target: object) -> None:
    given = score(spec, "x", target)
    assert given.error is None
    assert (given.value, given.passed, given.explanation) == (None, None, "no target")


def test_a_scorer_is_whatever_has_a_name_a_description_and_a_judgement() -> None:
    assert isinstance(make_scorer("exact"), Scorer)
    assert not isinstance(len, Scorer)
