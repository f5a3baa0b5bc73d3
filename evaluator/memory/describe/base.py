"""The description of a file: one line, headings and names, never a body.

Everything is bounded here, so that no file takes more room than another: longer lines are cut,
further ones left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import islice

from evaluator.lazy_dataclass import dataclass

LOOKED_AT_CHARS = 400_000
"""Describers read at most this many characters from the beginning of a text."""
MAX_ITEMS = 300
_SUMMARY_CHARS = 200
_HEADING_CHARS = 120
_NAME_CHARS = 80
_TOTAL_CHARS = 6_000

_BLANK = re.compile(r"[\s\x00-\x1f\x7f]+")


@dataclass(frozen=True, slots=True)
class Description:
    """A file in a few words.

    `summary` is one line in its author's words, `headings` are titles and first lines of
    docstrings, `names` are what it defines (classes, functions, columns, keys).
    """

    language: str = ""
    summary: str = ""
    headings: tuple[str, ...] = ()
    names: tuple[str, ...] = ()


def make(
    language: str, *, summary: str = "", headings: Iterable[str] = (), names: Iterable[str] = ()
) -> Description:
    """Returns a description within the bounds: white space collapsed, no repetitions, in the order
    given.
    """
    line = _cut(summary, _SUMMARY_CHARS)
    return Description(
        language,
        line,
        headings=_bounded(headings, _HEADING_CHARS),
        names=_bounded(names, _NAME_CHARS),
    )


def _bounded(items: Iterable[str], longest: int) -> tuple[str, ...]:
    kept: dict[str, None] = {}
    room = _TOTAL_CHARS
    for item in islice(items, 10 * MAX_ITEMS):
        cut = _cut(item, longest)
        if not cut or cut in kept:
            continue
        room -= len(cut)
        if room < 0 or len(kept) == MAX_ITEMS:
            break
        kept[cut] = None
    return tuple(kept)


def _cut(text: str, longest: int) -> str:
    # A lone surrogate (JSON can spell one) cannot be stored as UTF-8.
    text = text[: 4 * longest].encode("utf-8", "replace").decode("utf-8")
    return _BLANK.sub(" ", text).strip()[:longest]
