"""Files ranked for a request: the share of its words, weighted by rarity, that a file's description holds.

The score is that of the templates' matching (see `library.matching`): BM25F divided by what a file could
reach at most, so it lies in [0, 1] and can be compared between requests. Postings are read from the rarest
term to the commonest; once the common ones can no longer bring a new file among the best, they are looked
up for the files that are left only. The result is exact.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import nlargest

from evaluator.library.matching import UNKNOWN_CAP, Reason
from evaluator.library.words import QueryTerm
from evaluator.memory.terms import PACKED_SCALE, unpack

# Up to this size rarity says nothing about a word.
_SMALL_INDEX = 20
# As in matching: what a word that no file has counts, and what is added to what a file could reach.
_UNKNOWN_FACTOR, _PRIOR = 0.4, 0.5
# Of a long request the words that say most; more would cost time and change little.
_MAX_TERMS = 24
# A word that nearly every file has adds less than a score is rounded to, and its list is the longest: it is left out.
_LEAST_PART = 0.00005
# A posting list longer than this is worth looking at the threshold first.
_LONG_LIST = 500
_LOOKED_UP = 500
MOST = 1_000
"""Files that one request can have at most."""
# Scores are rounded to four places and packed impacts carry their field: what is this near may be equal.
_ROUNDING = 0.001


@dataclass(frozen=True, slots=True)
class _Used:
    shown: str
    id: int
    files: int
    weight: float


class Ranking:
    """One request over one state of the index: to be used within one transaction."""

    def __init__(self, connection: sqlite3.Connection, terms: Sequence[QueryTerm]) -> None:
        self._connection = connection
        (size,) = connection.execute("SELECT described FROM total").fetchone()
        self._size = max(size, _SMALL_INDEX)
        self._used: list[_Used] = []
        self._total = self._weigh(terms) if size and terms else 0.0

    def _weigh(self, terms: Sequence[QueryTerm]) -> float:
        """Chooses the terms that are searched, heaviest first. Returns: what a file could reach with all of them."""
        marks = ",".join("?" for _ in terms)
        found = {
            stem: (term, files)
            for term, stem, files in self._connection.execute(
                f"SELECT id, stem, files FROM term WHERE stem IN ({marks})", [term.stem for term in terms]
            )
        }
        unknown_idf = self._idf(0)
        unknown = 0.0
        for term in terms:
            if term.stem not in found:
                unknown += term.weight * unknown_idf * _UNKNOWN_FACTOR
                continue
            number, files = found[term.stem]
            self._used.append(_Used(term.shown, number, files, term.weight * self._idf(files)))
        self._used.sort(key=lambda used: (-used.weight, used.shown))
        del self._used[_MAX_TERMS:]
        known = sum(used.weight for used in self._used)
        total = known + min(unknown, UNKNOWN_CAP * unknown_idf * _UNKNOWN_FACTOR) + _PRIOR * unknown_idf
        self._used = [used for used in self._used if used.weight >= _LEAST_PART * total]
        return total

    def _idf(self, files: int) -> float:
        return math.log(1 + (self._size - files + 0.5) / (files + 0.5))

    def best(self, limit: int) -> list[int]:
        """The `limit` files that score highest, in no order, and those that score the same as the last of them.

        Of more than `MOST` files, those that were indexed first.
        """
        scores: dict[int, float] = {}
        left = sum(used.weight for used in self._used)
        for number, used in enumerate(self._used):
            least = 0.0
            if used.files > _LONG_LIST and len(scores) >= limit:
                least = nlargest(limit, scores.values())[-1] - _ROUNDING * self._total
            if least > left:
                # Of the terms that are left not even all together bring a new file among the best.
                hopeful = [file for file, score in scores.items() if score >= least - left]
                if len(hopeful) <= _LOOKED_UP:
                    for file, parts in self._parts(hopeful, self._used[number:]).items():
                        scores[file] += sum(part.weight for part in parts) * self._total
                    break
            left -= used.weight
            weight = used.weight / PACKED_SCALE
            for file, packed in self._connection.execute("SELECT file, impact FROM posting WHERE term = ?", (used.id,)):
                scores[file] = scores.get(file, 0.0) + weight * packed
        if not scores:
            return []
        least = nlargest(limit, scores.values())[-1] - _ROUNDING * self._total
        found = [file for file, score in scores.items() if score >= least]
        return found if len(found) <= MOST else nlargest(MOST, found, key=lambda file: (scores[file], -file))

    def reasons(self, files: Sequence[int]) -> dict[int, list[Reason]]:
        """For each file that holds any of the terms, those terms with their parts of the score."""
        return self._parts(files, self._used)

    def _parts(self, files: Sequence[int], terms: Sequence[_Used]) -> dict[int, list[Reason]]:
        parts: dict[int, list[Reason]] = {}
        for start in range(0, len(files), _LOOKED_UP):
            some = files[start : start + _LOOKED_UP]
            marks = ",".join("?" for _ in some)
            for used in terms:
                for file, packed in self._connection.execute(
                    f"SELECT file, impact FROM posting WHERE term = ? AND file IN ({marks})", (used.id, *some)
                ):
                    impact, field = unpack(packed)
                    parts.setdefault(file, []).append(Reason(used.shown, field, used.weight * impact / self._total))
        return parts
