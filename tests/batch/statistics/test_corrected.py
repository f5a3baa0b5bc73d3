"""Means of labels that few results have, corrected by predictions that all have."""

from __future__ import annotations

import itertools
import math
import random
from statistics import mean, variance

import pytest
import scipy
from hypothesis import given
from hypothesis import strategies as st

from evaluator import UsageError
from evaluator.batch.statistics import (
    PartlyLabelled,
    corrected_difference,
    corrected_mean,
    mean_interval,
)
from evaluator.batch.statistics.corrected import jeffreys
from evaluator.batch.statistics.intervals import normal_quantile


def judged(
    seed: int, *, total: int = 400, labels: int = 80, sensitivity: float = 0.9, wrong: float = 0.3
) -> tuple[list[float], list[float | None]]:
    """Verdicts of a judge on answers of which 60 % are right, and labels of some, drawn at random
    within the verdicts.
    """
    rng = random.Random(seed)
    truth = [float(rng.random() < 0.6) for _ in range(total)]
    verdicts = [float(rng.random() < (sensitivity if right else wrong)) for right in truth]
    given: list[float | None] = [None] * total
    for verdict in (0.0, 1.0):
        places = [place for place in range(total) if verdicts[place] == verdict]
        for place in rng.sample(places, round(labels * len(places) / total)):
            given[place] = truth[place]
    return verdicts, given


def test_in_each_verdict_the_share_of_labels_counts_by_the_number_of_results() -> None:
    verdicts = [1.0] * 8 + [0.0] * 2
    labels = [1.0, 1.0, 1.0, 0.0, *[None] * 4, 0.0, 1.0]
    found = corrected_mean(verdicts, labels, strata=verdicts)
    assert found.mean == pytest.approx(0.8 * 0.75 + 0.2 * 0.5)
    assert (found.n, found.clusters, found.method) == (6, None, "corrected")
    within = 0.8**2 * (0.75 * 0.25 / 3) + 0.2**2 * (0.5 * 0.5 / 1)
    between = (0.8 * (0.75 - 0.7) ** 2 + 0.2 * (0.5 - 0.7) ** 2) / 9
    assert found.se == pytest.approx(math.sqrt(within + between))


def test_numbers_are_tuned_as_in_the_paper() -> None:
    rng = random.Random(7)
    predictions = [rng.random() for _ in range(300)]
    labels = [f + rng.gauss(0, 0.2) if place < 60 else None for place, f in enumerate(predictions)]
    own = [label for label in labels if label is not None]
    seen = predictions[:60]
    unseen = predictions[60:]
    joint = mean(y * f for y, f in zip(own, seen, strict=True)) - mean(own) * mean(seen)
    tuning = joint / ((1 + 60 / 240) * variance(predictions))
    rest = [y - tuning * f for y, f in zip(own, seen, strict=True)]
    found = corrected_mean(predictions, labels)
    assert found.mean == pytest.approx(mean(rest) + tuning * mean(unseen), abs=1e-12)
    spread = variance(rest) / 60 + tuning**2 * variance(unseen) / 240
    assert found.se == pytest.approx(math.sqrt(spread), abs=1e-12)


def partly_labelled(seed: int) -> tuple[list[float], list[int], list[float | None]]:
    """Predictions of 200 results, the places of the labelled ones, and the labels."""
    rng = random.Random(seed)
    predictions = [rng.random() for _ in range(200)]
    places = sorted(rng.sample(range(200), 50))
    labels: list[float | None] = [None] * 200
    for place in places:
        labels[place] = predictions[place] + rng.gauss(0, 0.3)
    return predictions, places, labels


@pytest.mark.parametrize("seed", range(3))
def test_it_equals_truescore_also_by_verdict(seed: int) -> None:
    from truescore import ppi_estimate  # here: it takes a second to import

    predictions, places, labels = partly_labelled(seed)
    own = [labels[place] for place in places]
    expected = ppi_estimate(predictions, own, places)
    found = corrected_mean(predictions, labels)
    assert found.mean == pytest.approx(expected.point, abs=1e-6)
    assert found.se == pytest.approx(expected.standard_error, abs=1e-6)

    # Verdicts of a judge: each stratum is estimated by its labels.
    verdicts, given = judged(seed)
    parts: list[tuple[float, float]] = []
    for verdict in (0.0, 1.0):
        stratum = [place for place in range(400) if verdicts[place] == verdict]
        known = [n for n, place in enumerate(stratum) if given[place] is not None]
        part = ppi_estimate([verdict] * len(stratum), [given[stratum[n]] for n in known], known)
        parts.append((len(stratum) / 400, part.point))
    corrected = corrected_mean(verdicts, given, strata=verdicts)
    assert corrected.mean == pytest.approx(sum(share * mean for share, mean in parts), abs=1e-6)


@pytest.mark.parametrize(
    ("seed", "expected", "low", "high"),
    [
        (0, 0.5411491653962051, 0.45293195331672165, 0.6293663774756885),
        (1, 0.5220449185104982, 0.42724007210355563, 0.6168497649174407),
        (2, 0.5034486410698888, 0.4065247506610076, 0.6003725314787701),
    ],
)
def test_it_equals_ppi_python_except_for_the_divisor_of_the_variance(
    seed: int, expected: float, low: float, high: float
) -> None:
    """The numbers are those of ppi-python 0.2.3, from bench/oracles.py. It divides by n."""
    predictions, _, labels = partly_labelled(seed)
    found = corrected_mean(predictions, labels)
    assert found.mean == pytest.approx(expected, abs=1e-6)
    se = (high - low) / 2 / normal_quantile(0.975)
    assert found.se is not None and se <= found.se <= se * math.sqrt(50 / 49)


def test_a_judge_that_is_often_wrong_makes_the_interval_wider_and_not_wrong() -> None:
    good = [corrected_mean(f, y, strata=f) for f, y in (judged(s) for s in range(60))]
    bad = [
        corrected_mean(f, y, strata=f)
        for f, y in (judged(s, sensitivity=0.55, wrong=0.5) for s in range(60))
    ]
    for found in (good, bad):
        covered = sum(one.low <= 0.6 <= one.high for one in found if one.low and one.high)
        assert covered >= 53
    widths = [mean((one.high or 0) - (one.low or 0) for one in found) for found in (good, bad)]
    assert widths[0] < 0.9 * widths[1]


def test_the_verdicts_alone_would_not_contain_the_truth() -> None:
    verdicts, labels = judged(1, total=2000, labels=200, sensitivity=0.97, wrong=0.35)
    naive = mean_interval(verdicts)
    corrected = corrected_mean(verdicts, labels, strata=verdicts)
    assert naive.low is not None and naive.low > 0.6
    assert corrected.low is not None and corrected.high is not None
    assert corrected.low < 0.6 < corrected.high


def test_labels_that_are_all_equal_do_not_make_it_certain() -> None:
    verdicts = [1.0] * 90 + [0.0] * 10
    labels = [1.0] * 20 + [None] * 70 + [0.0] * 5 + [None] * 5
    found = corrected_mean(verdicts, labels, strata=verdicts)
    assert found.mean == pytest.approx(0.9)
    assert found.low is not None and found.high is not None
    assert found.low < 0.84 and found.high > 0.93


def test_related_results_count_once() -> None:
    verdicts, labels = judged(3)
    alone = corrected_mean(verdicts, labels, strata=verdicts, clusters=list(range(400)))
    independent = corrected_mean(verdicts, labels, strata=verdicts)
    assert alone.se == pytest.approx(independent.se, rel=0.02)
    twice = corrected_mean(
        [*verdicts, *verdicts],
        [*labels, *labels],
        strata=[*verdicts, *verdicts],
        clusters=[*range(400), *range(400)],
    )
    assert twice.mean == pytest.approx(alone.mean)
    assert twice.se == pytest.approx(alone.se, rel=0.01)


@given(st.integers(0, 10_000), st.sampled_from([0.9, 0.95, 0.99]))
def test_the_interval_holds_the_mean_and_stays_within_0_and_1(seed: int, confidence: float) -> None:
    verdicts, labels = judged(seed, total=60, labels=20)
    found = corrected_mean(verdicts, labels, strata=verdicts, confidence=confidence)
    assert found.mean is not None and found.low is not None and found.high is not None
    assert 0 <= found.low <= found.mean <= found.high <= 1


@pytest.mark.parametrize(
    ("predictions", "labels", "options", "message"),
    [
        ([1.0, 0.0], [1.0, None], {"strata": [1, 0]}, "the stratum 0 is labelled"),
        ([1.0], [1.0, 0.0], {}, "2 labels for 1 predictions"),
        ([1.0], [math.nan], {}, "expected a finite number"),
        ([1.0], [1.0], {"strata": []}, "0 strata for 1 predictions"),
        ([1.0], [1.0], {"clusters": []}, "0 clusters for 1 values"),
        ([1.0], [1.0], {"confidence": 1}, "confidence is 1"),
    ],
)
def test_wrong_arguments_are_refused(predictions, labels, options, message) -> None:
    with pytest.raises(UsageError, match=message):
        corrected_mean(predictions, labels, **options)


def test_too_few_labels_have_no_interval() -> None:
    found = corrected_mean([1.0, 1.0, 0.0], [1.0, 0.0, 0.0], strata=[1, 1, 0])
    assert found.mean == pytest.approx(1 / 3) and found.se is None and found.low is None
    one = corrected_mean([1.0] * 4, [1.0, 0.0, None, None], clusters=["a", "a", "b", "b"])
    assert one.mean == 0.5 and one.low is None and one.clusters == 1
    assert corrected_mean([], []).mean is None


@pytest.mark.parametrize(("passed", "n"), [(0, 20), (20, 20), (5, 10), (1, 50), (37, 41)])
def test_the_limits_of_jeffreys_equal_scipys(passed: int, n: int) -> None:
    """They are quantiles of a beta distribution, except where none or all passed."""
    tails = scipy.stats.beta(passed + 0.5, n - passed + 0.5)
    low = tails.ppf(0.025) if passed else 0.0
    high = tails.ppf(0.975) if passed < n else 1.0
    assert jeffreys(passed / n, n) == (pytest.approx(low, abs=1e-9), pytest.approx(high, abs=1e-9))


def sides(seed: int, *, gain: float = 0.1) -> tuple[PartlyLabelled, PartlyLabelled]:
    """Two models on the same 300 samples, of which the second is better by `gain`, with 60 labels
    each, of other samples.
    """
    rng = random.Random(seed)
    hard = [rng.random() for _ in range(300)]
    made: list[PartlyLabelled] = []
    for level in (0.6, 0.6 + gain):
        truth = [float(one < level) for one in hard]
        verdicts = [float(rng.random() < (0.9 if right else 0.3)) for right in truth]
        labels: list[float | None] = [None] * 300
        for verdict in (0.0, 1.0):
            places = [place for place in range(300) if verdicts[place] == verdict]
            for place in rng.sample(places, min(30, len(places))):
                labels[place] = truth[place]
        made.append(PartlyLabelled(verdicts, labels, strata=verdicts, clusters=range(300)))
    return made[0], made[1]


def test_the_difference_of_two_corrected_means_is_paired_and_covers_the_truth() -> None:
    found = [corrected_difference(*sides(seed)) for seed in range(120)]
    covered = sum(one.low <= 0.1 <= one.high for one in found if one.low and one.high)
    assert covered >= 110
    centre = mean(one.mean for one in found if one.mean is not None)
    assert centre == pytest.approx(0.1, abs=0.015)
    rejected = sum(
        one.p < 0.05
        for one in (corrected_difference(*sides(seed, gain=0.0)) for seed in range(120))
        if one.p is not None
    )
    assert rejected <= 14


def test_a_difference_without_labels_of_a_verdict_is_refused_and_of_few_has_no_interval() -> None:
    verdicts = [1.0] * 5 + [0.0] * 5
    some = PartlyLabelled(
        verdicts, [1.0, *[None] * 4, 0.0, *[None] * 4], strata=verdicts, clusters=range(10)
    )
    found = corrected_difference(some, some)
    assert found.mean == 0 and found.low is None and found.n == 10
    none = PartlyLabelled(verdicts, [None] * 10, strata=verdicts, clusters=range(10))
    with pytest.raises(UsageError, match="is labelled"):
        corrected_difference(some, none)


def test_values_within_0_and_1_have_an_interval_within_0_and_1() -> None:
    found = corrected_mean([0.9, 1.0, 0.95, 1.0], [0.9, 1.0, 0.4, None])
    assert found.high == 1.0 and found.low is not None and found.low >= 0


def test_a_few_equal_labels_of_a_frequent_verdict_cover_the_truth() -> None:
    """The exact coverage with 20 labels of 784 passed results and 80 of the others."""
    verdicts = [1.0] * 784 + [0.0] * 216
    covered = 0.0
    seen = 0.0
    for passed, failed in itertools.product(range(21), range(81)):
        weight = binomial(passed, 20, 0.679 / 0.784) * binomial(failed, 80, 0.021 / 0.216)
        if weight < 1e-4:
            continue
        labels: list[float | None] = [1.0] * passed + [0.0] * (20 - passed) + [None] * 764
        labels += [1.0] * failed + [0.0] * (80 - failed) + [None] * 136
        found = corrected_mean(verdicts, labels, strata=verdicts)
        assert found.low is not None and found.high is not None
        covered += weight * (found.low <= 0.7 <= found.high)
        seen += weight
    assert seen > 0.997
    assert 0.945 < covered / seen < 0.955


def binomial(passed: int, count: int, share: float) -> float:
    return math.comb(count, passed) * share**passed * (1 - share) ** (count - passed)


def test_two_equal_labels_of_a_rare_verdict_move_the_limits_by_its_share_at_most() -> None:
    verdicts = [1.0] * 980 + [0.0] * 20
    labels = [1.0, 0.0] * 100 + [None] * 780 + [0.0] * 2 + [None] * 18
    found = corrected_mean(verdicts, labels, strata=verdicts)
    alone = corrected_mean(verdicts[:980], labels[:980], strata=verdicts[:980])
    assert found.high is not None and alone.high is not None
    assert found.high < alone.high + 0.02
