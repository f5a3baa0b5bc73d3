"""Means over strata, weighted means, and the epochs of a sample as one number."""

from __future__ import annotations

import math
import operator
import re
from array import array
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from statistics import median
from typing import TypeAlias

from evaluator.batch.statistics.intervals import (
    CONFIDENCE,
    Estimate,
    check_clusters,
    check_finite,
    mean_of,
    normal_quantile,
    proportion_interval,
    standard_error,
    student_quantile,
    wilson,
)
from evaluator.errors import UsageError
from evaluator.fields import JsonForm
from evaluator.lazy_dataclass import frozen

_NO_SPREAD = 1e-12
Stratum: TypeAlias = "tuple[Sequence[float], Sequence[Hashable] | None]"
"""The values of a group, and the cluster of each; None: they are independent."""


def stratified_interval(strata: Sequence[Stratum], weights: Sequence[float]) -> Estimate:
    """The mean of the means of `strata`, weighted by `weights`. The strata are independent, and
    taken as given.

    `se` is the root of the weighted sum of their variances. The interval is by Student's t with
    Satterthwaite's degrees of freedom, limited to [0, 1] where all values are in it. Where all
    values are 0 or 1 it is Wilson's of as many results as the standard error is worth, joined with
    the one that adds up the squared distances to the limits of each stratum (MOVER): a small
    stratum without a failure is not taken as certain. There is neither `se` nor interval where a
    stratum with a weight has fewer than two values, or clusters.

    Sources: Cochran, Sampling Techniques, 3rd edition (1977), chapter 5; Satterthwaite, Biometrics
    Bulletin 2 (1946) 110; Zou and Donner, Statistics in Medicine 27 (2008) 1693.

    Raises: UsageError, if a stratum is empty or has a value that is not finite, or weights are
    negative, add up to 0, or are not as many as strata.
    """
    shares = _shares(weights, len(strata))
    values = [value for stratum, _ in strata for value in stratum]
    check_finite(values)
    if not all(stratum for stratum, _ in strata):
        raise UsageError("a stratum has no values")
    means = [mean_of(stratum) for stratum, _ in strata]
    mean = min(max(math.fsum(map(operator.mul, shares, means)), min(means)), max(means))
    n = len(values)
    found = Estimate(mean, None, None, None, n)
    variances = list[float]()
    freedoms = list[int]()
    worths = list[float]()
    for share, own, (stratum, clusters) in zip(shares, means, strata, strict=True):
        if share:
            se, count = standard_error(stratum, own, clusters=clusters)
            if se is None:
                return found
            variances.append((share * se) ** 2)
            freedoms.append(count - 1)
            worths.append(share * share / count)
    total = math.fsum(variances)
    se = math.sqrt(total)
    if se > _NO_SPREAD:
        df = total**2 / math.fsum(v * v / df for v, df in zip(variances, freedoms, strict=True))
        quantile = student_quantile((1 + CONFIDENCE) / 2, df)
    else:
        quantile = _quantile(
            sum(freedoms), is_independent=all(clusters is None for _, clusters in strata)
        )
    low, high, method = _limits(
        values, mean, se=se, quantile=quantile, effective=1 / math.fsum(worths)
    )
    if low is not None and high is not None and all(value in (0, 1) for value in values):
        each = [proportion_interval(*stratum) for stratum in strata]
        below = math.hypot(
            *(c * (m - (e.low or 0.0)) for c, m, e in zip(shares, means, each, strict=True))
        )
        above = math.hypot(
            *(
                c * ((1.0 if e.high is None else e.high) - m)
                for c, m, e in zip(shares, means, each, strict=True)
            )
        )
        low = min(low, max(0.0, mean - below))
        high = max(high, min(1.0, mean + above))
    return replace(found, se=se, low=low, high=high, method=method)


def weighted_interval(
    values: Sequence[float], weights: Sequence[float], clusters: Sequence[Hashable] | None = None
) -> Estimate:
    """The mean of `values` weighted by `weights`, with a cluster-robust standard error of this
    ratio.

    The interval is by Student's t, limited to [0, 1] where all values are in it. Where all values
    are 0 or 1 it is Wilson's of as many results as the standard error is worth; where all are
    equal, of as many as the weights of the clusters are worth (Kish's effective sample size).
    Values with weight 0 are in `n` only. With one cluster there is no interval.

    Sources: Kish, Survey Sampling (1965); as `proportion_interval` and `mean_interval`.

    Raises: UsageError, if a value is not finite, or weights are negative, add up to 0, or are not
    as many as values.
    """
    check_finite(values)
    check_clusters(values, clusters)
    shares = _shares(weights, len(values))
    mean = min(
        max(math.fsum(s * value for s, value in zip(shares, values, strict=True)), min(values)),
        max(values),
    )
    if clusters is None:
        of = range(len(values))
    else:
        of = clusters
    errors = dict[Hashable, float]()
    worths = dict[Hashable, float]()
    for value, share, cluster in zip(values, shares, of, strict=True):
        if share:
            errors[cluster] = errors.get(cluster, 0.0) + share * (value - mean)
            worths[cluster] = worths.get(cluster, 0.0) + share
    count = len(worths)
    n = len(values)
    found = Estimate(
        mean,
        None,
        low=None,
        high=None,
        n=n,
        clusters=None if clusters is None else count,
        method="t",
    )
    if count < 2:
        return found
    se = math.sqrt(count / (count - 1) * math.fsum(error * error for error in errors.values()))
    is_independent = se <= _NO_SPREAD and count == sum(1 for share in shares if share)
    quantile = _quantile(count - 1, is_independent=is_independent)
    effective = 1 / math.fsum(worth * worth for worth in worths.values())
    low, high, method = _limits(values, mean, se=se, quantile=quantile, effective=effective, most=n)
    return replace(found, se=se, low=low, high=high, method=method)


def _quantile(df: float, *, is_independent: bool) -> float:
    """Student's; for independent values without a spread the normal one, as for a plain
    proportion.
    """
    share = (1 + CONFIDENCE) / 2
    if is_independent:
        return normal_quantile(share)
    return student_quantile(share, df)


def _limits(
    values: Sequence[float],
    mean: float,
    se: float,
    quantile: float,
    effective: float,
    most: float = math.inf,
) -> tuple[float | None, float | None, str]:
    """The limits and their method. Values are worth `effective` results where they have no spread,
    at `most` that many otherwise.
    """
    is_share = all(0 <= value <= 1 for value in values)
    has_spread = se > _NO_SPREAD
    if has_spread and not all(value in (0, 1) for value in values):
        low = mean - quantile * se
        high = mean + quantile * se
        if is_share:
            return (max(0.0, low), min(1.0, high), "t")
        return (low, high, "t")
    if not is_share:
        return None, None, "t"
    if has_spread:
        worth = min(most, mean * (1 - mean) / se**2)
    else:
        worth = effective
    return *wilson(mean, worth, quantile=quantile), "wilson, clustered"


def _shares(weights: Sequence[float], expected: int) -> list[float]:
    check_finite(weights)
    total = math.fsum(weights)
    if len(weights) != expected or not total > 0 or min(weights) < 0:
        raise UsageError(
            "weights have to be numbers of at least 0, one for each value, and not only 0"
        )
    return [weight / total for weight in weights]


_PASSES = re.compile(r"pass([@^])([1-9][0-9]{0,5})")


@frozen
class Reducer:
    """Combines a sample's epochs into one number. `of_passes`: from 0 and 1 for whether each
    passed, not from the values.

    `least` is the number of judged epochs that a sample needs.
    """

    name: str
    reduce: Callable[[Sequence[float]], float]
    of_passes: bool = False
    least: int = 1


@frozen
class Variance(JsonForm):
    """The variance of values `within` samples, and of the samples' means `between` them.

    Each is None without a sample of two values, `between` also without two samples. `samples` and
    `values` are counts.
    """

    within: float | None
    between: float | None
    samples: int
    values: int


def reducer(name: str) -> Reducer:
    """The reducer of that name: mean, median, mode, max, min, pass@k or pass^k with k from 1.

    mode is the most frequent value; the lowest of several equally frequent ones.

    Raises: UsageError, for an unknown name.
    """
    if name in _PLAIN:
        return Reducer(name, _PLAIN[name])
    found = _PASSES.fullmatch(name)
    if found is None:
        raise UsageError(
            f"unknown reducer {name!r}; reducers: {', '.join(_PLAIN)}, pass@k and pass^k (such as "
            "pass@3)"
        )
    k = int(found[2])
    if found[1] == "@":
        estimate = pass_at_k
    else:
        estimate = pass_hat_k
    return Reducer(
        name, lambda passes: estimate(len(passes), round(sum(passes)), k), of_passes=True, least=k
    )


def pass_at_k(n: int, passed: int, k: int) -> float:
    """The probability that at least one of k tries passes, an unbiased estimate from `passed` of n
    tries.

    It is 1 − C(n − passed, k) / C(n, k).

    Source: Chen et al., "Evaluating Large Language Models Trained on Code" (2021,
    arXiv:2107.03374), equation 1.

    Raises: UsageError, unless 0 <= passed <= n and 1 <= k <= n.
    """
    _check_passes(n, passed, k=k)
    ways = math.comb(n, k)
    return (ways - math.comb(n - passed, k)) / ways


def pass_hat_k(n: int, passed: int, k: int) -> float:
    """The probability that all of k tries pass, an unbiased estimate from `passed` of n tries.

    It is C(passed, k) / C(n, k).

    Source: Yao et al., "τ-bench" (2024, arXiv:2406.12045).

    Raises: UsageError, unless 0 <= passed <= n and 1 <= k <= n.
    """
    _check_passes(n, passed, k=k)
    return math.comb(passed, k) / math.comb(n, k)


def _check_passes(n: int, passed: int, k: int) -> None:
    if not 0 <= passed <= n:
        raise UsageError(f"{passed} of {n} tries cannot have passed")
    if not 1 <= k <= n:
        raise UsageError(f"k is {k}, expected 1 to {n} for {n} tries")


def variance(samples: Iterable[Sequence[float]]) -> Variance:
    """The components of variance of values in samples, which may have different numbers of epochs.

    `within` is the mean square within samples; `between` the mean square between them less
    `within`, divided by the (adjusted) number of epochs, and 0 where that is negative. Samples
    without a value are ignored.

    Source: the one-way analysis of variance with random effects; Searle, Casella and McCulloch,
    Variance Components (1992).

    Raises: UsageError, if a value is not finite.
    """
    k = 0
    n = 0
    squares = 0
    total = 0.0
    sizes = array("q")
    means = array("d")
    inside = array("d")
    for values in samples:
        if not len(values):
            continue
        check_finite(values)
        mean = mean_of(values)
        inside.append(math.fsum((value - mean) ** 2 for value in values))
        sizes.append(len(values))
        means.append(mean)
        k = k + 1
        n = n + len(values)
        squares = squares + len(values) ** 2
        total = total + math.fsum(values)
    if n == k:
        return Variance(None, None, k, n)
    within = math.fsum(inside) / (n - k)
    if k < 2:
        return Variance(within, None, k, n)
    overall = total / n
    square_between = math.fsum(
        size * (mean - overall) ** 2 for size, mean in zip(sizes, means, strict=True)
    ) / (k - 1)
    epochs = (n - squares / n) / (k - 1)
    return Variance(within, max(0.0, (square_between - within) / epochs), k, n)


def _mode(values: Sequence[float]) -> float:
    counts = Counter(values)
    most = max(counts.values())
    return min(value for value, count in counts.items() if count == most)


_PLAIN: dict[str, Callable[[Sequence[float]], float]] = {
    "mean": mean_of,
    "median": median,
    "mode": _mode,
    "max": max,
    "min": min,
}
