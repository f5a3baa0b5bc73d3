"""Means over strata, and weighted means, with their standard errors and intervals."""

from __future__ import annotations

import math
import operator
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import TypeAlias

from evaluator.batch.statistics.argument_checks import check_clusters, check_finite
from evaluator.batch.statistics.distributions import normal_quantile, student_quantile
from evaluator.batch.statistics.intervals import (
    CONFIDENCE,
    Estimate,
    mean_of,
    proportion_interval,
    standard_error,
    wilson,
)
from evaluator.errors import UsageError

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
    of = range(len(values)) if clusters is None else clusters
    errors = dict[Hashable, float]()
    worths = dict[Hashable, float]()
    for value, share, cluster in zip(values, shares, of, strict=True):
        if share:
            errors[cluster] = errors.get(cluster, 0.0) + share * (value - mean)
            worths[cluster] = worths.get(cluster, 0.0) + share
    count = len(worths)
    n = len(values)
    found = Estimate(mean, None, None, None, n, None if clusters is None else count, "t")
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
