"""How often a judge is right, from labels of some of the results that it judged.

Labels are drawn within the judge's verdicts, at rates that may differ. The share of answers that
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
"""

from __future__ import annotations

import math
from collections.abc import Callable

from evaluator.batch.statistics.agreement import Agreement
from evaluator.batch.statistics.distributions import check_confidence, normal_quantile, whole
from evaluator.batch.statistics.intervals import CONFIDENCE, Estimate
from evaluator.errors import UsageError
from evaluator.fields import JsonForm
from evaluator.lazy_dataclass import dataclass

_STEP = 1e-6
_Shares = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
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
    unknown = Estimate(None, None, None, None, n, None, "delta", confidence)
    nothing = Agreement(None, n, total, 2)
    if not n or (counts.passed and not in_passed) or (counts.failed and not in_failed):
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
    quantile = normal_quantile((1 + confidence) / 2)

    def rate(part: Callable[[_Shares], tuple[float, float]]) -> Estimate:
        right, wrong = part(seen)
        if right + wrong <= 0:
            return unknown

        def logit(at: _Shares) -> float:
            inside, outside = part(at)
            return math.log(inside / outside)

        mean = right / (right + wrong)
        centre = logit(smooth)
        spread = _spread(logit, smooth, variances)
        low = 1 / (1 + math.exp(quantile * spread - centre))
        high = 1 / (1 + math.exp(-quantile * spread - centre))
        se = spread * mean * (1 - mean)
        return Estimate(
            mean, se, min(low, mean), max(high, mean), n, None, "delta, logit", confidence
        )

    def agreement(measure: Callable[[_Shares], float | None]) -> Agreement:
        value = measure(seen)
        if value is None:
            return nothing
        se = _spread(lambda at: measure(at) or 0.0, smooth, variances)
        low = max(-1.0, value - quantile * se)
        return Agreement(value, n, total, 2, se, low, min(1.0, value + quantile * se))

    return JudgeRates(
        rate(_of_passed), rate(_of_failed), kappa=agreement(_kappa), alpha=agreement(_alpha)
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
