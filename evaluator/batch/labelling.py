"""Which sample a labeller sees next, and how many labels are still needed.

Samples are drawn at random within each verdict of the scorer, so that labels of them correct its
number without a bias, whatever the scorer's mistakes are. The order within a verdict follows from a
hash of the result, and is the same for every labeller; the groups of a batch take turns in
proportion to their sizes. Verdicts take turns at random, with a chance in proportion to the root of
their sizes: a rare verdict gets more labels than its share, as the error of the judge is uncertain
there. A labeller cannot tell from the order what the judge said.

Of the samples that others have labelled, a labeller sees the first 30, which show how well people
agree, and then only samples without a label.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from hashlib import blake2b
from random import Random

from evaluator.batch.calibration import Cell, JudgedResults
from evaluator.batch.labels import Label
from evaluator.batch.statistics import Estimate, cautious_reach
from evaluator.lazy_dataclass import dataclass

OVERLAP = 30
LEAST_LABELS = 10
"""With fewer labels of a template and variant, a width is not trusted."""
_LEAST_OF_VERDICT = 2
_RANKS = 2.0**64


@dataclass(frozen=True, slots=True)
class LabelProgress:
    """How well the share of a template and variant is known: `reach` is half the width of its
    interval, in points; None without an interval.

    `needed` more labels make it about as small as wanted; None where that is unknown, or where even
    a label of each result does not.
    """

    cell: Cell
    labels: int
    of: int
    reach: float | None
    needed: int | None
    best: float | None

    def line(self, precision: float) -> str:
        name = " × ".join(part for part in self.cell if part)
        counts = f"{name}: {self.labels:,} of {self.of:,} results labelled"
        if self.reach is None:
            return f"{counts}; an interval needs at least two labels of each verdict"
        found = f"{counts}; the share is known to ± {self.reach:.1f} points"
        if self.needed == 0:
            return found
        if self.needed is None:
            return (
                f"{found}; ± {precision:g} needs more results: labels of all {self.of:,} "
                f"give ± {self.best or 0:.1f}"
            )
        return f"{found}; about {self.needed:,} more labels for ± {precision:g}"


class _Stratum:
    """The results of a template and variant with one verdict, in the order in which they are
    shown.
    """

    def __init__(self, judged: JudgedResults, verdict: int) -> None:
        self.judged = judged
        groups: dict[str, list[tuple[float, int]]] = {}
        for place, passed in enumerate(judged.passed):
            if passed == verdict:
                group = groups.setdefault(judged.groups[place], [])
                group.append((rank_of(judged.keys[place]), place))
        ranked: list[tuple[float, int]] = []
        for members in groups.values():
            members.sort()
            ranked += [
                ((number + rank) / len(members), place)
                for number, (rank, place) in enumerate(members)
            ]
        self.places = [place for _, place in sorted(ranked)]

    @property
    def decided(self) -> int:
        """The number of results with a label that decides."""
        return sum(
            any(label.passed is not None for label in self.judged.labels[place].values())
            for place in self.places
            if place in self.judged.labels
        )

    def next(self, labeller: str, *, sees_others: bool, skipped: Collection[str]) -> int | None:
        """The place of the next result for a labeller."""
        for place in self.places:
            labels = self.judged.labels.get(place, {})
            if labeller in labels or self.judged.keys[place] in skipped:
                continue
            if not labels or sees_others:
                return place
        return None


class LabelQueue:
    """The samples that a labeller is asked about, one after the other.

    `precision` is the wanted half of an interval's width, in points of a percentage.
    """

    def __init__(
        self, cells: Mapping[Cell, JudgedResults], labeller: str, precision: float
    ) -> None:
        self._cells = cells
        self._labeller = labeller
        self._precision = precision
        self._strata = {
            cell: [_Stratum(judged, verdict) for verdict in (1, 0)]
            for cell, judged in cells.items()
        }

    def next(self, skipped: Collection[str] = ()) -> str | None:
        """The key of the next result; None where the wanted precision is reached, or nothing is
        left. `skipped` results are not shown.
        """
        sees_others = self._overlap() < OVERLAP
        found: list[tuple[_Stratum, int]] = []
        for cell, strata in self._strata.items():
            if self._is_precise(cell, sees_others=sees_others):
                continue
            for stratum in strata:
                place = stratum.next(self._labeller, sees_others=sees_others, skipped=skipped)
                if place is not None:
                    found.append((stratum, place))
        if not found:
            return None
        scarce = [each for each in found if each[0].decided < _LEAST_OF_VERDICT]
        choices = scarce or found
        weights = [math.sqrt(len(stratum.places)) for stratum, _ in choices]
        draw = Random(f"{self._labeller}\0{self._label_count()}\0{len(skipped)}")
        stratum, place = draw.choices(choices, weights=weights)[0]
        return stratum.judged.keys[place]

    def add(self, label: Label) -> None:
        """Counts a label that was given just now."""
        for judged in self._cells.values():
            judged.add_label(label)

    def progress(self) -> Iterator[LabelProgress]:
        """How well each share is known."""
        for cell in self._cells:
            yield self._progress_of(cell)

    def _is_precise(self, cell: Cell, *, sees_others: bool) -> bool:
        labels = self._cells[cell].labels.values()
        has_others = sees_others and any(self._labeller not in found for found in labels)
        return not has_others and self._progress_of(cell).needed == 0

    def _progress_of(self, cell: Cell) -> LabelProgress:
        share = self._cells[cell].share()
        estimate = share.corrected
        if estimate.low is None or estimate.high is None:
            return LabelProgress(cell, share.labels, share.of, reach=None, needed=None, best=None)
        reach = 50 * (estimate.high - estimate.low)
        best = _reach_of(share.judge)
        judged = self._cells[cell]
        cautious = cautious_reach(judged.partly_labelled(range(len(judged))), estimate) or 0.0
        needed = _needed(
            share.labels, share.of, reach=100 * cautious, best=best, precision=self._precision
        )
        return LabelProgress(cell, share.labels, share.of, reach=reach, needed=needed, best=best)

    def _overlap(self) -> int:
        """The number of results that this labeller and another one have labelled."""
        return sum(
            self._labeller in labels and len(labels) > 1
            for judged in self._cells.values()
            for labels in judged.labels.values()
        )

    def _label_count(self) -> int:
        return sum(
            len(labels) for judged in self._cells.values() for labels in judged.labels.values()
        )


def _needed(labels: int, of: int, *, reach: float, best: float, precision: float) -> int | None:
    """How many more labels make the interval as small as `precision`.

    Its width has a part that falls with the number of labels, and one that labels of every result
    leave, which is about the width of the judge's own interval (`best`).
    """
    if reach <= precision:
        return max(0, min(of, LEAST_LABELS) - labels)
    if best >= precision or labels >= of:
        return None
    falling = max(0.0, reach * reach - best * best) * labels
    total = math.ceil(falling / (precision * precision - best * best))
    return max(1, min(of, total) - labels)


def _reach_of(estimate: Estimate) -> float:
    if estimate.low is None or estimate.high is None:
        return 0.0
    return 50 * (estimate.high - estimate.low)


def rank_of(key: str) -> float:
    """A number in [0, 1) that follows from the key, and from nothing that is known of the
    result.
    """
    digits = blake2b(key.encode(), digest_size=8, person=b"label").digest()
    return int.from_bytes(digits, "big") / _RANKS
