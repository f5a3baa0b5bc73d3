"""Judges: their agreement, how often they are right, and how stable their verdicts are.

**Agreement** beyond chance: Cohen's kappa for two judges, Krippendorff's alpha for any number and
missing ratings. A rating is any label or number; None is a missing rating. Both measures are 1 for
perfect agreement, about 0 for agreement by chance, and None where all ratings are equal, so that
disagreement is impossible.

**How often a judge is right** follows from labels of some of the results that it judged. Labels are
drawn within the judge's verdicts, at rates that may differ. The share of answers that
the judge passes among those that really pass (its sensitivity) therefore does not follow from the
labelled results alone: each verdict counts by the number of results that have it. With W the share
of results that the judge passed, p₁ the share of labels that pass among these, and p₀ among the
others:

    sensitivity = W p₁ / (W p₁ + (1 − W) p₀)
    specificity = (1 − W)(1 − p₀) / ((1 − W)(1 − p₀) + W (1 − p₁))

Their variances, and those of kappa and alpha, follow from those of W, p₁ and p₀ (the delta method).
The intervals of sensitivity and specificity are computed on the logit scale; a count of 0 is not
taken as certain there (half a result is added to both labels of a verdict).

Sources: Begg and Greenes, "Assessment of Diagnostic Tests When Disease Verification is Subject to
Selection Bias", Biometrics 39 (1983) 207; kappa: Cohen (1960); alpha: Krippendorff (2011).

**How stable the verdicts are** of judges that are asked several times about one answer: a value
that judge m gives when it is asked about answer i for the k-th time is modelled as

    value = mean + answer i + model m + (answer i, model m) + error

with random effects. `judge_variance` estimates their variances from complete ratings by the
analysis of variance of two crossed factors with repetitions, as unbiased estimates that are cut at
0. `panel_flips` is the probability that the majority of a second panel of the same size decides
otherwise: with a Beta distribution of an answer's chance to pass, fitted by the mean and by how
often two verdicts on one answer differ, it is a sum of beta-binomial probabilities.

Sources: Searle, Casella and McCulloch, Variance Components (1992), chapter 4; Skellam, Journal of
the Royal Statistical Society B 10 (1948) 257, for the beta-binomial distribution.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from numbers import Real
from typing import Any, Literal

from evaluator.batch.statistics.intervals import (
    CONFIDENCE,
    Estimate,
    check_confidence,
    normal_quantile,
    whole,
)
from evaluator.errors import UsageError
from evaluator.fields import JsonForm, accept
from evaluator.lazy_dataclass import frozen

Weights = Literal["linear", "quadratic"]
Level = Literal["nominal", "ordinal", "interval", "ratio"]
Rating = Hashable | None
_NO_SPREAD = 1e-12


@frozen
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
    return Agreement(
        kappa, n, of=of, raters=2, se=se, low=max(-1.0, kappa - reach), high=min(1.0, kappa + reach)
    )


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


_STEP = 1e-6
_Shares = tuple[float, float, float]


@frozen
class JudgeCounts(JsonForm):
    """The labelled results by the verdict of the judge and the label, and all results by the
    verdict.
    """

    computed = ("labelled",)
    passed_passed: int
    passed_failed: int
    failed_passed: int
    failed_failed: int
    passed: int
    failed: int

    @property
    def labelled(self) -> int:
        return self.passed_passed + self.passed_failed + self.failed_passed + self.failed_failed


@frozen
class JudgeRates(JsonForm):
    """The sensitivity and specificity of a judge, and its agreement with the labels beyond
    chance. Estimates without a `mean` are unknown.
    """

    sensitivity: Estimate
    specificity: Estimate
    kappa: Agreement
    alpha: Agreement


def judge_rates(
    counts: JudgeCounts, design_effect: float = 1.0, confidence: float = CONFIDENCE
) -> JudgeRates:
    """The rates of a judge. `design_effect` is how much larger the variance is than that of
    independent results; 1 where they are independent.

    Raises: UsageError, if a count is negative, more results are labelled than there are, or
    `design_effect` is not at least 0.
    """
    check_confidence(confidence)
    for name in ("passed_passed", "passed_failed", "failed_passed", "failed_failed"):
        whole(name, getattr(counts, name))
    in_passed = counts.passed_passed + counts.passed_failed
    in_failed = counts.failed_passed + counts.failed_failed
    if in_passed > counts.passed or in_failed > counts.failed:
        raise UsageError("more results are labelled than the judge has judged")
    if not design_effect >= 0:
        raise UsageError(f"the design effect is {design_effect!r}, expected at least 0")
    n = counts.labelled
    total = counts.passed + counts.failed
    if not n or (counts.passed and not in_passed) or (counts.failed and not in_failed):
        unknown = _unknown_rate(n, confidence)
        nothing = Agreement(None, n, total, 2)
        return JudgeRates(unknown, unknown, kappa=nothing, alpha=nothing)
    share = counts.passed / total
    seen = (
        counts.passed_passed / in_passed if in_passed else 0.0,
        counts.failed_passed / in_failed if in_failed else 0.0,
        share,
    )
    smooth = (
        (counts.passed_passed + 0.5) / (in_passed + 1),
        (counts.failed_passed + 0.5) / (in_failed + 1),
        min(max(share, 0.5 / (total + 1)), 1 - 0.5 / (total + 1)),
    )
    variances = (
        smooth[0] * (1 - smooth[0]) / max(1, in_passed) * design_effect,
        smooth[1] * (1 - smooth[1]) / max(1, in_failed) * design_effect,
        smooth[2] * (1 - smooth[2]) / total * design_effect,
    )
    shares = _JudgedShares(
        seen, smooth, variances=variances, labelled=n, total=total, confidence=confidence
    )
    return JudgeRates(
        shares.rate(_of_passed),
        shares.rate(_of_failed),
        kappa=shares.agreement(_kappa),
        alpha=shares.agreement(_alpha),
    )


@frozen
class _JudgedShares:
    """The shares from which the rates of a judge are computed, with intervals by the delta method.

    Values are those of the shares `seen`; spreads are those at `smooth` shares, which are never 0
    or 1. `labelled` of `total` results have a label.
    """

    seen: _Shares
    smooth: _Shares
    variances: _Shares
    labelled: int
    total: int
    confidence: float

    @property
    def quantile(self) -> float:
        return normal_quantile((1 + self.confidence) / 2)

    def rate(self, part: Callable[[_Shares], tuple[float, float]]) -> Estimate:
        """The first of the two shares of `part`, as a share of their sum."""
        right, wrong = part(self.seen)
        if right + wrong <= 0:
            return _unknown_rate(self.labelled, self.confidence)

        def logit(at: _Shares) -> float:
            inside, outside = part(at)
            return math.log(inside / outside)

        mean = right / (right + wrong)
        centre = logit(self.smooth)
        spread = _spread(logit, self.smooth, self.variances)
        low = 1 / (1 + math.exp(self.quantile * spread - centre))
        high = 1 / (1 + math.exp(-self.quantile * spread - centre))
        se = spread * mean * (1 - mean)
        return Estimate(
            mean,
            se,
            low=min(low, mean),
            high=max(high, mean),
            n=self.labelled,
            clusters=None,
            method="delta, logit",
            confidence=self.confidence,
        )

    def agreement(self, measure: Callable[[_Shares], float | None]) -> Agreement:
        value = measure(self.seen)
        if value is None:
            return Agreement(None, self.labelled, self.total, 2)
        se = _spread(lambda at: measure(at) or 0.0, self.smooth, self.variances)
        return Agreement(
            value,
            self.labelled,
            of=self.total,
            raters=2,
            se=se,
            low=max(-1.0, value - self.quantile * se),
            high=min(1.0, value + self.quantile * se),
        )


def _unknown_rate(labelled: int, confidence: float) -> Estimate:
    return Estimate(
        None,
        None,
        low=None,
        high=None,
        n=labelled,
        clusters=None,
        method="delta",
        confidence=confidence,
    )


def _cells(at: _Shares) -> tuple[float, float, float, float]:
    """The shares of all results: passed by both, by the judge alone, by people alone, by none."""
    right, missed, passed = at
    return (
        passed * right,
        passed * (1 - right),
        (1 - passed) * missed,
        (1 - passed) * (1 - missed),
    )


def _of_passed(at: _Shares) -> tuple[float, float]:
    both, _, people, _ = _cells(at)
    return both, people


def _of_failed(at: _Shares) -> tuple[float, float]:
    _, judge, _, none = _cells(at)
    return none, judge


def _kappa(at: _Shares) -> float | None:
    both, judge, people, none = _cells(at)
    chance = (both + judge) * (both + people) + (people + none) * (judge + none)
    if chance >= 1:
        return None
    return (both + none - chance) / (1 - chance)


def _alpha(at: _Shares) -> float | None:
    both, judge, people, _ = _cells(at)
    passed = both + (judge + people) / 2
    expected = 2 * passed * (1 - passed)
    if expected <= 0:
        return None
    return 1 - (judge + people) / expected


def _spread(measure: Callable[[_Shares], float], at: _Shares, variances: _Shares) -> float:
    """The standard deviation of `measure`, from numeric derivatives."""
    total = 0.0
    for place, variance in enumerate(variances):
        step = min(_STEP, at[place] / 2, (1 - at[place]) / 2)
        above = list(at)
        below = list(at)
        above[place] += step
        below[place] -= step
        slope = (
            measure((above[0], above[1], above[2])) - measure((below[0], below[1], below[2]))
        ) / (2 * step)
        total += slope * slope * variance
    return math.sqrt(total)


@frozen
class JudgeVariance(JsonForm):
    """The variance of single values, from `n` answers that every judge rated: `rows` between
    answers; `model` between the models of judges, in level and answer by answer; `judge` between
    repeated askings of one model. None where it cannot be told: `model` with one model. With
    several models that are asked once, `judge` includes their differences answer by answer.
    """

    rows: float | None
    model: float | None
    judge: float | None
    n: int


def judge_variance(ratings: Iterable[Sequence[Sequence[float]]]) -> JudgeVariance:
    """The components of variance of `ratings`: for each answer the values of each model, as many
    for every model of every answer.

    Raises: UsageError, if the numbers of values differ.
    """
    shape: tuple[int, int] | None = None
    means = array("d")
    levels: list[list[float]] = []
    errors = array("d")
    cells = array("d")
    for answer in ratings:
        own = (len(answer), len(answer[0]))
        if shape is None:
            shape = own
            levels = [[] for _ in answer]
        if own != shape or any(len(values) != own[1] for values in answer):
            raise UsageError("judge_variance needs as many values of every model for every answer")
        of_models = [math.fsum(values) / len(values) for values in answer]
        mean = math.fsum(of_models) / len(of_models)
        means.append(mean)
        for level, own_mean, values in zip(levels, of_models, answer, strict=True):
            level.append(own_mean)
            cells.append((own_mean - mean) ** 2)
            errors.extend((value - own_mean) ** 2 for value in values)
    n = len(means)
    if shape is None or n < 2 or shape == (1, 1):
        return JudgeVariance(None, None, None, n)
    models, times = shape
    grand = math.fsum(means) / n
    square_rows = models * times * math.fsum((mean - grand) ** 2 for mean in means) / (n - 1)
    if models == 1:
        error = math.fsum(errors) / (n * (times - 1))
        return JudgeVariance(max(0.0, (square_rows - error) / times), None, error, n)
    of_models = math.fsum((math.fsum(level) / n - grand) ** 2 for level in levels)
    joint = times * max(0.0, math.fsum(cells) - n * of_models) / ((n - 1) * (models - 1))
    square_models = n * times * of_models / (models - 1)
    rows = max(0.0, (square_rows - joint) / (models * times))
    level_variance = max(0.0, (square_models - joint) / (n * times))
    if times == 1:
        return JudgeVariance(rows, level_variance, joint, n)
    error = math.fsum(errors) / (n * models * (times - 1))
    return JudgeVariance(rows, level_variance + max(0.0, (joint - error) / times), error, n)


def panel_flips(share: float, flips: float, judges: int) -> float:
    """The probability that the majority of `judges` verdicts decides otherwise when it is asked
    again. A tie is not counted as a change.

    `share` is the share of verdicts that passed, `flips` how often two verdicts on one answer
    differ.
    """
    spread = 2 * share * (1 - share)
    if flips <= 0 or spread <= 0:
        return 0.0
    within = min(1.0, flips / spread)
    total = 0.0
    for first in range(judges // 2 + 1, judges + 1):
        for second in range((judges - 1) // 2 + 1):
            passes = first + second
            weight = math.comb(judges, first) * math.comb(judges, second)
            total += weight * _both(share, within, passes, fails=2 * judges - passes)
    return min(1.0, 2 * total)


def _both(share: float, within: float, passes: int, fails: int) -> float:
    """The mean of p ** passes * (1 - p) ** fails for the chance p of an answer."""
    if within >= 1:
        return share**passes * (1 - share) ** fails
    size = within / (1 - within)
    a = share * size
    b = (1 - share) * size
    return math.exp(
        math.lgamma(a + passes)
        - math.lgamma(a)
        + math.lgamma(b + fails)
        - math.lgamma(b)
        + math.lgamma(size)
        - math.lgamma(size + passes + fails)
    )


def noise_floor(variance: float) -> float:
    """The size that a difference with this variance exceeds in 5 % of cases by chance."""
    return normal_quantile((1 + CONFIDENCE) / 2) * math.sqrt(variance)
