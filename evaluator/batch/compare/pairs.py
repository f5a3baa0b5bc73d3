"""Compares two batches over the same samples, pair by pair.

Nothing is dropped silently: pairs are n of N, where N is every sample of either side; samples
without a pair are counted by reason, and the effect that errors could have is bounded. Differences
are b − a. Of several results for one sample and epoch the last one counts. A sample's judged epochs
are averaged before it is paired.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence

from evaluator.batch.compare.comparison import Comparison, Side, other_differences
from evaluator.batch.compare.sides import SideSamples, key_of
from evaluator.batch.fields import nearest_field
from evaluator.batch.reading import Declared, Results
from evaluator.batch.records import SampleResult
from evaluator.batch.scorers import is_bounded
from evaluator.batch.statistics import (
    FEW_CLUSTERS,
    PairedDifference,
    bootstrap_difference,
    mcnemar_difference,
    mean_difference,
    noise_floor,
)
from evaluator.errors import UsageError
from evaluator.errors.messages import agree, amount
from evaluator.language.syntax import has_markup
from evaluator.lazy_dataclass import frozen
from evaluator.store.columns import Interner

BOOTSTRAP_PAIRS = range(20, 5_001)
"""With fewer pairs the bootstrap's intervals are too narrow; with more, Student's t gives the same
faster.
"""
_PASSES = 1.0
_FAILS = 0.0
_NO_SPREAD = 1e-9


def compare(
    a: Iterable[SampleResult],
    b: Iterable[SampleResult],
    *,
    by: str = "id",
    scorer: str | None = None,
    cluster: str | None = None,
    seed: int = 0,
) -> Comparison:
    """The difference of two batches, each of one template with one variant.

    Samples with equal `by` make a pair: `id`, `inputs`, or `metadata.NAME`. Compared is the value
    of `scorer`; None: whether the whole result passed. Where every value is 0 or 1 the test is
    McNemar's, exact. Otherwise it is the bootstrap, with `seed`, for 20 to 5,000 pairs, and
    Student's t for other numbers of pairs.

    `cluster` names a metadata field of side a: pairs that share its value are not treated as
    independent, a pair without it is a cluster of its own, and the test is a cluster-robust t.
    None: the field by which both batches are clustered, where the sides are what `Batch.results` or
    `BatchResult.results` returned; no field, with a warning, where the two differ or one has none
    (`is_at_odds`). "": pairs are independent, whatever the batches declare. Such sides also declare
    their total and their scorers. A list of results declares nothing: compared with one, pairs are
    independent unless a field is named.

    `warnings` say what is not complete, what else differs between the batches (templates, scorers
    and their settings, inputs or targets), how many pairs are in no cluster, and where interval and
    p disagree. Pairs are in the order of side a's ids, whatever the order of the results. Results
    are read once and not kept: a pair takes about 250 bytes and its ids.

    Raises: UsageError, if a side has several templates or variants, or no scorer of that name, a
    sample has no such field, two samples of a side are equal in it, or no pair has a value of
    `cluster`.
    """
    key = key_of(by)
    keys = Interner()
    declared = [side.declared if isinstance(side, Results) else None for side in (a, b)]
    clustering = _clustering(cluster, *declared)
    side_a, side_b = (
        SideSamples(name, keys, key=key, scorer=scorer, cluster=clustering.field, declared=each)
        for name, each in zip("ab", declared, strict=True)
    )
    for side, results in ((side_a, a), (side_b, b)):
        for result in results:
            side.add(result)
        side.close()
    return _compared(
        side_a, side_b, of=len(keys), by=by, scorer=scorer, clustering=clustering, seed=seed
    )


@frozen
class _Clustering:
    """The field that pairs are clustered by; `is_own`: it is that of the batches; `at_odds`: how
    they differ.
    """

    field: str | None
    is_own: bool
    at_odds: str = ""


def _clustering(cluster: str | None, a: Declared | None, b: Declared | None) -> _Clustering:
    if cluster is not None:
        return _Clustering(cluster or None, is_own=False)
    by_a, by_b = (None if each is None else each.cluster for each in (a, b))
    if by_a == by_b:
        return _Clustering(by_a, is_own=True)
    return _Clustering(
        None, True, at_odds="" if a is None or b is None else clusters_differ(by_a, by_b)
    )


def _compared(
    a: SideSamples,
    b: SideSamples,
    of: int,
    by: str,
    scorer: str | None,
    clustering: _Clustering,
    seed: int,
) -> Comparison:
    """The comparison of two sides with `of` samples in either, for the question that the other
    arguments ask.
    """
    both = (number for number in range(of) if number in a and number in b)
    shared = array("i", sorted(both, key=a.encoded_id))
    pairs = array("i")
    a_values = array("d")
    b_values = array("d")
    for number in shared:
        a_value = a.value(number)
        b_value = b.value(number)
        if a_value is not None and b_value is not None:
            pairs.append(number)
            a_values.append(a_value)
            b_values.append(b_value)
    sides = _side_of(a, shared, values=a_values), _side_of(b, shared, values=b_values)
    cluster = clustering.field
    notes = [*_notes_on_ends(a, b, sides=sides), *other_differences(a, b, shared=shared)]
    if clustering.at_odds:
        notes.append(clustering.at_odds)
    clusters = None
    if cluster is not None:
        clusters = _clusters(a, pairs)
        found = [a.cluster(number) for number in pairs]
        notes += _cluster_warnings(
            cluster,
            found,
            count=len(set(clusters)),
            fields=a.fields,
            is_own=clustering.is_own,
        )
    difference = _difference(a_values, b_values, clusters=clusters, seed=seed)
    notes += _disagreement(difference)
    floor = _noise_floor(a, b, n=len(pairs))
    notes += _below_noise(difference, floor)
    undecided = [number for number in shared if _is_undecided(a, b, number=number)]
    if_worst = if_best = difference
    if undecided:
        is_bounded = _is_bounded(a, b, scorer=scorer, values=(a_values, b_values))
        if is_bounded:
            everything = sorted({*pairs, *undecided}, key=a.encoded_id)
        else:
            everything = ()
        if_worst, if_best = _at_both_ends(a, b, numbers=everything, cluster=cluster, seed=seed)
    plain = mean_difference(_subtracted(a_values, b_values))
    gained = sorted((each for each in shared if _flipped(a, b, number=each)), key=a.row)
    lost = sorted((each for each in shared if _flipped(b, a, number=each)), key=a.row)
    return Comparison(
        by=by,
        scorer=scorer,
        cluster=cluster,
        is_at_odds=bool(clustering.at_odds),
        seed=seed,
        n=len(pairs),
        of=of,
        a=sides[0],
        b=sides[1],
        difference=difference,
        undecided=len(undecided),
        if_worst=if_worst,
        if_best=if_best,
        spread=None if plain.se is None else plain.se * math.sqrt(plain.n),
        design_effect=None if cluster is None else _design_effect(difference, plain),
        gained=tuple(map(a.id, gained)),
        lost=tuple(map(a.id, lost)),
        warnings=tuple(notes),
        noise_floor=floor,
        labels={a.id(number): label for number in (*gained, *lost) if (label := a.label(number))},
    )


def _below_noise(difference: PairedDifference, floor: float | None) -> Iterator[str]:
    if floor is not None and difference.mean is not None and 0 < abs(difference.mean) < floor:
        yield (
            "the difference is below the noise floor of the judge: between two judgings of the "
            f"same answers, differences up to ± {floor:.3g} occur in 95 % of cases"
        )


def _notes_on_ends(a: SideSamples, b: SideSamples, sides: tuple[Side, Side]) -> Iterator[str]:
    """What a side that is not complete, or that was stopped, means for the numbers."""
    for name, side in zip("ab", sides, strict=True):
        if side.unfinished:
            yield f"side {name} is not complete: {side.unfinished}"
    for samples in (a, b):
        if samples.declared is not None and samples.declared.stopped:
            yield (
                f"side {samples.name} {samples.declared.stopped}: this interval and p are those of "
                "a fixed number of rows; the summary of the batch has those that are valid after "
                "stopping"
            )


def _noise_floor(a: SideSamples, b: SideSamples, n: int) -> float | None:
    """The noise floor of the difference of `n` pairs; None where no judge is asked several times.
    Epochs of a sample are judged independently, so their mean has less noise.
    """
    noise = [
        each / (side.results / max(1, len(side)))
        for side in (a, b)
        if (each := side.noise()) is not None
    ]
    if n and noise:
        return noise_floor(math.fsum(noise) / n)
    return None


def clusters_differ(a: str | None, b: str | None) -> str:
    """The warning for two batches that are clustered by different fields."""
    fields = [f"by {cluster!r}" if cluster else "by nothing" for cluster in (a, b)]
    return (
        f"side a is clustered {fields[0]} and side b {fields[1]}: pairs are independent unless "
        "a field is named"
    )


def _side_of(side: SideSamples, shared: Sequence[int], values: Sequence[float]) -> Side:
    without_value = [number for number in shared if side.value(number) is None]
    errors = sum(side.is_error(number) for number in without_value)
    if side.declared is None:
        total = None
    else:
        total = side.declared.total
    return Side(
        samples=len(side),
        results=side.results,
        of=total,
        pending=None if total is None else max(0, total - side.results),
        unfinished="" if side.declared is None else _unfinished(side.declared, side.results),
        only=len(side) - len(shared),
        errors=errors,
        unscored=len(without_value) - errors,
        mean=math.fsum(values) / len(values) if values else None,
        templates=tuple(template for template, _ in side.groups),
        variants=tuple(variant for _, variant in side.groups),
        scorers=tuple(sorted(side.scorers or ())),
    )


def _unfinished(declared: Declared, results: int) -> str:
    if declared.unfinished:
        reasons = [declared.unfinished]
    else:
        reasons = []
    if declared.total is None:
        reasons.append("the total number of results is unknown")
    elif declared.total > results:
        pending = declared.total - results
        reasons.append(
            f"{pending:,} of {amount(declared.total, 'result')} {agree(pending, 'is', 'are')} "
            "pending"
        )
    return "; ".join(reasons)


def _clusters(side: SideSamples, numbers: Iterable[int]) -> list[int]:
    """The cluster number of each sample; a sample in no cluster has one of its own, below 0."""
    found = ((number, side.cluster(number)) for number in numbers)
    return [~number if cluster is None else cluster for number, cluster in found]


def _is_undecided(a: SideSamples, b: SideSamples, number: int) -> bool:
    """Whether a side has a result without a value, unless no scorer could judge the sample on
    either side.
    """
    if not (a.is_open(number) or b.is_open(number)):
        return False
    return any(side.value(number) is not None or side.is_error(number) for side in (a, b))


def _is_bounded(
    a: SideSamples, b: SideSamples, scorer: str | None, values: Iterable[Sequence[float]]
) -> bool:
    """Whether all values lie in [0, 1], missing ones included: only shipped scorers guarantee
    that.
    """
    if scorer is None:
        return True
    for side in (a, b):
        if side.declared is None:
            declared = {}
        else:
            declared = side.declared.scorers or {}
        if not is_bounded(declared.get(scorer, {})):
            return False
    return all(_FAILS <= value <= _PASSES for each in values for value in each)


def _at_both_ends(
    a: SideSamples, b: SideSamples, numbers: Sequence[int], cluster: str | None, seed: int
) -> tuple[PairedDifference | None, PairedDifference | None]:
    """The difference with the worst and with the best values for b in place of missing ones; None
    without `numbers`.
    """
    if not numbers:
        return None, None
    if cluster is None:
        clusters = None
    else:
        clusters = _clusters(a, numbers)
    a_bounds, b_bounds = ([side.bounds(number) for number in numbers] for side in (a, b))
    worst, best = (
        _difference(
            [each[1 - end] for each in a_bounds],
            [each[end] for each in b_bounds],
            clusters=clusters,
            seed=seed,
        )
        for end in (0, 1)
    )
    return worst, best


def _design_effect(clustered: PairedDifference, plain: PairedDifference) -> float | None:
    if not clustered.se or not plain.se or clustered.se < _NO_SPREAD * plain.se:
        return None
    return (clustered.se / plain.se) ** 2


def _flipped(a: SideSamples, b: SideSamples, number: int) -> bool:
    return a.passed(number) is False and b.passed(number) is True


def _subtracted(a: Sequence[float], b: Sequence[float]) -> Sequence[float]:
    return array("d", (b_value - a_value for a_value, b_value in zip(a, b, strict=True)))


def _difference(
    a: Sequence[float], b: Sequence[float], clusters: Sequence[int] | None, seed: int
) -> PairedDifference:
    differences = _subtracted(a, b)
    if clusters is not None:
        return mean_difference(differences, clusters)
    if all(value in (_PASSES, _FAILS) for values in (a, b) for value in values):
        counts = Counter(zip(a, b, strict=True))
        both = counts[_PASSES, _PASSES]
        only_a = counts[_PASSES, _FAILS]
        only_b = counts[_FAILS, _PASSES]
        neither = counts[_FAILS, _FAILS]
        return mcnemar_difference(both, only_a, only_b=only_b, neither=neither)
    if len(differences) in BOOTSTRAP_PAIRS:
        return bootstrap_difference(differences, seed)
    return mean_difference(differences)


def _cluster_warnings(
    cluster: str, found: Sequence[int | None], count: int, fields: Collection[str], is_own: bool
) -> Iterable[str]:
    without = found.count(None)
    if found and without == len(found):
        if has_markup(cluster):
            raise UsageError(f"{cluster} has no value for any pair of side a")
        if is_own:
            purpose = "by which both batches are clustered"
        else:
            purpose = "to cluster by"
        hint = nearest_field(cluster, fields)
        raise UsageError(f"no pair has {cluster!r} in side a's metadata, {purpose}; {hint}")
    if without:
        yield (
            f"{without:,} of {amount(len(found), 'pair')} {agree(without, 'has', 'have')} no "
            f"{cluster!r}: each is a cluster of its own"
        )
    if count < FEW_CLUSTERS:
        yield (
            f"clusters by {cluster!r}: {count:,}; with fewer than {FEW_CLUSTERS} the interval "
            "and p are approximate"
        )


def _disagreement(difference: PairedDifference) -> Iterable[str]:
    low = difference.low
    high = difference.high
    p = difference.p
    if low is None or high is None or p is None:
        return
    chance = 1 - difference.confidence
    has_zero = low <= 0 <= high
    if has_zero != (p > chance):
        yield (
            f"the interval {'contains' if has_zero else 'excludes'} 0, and p is "
            f"{'above' if p > chance else 'not above'} {chance:.2g}: they come from two methods "
            f"({difference.method}) "
            "that differ in close cases; rely on p"
        )
