"""What a comparison of two batches found, and whether it meets a threshold."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from evaluator.batch.compare.rendering import (
    DIFFERENCES,
    POWER,
    in_a_line,
    render_comparison,
    render_comparison_markdown,
    signed,
)
from evaluator.batch.gates import GateStatus
from evaluator.batch.statistics import Difference, pairs_needed, smallest_difference
from evaluator.errors import UsageError

VERSION = 1
_AT_ODDS = (
    "the sides are clustered by different fields, or only one is: name the field as `cluster`, or take pairs as "
    "independent with an empty one"
)


@dataclass(frozen=True, slots=True)
class Side:
    """One batch: its samples, `only` of which the other has not; of those that both have, those without a value here:
    `errors` and `unscored`. `mean` is of the pairs.

    `results` of `of` are there, a sample's epochs one each; `of` is None where nobody knows, or results come from no
    folder. `unfinished` says why the side is not complete; empty where it is, and where nobody can say.
    """

    samples: int
    only: int
    errors: int
    unscored: int
    mean: float | None
    templates: tuple[str, ...]
    variants: tuple[str, ...]
    scorers: tuple[str, ...]
    results: int
    of: int | None = None
    unfinished: str = ""

    @property
    def pending(self) -> int | None:
        return None if self.of is None else max(0, self.of - self.results)

    def to_dict(self) -> dict[str, Any]:
        return {
            "samples": self.samples,
            "results": self.results,
            "of": self.of,
            "pending": self.pending,
            "unfinished": self.unfinished,
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
    the standard deviation of pairs' differences, None where there are fewer than two pairs. `cluster` is the metadata
    field by which pairs were clustered, None where they were taken as independent. `design_effect` is the clustered
    variance of their mean divided by the plain one, None without clusters or where there is no such variance.
    `is_at_odds`: pairs were taken as independent, as no field was named and the batches are clustered by different
    ones, or only one is.

    `undecided` are the samples of both sides of which a result is an error, or unscored; not those that neither side
    could score at all. `if_worst` is the difference had each of these results come out worst for b (0 in b, 1 in a),
    `if_best` the other way about; None where values are not known to lie in [0, 1].

    As a text it is `render_comparison`, in a notebook `render_comparison_markdown`.
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
    cluster: str | None = None
    design_effect: float | None = None
    undecided: int = 0
    if_worst: Difference | None = None
    if_best: Difference | None = None
    is_at_odds: bool = False

    def __repr__(self) -> str:
        return in_a_line(self)

    def __str__(self) -> str:
        return render_comparison(self)

    def _repr_markdown_(self) -> str:
        return render_comparison_markdown(self)

    def needed(self, difference: float, power: float = POWER) -> int | None:
        """How many pairs, in clusters like these, it takes to see a true difference of that size; None where no spread
        was seen to tell from.

        With clusters it is the number for independent pairs times `design_effect`. Source: Kish, Survey Sampling
        (1965), page 258.

        Raises: UsageError, as `statistics.pairs_needed`.
        """
        spread = self._spread_of_the_mean()
        return pairs_needed(spread, difference, power) if spread else None

    def smallest(self, power: float = POWER) -> float | None:
        """The smallest true difference that so many pairs show with that power; None as with `needed`."""
        spread = self._spread_of_the_mean()
        return smallest_difference(spread, self.n, power) if spread else None

    def _spread_of_the_mean(self) -> float | None:
        """The spread that as many independent pairs would have, were their mean as uncertain as this one."""
        if self.spread is None or self.cluster is None:
            return self.spread
        return None if self.design_effect is None else self.spread * math.sqrt(self.design_effect)

    def at_least(self, least: float) -> tuple[GateStatus, str]:
        """Whether b − a is certainly `least` or more: the whole interval is, as it is, `if_worst` and `if_best`.

        Missed where none of the three is. Incomplete, so that nobody can tell, where some of them are, where there is
        no interval, where a side is `unfinished`, and where the sides are at odds over their clusters, so that the
        interval may be too narrow. Returns: that, and why; an empty text where it is met.

        Raises: UsageError, if `least` is not finite.
        """
        if not math.isfinite(least):
            raise UsageError(f"the least difference is {least!r}, expected a finite number")
        sides = (("a", self.a), ("b", self.b))
        unfinished = [f"side {name} is not complete: {side.unfinished}" for name, side in sides if side.unfinished]
        if unfinished:
            return GateStatus.INCOMPLETE, "; ".join(unfinished)
        if self.is_at_odds:
            return GateStatus.INCOMPLETE, _AT_ODDS
        low = self.difference.low
        if low is None:
            return GateStatus.INCOMPLETE, f"there is no interval, expected one that begins at {least:g} or more"
        said = f"the interval begins at {signed(low)}, expected at least {least:g}"
        open_ones = f"{self.undecided:,} of {self.a.samples - self.a.only:,} samples with an error or no score"
        worst, best = (None if each is None else each.low for each in (self.if_worst, self.if_best))
        if worst is None or best is None:
            return GateStatus.INCOMPLETE, f"{said}; what {open_ones} could change is not known"
        if min(low, worst, best) >= least:
            return GateStatus.MET, ""
        if max(low, worst, best) < least:
            return GateStatus.MISSED, said
        at = f"{signed(worst)} or {signed(best)}"
        return GateStatus.INCOMPLETE, f"{said}; it begins at {at}, had {open_ones} come out worst or best for b"

    def to_dict(self) -> dict[str, Any]:
        """Version 1 of the JSON: keys are added to it, and none changes its meaning or goes."""
        return {
            "version": VERSION,
            "by": self.by,
            "scorer": self.scorer,
            "cluster": self.cluster,
            "is_at_odds": self.is_at_odds,
            "seed": self.seed,
            "n": self.n,
            "of": self.of,
            "a": self.a.to_dict(),
            "b": self.b.to_dict(),
            "difference": self.difference.to_dict(),
            "undecided": self.undecided,
            "if_worst": None if self.if_worst is None else self.if_worst.to_dict(),
            "if_best": None if self.if_best is None else self.if_best.to_dict(),
            "spread": self.spread,
            "design_effect": self.design_effect,
            "gained": list(self.gained),
            "lost": list(self.lost),
            "power": POWER,
            "needed": {str(size): self.needed(size) for size in DIFFERENCES},
            "smallest": self.smallest(),
            "warnings": list(self.warnings),
        }
