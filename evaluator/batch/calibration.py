"""Measures scorers against labels: corrected numbers, and the bias of judges.

A scorer says something of every result, people of some. The corrected share of passed results is
that of the labels in each of the scorer's verdicts, weighted by the number of results that have the
verdict (`statistics.corrected_mean`). It needs labels of results that were drawn at random within a
verdict, as `evaluator label` draws them.

How much more a judge overrates some answers than others: longer ones, those of its own family of
models, and the candidate that it sees first.

The bias on a group of results is the share that the judge passed less the share that passes by the
labels of people, which count by the number of results with the verdict (see above). A
positive difference says that the judge favours the first group. The bias by position needs no
label: a judge that prefers the same place in both orders of two candidates decides by the place.
"""

from __future__ import annotations

import math
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any, cast

from evaluator.batch.fields import reader_of
from evaluator.batch.labels import CurrentLabels, Label, majority, put_label, shown_digest
from evaluator.batch.records import SampleResult, Score
from evaluator.batch.statistics import (
    Estimate,
    JudgeCounts,
    PartlyLabelled,
    corrected_mean,
    judge_rates,
    krippendorff_alpha_of,
    mean_difference,
    proportion_interval,
    score_interval,
)
from evaluator.batch.statistics.intervals import CONFIDENCE, normal_quantile
from evaluator.batch.summary.calibrated import (
    Calibration,
    CorrectedShare,
    JudgeBias,
    PeopleAgreement,
)
from evaluator.errors import UsageError
from evaluator.lazy_dataclass import frozen

Cell = tuple[str, str]
WITHOUT_GROUP = "(none)"
_LEAST_LABELS = 2


@frozen
class Grouping:
    """The fields by which a batch is clustered and grouped; None where it is not."""

    cluster: str | None = None
    group_by: str | None = None


class JudgedResults:
    """The results of one template and variant that one scorer judged, with the labels of each.

    Columns have an entry for each result: its `keys`, whether it `passed`, the scorer's `values`,
    its `samples`, `clusters` and `groups`, the `lengths` of the answers, and the `models` that
    answered and judged (`judges`); empty where unknown. `preferences` are those of a judge of two
    candidates for their place: 1 for the first, −1 for the last, else 0. `labels` has the labels
    that count, by the place of the result. With `has_unknown_clusters`, no result has the field by
    which the batch is clustered, so nothing has an interval.
    """

    def __init__(self, scorer: str, labels_for: str) -> None:
        self.scorer = scorer
        self.labels_for = labels_for
        self.keys: list[str] = []
        self.passed = array("b")
        self.values = array("d")
        self.samples: list[str] = []
        self.clusters: list[str] = []
        self.groups: list[str] = []
        self.lengths = array("q")
        self.models: list[str] = []
        self.judges: list[str] = []
        self.preferences: list[int] = []
        self.labels: dict[int, dict[str, Label]] = {}
        self.places: dict[str, int] = {}
        self.is_clustered = False
        self.has_unknown_clusters = False
        self.stale = 0
        self.unjudged = 0

    def __len__(self) -> int:
        return len(self.keys)

    def add(
        self, result: SampleResult, labels: Mapping[str, Label], *, cluster: str, group: str
    ) -> None:
        """Adds a result that the scorer was given, with its labels."""
        current = labels_of(result, labels)
        self.stale += len(labels) - len(current)
        score = result.scores.get(self.scorer)
        if score is not None and (preference := _preference(score)) is not None:
            self.preferences.append(preference)
        if score is None or score.passed is None or score.value is None:
            self.unjudged += bool(current)
            return
        place = len(self.keys)
        self.places[result.key] = place
        self.keys.append(result.key)
        self.passed.append(score.passed)
        self.values.append(score.value)
        self.samples.append(result.sample_id)
        self.clusters.append(cluster)
        self.groups.append(group)
        self.lengths.append(len(result.content))
        self.models.append(result.model or "")
        self.judges.append(_judge_of(score))
        if result.epoch > 1:
            self.is_clustered = True
        if current:
            self.labels[place] = current

    def add_label(self, label: Label) -> None:
        """Adds a label of a result that was shown just now."""
        place = self.places.get(label.key)
        if place is not None:
            put_label(self.labels, place, label)

    def share(self, places: Sequence[int] | None = None) -> CorrectedShare:
        """The corrected share of passed results, of all or of those in `places`."""
        return self._corrected(self.passed, self.label_passes(), places=places, is_share=True)

    def calibration(self, *, has_groups: bool) -> Calibration:
        share = self.share()
        passes = self.label_passes()
        values = self._label_values()
        value = None
        if values and len(values) == len(passes):
            value = self._corrected(self.values, values, places=None, is_share=False)
        pairs = Counter(
            (self.passed[place], passed) for place, passed in passes.items() if passed != 0.5
        )
        passed = sum(self.passed)
        counts = JudgeCounts(
            pairs[1, 1.0],
            pairs[1, 0.0],
            pairs[0, 1.0],
            pairs[0, 0.0],
            passed=passed,
            failed=len(self) - passed,
        )
        given = [label for labels in self.labels.values() for label in labels.values()]
        by: dict[str, CorrectedShare] = {}
        if has_groups:
            groups: dict[str, list[int]] = {}
            for place, group in enumerate(self.groups):
                groups.setdefault(group, []).append(place)
            by = {group: self.share(places) for group, places in sorted(groups.items())}
        return Calibration(
            self.scorer,
            self.labels_for,
            share=share,
            value=value,
            counts=counts,
            rates=judge_rates(counts, design_effect=self._design_effect(share)),
            people=self._people(),
            labellers=dict(sorted(Counter(label.labeller for label in given).items())),
            undecided=sum(label.passed is None for label in given),
            stale=self.stale,
            unjudged=self.unjudged,
            split=sum(passed == 0.5 for passed in passes.values()),
            by=by,
        )

    def partly_labelled(self, places: Sequence[int]) -> PartlyLabelled:
        """The results in `places` with their labels."""
        passes = self.label_passes()
        predictions = [float(self.passed[place]) for place in places]
        return PartlyLabelled(
            predictions,
            [passes.get(place) for place in places],
            strata=_strata(predictions),
            clusters=[self.clusters[place] for place in places],
        )

    def label_passes(self) -> dict[int, float]:
        """What most labellers say: 1 passed, 0 failed, 0.5 for a tie; by the place of the
        result.
        """
        votes = {place: majority(labels.values()) for place, labels in self.labels.items()}
        return {place: vote for place, vote in votes.items() if vote is not None}

    def _label_values(self) -> dict[int, float]:
        """The mean of the labels' values, for results whose labels all have one."""
        found: dict[int, float] = {}
        for place, labels in self.labels.items():
            decided = [label for label in labels.values() if label.passed is not None]
            values = [label.value for label in decided if label.value is not None]
            if values and len(values) == len(decided):
                found[place] = sum(values) / len(values)
        return found

    def _corrected(
        self,
        predictions: Sequence[float],
        labels: Mapping[int, float],
        *,
        places: Sequence[int] | None,
        is_share: bool,
    ) -> CorrectedShare:
        if places is None:
            places = range(len(self))
        seen = [float(predictions[place]) for place in places]
        if self.is_clustered:
            clusters = [self.clusters[place] for place in places]
        else:
            clusters = None
        if is_share:
            judge = proportion_interval(seen, clusters)
        else:
            judge = score_interval(seen, clusters)
        given = [labels.get(place) for place in places]
        count = sum(label is not None for label in given)
        nothing = Estimate(
            None, None, low=None, high=None, n=count, clusters=None, method="corrected"
        )
        verdicts = [float(self.passed[place]) for place in places]
        strata = _strata(verdicts)
        for verdict, name in ((1.0, "passed"), (0.0, "failed")):
            of = strata.count(verdict)
            labelled = sum(
                label is not None and stratum == verdict
                for label, stratum in zip(given, strata, strict=True)
            )
            if of and not labelled:
                missing = f"none of the {of:,} results that the judge {name} is labelled"
                return CorrectedShare(count, len(seen), judge, corrected=nothing, missing=missing)
        corrected = corrected_mean(seen, given, strata=strata, clusters=clusters)
        missing = ""
        if self.has_unknown_clusters:
            judge = replace(judge, se=None, low=None, high=None, clusters=None)
            corrected = replace(corrected, se=None, low=None, high=None, clusters=None)
            missing = "no result has the field to cluster by"
        elif corrected.low is None:
            missing = "an interval needs two labels of each verdict, in several clusters"
        return CorrectedShare(count, len(seen), judge, corrected=corrected, missing=missing)

    def _design_effect(self, share: CorrectedShare) -> float:
        """How much larger the variance is than that of independent results, at least 1."""
        se = share.corrected.se
        if not self.is_clustered or not se:
            return 1.0
        part = self.partly_labelled(range(len(self)))
        plain = corrected_mean(part.predictions, part.labels, strata=part.strata).se
        if not plain:
            return 1.0
        return max(1.0, (se / plain) ** 2)

    def _people(self) -> PeopleAgreement | None:
        names = sorted({name for labels in self.labels.values() for name in labels})
        ratings = Counter[tuple[bool | None, ...]]()
        for labels in self.labels.values():
            votes = [labels[name].passed if name in labels else None for name in names]
            ratings[tuple(votes)] += 1
        alpha = krippendorff_alpha_of(ratings, len(names))
        if not alpha.n:
            return None
        same = 0
        for votes, count in ratings.items():
            decided = [vote for vote in votes if vote is not None]
            if len(decided) > 1 and len(set(decided)) == 1:
                same += count
        return PeopleAgreement(tuple(names), same / alpha.n, alpha=alpha)


def judge_cells(
    results: Iterable[SampleResult],
    labels: CurrentLabels,
    scorers: Mapping[str, str],
    grouping: Grouping,
) -> dict[Cell, dict[str, JudgedResults]]:
    """The results of each template and variant by scorer, in one pass.

    `scorers` names for each scorer the one whose labels it is measured against. Raises: UsageError,
    for an invalid expression in `grouping`; what reading the results raises.
    """
    cluster_of = _reader(grouping.cluster, "cluster")
    group_of = _reader(grouping.group_by, "group_by")
    found: dict[Cell, dict[str, JudgedResults]] = {}
    has_clusters = grouping.cluster is None
    for result in results:
        cell = found.setdefault((result.template, result.variant), {})
        cluster = cluster_of(result)
        group = group_of(result)
        has_clusters = has_clusters or cluster is not None
        for scorer, labelled in scorers.items():
            if scorer not in cell:
                cell[scorer] = JudgedResults(scorer, labelled)
                cell[scorer].is_clustered = grouping.cluster is not None
            cell[scorer].add(
                result,
                labels.of(labelled).get(result.key, {}),
                cluster=f"sample {result.sample_id}" if cluster is None else f"cluster {cluster}",
                group=WITHOUT_GROUP if group is None else str(group),
            )
    for judged in (each for cell in found.values() for each in cell.values()):
        judged.has_unknown_clusters = not has_clusters
    return found


def labels_of(result: SampleResult, labels: Mapping[str, Label]) -> dict[str, Label]:
    """The labels of a result that were given to what it says now."""
    if not labels:
        return {}
    shown = shown_digest(result)
    return {name: label for name, label in labels.items() if label.shown == shown}


def labelled_scorer(scorer: str, labels: CurrentLabels) -> str:
    """The scorer whose labels measure `scorer`: itself, or the only one that has labels.

    Raises: UsageError, if there is none, or several others have labels.
    """
    known = labels.scorers
    if scorer in known:
        return scorer
    if len(known) == 1:
        return known[0]
    if not known:
        raise UsageError("nothing is labelled; label some answers with: evaluator label BATCH")
    raise UsageError(
        f"no label is for the scorer {scorer!r}, and several others have labels: {', '.join(known)}"
    )


def _preference(score: Score) -> int | None:
    """The place that a judge of two candidates prefers, whichever candidate is there; None for
    other judges.
    """
    verdicts = score.metadata.get("verdicts")
    if not isinstance(verdicts, list):
        return None
    if verdicts == ["win", "loss"]:
        return 1
    return -1 if verdicts == ["loss", "win"] else 0


def _judge_of(score: Score) -> str:
    """The model that judged; of several of them the first."""
    models = cast("Mapping[str, str]", score.metadata.get("models") or {})
    return str(score.metadata.get("model") or next(iter(models.values()), ""))


def _reader(field: str | None, what: str) -> Callable[[SampleResult], Any]:
    if field is None:
        return lambda result: None
    return reader_of(field, what)


def _strata(verdicts: Sequence[float]) -> list[float]:
    """The verdicts. A verdict with fewer results than an interval needs is joined with the
    other.
    """
    counts = Counter(verdicts)
    if any(count < _LEAST_LABELS for count in counts.values()):
        return [1.0] * len(verdicts)
    return list(verdicts)


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


@frozen
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
