"""What a text consists of: the references and calls that its analysis finds, and the pieces of a
text that needs no parser.

A text whose placeholders are all names or paths, such as `{{ document.title }}`, is read here
without Jinja. `parsing` reads all others, and what is found here for a text is what the parser
would find.
"""

from __future__ import annotations

import re

from evaluator.lazy_dataclass import frozen

CACHE_SIZE = 4096
GLOBALS = frozenset({"range", "dict", "namespace"})
"""The functions that exist."""
CONSTANTS = frozenset({"null", "undefined"})
"""Names that mean `none`. A comparison with `undefined` asks whether the other side is defined."""

_NO_NAMES = CONSTANTS | frozenset(
    {"and", "else", "if", "in", "is", "not", "or"}
    | {"true", "false", "none"}
    | {"True", "False", "None"}
)
_MAX_PLACEHOLDERS = 1_000
_MAX_FIELDS = 20


@frozen
class Use:
    """An operation at `offset` that takes values of the types `kinds`. `problem` says what is wrong
    with another value, `code` is that of the finding.
    """

    problem: str
    kinds: frozenset[str]
    offset: int
    code: str = "wrong-type"


@frozen
class Reference:
    """A free name that is read, with the constant part of its path. `offset` is where the name
    begins.

    `optional`: the text itself provides for the name being undefined (`is defined`, `default`).
    `use` is what is done with the value, if some types do not allow it.
    """

    name: str
    path: tuple[str | int, ...]
    offset: int
    optional: bool
    use: Use | None = None


@frozen
class CallReference:
    """A call of a function template. `star`: further arguments come from `*x` or `**x`."""

    name: str
    positional: int
    keywords: tuple[str, ...]
    star: bool
    offset: int


@frozen
class Analysis:
    """The free names and calls of a text, in the order of their offsets.

    `constant`: a text that is its own rendering, or an expression that depends on nothing.
    """

    references: tuple[Reference, ...]
    calls: tuple[CallReference, ...]
    constant: bool


@frozen
class PlainPath:
    """A name and the fields after it. `offset` is where the name begins."""

    names: tuple[str, ...]
    offset: int

    def offset_of(self, index: int) -> int:
        """Where the parser places a name of the path: the first at itself, a field at its dot."""
        if index == 0:
            return self.offset
        return self.offset + len(".".join(self.names[:index]))


@frozen
class PlainData:
    """Literal text."""

    text: str
    offset: int


def has_markup(value: str) -> bool:
    """Returns whether a text holds anything but literal text."""
    return "{{" in value or "{%" in value or "{#" in value


def before_markup(value: str) -> str:
    """The literal text that a text begins with."""
    return re.split(r"\{[{%#]", value, maxsplit=1)[0]


def plain_pieces(text: str) -> list[PlainPath | PlainData] | None:
    """The pieces of a text whose placeholders are all paths; None for any other text."""
    if "{%" in text or "{#" in text or text.count("{{") > _MAX_PLACEHOLDERS:
        return None
    pieces: list[PlainPath | PlainData] = []
    place = 0
    while (start := text.find("{{", place)) >= 0:
        end = text.find("}}", start)
        if end < 0:
            return None
        path = _plain_path(text[start + 2 : end], start + 2)
        if path is None:
            return None
        if place < start:
            pieces.append(PlainData(text[place:start], place))
        pieces.append(path)
        place = end + 2
    if place < len(text):
        pieces.append(PlainData(text[place:], place))
    return pieces


def plain_path(expression: str) -> PlainPath | None:
    """The path that an expression is; None for any other expression."""
    return _plain_path(expression, 0)


def _plain_path(source: str, offset: int) -> PlainPath | None:
    path = source.strip(" \t\n")
    names = tuple(path.split("."))
    if not path.isascii() or not all(map(str.isidentifier, names)):
        return None
    if names[0] in _NO_NAMES or len(names) > _MAX_FIELDS:
        return None
    return PlainPath(names, offset + source.index(path))
