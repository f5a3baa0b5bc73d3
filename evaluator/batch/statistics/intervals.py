"""Means and proportions with their standard errors and intervals, for independent values and for
clusters; the distributions behind them, and the checks of their arguments.

Related values (questions about one text, epochs of one sample) are not independent. With clusters
of related values, standard errors are cluster-robust:

    se² = G / (G − 1) · Σ_g (Σ_{i in g} (x_i − x̄))² / n²     with G clusters

With every value its own cluster that is s² / n, the usual one.

The relative error of tails and quantiles is below 1e-9 for up to 100,000 degrees of freedom or
trials; the tests compare with SciPy. A wrong argument is refused, never corrected.

Sources: Miller, "Adding Error Bars to Evals" (2024, arXiv:2411.00640); the sandwich estimator with
the small-sample factor is CR1 of Cameron and Miller, "A Practitioner's Guide to Cluster-Robust
Inference", Journal of Human Resources 50 (2015), which also has the intervals with Student's t and
G − 1 degrees of freedom.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Hashable, Sequence, Sized
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial
from statistics import NormalDist
from typing import Any

from evaluator.errors import UsageError
from evaluator.fields import JsonForm
from evaluator.lazy_dataclass import frozen


def check_confidence(confidence: float) -> None:
    """Raises: UsageError, if it is not between 0 and 1, or so close to 1 that its quantile is
    infinite.
    """
    with suppress(TypeError, ValueError):
        if confidence > 0 and (1 + confidence) / 2 < 1:
            return
    if _is_number(confidence) and 1 < confidence < 100:
        hint = f"; did you mean {confidence / 100:g}?"
    else:
        hint = ""
    raise UsageError(
        f"confidence is {confidence!r}, expected a number between 0 and 1, such as 0.95{hint}"
    )


def check_share(name: str, share: float) -> None:
    """Raises: UsageError, if it is not in [0, 1]."""
    with suppress(TypeError, ValueError):
        if 0 <= share <= 1:
            return
    raise UsageError(f"{name} is {share!r}, expected a number from 0 to 1")


def whole(name: str, count: Any) -> int:
    """A count as an int, from NumPy too. Raises: UsageError, if it is not a whole number or
    negative.
    """
    try:
        found = operator.index(count)
    except TypeError:
        found = -1
    if found < 0:
        raise UsageError(f"{name} is {count!r}, expected a whole number, 0 or more")
    return found


def check_finite(values: Sequence[float]) -> None:
    """Raises: UsageError with the index of the first value that is not a finite number."""
    with suppress(TypeError, ValueError, OverflowError):
        if all(map(math.isfinite, values)):
            return
    for place, value in enumerate(values):
        if not _is_number(value):
            raise UsageError(f"value {place} is {value!r}, expected a finite number")


def check_clusters(values: Sized, clusters: Sized | None) -> None:
    """Raises: UsageError, if there are clusters, but not one for each value."""
    if clusters is not None and len(clusters) != len(values):
        raise UsageError(f"{len(clusters)} clusters for {len(values)} values")


def _is_number(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except (TypeError, ValueError, OverflowError):
        return False


_NORMAL = NormalDist()
_MOST_TERMS = 10_000
_TINY = 1e-300


def normal_quantile(probability: float) -> float:
    """The quantile of the standard normal distribution at `probability`, which is strictly between
    0 and 1.

    Source: Wichura, "Algorithm AS 241", Applied Statistics 37 (1988), as implemented in Python's
    `statistics`.

    Raises: UsageError, if `probability` is not between 0 and 1.
    """
    _check_probability(probability)
    return _NORMAL.inv_cdf(probability)


def _check_probability(probability: float) -> None:
    if not 0 < probability < 1:
        raise UsageError(
            f"a probability of {probability!r} has no quantile; expected one between 0 and 1"
        )


def normal_below(value: float) -> float:
    """The probability that a standard normal variable is at most `value`. Accurate in both
    tails.
    """
    return 0.5 * math.erfc(-value / math.sqrt(2))


def student_two_sided(t: float, df: float) -> float:
    """The probability that a Student's t variable with `df` degrees of freedom is at least as far
    from 0 as `t`.

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions (1964), 26.5.27 and 26.7.1.
    """
    return incomplete_beta(df / (df + t * t), df / 2, b=0.5, rest=t * t / (df + t * t))


@lru_cache(maxsize=4096)
def student_quantile(probability: float, df: float) -> float:
    """The quantile of Student's t with `df` degrees of freedom at `probability`, which is strictly
    between 0 and 1.

    Found by bisection, so it is as accurate as `student_two_sided`.

    Raises: UsageError, if `probability` is not between 0 and 1.
    """
    _check_probability(probability)
    if probability < 0.5:
        return -student_quantile(1 - probability, df)
    outside = 2 * (1 - probability)
    low = 0.0
    high = 1.0
    while student_two_sided(high, df) > outside:
        low = high
        high = high * 2
    while high - low > 1e-13 * high:
        middle = (low + high) / 2
        if not low < middle < high:
            break
        if student_two_sided(middle, df) > outside:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def binomial_below(successes: int, trials: int, chance: float) -> float:
    """The probability of at most `successes` in `trials`, each with the probability `chance`.

    Source: Abramowitz and Stegun (1964), 26.5.24.
    """
    if successes < 0:
        return 0.0
    if successes >= trials:
        return 1.0
    return incomplete_beta(1 - chance, trials - successes, b=successes + 1)


def incomplete_beta(x: float, a: float, b: float, rest: float | None = None) -> float:
    """The regularised incomplete beta function of `x` in [0, 1], with `a` and `b` above 0.

    `rest` is 1 − x, for a caller that has it with more digits than the subtraction gives.

    Source: NIST Digital Library of Mathematical Functions, 8.17.4 and 8.17.22, the continued
    fraction evaluated by the modified method of Lentz (Thompson and Barnett, Journal of
    Computational Physics 64, 1986).
    """
    rest = 1 - x if rest is None else rest
    if x <= 0:
        return 0.0
    if rest <= 0:
        return 1.0
    if x > (a + 1) / (a + b + 2):
        return 1 - _beta_by_fraction(rest, x, a=b, b=a)
    return _beta_by_fraction(x, rest, a=a, b=b)


def _beta_by_fraction(x: float, rest: float, a: float, b: float) -> float:
    logarithm = (
        a * math.log(x) + b * math.log(rest) + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    )
    front = math.exp(logarithm) / a
    c = 1.0
    d = 1 / _not_zero(1 - (a + b) * x / (a + 1))
    fraction = d
    for m in range(1, _MOST_TERMS):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            c = _not_zero(1 + term / c)
            d = 1 / _not_zero(1 + term * d)
            fraction *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return min(1.0, front * fraction)


def _not_zero(value: float) -> float:
    if abs(value) > _TINY:
        return value
    return _TINY


CONFIDENCE = 0.95
FEW_CLUSTERS = 30
"""With fewer, cluster-robust intervals are only approximate."""
_NO_SPREAD = 1e-12
_MOST_SORTED = 50_000
_SAMPLED = 10_000
_AROUND = 200
"""A place among all values is this near to the same one in the sample: four standard errors."""


@frozen
class Estimate(JsonForm):
    """A mean or proportion of `n` values with its standard error and interval.

    `mean` is None where n is 0. With fewer than two values, or only one cluster, there is no `se`,
    `low` and `high`. `clusters` is None where values were treated as independent. `method` is `t`,
    `wilson` or `wilson, clustered`.
    """

    mean: float | None
    se: float | None
    low: float | None
    high: float | None
    n: int
    clusters: int | None = None
    method: str = "t"
    confidence: float = CONFIDENCE


def mean_interval(
    values: Sequence[float],
    clusters: Sequence[Hashable] | None = None,
    confidence: float = CONFIDENCE,
) -> Estimate:
    """The mean of `values`, by Student's t. `clusters` names the cluster of each value, in the same
    order.

    Raises: UsageError, if a value is not finite, the numbers of clusters and values differ, or
    `confidence` is not between 0 and 1.
    """
    check_finite(values)
    check_clusters(values, clusters)
    check_confidence(confidence)
    n = len(values)
    if n == 0:
        return Estimate(
            None,
            None,
            low=None,
            high=None,
            n=0,
            clusters=None if clusters is None else 0,
            method="t",
            confidence=confidence,
        )
    mean = mean_of(values)
    se, count = standard_error(values, mean, clusters=clusters)
    shown = None if clusters is None else count
    if se is None:
        return Estimate(
            mean, None, low=None, high=None, n=n, clusters=shown, method="t", confidence=confidence
        )
    reach = student_quantile((1 + confidence) / 2, count - 1) * se
    return Estimate(
        mean,
        se,
        low=mean - reach,
        high=mean + reach,
        n=n,
        clusters=shown,
        method="t",
        confidence=confidence,
    )


def score_interval(
    values: Sequence[float],
    clusters: Sequence[Hashable] | None = None,
    confidence: float = CONFIDENCE,
) -> Estimate:
    """The mean of `values` with an interval that stays within the range of the values.

    `proportion_interval` where each value is 0 or 1, else `mean_interval`, limited to [0, 1] where
    all values are in it. For such values without a spread (all 0.5, say) the interval is Wilson's
    of n values, or of as many as there are
    clusters: no values in [0, 1] with that mean vary more than 0 and 1. Other values without a
    spread have no interval.

    Raises: UsageError, as `mean_interval`.
    """
    if len(values) and all(map((0, 1).__contains__, values)):
        return proportion_interval(values, clusters, confidence=confidence)
    found = mean_interval(values, clusters, confidence=confidence)
    if found.mean is None or found.se is None or found.low is None or found.high is None:
        return found
    is_share = all(0 <= value <= 1 for value in values)
    if found.se > _NO_SPREAD:
        if is_share:
            return replace(found, low=max(0.0, found.low), high=min(1.0, found.high))
        return found
    if not is_share:
        return replace(found, low=None, high=None)
    if found.clusters is None:
        worth = found.n
        quantile = normal_quantile((1 + confidence) / 2)
        method = "wilson"
    else:
        worth = found.clusters
        method = "wilson, clustered"
        quantile = student_quantile((1 + confidence) / 2, found.clusters - 1)
    low, high = wilson(found.mean, worth, quantile=quantile)
    return replace(found, low=low, high=high, method=method)


def proportion_of(passed: int, n: int, confidence: float = CONFIDENCE) -> Estimate:
    """The proportion `passed` of `n` independent results, with Wilson's score interval.

    `se` is sqrt(p (1 − p) / n): 0 where all or none passed, which is why the interval does not use
    it.

    Raises: UsageError, if it is not 0 <= passed <= n, both whole, or `confidence` is not between 0
    and 1.
    """
    check_confidence(confidence)
    passed = whole("passed", passed)
    n = whole("n", n)
    if passed > n:
        raise UsageError(f"{passed} of {n} is not a proportion")
    return _proportion(passed, n, confidence)


def _proportion(passed: int, n: int, confidence: float) -> Estimate:
    """As `proportion_of`, of arguments that are checked."""
    if n == 0:
        return Estimate(
            None,
            None,
            low=None,
            high=None,
            n=0,
            clusters=None,
            method="wilson",
            confidence=confidence,
        )
    share = passed / n
    low, high = wilson(share, n, quantile=_NORMAL.inv_cdf((1 + confidence) / 2))
    return Estimate(
        share,
        math.sqrt(share * (1 - share) / n),
        low=low,
        high=high,
        n=n,
        clusters=None,
        method="wilson",
        confidence=confidence,
    )


def proportion_interval(
    values: Sequence[float],
    clusters: Sequence[Hashable] | None = None,
    confidence: float = CONFIDENCE,
) -> Estimate:
    """The proportion of 1 among `values`, which are all 0 or 1; within 0 and 1 with clusters too.

    With clusters, Wilson's interval of the number of independent values that the cluster-robust
    standard error is
    worth: p (1 − p) / se², at most n, with Student's t for the normal quantile. Where all values
    are equal, each cluster is worth one. With every value its own cluster it is `proportion_of`.

    Source: Korn and Graubard, Survey Methodology 24 (1998), with Wilson's interval as in Franco,
    Little, Louis and Slud, Journal of Survey Statistics and Methodology 7 (2019).

    Raises: UsageError, if a value is neither 0 nor 1, the numbers of clusters and values differ, or
    `confidence` is not between 0 and 1.
    """
    check_confidence(confidence)
    check_clusters(values, clusters)
    if not all(map((0, 1).__contains__, values)):
        raise UsageError("the values of a proportion have to be 0 or 1")
    n = len(values)
    if clusters is None or n == 0:
        return _proportion(int(sum(values)), n, confidence)
    share = sum(values) / n
    se, count = standard_error(values, share, clusters=clusters)
    if count == n:
        return _proportion(int(sum(values)), n, confidence)
    if se is None:
        return Estimate(
            share,
            None,
            low=None,
            high=None,
            n=n,
            clusters=count,
            method="wilson, clustered",
            confidence=confidence,
        )
    if se > 0:
        worth = min(n, share * (1 - share) / se**2)
    elif 0 < share < 1:
        worth = n
    else:
        worth = count
    low, high = wilson(share, worth, quantile=student_quantile((1 + confidence) / 2, count - 1))
    return Estimate(
        share,
        se,
        low=low,
        high=high,
        n=n,
        clusters=count,
        method="wilson, clustered",
        confidence=confidence,
    )


def wilson(share: float, n: float, quantile: float) -> tuple[float, float]:
    """The limits of Wilson's score interval for a proportion `share` of `n` results.

    Source: Wilson, Journal of the American Statistical Association 22 (1927); method 3 of Newcombe,
    Statistics in Medicine 17 (1998) 857.

    Raises: UsageError, if `share` is not from 0 to 1, or `n` not above 0.
    """
    check_share("share", share)
    if not n > 0:
        raise UsageError(f"n is {n!r}, expected a number above 0")
    squared = quantile * quantile
    centre = share + squared / (2 * n)
    reach = quantile * math.sqrt(share * (1 - share) / n + squared / (4 * n * n))
    low = (centre - reach) / (1 + squared / n)
    high = (centre + reach) / (1 + squared / n)
    return 0.0 if share == 0 else max(0.0, low), 1.0 if share == 1 else min(1.0, high)


def standard_error(
    values: Sequence[float], mean: float, clusters: Sequence[Hashable] | None = None
) -> tuple[float | None, int]:
    """The standard error of a mean, None for fewer than two clusters, and the number of clusters.

    Without `clusters` each value is a cluster.
    """
    n = len(values)
    if clusters is None:
        parts = (value - mean for value in values)
        count = n
    else:
        sums: dict[Hashable, float] = {}
        for value, cluster in zip(values, clusters, strict=True):
            sums[cluster] = sums.get(cluster, 0.0) + (value - mean)
        parts = list(sums.values())
        count = len(sums)
    if count < 2:
        return None, count
    return math.sqrt(count / (count - 1) * math.fsum(part * part for part in parts)) / n, count


def mean_of(values: Sequence[float]) -> float:
    """The mean of at least one value, limited to the range of the values."""
    return float(min(max(math.fsum(values) / len(values), min(values)), max(values)))


def percentiles(values: Sequence[float], shares: Sequence[float]) -> list[float | None]:
    """The quantiles of `values` at each of `shares` (0 to 1); None for each without values.

    Source: Hyndman and Fan, American Statistician 50 (1996), definition 7: linear between two
    values.

    Raises: UsageError, if a value is not finite, or a share not from 0 to 1.
    """
    check_finite(values)
    for share in shares:
        check_share("a share", share)
    last = len(values) - 1
    if last < 0:
        return [None for _ in shares]
    if last < _MOST_SORTED:
        ordered = sorted(values)
    else:
        ordered = _Ordered(values)
    found: list[float | None] = []
    for share in shares:
        place = share * last
        below = math.floor(place)
        above = min(below + 1, last)
        found.append(ordered[below] + (place - below) * (ordered[above] - ordered[below]))
    return found


class _Ordered:
    """Many values in order; those around a place are sorted, as a sorted list of all would take
    four times the memory of their array.
    """

    def __init__(self, values: Sequence[float]) -> None:
        self._values = values
        self._sample = sorted(values[:: len(values) // _SAMPLED])
        self._first = self._end = 0
        self._sorted: list[float] = []

    def __getitem__(self, place: int) -> float:
        if not self._first <= place < self._end:
            self._sort_around(place)
        return self._sorted[place - self._first]

    def _sort_around(self, place: int) -> None:
        values = self._values
        sample = self._sample
        middle = place * len(sample) // len(values)
        if middle >= _AROUND:
            low = sample[middle - _AROUND]
        else:
            low = -math.inf
        if middle + _AROUND < len(sample):
            high = sample[middle + _AROUND]
        else:
            high = math.inf
        first = sum(map(partial(operator.gt, low), values))
        near = [low] * operator.countOf(values, low)
        if low < high:
            near += sorted(value for value in values if low < value < high)
            near += [high] * operator.countOf(values, high)
        if not first <= place < first + len(near):
            first = 0
            near = sorted(values)
        self._first = first
        self._end = first + len(near)
        self._sorted = near
