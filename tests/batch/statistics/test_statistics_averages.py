"""Means over strata and weighted means: by hand, and how often their intervals hold the true value."""

from __future__ import annotations

import math
import random

import pytest

from evaluator import UsageError
from evaluator.batch.statistics import (
    mean_interval,
    proportion_interval,
    stratified_interval,
    weighted_interval,
)
from evaluator.batch.statistics.intervals import student_quantile


def test_the_variance_of_a_mean_over_strata_is_the_weighted_sum_of_their_variances() -> None:
    first, second = [0.2, 0.4, 0.9], [0.5, 0.7]
    found = stratified_interval([(first, None), (second, None)], [3, 1])
    a, b = mean_interval(first), mean_interval(second)
    assert a.se and b.se and found.se
    assert found.mean == pytest.approx(0.75 * 0.5 + 0.25 * 0.6) and found.n == 5
    assert found.se == pytest.approx(math.hypot(0.75 * a.se, 0.25 * b.se))
    assert (found.low, found.high) == (0.0, 1.0)
    wide = stratified_interval([([20.0, 40.0, 90.0], None), ([50.0, 70.0], None)], [3, 1])
    df = found.se**4 / ((0.75 * a.se) ** 4 / 2 + (0.25 * b.se) ** 4 / 1)
    assert wide.high is not None and wide.high - 52.5 == pytest.approx(
        100 * found.se * student_quantile(0.975, df)
    )


def test_one_stratum_is_its_own_mean_and_equal_weights_change_nothing() -> None:
    values = [0.2, 0.4, 0.9, 0.3]
    for clusters in (None, [1, 1, 2, 3]):
        one, plain = stratified_interval([(values, clusters)], [7]), mean_interval(values, clusters)
        equal = weighted_interval(values, [2] * 4, clusters)
        assert (one.mean, one.se) == (plain.mean, plain.se) == (equal.mean, pytest.approx(equal.se))
    shares = [1.0, 0.0, 1.0, 1.0, 0.0, 1.0]
    clustered = proportion_interval(shares, [1, 1, 2, 2, 3, 3])
    weighted = weighted_interval(shares, [1] * 6, [1, 1, 2, 2, 3, 3])
    assert (weighted.low, weighted.high) == (
        pytest.approx(clustered.low),
        pytest.approx(clustered.high),
    )


def test_two_strata_equal_welchs_interval_of_statsmodels() -> None:
    """Half the difference of two means is the mean of two strata, one of them negated."""
    # Here: it takes a second to import.
    from statsmodels.stats.weightstats import CompareMeans, DescrStatsW

    first, second = [2.1, 4.4, 9.3, 3.3], [5.2, 7.9, 6.1]
    found = stratified_interval([(first, None), ([-value for value in second], None)], [1, 1])
    welch = CompareMeans(DescrStatsW(first), DescrStatsW(second))
    low, high = welch.tconfint_diff(usevar="unequal")
    assert found.se == pytest.approx(welch.std_meandiff_separatevar / 2)
    assert (found.low, found.high) == (pytest.approx(low / 2), pytest.approx(high / 2))


def test_a_weighted_mean_equals_the_weighted_least_squares_of_statsmodels() -> None:
    from statsmodels.regression.linear_model import WLS

    values, weights = [3.0, 5.0, 4.0, 8.0, 1.0], [1.0, 2.0, 0.5, 3.0, 1.5]
    clusters = [0, 0, 1, 1, 2]
    model = WLS(values, [1.0] * 5, weights=weights)
    expected = model.fit(cov_type="cluster", cov_kwds={"groups": clusters}, use_t=True)
    found = weighted_interval(values, weights, clusters)
    assert found.mean == pytest.approx(expected.params[0])
    assert found.se == pytest.approx(expected.bse[0])
    assert (found.low, found.high) == pytest.approx(tuple(expected.conf_int()[0]))


def test_a_small_stratum_of_which_all_passed_is_not_taken_as_certain() -> None:
    found = stratified_interval([([1.0, 1.0], None), ([1.0, 0.0] * 100, None)], [1, 1])
    alone = proportion_interval([1.0, 1.0])
    assert (
        found.low is not None and alone.low is not None and found.low < 0.75 - 0.5 * (1 - alone.low)
    )
    every, twenty = (
        stratified_interval([([1.0] * 5, None)] * 4, [1] * 4),
        proportion_interval([1.0] * 20),
    )
    assert (every.mean, every.se, every.high) == (1.0, 0.0, 1.0)
    assert (
        every.low is not None
        and twenty.low is not None
        and twenty.low - 0.1 < every.low <= twenty.low
    )
    assert weighted_interval([1.0] * 20, [3] * 20).low == pytest.approx(twenty.low)


@pytest.mark.parametrize(
    ("strata", "weights"),
    [
        ([([1.0], None), ([1.0, 0.0], None)], [1, 1]),
        ([([1.0, 0.0], ["a", "a"]), ([1.0, 0.0], None)], [1, 1]),
    ],
)
def test_without_two_independent_values_in_each_stratum_there_is_no_interval(
    strata: object, weights: object
) -> None:
    found = stratified_interval(strata, weights)  # type: ignore[arg-type]
    assert found.mean is not None and (found.se, found.low, found.high) == (None, None, None)
    assert weighted_interval([1.0, 0.0], [1, 0]).low is None


@pytest.mark.parametrize("weights", [[1], [1, -1], [0, 0], [math.nan, 1]])
def test_invalid_weights_are_refused(weights: list[float]) -> None:
    with pytest.raises(UsageError):
        stratified_interval([([1.0], None), ([0.0], None)], weights)
    with pytest.raises(UsageError):
        weighted_interval([1.0, 0.0], weights)


@pytest.mark.parametrize("sizes", [[8, 20], [3] * 5, [2] * 40, [4, 40, 4]])
def test_the_interval_over_strata_holds_the_true_value_as_often_as_it_says(
    sizes: list[int],
) -> None:
    drawn, times = random.Random(5), 200
    shares = [drawn.uniform(0.3, 0.98) for _ in sizes]
    true, held = sum(shares) / len(shares), 0
    for _ in range(times):
        strata = [
            ([float(drawn.random() < p) for _ in range(n)], None)
            for p, n in zip(shares, sizes, strict=True)
        ]
        found = stratified_interval(strata, [1] * len(sizes))
        assert (
            found.low is not None and found.high is not None and 0 <= found.low <= found.high <= 1
        )
        held += found.low <= true <= found.high
    assert held >= 0.92 * times


def test_the_interval_of_a_weighted_mean_holds_the_true_value_as_often_as_it_says() -> None:
    drawn, times, held = random.Random(7), 300, 0
    share = {1: 0.6, 2: 0.8, 5: 0.9}
    true = sum(weight * each for weight, each in share.items()) / sum(share)
    for _ in range(times):
        weights = [drawn.choice([1, 2, 5]) for _ in range(30)]
        found = weighted_interval(
            [float(drawn.random() < share[weight]) for weight in weights], weights
        )
        held += found.low is not None and found.high is not None and found.low <= true <= found.high
    assert held >= 0.92 * times
