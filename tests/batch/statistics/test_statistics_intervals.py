"""Means, proportions and their intervals against printed tables, SciPy, statsmodels, and invariants."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator import UsageError
from evaluator.batch.statistics import (
    mean_interval,
    percentiles,
    proportion_interval,
    proportion_of,
    score_interval,
)

VALUES = [0.1, 0.9, 0.4, 0.4, 0.75, 1.0, 0.0, 0.33, 0.62, 0.81]
CLUSTERS = ["a", "a", "b", "c", "c", "c", "d", "d", "e", "e"]
finite = st.floats(-1e6, 1e6)


def test_the_mean_its_error_and_interval_equal_scipy() -> None:
    import numpy as np
    from scipy import stats

    found = mean_interval(VALUES)
    low, high = stats.t.interval(0.95, len(VALUES) - 1, np.mean(VALUES), stats.sem(VALUES))
    assert (found.mean, found.se) == (
        pytest.approx(np.mean(VALUES)),
        pytest.approx(stats.sem(VALUES)),
    )
    assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))
    assert (found.n, found.clusters, found.method) == (10, None, "t")


def test_an_interval_at_another_confidence_equals_scipy() -> None:
    import numpy as np
    from scipy import stats

    found = mean_interval(VALUES, confidence=0.8)
    expected = stats.t.interval(0.8, 9, np.mean(VALUES), stats.sem(VALUES))
    assert (found.low, found.high) == pytest.approx(expected)


def test_clustered_errors_equal_statsmodels() -> None:
    import numpy as np
    import statsmodels.api as sm

    groups = np.unique(CLUSTERS, return_inverse=True)[1]
    fit = sm.OLS(VALUES, np.ones(len(VALUES))).fit(
        cov_type="cluster", cov_kwds={"groups": groups}, use_t=True
    )
    found = mean_interval(VALUES, CLUSTERS)
    assert found.se == pytest.approx(fit.bse[0])
    assert (found.low, found.high) == pytest.approx(tuple(fit.conf_int()[0]))
    assert found.clusters == 5


def test_clustered_errors_equal_millers_except_for_the_small_sample_factor() -> None:
    """Miller 2024: se² = se_CLT² + Σ_c Σ_i Σ_{j≠i} (x_i − x̄)(x_j − x̄) / n², with the variance over n."""
    mean, n = sum(VALUES) / len(VALUES), len(VALUES)
    pairs = [
        (VALUES[i] - mean) * (VALUES[j] - mean)
        for i in range(n)
        for j in range(n)
        if i != j and CLUSTERS[i] == CLUSTERS[j]
    ]
    miller = math.sqrt((sum((value - mean) ** 2 for value in VALUES) + sum(pairs)) / n**2)
    assert mean_interval(VALUES, CLUSTERS).se == pytest.approx(miller * math.sqrt(5 / 4))


@pytest.mark.parametrize(
    ("passed", "n", "low", "high"),
    [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilsons_interval_equals_printed_examples(
    passed: int, n: int, low: float, high: float
) -> None:
    """Newcombe, Statistics in Medicine 17 (1998) 857, table I, method 3."""
    found = proportion_of(passed, n)
    assert (found.low, found.high) == (pytest.approx(low, abs=5e-5), pytest.approx(high, abs=5e-5))
    assert found.mean == passed / n


@given(st.integers(1, 500), st.data())
def test_wilsons_interval_equals_statsmodels(n: int, data: st.DataObject) -> None:
    from statsmodels.stats.proportion import proportion_confint

    passed = data.draw(st.integers(0, n))
    found = proportion_of(passed, n)
    assert (found.low, found.high) == pytest.approx(
        proportion_confint(passed, n, method="wilson"), abs=1e-12
    )
    assert found.low is not None and found.high is not None and found.mean is not None
    assert 0 <= found.low <= found.mean <= found.high <= 1


@given(st.lists(finite, min_size=2), st.booleans())
def test_an_interval_contains_the_mean(values: list[float], clustered: bool) -> None:
    found = mean_interval(
        values, [i // 2 for i in range(len(values))] if clustered and len(values) > 2 else None
    )
    assert found.low is not None and found.mean is not None and found.high is not None
    assert found.low <= found.mean <= found.high
    assert min(values) <= found.mean <= max(values)


@given(st.lists(st.sampled_from([0, 1]), min_size=3), st.integers(1, 4))
def test_a_clustered_proportion_stays_within_0_and_1_and_is_never_surer_than_an_independent_one(
    values: list[int], size: int
) -> None:
    found = proportion_interval(values, [i // size for i in range(len(values))])
    plain = proportion_of(sum(values), len(values))
    if found.low is None:
        assert size >= len(values)
        return
    assert (
        found.mean is not None
        and found.high is not None
        and plain.low is not None
        and plain.high is not None
    )
    assert 0 <= found.low <= found.mean <= found.high <= 1
    assert found.high - found.low >= plain.high - plain.low - 1e-12


@given(st.lists(finite, min_size=2, max_size=30))
def test_values_that_are_each_a_cluster_are_independent(values: list[float]) -> None:
    assert mean_interval(values, range(len(values))).se == pytest.approx(mean_interval(values).se)


def test_rows_that_only_repeat_their_cluster_add_no_certainty() -> None:
    one, four = [0, 1, 1, 0, 1, 1, 1, 0], 4
    repeated = [value for value in one for _ in range(four)]
    clusters = [i // four for i in range(len(repeated))]
    assert mean_interval(repeated, clusters).se == pytest.approx(mean_interval(one).se)
    found = proportion_interval(repeated, clusters)
    assert found.method == "wilson, clustered" and found.clusters == 8 and found.n == 32


def test_clusters_that_all_pass_still_have_a_width_and_count_as_one_each() -> None:
    found = proportion_interval([1] * 12, [i // 3 for i in range(12)])
    assert found.se == 0 and found.high == 1 and found.low is not None
    assert found.low < proportion_of(4, 4).low  # type: ignore[operator]


@pytest.mark.parametrize("values", [[], [0.5]])
def test_too_few_values_have_no_interval(values: list[float]) -> None:
    found = mean_interval(values)
    assert found.mean == (values[0] if values else None)
    assert (found.se, found.low, found.high) == (None, None, None)


def test_one_cluster_has_no_interval() -> None:
    for found in (mean_interval([0.1, 0.7], ["x", "x"]), proportion_interval([0, 1], ["x", "x"])):
        assert (found.se, found.low, found.high, found.clusters) == (None, None, None, 1)
        assert found.mean is not None


def test_an_empty_proportion_is_unknown_and_one_of_one_has_wilsons_interval() -> None:
    assert proportion_of(0, 0).mean is None and proportion_of(0, 0).low is None
    assert proportion_of(1, 1).low == pytest.approx(0.2065, abs=5e-5)


def test_equal_values_have_no_error() -> None:
    found = mean_interval([0.1] * 7)
    assert (found.mean, found.se, found.low, found.high) == (0.1, 0, 0.1, 0.1)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_are_refused(bad: float) -> None:
    with pytest.raises(UsageError, match="value 1 is"):
        mean_interval([0.5, bad])
    with pytest.raises(UsageError, match="value 0 is"):
        percentiles([bad], [0.5])
    with pytest.raises(UsageError, match="0 or 1"):
        proportion_interval([1, bad])


def test_arguments_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UsageError, match="3 clusters for 2 values"):
        mean_interval([1, 2], ["a", "b", "c"])
    with pytest.raises(UsageError, match="3 of 2 is not a proportion"):
        proportion_of(3, 2)
    with pytest.raises(UsageError, match="0 or 1"):
        proportion_interval([0, 0.5])


@given(st.lists(finite, min_size=1), st.lists(st.floats(0, 1), max_size=5))
def test_percentiles_equal_numpy(values: list[float], shares: list[float]) -> None:
    import numpy as np

    found = percentiles(values, shares)
    assert found == pytest.approx([float(np.quantile(values, share)) for share in shares], abs=1e-6)
    assert percentiles([], shares) == [None] * len(shares)


def test_the_json_of_an_estimate_has_its_method() -> None:
    assert proportion_of(0, 0).to_dict() == {
        "mean": None,
        "se": None,
        "low": None,
        "high": None,
        "n": 0,
        "clusters": None,
        "method": "wilson",
        "confidence": 0.95,
    }


@given(
    st.lists(
        st.tuples(st.sampled_from([0.0, 0.25, 0.5, 0.6, 1.0]), st.integers(0, 3)),
        min_size=1,
        max_size=30,
    ),
    st.booleans(),
)
def test_scores_within_0_and_1_have_an_interval_within_them_that_is_not_empty(
    values: list[tuple[float, int]], clustered: bool
) -> None:
    numbers, clusters = (
        [value for value, _ in values],
        [cluster for _, cluster in values] if clustered else None,
    )
    found, plain = score_interval(numbers, clusters), mean_interval(numbers, clusters)
    assert found.mean == pytest.approx(plain.mean) and found.n == len(numbers)
    assert (found.se is None) == (found.low is None) == (found.high is None)
    if found.low is not None and found.high is not None and found.mean is not None:
        assert 0 <= found.low <= found.mean + 1e-12 and found.mean - 1e-12 <= found.high <= 1
        assert found.low < found.high


def test_scores_that_are_all_0_or_1_are_a_proportion() -> None:
    assert score_interval([1.0] * 12) == proportion_of(12, 12)
    assert score_interval([1, 0, 1, 1], "aabb") == proportion_interval([1, 0, 1, 1], "aabb")


def test_scores_that_need_no_cut_have_students_interval() -> None:
    inside = [0.4, 0.5, 0.6, 0.45, 0.55]
    assert score_interval(inside) == mean_interval(inside)
    beyond = [-3.0, 7.0, 0.5]
    assert score_interval(beyond) == mean_interval(beyond)


def test_scores_without_a_spread_have_wilsons_interval_or_none() -> None:
    from statsmodels.stats.proportion import proportion_confint

    found, wilson = score_interval([0.5] * 10), proportion_of(5, 10)
    assert (found.se, found.low, found.high, found.method) == (0, wilson.low, wilson.high, "wilson")
    clustered = score_interval([0.5] * 10, "aabbccddee")
    low, high = proportion_confint(2.5, 5, method="wilson")
    assert (
        clustered.method == "wilson, clustered"
        and clustered.low is not None
        and clustered.high is not None
    )
    assert clustered.low < low and clustered.high > high
    beyond = score_interval([7.0] * 5)
    assert (beyond.mean, beyond.se, beyond.low, beyond.high) == (7, 0, None, None)
    alone = score_interval([0.5])
    assert (alone.mean, alone.se, alone.low) == (0.5, None, None)
