"""How often a judge is right, from labels at different rates within its verdicts."""

from __future__ import annotations

import random

import pytest

from evaluator import UsageError
from evaluator.batch.statistics import JudgeCounts, cohen_kappa_of, judge_rates, krippendorff_alpha


def everything(tp: int, fp: int, fn: int, tn: int) -> JudgeCounts:
    """Counts where every result is labelled."""
    return JudgeCounts(tp, fp, fn, tn, passed=tp + fp, failed=fn + tn)


def test_with_a_label_of_each_result_the_rates_are_those_of_the_table() -> None:
    found = judge_rates(everything(40, 10, 5, 45))
    assert found.sensitivity.mean == pytest.approx(40 / 45)
    assert found.specificity.mean == pytest.approx(45 / 55)
    kappa = cohen_kappa_of({(1, 1): 40, (1, 0): 10, (0, 1): 5, (0, 0): 45})
    assert found.kappa.value == pytest.approx(kappa.value)
    assert found.kappa.se == pytest.approx(kappa.se, rel=0.05)
    ratings = [[1] * 50 + [0] * 50, [1] * 40 + [0] * 10 + [1] * 5 + [0] * 45]
    assert found.alpha.value == pytest.approx(krippendorff_alpha(ratings).value, abs=0.01)


def test_verdicts_count_by_the_number_of_results_and_not_of_labels() -> None:
    """Ten times as many labels of failed results do not change what the judge is."""
    even = judge_rates(JudgeCounts(9, 1, 2, 8, passed=900, failed=100))
    more = judge_rates(JudgeCounts(9, 1, 20, 80, passed=900, failed=100))
    raw = judge_rates(everything(9, 1, 20, 80))
    assert even.sensitivity.mean == pytest.approx(0.9 * 0.9 / (0.9 * 0.9 + 0.1 * 0.2))
    assert more.sensitivity.mean == pytest.approx(even.sensitivity.mean)
    assert more.kappa.value == pytest.approx(even.kappa.value)
    assert raw.sensitivity.mean == pytest.approx(9 / 29)


def test_the_intervals_contain_the_truth_as_often_as_they_say() -> None:
    rng = random.Random(5)
    hits = [0, 0, 0]
    rounds = 400
    # 30 % wrong answers, sensitivity 0.9, specificity 0.7.
    kappa = (0.84 - (0.72 * 0.7 + 0.28 * 0.3)) / (1 - (0.72 * 0.7 + 0.28 * 0.3))
    for _ in range(rounds):
        truth = [rng.random() < 0.7 for _ in range(400)]
        judge = [rng.random() < (0.9 if right else 0.3) for right in truth]
        table = {(a, b): 0 for a in (True, False) for b in (True, False)}
        for verdict in (True, False):
            places = [place for place, said in enumerate(judge) if said is verdict]
            for place in rng.sample(places, 50):
                table[verdict, truth[place]] += 1
        found = judge_rates(
            JudgeCounts(
                table[True, True],
                table[True, False],
                table[False, True],
                table[False, False],
                passed=sum(judge),
                failed=400 - sum(judge),
            )
        )
        expected = (0.9, 0.7, kappa)
        for place, one in enumerate((found.sensitivity, found.specificity, found.kappa)):
            assert one.low is not None and one.high is not None
            hits[place] += one.low <= expected[place] <= one.high
    assert all(0.92 * rounds <= hit <= 0.985 * rounds for hit in hits), hits


def test_a_judge_without_an_error_is_not_certain() -> None:
    found = judge_rates(JudgeCounts(10, 0, 0, 10, passed=50, failed=50))
    assert found.sensitivity.mean == 1 and found.kappa.value == pytest.approx(1)
    assert found.sensitivity.low is not None and found.sensitivity.low < 0.97
    assert found.kappa.low is not None and found.kappa.low < 0.97
    twice = judge_rates(JudgeCounts(10, 0, 0, 10, passed=50, failed=50), design_effect=4)
    assert twice.kappa.low is not None and twice.kappa.low < found.kappa.low


@pytest.mark.parametrize(
    "counts",
    [everything(0, 0, 0, 0), JudgeCounts(5, 0, 0, 0, passed=10, failed=10)],
    ids=["no label", "no label of a verdict"],
)
def test_without_labels_of_a_verdict_nothing_is_known(counts: JudgeCounts) -> None:
    found = judge_rates(counts)
    assert found.sensitivity.mean is None and found.kappa.value is None


def test_a_judge_that_passes_everything_has_a_sensitivity_and_no_kappa_above_0() -> None:
    found = judge_rates(everything(30, 10, 0, 0))
    assert (found.sensitivity.mean, found.specificity.mean) == (1, 0)
    assert found.kappa.value == pytest.approx(0)
    assert judge_rates(everything(30, 0, 0, 0)).kappa.value is None


@pytest.mark.parametrize(
    ("counts", "effect", "message"),
    [
        (JudgeCounts(5, 0, 0, 0, passed=4, failed=0), 1, "more results are labelled"),
        (JudgeCounts(-1, 0, 0, 0, passed=4, failed=0), 1, "passed_passed"),
        (everything(1, 1, 1, 1), -1, "the design effect is -1"),
    ],
)
def test_impossible_counts_are_refused(counts: JudgeCounts, effect: float, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        judge_rates(counts, design_effect=effect)
