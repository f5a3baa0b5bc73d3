"""What a judge favours, where the data show it: length, its own family, the first place."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from evaluator.batch import SampleResult, Score
from evaluator.batch.calibration import (
    JudgedResults,
    family_bias,
    family_of,
    length_bias,
    position_bias,
)
from tests.batch.labelled import label_of, result_of


def _judged(
    favours: Callable[[SampleResult], bool], *, labels: int = 300, model: str = "openai/gpt-4o"
) -> JudgedResults:
    """500 answers, half of them right; a judge that passes right ones and those that it favours."""
    rng = random.Random(5)
    judged = JudgedResults("judge", "judge")
    labelled = set(rng.sample(range(500), labels))
    for place in range(500):
        truth = "right" if rng.random() < 0.5 else "wrong"
        result = replace(
            result_of(place, truth + " and so on" * rng.randrange(2), True), model=model
        )
        passed = truth == "right" or (favours(result) and rng.random() < 0.4)
        score = Score(float(passed), passed, metadata={"model": "gpt-4o-mini"})
        result = replace(result, scores={"judge": score})
        label = replace(label_of(result), verdict=label_of(result_of(place, truth, True)).verdict)
        given = {"ada": label} if place in labelled else {}
        judged.add(result, given, cluster=f"sample {place}", group="")
    return judged


def test_a_judge_that_favours_long_answers_is_found() -> None:
    fond = length_bias(_judged(lambda result: len(result.content) > 10))
    assert fond is not None and fond.low is not None and fond.high is not None
    assert fond.difference == pytest.approx(0.2, abs=0.06) and fond.low > 0.1
    assert abs(fond.b_bias) < 0.02 and fond.a_labels + fond.b_labels == 300
    fair = length_bias(_judged(lambda result: True))
    assert fair is not None and fair.low is not None and fair.high is not None
    assert fair.low < 0 < fair.high and fair.a_bias == pytest.approx(0.2, abs=0.06)


def test_a_judge_that_favours_its_own_family_is_found() -> None:
    own = _judged(lambda result: True)
    other = _judged(lambda result: False, model="anthropic/claude-haiku-4-5")
    found = family_bias([own, other])
    assert found is not None and found.low is not None and found.low > 0.1
    assert found.a == "of the judge's family (gpt)"
    assert family_bias([own]) is None


@pytest.mark.parametrize(
    ("model", "family"),
    [
        ("openai/gpt-4o-mini", "gpt"),
        ("o3-mini", "gpt"),
        ("bedrock/anthropic.claude-3", "claude"),
        ("Qwen/QwQ-32B", "qwen"),
        ("4o", "4o"),
    ],
)
def test_families(model: str, family: str) -> None:
    assert family_of(model) == family


def test_too_few_labels_show_nothing() -> None:
    assert length_bias(_judged(lambda result: True, labels=3)) is None
    assert length_bias(JudgedResults("judge", "judge")) is None


def test_a_judge_that_prefers_the_first_place_is_found() -> None:
    judged = JudgedResults("judge", "judge")
    for place in range(60):
        verdicts = [["win", "loss"], ["win", "win"], ["loss", "win"]][0 if place % 3 else 1]
        flipped = verdicts[0] != verdicts[1]
        score = Score(
            0.5 if flipped else 1.0, None if flipped else True, metadata={"verdicts": verdicts}
        )
        result = replace(result_of(place, "x", True), scores={"judge": score})
        judged.add(result, {}, cluster="", group="")
    found = position_bias(judged)
    assert found is not None and found.low is not None
    assert (found.a_bias, found.b_bias) == (pytest.approx(2 / 3), 0) and found.low > 0.5
    assert position_bias(JudgedResults("judge", "judge")) is None
