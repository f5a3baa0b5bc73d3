"""Two texts with the parts marked that differ."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

MAX_PARTS = 400
"""Words, or else lines, that are compared one by one; the time grows with their square."""
_WORD = re.compile(r"\s*\S+|\s+")


@dataclass(frozen=True, slots=True)
class MarkedPart:
    text: str
    is_changed: bool


def marked(a: str, b: str) -> tuple[list[MarkedPart], list[MarkedPart]]:
    """The parts of each text, in order: what is between the equal ends is compared by word, or by
    line if it is long; if it has very many lines it is marked as a whole.
    """
    first = _WORD.findall(a)
    second = _WORD.findall(b)
    start, end = _equal_ends(first, second)
    between = [words[start : len(words) - end] for words in (first, second)]
    if max(map(len, between)) > MAX_PARTS:
        between = ["".join(words).splitlines(keepends=True) for words in between]
    if max(map(len, between)) > MAX_PARTS:
        between = [["".join(lines)] for lines in between]
    head = first[:start]
    tail = first[len(first) - end :]
    sides = _compared(*between)
    for parts in sides:
        before, after = (
            [MarkedPart("".join(words), False)] if words else [] for words in (head, tail)
        )
        parts[:] = [*before, *parts, *after]
    return sides


def _equal_ends(a: Sequence[str], b: Sequence[str]) -> tuple[int, int]:
    """The numbers of equal words at the beginning, and of further ones at the end."""
    most = min(len(a), len(b))
    start = next((at for at in range(most) if a[at] != b[at]), most)
    end = next((at for at in range(most - start) if a[-1 - at] != b[-1 - at]), most - start)
    return start, end


def _compared(a: Sequence[str], b: Sequence[str]) -> tuple[list[MarkedPart], list[MarkedPart]]:
    first: list[MarkedPart] = []
    second: list[MarkedPart] = []
    for tag, a_from, a_to, b_from, b_to in SequenceMatcher(
        None, a, b, autojunk=False
    ).get_opcodes():
        for parts, texts in ((first, a[a_from:a_to]), (second, b[b_from:b_to])):
            if texts:
                parts.append(MarkedPart("".join(texts), tag != "equal"))
    return first, second
