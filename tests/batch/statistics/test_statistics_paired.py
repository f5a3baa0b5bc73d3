"""Paired differences against printed tables, SciPy, statsmodels, and invariants."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from evaluator import UsageError
from evaluator.batch.statistics import (
    bootstrap_difference,
    mcnemar_difference,
    mcnemar_p,
    mean_difference,
    pairs_needed,
    power_of,
    smallest_difference,
)

# Student, Biometrika 6 (1908): extra hours of sleep by two drugs, for the same ten people.
SLEEP_A = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
SLEEP_B = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]
SLEEP = [b - a for a, b in zip(SLEEP_A, SLEEP_B, strict=True)]
counts = st.integers(0, 60)


def test_the_paired_t_equals_the_printed_one_for_students_sleep_data() -> None:
    """R's manual, `t.test` of `sleep`, paired: t = 4.0621, p = 0.002833, interval 0.7001142 to 2.4598858."""
    found = mean_difference(SLEEP)
    assert found.mean == pytest.approx(1.58) and found.se is not None
    assert found.mean / found.se == pytest.approx(4.0621, abs=5e-5)
    assert found.p == pytest.approx(0.002833, abs=5e-7)
    assert (found.low, found.high) == (
        pytest.approx(0.7001142, abs=5e-8),
        pytest.approx(2.4598858, abs=5e-8),
    )


@pytest.mark.parametrize(
    ("cells", "low", "high"),
    [
        ((36, 12, 2, 0), 0.0569, 0.3404),
        ((20, 12, 2, 16), 0.0562, 0.3292),
        ((18, 12, 2, 18), 0.0562, 0.3290),
        ((36, 14, 0, 0), 0.1528, 0.4167),
        ((35, 14, 0, 1), 0.1461, 0.4175),
        ((18, 14, 0, 18), 0.1441, 0.3963),
        ((2, 97, 1, 0), 0.8721, 0.9854),
        ((0, 30, 0, 0), 0.8395, 1.0),
        ((54, 0, 0, 0), -0.0664, 0.0664),
        ((30, 0, 0, 24), -0.0358, 0.0358),
    ],
)
def test_newcombes_interval_equals_printed_examples(
    cells: tuple[int, int, int, int], low: float, high: float
) -> None:
    """Newcombe, Statistics in Medicine 17 (1998) 2635, table III, method 10; his f − g is the other way round."""
    both, first_only, second_only, neither = cells
    found = mcnemar_difference(both, second_only, first_only, neither)
    assert (found.low, found.high) == (pytest.approx(low, abs=5e-5), pytest.approx(high, abs=5e-5))


@given(counts, counts, counts, counts)
def test_mcnemars_p_equals_statsmodels_and_is_symmetric(
    both: int, a: int, b: int, neither: int
) -> None:
    from statsmodels.stats.contingency_tables import mcnemar

    found, swapped = (
        mcnemar_difference(both, a, b, neither),
        mcnemar_difference(both, b, a, neither),
    )
    assert found.p == swapped.p and found.se == swapped.se
    if found.n == 0:
        assert found.mean is None and found.low is None and found.p is None
        return
    if a + b:
        assert found.p == pytest.approx(mcnemar([[both, a], [b, neither]], exact=True).pvalue)
    else:
        assert found.p == 1
    assert found.mean is not None and found.low is not None and found.high is not None
    assert swapped.mean == -found.mean
    assert (swapped.low, swapped.high) == (pytest.approx(-found.high), pytest.approx(-found.low))
    assert -1 <= found.low <= found.mean <= found.high <= 1


def test_the_error_of_a_paired_proportion_equals_that_of_its_differences() -> None:
    found = mcnemar_difference(40, 3, 9, 8)
    assert found.se == pytest.approx(mean_difference([0] * 48 + [-1] * 3 + [1] * 9).se)


def test_agrestis_approval_ratings_flip_by_more_than_chance() -> None:
    """Agresti, Categorical Data Analysis (2002), table 10.1: 150 and 86 of 1,600 flipped; chi-squared 17.36."""
    from scipy import stats

    assert mcnemar_p(150, 86) == pytest.approx(stats.binomtest(86, 236).pvalue)
    assert mcnemar_difference(794, 150, 86, 570).mean == pytest.approx(-0.04)


def test_clustered_pairs_use_their_clusters() -> None:
    found = mean_difference([1, 1, 1, 0, 0, 0], ["a"] * 3 + ["b"] * 3)
    assert (found.clusters, found.method) == (2, "paired t, clustered")
    assert found.p is not None and found.p > mean_difference([1, 1, 1, 0, 0, 0]).p  # type: ignore[operator]


_random = random.Random(3)
DIFFERENCES = [_random.expovariate(5) - 0.12 for _ in range(80)]


def test_the_bootstraps_interval_equals_scipy_except_for_the_draws() -> None:
    import numpy as np
    from scipy import stats

    found = bootstrap_difference(DIFFERENCES, seed=1, resamples=20_000)
    scipys = stats.bootstrap(
        (DIFFERENCES,), np.mean, n_resamples=20_000, method="BCa", rng=np.random.default_rng(5)
    ).confidence_interval
    assert (found.low, found.high) == (
        pytest.approx(scipys.low, abs=2e-3),
        pytest.approx(scipys.high, abs=2e-3),
    )
    percentile = stats.bootstrap(
        (DIFFERENCES,),
        np.mean,
        n_resamples=20_000,
        method="percentile",
        rng=np.random.default_rng(5),
    ).confidence_interval
    assert found.high is not None and found.high > percentile.high + 2e-3
    assert found.p == pytest.approx(stats.ttest_1samp(DIFFERENCES, 0).pvalue, abs=0.02)


def test_the_bootstrap_is_the_same_for_the_same_seed() -> None:
    assert bootstrap_difference(DIFFERENCES, 4) == bootstrap_difference(DIFFERENCES, 4)
    assert bootstrap_difference(DIFFERENCES, 4) != bootstrap_difference(DIFFERENCES, 5)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(-1, 1), min_size=2, max_size=20))
@example([0.0, 1.6542189165762438e-119])
def test_a_bootstrap_stays_within_its_values(values: list[float]) -> None:
    found = bootstrap_difference(values, 0, resamples=200)
    assert found.low is not None and found.high is not None and found.mean is not None
    assert found.low <= found.high
    if found.se:
        assert min(values) - 1e-12 <= found.low and found.high <= max(values) + 1e-12
        assert found.p is not None and 0 < found.p <= 1


@pytest.mark.parametrize(
    ("values", "mean", "p"),
    [([], None, None), ([0.5], 0.5, None), ([0.0] * 5, 0, 1), ([0.2] * 5, 0.2, None)],
)
def test_the_edges_of_a_difference(
    values: list[float], mean: float | None, p: float | None
) -> None:
    for found in (mean_difference(values), bootstrap_difference(values, 0)):
        assert (found.mean, found.p) == (pytest.approx(mean), p)


def test_values_that_are_not_finite_or_too_few_are_refused() -> None:
    with pytest.raises(UsageError):
        mean_difference([0.1, math.nan])
    with pytest.raises(UsageError):
        bootstrap_difference([0.1, math.inf], 0)
    with pytest.raises(UsageError, match="at least 100"):
        bootstrap_difference([0.1, 0.2], 0, resamples=99)
    for call in (lambda: mcnemar_p(-1, 2), lambda: mcnemar_difference(1, 2, 3, -1)):
        with pytest.raises(UsageError):
            call()


def test_the_pairs_needed_are_those_of_the_formula() -> None:
    """(1.95996 + 0.84162)² · (1/9) / 0.03² = 968.97: Miller's formula for ω² = 1/9 and a difference of three points."""
    assert pairs_needed(math.sqrt(1 / 9), 0.03) == 969
    assert pairs_needed(math.sqrt(1 / 9), -0.03) == 969
    assert pairs_needed(0.0, 0.1) == 2


@pytest.mark.parametrize(("spread", "difference"), [(0.5, 0.1), (0.33, -0.02), (1.2, 0.5)])
def test_power_and_pairs_needed_equal_statsmodels(spread: float, difference: float) -> None:
    from statsmodels.stats.power import NormalIndPower

    one_sample = NormalIndPower(ddof=0)
    effect = abs(difference) / spread
    needed = pairs_needed(spread, difference, 0.9)
    assert power_of(spread, difference, needed) == pytest.approx(
        one_sample.power(effect, needed, alpha=0.05, ratio=0), abs=1e-9
    )
    exact = one_sample.solve_power(effect, alpha=0.05, power=0.9, ratio=0)
    assert needed == math.ceil(exact - 1e-6)


@given(st.floats(0.01, 1), st.floats(0.005, 0.5), st.floats(0.5, 0.99))
def test_pairs_needed_and_smallest_difference_agree(
    spread: float, difference: float, power: float
) -> None:
    needed = pairs_needed(spread, difference, power)
    assert smallest_difference(spread, needed, power) <= difference * (1 + 1e-9)
    if needed > 2:
        assert smallest_difference(spread, needed - 1, power) > difference * (1 - 1e-9)


def test_the_pairs_needed_have_the_requested_power() -> None:
    import numpy as np

    n, draw = pairs_needed(0.5, 0.1), np.random.default_rng(11)
    seen = sum(
        (mean_difference(draw.normal(0.1, 0.5, n).tolist()).p or 0) < 0.05 for _ in range(400)
    )
    assert 0.73 < seen / 400 < 0.87


@pytest.mark.parametrize(
    "call",
    [
        lambda: pairs_needed(0.1, 0),
        lambda: pairs_needed(0.1, math.nan),
        lambda: pairs_needed(-1, 0.1),
        lambda: pairs_needed(0.1, 0.1, power=1),
        lambda: pairs_needed(0.1, 0.1, power=0.4),
        lambda: smallest_difference(0.1, 0),
    ],
)
def test_an_impossible_size_is_refused(call: object) -> None:
    with pytest.raises(UsageError):
        call()  # type: ignore[operator]


@pytest.mark.parametrize(
    ("differences", "clusters", "low", "high", "p"),
    [
        # 1 - 0.025 ** (1 / 200), as scipy.stats.binomtest(0, 200).proportion_ci() has it
        ([0.0] * 200, None, -0.018275391, 0.018275391, 1.0),
        ([0.0] * 30, [n % 3 for n in range(30)], -0.707598, 0.707598, 1.0),
        ([1.0] * 10, None, 1 - 2 * 0.308497, 1.0, None),
        ([0.1 + 0.2 - 0.3] * 10, None, -0.308497, 0.308497, None),
        ([2.0, 2.0], None, None, None, None),
    ],
)
def test_no_observed_spread_does_not_mean_no_spread(
    differences: list[float],
    clusters: list[int] | None,
    low: float | None,
    high: float | None,
    p: float | None,
) -> None:
    found = mean_difference(differences, clusters)
    assert found.p == p
    assert (found.low, found.high) == (pytest.approx(low, abs=1e-6), pytest.approx(high, abs=1e-6))
    if clusters is None:
        drawn = bootstrap_difference(differences, seed=1)
        assert (drawn.low, drawn.high, drawn.p, drawn.method) == (
            found.low,
            found.high,
            found.p,
            found.method,
        )


def test_the_bound_for_unobserved_differences_equals_scipy() -> None:
    from scipy import stats

    for units in (2, 7, 200):
        bound = stats.binomtest(0, units).proportion_ci().high
        assert mean_difference([0.0] * units).high == pytest.approx(bound)
