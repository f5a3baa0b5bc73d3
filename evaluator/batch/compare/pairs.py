"""Two batches over the same samples, compared pair by pair.

Nothing is dropped silently: pairs are n of N, N being every sample of either side, those that make no pair are counted
by why, and what errors could change is bounded. Differences are b − a. Of several results for one sample and epoch the
last one counts; a sample's judged epochs are averaged before it is paired.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from evaluator.batch.compact import Numbering
from evaluator.batch.compare.comparison import Comparison, Side
from evaluator.batch.compare.differing import what_differs
from evaluator.batch.compare.sides import SideSamples, key_of
from evaluator.batch.fields import nearest_field
from evaluator.batch.reading import Declared, Results
from evaluator.batch.records import SampleResult
from evaluator.batch.scorers import is_bounded
from evaluator.batch.statistics import (
    FEW_CLUSTERS,
    Difference,
    bootstrap_difference,
    mcnemar_difference,
    mean_difference,
)
from evaluator.errors import UsageError

BOOTSTRAP_PAIRS = range(20, 5_001)
"""With fewer pairs the bootstrap's intervals are too narrow; with more, Student's t says the same sooner."""
_PASSES, _FAILS = 1.0, 0.0
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

    Pairs are samples equal in `by`: `id`, `inputs`, or `metadata.NAME`. What is compared is the value of `scorer`;
    None: whether the whole result passed. Where every value is 0 or 1 the test is McNemar's, exact; else the
    bootstrap, with `seed`, for 20 to 5,000 pairs, and Student's t for other numbers of them. `cluster` names a
    metadata field of side a: pairs that share its value are not taken as independent, and a pair without it is a
    cluster of its own; the test is a cluster-robust t then. None: the field by which both batches are clustered, where
    the sides are what `Batch.results` or `BatchResult.results` returned, and no field, with a warning, where the two
    differ or one has none (`is_at_odds`); "": pairs are independent, whatever the batches say. Such sides also say how
    many results there will be and how they were judged; a list of results says nothing of itself: compared with one,
    pairs are independent unless a field is named. `warnings` say what is not
    complete, what else differs between the batches (templates, scorers and their settings, inputs or targets), which
    pairs are in no cluster, and where interval and p disagree. Pairs are in the order of side a's ids, in whatever
    order results come; results are read once, and none is kept: a pair takes some 250 bytes and its ids.

    Raises: UsageError, if a side has several templates or variants, or no scorer of that name, a sample has no such
    field, two samples of a side are equal in it, or no pair has a value of `cluster`.
    """
    key, keys = key_of(by), Numbering()
    declared = [side.declared if isinstance(side, Results) else None for side in (a, b)]
    own = [None if each is None else each.cluster for each in declared]
    is_own = cluster is None
    is_at_odds = is_own and None not in declared and own[0] != own[1]
    cluster = (own[0] if own[0] == own[1] else None) if cluster is None else cluster or None
    side_a, side_b = (
        SideSamples(name, keys, key, scorer, cluster, said) for name, said in zip("ab", declared, strict=True)
    )
    for side, results in ((side_a, a), (side_b, b)):
        for result in results:
            side.add(result)
        side.check()
    both = (number for number in range(len(keys)) if number in side_a and number in side_b)
    shared = array("i", sorted(both, key=side_a.encoded_id))
    pairs, a_values, b_values = array("i"), array("d"), array("d")
    for number in shared:
        a_value, b_value = side_a.value(number), side_b.value(number)
        if a_value is not None and b_value is not None:
            pairs.append(number)
            a_values.append(a_value)
            b_values.append(b_value)
    sides = _side_of(side_a, shared, a_values), _side_of(side_b, shared, b_values)
    notes = [
        f"side {name} is not complete: {side.unfinished}"
        for name, side in zip("ab", sides, strict=True)
        if side.unfinished
    ]
    notes += what_differs(side_a, side_b, shared)
    if is_at_odds:
        notes.append(at_odds(*own))
    clusters = None if cluster is None else _clusters(side_a, pairs)
    if cluster is not None:
        found = [side_a.cluster(number) for number in pairs]
        notes += _cluster_warnings(cluster, found, len(set(clusters or ())), side_a.fields, is_own)
    difference = _difference(a_values, b_values, clusters, seed)
    notes += _disagreement(difference)
    undecided = [number for number in shared if _is_undecided(side_a, side_b, number)]
    if_worst = if_best = difference
    if undecided:
        is_bounded = _is_bounded(side_a, side_b, scorer, (a_values, b_values))
        everything = sorted({*pairs, *undecided}, key=side_a.encoded_id) if is_bounded else ()
        if_worst, if_best = _at_both_ends(side_a, side_b, everything, cluster, seed)
    plain = mean_difference(_subtracted(a_values, b_values))
    return Comparison(
        *sides,
        len(pairs),
        len(keys),
        difference,
        tuple(side_a.id(number) for number in shared if _flipped(side_a, side_b, number)),
        tuple(side_a.id(number) for number in shared if _flipped(side_b, side_a, number)),
        None if plain.se is None else plain.se * math.sqrt(plain.n),
        by,
        scorer,
        seed,
        tuple(notes),
        cluster,
        None if cluster is None else _design_effect(difference, plain),
        len(undecided),
        if_worst,
        if_best,
        is_at_odds,
    )


def at_odds(a: str | None, b: str | None) -> str:
    """What is to be said of two batches of which each is clustered by another field."""
    said = [f"by {cluster!r}" if cluster else "by nothing" for cluster in (a, b)]
    return f"side a is clustered {said[0]} and side b {said[1]}: unless a field is named pairs are taken as independent"


def _side_of(side: SideSamples, shared: Sequence[int], values: Sequence[float]) -> Side:
    valueless = [number for number in shared if side.value(number) is None]
    errors = sum(side.is_error(number) for number in valueless)
    return Side(
        len(side),
        len(side) - len(shared),
        errors,
        len(valueless) - errors,
        math.fsum(values) / len(values) if values else None,
        tuple(template for template, _ in side.groups),
        tuple(variant for _, variant in side.groups),
        tuple(sorted(side.scorers or ())),
        side.results,
        None if side.declared is None else side.declared.total,
        "" if side.declared is None else _unfinished(side.declared, side.results),
    )


def _unfinished(declared: Declared, results: int) -> str:
    reasons = [declared.unfinished] if declared.unfinished else []
    if declared.total is None:
        reasons.append("how many results there will be is not known")
    elif declared.total > results:
        reasons.append(f"{declared.total - results:,} of {declared.total:,} results are pending")
    return "; ".join(reasons)


def _clusters(side: SideSamples, numbers: Iterable[int]) -> list[int]:
    """Of each sample the number of its cluster; those that are in none have one of their own, below 0."""
    found = ((number, side.cluster(number)) for number in numbers)
    return [~number if cluster is None else cluster for number, cluster in found]


def _is_undecided(a: SideSamples, b: SideSamples, number: int) -> bool:
    """Whether a side has a result without a value, and not both none because no scorer could judge."""
    if not (a.is_open(number) or b.is_open(number)):
        return False
    return any(side.value(number) is not None or side.is_error(number) for side in (a, b))


def _is_bounded(a: SideSamples, b: SideSamples, scorer: str | None, values: Iterable[Sequence[float]]) -> bool:
    """Whether all values lie in [0, 1], those that are not there as well: what is no shipped scorer may give any."""
    if scorer is None:
        return True
    for side in (a, b):
        said = {} if side.declared is None else side.declared.scorers or {}
        if not is_bounded(said.get(scorer, {})):
            return False
    return all(_FAILS <= value <= _PASSES for each in values for value in each)


def _at_both_ends(
    a: SideSamples, b: SideSamples, numbers: Sequence[int], cluster: str | None, seed: int
) -> tuple[Difference | None, Difference | None]:
    """The difference had what has no value come out worst for b, and best; None without `numbers`."""
    if not numbers:
        return None, None
    clusters = None if cluster is None else _clusters(a, numbers)
    a_bounds, b_bounds = ([side.bounds(number) for number in numbers] for side in (a, b))
    worst, best = (
        _difference([each[1 - end] for each in a_bounds], [each[end] for each in b_bounds], clusters, seed)
        for end in (0, 1)
    )
    return worst, best


def _design_effect(clustered: Difference, plain: Difference) -> float | None:
    if not clustered.se or not plain.se or clustered.se < _NO_SPREAD * plain.se:
        return None
    return (clustered.se / plain.se) ** 2


def _flipped(a: SideSamples, b: SideSamples, number: int) -> bool:
    return a.passed(number) is False and b.passed(number) is True


def _subtracted(a: Sequence[float], b: Sequence[float]) -> Sequence[float]:
    return array("d", (b_value - a_value for a_value, b_value in zip(a, b, strict=True)))


def _difference(a: Sequence[float], b: Sequence[float], clusters: Sequence[int] | None, seed: int) -> Difference:
    differences = _subtracted(a, b)
    if clusters is not None:
        return mean_difference(differences, clusters)
    if all(value in (_PASSES, _FAILS) for values in (a, b) for value in values):
        counts = Counter(zip(a, b, strict=True))
        both, only_a = counts[_PASSES, _PASSES], counts[_PASSES, _FAILS]
        only_b, neither = counts[_FAILS, _PASSES], counts[_FAILS, _FAILS]
        return mcnemar_difference(both, only_a, only_b, neither)
    if len(differences) in BOOTSTRAP_PAIRS:
        return bootstrap_difference(differences, seed)
    return mean_difference(differences)


def _cluster_warnings(
    cluster: str, found: Sequence[int | None], count: int, fields: Collection[str], is_own: bool
) -> Iterable[str]:
    without = found.count(None)
    if found and without == len(found):
        whose = "both batches are clustered" if is_own else "to cluster"
        hint = nearest_field(cluster, fields)
        raise UsageError(f"no pair has {cluster!r} in side a's metadata, by which {whose}; {hint}")
    if without:
        yield f"{without:,} of {len(found):,} pairs have no {cluster!r}: each is a cluster of its own"
    if count < FEW_CLUSTERS:
        yield f"clusters by {cluster!r}: {count:,}; with fewer than {FEW_CLUSTERS} the interval and p are only rough"


def _disagreement(difference: Difference) -> Iterable[str]:
    low, high, p = difference.low, difference.high, difference.p
    if low is None or high is None or p is None:
        return
    chance = 1 - difference.confidence
    has_zero = low <= 0 <= high
    if has_zero != (p > chance):
        yield (
            f"the interval has {'0' if has_zero else 'no 0'} in it, and p is {'above' if p > chance else 'not above'} "
            f"{chance:.2g}: they are of two methods ({difference.method}), which differ where it is close; go by p"
        )
