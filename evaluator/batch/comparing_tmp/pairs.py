"""Two batches over the same samples, compared pair by pair.

Nothing is dropped silently: pairs are n of N, N being every sample of either side, and those that make no pair are
counted by why. Differences are b − a. Of several results for one sample and epoch the last one counts; a sample's
judged epochs are averaged before it is paired.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from evaluator.batch.compact import Numbering
from evaluator.batch.records import SampleResult
from evaluator.batch.sides import SideSamples, key_of
from evaluator.batch.statistics import (
    FEW_CLUSTERS,
    Difference,
    bootstrap_difference,
    mcnemar_difference,
    mean_difference,
    pairs_needed,
    smallest_difference,
)
from evaluator.batch.summary.tables import Table, as_markdown, as_text
from evaluator.errors import UsageError
from evaluator.library.near import did_you_mean, listed

VERSION = 1
POWER = 0.8
DIFFERENCES = (0.01, 0.02, 0.05, 0.1)
BOOTSTRAP_PAIRS = range(20, 5_001)
"""With fewer pairs the bootstrap's intervals are too narrow; with more, Student's t says the same sooner."""
_SHOWN_IDS = 20
_PASSES, _FAILS = 1.0, 0.0


@dataclass(frozen=True, slots=True)
class Side:
    """One batch: its samples, `only` of which the other has not; of those that both have, those without a value here:
    `errors` and `unscored`. `mean` is of the pairs.
    """

    samples: int
    only: int
    errors: int
    unscored: int
    mean: float | None
    templates: tuple[str, ...]
    variants: tuple[str, ...]
    scorers: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            "samples": self.samples,
            "only": self.only,
            "errors": self.errors,
            "unscored": self.unscored,
            "mean": self.mean,
            "templates": list(self.templates),
            "variants": list(self.variants),
            "scorers": list(self.scorers),
        }


@dataclass(frozen=True, slots=True)
class Comparison:
    """What `compare` found. `n` of `of` samples make a pair.

    `gained` are the ids that a fails and b passes, `lost` the other way about, by the majority of epochs. `spread` is
    the standard deviation of pairs' differences, None where there are fewer than two pairs.
    """

    a: Side
    b: Side
    n: int
    of: int
    difference: Difference
    gained: tuple[str, ...]
    lost: tuple[str, ...]
    spread: float | None
    by: str
    scorer: str | None
    seed: int
    warnings: tuple[str, ...] = ()

    def needed(self, difference: float, power: float = POWER) -> int | None:
        """How many pairs it takes to see a true difference of that size; None where no spread was seen to tell from.

        Raises: UsageError, as `statistics.pairs_needed`.
        """
        return pairs_needed(self.spread, difference, power) if self.spread else None

    def smallest(self, power: float = POWER) -> float | None:
        """The smallest true difference that so many pairs show with that power; None as with `needed`."""
        return smallest_difference(self.spread, self.n, power) if self.spread else None

    def to_dict(self) -> dict[str, Any]:
        """Version 1 of the JSON: keys are added to it, and none changes its meaning or goes."""
        return {
            "version": VERSION,
            "by": self.by,
            "scorer": self.scorer,
            "seed": self.seed,
            "n": self.n,
            "of": self.of,
            "a": self.a.to_dict(),
            "b": self.b.to_dict(),
            "difference": self.difference.to_dict(),
            "spread": self.spread,
            "gained": list(self.gained),
            "lost": list(self.lost),
            "power": POWER,
            "needed": {str(size): self.needed(size) for size in DIFFERENCES},
            "smallest": self.smallest(),
            "warnings": list(self.warnings),
        }


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
    cluster of its own; the test is a cluster-robust t then. `warnings` say what else differs between the batches
    (templates, scorers, inputs or targets), which pairs are in no cluster, and where interval and p disagree. Pairs
    are in the order of side a's ids, in whatever order results come; results are read once, and none is kept: a pair
    takes some 250 bytes and its ids.

    Raises: UsageError, if a side has several templates or variants, no result has a score by that name, a sample has no
    such field, two samples of a side are equal in it, or no pair has a value of `cluster`.
    """
    key, keys = key_of(by), Numbering()
    side_a, side_b = (SideSamples(name, keys, key, scorer, cluster) for name in ("a", "b"))
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
    differences = array("d", (b_value - a_value for a_value, b_value in zip(a_values, b_values, strict=True)))
    clusters, notes = None, [*_warnings(side_a, side_b, shared)]
    if cluster is not None:
        found = [side_a.cluster(number) for number in pairs]
        # Those without one are numbered below 0.
        clusters = [~number if each is None else each for each, number in zip(found, pairs, strict=True)]
        notes += _cluster_warnings(cluster, found, len(set(clusters)), side_a.fields)
    difference = _difference(a_values, b_values, differences, clusters, seed)
    notes += _disagreement(difference)
    plain = mean_difference(differences)
    return Comparison(
        _side_of(side_a, shared, a_values),
        _side_of(side_b, shared, b_values),
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
    )


def render_comparison(comparison: Comparison, width: int = 100) -> str:
    """The comparison as text for a terminal that is `width` columns wide. Ends with a newline."""
    return as_text(_tables(comparison), width)


def render_comparison_markdown(comparison: Comparison) -> str:
    """The comparison as Markdown. Ends with a newline."""
    return as_markdown(_tables(comparison))


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
        tuple(sorted(side.scorers)),
    )


def _flipped(a: SideSamples, b: SideSamples, number: int) -> bool:
    return a.passed(number) is False and b.passed(number) is True


def _difference(
    a: Sequence[float], b: Sequence[float], differences: Sequence[float], clusters: Sequence[int] | None, seed: int
) -> Difference:
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


def _warnings(a: SideSamples, b: SideSamples, shared: Sequence[int]) -> Iterable[str]:
    templates = [sorted({template for template, _ in side.groups}) for side in (a, b)]
    if all(templates) and templates[0] != templates[1]:
        yield f"the templates differ: {', '.join(templates[0])} and {', '.join(templates[1])}"
    if len(a) and len(b) and a.scorers.keys() != b.scorers.keys():
        only = sorted(a.scorers.keys() ^ b.scorers.keys())
        yield f"the scorers differ: only one side has {', '.join(only)}"
    for what, differs in (
        ("inputs", sum(a.inputs(number) != b.inputs(number) for number in shared)),
        ("target", sum(a.target(number) != b.target(number) for number in shared)),
    ):
        if differs:
            yield f"the {what} of {differs:,} of {len(shared):,} samples in both differ"


def _cluster_warnings(cluster: str, found: Sequence[int | None], count: int, fields: Iterable[str]) -> Iterable[str]:
    without = found.count(None)
    if found and without == len(found):
        hint = did_you_mean(cluster, fields) or f"there is {listed(fields)}"
        raise UsageError(f"no pair has {cluster!r} in side a's metadata, by which to cluster; {hint}")
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


def _tables(comparison: Comparison) -> Iterable[Table]:
    difference = comparison.difference
    what = "passed" if comparison.scorer is None else f"value of {comparison.scorer}"
    lines = [f"{comparison.n:,} of {comparison.of:,} samples make a pair, by {comparison.by}"]
    if difference.mean is None:
        lines.append("without a pair there is no difference")
    else:
        lines.append(f"{what}, b − a: {_signed(difference.mean)} ± {_number(difference.se)} (standard error)")
        lines.append(f"95 % interval {_interval(difference)}, p = {_number(difference.p)} ({difference.method})")
    lines.extend(f"warning: {warning}" for warning in comparison.warnings)
    yield Table("Comparison", lines=lines)
    head = ["side", "template × variant", "samples", "only here", "error", "unscored", "mean of pairs"]
    yield Table("Sides", head, [_side("a", comparison.a), _side("b", comparison.b)])
    yield Table(
        "Flipped",
        lines=[
            f"{len(comparison.gained):,} failed in a and passed in b{_ids(comparison.gained)}",
            f"{len(comparison.lost):,} passed in a and failed in b{_ids(comparison.lost)}",
        ],
    )
    if comparison.spread:
        rows = [[_number(size), f"{comparison.needed(size):,}"] for size in DIFFERENCES]
        yield Table(
            "Samples needed",
            ["true difference", "pairs"],
            rows,
            [
                f"to see it with a power of {POWER:.0%}, at this spread of differences ({_number(comparison.spread)});",
                f"these {comparison.n:,} pairs show one of {_number(comparison.smallest())}",
            ],
        )


def _side(name: str, side: Side) -> list[str]:
    group = " × ".join(part for part in (*side.templates, *side.variants) if part)
    counts = (side.samples, side.only, side.errors, side.unscored)
    return [name, group, *(f"{count:,}" for count in counts), _number(side.mean)]


def _ids(ids: Sequence[str]) -> str:
    if not ids:
        return ""
    more = len(ids) - _SHOWN_IDS
    return f": {', '.join(ids[:_SHOWN_IDS])}{f' and {more:,} more' if more > 0 else ''}"


def _interval(difference: Difference) -> str:
    if difference.low is None or difference.high is None:
        return "–"
    return f"{_signed(difference.low)} to {_signed(difference.high)}"


def _signed(value: float) -> str:
    return f"{value:+.4g}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"
