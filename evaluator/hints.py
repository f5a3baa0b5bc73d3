"""Hints about names: what was probably meant, and which names there are."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable
from contextlib import contextmanager
from contextvars import ContextVar
from heapq import nsmallest

MAX_HINT_NAME = 200
_comparisons_left: ContextVar[list[int] | None] = ContextVar("comparisons_left", default=None)


@contextmanager
def limited_hints(comparisons: int) -> Generator[None]:
    """Bounds what `did_you_mean` compares inside the block: after that many names it suggests
    nothing.
    """
    token = _comparisons_left.set([comparisons])
    try:
        yield
    finally:
        _comparisons_left.reset(token)


def did_you_mean(name: str, known: Collection[str], otherwise: str | None = None) -> str | None:
    """A hint that names up to three known names close to `name`, else `otherwise`. Very long names
    have no hint.
    """
    left = _comparisons_left.get()
    if left is not None:
        left[0] -= len(known)
    if len(name) > MAX_HINT_NAME or (left is not None and left[0] < 0):
        return otherwise
    folded: dict[str, str] = {}
    for candidate in known:
        if _letters(candidate) == _letters(name):
            return f"did you mean `{candidate}`?"
        if len(candidate) <= MAX_HINT_NAME:
            folded.setdefault(candidate.lower().replace("-", "_"), candidate)
    from difflib import get_close_matches

    near = get_close_matches(name.lower().replace("-", "_"), list(folded), n=3, cutoff=0.6)
    if not near:
        return otherwise
    return "did you mean " + " or ".join(f"`{folded[match]}`" for match in near) + "?"


def _letters(name: str) -> str:
    """What `max_retries`, `max-retries` and `maxRetries` have in common."""
    return name.lower().replace("_", "").replace("-", "")


def correction(name: str, known: Collection[str], cutoff: float = 0.7) -> str | None:
    """The one known name that `name` misspells; None where no name is clearly meant. `cutoff`: the
    share of its characters that must agree, in (0, 1].
    """
    low = name.lower()
    if not 2 < len(name) <= MAX_HINT_NAME or name in known:
        return None
    folded = {each.lower(): each for each in sorted(known)}
    swapped = [each for each in folded if len(each) == len(low) and _is_swap(each, low)]
    if len(swapped) == 1:
        return folded[swapped[0]]
    from difflib import SequenceMatcher, get_close_matches

    near = get_close_matches(low, list(folded), n=2, cutoff=cutoff)
    if not near:
        return None
    if len(near) > 1:
        first, second = (SequenceMatcher(None, other, low).ratio() for other in near)
        if first - second < 0.1:
            return None
    return folded[near[0]]


def _is_swap(name: str, other: str) -> bool:
    """Whether two names of one length differ in two neighbours that changed places."""
    different = [
        index for index, pair in enumerate(zip(name, other, strict=True)) if len({*pair}) > 1
    ]
    if len(different) != 2 or different[1] != different[0] + 1:
        return False
    first = different[0]
    return name[first] == other[first + 1] and name[first + 1] == other[first]


def listed(names: Iterable[str], limit: int = 8) -> str:
    """Names for a message, sorted, cut after `limit`; `nothing` where there are none."""
    every = list(names)
    shown = ", ".join(f"`{name}`" for name in nsmallest(limit, every))
    if len(every) > limit:
        shown += f" and {len(every) - limit} more"
    return shown or "nothing"


def cut(text: str, limit: int) -> str:
    """`text`, or of a longer one as much as fits into `limit` characters with an ellipsis."""
    if len(text) <= limit:
        return text
    return f"{text[: limit - 1]}…"


def with_article(noun: str) -> str:
    """`noun` after its indefinite article: "a list", "an int"."""
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"
