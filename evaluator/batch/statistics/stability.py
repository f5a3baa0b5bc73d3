"""How stable the verdicts of judges are that are asked several times about one answer.

A value that judge m gives when it is asked about answer i for the k-th time is modelled as

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
from collections.abc import Iterable, Sequence

from evaluator.batch.statistics.distributions import normal_quantile
from evaluator.batch.statistics.intervals import CONFIDENCE
from evaluator.errors import UsageError
from evaluator.fields import JsonForm
from evaluator.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
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
