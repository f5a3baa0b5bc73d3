"""Results that are not part of what a batch asks for now: only what they used counts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from evaluator.batch.summary.kept_scores import KeptScores, without_kept
from evaluator.batch.summary.rows import DOLLARS, TOKENS, calls_of, judged_of, run_of, used_by
from evaluator.lazy_dataclass import frozen
from evaluator.store.columns import Column, Interner, Spool


@frozen
class EarlierUse:
    """What an earlier result used, in the order of `Columns.used`. `is_same_run`: the result that
    follows it comes from the same run, and counts its calls and its interrupted ones.
    """

    used: tuple[float, ...]
    cached_calls: int
    interrupted_calls: int
    is_same_run: bool = False


class LeftOutResults:
    """The last result of each key, of those that are left out."""

    def __init__(self, spool: Spool) -> None:
        self._keys = Interner()
        self._runs = Column("i", spool)
        self._used = [Column("d", spool) for _ in DOLLARS]
        self._used += [Column("i", spool) for _ in TOKENS]
        self._cached = Column("i", spool)
        self._interrupted = Column("i", spool)
        self._kept_scores = KeptScores(spool)

    def __len__(self) -> int:
        return len(self._keys)

    def put(self, result: Mapping[str, Any]) -> EarlierUse | None:
        """Puts a result as JSON in the place of the earlier one with its key. Results have to come
        in the order of their lines. Returns: what only the earlier one used.
        """
        place = self._keys.number(result["key"])
        run = run_of(result)
        is_new = place == len(self._runs)
        judged = {name: judged_of(score) for name, score in result["scores"].items()}
        kept, are_all = self._kept_scores.replace(place, judged)
        earlier = None
        if not is_new:
            before = self._use_at(place)
            earlier = EarlierUse(
                tuple(without_kept(before.used, kept, are_all=are_all)),
                before.cached_calls,
                before.interrupted_calls,
                is_same_run=self._runs[place] == run,
            )
        columns = [self._runs, self._cached, self._interrupted, *self._used]
        cached = calls_of(result["cached_calls"])
        interrupted = calls_of(result["interrupted_calls"])
        values = [run, cached, interrupted, *used_by(result)]
        for column, value in zip(columns, values, strict=True):
            if is_new:
                column.append(value)
            else:
                column[place] = value
        return earlier

    def rest(self) -> Iterator[EarlierUse]:
        """What the last result of each key used."""
        return map(self._use_at, range(len(self)))

    def _use_at(self, place: int) -> EarlierUse:
        used = tuple(column[place] for column in self._used)
        return EarlierUse(used, int(self._cached[place]), int(self._interrupted[place]))
