"""How much more a judge overrates some answers than others: longer ones, those of its own family of
models, and the candidate that it sees first.

The bias on a group of results is the share that the judge passed less the share that passes by the
labels of people, which count by the number of results with the verdict (see `calibration`). A
positive difference says that the judge favours the first group. The bias by position needs no
label: a judge that prefers the same place in both orders of two candidates decides by the place.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from evaluator.batch.calibration import JudgedResults
from evaluator.batch.statistics import mean_difference
from evaluator.batch.statistics.distributions import normal_quantile
from evaluator.batch.statistics.intervals import CONFIDENCE
from evaluator.batch.summary.calibrated import JudgeBias
from evaluator.lazy_dataclass import dataclass

_LEAST_LABELS = 2
_STEM = re.compile(r"(?:[a-z]+\.(?=[a-z]))*([a-z]+)")
_FAMILIES: Mapping[str, str] = {
    "chatgpt": "gpt",
    "o": "gpt",
    "gemma": "gemini",
    "mixtral": "mistral",
    "ministral": "mistral",
    "codestral": "mistral",
    "magistral": "mistral",
    "qwq": "qwen",
}
"""Names of models that are of another family than their first letters say."""


@dataclass(frozen=True, slots=True)
class _Bias:
    mean: float
    variance: float
    labels: int


def family_of(model: str) -> str:
    """The family of a model: the first letters of its name without the provider, as `gpt` for
    `openai/gpt-4o-mini` and `claude` for `bedrock/anthropic.claude-haiku-4-5`.
    """
    name = model.rpartition("/")[2].lower()
    stem = _STEM.match(name)
    if stem is None:
        return name
    return _FAMILIES.get(stem[1], stem[1])


def length_bias(judged: JudgedResults) -> JudgeBias | None:
    """The bias on answers longer than the median, against that on the others; None where the labels
    do not show it.
    """
    if not judged.labels:
        return None
    middle = median(judged.lengths)
    if middle == max(judged.lengths):
        middle -= 1
    longer = [place for place, length in enumerate(judged.lengths) if length > middle]
    shorter = [place for place, length in enumerate(judged.lengths) if length <= middle]
    a = _bias(judged, longer)
    b = _bias(judged, shorter)
    names = (f"longer than {middle:g} characters", "the others")
    return _difference("length", names, a=a, b=b)


def family_bias(cells: Iterable[JudgedResults]) -> JudgeBias | None:
    """The bias on answers of models of the judge's family, against that on the others, over all
    cells of a batch; None where the models or the labels do not show it.
    """
    own: list[_Bias] = []
    others: list[_Bias] = []
    families: set[str] = set()
    for judged in cells:
        sides: dict[bool, list[int]] = {True: [], False: []}
        for place, (model, judge) in enumerate(zip(judged.models, judged.judges, strict=True)):
            if model and judge:
                is_own = family_of(model) == family_of(judge)
                sides[is_own].append(place)
                families.add(family_of(judge))
        for is_own, found in ((True, own), (False, others)):
            if sides[is_own]:
                bias = _bias(judged, sides[is_own])
                if bias is None:
                    return None
                found.append(bias)
    names = (f"of the judge's family ({', '.join(sorted(families))})", "of other models")
    return _difference("own family", names, a=_mean(own), b=_mean(others))


def position_bias(judged: JudgedResults) -> JudgeBias | None:
    """How much more often a judge prefers the candidate shown first, whichever it is, than the one
    shown last; None for judges that do not compare two.
    """
    if len(judged.preferences) < _LEAST_LABELS:
        return None
    n = len(judged.preferences)
    found = mean_difference(judged.preferences)
    return JudgeBias(
        "position",
        "shown first",
        "shown last",
        a_bias=judged.preferences.count(1) / n,
        b_bias=judged.preferences.count(-1) / n,
        difference=found.mean or 0.0,
        low=found.low,
        high=found.high,
        a_labels=n,
        b_labels=n,
    )


def _bias(judged: JudgedResults, places: Sequence[int]) -> _Bias | None:
    """The bias on the results in `places`; None where a verdict has fewer than two labels."""
    passes = judged.label_passes()
    parts: list[tuple[float, float, float]] = []
    labels = 0
    for verdict in (0, 1):
        own = [place for place in places if judged.passed[place] == verdict]
        given = [passes[place] for place in own if place in passes]
        if not own:
            continue
        if len(given) < _LEAST_LABELS:
            return None
        # Half a result of either kind: labels that are all equal are not taken as certain.
        share = (sum(given) + 0.5) / (len(given) + 1)
        level = sum(given) / len(given)
        weight = len(own) / len(places)
        parts.append((weight, verdict - level, share * (1 - share) / len(given)))
        labels += len(given)
    if not parts:
        return None
    mean = math.fsum(weight * bias for weight, bias, _ in parts)
    variance = math.fsum(
        weight**2 * own + weight * (bias - mean) ** 2 / len(places) for weight, bias, own in parts
    )
    return _Bias(mean, variance, labels)


def _mean(found: Sequence[_Bias]) -> _Bias | None:
    if not found:
        return None
    n = len(found)
    return _Bias(
        math.fsum(each.mean for each in found) / n,
        math.fsum(each.variance for each in found) / n**2,
        sum(each.labels for each in found),
    )


def _difference(
    by: str, names: tuple[str, str], *, a: _Bias | None, b: _Bias | None
) -> JudgeBias | None:
    if a is None or b is None:
        return None
    difference = a.mean - b.mean
    reach = normal_quantile((1 + CONFIDENCE) / 2) * math.sqrt(a.variance + b.variance)
    return JudgeBias(
        by,
        *names,
        a_bias=a.mean,
        b_bias=b.mean,
        difference=difference,
        low=difference - reach,
        high=difference + reach,
        a_labels=a.labels,
        b_labels=b.labels,
    )
