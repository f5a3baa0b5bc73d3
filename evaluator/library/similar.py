"""The words of a library that are one typing error away from an unknown word."""

from __future__ import annotations

from collections.abc import Collection

from evaluator.library.words import deletions, is_one_slip

# Shorter words are one typing error away from too many others.
_MIN_CHARS = 6
_MAX_CHARS = 40


class SimilarWords:
    """Similar words among `vocabulary`. The table is built at the first unknown word."""

    def __init__(self, vocabulary: Collection[str]) -> None:
        self._vocabulary = sorted(word for word in vocabulary if _is_long(word))
        self._slips: dict[str, list[str]] | None = None

    def find(self, word: str) -> str | None:
        """The word of the vocabulary that was probably meant."""
        if not _is_long(word):
            return None
        if self._slips is None:
            slips: dict[str, list[str]] = {}
            for known in self._vocabulary:
                for key in deletions(known):
                    slips.setdefault(key, []).append(known)
            self._slips = slips  # whole at once: other threads may be reading
        near = {known for key in deletions(word) for known in self._slips.get(key, ())}
        return min(
            (known for known in near if known[0] == word[0] and is_one_slip(word, known)),
            default=None,
        )


def _is_long(word: str) -> bool:
    return _MIN_CHARS <= len(word) <= _MAX_CHARS and word.isalpha()
