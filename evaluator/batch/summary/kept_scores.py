"""Scores that a result keeps from the earlier result of its sample, as where only another scorer
has changed: their calls were paid for once, although both results have their usage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from evaluator.batch.summary.rows import NONE, Judged
from evaluator.store.columns import Column, Spool


class KeptScores:
    """Which score with usage each row has, by scorer."""

    __slots__ = ("_numbers", "_spool")

    def __init__(self, spool: Spool) -> None:
        self._numbers: dict[str, Column] = {}
        self._spool = spool

    def add(self, row: int, name: str, scores: Sequence[Judged | None]) -> None:
        """Adds the scores of a scorer in new rows, from `row` on; None where there is none that
        used anything.
        """
        if name not in self._numbers:
            if not any(scores):
                return
            self._numbers[name] = Column("i", self._spool)
        numbers = self._numbers[name]
        numbers.extend([0] * (row - len(numbers)))
        numbers.extend(0 if score is None else score[0] for score in scores)

    def replace(
        self, row: int, scores: Mapping[str, Judged | None]
    ) -> tuple[list[Sequence[float]], bool]:
        """Replaces the scores of a row.

        Returns: what the scores used that it keeps, and whether they are all that it had.
        """
        for name in scores.keys() - self._numbers.keys():
            if scores[name] is not None:
                self._numbers[name] = Column("i", self._spool)
        kept: list[Sequence[float]] = []
        are_all = True
        for name, numbers in self._numbers.items():
            numbers.extend([0] * (row + 1 - len(numbers)))
            before = numbers[row]
            score = scores.get(name)
            numbers[row] = 0 if score is None else score[0]
            if score is not None and score[0] == before:
                kept.append(score[1])
            else:
                are_all = are_all and not before
        return kept, are_all


def without_kept(
    used: Sequence[float], kept: Sequence[Sequence[float]], *, are_all: bool
) -> Sequence[float]:
    """What a result used without the scores that are `kept`. `are_all`: it has no others that used
    anything.
    """
    rest = list(used)
    for amounts in kept:
        for place, amount in enumerate(amounts):
            if amount > 0 and rest[place] != NONE:
                # Sums of floats leave a remainder.
                rest[place] = max(0, round(rest[place] - amount, 12))
            elif amount == NONE and are_all:
                rest[place] = 0
    return rest
