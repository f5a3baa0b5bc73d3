"""Thresholds that a batch has to meet: `accuracy >= 0.8`, `mean(f1)[variant=small] >= 50%`, `cost
<= 2`.

A threshold is incomplete, and not met, if results are pending or their number is unknown, if errors
reduce the results that the number is based on, or if the number is unknown. It is missed, however
many results are pending, if no outcome of these can meet it any more. A threshold that a batch can
never decide is refused before the batch runs.

    METRIC [ "(" SCORER or COUNT ")" ] [ "[" template=NAME, variant=NAME "]" ] OPERATOR NUMBER [ "%"
    ]

Without a scope, accuracy and other shares and means have to meet the threshold for every template
and variant, so that a good one does not hide a bad one. Counts, the share of errors, cost and
durations are those of the whole batch.
"""

from __future__ import annotations

import math
import operator
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from enum import StrEnum
from typing import Any

from evaluator.batch.summary import (
    Amount,
    BatchSummary,
    GroupSummary,
    Percentiles,
    ReducedScore,
    VerdictCounts,
)
from evaluator.errors import UsageError
from evaluator.errors.messages import did_you_mean, duration_text, listed
from evaluator.lazy_dataclass import dataclass

_THRESHOLD = re.compile(
    r"\s*(?P<metric>[a-z][a-z0-9_]*(?:[@^][0-9]+)?)\s*(?:\(\s*(?P<argument>[^()]*?)\s*\))?\s*"
    r"(?:\[(?P<scope>[^\[\]]*)\])?\s*(?P<operator>>=|<=|==|!=|>|<)\s*"
    r"(?P<value>[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)\s*(?P<percent>%?)\s*"
)
_DOTTED = re.compile(r"\s*([\w.-]+)\.([a-z]\w*)(?=\s*[\[<>=!])")
_PASSES = re.compile(r"pass[@^]([1-9][0-9]*)")
_OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
    "==": operator.eq,
    "!=": operator.ne,
}
_COUNTS = ("passed", "failed", "errors", "unscored", "pending")
_AMOUNTS = {
    "cost": "cost_usd",
    "scoring_cost": "scoring_cost_usd",
    "input_tokens": "input_tokens",
    "output_tokens": "output_tokens",
}
_DURATIONS = ("p50_duration", "p90_duration", "p99_duration")
_OF_PASSED = ("accuracy", "accuracy_low", "accuracy_if_failed")
_OF_SCORER = ("mean", "mean_low", "pass_rate", "pass_rate_low")
_OF_LABELS = (
    "corrected",
    "corrected_low",
    "kappa",
    "kappa_low",
    "alpha",
    "alpha_low",
    "sensitivity",
    "specificity",
)
_AGREEMENTS = ("kappa", "kappa_low", "alpha", "alpha_low")
_OF_JUDGES = ("flips", "verdict_flips")
"""Shares that need several verdicts on one answer; without a scorer, the largest of all."""
_OF_METRIC = ("metric", "metric_low")
_OF_RESULTS = (*_COUNTS, *_AMOUNTS, *_DURATIONS, "total_cost", "error_rate")
_SHARES = (
    *_OF_PASSED,
    *("pass_rate", "pass_rate_low", "error_rate"),
    *("corrected", "corrected_low", "sensitivity", "specificity"),
    *_OF_JUDGES,
)
_TOTAL_UNKNOWN = "the total number of results is unknown"
# Errors and pending results do not make these incomplete, as they count them.
_ALWAYS_KNOWN = ("errors", "error_rate", "pending")
_WITHOUT_SCORES = (
    *("pending", "cost", "input_tokens", "output_tokens"),
    *_DURATIONS,
    *_OF_METRIC,
)
"""Answers that a scorer has not scored yet do not change these."""
METRICS = (
    *_OF_PASSED,
    *(f"{name}(SCORER)" for name in (*_OF_SCORER, *_OF_LABELS)),
    *(f"{name}{scorer}" for name in _OF_JUDGES for scorer in ("", "(SCORER)")),
    *("pass@K", "pass^K", "pass@K(SCORER)", "pass^K(SCORER)"),
    *(f"{name}(NAME)" for name in _OF_METRIC),
    *_OF_RESULTS,
)
"""Every metric, as it is written in a threshold."""


class ThresholdStatus(StrEnum):
    MET = "met"
    MISSED = "missed"
    INCOMPLETE = "incomplete"


@dataclass(frozen=True, slots=True)
class Threshold:
    """Compares a `metric` (of `scorer`, for `template` and `variant`) by `operator` with `value`.

    For the metric `metric`, `scorer` is the name of one of the batch's metrics.
    """

    metric: str
    operator: str
    value: float
    scorer: str | None = None
    template: str | None = None
    variant: str | None = None

    @property
    def reducer(self) -> str | None:
        """The reducer of epochs that the threshold needs: pass@k or pass^k, None for other
        metrics.
        """
        if _PASSES.fullmatch(self.metric):
            return self.metric
        return None

    def __str__(self) -> str:
        if self.scorer is not None:
            scorer = f"({self.scorer})"
        else:
            scorer = ""
        scope = ", ".join(
            f"{name}={value}"
            for name, value in (("template", self.template), ("variant", self.variant))
            if value is not None
        )
        return (
            f"{self.metric}{scorer}{f'[{scope}]' if scope else ''} {self.operator} "
            f"{self.value:.12g}"
        )


@dataclass(frozen=True, slots=True)
class ThresholdResult:
    """Whether a threshold is met. `value`, None if unknown, is based on `n` of `of` results.

    `where` is the template and variant, empty for the whole batch; `reason` is empty if the
    threshold is met.
    """

    threshold: Threshold
    status: ThresholdStatus
    value: float | None
    n: int
    of: int
    where: str = ""
    reason: str = ""

    @property
    def met(self) -> bool:
        return self.status is ThresholdStatus.MET

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"threshold": str(self.threshold), "status": self.status.value}

    def __str__(self) -> str:
        where = f" for {self.where}" if self.where else ""
        if self.value is None:
            value = "unknown"
        else:
            value = f"{self.value:.6g}"
        if self.value is not None and self.threshold.metric in _DURATIONS:
            value = duration_text(self.value)
        reason = f": {self.reason}" if self.reason else ""
        return (
            f"{self.status.value}: {self.threshold}{where}: {value} ({self.n:,} of "
            f"{self.of:,}){reason}"
        )


@dataclass(frozen=True, slots=True)
class _Number:
    """`unknown`: why there is no value. `faults`: the number of results on which the scorer
    failed.
    """

    value: float | None
    n: int
    of: int
    unknown: str = ""
    faults: int = 0


def parse_threshold(text: str) -> Threshold:
    """The threshold in `text`; `judge.kappa` is another spelling of `kappa(judge)`.

    Raises: UsageError, if it is invalid or its metric unknown, with the known ones.
    """
    dotted = _DOTTED.match(text)
    plain_text = text
    if dotted is not None and dotted[2] in (*_OF_SCORER, *_OF_LABELS, *_OF_JUDGES):
        plain_text = f"{dotted[2]}({dotted[1]}){text[dotted.end() :]}"
    found = _THRESHOLD.fullmatch(plain_text)
    if found is None:
        raise UsageError(
            f"{text!r} is not a threshold; write METRIC OPERATOR NUMBER, such as accuracy >= 0.8"
        )
    metric = found["metric"]
    scorer = found["argument"] or None
    plain = _PASSES.fullmatch(metric)
    if not plain and metric not in (
        *(*_OF_PASSED, *_OF_SCORER, *_OF_LABELS, *_OF_JUDGES),
        *(*_OF_RESULTS, *_OF_METRIC),
    ):
        raise UsageError(
            f"unknown metric {metric!r} in {text!r}; expected one of {', '.join(METRICS)}"
        )
    if metric in (*_OF_SCORER, *_OF_LABELS) and scorer is None:
        raise UsageError(f"{text!r}: {metric} needs a scorer; write {metric}(SCORER)")
    if metric in _OF_METRIC and scorer is None:
        raise UsageError(f"{text!r}: name the metric; write metric(NAME)")
    with_argument = (*_OF_SCORER, *_OF_LABELS, *_OF_METRIC, *_OF_JUDGES)
    if scorer is not None and not plain and metric not in with_argument:
        raise UsageError(f"{text!r}: {metric} takes no scorer; remove ({scorer})")
    value = float(found["value"]) / (100 if found["percent"] else 1)
    if not math.isfinite(value):
        raise UsageError(f"{text!r}: {found['value']} is too large")
    return Threshold(
        metric, found["operator"], value=value, scorer=scorer, **_scope(text, found["scope"])
    )


def measured_scorers(thresholds: Iterable[Threshold]) -> list[str]:
    """The scorers whose numbers by labels are required."""
    found = (each.scorer for each in thresholds if each.metric in _OF_LABELS)
    return list(dict.fromkeys(name for name in found if name is not None))


def check_fit(
    thresholds: Sequence[Threshold],
    *,
    scorers: Collection[str],
    cells: Collection[tuple[str, str]],
    epochs: int,
    reducers: Sequence[str] | None,
    bounded: Collection[str] = (),
    metrics: Collection[str] = (),
) -> tuple[str, ...] | None:
    """Checks that a batch can decide `thresholds`, before it runs. Returns: the reducers that it
    needs.

    The batch has `scorers`, a result for each of `cells` (template, variant) and `epochs`, and is
    reduced by `reducers` (see `summarise`); `metrics` are the names of its metrics. Scorers in
    `bounded` give only values in [0, 1], and so do their means.

    Returns: `reducers` and those that thresholds name; None if there are none.
    Raises: UsageError, for a scorer, template or variant that the batch does not have (with the
    nearest name), for k above `epochs`, also in `reducers`, for a share that is outside 0 and 1 or
    never met, and if no scorer judges.
    """
    needed: dict[str, None] = {}
    for name in reducers or ():
        _check_epochs("reducers", name, epochs=epochs)
    for threshold in thresholds:
        if threshold.metric in _OF_METRIC:
            _check_known("metric", threshold, known=metrics)
        else:
            _check_judged(threshold, scorers)
        _check_scope(threshold, cells)
        if threshold.reducer is not None:
            _check_epochs(str(threshold), threshold.reducer, epochs=epochs)
            needed[threshold.reducer] = None
        is_bounded = threshold.metric in _OF_SCORER and threshold.scorer in bounded
        if threshold.metric in _SHARES or threshold.reducer is not None or is_bounded:
            _check_share(threshold)
        if threshold.metric in _AGREEMENTS and not -1 <= threshold.value <= 1:
            raise UsageError(f"{threshold}: {threshold.metric} is between -1 and 1")
    if reducers is None:
        if not needed:
            reducers = None
        elif epochs > 1:
            reducers = ["mean"]
        else:
            reducers = []
    if reducers is None:
        return None
    return tuple(dict.fromkeys((*reducers, *needed)))


def _check_epochs(where: str, name: str, epochs: int) -> None:
    """Raises: UsageError, if `name` is pass@k or pass^k with k above `epochs`."""
    found = _PASSES.fullmatch(name)
    if found is not None and (k := int(found[1])) > epochs:
        raise UsageError(f"{where}: {name} needs {k:,} epochs, and the batch has {epochs:,}")


def _check_judged(threshold: Threshold, scorers: Collection[str]) -> None:
    if threshold.scorer is not None:
        _check_known("scorer", threshold, known=scorers)
    if not scorers and (threshold.metric in _OF_PASSED or threshold.reducer is not None):
        raise UsageError(f"{threshold}: the batch has no scorer, so no result passes or fails")


def _check_known(what: str, threshold: Threshold, known: Collection[str]) -> None:
    name = threshold.scorer or ""
    if name not in known:
        hint = did_you_mean(name, known) or f"its {what}s are {listed(known)}"
        raise UsageError(f"{threshold}: the batch has no {what} {name!r}; {hint}")


def _check_scope(threshold: Threshold, cells: Collection[tuple[str, str]]) -> None:
    for what, name, known in (
        ("template", threshold.template, {template for template, _ in cells}),
        ("variant", threshold.variant, {variant for _, variant in cells}),
    ):
        if name is not None and name not in known:
            hint = did_you_mean(name, sorted(known)) or f"expected one of {listed(known)}"
            raise UsageError(f"{threshold}: the batch has no {what} {name!r}; {hint}")
    if (
        threshold.template is not None
        and threshold.variant is not None
        and (threshold.template, threshold.variant) not in cells
    ):
        raise UsageError(
            f"{threshold}: the batch does not have the template {threshold.template!r} with "
            f"{threshold.variant!r}"
        )


def _check_share(threshold: Threshold) -> None:
    if not 0 <= threshold.value <= 1:
        if 2 <= threshold.value <= 100:
            hint = f"; did you mean {threshold.value:.6g}%?"
        else:
            hint = ""
        raise UsageError(f"{threshold}: {threshold.metric} is between 0 and 1{hint}")
    if (threshold.operator, threshold.value) in ((">", 1), ("<", 0)):
        raise UsageError(
            f"{threshold}: this is never met, as {threshold.metric} is between 0 and 1"
        )


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


def _scope(text: str, scope: str | None) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in (scope or "").split(",") if scope is not None else ():
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not value or name not in ("template", "variant") or name in found:
            raise UsageError(
                f"{text!r}: [{scope}] is not a scope; write [template=NAME, variant=NAME] or one "
                "of them"
            )
        found[name] = value
    return found


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
        if threshold.metric in _OF_RESULTS:
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
    reasons = [summary.unfinished] if summary.unfinished else []
    if threshold.metric != "pending":
        if pending:
            reasons.append(f"{pending:,} results are pending")
        elif pending is None:
            reasons.append(_TOTAL_UNKNOWN)
    errors = max(counts.error, found.faults)
    if errors and not errors_allowed and threshold.metric not in _ALWAYS_KNOWN:
        reasons.append(
            f"{errors:,} of {counts.results:,} results are errors, and they are not allowed"
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
    groups = holder.groups if isinstance(holder, BatchSummary) else [holder]
    waiting = Counter[str]()
    for group in groups:
        for name, found in group.part.scorers.items():
            if scorer in (None, name):
                waiting[name] += found.waiting
    return [
        f"{count:,} answers are not scored by {name} yet: run evaluator score again"
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
    counts = summary.counts if group is None else group.part.counts
    if pending is None:
        total = None
    else:
        total = counts.passed + counts.failed + counts.error + counts.unscored + pending
    if metric in ("passed", "failed"):
        known = getattr(counts, metric)
        other = counts.failed if metric == "passed" else counts.passed
        return known, None if total is None else total - other
    if metric in (*_AMOUNTS, "total_cost"):
        spending = (summary if group is None else group).spending
        if metric == "total_cost":
            return spending.cost_usd.known + spending.scoring_cost_usd.known, None
        return getattr(spending, _AMOUNTS[metric]).known, None
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
    if metric in _DURATIONS:
        value: float | None = getattr(durations, metric.partition("_")[0])
        return _Number(value, durations.n, of=counts.total, unknown="there is no result")
    if metric in _AMOUNTS:
        return _amount(metric, getattr(holder.spending, _AMOUNTS[metric]), of=counts.total)
    if metric == "total_cost":
        own = holder.spending.cost_usd
        scoring = holder.spending.scoring_cost_usd
        known = min(own.known_for, scoring.known_for)
        return _amount(metric, Amount(own.known + scoring.known, known, own.of), of=counts.total)
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


def _amount(metric: str, amount: Amount, of: int) -> _Number:
    return _Number(
        amount.total,
        amount.known_for,
        of=of,
        unknown=f"{metric} is known for {amount.known_for:,} of {amount.of:,}",
    )


def _of_group(group: GroupSummary, threshold: Threshold) -> _Number:
    accuracy = group.part.accuracy
    metric = threshold.metric
    if metric in _OF_PASSED:
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
    if metric in _OF_SCORER:
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
    if metric in _OF_LABELS:
        return _of_labels(group, threshold)
    if metric in _OF_JUDGES:
        return _of_judges(group, threshold)
    if metric in _OF_METRIC:
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
