"""Agreement of judges against printed examples, statsmodels, the krippendorff package, and invariants."""

from __future__ import annotations

import math
from typing import Any, Literal

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from evaluator import UsageError
from evaluator.batch.statistics import (
    cohen_kappa,
    cohen_kappa_of,
    krippendorff_alpha,
    krippendorff_alpha_of,
)

_ = None
# Krippendorff, "Computing Krippendorff's Alpha-Reliability" (2011), example C: four observers, twelve units.
OBSERVERS = [
    [1, 2, 3, 3, 2, 1, 4, 1, 2, _, _, _],
    [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, _, 3],
    [_, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, _],
    [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, _],
]
# Agresti, Categorical Data Analysis (2002), table 10.8: two pathologists, 118 slides of carcinoma.
CARCINOMA = [[22, 2, 2, 0], [5, 7, 14, 0], [0, 2, 36, 0], [0, 1, 17, 10]]
Level = Literal["nominal", "ordinal", "interval", "ratio"]
LEVELS: list[Level] = ["nominal", "ordinal", "interval", "ratio"]
ratings = st.lists(
    st.lists(st.sampled_from([_, 0, 1, 2, 5]), min_size=4, max_size=4), min_size=2, max_size=5
)


def judges(table: list[list[int]]) -> tuple[list[int], list[int]]:
    pairs = [
        (i, j) for i, row in enumerate(table) for j, count in enumerate(row) for _ in range(count)
    ]
    return [i for i, _ in pairs], [j for _, j in pairs]


@pytest.mark.parametrize(
    ("level", "expected"),
    [("nominal", 0.743), ("ordinal", 0.815), ("interval", 0.849), ("ratio", 0.797)],
)
def test_alpha_equals_printed_examples(level: Level, expected: float) -> None:
    found = krippendorff_alpha(OBSERVERS, level)
    assert found.value == pytest.approx(expected, abs=5e-4)
    assert (found.n, found.of, found.raters) == (11, 12, 4)


@pytest.mark.parametrize("level", LEVELS)
@given(rows=ratings)
def test_alpha_equals_the_krippendorff_package(level: Level, rows: list[list[int | None]]) -> None:
    import krippendorff
    import numpy as np

    data = np.array(
        [[np.nan if value is None else value for value in row] for row in rows], dtype=float
    )
    judged = data[:, np.sum(~np.isnan(data), axis=0) > 1]
    assume(len(np.unique(judged[~np.isnan(judged)])) > 1)
    assert krippendorff_alpha(rows, level).value == pytest.approx(
        krippendorff.alpha(reliability_data=data, level_of_measurement=level), abs=1e-9
    )


@pytest.mark.parametrize("level", LEVELS)
@given(values=st.lists(st.integers(0, 4), min_size=2), count=st.integers(2, 4))
def test_equal_ratings_are_perfect_agreement(level: Level, values: list[int], count: int) -> None:
    alpha, kappa = krippendorff_alpha([values] * count, level), cohen_kappa(values, values)
    if len(set(values)) == 1:
        assert alpha.value is None and kappa.value is None
    else:
        assert alpha.value == pytest.approx(1) and kappa.value == pytest.approx(1)


def test_kappa_equals_printed_examples() -> None:
    found = cohen_kappa(*judges(CARCINOMA))
    assert (found.value, found.se) == (
        pytest.approx(0.493, abs=5e-4),
        pytest.approx(0.057, abs=5e-4),
    )
    assert (found.n, found.of, found.raters) == (118, 118, 2)


@pytest.mark.parametrize(
    ("weights", "wt"), [(None, None), ("linear", "linear"), ("quadratic", "quadratic")]
)
def test_kappa_and_its_error_equal_statsmodels(weights: Any, wt: str | None) -> None:
    import numpy as np
    from statsmodels.stats.inter_rater import cohens_kappa

    theirs = cohens_kappa(np.array(CARCINOMA), wt=wt)
    found = cohen_kappa(*judges(CARCINOMA), weights=weights)
    assert (found.value, found.se) == (pytest.approx(theirs.kappa), pytest.approx(theirs.std_kappa))
    assert (found.low, found.high) == (
        pytest.approx(theirs.kappa_low),
        pytest.approx(theirs.kappa_upp),
    )


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1))
def test_kappa_is_symmetric(pairs: list[tuple[int, int]]) -> None:
    first, second = [a for a, _ in pairs], [b for _, b in pairs]
    for weights in (None, "linear", "quadratic"):
        one = cohen_kappa(first, second, weights)  # type: ignore[arg-type]
        other = cohen_kappa(second, first, weights)  # type: ignore[arg-type]
        assert one.value == pytest.approx(other.value)
        assert one.value is None or -1 - 1e-9 <= one.value <= 1 + 1e-9


def test_ordered_labels_weigh_like_numbers() -> None:
    names = ["poor", "fair", "good", "very good"]
    first, second = judges(CARCINOMA)
    worded = cohen_kappa([names[i] for i in first], [names[j] for j in second], "linear", names)
    assert worded.value == pytest.approx(cohen_kappa(first, second, "linear").value)
    rows = [[value and "abcde"[value - 1] for value in row] for row in OBSERVERS]
    assert krippendorff_alpha(rows, "ordinal", "abcde").value == pytest.approx(0.815, abs=5e-4)


def test_missing_ratings_reduce_n() -> None:
    found = cohen_kappa(["a", None, "b", "a"], ["a", "b", "b", None])
    assert (found.value, found.n, found.of) == (1, 2, 4)


@pytest.mark.parametrize("rows", [[], [[], []], [[1, 2], [None, None]], [[1, 1], [1, 1]], [[1]]])
def test_alpha_is_unknown_for_equal_ratings(rows: list[list[int | None]]) -> None:
    assert krippendorff_alpha(rows).value is None


@pytest.mark.parametrize(
    "call",
    [
        lambda: cohen_kappa([1], [1, 2]),
        lambda: cohen_kappa(["a", "b"], ["b", "b"], "linear"),
        lambda: cohen_kappa(["a", "x"], ["a", "a"], labels=["a", "b"]),
        lambda: cohen_kappa([math.nan, 1.0], [1.0, 2.0]),
        lambda: krippendorff_alpha([[1, 2], [1]]),
        lambda: krippendorff_alpha([["a", "b"], ["a", "a"]], "ordinal"),
        lambda: krippendorff_alpha([["a", "b"], ["a", "a"]], "interval", ["a", "b"]),
        lambda: krippendorff_alpha([[1.0, math.inf], [1.0, 2.0]], "interval"),
    ],
)
def test_ratings_that_do_not_fit_are_refused(call: Any) -> None:
    with pytest.raises(UsageError):
        call()


def test_counts_of_combinations_give_the_same_as_the_ratings() -> None:
    counts = {(i, j): count for i, row in enumerate(CARCINOMA) for j, count in enumerate(row)}
    assert cohen_kappa_of(counts, "quadratic") == cohen_kappa(*judges(CARCINOMA), "quadratic")
    three = {
        ("y", "y", "n"): 2,
        ("n", None, "n"): 3,
        (None, None, "y"): 1,
        ("y", "n", None): 1,
        ("n", "n", "n"): 0,
    }
    columns = list(
        zip(*(ratings for ratings, count in three.items() for _ in range(count)), strict=True)
    )
    found, expected = krippendorff_alpha_of(three, 3), krippendorff_alpha(columns)
    assert found.value == pytest.approx(expected.value)
    assert (
        (found.n, found.of, found.raters) == (expected.n, expected.of, expected.raters) == (6, 7, 3)
    )


def test_judges_who_always_agree_have_no_empty_interval() -> None:
    found = cohen_kappa("ynyn", "ynyn")
    assert (found.value, found.se, found.low, found.high) == (
        pytest.approx(1),
        pytest.approx(0),
        None,
        None,
    )
