"""Whether a batch meets its thresholds, by its summary."""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from enum import StrEnum
from typing import Any

from evaluator.batch.summary import (
    Amount,
    BatchSummary,
    GroupSummary,
    Percentiles,
    ReducedScore,
    Spending,
    VerdictCounts,
    interrupted_text,
)
from evaluator.batch.thresholds.language import (
    AMOUNTS,
    DURATIONS,
    OF_JUDGES,
    OF_LABELS,
    OF_METRIC,
    OF_PASSED,
    OF_RESULTS,
    OF_SCORER,
    Threshold,
)
from evaluator.errors import UsageError
from evaluator.errors.messages import agree, amount, duration_text, listed
from evaluator.lazy_dataclass import frozen

_OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
    "==": operator.eq,
    "!=": operator.ne,
}
_TOTAL_UNKNOWN = "the total number of results is unknown"
# Errors and pending results do not make these incomplete, as they count them.
_ALWAYS_KNOWN = ("errors", "error_rate", "pending")
_WITHOUT_SCORES = (
    *("pending", "cost", "input_tokens", "output_tokens"),
    *DURATIONS,
    *OF_METRIC,
)
"""Answers that a scorer has not scored yet do not change these."""


class ThresholdStatus(StrEnum):
    MET = "met"
    MISSED = "missed"
    INCOMPLETE = "incomplete"


@frozen
class ThresholdResult:
    """Whether a threshold is met. `value`, None if unknown, is based on `n` of `of` results.

    `where` is the template and variant, empty for the whole batch; `reason` is empty if the
    threshold is met. `interrupted_calls` were in flight when a process ended and may be billed too:
    with them, `value` is a lower bound of a cost or of tokens.
    """

    threshold: Threshold
    status: ThresholdStatus
    value: float | None
    n: int
    of: int
    where: str = ""
    reason: str = ""
    interrupted_calls: int = 0

    @property
    def met(self) -> bool:
        return self.status is ThresholdStatus.MET

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"threshold": str(self.threshold), "status": self.status.value}

    def __str__(self) -> str:
        if self.where:
            where = f" for {self.where}"
        else:
            where = ""
        if self.value is None:
            value = "unknown"
        else:
            value = f"{self.value:.6g}"
        if self.value is not None and self.threshold.metric in DURATIONS:
            value = duration_text(self.value)
        if self.value is not None and self.interrupted_calls:
            value = f"at least {value}"
        reasons = [self.reason, interrupted_text(self.interrupted_calls)]
        reason = "".join(f": {each}" for each in reasons if each)
        return (
            f"{self.status.value}: {self.threshold}{where}: {value} ({self.n:,} of "
            f"{self.of:,}){reason}"
        )


@frozen
class _Number:
    """`unknown`: why there is no value. `faults`: the number of results on which the scorer
    failed. `interrupted_calls`: see `ThresholdResult`.
    """

    value: float | None
    n: int
    of: int
    unknown: str = ""
    faults: int = 0
    interrupted_calls: int = 0


def check_thresholds(
    summary: BatchSummary, thresholds: Sequence[Threshold], *, allow_errors: bool = False
) -> list[ThresholdResult]:
    """One result per threshold; for shares and means without a scope the worst of all groups,
    missed before incomplete.

    Errors make a threshold incomplete unless they are allowed, by `allow_errors` or by a threshold
    on `errors` or `error_rate` of the same results. Pending results, an unknown total and an
    `unfinished` summary always do.

    Raises: UsageError, if a threshold names a template, variant, scorer or reducer that the summary
    does not have, with those that it has.
    """
    on_errors = [
        threshold for threshold in thresholds if threshold.metric in ("errors", "error_rate")
    ]

    def allowed(group: GroupSummary | None) -> bool:
        return allow_errors or any(_holds_for(threshold, group) for threshold in on_errors)

    return [_check(summary, threshold, allowed=allowed) for threshold in thresholds]


def _holds_for(threshold: Threshold, group: GroupSummary | None) -> bool:
    """Whether a threshold includes all results of a group; of the whole batch, if `group` is
    None.
    """
    if group is None:
        template, variant = (None, None)
    else:
        template, variant = (group.template, group.variant)
    return threshold.template in (None, template) and threshold.variant in (None, variant)


def _check(
    summary: BatchSummary, threshold: Threshold, allowed: Callable[[GroupSummary | None], bool]
) -> ThresholdResult:
    if threshold.template is None and threshold.variant is None:
        if threshold.metric in OF_RESULTS:
            found = _total(
                threshold.metric, summary, counts=summary.counts, durations=summary.durations
            )
            return _judged(
                threshold, found, summary=summary, group=None, errors_allowed=allowed(None)
            )
        if not summary.groups:
            reason = "; ".join(filter(None, (summary.unfinished, "there is no result")))
            return ThresholdResult(
                threshold,
                ThresholdStatus.INCOMPLETE,
                value=None,
                n=0,
                of=summary.counts.total,
                where="",
                reason=reason,
            )
    groups = _groups(summary, threshold)
    results = [
        _judged(
            threshold,
            _of_group(group, threshold),
            summary=summary,
            group=group,
            errors_allowed=allowed(group),
        )
        for group in groups
    ]
    worst = min(results, key=lambda result: (_ORDER[result.status], _margin(result)))
    incomplete = [result.where for result in results if result.status is ThresholdStatus.INCOMPLETE]
    if worst.status is ThresholdStatus.MISSED and incomplete:
        reason = f"{worst.reason}; incomplete for {', '.join(incomplete)}"
        return replace(worst, reason=reason)
    return worst


_ORDER = {ThresholdStatus.MISSED: 0, ThresholdStatus.INCOMPLETE: 1, ThresholdStatus.MET: 2}


def _margin(result: ThresholdResult) -> float:
    """The distance from the threshold, positive on the right side, so that the smallest is the
    worst.
    """
    if result.value is None:
        return -math.inf
    distance = result.value - result.threshold.value
    if result.threshold.operator in ("<=", "<"):
        return -distance
    if result.threshold.operator == "==":
        return -abs(distance)
    return distance


def _groups(summary: BatchSummary, threshold: Threshold) -> list[GroupSummary]:
    found = [group for group in summary.groups if _holds_for(threshold, group)]
    if not found:
        known = ", ".join(
            f"template={group.template}, variant={group.variant}" for group in summary.groups
        )
        raise UsageError(
            f"{threshold}: there are no such results; there are results of {known or 'nothing'}"
        )
    return found


def _judged(
    threshold: Threshold,
    found: _Number,
    summary: BatchSummary,
    group: GroupSummary | None,
    errors_allowed: bool,
) -> ThresholdResult:
    if group is None:
        counts = summary.counts
    else:
        counts = group.part.counts
    if counts.pending is not None:
        pending = counts.pending
    else:
        pending = summary.counts.pending
    where = group.name if group is not None else ""
    if summary.unfinished:
        reasons = [summary.unfinished]
    else:
        reasons = []
    if threshold.metric != "pending":
        if pending:
            reasons.append(f"{amount(pending, 'result')} {agree(pending, 'is', 'are')} pending")
        elif pending is None:
            reasons.append(_TOTAL_UNKNOWN)
    errors = max(counts.error, found.faults)
    if errors and not errors_allowed and threshold.metric not in _ALWAYS_KNOWN:
        reasons.append(
            f"{errors:,} of {amount(counts.results, 'result')} "
            f"{agree(errors, 'is an error', 'are errors')}, and errors are not allowed"
        )
    if threshold.metric not in _WITHOUT_SCORES:
        reasons += _unscored_answers(summary if group is None else group, threshold.scorer)
    if found.value is None:
        reasons.append(found.unknown)
    if threshold.metric != "pending" and not pending and not counts.results:
        reasons.append("there is no result")
    reason = "; ".join(dict.fromkeys(reasons))
    result = ThresholdResult(
        threshold,
        ThresholdStatus.INCOMPLETE,
        value=found.value,
        n=found.n,
        of=found.of,
        where=where,
        reason=reason,
        interrupted_calls=found.interrupted_calls,
    )
    if reasons or found.value is None:
        decided = _missed_in_any_case(threshold, summary, group=group, pending=pending)
        if decided is not None:
            reason = "; ".join((decided, *filter(None, [reason])))
            return replace(result, status=ThresholdStatus.MISSED, reason=reason)
        return result
    if _OPERATORS[threshold.operator](found.value, threshold.value):
        return replace(result, status=ThresholdStatus.MET)
    reason = f"{found.value:.6g} is not {threshold.operator} {threshold.value:.6g}"
    return replace(result, status=ThresholdStatus.MISSED, reason=reason)


def _unscored_answers(holder: BatchSummary | GroupSummary, scorer: str | None) -> list[str]:
    """Which scorers have answers to score yet; all of them, if none is named."""
    if isinstance(holder, BatchSummary):
        groups = holder.groups
    else:
        groups = [holder]
    waiting = Counter[str]()
    for group in groups:
        for name, found in group.part.scorers.items():
            if scorer in (None, name):
                waiting[name] += found.waiting
    return [
        f"{amount(count, 'answer')} {agree(count, 'is', 'are')} not scored by {name} yet: run "
        "evaluator score again"
        for name, count in waiting.items()
        if count
    ]


def _missed_in_any_case(
    threshold: Threshold,
    summary: BatchSummary,
    *,
    group: GroupSummary | None,
    pending: int | None,
) -> str | None:
    """Why no outcome of the results that are pending, errors or unscored meets the threshold; None
    if one may meet it.
    """
    low, high = _final_bounds(threshold, summary, group=group, pending=pending)
    if threshold.operator in (">=", ">"):
        best = high
    elif threshold.operator in ("<=", "<"):
        best = low
    else:
        return None
    if best is None or _OPERATORS[threshold.operator](best, threshold.value):
        return None
    return f"at best {best:.6g}, which is not {threshold.operator} {threshold.value:.6g}"


def _final_bounds(
    threshold: Threshold,
    summary: BatchSummary,
    *,
    group: GroupSummary | None,
    pending: int | None,
) -> tuple[float | None, float | None]:
    """The least and the greatest value that the number can have when the batch is complete; None
    where there is no bound. Verdicts stay; errors, unscored and pending results may still pass or
    fail.
    """
    metric = threshold.metric
    if group is None:
        counts = summary.counts
    else:
        counts = group.part.counts
    if pending is None:
        total = None
    else:
        total = counts.passed + counts.failed + counts.error + counts.unscored + pending
    if metric in ("passed", "failed"):
        known = getattr(counts, metric)
        if metric == "passed":
            other = counts.failed
        else:
            other = counts.passed
        return known, None if total is None else total - other
    if metric in (*AMOUNTS, "total_cost"):
        spending = (summary if group is None else group).spending
        if metric == "total_cost":
            return spending.cost_usd.known + spending.scoring_cost_usd.known, None
        return getattr(spending, AMOUNTS[metric]).known, None
    if group is None or not total:
        return None, None
    if metric in ("accuracy", "accuracy_low"):
        passed, failed = counts.passed, counts.failed
    elif metric in ("pass_rate", "pass_rate_low"):
        scorer = group.part.scorers[threshold.scorer or ""]
        passed, failed = scorer.passed, scorer.failed
    else:
        return None, None
    high = (total - failed) / total
    # The lower end of an interval has no bound from below, except 0.
    if metric.endswith("_low"):
        return None, high
    return passed / total, high


def _total(
    metric: str, holder: BatchSummary | GroupSummary, counts: VerdictCounts, durations: Percentiles
) -> _Number:
    """A metric that adds up results."""
    if metric in DURATIONS:
        value: float | None = getattr(durations, metric.partition("_")[0])
        return _Number(value, durations.n, of=counts.total, unknown="there is no result")
    if metric in AMOUNTS:
        amount: Amount = getattr(holder.spending, AMOUNTS[metric])
        return _amount(metric, amount, spending=holder.spending, of=counts.total)
    if metric == "total_cost":
        own = holder.spending.cost_usd
        scoring = holder.spending.scoring_cost_usd
        known = min(own.known_for, scoring.known_for)
        amount = Amount(own.known + scoring.known, known, own.of)
        return _amount(metric, amount, spending=holder.spending, of=counts.total)
    if metric == "error_rate":
        if counts.results:
            share = counts.error / counts.results
        else:
            share = None
        return _Number(share, counts.results, of=counts.total, unknown="there is no result")
    count: int | None = getattr(counts, {"errors": "error"}.get(metric, metric))
    return _Number(
        None if count is None else float(count),
        counts.results,
        of=counts.total,
        unknown=_TOTAL_UNKNOWN,
    )


def _amount(metric: str, amount: Amount, spending: Spending, of: int) -> _Number:
    return _Number(
        amount.total,
        amount.known_for,
        of=of,
        unknown=f"{metric} is known for {amount.known_for:,} of {amount.of:,}",
        interrupted_calls=spending.interrupted_calls,
    )


def _of_group(group: GroupSummary, threshold: Threshold) -> _Number:
    accuracy = group.part.accuracy
    metric = threshold.metric
    if metric in OF_PASSED:
        value = {
            "accuracy": accuracy.estimate.mean,
            "accuracy_low": accuracy.estimate.low,
            "accuracy_if_failed": accuracy.if_failed,
        }[metric]
        return _Number(
            value,
            accuracy.judged,
            of=accuracy.of,
            unknown=_no_number(threshold, "no result was judged"),
        )
    if metric in OF_SCORER:
        scorer = group.part.scorers.get(threshold.scorer or "")
        if scorer is None:
            known = ", ".join(group.part.scorers) or "none"
            raise UsageError(
                f"{threshold}: {group.name} has no scorer {threshold.scorer!r}, only {known}"
            )
        if metric.startswith("mean"):
            estimate = scorer.value
        else:
            estimate = scorer.pass_rate
        if metric.endswith("_low"):
            value = estimate.low
        else:
            value = estimate.mean
        unknown = _no_number(threshold, "it scored nothing")
        return _Number(
            value, estimate.n, of=group.part.counts.total, unknown=unknown, faults=scorer.errors
        )
    if metric in OF_LABELS:
        return _of_labels(group, threshold)
    if metric in OF_JUDGES:
        return _of_judges(group, threshold)
    if metric in OF_METRIC:
        found = group.metrics.get(threshold.scorer or "")
        if found is None:
            raise UsageError(
                f"{threshold}: {group.name} has no metric {threshold.scorer!r}, only "
                f"{listed(group.metrics)}"
            )
        if metric == "metric":
            value, missing = (found.value, "value")
        else:
            value, missing = (found.low, "interval")
        return _Number(value, found.n, of=found.of, unknown=found.error or f"it has no {missing}")
    if threshold.reducer is not None:
        reduced = _reduced(group, threshold)
        return _Number(
            reduced.estimate.mean,
            reduced.n,
            of=reduced.of,
            unknown="no sample has that many judged epochs",
        )
    return _total(metric, group, counts=group.part.counts, durations=group.durations)


def _of_labels(group: GroupSummary, threshold: Threshold) -> _Number:
    """A number that needs labels of people."""
    name = threshold.scorer or ""
    found = group.calibrations.get(name)
    if found is None:
        unknown = f"no answer is labelled for the scorer {name}; see evaluator label"
        return _Number(None, 0, of=group.part.counts.total, unknown=unknown)
    share = found.share
    rates = found.rates
    value = {
        "corrected": share.corrected.mean,
        "corrected_low": share.corrected.low,
        "kappa": rates.kappa.value,
        "kappa_low": rates.kappa.low,
        "alpha": rates.alpha.value,
        "alpha_low": rates.alpha.low,
        "sensitivity": rates.sensitivity.mean,
        "specificity": rates.specificity.mean,
    }[threshold.metric]
    unknown = share.missing or "the labels are too few, or all equal"
    return _Number(value, share.labels, of=share.of, unknown=unknown)


def _of_judges(group: GroupSummary, threshold: Threshold) -> _Number:
    """A share of verdicts that change; the largest one, if no scorer is named."""
    found = [
        (share, stability.n)
        for name, stability in group.stability.items()
        if threshold.scorer in (None, name)
        and (share := getattr(stability, threshold.metric)) is not None
    ]
    of = group.part.counts.total
    if not found:
        unknown = "no judge gave several verdicts on an answer; see judge_epochs"
        return _Number(None, 0, of=of, unknown=unknown)
    share, n = max(found)
    return _Number(share, n, of=of)


def _no_number(threshold: Threshold, nothing: str) -> str:
    if not threshold.metric.endswith("_low"):
        return nothing
    return f"{nothing}, or too few for an interval, or no result has the field to cluster by"


def _reduced(group: GroupSummary, threshold: Threshold) -> ReducedScore:
    for reduced in group.reduced:
        if reduced.reducer == threshold.metric and reduced.scorer == threshold.scorer:
            return reduced
    known = [
        f"{found.reducer}({found.scorer})" if found.scorer else found.reducer
        for found in group.reduced
    ]
    raise UsageError(
        f"{threshold}: {group.name} was reduced only by {', '.join(known) or 'nothing'}"
    )
