"""Decides on the sealed rows whether a candidate is better, or cheaper and not worse.

Each look at sealed rows is counted in the user's folder. Look k is taken at the two-sided level
0.1 / (k · (k + 1)): 0.05, 0.017, 0.008, … As only a gain is accepted, the chance that any of all
looks at the same rows accepts a template without a gain is at most 0.05, the sum of half the
levels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import partial
from math import fsum
from typing import Literal

from evaluator import disk
from evaluator.batch.statistics import PairedDifference, mcnemar_difference, mean_difference
from evaluator.batch.statistics.intervals import CONFIDENCE
from evaluator.errors import RecordError
from evaluator.fields import JsonForm
from evaluator.files.locations import user_folder
from evaluator.improve.log import open_log
from evaluator.lazy_dataclass import frozen

LEDGER = "looks.jsonl"
Claim = Literal["better", "cheaper"]


@frozen
class Outcome:
    """What a template did on a row: its value (None: an error, or not scored), whether it passed,
    and the price of the row.
    """

    value: float | None
    passed: bool | None
    price: float

    @property
    def score(self) -> float:
        """The value, 0 without one."""
        return self.value or 0.0


@frozen
class Decision(JsonForm):
    """The result of a search. `gain` is the difference of the means with its interval at
    `confidence`, from `n` of `of` rows. `gained` and `lost` are the rows that flipped.

    `worst_p` and `worst_low` take the worst for rows without a value. `price_before` and
    `price_after` are per row, `price_low` and `price_high` limit their difference.
    """

    claim: Claim
    accepted: bool
    reason: str
    look: int
    level: float
    before: float | None
    after: float | None
    gain: float | None
    low: float | None
    high: float | None
    p: float | None
    confidence: float
    method: str
    n: int
    of: int
    clusters: int | None
    worst_p: float | None
    worst_low: float | None
    margin: float | None
    price_before: float
    price_after: float
    price_low: float | None
    price_high: float | None
    gained: tuple[str, ...]
    lost: tuple[str, ...]


def level_of(look: int) -> float:
    """The two-sided level of the look with this number, counted from 1."""
    return 0.1 / (look * (look + 1))


def paired_difference(
    before: Sequence[float],
    after: Sequence[float],
    clusters: Sequence[Hashable] | None,
    confidence: float = CONFIDENCE,
) -> PairedDifference:
    """after − before: McNemar's test where all values are 0 or 1, else Student's t, cluster-robust
    with `clusters`.
    """
    if clusters is None and all(value in (0, 1) for value in (*before, *after)):
        counts = Counter(zip(map(bool, before), map(bool, after), strict=True))
        return mcnemar_difference(
            counts[True, True],
            counts[True, False],
            only_b=counts[False, True],
            neither=counts[False, False],
            confidence=confidence,
        )
    differences = [b - a for a, b in zip(before, after, strict=True)]
    return mean_difference(differences, clusters, confidence=confidence)


def decide(
    before: Mapping[str, Outcome],
    after: Mapping[str, Outcome],
    clusters: Mapping[str, Hashable] | None,
    *,
    claim: Claim,
    look: int,
    margin: float | None,
) -> Decision:
    """The decision on sealed rows; both sides have the same rows. `clusters` None: each row is a
    cluster of its own.
    """
    level = level_of(look)
    confidence = 1 - level
    ids = list(before)
    pairs = [row for row in ids if before[row].value is not None and after[row].value is not None]
    compared = partial(_difference, clusters=clusters, confidence=confidence)
    difference = compared(before, after, ids=pairs)
    worst: PairedDifference | None = difference
    values = [each.score for side in (before, after) for each in side.values()]
    if len(pairs) < len(ids):
        worst = None
        if all(0 <= value <= 1 for value in values):
            worst = compared(
                {row: _filled(before[row], 1.0) for row in ids},
                {row: _filled(after[row], 0.0) for row in ids},
                ids=ids,
            )
    prices = mean_difference(
        [after[row].price - before[row].price for row in ids],
        _groups(clusters, ids),
        confidence=confidence,
    )
    is_met, reason = _judge(
        claim, difference, worst=worst, prices=prices, level=level, margin=margin
    )
    means: list[float | None] = [None, None]
    if pairs:
        means = [fsum(side[row].score for row in pairs) / len(pairs) for side in (before, after)]
    return Decision(
        claim=claim,
        accepted=is_met,
        reason=reason,
        look=look,
        level=level,
        before=means[0],
        after=means[1],
        gain=difference.mean,
        low=difference.low,
        high=difference.high,
        p=difference.p,
        confidence=confidence,
        method=difference.method,
        n=len(pairs),
        of=len(ids),
        clusters=difference.clusters,
        worst_p=None if worst is None else worst.p,
        worst_low=None if worst is None else worst.low,
        margin=margin,
        price_before=fsum(before[row].price for row in ids) / len(ids),
        price_after=fsum(after[row].price for row in ids) / len(ids),
        price_low=prices.low,
        price_high=prices.high,
        gained=tuple(row for row in ids if after[row].passed and before[row].passed is False),
        lost=tuple(row for row in ids if before[row].passed and after[row].passed is False),
    )


def _difference(
    before: Mapping[str, Outcome],
    after: Mapping[str, Outcome],
    *,
    ids: Sequence[str],
    clusters: Mapping[str, Hashable] | None,
    confidence: float,
) -> PairedDifference:
    return paired_difference(
        [before[row].score for row in ids],
        [after[row].score for row in ids],
        clusters=_groups(clusters, ids),
        confidence=confidence,
    )


def _groups(clusters: Mapping[str, Hashable] | None, ids: Sequence[str]) -> list[Hashable] | None:
    if clusters is None:
        return None
    return [clusters[row] for row in ids]


def _filled(outcome: Outcome, value: float) -> Outcome:
    if outcome.value is not None:
        return outcome
    return Outcome(value, None, outcome.price)


def _judge(
    claim: Claim,
    difference: PairedDifference,
    *,
    worst: PairedDifference | None,
    prices: PairedDifference,
    level: float,
    margin: float | None,
) -> tuple[bool, str]:
    if worst is None:
        return False, "rows without a value, and a score without limits: nothing can be concluded"
    for side, where in ((difference, ""), (worst, ", with the worst for rows without a value")):
        if claim == "better":
            if side.p is None or side.mean is None or side.mean <= 0 or side.p > level:
                return False, f"the gain is not significant{where}"
        elif side.low is None or margin is None or side.low < -margin:
            return False, f"a loss of more than the margin is not excluded{where}"
    if claim == "cheaper" and (prices.high is None or prices.high >= 0):
        return False, "the price is not significantly lower"
    if claim == "better":
        return True, "the gain is significant"
    return True, "cheaper, and not worse"


def count_look(search: str, rows: Iterable[str]) -> int:
    """Counts a look of the search with this id at rows with these digests, and returns its number:
    1 for the first look at any of these rows. A search that is resumed keeps its number.

    Raises: RecordError or ConfigurationError, if the user's folder cannot be used.
    """
    folder = user_folder()
    try:
        disk.make_folders(folder, 0o700)
    except OSError as error:
        raise RecordError(f"{folder}: cannot be made: {error.strerror}") from error
    wanted = set(rows)
    with open_log(folder / LEDGER, waits=True) as log:
        number = 1
        for look in log.entries:
            if look["search"] == search:
                return int(look["look"])
            number += not wanted.isdisjoint(look["rows"])
        log.append({"search": search, "look": number, "rows": sorted(wanted)})
    return number
