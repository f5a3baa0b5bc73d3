"""`ifeval`: the official checker decides; a row that does not fit is an error."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from evaluator import MissingExtra, Status, TaskResult
from evaluator.batch import Sample, Score
from evaluator.batch.scorers import ScorerInput, benchmark_scorers, make_scorer, run_scores

NO_COMMA = {"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}
TWO = {
    "instruction_id_list": ["punctuation:no_comma", "detectable_format:number_bullet_lists"],
    "kwargs": [{"num_bullets": None}, {"num_bullets": 2}],
}


def scores(output: str, row: dict[str, Any], prompt: str = "Write.") -> dict[str, Score]:
    async def no_judge(*_: Any, **__: Any) -> Any:
        raise AssertionError("it asks no model")

    sample = Sample("1", {"prompt": prompt}, None, row)
    scored = ScorerInput(sample, TaskResult(Status.COMPLETE, output), lambda: None, no_judge)
    return asyncio.run(run_scores(make_scorer("ifeval"), scored))


def values(output: str, row: dict[str, Any]) -> list[float | None]:
    found = scores(output, row)
    assert all(score.error is None for score in found.values())
    return [found[f"ifeval.{name}"].value for name in benchmark_scorers.IfevalScorer.values]


def test_without_the_checker_the_scorer_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark_scorers, "find_spec", lambda _: None)
    with pytest.raises(MissingExtra, match=r"evaluator\[ifeval\]"):
        make_scorer("ifeval")


class TestWithTheChecker:
    @pytest.fixture(autouse=True)
    def checker(self) -> None:
        pytest.importorskip(
            "lm_eval.tasks.ifeval.utils", reason="the extra ifeval is not installed"
        )

    @pytest.mark.parametrize(
        ("output", "row", "expected"),
        [
            ("No commas here", NO_COMMA, [1, 1, 1, 1]),
            ("One, two", NO_COMMA, [0, 0, 0, 0]),
            ("Sure, here it is:\nNo commas here", NO_COMMA, [0, 1, 0, 1]),
            ("* a\n* b", TWO, [1, 1, 1, 1]),
            ("* a\n* b, c", TWO, [0, 1, 0.5, 1]),
            ("", NO_COMMA, [0, 0, 0, 0]),
        ],
    )
    def test_each_level_has_its_value(
        self, output: str, row: dict[str, Any], expected: list[float]
    ) -> None:
        assert values(output, row) == expected

    def test_what_is_not_followed_is_named(self) -> None:
        score = scores("* a\n* b, c", TWO)["ifeval.prompt_strict"]
        assert (score.passed, score.explanation) == (False, "not followed: punctuation:no_comma")
        assert score.metadata == {"followed": 1, "instructions": 2}

    @pytest.mark.parametrize(
        ("row", "words"),
        [
            ({}, "needs the lists instruction_id_list and kwargs"),
            ({"instruction_id_list": ["punctuation:no_comma"], "kwargs": []}, "got 0 for 1"),
            (
                {"instruction_id_list": ["no:such"], "kwargs": [{}]},
                "'no:such' is not an instruction of IFEval",
            ),
            (
                {"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{"x": 1}]},
                "kwargs do not fit",
            ),
        ],
    )
    def test_a_row_that_does_not_fit_is_an_error(self, row: dict[str, Any], words: str) -> None:
        found = scores("text", row)
        assert len(found) == 4 and all(words in str(score.error) for score in found.values())
