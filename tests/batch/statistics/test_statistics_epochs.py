"""Epochs are reduced without bias, and the spread within samples is separated from that between them."""

from __future__ import annotations

import math
from itertools import combinations
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator import UsageError
from evaluator.batch.statistics import pass_at_k, pass_hat_k, reducer, variance


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("mean", [0.0, 1.0, 1.0, 1.0], 0.75),
        ("median", [0.0, 0.2, 0.9], 0.2),
        ("median", [0.0, 0.2, 0.4, 0.9], 0.3),
        ("mode", [0.5, 1.0, 0.5], 0.5),
        ("mode", [1.0, 0.0, 1.0, 0.0], 0.0),
        ("max", [0.1, 0.7], 0.7),
        ("min", [0.1, 0.7], 0.1),
        ("pass@1", [0, 1, 1, 0], 0.5),
        ("pass@2", [0, 1, 1, 0], 5 / 6),
        ("pass^2", [0, 1, 1, 0], 1 / 6),
        ("pass^3", [1, 1, 1], 1.0),
    ],
)
def test_a_reducer_makes_one_number(name: str, values: list[float], expected: float) -> None:
    assert reducer(name).reduce(values) == pytest.approx(expected)


def test_a_reducer_states_what_it_needs() -> None:
    assert reducer("pass@3").least == 3 and reducer("pass@3").of_passes
    assert reducer("max").least == 1 and not reducer("max").of_passes


@pytest.mark.parametrize(
    "name", ["", "sum", "pass@0", "pass@", "pass^-1", "pass@1.5", "Mean", "pass@2 "]
)
def test_an_unknown_reducer_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(UsageError, match="mean, median, mode, max, min, pass@k and pass"):
        reducer(name)


def chens_product(n: int, c: int, k: int) -> float:
    """Chen et al. 2021, figure 3: the numerically stable form that they print."""
    import numpy as np

    return 1.0 if n - c < k else 1.0 - float(np.prod(1.0 - k / np.arange(n - c + 1, n + 1)))


@given(st.integers(1, 200), st.data())
def test_pass_at_k_equals_chens_estimator(n: int, data: st.DataObject) -> None:
    passed, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    assert pass_at_k(n, passed, k) == pytest.approx(chens_product(n, passed, k), abs=1e-9)


@given(st.lists(st.booleans(), min_size=1, max_size=8), st.data())
def test_both_are_the_mean_over_all_choices_of_k_tries(
    tries: list[bool], data: st.DataObject
) -> None:
    k = data.draw(st.integers(1, len(tries)))
    choices = list(combinations(tries, k))
    assert pass_at_k(len(tries), sum(tries), k) == pytest.approx(mean(map(any, choices)))
    assert pass_hat_k(len(tries), sum(tries), k) == pytest.approx(mean(map(all, choices)))


@given(st.integers(2, 60), st.data())
def test_more_tries_pass_at_least_once_more_often_and_always_less_often(
    n: int, data: st.DataObject
) -> None:
    passed, k = data.draw(st.integers(0, n - 1)), data.draw(st.integers(1, n - 1))
    assert pass_at_k(n, passed, k) <= pass_at_k(n, passed, k + 1) <= 1
    assert pass_at_k(n, passed, k) <= pass_at_k(n, passed + 1, k)
    assert 0 <= pass_hat_k(n, passed, k + 1) <= pass_hat_k(n, passed, k) <= pass_at_k(n, passed, k)


@pytest.mark.parametrize(
    ("n", "passed", "k"), [(3, 4, 1), (3, -1, 1), (3, 1, 0), (3, 1, 4), (0, 0, 1)]
)
def test_impossible_counts_are_refused(n: int, passed: int, k: int) -> None:
    for estimate in (pass_at_k, pass_hat_k):
        with pytest.raises(UsageError):
            estimate(n, passed, k)


def test_the_mean_squares_equal_scipys_analysis_of_variance() -> None:
    from scipy import stats

    samples = [[0.1, 0.4, 0.3], [0.9, 0.7], [0.5, 0.6, 0.9, 0.8]]
    found = variance(samples)
    assert found.within is not None and found.between is not None
    sizes = [len(sample) for sample in samples]
    adjusted = (sum(sizes) - sum(size * size for size in sizes) / sum(sizes)) / 2
    f = (found.between * adjusted + found.within) / found.within
    assert f == pytest.approx(stats.f_oneway(*samples).statistic)
    assert (found.samples, found.values) == (3, 9)


def test_known_components_are_recovered() -> None:
    import numpy as np

    draw = np.random.default_rng(7)
    samples = [(centre + draw.normal(0, 0.5, 4)).tolist() for centre in draw.normal(0, 2, 3_000)]
    found = variance(samples)
    assert found.within == pytest.approx(0.25, rel=0.05)
    assert found.between == pytest.approx(4, rel=0.08)


@pytest.mark.parametrize(
    ("samples", "within", "between"),
    [
        ([], None, None),
        ([[1.0], [0.0]], None, None),
        ([[], [0.2, 0.4]], 0.02, None),
        ([[1.0, 1.0], [1.0, 1.0]], 0.0, 0.0),
        ([[0.0, 1.0], [0.0, 1.0]], 0.5, 0.0),
        ([[0.0, 0.0], [1.0, 1.0]], 0.0, 0.5),
    ],
)
def test_the_edges_of_variance(
    samples: list[list[float]], within: float | None, between: float | None
) -> None:
    found = variance(samples)
    assert (found.within, found.between) == (pytest.approx(within), pytest.approx(between))


def test_variance_refuses_values_that_are_not_finite() -> None:
    with pytest.raises(UsageError):
        variance([[0.1, math.nan]])
