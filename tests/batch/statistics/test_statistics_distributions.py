"""Tails and quantiles equal those of SciPy."""

from __future__ import annotations

import math
from itertools import product

import pytest

from evaluator.batch.statistics.intervals import (
    binomial_below,
    incomplete_beta,
    normal_below,
    normal_quantile,
    student_quantile,
    student_two_sided,
)
from tests.tables import each_case

DEGREES = [1, 2, 3, 5, 9, 29.5, 100, 1_000, 99_999]


@each_case(("t", "df"), product([0.0, 1e-6, 0.3, 1.0, 1.96, 4.0621, 12.0], DEGREES))
def test_the_tails_of_students_t_equal_scipy(t: float, df: float) -> None:
    from scipy import stats

    assert student_two_sided(t, df) == pytest.approx(2 * stats.t.sf(t, df), rel=1e-8, abs=1e-300)
    assert student_two_sided(-t, df) == student_two_sided(t, df)


@each_case(("probability", "df"), product([0.005, 0.025, 0.4, 0.5, 0.75, 0.975, 0.9995], DEGREES))
def test_the_quantiles_of_students_t_equal_scipy(probability: float, df: float) -> None:
    from scipy import stats

    assert student_quantile(probability, df) == pytest.approx(
        stats.t.ppf(probability, df), rel=1e-8, abs=1e-9
    )


@pytest.mark.parametrize(
    ("df", "expected"), [(1, 12.706), (2, 4.303), (5, 2.571), (10, 2.228), (30, 2.042)]
)
def test_the_quantiles_equal_the_printed_table(df: int, expected: float) -> None:
    """NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2, column 0.975."""
    assert student_quantile(0.975, df) == pytest.approx(expected, abs=5e-4)


@pytest.mark.parametrize("value", [-30.0, -8.0, -1.96, 0.0, 0.5, 3.0, 9.0])
def test_the_tails_of_the_normal_distribution_equal_scipy(value: float) -> None:
    from scipy import stats

    assert normal_below(value) == pytest.approx(stats.norm.cdf(value), rel=1e-12)


@pytest.mark.parametrize("probability", [1e-12, 0.025, 0.5, 0.8, 0.975])
def test_the_normal_quantile_equals_scipy(probability: float) -> None:
    from scipy import stats

    assert normal_quantile(probability) == pytest.approx(
        stats.norm.ppf(probability), rel=1e-12, abs=1e-15
    )


@pytest.mark.parametrize(
    ("successes", "trials", "chance"),
    [
        (0, 1, 0.5),
        (0, 10, 0.3),
        (3, 10, 0.5),
        (10, 10, 0.5),
        (480, 1_000, 0.5),
        (49_700, 100_000, 0.5),
        (-1, 5, 0.5),
    ],
)
def test_the_binomial_tail_equals_scipy(successes: int, trials: int, chance: float) -> None:
    from scipy import stats

    assert binomial_below(successes, trials, chance) == pytest.approx(
        stats.binom.cdf(successes, trials, chance), rel=1e-8
    )


@each_case(
    ("x", "a", "b"),
    product([0.0, 1e-9, 0.2, 0.5, 0.93, 1.0], [0.5, 1, 2.5, 40, 5_000], [0.5, 1, 7, 300]),
)
def test_the_incomplete_beta_function_equals_scipy(x: float, a: float, b: float) -> None:
    from scipy import special

    assert incomplete_beta(x, a, b) == pytest.approx(special.betainc(a, b, x), rel=1e-8, abs=1e-14)


def test_beyond_its_ends_the_incomplete_beta_function_is_0_and_1() -> None:
    assert incomplete_beta(-0.1, 2, 3) == 0 and incomplete_beta(1.1, 2, 3) == 1
    assert math.isclose(incomplete_beta(0.5, 3, 3), 0.5)
