"""Means of labels that only a few results have, corrected by predictions that all have: what people
say of some answers corrects what a judge says of every answer.

In a stratum with n labels y, predictions f of the labelled results and predictions f' of the N
others, the estimate is the power-tuned one of prediction-powered inference:

    mean(y) + λ (mean(f') − mean(f)),    λ = cov(y, f) / ((1 + n / N) var(f, f')), within [0, 1]

with the variance var(y − λ f) / n + λ² var(f') / N. The strata are weighted by their shares of the
results; as these shares are those of a sample too, the variance of the strata's means over the
results is added.

Where the strata are the verdicts of a judge, f is constant in each and λ is 0: the estimate is the
share of passed labels in each stratum. It is unbiased for any judge, however often it is wrong. A
bad judge only makes the interval wider.

Sources: Angelopoulos, Duchi and Zrnic, "PPI++" (2023, arXiv:2311.01453); Fisch et al., "Stratified
Prediction-Powered Inference" (2024, arXiv:2406.04291); for the shares of the strata, two-phase
sampling in Cochran, Sampling Techniques, 3rd edition (1977), chapter 12; the interval from those of
the strata: Zou and Donner, Statistics in Medicine 27 (2008) 1693.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import replace

from evaluator.batch.statistics.intervals import (
    CONFIDENCE,
    Estimate,
    check_clusters,
    check_confidence,
    check_finite,
    incomplete_beta,
    mean_of,
    normal_below,
    normal_quantile,
    student_quantile,
)
from evaluator.batch.statistics.paired import PairedDifference
from evaluator.errors import UsageError
from evaluator.lazy_dataclass import frozen

_NO_SPREAD = 1e-12


@frozen
class _Stratum:
    """The estimate of a stratum, which has `share` of the results.

    `labels` are its labels. `influences` is what each labelled and each other result adds to the
    error of `mean`, by its place among all results. `variance` is None with one label.
    """

    share: float
    size: int
    mean: float
    labels: Sequence[float]
    variance: float | None
    influences: Sequence[tuple[int, float]]


def corrected_mean(
    predictions: Sequence[float],
    labels: Sequence[float | None],
    *,
    strata: Sequence[Hashable] | None = None,
    clusters: Sequence[Hashable] | None = None,
    confidence: float = CONFIDENCE,
) -> Estimate:
    """The mean of the labels that all results would have.

    `predictions` has a number for each result, `labels` a number for each that is labelled and None
    for every other. `strata` names the stratum of each result; labelled results have to be drawn at
    random within their stratum, at any rate. For predictions that are 0 or 1, give these.
    `clusters` names the cluster of each result: related results, such as the epochs of a sample.

    Returns: an estimate whose `n` is the number of labels, and `clusters` that of the clusters with
    a label. Without `se` and interval where a stratum has one label, or all labels are in one
    cluster. Limited to [0, 1] where all labels are within it.

    Raises: UsageError, if a stratum has no label, a value is not finite, the numbers of values
    differ, or `confidence` is not between 0 and 1.
    """
    check_confidence(confidence)
    _check_values(predictions, labels, strata=strata, clusters=clusters)
    total = len(predictions)
    given = [label for label in labels if label is not None]
    if clusters is None:
        count = len(given)
        shown = None
    else:
        pairs = zip(labels, clusters, strict=True)
        count = len({cluster for label, cluster in pairs if label is not None})
        shown = count
    found = Estimate(
        None,
        None,
        low=None,
        high=None,
        n=len(given),
        clusters=shown,
        method="corrected",
        confidence=confidence,
    )
    if not total:
        return found
    members = _members([None] * total if strata is None else strata)
    parts = [_stratum(name, places, predictions, labels=labels) for name, places in members.items()]
    is_share = all(label in (0, 1) for label in given)
    mean = math.fsum(part.share * part.mean for part in parts)
    if is_share:
        mean = min(1.0, max(0.0, mean))
    found = replace(found, mean=mean)
    variances = [part.share**2 * part.variance for part in parts if part.variance is not None]
    if count < 2 or len(variances) < len(parts):
        return found
    between = math.fsum(part.share * (part.mean - mean) ** 2 for part in parts) / (total - 1)
    independent = between + math.fsum(variances)
    variance = independent
    if clusters is not None:
        # The errors of a cluster are added up before they are squared, also of different strata.
        errors = _errors_of_clusters(parts, members, mean, clusters=clusters).values()
        variance = count / (count - 1) * math.fsum(error * error for error in errors)
    se = math.sqrt(variance)
    df = _freedom(parts, independent, most=count - len(parts))
    reach = student_quantile((1 + confidence) / 2, df) * se
    if is_share:
        # How much wider than for independent results, and than with a known variance.
        inflation = 1.0
        if independent > 0:
            inflation = math.sqrt(variance / independent)
        if se > _NO_SPREAD:
            inflation *= reach / se / normal_quantile((1 + confidence) / 2)
        low, high = _limits_of_share(
            parts, mean, between, inflation=inflation, confidence=confidence
        )
    else:
        low, high = _limits_of_values(given, mean, reach)
    return replace(found, se=se, low=low, high=high)


def _check_values(
    predictions: Sequence[float],
    labels: Sequence[float | None],
    strata: Sequence[Hashable] | None,
    clusters: Sequence[Hashable] | None,
) -> None:
    check_finite(predictions)
    check_finite([label for label in labels if label is not None])
    total = len(predictions)
    if len(labels) != total:
        raise UsageError(f"{len(labels)} labels for {total} predictions")
    check_clusters(predictions, clusters)
    if strata is not None and len(strata) != total:
        raise UsageError(f"{len(strata)} strata for {total} predictions")


def _freedom(parts: Sequence[_Stratum], variance: float, most: int) -> float:
    """Satterthwaite's degrees of freedom of the sum of the variances, at least 1: a stratum with a
    few labels and much weight makes the variance uncertain.
    """
    variances = [(part.share**2 * (part.variance or 0.0), len(part.labels)) for part in parts]
    spread = math.fsum(own * own / (n - 1) for own, n in variances if n > 1)
    if spread <= 0:
        return max(1, most)
    return max(1.0, min(most, variance**2 / spread))


def cautious_reach(side: PartlyLabelled, found: Estimate) -> float | None:
    """Half the width of the interval of `found`, the corrected share of `side`, or more where the
    labels are so few or so equal that the width may be small by chance: with two more labels of
    each kind in each stratum. Labelling that ends when the width itself is small ends too early
    too often, as it ends where the variance is underestimated.

    Source: for the two more labels, Agresti and Coull, The American Statistician 52 (1998) 119.
    """
    if found.low is None or found.high is None or found.mean is None:
        return None
    total = len(side.predictions)
    own = 0.0
    cautious = 0.0
    for name, places in _members(side.strata).items():
        part = _stratum(name, places, side.predictions, labels=side.labels)
        n = len(part.labels)
        share = (math.fsum(part.labels) + 2) / (n + 4)
        between = part.share * (part.mean - found.mean) ** 2 / (total - 1)
        own += between + part.share**2 * (part.variance or 0.0)
        cautious += between + part.share**2 * share * (1 - share) / max(1, n - 1)
    reach = (found.high - found.low) / 2
    if own <= 0:
        return reach
    return reach * math.sqrt(max(1.0, cautious / own))


def _stratum(
    name: Hashable,
    places: Sequence[int],
    predictions: Sequence[float],
    labels: Sequence[float | None],
) -> _Stratum:
    labelled = [(place, y) for place in places if (y := labels[place]) is not None]
    others = [place for place in places if labels[place] is None]
    if not labelled:
        raise UsageError(f"none of the {len(places):,} results in the stratum {name!r} is labelled")
    own = [y for _, y in labelled]
    seen = [predictions[place] for place, _ in labelled]
    unseen = [predictions[place] for place in others]
    tuning = _tuning(own, seen, unseen=unseen)
    rest = [y - tuning * f for y, f in zip(own, seen, strict=True)]
    level = math.fsum(rest) / len(rest)
    n = len(own)
    influences = [
        (place, (value - level) / n) for (place, _), value in zip(labelled, rest, strict=True)
    ]
    mean = level
    variance = None
    if n > 1:
        variance = _variance(rest, level) / n
    if tuning:
        centre = math.fsum(unseen) / len(unseen)
        mean += tuning * centre
        influences += [
            (place, tuning * (f - centre) / len(unseen))
            for place, f in zip(others, unseen, strict=True)
        ]
        if variance is not None and len(unseen) > 1:
            variance += tuning**2 * _variance(unseen, centre) / len(unseen)
    share = len(places) / len(predictions)
    return _Stratum(share, len(places), mean, own, variance=variance, influences=influences)


def _tuning(labels: Sequence[float], seen: Sequence[float], unseen: Sequence[float]) -> float:
    """λ: 0 for predictions that say nothing, 1 for those that are as good as labels."""
    everything = [*seen, *unseen]
    if not unseen or len(everything) < 2:
        return 0.0
    spread = _variance(everything, math.fsum(everything) / len(everything))
    if spread <= _NO_SPREAD:
        return 0.0
    centre = math.fsum(seen) / len(seen)
    level = mean_of(labels)
    joint = math.fsum((f - centre) * (y - level) for f, y in zip(seen, labels, strict=True))
    tuning = joint / len(labels) / ((1 + len(labels) / len(unseen)) * spread)
    return min(1.0, max(0.0, tuning))


def _variance(values: Sequence[float], mean: float) -> float:
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)


def _errors_of_clusters(
    parts: Sequence[_Stratum],
    members: dict[Hashable, list[int]],
    mean: float,
    clusters: Sequence[Hashable],
) -> dict[Hashable, float]:
    """What the results of each cluster add to the error of `mean`."""
    total = len(clusters)
    sums: dict[Hashable, float] = {}
    for part, places in zip(parts, members.values(), strict=True):
        for place in places:
            cluster = clusters[place]
            sums[cluster] = sums.get(cluster, 0.0) + (part.mean - mean) / total
        for place, influence in part.influences:
            sums[clusters[place]] += part.share * influence
    return sums


@frozen
class PartlyLabelled:
    """The arguments of `corrected_mean` for one side of a difference."""

    predictions: Sequence[float]
    labels: Sequence[float | None]
    strata: Sequence[Hashable]
    clusters: Sequence[Hashable]


def corrected_difference(
    a: PartlyLabelled, b: PartlyLabelled, confidence: float = CONFIDENCE
) -> PairedDifference:
    """The difference b − a of two corrected means over the same clusters.

    The clusters of both sides have common names: the sample, or what it belongs to. What a cluster
    adds to the errors of both sides is subtracted before it is squared, so that the difficulty of a
    sample cancels out, whether it is labelled on both sides or not. The interval is joined from
    those of the sides with their correlation. p is that of a normal variable whose distance from 0
    is measured in units of the interval's side towards 0, so the two never disagree.

    Returns: a difference whose `n` is the number of results of a side, without an interval where a
    side has none.
    Raises: UsageError, as `corrected_mean`.

    Source: for the interval, Zou and Donner, Statistics in Medicine 27 (2008) 1693.
    """
    found = [_side(side, confidence) for side in (a, b)]
    (first, errors_a), (second, errors_b) = found
    method = "corrected, clustered"
    n = min(len(a.predictions), len(b.predictions))
    names = errors_a.keys() | errors_b.keys()
    clusters = len(names)
    unknown = PairedDifference(
        None,
        None,
        low=None,
        high=None,
        p=None,
        n=n,
        method=method,
        clusters=clusters,
        confidence=confidence,
    )
    if first.mean is None or second.mean is None:
        return unknown
    mean = second.mean - first.mean
    if (
        first.low is None
        or first.high is None
        or second.low is None
        or second.high is None
        or clusters < 2
    ):
        return replace(unknown, mean=mean)
    pairs = [(errors_a.get(name, 0.0), errors_b.get(name, 0.0)) for name in names]
    factor = clusters / (clusters - 1)
    se = math.sqrt(factor * math.fsum((y - x) ** 2 for x, y in pairs))
    own = math.fsum(x * x for x, _ in pairs) * math.fsum(y * y for _, y in pairs)
    correlation = 0.0
    if own > 0:
        correlation = math.fsum(x * y for x, y in pairs) / math.sqrt(own)
    below = _joined(second.mean - second.low, first.high - first.mean, correlation)
    above = _joined(second.high - second.mean, first.mean - first.low, correlation)
    reach = below if mean > 0 else above
    p = None
    if reach > _NO_SPREAD:
        distance = abs(mean) / reach * normal_quantile((1 + confidence) / 2)
        p = 2 * normal_below(-distance)
    return replace(unknown, mean=mean, se=se, low=mean - below, high=mean + above, p=p)


def _side(side: PartlyLabelled, confidence: float) -> tuple[Estimate, dict[Hashable, float]]:
    found = corrected_mean(
        side.predictions,
        side.labels,
        strata=side.strata,
        clusters=side.clusters,
        confidence=confidence,
    )
    if found.mean is None:
        return found, {}
    members = _members(side.strata)
    parts = [
        _stratum(name, places, side.predictions, labels=side.labels)
        for name, places in members.items()
    ]
    return found, _errors_of_clusters(parts, members, found.mean, clusters=side.clusters)


def _members(strata: Sequence[Hashable]) -> dict[Hashable, list[int]]:
    """The places of the results of each stratum."""
    members: dict[Hashable, list[int]] = {}
    for place, name in enumerate(strata):
        members.setdefault(name, []).append(place)
    return members


def _joined(first: float, second: float, correlation: float) -> float:
    return math.sqrt(max(0.0, first * first + second * second - 2 * correlation * first * second))


def _limits_of_values(labels: Sequence[float], mean: float, reach: float) -> tuple[float, float]:
    """The limits `reach` from a mean, within [0, 1] where all labels are."""
    low = mean - reach
    high = mean + reach
    if all(0 <= label <= 1 for label in labels):
        low = max(0.0, low)
        high = min(1.0, high)
    return low, high


def _limits_of_share(
    parts: Sequence[_Stratum], mean: float, between: float, inflation: float, confidence: float
) -> tuple[float, float]:
    """The limits of a mean of labels that are 0 or 1: the distances to Jeffreys' limits of each
    stratum, weighted, and that of the strata's means, added as squares.

    A stratum whose labels are all equal is not taken as certain. It adds nothing to the variance,
    so `inflation` knows nothing of it, and its limits are widened by Student's t of its own labels.
    """
    quantile = normal_quantile((1 + confidence) / 2)
    around = quantile * math.sqrt(between)
    below = [around]
    above = [around]
    for part in parts:
        share = mean_of(part.labels)
        n = len(part.labels)
        low, high = jeffreys(share, n, confidence)
        # Predictions that explain a part of the labels leave a smaller error than the labels have.
        spread = share * (1 - share) / (n - 1)
        factor = student_quantile((1 + confidence) / 2, n - 1) / quantile
        if spread > 0 and part.variance is not None:
            factor = min(1.0, math.sqrt(part.variance / spread))
        below.append(part.share * min(share, factor * (share - low)))
        above.append(part.share * min(1 - share, factor * (high - share)))
    low = mean - inflation * math.hypot(*below)
    high = mean + inflation * math.hypot(*above)
    return max(0.0, low), min(1.0, high)


def jeffreys(share: float, n: float, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The limits of Jeffreys' interval for a proportion `share` of `n` results: from 0 where none
    passed, to 1 where all did.

    Source: Brown, Cai and DasGupta, Statistical Science 16 (2001) 101.
    """
    passed = share * n + 0.5
    failed = (1 - share) * n + 0.5
    tail = (1 - confidence) / 2
    if share > 0:
        low = _beta_quantile(tail, passed, failed)
    else:
        low = 0.0
    if share < 1:
        high = 1 - _beta_quantile(tail, failed, passed)
    else:
        high = 1.0
    return low, high


def _beta_quantile(probability: float, a: float, b: float) -> float:
    low = 0.0
    high = 1.0
    while high - low > 1e-12:
        middle = (low + high) / 2
        if incomplete_beta(middle, a, b) < probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2
