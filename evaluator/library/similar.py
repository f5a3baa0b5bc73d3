"""The words of a library that resemble an unknown word: with one typing error, or with most character n-grams."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from heapq import nlargest

from evaluator.library.words import deletions, is_one_slip, stem

# Shorter words are one typing error away from too many others.
_MIN_CHARS = 5
_SLIP_FACTOR, _NGRAM_FACTOR = 0.85, 0.5
_MIN_SHARE, _MOST = 0.5, 3
_MAX_CHARS = 40


class SimilarWords:
    """Similar words among `vocabulary`. The tables are built at the first unknown word."""

    def __init__(self, vocabulary: Collection[str]) -> None:
        self._vocabulary = sorted(word for word in vocabulary if len(word) <= _MAX_CHARS)
        self._slips: dict[str, list[str]] | None = None
        self._ngrams: dict[str, list[str]] | None = None
        self._counts: dict[str, int] = {}

    def find(self, word: str) -> list[tuple[float, str]]:
        """Returns stems that resemble `word`, each with how much it counts, below 1, best first."""
        if not _MIN_CHARS <= len(word) <= _MAX_CHARS or not word.isalpha():
            return []
        if (near := self._one_slip_away(word)) is not None:
            return [(_SLIP_FACTOR, stem(near))]
        return self._most_ngrams(stem(word))

    def _one_slip_away(self, word: str) -> str | None:
        if self._slips is None:
            slips: dict[str, list[str]] = {}
            for known in self._vocabulary:
                if len(known) >= _MIN_CHARS and known.isalpha():
                    for key in deletions(known):
                        slips.setdefault(key, []).append(known)
            self._slips = slips  # whole at once: other threads may be reading
        near = {known for key in deletions(word) for known in self._slips.get(key, ())}
        return min((known for known in near if known[0] == word[0] and is_one_slip(word, known)), default=None)

    def _most_ngrams(self, word: str) -> list[tuple[float, str]]:
        if self._ngrams is None:
            ngrams: dict[str, list[str]] = {}
            for known in sorted({stem(word) for word in self._vocabulary}):
                found = _ngrams(known)
                self._counts[known] = len(found)
                for ngram in found:
                    ngrams.setdefault(ngram, []).append(known)
            self._ngrams = ngrams
        own = _ngrams(word)
        shared = Counter(known for ngram in own for known in self._ngrams.get(ngram, ()))
        shares = ((2 * count / (len(own) + self._counts[known]), known) for known, count in shared.items())
        return [(_NGRAM_FACTOR * s, known) for s, known in nlargest(_MOST, shares) if s >= _MIN_SHARE]


def _ngrams(word: str) -> frozenset[str]:
    marked = f"^{word}$"
    return frozenset(marked[i : i + n] for n in (3, 4, 5) for i in range(len(marked) - n + 1))
