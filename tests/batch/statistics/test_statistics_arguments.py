"""Invalid arguments of statistics are refused by name; NumPy arrays work like lists."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest

from evaluator import UsageError
from evaluator.batch.statistics import (
    bootstrap_difference,
    cohen_kappa,
    cohen_kappa_of,
    krippendorff_alpha,
    krippendorff_alpha_of,
    mcnemar_difference,
    mcnemar_p,
    mean_difference,
    mean_interval,
    pairs_needed,
    percentiles,
    proportion_interval,
    proportion_of,
    score_interval,
    smallest_difference,
    variance,
    wilson,
)
from evaluator.batch.statistics.intervals import normal_quantile, student_quantile
from tests.tables import each_case

WITH_CONFIDENCE: dict[str, Callable[[Any], Any]] = {
    "mean_interval": lambda confidence: mean_interval([1, 2, 3], confidence=confidence),
    "mean_interval of nothing": lambda confidence: mean_interval([], confidence=confidence),
    "score_interval": lambda confidence: score_interval([0.5, 0.5], confidence=confidence),
    "proportion_of": lambda confidence: proportion_of(1, 3, confidence),
    "proportion_interval": lambda confidence: proportion_interval([0, 1, 1], "aab", confidence),
    "mean_difference": lambda confidence: mean_difference([0.1, 0.2], None, confidence),
    "mcnemar_difference": lambda confidence: mcnemar_difference(0, 0, 0, 0, confidence),
    "bootstrap_difference": lambda confidence: bootstrap_difference(
        [0.1, 0.2], 0, confidence=confidence
    ),
    "pairs_needed": lambda confidence: pairs_needed(0.5, 0.1, confidence=confidence),
    "smallest_difference": lambda confidence: smallest_difference(0.5, 10, confidence=confidence),
    "cohen_kappa": lambda confidence: cohen_kappa("ab", "ab", confidence=confidence),
}


@each_case(
    ("name", "confidence"),
    product(WITH_CONFIDENCE, [95, 1, 0, -0.5, 1 - 1e-16, math.nan, math.inf, "0.95", None]),
)
def test_a_confidence_outside_0_and_1_is_refused(name: str, confidence: Any) -> None:
    with pytest.raises(
        UsageError,
        match=f"confidence is {re.escape(repr(confidence))}, expected a number between 0",
    ):
        WITH_CONFIDENCE[name](confidence)


def test_a_confidence_in_percent_gets_a_suggestion() -> None:
    with pytest.raises(UsageError, match=r"did you mean 0\.95\?"):
        mean_interval([1, 2, 3], confidence=95)


@pytest.mark.parametrize(
    "quantile", [normal_quantile, lambda probability: student_quantile(probability, 4)]
)
@pytest.mark.parametrize("probability", [0, 1, 1.5, -0.1, math.nan])
def test_a_probability_without_a_quantile_is_refused(
    quantile: Callable[[float], float], probability: float
) -> None:
    with pytest.raises(UsageError, match="has no quantile"):
        quantile(probability)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (
            lambda: krippendorff_alpha([[1, 2], [1, 2]], "Nominal"),
            "level is 'Nominal', .* nominal, ordinal, interval, ratio",
        ),
        (lambda: krippendorff_alpha_of({}, 2, "rational"), "level is 'rational'"),
        (lambda: krippendorff_alpha([[1, -2], [1, 2]], "ratio"), "at least 0"),
        (
            lambda: krippendorff_alpha([["a", "b"], ["a", "b"]], "ratio", "ab"),
            "ratio ratings are finite numbers",
        ),
        (
            lambda: krippendorff_alpha_of({("a", "b"): -1}, 2),
            "count of .* is -1, expected a whole number",
        ),
        (
            lambda: cohen_kappa([1, 2], [1, 2], "Linear"),
            "weights is 'Linear', expected one of linear, quadratic",
        ),
        (
            lambda: cohen_kappa_of({(1, 2): 0.5}),
            r"count of \(1, 2\) is 0\.5, expected a whole number",
        ),
        (lambda: percentiles([1, 2, 3], [95]), "a share is 95, expected a number from 0 to 1"),
        (lambda: percentiles([1, 2, 3], [-0.1]), r"a share is -0\.1"),
        (lambda: percentiles([], [math.nan]), "a share is nan"),
        (lambda: proportion_of(1.5, 3), r"passed is 1\.5, expected a whole number"),
        (lambda: proportion_of(-1, 3), "passed is -1, expected a whole number"),
        (lambda: wilson(1.5, 3, 1.96), r"share is 1\.5"),
        (lambda: wilson(0.5, 0, 1.96), "n is 0, expected a number above 0"),
        (lambda: mcnemar_p(1.5, 2), r"only_a is 1\.5"),
        (lambda: mcnemar_difference(1, 2, 3, -1), "neither is -1"),
        (lambda: bootstrap_difference([0.1, 0.2], 0, 150.5), r"resamples is 150\.5"),
        (lambda: smallest_difference(0.1, 1.5), r"pairs is 1\.5"),
        (lambda: mean_interval([], ["a"]), "1 clusters for 0 values"),
        (lambda: proportion_interval([], ["a"]), "1 clusters for 0 values"),
        (lambda: mean_interval([0.5, None]), "value 1 is None, expected a finite number"),
        (lambda: mean_interval(["0.5"]), "value 0 is '0.5'"),
    ],
)
def test_invalid_arguments_are_refused_by_name(call: Callable[[], Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        call()


@pytest.mark.parametrize("values", [[], [0.0, 1.0, 1.0], [0.2, 0.7, 0.9, 0.9]])
def test_arrays_give_the_same_as_lists(values: list[float]) -> None:
    array = np.array(values)
    assert mean_interval(array) == mean_interval(values)
    assert score_interval(array) == score_interval(values)
    assert score_interval(array, np.array(range(len(values)))) == score_interval(
        values, range(len(values))
    )
    assert mean_difference(array) == mean_difference(values)
    assert bootstrap_difference(array, 1) == bootstrap_difference(values, 1)
    assert percentiles(array, np.array([0.5])) == percentiles(values, [0.5])
    assert variance([array, array]) == variance([values, values])
    json.dumps(score_interval(array).to_dict())


@pytest.mark.parametrize("level", ["nominal", "ordinal", "interval", "ratio"])
def test_ratings_may_be_arrays(level: Any) -> None:
    ratings = [[1, 2, 3, 3], [1, 2, 2, 3]]
    assert krippendorff_alpha(np.array(ratings), level) == krippendorff_alpha(ratings, level)
    assert cohen_kappa(*np.array(ratings), "linear") == cohen_kappa(*ratings, "linear")
    assert krippendorff_alpha(np.array([])).value is None


def test_counts_may_be_numpys_and_are_json_in_results() -> None:
    found = proportion_of(np.int64(1), np.int64(3))
    assert found == proportion_of(1, 3) and json.loads(json.dumps(found.to_dict()))["n"] == 3
