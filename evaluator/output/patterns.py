"""Compiles patterns that come as data, with a bound on their size.

They are compiled by the `regex` library, which can be given a time limit; `re` cannot.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from evaluator.patterns import Pattern, as_regex

MAX_EXPANDED = 10_000
# Escaped characters and whole classes count as one; of a repeat, the numbers matter.
_PIECE = Pattern(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{(\d*),?(\d*)\}|[()]|.", "s")


class BadPattern(ValueError):
    """A pattern that is invalid or too large to be compiled; the message says why."""


def compile_pattern(pattern: str, ignore_case: bool = False) -> Any:
    """The pattern compiled by `regex`, in its syntax. Raises: BadPattern, if it is invalid or has
    over 10,000 parts.
    """
    import regex

    if expanded_size(pattern) > MAX_EXPANDED:
        raise BadPattern(f"has more than {MAX_EXPANDED} parts when its repeats are written out")
    try:
        return regex.compile(pattern, regex.V0 | (regex.IGNORECASE if ignore_case else 0))
    except (regex.error, RecursionError) as error:
        raise BadPattern(f"is invalid: {error}") from error


def expanded_size(pattern: str) -> int:
    """The number of parts of a pattern with each `{n,m}` written out; an upper bound for valid
    patterns.
    """
    sums = [0]
    last = [0]
    for piece in _PIECE.finditer(pattern):
        token = piece[0]
        if token == "(":
            sums.append(0)
            last.append(0)
        elif token == ")" and len(sums) > 1:
            size = sums.pop() + 1
            last.pop()
            sums[-1] += size
            last[-1] = size
        elif token[0] == "{" and (piece[1] or piece[2]):
            times = max(int(piece[1] or 0), int(piece[2] or 0))
            sums[-1] += last[-1] * max(0, times - 1)
            last[-1] *= max(1, times)
        elif token not in "*+?":
            sums[-1] += 1
            last[-1] = 1
    return sum(sums)


@lru_cache(maxsize=1024)
def compile_as_re(pattern: str) -> Any:
    """The pattern compiled by `regex` with the meaning that it has in `re`. Raises: BadPattern."""
    try:
        return compile_pattern(as_regex(pattern))
    except BadPattern as error:
        raise BadPattern(f"the pattern {pattern!r:.200} {error}") from error
