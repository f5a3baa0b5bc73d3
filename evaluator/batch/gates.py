"""Thresholds that a batch has to meet: `accuracy >= 0.8`, `mean(f1)[variant=small] >= 50%`, `cost <= 2`.

A gate is met only by what is known. It is incomplete, and not met, where results are pending or nobody knows how many
there will be, where errors make the number one of fewer results than it seems, or where the number is unknown: then
nobody can say whether the batch is good. A gate that a batch can never answer is refused before it runs.

    METRIC [ "(" SCORER or COUNT ")" ] [ "[" template=NAME, variant=NAME "]" ] OPERATOR NUMBER [ "%" ]

Without a scope, accuracy and other shares and means have to meet the gate for every template and variant, so that a
good one does not cover up for a bad one; counts, the share of errors, cost and durations are those of the whole batch.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from evaluator.batch.summary.shape import Amount, BatchSummary, Counts, GroupSummary, Percentiles, Reduced
from evaluator.errors import UsageError
from evaluator.library.near import did_you_mean, listed

_GATE = re.compile(
    r"\s*(?P<metric>[a-z][a-z0-9_]*(?:[@^][0-9]+)?)\s*(?:\(\s*(?P<argument>[^()]*?)\s*\))?\s*"
    r"(?:\[(?P<scope>[^\[\]]*)\])?\s*(?P<operator>>=|<=|==|!=|>|<)\s*"
    r"(?P<value>[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)\s*(?P<percent>%?)\s*"
)
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
_OF_RESULTS = (*_COUNTS, *_AMOUNTS, *_DURATIONS, "total_cost", "error_rate")
_SHARES = (*_OF_PASSED, "pass_rate", "pass_rate_low", "error_rate")
_TOTAL_UNKNOWN = "how many results there will be is not known"
# Errors and pending results are exactly what these tell of.
_ALWAYS_KNOWN = ("errors", "error_rate", "pending")
METRICS = (
    *_OF_PASSED,
    *(f"{name}(SCORER)" for name in _OF_SCORER),
    *("pass@K", "pass^K", "pass@K(SCORER)", "pass^K(SCORER)"),
    *_OF_RESULTS,
)
"""Every metric, as it is written in a gate."""


class GateStatus(StrEnum):
    MET = "met"
    MISSED = "missed"
    INCOMPLETE = "incomplete"


@dataclass(frozen=True, slots=True)
class Gate:
    """`metric` (of `scorer`, for the templates and variants that it names) compared by `operator` with `value`."""

    metric: str
    operator: str
    value: float
    scorer: str | None = None
    template: str | None = None
    variant: str | None = None

    @property
    def reducer(self) -> str | None:
        """The reducer of epochs that the gate is of: pass@k or pass^k, None for other metrics."""
        return self.metric if _PASSES.fullmatch(self.metric) else None

    def __str__(self) -> str:
        scorer = f"({self.scorer})" if self.scorer is not None else ""
        scope = ", ".join(
            f"{name}={value}"
            for name, value in (("template", self.template), ("variant", self.variant))
            if value is not None
        )
        return f"{self.metric}{scorer}{f'[{scope}]' if scope else ''} {self.operator} {self.value:.12g}"


@dataclass(frozen=True, slots=True)
class GateResult:
    """Whether a gate is met, by which number: `value`, None where it is unknown, which rests on `n` of `of` results.

    `where` is the template and variant, empty for the whole batch; `reason` is empty where the gate is met.
    """

    gate: Gate
    status: GateStatus
    value: float | None
    n: int
    of: int
    where: str = ""
    reason: str = ""

    @property
    def met(self) -> bool:
        return self.status is GateStatus.MET

    def to_dict(self) -> dict[str, Any]:
        return {
            "gate": str(self.gate),
            "status": self.status.value,
            "value": self.value,
            "n": self.n,
            "of": self.of,
            "where": self.where,
            "reason": self.reason,
        }

    def __str__(self) -> str:
        where = f" for {self.where}" if self.where else ""
        value = "unknown" if self.value is None else f"{self.value:.6g}"
        reason = f": {self.reason}" if self.reason else ""
        return f"{self.status.value}: {self.gate}{where}: {value} ({self.n:,} of {self.of:,}){reason}"


@dataclass(frozen=True, slots=True)
class _Number:
    """`unknown` says why there is no value; `faults` is on how many results the scorer failed."""

    value: float | None
    n: int
    of: int
    unknown: str = ""
    faults: int = 0


def parse_gate(text: str) -> Gate:
    """A gate from its text.

    Raises: UsageError, if it is not one, or no metric is called that; says which there are.
    """
    found = _GATE.fullmatch(text)
    if found is None:
        raise UsageError(f"{text!r} is not a gate; write METRIC OPERATOR NUMBER, such as accuracy >= 0.8")
    metric, scorer = found["metric"], found["argument"] or None
    plain = _PASSES.fullmatch(metric)
    if not plain and metric not in (*_OF_PASSED, *_OF_SCORER, *_OF_RESULTS):
        raise UsageError(f"no metric {metric!r} in {text!r}; there are {', '.join(METRICS)}")
    if metric in _OF_SCORER and scorer is None:
        raise UsageError(f"{text!r}: {metric} is of a scorer; write {metric}(SCORER)")
    if scorer is not None and not plain and metric not in _OF_SCORER:
        raise UsageError(f"{text!r}: {metric} is not of a scorer; leave out ({scorer})")
    value = float(found["value"]) / (100 if found["percent"] else 1)
    if not math.isfinite(value):
        raise UsageError(f"{text!r}: {found['value']} is too large")
    return Gate(metric, found["operator"], value, scorer, **_scope(text, found["scope"]))


def check_fit(
    gates: Sequence[Gate],
    *,
    scorers: Collection[str],
    cells: Collection[tuple[str, str]],
    epochs: int,
    reducers: Sequence[str] | None,
    bounded: Collection[str] = (),
) -> tuple[str, ...] | None:
    """Whether a batch can answer `gates` at all, before it runs; the reducers that it needs to.

    The batch has `scorers`, a result for each of `cells` (template, variant) and `epochs`, and is reduced by
    `reducers` (see `summarise`). Scorers in `bounded` give values in [0, 1] only, so that their means are as well.

    Returns: the reducers given and those that gates name; None, as given, where neither says any.
    Raises: UsageError, for a scorer, template or variant that the batch does not have (says which name is near), for k
    above `epochs`, of `reducers` too, for a share that is not within 0 and 1 or never met, and for what no scorer would
    judge.
    """
    needed: dict[str, None] = {}
    for name in reducers or ():
        _check_epochs("reducers", name, epochs)
    for gate in gates:
        _check_judged(gate, scorers)
        _check_scope(gate, cells)
        if gate.reducer is not None:
            _check_epochs(str(gate), gate.reducer, epochs)
            needed[gate.reducer] = None
        if gate.metric in _SHARES or gate.reducer is not None or (gate.scorer in bounded):
            _check_share(gate)
    if reducers is None:
        reducers = None if not needed else ["mean"] if epochs > 1 else []
    return None if reducers is None else tuple(dict.fromkeys((*reducers, *needed)))


def _check_epochs(where: str, name: str, epochs: int) -> None:
    """Raises: UsageError, where `name` is pass@k or pass^k with k above `epochs`."""
    found = _PASSES.fullmatch(name)
    if found is not None and (k := int(found[1])) > epochs:
        raise UsageError(f"{where}: {name} needs {k:,} epochs, and the batch has {epochs:,}")


def _check_judged(gate: Gate, scorers: Collection[str]) -> None:
    if gate.scorer is not None and gate.scorer not in scorers:
        hint = did_you_mean(gate.scorer, scorers) or f"there is {listed(scorers)}"
        raise UsageError(f"{gate}: the batch has no scorer {gate.scorer!r}; {hint}")
    if not scorers and (gate.metric in _OF_PASSED or gate.reducer is not None):
        raise UsageError(f"{gate}: the batch has no scorer, so that nothing passes or fails")


def _check_scope(gate: Gate, cells: Collection[tuple[str, str]]) -> None:
    for what, name, known in (
        ("template", gate.template, {template for template, _ in cells}),
        ("variant", gate.variant, {variant for _, variant in cells}),
    ):
        if name is not None and name not in known:
            hint = did_you_mean(name, sorted(known)) or f"there is {listed(known)}"
            raise UsageError(f"{gate}: the batch has no {what} {name!r}; {hint}")
    if gate.template is not None and gate.variant is not None and (gate.template, gate.variant) not in cells:
        raise UsageError(f"{gate}: the batch does not have the template {gate.template!r} with {gate.variant!r}")


def _check_share(gate: Gate) -> None:
    if not 0 <= gate.value <= 1:
        hint = f"; did you mean {gate.value:.6g}%?" if 2 <= gate.value <= 100 else ""
        raise UsageError(f"{gate}: {gate.metric} is between 0 and 1{hint}")
    if (gate.operator, gate.value) in ((">", 1), ("<", 0)):
        raise UsageError(f"{gate}: this is never met, as {gate.metric} is between 0 and 1")


def check_gates(summary: BatchSummary, gates: Sequence[Gate], *, allow_errors: bool = False) -> list[GateResult]:
    """One result a gate and, for shares and means without a scope, the worst of all groups: incomplete, then missed.

    Errors make a gate incomplete unless they are allowed: by `allow_errors`, or because a gate on `errors` or
    `error_rate` of the same results says itself how many may be. Results that are pending always do, and so do a total
    that is not known and what the summary calls `unfinished`.

    Raises: UsageError, if a gate names a template, variant, scorer or reducer that the summary does not have; says
    which it has.
    """
    on_errors = [gate for gate in gates if gate.metric in ("errors", "error_rate")]

    def allowed(group: GroupSummary | None) -> bool:
        return allow_errors or any(_holds_for(gate, group) for gate in on_errors)

    return [_check(summary, gate, allowed) for gate in gates]


def _scope(text: str, scope: str | None) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in (scope or "").split(",") if scope is not None else ():
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not value or name not in ("template", "variant") or name in found:
            raise UsageError(f"{text!r}: [{scope}] is not a scope; write [template=NAME, variant=NAME] or one of them")
        found[name] = value
    return found


def _holds_for(gate: Gate, group: GroupSummary | None) -> bool:
    """Whether a gate is of all results of a group; of the whole batch, where there is no group."""
    template, variant = (None, None) if group is None else (group.template, group.variant)
    return gate.template in (None, template) and gate.variant in (None, variant)


def _check(summary: BatchSummary, gate: Gate, allowed: Callable[[GroupSummary | None], bool]) -> GateResult:
    if gate.template is None and gate.variant is None:
        if gate.metric in _OF_RESULTS:
            found = _total(gate.metric, summary, summary.counts, summary.durations)
            return _judged(gate, found, summary, None, allowed(None))
        if not summary.groups:
            reason = "; ".join(filter(None, (summary.unfinished, "there is no result")))
            return GateResult(gate, GateStatus.INCOMPLETE, None, 0, summary.counts.total, "", reason)
    groups = _groups(summary, gate)
    results = [_judged(gate, _of_group(group, gate), summary, group, allowed(group)) for group in groups]
    return min(results, key=lambda result: (_ORDER[result.status], _margin(result)))


_ORDER = {GateStatus.INCOMPLETE: 0, GateStatus.MISSED: 1, GateStatus.MET: 2}


def _margin(result: GateResult) -> float:
    """Above 0 the further it is on the right side, so that the least is the worst."""
    if result.value is None:
        return -math.inf
    distance = result.value - result.gate.value
    if result.gate.operator in ("<=", "<"):
        return -distance
    return -abs(distance) if result.gate.operator == "==" else distance


def _groups(summary: BatchSummary, gate: Gate) -> list[GroupSummary]:
    found = [group for group in summary.groups if _holds_for(gate, group)]
    if not found:
        known = ", ".join(f"template={group.template}, variant={group.variant}" for group in summary.groups)
        raise UsageError(f"{gate}: there are no such results; there are those of {known or 'nothing'}")
    return found


def _judged(
    gate: Gate, found: _Number, summary: BatchSummary, group: GroupSummary | None, errors_allowed: bool
) -> GateResult:
    counts = summary.counts if group is None else group.part.counts
    pending = counts.pending if counts.pending is not None else summary.counts.pending
    where = group.name if group is not None else ""
    reasons = [summary.unfinished] if summary.unfinished else []
    if gate.metric != "pending":
        if pending:
            reasons.append(f"{pending:,} results are pending")
        elif pending is None:
            reasons.append(_TOTAL_UNKNOWN)
    errors = max(counts.error, found.faults)
    if errors and not errors_allowed and gate.metric not in _ALWAYS_KNOWN:
        reasons.append(f"{errors:,} of {counts.results:,} results are errors, and they are not allowed")
    if found.value is None:
        reasons.append(found.unknown)
    if gate.metric != "pending" and not pending and not counts.results:
        reasons.append("there is no result")
    if reasons:
        return GateResult(
            gate, GateStatus.INCOMPLETE, found.value, found.n, found.of, where, "; ".join(dict.fromkeys(reasons))
        )
    if found.value is not None and _OPERATORS[gate.operator](found.value, gate.value):
        return GateResult(gate, GateStatus.MET, found.value, found.n, found.of, where)
    value = "unknown" if found.value is None else f"{found.value:.6g}"
    reason = f"{value} is not {gate.operator} {gate.value:.6g}"
    return GateResult(gate, GateStatus.MISSED, found.value, found.n, found.of, where, reason)


def _total(metric: str, holder: BatchSummary | GroupSummary, counts: Counts, durations: Percentiles) -> _Number:
    """A metric that sums up results."""
    if metric in _DURATIONS:
        value: float | None = getattr(durations, metric.partition("_")[0])
        return _Number(value, durations.n, counts.total, "there is no result")
    if metric in _AMOUNTS:
        return _amount(metric, getattr(holder.spending, _AMOUNTS[metric]), counts.total)
    if metric == "total_cost":
        own, scoring = holder.spending.cost_usd, holder.spending.scoring_cost_usd
        known = min(own.known_for, scoring.known_for)
        return _amount(metric, Amount(own.known + scoring.known, known, own.of), counts.total)
    if metric == "error_rate":
        share = counts.error / counts.results if counts.results else None
        return _Number(share, counts.results, counts.total, "there is no result")
    count: int | None = getattr(counts, {"errors": "error"}.get(metric, metric))
    return _Number(None if count is None else float(count), counts.results, counts.total, _TOTAL_UNKNOWN)


def _amount(metric: str, amount: Amount, of: int) -> _Number:
    return _Number(amount.total, amount.known_for, of, f"{metric} is known for {amount.known_for:,} of {amount.of:,}")


def _of_group(group: GroupSummary, gate: Gate) -> _Number:
    accuracy, metric = group.part.accuracy, gate.metric
    if metric in _OF_PASSED:
        value = {
            "accuracy": accuracy.estimate.mean,
            "accuracy_low": accuracy.estimate.low,
            "accuracy_if_failed": accuracy.if_failed,
        }[metric]
        return _Number(value, accuracy.judged, accuracy.of, _no_number(gate, "no result was judged"))
    if metric in _OF_SCORER:
        scorer = group.part.scorers.get(gate.scorer or "")
        if scorer is None:
            known = ", ".join(group.part.scorers) or "none"
            raise UsageError(f"{gate}: {group.name} has no scorer {gate.scorer!r}; there is {known}")
        estimate = scorer.value if metric.startswith("mean") else scorer.pass_rate
        value = estimate.low if metric.endswith("_low") else estimate.mean
        unknown = _no_number(gate, "it scored nothing")
        return _Number(value, estimate.n, group.part.counts.total, unknown, scorer.errors)
    if gate.reducer is not None:
        reduced = _reduced(group, gate)
        return _Number(reduced.estimate.mean, reduced.n, reduced.of, "no sample has as many judged epochs")
    return _total(metric, group, group.part.counts, group.durations)


def _no_number(gate: Gate, nothing: str) -> str:
    if not gate.metric.endswith("_low"):
        return nothing
    return f"{nothing}, or too little for an interval, or no result has the field to cluster by"


def _reduced(group: GroupSummary, gate: Gate) -> Reduced:
    for reduced in group.reduced:
        if reduced.reducer == gate.metric and reduced.scorer == gate.scorer:
            return reduced
    known = [f"{found.reducer}({found.scorer})" if found.scorer else found.reducer for found in group.reduced]
    raise UsageError(f"{gate}: {group.name} was not reduced by that; it was by {', '.join(known) or 'nothing'}")
