"""Compiles patterns that come as data: with a bound on their size, and with the meaning that they
have in `re`.

The `regex` library can be given a time limit, which `re` cannot. It accepts the syntax of `re` and
some of its own; what is a plain character in `re` (`a{e}`, `[[:alpha:]]`) stays one. `\\w` matches
combining marks too.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from evaluator.patterns import Match, Pattern

MAX_EXPANDED = 10_000
# Escaped characters and whole classes count as one; of a repeat, the numbers matter.
_PIECE = Pattern(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{(\d*),?(\d*)\}|[()]|.", "s")
_FOREIGN = Pattern(
    r"\\.|\(\?#[^)]*\)|(\[\^?\]?)((?:\\.|[^\]\\])*\])|\{(?!\d+(?:,\d*)?\}|,\d*\})", "s"
)


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
        return compile_pattern(_FOREIGN.sub(_plain, pattern))
    except BadPattern as error:
        raise BadPattern(f"the pattern {pattern!r:.200} {error}") from error


def _plain(match: Match) -> str:
    if match[0] == "{":
        return r"\{"
    if match[1] is None:
        return match[0]
    return match[1] + re.sub(r"(\\.)|\[", _in_class, match[2], flags=re.DOTALL)


def _in_class(match: Match) -> str:
    return match[1] or r"\["
