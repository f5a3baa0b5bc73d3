"""Paired differences of two batches over the same samples, their significance, and the number of
pairs needed.

Pairs are subtracted before averaging, so the difficulty of a sample for both sides cancels out:
Miller, "Adding Error Bars to Evals" (2024, arXiv:2411.00640). All differences are b − a: above 0, b
is better.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from random import Random

from evaluator.batch.statistics.intervals import (
    CONFIDENCE,
    binomial_below,
    check_confidence,
    mean_interval,
    normal_below,
    normal_quantile,
    percentiles,
    student_two_sided,
    whole,
    wilson,
)
from evaluator.errors import UsageError
from evaluator.fields import JsonForm
from evaluator.lazy_dataclass import frozen

RESAMPLES = 2_000
_ROUNDING = 1e-12
_SMALLEST_P = 1e-300


@frozen
class PairedDifference(JsonForm):
    """The mean difference of `n` pairs, its standard error and interval, and the two-sided p-value
    of no difference.

    Each is None where n is 0, and each except `mean` for a single value or a single cluster.
    `method` names the interval and the test. `clusters` is None where pairs were treated as
    independent.
    """

    mean: float | None
    se: float | None
    low: float | None
    high: float | None
    p: float | None
    n: int
    method: str
    clusters: int | None = None
    confidence: float = CONFIDENCE


def mean_difference(
    differences: Sequence[float],
    clusters: Sequence[Hashable] | None = None,
    confidence: float = CONFIDENCE,
) -> PairedDifference:
    """The mean of the pairs' differences by Student's t, cluster-robust with `clusters`.

    Equal differences show no spread, but that does not prove that there is none. p is None then (1
    if each difference is 0), and the interval is that for unobserved events: as none of n pairs (or
    clusters) differs from the others, at most a share of 1 − (α/2)^(1/n) of all pairs does, for
    differences in [−1, 1]. Other differences have no interval.

    Source, for none of n: Clopper and Pearson, Biometrika 26 (1934) 404; Hanley and Lippman-Hand,
    JAMA 249 (1983) 1743.

    Raises: UsageError, as `mean_interval`.
    """
    seen = mean_interval(differences, clusters, confidence=confidence)
    if clusters is None:
        method = "paired t"
    else:
        method = "paired t, clustered"
    low = seen.low
    high = seen.high
    p = None
    if seen.mean is not None and seen.se is not None:
        if seen.clusters is None:
            units = seen.n
        else:
            units = seen.clusters
        if seen.se > _ROUNDING * max(map(abs, differences)):
            p = student_two_sided(seen.mean / seen.se, units - 1)
        elif low is not None:
            if clusters is None:
                method = "exact, of none that differs"
            else:
                method = "exact, of no cluster that differs"
            low, high = _interval_without_spread(seen.mean, units, confidence=confidence)
            p = None if any(differences) else 1.0
    return PairedDifference(
        seen.mean,
        seen.se,
        low=low,
        high=high,
        p=p,
        n=seen.n,
        method=method,
        clusters=seen.clusters,
        confidence=confidence,
    )


def signed_z(
    differences: Sequence[float], clusters: Sequence[Hashable] | None = None
) -> float | None:
    """The normal score of `mean_difference`: its sign is that of the mean, and its two tails are p.

    Where all differences (or clusters) are equal it is that of the sign test. None for fewer than
    two.

    Raises: UsageError, as `mean_interval`.
    """
    found = mean_difference(differences, clusters)
    if found.mean is None or found.se is None:
        return None
    p = found.p
    if p is None:
        if found.clusters is None:
            units = found.n
        else:
            units = found.clusters
        p = 2 * 0.5**units
    return math.copysign(normal_quantile(max(p, _SMALLEST_P) / 2), found.mean)


def _interval_without_spread(
    mean: float, units: int, confidence: float
) -> tuple[float | None, float | None]:
    """The range of the true mean if all `units` have the difference `mean` and others have one in
    [−1, 1].
    """
    if abs(mean) > 1:
        return None, None
    others = 1 - ((1 - confidence) / 2) ** (1 / units)
    return mean - others * (mean + 1), mean + others * (1 - mean)


def mcnemar_p(only_a: int, only_b: int) -> float:
    """The exact two-sided p-value of McNemar's test: `only_a` passed on side a alone, `only_b` on b
    alone.

    Twice the binomial tail of the smaller count with probability one half, at most 1; 1 where none
    flipped.

    Source: McNemar, Psychometrika 12 (1947), exact as in Agresti, Categorical Data Analysis (2002),
    chapter 10.

    Raises: UsageError, if a count is not whole or negative.
    """
    only_a = whole("only_a", only_a)
    only_b = whole("only_b", only_b)
    return min(1.0, 2 * binomial_below(min(only_a, only_b), only_a + only_b, chance=0.5))


def mcnemar_difference(
    both: int, only_a: int, only_b: int, neither: int, confidence: float = CONFIDENCE
) -> PairedDifference:
    """The difference of two paired proportions, b's − a's: McNemar's exact p-value, Newcombe's
    interval.

    Unlike that of t, the interval is not empty where no pair flipped.

    Source: method 10 of Newcombe, "Improved confidence intervals for the difference between
    binomial proportions based on paired data", Statistics in Medicine 17 (1998) 2635.

    Raises: UsageError, if a count is not whole or negative, or `confidence` is not between 0 and 1.
    """
    check_confidence(confidence)
    both = whole("both", both)
    neither = whole("neither", neither)
    only_a = whole("only_a", only_a)
    only_b = whole("only_b", only_b)
    n = both + only_a + only_b + neither
    method = "exact McNemar, Newcombe's interval"
    if n == 0:
        return PairedDifference(
            None,
            None,
            low=None,
            high=None,
            p=None,
            n=0,
            method=method,
            clusters=None,
            confidence=confidence,
        )
    quantile = normal_quantile((1 + confidence) / 2)
    share_a = (both + only_a) / n
    share_b = (both + only_b) / n
    mean = (only_b - only_a) / n
    low_a, high_a = wilson(share_a, n, quantile=quantile)
    low_b, high_b = wilson(share_b, n, quantile=quantile)
    correlation = _phi(both, only_a, only_b=only_b, neither=neither)
    low = mean - _square_and_add(share_b - low_b, high_a - share_a, correlation=correlation)
    high = mean + _square_and_add(high_b - share_b, share_a - low_a, correlation=correlation)
    if n > 1:
        se = math.sqrt(max(0.0, (only_a + only_b) / n - mean * mean) / (n - 1))
    else:
        se = None
    p = mcnemar_p(only_a, only_b)
    return PairedDifference(
        mean,
        se,
        low=max(-1.0, low),
        high=min(1.0, high),
        p=p,
        n=n,
        method=method,
        clusters=None,
        confidence=confidence,
    )


def _phi(both: int, only_a: int, only_b: int, neither: int) -> float:
    margins = (both + only_a) * (only_b + neither) * (both + only_b) * (only_a + neither)
    if margins == 0:
        return 0.0
    product = both * neither - only_a * only_b
    if product > 0:
        product = max(product - (both + only_a + only_b + neither) / 2, 0.0)
    return product / math.sqrt(margins)


def _square_and_add(first: float, second: float, correlation: float) -> float:
    return math.sqrt(max(0.0, first * first - 2 * correlation * first * second + second * second))


def bootstrap_difference(
    differences: Sequence[float],
    seed: int,
    resamples: int = RESAMPLES,
    confidence: float = CONFIDENCE,
) -> PairedDifference:
    """The mean of the pairs' differences with a bootstrap interval (BCa), reproducible for the same
    seed and order.

    BCa rather than percentiles, as scores near 0 or 1 are skewed and BCa's coverage is second-order
    accurate. p is the share of resampled means at least as far from the mean as the mean is from 0,
    with the observed one included. It takes `resamples` · n draws of about 0.1 µs.

    Sources: Efron, Journal of the American Statistical Association 82 (1987); Efron and Tibshirani,
    An Introduction to the Bootstrap (1993), section 14.3; p-value: Davison and Hinkley, Bootstrap
    Methods and their Application (1997), section 4.4.

    Raises: UsageError, if a value is not finite, `resamples` is not whole or below 100, or
    `confidence` is not between 0 and 1.
    """
    if whole("resamples", resamples) < 100:
        raise UsageError(f"{resamples} resamples are too few for an interval; at least 100")
    plain = mean_difference(differences, None, confidence=confidence)
    method = "paired bootstrap, BCa"
    if plain.mean is None or not plain.se:
        return plain
    draw = Random(seed).choices
    n = len(differences)
    mean = plain.mean
    means = [math.fsum(draw(differences, k=n)) / n for _ in range(resamples)]
    below = sum(value < mean for value in means) + 0.5 * sum(value == mean for value in means)
    share = min(max(below / resamples, 0.5 / resamples), 1 - 0.5 / resamples)
    bias = normal_quantile(share)
    acceleration = _acceleration(differences, mean)
    tails = [(1 - confidence) / 2, (1 + confidence) / 2]
    low, high = percentiles(
        means, [_corrected(tail, bias, acceleration=acceleration) for tail in tails]
    )
    # A rounding error must not make an equally distant mean look closer.
    reach = abs(mean) * (1 - 1e-12)
    p = (1 + sum(abs(value - mean) >= reach for value in means)) / (resamples + 1)
    return PairedDifference(
        mean,
        plain.se,
        low=low,
        high=high,
        p=p,
        n=n,
        method=method,
        clusters=None,
        confidence=confidence,
    )


def _acceleration(values: Sequence[float], mean: float) -> float:
    """The jackknife's acceleration, which for a mean is the skewness divided by 6 and the root of
    n.
    """
    # Scaled by the largest, as cubes of very small differences would be zero.
    largest = max(abs(value - mean) for value in values)
    units = [(value - mean) / largest for value in values]
    return math.fsum(unit**3 for unit in units) / (6 * math.fsum(unit**2 for unit in units) ** 1.5)


def _corrected(tail: float, bias: float, acceleration: float) -> float:
    moved = bias + normal_quantile(tail)
    return normal_below(bias + moved / (1 - acceleration * moved))


def pairs_needed(
    spread: float, difference: float, power: float = 0.8, confidence: float = CONFIDENCE
) -> int:
    """The number of pairs that show a true difference of that size with that power.

    `spread` is the standard deviation of pairs' differences: ((z_{1 − α/2} + z_power) · spread /
    difference)², rounded up, at least 2.

    Source: Miller (2024), on power analysis, whose ω² + σ_A²/K_A + σ_B²/K_B is spread².

    Raises: UsageError, if the difference is 0 or not finite, the spread negative or not finite, the
    power not between one half and 1, or the confidence not between 0 and 1.
    """
    if not (math.isfinite(difference) and difference):
        raise UsageError("the difference has to be a finite number other than 0")
    return max(2, math.ceil((_reach(spread, power, confidence=confidence) / difference) ** 2))


def power_of(spread: float, difference: float, pairs: int, confidence: float = CONFIDENCE) -> float:
    """The probability that this number of pairs shows a true difference of that size.

    Raises: UsageError, without a pair, or for a spread that is not above 0, or a wrong confidence.
    """
    check_confidence(confidence)
    if whole("pairs", pairs) < 1 or not (math.isfinite(spread) and spread > 0):
        raise UsageError("power needs at least one pair, and a spread above 0")
    reach = normal_quantile((1 + confidence) / 2)
    drift = abs(difference) / spread * math.sqrt(pairs)
    return normal_below(drift - reach) + normal_below(-drift - reach)


def smallest_difference(
    spread: float, pairs: int, power: float = 0.8, confidence: float = CONFIDENCE
) -> float:
    """The smallest true difference that this number of pairs shows with that power: `pairs_needed`,
    inverted.

    Raises: UsageError, without a pair, and as `pairs_needed`.
    """
    if whole("pairs", pairs) < 1:
        raise UsageError("pairs is 0, expected at least 1")
    return _reach(spread, power, confidence=confidence) / math.sqrt(pairs)


def _reach(spread: float, power: float, confidence: float) -> float:
    if not (math.isfinite(spread) and spread >= 0):
        raise UsageError("the spread of differences has to be a number of at least 0")
    if not 0.5 <= power < 1:
        raise UsageError(f"the power is {power}, expected a number from 0.5 to below 1")
    check_confidence(confidence)
    return (normal_quantile((1 + confidence) / 2) + normal_quantile(power)) * spread


@frozen
class RowSpread(JsonForm):
    """The variance of the value of a row, or of its difference: `rows` is the part that epochs do
    not change, `epoch` that of a single epoch.
    """

    rows: float
    epoch: float = 0.0

    def with_epochs(self, epochs: int) -> float:
        """The standard deviation of rows with so many epochs, for `pairs_needed`."""
        return math.sqrt(self.rows + self.epoch / epochs)


def paired_spread(variance_a: float, b: RowSpread, correlation: float) -> RowSpread:
    """The spread of b − a: `variance_a` is that of a's rows as they were measured, `correlation`
    the one of the rows of both sides.

    Source: Miller (2024), on paired differences: Var(b − a) = Var a + Var b − 2 Cov.

    Raises: UsageError, if the correlation is not from −1 to 1, or a variance negative.
    """
    if not -1 <= correlation <= 1:
        raise UsageError(f"the correlation is {correlation!r}, expected a number from -1 to 1")
    if not (variance_a >= 0 and b.rows >= 0 and b.epoch >= 0):
        raise UsageError("variances have to be numbers of at least 0")
    shared = 2 * correlation * math.sqrt(variance_a * b.rows)
    return RowSpread(max(0.0, variance_a + b.rows - shared), b.epoch)
