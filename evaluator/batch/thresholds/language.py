"""How a threshold is written, and whether a batch can decide it."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Sequence

from evaluator.errors import UsageError
from evaluator.errors.messages import did_you_mean, listed
from evaluator.lazy_dataclass import frozen

_THRESHOLD = re.compile(
    r"\s*(?P<metric>[a-z][a-z0-9_]*(?:[@^][0-9]+)?)\s*(?:\(\s*(?P<argument>[^()]*?)\s*\))?\s*"
    r"(?:\[(?P<scope>[^\[\]]*)\])?\s*(?P<operator>>=|<=|==|!=|>|<)\s*"
    r"(?P<value>[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)\s*(?P<percent>%?)\s*"
)
_DOTTED = re.compile(r"\s*([\w.-]+)\.([a-z]\w*)(?=\s*[\[<>=!])")
_PASSES = re.compile(r"pass[@^]([1-9][0-9]*)")
_COUNTS = ("passed", "failed", "errors", "unscored", "pending")
AMOUNTS = {
    "cost": "cost_usd",
    "scoring_cost": "scoring_cost_usd",
    "input_tokens": "input_tokens",
    "output_tokens": "output_tokens",
}
DURATIONS = ("p50_duration", "p90_duration", "p99_duration")
OF_PASSED = ("accuracy", "accuracy_low", "accuracy_if_failed")
OF_SCORER = ("mean", "mean_low", "pass_rate", "pass_rate_low")
OF_LABELS = (
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
OF_JUDGES = ("flips", "verdict_flips")
"""Shares that need several verdicts on one answer; without a scorer, the largest of all."""
OF_METRIC = ("metric", "metric_low")
OF_RESULTS = (*_COUNTS, *AMOUNTS, *DURATIONS, "total_cost", "error_rate")
_SHARES = (
    *OF_PASSED,
    *("pass_rate", "pass_rate_low", "error_rate"),
    *("corrected", "corrected_low", "sensitivity", "specificity"),
    *OF_JUDGES,
)
METRICS = (
    *OF_PASSED,
    *(f"{name}(SCORER)" for name in (*OF_SCORER, *OF_LABELS)),
    *(f"{name}{scorer}" for name in OF_JUDGES for scorer in ("", "(SCORER)")),
    *("pass@K", "pass^K", "pass@K(SCORER)", "pass^K(SCORER)"),
    *(f"{name}(NAME)" for name in OF_METRIC),
    *OF_RESULTS,
)
"""Every metric, as it is written in a threshold."""


@frozen
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


def parse_threshold(text: str) -> Threshold:
    """The threshold in `text`; `judge.kappa` is another spelling of `kappa(judge)`.

    Raises: UsageError, if it is invalid or its metric unknown, with the known ones.
    """
    dotted = _DOTTED.match(text)
    plain_text = text
    if dotted is not None and dotted[2] in (*OF_SCORER, *OF_LABELS, *OF_JUDGES):
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
        *(*OF_PASSED, *OF_SCORER, *OF_LABELS, *OF_JUDGES),
        *(*OF_RESULTS, *OF_METRIC),
    ):
        names = {each.partition("(")[0] for each in METRICS}
        hint = did_you_mean(metric, sorted(names))
        expected = f"expected one of {', '.join(METRICS)}"
        raise UsageError(
            f"unknown metric {metric!r} in {text!r}; {f'{hint} {expected}' if hint else expected}"
        )
    if metric in (*OF_SCORER, *OF_LABELS) and scorer is None:
        raise UsageError(f"{text!r}: {metric} needs a scorer; write {metric}(SCORER)")
    if metric in OF_METRIC and scorer is None:
        raise UsageError(f"{text!r}: name the metric; write metric(NAME)")
    with_argument = (*OF_SCORER, *OF_LABELS, *OF_METRIC, *OF_JUDGES)
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
    found = (each.scorer for each in thresholds if each.metric in OF_LABELS)
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
        if threshold.metric in OF_METRIC:
            _check_known("metric", threshold, known=metrics)
        else:
            _check_judged(threshold, scorers)
        _check_scope(threshold, cells)
        if threshold.reducer is not None:
            _check_epochs(str(threshold), threshold.reducer, epochs=epochs)
            needed[threshold.reducer] = None
        is_bounded = threshold.metric in OF_SCORER and threshold.scorer in bounded
        if threshold.metric in _SHARES or threshold.reducer is not None or is_bounded:
            _check_share(threshold)
        if threshold.metric in _AGREEMENTS and not -1 <= threshold.value <= 1:
            raise UsageError(f"{threshold}: {threshold.metric} is between -1 and 1")
    if reducers is None:
        if not needed:
            return None
        reducers = ["mean"] if epochs > 1 else []
    return tuple(dict.fromkeys((*reducers, *needed)))


def _check_epochs(where: str, name: str, epochs: int) -> None:
    """Raises: UsageError, if `name` is pass@k or pass^k with k above `epochs`."""
    found = _PASSES.fullmatch(name)
    if found is not None and (k := int(found[1])) > epochs:
        raise UsageError(f"{where}: {name} needs {k:,} epochs, and the batch has {epochs:,}")


def _check_judged(threshold: Threshold, scorers: Collection[str]) -> None:
    if threshold.scorer is not None:
        _check_known("scorer", threshold, known=scorers)
    if not scorers and (threshold.metric in OF_PASSED or threshold.reducer is not None):
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
