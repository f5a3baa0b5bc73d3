"""Thresholds are met by what is known; an incomplete batch meets none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator import Usage, UsageError
from evaluator.batch import (
    BatchSummary,
    Failure,
    MetricValue,
    SampleResult,
    Score,
    Threshold,
    ThresholdResult,
    Verdict,
)
from evaluator.batch.scorers import ScorerInput
from evaluator.batch.summary import summarise
from evaluator.batch.thresholds import (
    METRICS,
    ThresholdStatus,
    check_fit,
    check_thresholds,
    parse_threshold,
)
from tests.batch.conftest import ROWS, Run
from tests.tables import each_case

VERDICTS = {"p": Verdict.PASSED, "f": Verdict.FAILED, "e": Verdict.ERROR, "u": Verdict.UNSCORED}


def results_of(
    word: str, variant: str = "small", cost: float | None = 0.1, **fields: Any
) -> list[SampleResult]:
    found: list[SampleResult] = []
    for i, letter in enumerate(word):
        scores = {
            "p": {"f1": Score(0.9, True)},
            "f": {"f1": Score(0.1, False)},
            "u": {"f1": Score(None, None)},
        }.get(letter, {})
        found.append(
            SampleResult(
                f"hash {i}",
                f"s{i}",
                i,
                fields.get("epoch", 1),
                "quiz",
                variant,
                VERDICTS[letter],
                {},
                scores=scores,
                failure=Failure("T", "timeout", "late") if letter == "e" else None,
                duration_s=float(i),
                usage=Usage(10, 5, cost_usd=cost),
            )
        )
    return found


def whole(results: list[SampleResult], **options: Any) -> BatchSummary:
    return summarise(results, total=len(results), **options)


def one(summary: BatchSummary, text: str, **options: Any) -> ThresholdResult:
    (result,) = check_thresholds(summary, [parse_threshold(text)], **options)
    return result


@pytest.mark.parametrize(
    ("text", "threshold"),
    [
        ("accuracy >= 0.8", Threshold("accuracy", ">=", 0.8)),
        ("  accuracy>=80% ", Threshold("accuracy", ">=", 0.8)),
        ("mean( f1 ) > .5", Threshold("mean", ">", 0.5, "f1")),
        ("mean(my scorer) > 1e-3", Threshold("mean", ">", 0.001, "my scorer")),
        ("errors <= 0", Threshold("errors", "<=", 0)),
        ("cost[variant=openai/gpt-4o] < 2", Threshold("cost", "<", 2, variant="openai/gpt-4o")),
        (
            "pass@3(f1)[template=quiz, variant=a b] == 1",
            Threshold("pass@3", "==", 1, "f1", "quiz", "a b"),
        ),
        ("pass^2 != -1", Threshold("pass^2", "!=", -1)),
        ("p90_duration <= 5", Threshold("p90_duration", "<=", 5)),
    ],
)
def test_a_threshold_is_read_from_its_text(text: str, threshold: Threshold) -> None:
    assert parse_threshold(text) == threshold
    assert parse_threshold(str(threshold)) == threshold


@pytest.mark.parametrize(
    "text",
    [
        "",
        "accuracy",
        "accuracy 0.8",
        "accuracy => 0.8",
        "accuracy = 1",
        "accuracy >= x",
        "accuracy >= nan",
        ">= 1",
        "accuracy >= 0.8 and cost <= 1",
        "accuracy[small] >= 1",
        "accuracy[] >= 1",
        "accuracy[variant=] >= 1",
        "accuracy[model=x] >= 1",
        "accuracy[variant=a, variant=b] >= 1",
        "mean >= 1",
        "mean() >= 1",
        "accuracy(f1) >= 1",
        "errors(f1) <= 1",
        "accuracy >= 1e999",
        "cost <= $2",
    ],
)
def test_what_is_no_threshold_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_threshold(text)


@pytest.mark.parametrize("text", ["acuracy >= 1", "pass@0 >= 1", "p95_duration < 3"])
def test_an_unknown_metric_names_those_that_there_are(text: str) -> None:
    with pytest.raises(UsageError, match="unknown metric") as raised:
        parse_threshold(text)
    assert all(metric in str(raised.value) for metric in METRICS)


def test_an_unknown_metric_names_the_nearest_one() -> None:
    with pytest.raises(UsageError, match="did you mean `accuracy` or `accuracy_low`"):
        parse_threshold("acuracy >= 1")
    with pytest.raises(UsageError, match="did you mean `mean`"):
        parse_threshold("means(judge) >= 1")


@given(st.text(max_size=40))
def test_any_text_is_a_threshold_or_refused(text: str) -> None:
    try:
        threshold = parse_threshold(text)
    except UsageError:
        return
    assert parse_threshold(str(threshold)) == threshold


@pytest.mark.parametrize(
    ("text", "met", "value"),
    [
        ("accuracy >= 0.75", True, 0.75),
        ("accuracy > 0.75", False, 0.75),
        ("accuracy_low >= 0.5", False, 0.3006),
        ("accuracy_if_failed == 75%", True, 0.75),
        ("mean(f1) >= 0.7", True, 0.7),
        ("mean_low(f1) >= 0.7", False, 0.0635),
        ("pass_rate(f1) < 1", True, 0.75),
        ("pass_rate_low(f1) < 0.31", True, 0.3006),
        ("passed == 3", True, 3),
        ("failed <= 0", False, 1),
        ("unscored <= 0", True, 0),
        ("errors <= 0", True, 0),
        ("error_rate <= 1%", True, 0),
        ("pending == 0", True, 0),
        ("cost <= 0.5", True, 0.4),
        ("scoring_cost == 0", True, 0),
        ("total_cost < 0.3", False, 0.4),
        ("input_tokens <= 40", True, 40),
        ("output_tokens != 20", False, 20),
        ("p50_duration <= 1.5", True, 1.5),
        ("p90_duration <= 2", False, 2.7),
        ("p99_duration <= 3", True, 2.97),
    ],
)
def test_a_threshold_compares_a_number_of_the_batch(text: str, met: bool, value: float) -> None:
    result = one(summarise(results_of("pppf"), total=4), text)
    assert result.value == pytest.approx(value, abs=5e-5)
    assert (
        result.status is (ThresholdStatus.MET if met else ThresholdStatus.MISSED)
        and result.met == met
    )
    assert (result.n, result.of) == (4, 4) and bool(result.reason) != met


@pytest.mark.parametrize(
    "text", ["accuracy >= 0", "mean(f1) >= 0", "cost >= 0", "errors <= 9", "p50_duration >= 0"]
)
def test_no_threshold_is_met_while_results_are_pending(text: str) -> None:
    result = one(summarise(results_of("ppp"), total=5), text)
    assert result.status is ThresholdStatus.INCOMPLETE and "2 results are pending" in result.reason
    assert (result.n, result.of) == (3, 5)
    assert str(result).startswith("incomplete: ") and "(3 of 5)" in str(result)


@pytest.mark.parametrize(
    ("word", "total", "text", "status", "reason"),
    [
        ("ppff", 10, "accuracy >= 0.9", "missed", "at best 0.8, which is not >= 0.9"),
        ("ppff", 10, "accuracy >= 0.8", "incomplete", "6 results are pending"),
        ("ppff", 10, "accuracy <= 0.1", "missed", "at best 0.2"),
        ("ppff", 10, "accuracy_low > 0.8", "missed", "at best 0.8"),
        ("ppff", 10, "pass_rate(f1) >= 0.9", "missed", "at best 0.8"),
        ("pffe", 4, "accuracy > 0.5", "missed", "at best 0.5"),
        ("ppff", 10, "failed <= 1", "missed", "at best 2"),
        ("ppff", 10, "passed >= 9", "missed", "at best 8"),
        ("ppff", None, "accuracy >= 0.9", "incomplete", "total number of results is unknown"),
        ("ppff", None, "failed < 2", "missed", "at best 2"),
        ("ppff", 10, "cost <= 0.3", "missed", "at best 0.4"),
        ("ppff", 10, "mean(f1) >= 0.9", "incomplete", "6 results are pending"),
    ],
)
def test_a_threshold_that_no_outcome_of_the_rest_can_meet_is_missed(
    word: str, total: int | None, text: str, status: str, reason: str
) -> None:
    result = one(summarise(results_of(word), total=total), text)
    assert result.status.value == status and reason in result.reason


@given(st.text("pfeu", max_size=8), st.text("pfeu", max_size=8), st.integers(0, 20))
def test_a_threshold_that_is_missed_early_is_missed_by_every_completion(
    known: str, rest: str, tenths: int
) -> None:
    """Errors and unscored results may change; verdicts stay."""
    early = one(
        summarise(results_of(known), total=len(known) + len(rest)), f"accuracy >= {tenths / 20}"
    )
    if early.status is ThresholdStatus.MISSED:
        best = (known + rest).replace("e", "p").replace("u", "p")
        complete = one(whole(results_of(best)), f"accuracy >= {tenths / 20}")
        assert complete.status is ThresholdStatus.MISSED


def test_a_missed_group_comes_before_an_incomplete_one_which_the_reason_names() -> None:
    summary = whole([*results_of("pfff"), *results_of("ppe", "large")])
    result = one(summary, "accuracy >= 0.5")
    assert (result.status.value, result.where) == ("missed", "quiz × small")
    assert result.reason.endswith("incomplete for quiz × large")


def test_what_is_pending_may_itself_be_a_threshold() -> None:
    summary = summarise(results_of("ppp"), total=5)
    assert (
        one(summary, "pending <= 2").met
        and one(summary, "pending <= 1").status is ThresholdStatus.MISSED
    )


def test_errors_make_a_threshold_incomplete_unless_they_are_allowed() -> None:
    summary = whole(results_of("ppeu"))
    result = one(summary, "accuracy >= 0.9")
    assert (
        result.status is ThresholdStatus.INCOMPLETE
        and "1 of 4 results is an error" in result.reason
    )
    assert (result.n, result.of) == (2, 4)
    assert one(summary, "accuracy >= 0.9", allow_errors=True).met
    both = check_thresholds(
        summary, [parse_threshold("accuracy >= 0.9"), parse_threshold("errors <= 1")]
    )
    assert [result.met for result in both] == [True, True]
    assert (
        not one(summary, "errors <= 0").met
        and one(summary, "errors <= 0").status is ThresholdStatus.MISSED
    )


def test_errors_that_one_variant_is_allowed_are_not_allowed_to_another() -> None:
    summary = whole([*results_of("ppe"), *results_of("ppe", "large")])
    thresholds = [
        parse_threshold(f"accuracy[variant={name}] >= 0.5") for name in ("small", "large")
    ]
    found = check_thresholds(summary, [*thresholds, parse_threshold("errors[variant=small] <= 1")])
    assert [result.status.value for result in found] == ["met", "incomplete", "met"]


def test_a_good_variant_does_not_cover_up_for_a_bad_one() -> None:
    summary = whole([*results_of("pppp"), *results_of("pfff", "large")])
    result = one(summary, "accuracy >= 0.5")
    assert (result.met, result.where, result.value) == (False, "quiz × large", 0.25)
    assert one(summary, "accuracy <= 0.5").where == "quiz × small"
    assert one(summary, "accuracy[variant=small] >= 0.5").met
    assert one(summary, "cost <= 0.81").value == pytest.approx(0.8)
    assert one(summary, "cost[variant=large] <= 0.41").value == pytest.approx(0.4)


def test_an_amount_that_is_a_lower_bound_says_so() -> None:
    first, second, *others = results_of("ppp")
    summary = whole([replace(first, interrupted_calls=2), second, *others])
    text = "2 calls were in flight when a process ended and may be billed too"
    met = one(summary, "total_cost <= 2")
    assert met.met and met.to_dict()["interrupted_calls"] == 2
    assert str(met) == f"met: total_cost <= 2: at least 0.3 (3 of 3): {text}"
    missed = one(summary, "input_tokens < 20")
    assert str(missed) == f"missed: input_tokens < 20: at least 30 (3 of 3): 30 is not < 20: {text}"
    assert one(summary, "accuracy >= 1").interrupted_calls == 0
    unpriced = replace(first, interrupted_calls=2, usage=Usage(cost_usd=None))
    assert "cost <= 2: unknown (0 of 1)" in str(one(whole([unpriced]), "cost <= 2"))
    assert "at least" not in str(one(whole([first, second]), "cost[variant=small] <= 2"))


def test_a_cost_that_is_unknown_is_not_met() -> None:
    summary = whole([*results_of("p"), *results_of("pp", "large", cost=None)])
    result = one(summary, "cost <= 100")
    assert result.status is ThresholdStatus.INCOMPLETE and result.value is None
    assert "known for 1 of 3" in result.reason and (result.n, result.of) == (1, 3)
    assert not one(summary, "total_cost <= 100").met


@pytest.mark.parametrize(
    "text", ["accuracy >= 0", "errors <= 0", "cost <= 1", "mean(f1) >= 0", "p50_duration < 9"]
)
def test_an_empty_batch_meets_nothing(text: str) -> None:
    result = one(summarise([], total=0), text)
    assert result.status is ThresholdStatus.INCOMPLETE and result.reason == "there is no result"


def test_a_batch_of_errors_that_are_allowed_still_has_no_accuracy() -> None:
    assert (
        one(whole(results_of("ee")), "accuracy >= 0", allow_errors=True).status
        is ThresholdStatus.INCOMPLETE
    )


def test_a_scorer_that_failed_makes_its_own_threshold_incomplete() -> None:
    (result,) = results_of("p")
    broken = SampleResult(
        "h",
        "t",
        1,
        1,
        "quiz",
        "small",
        Verdict.PASSED,
        {},
        scores={"f1": Score(float("nan"), True)},
    )
    summary = whole([result, broken])
    assert one(summary, "mean(f1) >= 0.5").status is ThresholdStatus.INCOMPLETE
    assert one(summary, "accuracy >= 0.5").met


def test_reduced_epochs_may_be_a_threshold() -> None:
    summary = whole([*results_of("pf"), *results_of("pp", epoch=2)], reducers=["pass@2", "pass^2"])
    assert one(summary, "pass@2 >= 1").met and one(summary, "pass^2 >= 1").value == 0.5
    assert one(summary, "pass^2(f1) == 0.5").n == 2
    with pytest.raises(UsageError, match=r"pass@2, pass\^2"):
        one(summary, "pass@3 >= 1")


@pytest.mark.parametrize(
    "text", ["mean(rouge) >= 1", "accuracy[variant=tiny] >= 1", "cost[template=other] <= 1"]
)
def test_a_threshold_on_an_unknown_name_lists_the_known_ones(text: str) -> None:
    with pytest.raises(UsageError, match=r"f1|variant=small"):
        one(whole(results_of("p")), text)


def test_a_result_is_json() -> None:
    assert one(whole(results_of("pf")), "accuracy >= 0.9").to_dict() == {
        "threshold": "accuracy >= 0.9",
        "status": "missed",
        "value": 0.5,
        "n": 2,
        "of": 2,
        "where": "quiz × small",
        "reason": "0.5 is not >= 0.9",
        "interrupted_calls": 0,
    }


@pytest.mark.parametrize(
    "text", ["accuracy >= 0", "mean(f1) >= 0", "cost >= 0", "errors <= 9", "pending == 0"]
)
def test_no_threshold_is_met_while_the_total_is_unknown(text: str) -> None:
    result = one(summarise(results_of("ppp")), text)
    assert result.status is ThresholdStatus.INCOMPLETE
    assert result.reason == "the total number of results is unknown"


@each_case(
    "text", [metric.replace("SCORER", "f1").replace("K", "1") + " >= 0" for metric in METRICS]
)
def test_no_threshold_is_met_by_a_batch_that_is_unfinished(text: str) -> None:
    results = results_of("ppp")
    summary = whole(
        results, unfinished="the rows broke off at line 41", reducers=["pass@1", "pass^1"]
    )
    metrics = {"NAME": MetricValue(0.5, 3, 3)}
    summary = replace(
        summary, groups=tuple(replace(group, metrics=metrics) for group in summary.groups)
    )
    result = one(summary, text)
    assert (
        result.status is ThresholdStatus.INCOMPLETE
        and "the rows broke off at line 41" in result.reason
    )
    empty = one(summarise([], total=0, unfinished="killed"), text)
    assert empty.status is ThresholdStatus.INCOMPLETE and empty.reason.startswith("killed")


BATCH: dict[str, Any] = {
    "scorers": ["f1", "exact", "judge"],
    "cells": [("quiz", "small"), ("quiz", "large"), ("exam", "small")],
    "epochs": 3,
    "bounded": ["f1", "exact"],
}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("mean(foo) >= 0.5", "no scorer 'foo'; its scorers are `exact`, `f1`, `judge`"),
        ("pass_rate(exat) >= 0.5", "did you mean `exact`?"),
        ("pass@2(exacts) >= 0.5", "did you mean `exact`?"),
        ("accuracy[variant=foo] >= 0.5", "no variant 'foo'; expected one of `large`, `small`"),
        ("cost[variant=smal] <= 1", "did you mean `small`?"),
        ("errors[template=quizz] <= 1", "did you mean `quiz`?"),
        ("accuracy[template=exam, variant=large] >= 0.5", "'exam' with 'large'"),
        ("pass@4 >= 0.5", "pass@4 needs 4 epochs, and the batch has 3"),
        ("pass^9(f1) >= 0.5", "needs 9 epochs"),
        ("accuracy >= 80", r"did you mean 80%\?"),
        ("accuracy_low >= 1.5", "between 0 and 1$"),
        ("pass_rate(judge) >= 2", "between 0 and 1"),
        ("pass@2 >= 1.01", "between 0 and 1"),
        ("error_rate <= 5", r"did you mean 5%\?"),
        ("accuracy >= -0.1", "between 0 and 1"),
        ("mean(f1) >= 80", r"did you mean 80%\?"),
        ("accuracy > 1", "never met"),
        ("error_rate < 0", "never met"),
    ],
)
def test_a_threshold_that_the_batch_can_never_answer_is_refused_before_it_runs(
    text: str, says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        check_fit([parse_threshold("errors <= 1"), parse_threshold(text)], reducers=None, **BATCH)


@pytest.mark.parametrize("name", ["pass@4", "pass^9", "pass@1000000000"])
def test_epochs_cannot_be_reduced_by_more_of_them_than_the_batch_has(name: str) -> None:
    with pytest.raises(UsageError, match=r"reducers: .* needs [0-9,]+ epochs, and the batch has 3"):
        check_fit([], reducers=["mean", name], **BATCH)
    assert check_fit([], reducers=["mean", "pass@3"], **BATCH) == ("mean", "pass@3")


def test_without_a_scorer_nothing_can_pass() -> None:
    for text in ("accuracy >= 0.5", "pass@1 >= 0.5"):
        with pytest.raises(UsageError, match="has no scorer, so no result passes"):
            check_fit(
                [parse_threshold(text)], scorers=[], cells=[("quiz", "")], epochs=1, reducers=None
            )
    assert (
        check_fit(
            [parse_threshold("cost <= 1")],
            scorers=[],
            cells=[("quiz", "")],
            epochs=1,
            reducers=None,
        )
        is None
    )


@pytest.mark.parametrize(
    ("thresholds", "epochs", "reducers", "needed"),
    [
        ([], 3, None, None),
        ([], 3, ["max"], ("max",)),
        (["accuracy >= 1", "mean(judge) >= 7", "cost[variant=large] <= 2"], 3, None, None),
        (["pass@2 >= 0.5"], 3, None, ("mean", "pass@2")),
        (
            ["pass@2 >= 0.5", "pass@2(f1) >= 0.5", "pass^3 >= 0"],
            3,
            ["max", "pass@2"],
            ("max", "pass@2", "pass^3"),
        ),
        (["pass@1 >= 0.5"], 1, None, ("pass@1",)),
        (["accuracy[template=exam, variant=small] >= 80%", "mean(f1) <= 1"], 1, [], ()),
    ],
)
def test_the_reducers_that_thresholds_need_are_returned(
    thresholds: list[str], epochs: int, reducers: list[str] | None, needed: tuple[str, ...] | None
) -> None:
    parsed = [parse_threshold(threshold) for threshold in thresholds]
    batch: dict[str, Any] = {**BATCH, "epochs": epochs}
    assert check_fit(parsed, reducers=reducers, **batch) == needed


def test_a_threshold_that_fits_can_be_checked_with_the_reducers_it_needs() -> None:
    thresholds = [parse_threshold("pass@2 >= 0.5"), parse_threshold("pass^2(f1) >= 0.5")]
    needed = check_fit(
        thresholds, scorers=["f1"], cells=[("quiz", "small")], epochs=2, reducers=None
    )
    summary = whole([*results_of("pf"), *results_of("pp", epoch=2)], reducers=needed)
    assert [result.met for result in check_thresholds(summary, thresholds)] == [True, True]


class Points:
    """Somebody's own scorer, which gives points."""

    name = "points"

    def describe(self) -> dict[str, Any]:
        return {"type": "mine"}

    async def score(self, scored: ScorerInput) -> Score:
        return Score(5.0, True)


def test_the_mean_of_a_custom_scorer_may_have_any_threshold(run: Run) -> None:
    result = run(ROWS[:2], scorers=[Points(), "exact"], thresholds=["mean(points) >= 5"])
    assert result.ok
    with pytest.raises(UsageError, match=r"mean.exact.*between 0 and 1"):
        run(ROWS[:2], scorers=[Points(), "exact"], thresholds=["mean(exact) >= 5"])
