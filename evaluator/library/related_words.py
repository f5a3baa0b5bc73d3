"""Words of everyday English with a related meaning: a hint where request and template share no
word.

The groups in `related_words.txt`, one a line, were written for this project from general knowledge,
not from the requests of any collection.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from evaluator.library.words import stem

_FILE = Path(__file__).with_suffix(".txt")


@cache
def _by_stem() -> dict[str, frozenset[str]]:
    found: dict[str, frozenset[str]] = {}
    for line in _FILE.read_text(encoding="utf-8").splitlines():
        group = frozenset(map(stem, line.split()))
        for each in group:
            if each in found:
                found[each] = found[each] | group
            else:
                found[each] = group
    return found


def related_stems(stemmed: str) -> frozenset[str]:
    """The stems of the words that are in a group with the word of this stem, which is one of
    them.
    """
    return _by_stem().get(stemmed, frozenset())
