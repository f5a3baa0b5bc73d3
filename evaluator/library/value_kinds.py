"""Kinds of values that a request holds and that an input takes: dates, places, amounts of money,
numbers and others.

A request that holds a date fits a template with an input for a date, whatever words it is made in.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from evaluator.library.words import words
from evaluator.nodes import Input


class _Kind(NamedTuple):
    """A kind: the words in the names of inputs that take it, and how a text shows it, by a word or
    a pattern.
    """

    inputs: str
    words: str
    pattern: str


_CURRENCIES = "dollars?|euros?|usd|eur|gbp|pounds?|yen|bucks|rupees"
_ENDINGS = "txt|csv|json|pdf|py|xml|docx?|xlsx?|png|jpe?g|mp[34]|zip"
# No pattern reads the rest of a text again for each beginning of a value.
_KINDS = {
    "date": _Kind(
        "date day weekday week month year time hour when start end since until deadline due "
        "checkin checkout",
        "today tomorrow tonight yesterday weekend noon midnight monday tuesday wednesday thursday "
        "friday saturday "
        "sunday january february april june july august september october november december",
        pattern=r"(?=[\dm])\b(?:(?:19|20)\d\d\b|\d{1,2}(?:st|nd|rd|th|:\d\d| ?[ap]\.?m| (?:march|may))\b|(?:march|may) \d"
        r"|\d{4}[-./]\d{1,2}\b|\d{1,2}[-/.]\d{1,2}[-/.]\d{2})",
    ),
    "place": _Kind(
        "location city town place address country state province county region area zip venue "
        "where near from to "
        "origin destination departure arrival coordinates latitude",
        "",
        pattern=r"\b(?-i:(?:[Ii]n|[Nn]ear|[Aa]t|[Ff]rom|[Tt]o|[Aa]round|of|for) (?:the )?[A-Z][a-z])",
    ),
    "amount": _Kind(
        "amount price cost budget salary income principal value payment fee fare balance "
        "investment cash currency",
        "",
        pattern=rf"[$€£¥] ?\d|\d ?(?:{_CURRENCIES})\b",
    ),
    "number": _Kind(
        "number numbers num n count amount value limit x y radius length width height size side "
        "age distance mass "
        "quantity",
        "",
        pattern=r"(?=\d)(?<![\w$€£¥/.:-])\d+(?:\.\d+)?(?![\w/:-])",
    ),
    "quotation": _Kind(
        "text query title name message content keyword string input phrase sentence word",
        "",
        pattern=r"[\"“'‘](?<!\w')[^\"“”'‘’]{3,}[\"”'’]",
    ),
    "e-mail address": _Kind(
        "email mail recipient recipients to", "", pattern=r"@(?<=\w@)\w[\w-]*\.\w"
    ),
    "link": _Kind(
        "url link website webpage domain uri site",
        "",
        pattern=r"://|\.(?<=\w\.)(?:com|org|net|io|edu)\b",
    ),
    "file": _Kind(
        "file filename filepath path directory folder document",
        "",
        pattern=rf"[/~](?<![^\s'\"][/~])\w|\.(?<=\w\.)(?:{_ENDINGS})\b",
    ),
}
VALUE_KINDS = tuple(_KINDS)
_PATTERNS = {kind: re.compile(each.pattern, re.IGNORECASE) for kind, each in _KINDS.items()}
_WORDS = {kind: frozenset(each.words.split()) for kind, each in _KINDS.items()}
_BY_INPUT = {
    word: [kind for kind, each in _KINDS.items() if word in each.inputs.split()]
    for each in _KINDS.values()
    for word in each.inputs.split()
}


def kinds_in(text: str, words_in: Sequence[str]) -> list[str]:
    """The kinds of values in a text with these words in lower case."""
    return [
        kind
        for kind, pattern in _PATTERNS.items()
        if not _WORDS[kind].isdisjoint(words_in) or pattern.search(text) is not None
    ]


def kinds_taken(declared: Input) -> Iterator[str]:
    """The kinds of values that an input probably takes, by its name and type."""
    if declared.type in ("number", "integer"):
        yield "number"
    for word in words(declared.name):
        yield from _BY_INPUT.get(word, ())


def kind_term(kind: str) -> str:
    """The term of a kind in an index."""
    return f"kind:{kind}"
