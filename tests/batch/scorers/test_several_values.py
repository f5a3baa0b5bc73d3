"""A scorer may return several named values: each is a score of its own in results, summaries, thresholds, comparisons."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from evaluator import UsageError
from evaluator.batch import Score, open_batch
from evaluator.batch.compare import compare
from evaluator.batch.scorers import make_scorer, make_scorers, scorer
from tests.batch.conftest import ROWS, Calls, Run


@scorer(values=("exact", "length"), decides="exact")
def both(output: str, target: str) -> dict[str, Any]:
    if output == "8":
        raise ValueError("eight")
    return {"exact": output == target, "length": min(1.0, len(output) / 4)} | (
        {} if output != "6" else {"length": None}
    )


def test_each_value_has_its_own_n_of_n(run: Run, calls: Calls) -> None:
    calls.answers["Answer in a word: What is 1 + 1?"] = "three"
    result = run(
        scorers=[both],
        thresholds=["mean(both.length) >= 0.1", "pass_rate(both.exact) >= 0.5", "errors <= 2"],
    )
    group = result.summary.groups[0]
    exact, length = group.scorers["both.exact"], group.scorers["both.length"]
    assert (exact.n, exact.errors, exact.of, exact.passed) == (9, 1, 10, 8)
    assert (length.n, length.errors, length.of) == (8, 2, 10)
    assert (
        result.summary.counts.passed == 8
        and result.summary.counts.failed == 1
        and result.summary.counts.error == 1
    )
    assert "both.length" in str(result.summary) and "both.exact" in json.dumps(
        result.summary.to_dict()
    )
    assert [threshold.met for threshold in result.thresholds] == [True, True, True]


def test_only_the_value_that_decides_counts_for_the_verdict_and_results_keep_that(run: Run) -> None:
    result = run(ROWS[:2], scorers=[both])
    (first, _) = open_batch(result.folder).results()
    assert first.verdict.value == "passed"
    assert first.scores["both.length"] == Score(0.25, False, decides=False)
    assert first.scores["both.exact"].decides


def test_without_decides_every_value_has_to_pass(run: Run) -> None:
    @scorer(values=("a", "b"))
    def strict(output: str) -> dict[str, Any]:
        return {"a": True, "b": output == "0"}

    assert run(ROWS[:3], scorers=[strict]).summary.counts.passed == 1


def test_a_threshold_on_a_value_that_is_not_declared_is_refused_before_a_call(
    run: Run, calls: Calls
) -> None:
    with pytest.raises(UsageError, match=r"has no scorer 'both\.exat'; did you mean `both\.exact`"):
        run(scorers=[both], thresholds=["mean(both.exat) >= 0.1"])
    assert calls == []


@pytest.mark.parametrize(
    ("returned", "error"),
    [
        ({"a": 1, "b": 2}, "returned 'b', which is not one of its values a, c"),
        ({"a": 1}, None),
        (0.5, "expected a mapping of a, c"),
        (None, "expected a mapping of a, c"),
        ({"a": 3.0, "c": 1}, "the value is 3.0"),
    ],
)
def test_values_that_are_missing_or_wrong_are_errors(
    run: Run, returned: Any, error: str | None
) -> None:
    @scorer(values=["a", "c"])
    def wrong(output: str) -> Any:
        return returned

    (one,) = run(ROWS[:1], scorers=[wrong]).results()
    assert one.verdict.value == "error" and one.scores.keys() == {"wrong.a", "wrong.c"}
    assert (error or "did not return this value") in (
        one.scores["wrong.a" if error else "wrong.c"].error or ""
    )


def test_answers_that_count_as_failed_have_every_value(run: Run, calls: Calls) -> None:
    calls.otherwise = lambda prompt: ""
    (one,) = run(ROWS[:1], scorers=[both]).results()
    assert {name: score.value for name, score in one.scores.items()} == {
        "both.exact": 0.0,
        "both.length": 0.0,
    }


def test_a_file_has_such_a_scorer_and_a_new_session_scores_again(
    run: Run, tmp_path: Path, calls: Calls
) -> None:
    file = tmp_path / "checks.py"
    file.write_text(
        "from evaluator.batch.scorers import scorer\n"
        "@scorer(values=('x', 'y'))\ndef two(output):\n    return {'x': True, 'y': len(output) > 1}\n"
    )
    run(ROWS[:3], scorers=["exact"])
    again = run(ROWS[:3], scorers=[f"{file}:two"], resume=True)
    assert next(again.results()).scores.keys() == {"two.x", "two.y"} and len(calls) == 3
    assert make_scorer(f"{file}:two:name=zwei").describe()["values"] == ["x", "y"]


def test_two_batches_are_compared_by_a_value(run: Run, tmp_path: Path) -> None:
    first, second = (run(ROWS[:3], scorers=[both], output=tmp_path / name) for name in "ab")
    assert compare(first.results(), second.results(), scorer="both.length").n == 3


@pytest.mark.parametrize(
    "arguments", [{"values": "ab"}, {"values": ["a", "a"]}, {"values": ["a b"]}, {"decides": "a"}]
)
def test_invalid_declarations_are_refused(arguments: Any) -> None:
    with pytest.raises(UsageError):
        scorer(**arguments)(lambda output: {})


def test_names_do_not_collide_and_a_panel_takes_one_value_only() -> None:
    with pytest.raises(UsageError, match=r"two scorers are named 'both\.exact'"):
        make_scorers([both, "exact:name=both.exact"])
    with pytest.raises(UsageError, match="both has several values, and a judge has one vote"):
        make_scorers([{"type": "majority", "graders": [both, "exact"]}])


def test_the_scorer_of_an_object_may_have_values_too(run: Run) -> None:
    class Own:
        name, values = "own", ("a", "b")

        def describe(self) -> dict[str, Any]:
            return {"type": "own"}

        async def score(self, scored: Any) -> Any:
            await asyncio.sleep(0)
            return {"a": Score(2.0, True), "b": Score(None, None)}

    (one,) = run(ROWS[:1], scorers=[Own()]).results()
    assert one.scores["own.a"].value == 2.0 and one.verdict.value == "unscored"
