"""Agreement of judges beyond chance: Cohen's kappa for two, Krippendorff's alpha for any number and
missing ratings.

A rating is any label or number; None is a missing rating. Both measures are 1 for perfect
agreement, about 0 for agreement by chance, and None where all ratings are equal, so that
disagreement is impossible.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from numbers import Real
from typing import Any, Literal

from evaluator.batch.statistics.distributions import check_confidence, normal_quantile, whole
from evaluator.batch.statistics.intervals import CONFIDENCE
from evaluator.errors import UsageError
from evaluator.fields import JsonForm, accept
from evaluator.lazy_dataclass import dataclass

Weights = Literal["linear", "quadratic"]
Level = Literal["nominal", "ordinal", "interval", "ratio"]
Rating = Hashable | None
_NO_SPREAD = 1e-12


@dataclass(frozen=True, slots=True)
class Agreement(JsonForm):
    """An agreement `value`, based on `n` of `of` units: those that enough judges rated.

    `se` and the interval are the large-sample ones of kappa; alpha has none. A kappa whose `se` is
    0 (judges who always agree) has no interval, as it would be empty even for very few units.
    """

    value: float | None
    n: int
    of: int
    raters: int
    se: float | None = None
    low: float | None = None
    high: float | None = None


def cohen_kappa(
    first: Sequence[Rating],
    second: Sequence[Rating],
    weights: Weights | None = None,
    labels: Sequence[Hashable] | None = None,
    confidence: float = CONFIDENCE,
) -> Agreement:
    """Cohen's kappa of two judges over the same units; units that either judge did not rate are not
    in n.

    With `weights`, near misses count partly, by their distance in `labels`, which are ordered from
    least to most; numbers need no labels.

    Sources: Cohen, Educational and Psychological Measurement 20 (1960); weighted: Cohen,
    Psychological Bulletin 70 (1968); standard error: Fleiss, Cohen and Everitt, Psychological
    Bulletin 72 (1969).

    Raises: UsageError, if the judges have different numbers of units, a rating is not among the
    labels or has no order where one is needed, `weights` is unknown, or `confidence` is not between
    0 and 1.
    """
    if len(first) != len(second):
        raise UsageError(
            f"two judges have to rate the same units; one has {len(first)} and the other "
            f"{len(second)}"
        )
    return cohen_kappa_of(
        Counter(zip(first, second, strict=True)), weights, labels=labels, confidence=confidence
    )


def cohen_kappa_of(
    counts: Mapping[tuple[Any, Any], int],
    weights: Weights | None = None,
    labels: Sequence[Hashable] | None = None,
    confidence: float = CONFIDENCE,
) -> Agreement:
    """`cohen_kappa` from the number of units with each pair of ratings. Raises: as
    `cohen_kappa`.
    """
    if weights is not None:
        accept(Weights, weights, "weights", UsageError)
    check_confidence(confidence)
    _check_counts(counts)
    pairs = {pair: count for pair, count in counts.items() if None not in pair and count}
    order = _in_order(
        [rating for pair in pairs for rating in pair], labels, needed=weights is not None
    )
    n = sum(pairs.values())
    of = sum(counts.values())
    size = len(order)
    if size < 2:
        return Agreement(None, n, of, 2)
    weight = _weight(weights, size)
    joint = {(order[a], order[b]): count / n for (a, b), count in pairs.items()}
    rows = [0.0] * size
    columns = [0.0] * size
    for (i, j), share in joint.items():
        rows[i] += share
        columns[j] += share
    seen = math.fsum(weight(i, j) * share for (i, j), share in joint.items())
    by_row = [math.fsum(weight(i, j) * columns[j] for j in range(size)) for i in range(size)]
    by_column = [math.fsum(weight(i, j) * rows[i] for i in range(size)) for j in range(size)]
    chance = math.fsum(rows[i] * by_row[i] for i in range(size))
    if chance >= 1:
        return Agreement(None, n, of, 2)
    kappa = (seen - chance) / (1 - chance)
    spread = math.fsum(
        share * (weight(i, j) - (by_row[i] + by_column[j]) * (1 - kappa)) ** 2
        for (i, j), share in joint.items()
    )
    inside = spread - (kappa - chance * (1 - kappa)) ** 2
    se = math.sqrt(max(0.0, inside) / n) / (1 - chance)
    if se < _NO_SPREAD:
        return Agreement(kappa, n, of, 2, se)
    reach = normal_quantile((1 + confidence) / 2) * se
    return Agreement(kappa, n, of, 2, se, max(-1.0, kappa - reach), min(1.0, kappa + reach))


def _weight(weights: Weights | None, size: int) -> Callable[[int, int], float]:
    if weights is None:
        return lambda i, j: float(i == j)
    if weights == "linear":
        return lambda i, j: 1 - abs(i - j) / (size - 1)
    return lambda i, j: 1 - ((i - j) / (size - 1)) ** 2


def krippendorff_alpha(
    ratings: Sequence[Sequence[Rating]],
    level: Level = "nominal",
    labels: Sequence[Hashable] | None = None,
) -> Agreement:
    """Krippendorff's alpha of any number of judges: `ratings` has a row for each judge and a column
    for each unit.

    Units with fewer than two ratings are not in n. `labels` are ordered from least to most, for
    ordinal ratings that are not numbers. Interval ratings are numbers; ratio ratings are numbers of
    at least 0, and 0 means nothing.

    Source: Krippendorff, "Computing Krippendorff's Alpha-Reliability" (2011), and Content Analysis
    (2004), chapter 11.

    Raises: UsageError, if judges have different numbers of units, a rating is not among the labels
    or not a number (for ratio ratings, of at least 0) where one is needed, or `level` is unknown.
    """
    of = len(ratings[0]) if len(ratings) else 0
    if any(len(row) != of for row in ratings):
        raise UsageError("every judge's row needs one rating for each unit, None for a missing one")
    return krippendorff_alpha_of(
        Counter(zip(*ratings, strict=True)), len(ratings), level=level, labels=labels
    )


def krippendorff_alpha_of(
    counts: Mapping[tuple[Any, ...], int],
    raters: int,
    level: Level = "nominal",
    labels: Sequence[Hashable] | None = None,
) -> Agreement:
    """`krippendorff_alpha` from the number of units with each combination of ratings. Raises: as it
    does.
    """
    accept(Level, level, "level", UsageError)
    _check_counts(counts)
    of = sum(counts.values())
    units = Counter[tuple[Any, ...]]()
    for ratings, count in counts.items():
        given = tuple(rating for rating in ratings if rating is not None)
        if len(given) > 1 and count:
            units[given] += count
    n = sum(units.values())
    order = _in_order(
        [rating for unit in units for rating in unit], labels, needed=level != "nominal"
    )
    if level in ("interval", "ratio") and not all(map(_is_number, order)):
        raise UsageError(
            f"{level} ratings are finite numbers; only nominal and ordinal ratings may be labels"
        )
    if level == "ratio" and any(rating < 0 for rating in order):
        raise UsageError("ratio ratings have to be at least 0; interval ratings may be negative")
    size = len(order)
    coincidences = [[0.0] * size for _ in range(size)]
    for unit, times in units.items():
        found = Counter(order[rating] for rating in unit)
        for i, count in found.items():
            for j, other in found.items():
                coincidences[i][j] += times * count * (other - (i == j)) / (len(unit) - 1)
    totals = [math.fsum(row) for row in coincidences]
    total = math.fsum(totals)
    distance = _distance(level, list(order), totals=totals)
    cells = [(i, j, distance(i, j)) for i in range(size) for j in range(size)]
    expected = math.fsum(totals[i] * totals[j] * far for i, j, far in cells)
    if expected == 0:
        return Agreement(None, n, of, raters)
    observed = math.fsum(coincidences[i][j] * far for i, j, far in cells)
    return Agreement(1 - (total - 1) * observed / expected, n, of, raters)


def _distance(level: Level, values: list[Any], totals: list[float]) -> Callable[[int, int], float]:
    if level == "nominal":
        return lambda i, j: float(i != j)
    if level == "interval":
        return lambda i, j: (values[i] - values[j]) ** 2
    if level == "ratio":
        return lambda i, j: (
            0.0 if i == j else ((values[i] - values[j]) / (values[i] + values[j])) ** 2
        )
    ranks = [math.fsum(totals[:i]) + totals[i] / 2 for i in range(len(totals))]
    return lambda i, j: (ranks[i] - ranks[j]) ** 2


def _in_order(
    ratings: list[Any], labels: Sequence[Hashable] | None, needed: bool
) -> dict[Any, int]:
    """Every label, in order, with its index."""
    found = set(ratings)
    if any(isinstance(rating, Real) and not math.isfinite(rating) for rating in found):
        raise UsageError("ratings are labels or finite numbers; a missing one is None")
    if labels is not None:
        if unknown := sorted(repr(rating) for rating in found.difference(labels)):
            raise UsageError(
                f"{', '.join(unknown)} is not among the labels {', '.join(map(repr, labels))}"
            )
        return {label: place for place, label in enumerate(dict.fromkeys(labels))}
    if needed and not all(map(_is_number, found)):
        raise UsageError("ratings that are not numbers need an order; give it in `labels`")
    return {
        rating: place
        for place, rating in enumerate(sorted(found) if needed else dict.fromkeys(ratings))
    }


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and math.isfinite(value)


def _check_counts(counts: Mapping[tuple[Any, ...], int]) -> None:
    for ratings, count in counts.items():
        whole(f"the count of {ratings!r}", count)
