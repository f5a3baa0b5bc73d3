"""Parts of messages: suggestions for unknown names, lists of names, durations, quoted text, text
made safe to print.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Generator, Iterable
from contextlib import contextmanager
from contextvars import ContextVar
from difflib import get_close_matches
from heapq import nsmallest

_ACTING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)

MAX_DIGITS = 4_300
"""Python converts no longer integers from and to text."""
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
        if len(candidate) <= MAX_HINT_NAME:
            folded.setdefault(candidate.lower().replace("-", "_"), candidate)
    near = get_close_matches(name.lower().replace("-", "_"), list(folded), n=3, cutoff=0.6)
    if not near:
        return otherwise
    return "did you mean " + " or ".join(f"`{folded[match]}`" for match in near) + "?"


def listed(names: Iterable[str], limit: int = 8) -> str:
    """Names for a message, sorted, cut after `limit`; `nothing` where there are none."""
    every = list(names)
    shown = ", ".join(f"`{name}`" for name in nsmallest(limit, every))
    if len(every) > limit:
        shown += f" and {len(every) - limit} more"
    return shown or "nothing"


def shortened(text: str, limit: int = 60) -> str:
    """`text` quoted for a message, on one line, cut after `limit` characters."""
    return repr(cut(" ".join(text.split()), limit))


def cut(text: str, limit: int) -> str:
    """`text`, or of a longer one as much as fits into `limit` characters with an ellipsis."""
    if len(text) <= limit:
        return text
    return f"{text[: limit - 1]}…"


def json_problem(error: Exception) -> str:
    """What is wrong with a JSON or TOML text, from the error that reading it raised; never a hint
    for programmers of Python.
    """
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if str(error).startswith("Exceeds the limit"):
        return f"an integer has more than {MAX_DIGITS:,} digits; write it as a string"
    return str(error)


def duration_text(seconds: float) -> str:
    """A duration of at least 0 with a unit that fits it: `5.5 µs`, `120 ms`, `1.5 s`, `3 min 20
    s`.
    """
    if 0 < seconds < 0.001:
        return f"{seconds * 1e6:.3g} µs"
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 119.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def with_article(noun: str) -> str:
    """`noun` after its indefinite article: "a list", "an int"."""
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"


def type_of(value: object) -> str:
    """The type of `value` for a message: "an int"."""
    return with_article(type(value).__name__)


def visible(text: str, *, one_line: bool = False) -> str:
    """`text` with every character escaped that a terminal would act on; with `one_line`, line feeds
    and tabs too.
    """
    if one_line:
        text = text.replace("\n", "\\n").replace("\t", "\\t")
    if text.isascii() and text.replace("\n", "").isprintable():
        return text
    return _ACTING.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def visible_json(text: str) -> str:
    """JSON text with the same characters escaped as JSON escapes them; it has the same value."""
    return _ACTING.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
