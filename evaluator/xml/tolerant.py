"""Reads the text of a template that its author is typing: what is open at a place, and a
well-formed text that the reader accepts.

`complete` keeps every line and, before its first insertion on a line, every column, so the places
of the reader are those of the author's text: what is not well-formed becomes blank, and missing end
tags are inserted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from typing import Literal

from evaluator.lazy_dataclass import dataclass, frozen
from evaluator.patterns import Match, Pattern
from evaluator.xml.vocabulary import Vocabulary, editor_vocabulary

MAX_DEPTH = 100
"""Elements nested deeper have no content."""

TokenKind = Literal["text", "start", "end", "skipped", "cdata", "broken"]

_PLACEHOLDER = Pattern(r"<<([^<>\n]*+)>>")
_NAME = r"[^\W\d][\w.\-:]*+"
_TOKEN = Pattern(
    rf"""
    (?P<opening><!--|<\?|<!\[CDATA\[)
    |(?P<end></(?P<closed>{_NAME})\s*+>)
    |(?P<start><(?P<name>{_NAME})(?:\s++[^\s=<>"'/]++\s*+=\s*+(?:"[^"<]*+"|'[^'<]*+'))*+\s*+/?>)
    |(?P<rough><(?P<rough_name>{_NAME})(?=[\s/>])[^<>]*+>)  # a tag with attributes that are not
    |(?P<broken></?+(?:{_NAME}[^<>\n]*+)?+)
    |(?P<text>[^<]++)
    """,
    "sx",
)
_ATTRIBUTE = Pattern(r"""(?<=\s)([^\s=<>"'/]++)\s*+=\s*+(?:"([^"<]*+)"|'([^'<]*+)')""")
_FULL_NAME = Pattern(rf"{_NAME}\Z")
_NOT_IN_TEXT = Pattern(
    r"&(?!(?:amp|lt|gt|quot|apos|#[0-9]{1,7}|#x[0-9A-Fa-f]{1,6});)|\]\]>"
    "|[\x00-\x08\x0b-\x1f\ud800-\udfff\ufffe\uffff]"
)
_VISIBLE = Pattern(r"[^\n]++")


@frozen
class Token:
    """A piece of a text from `start` to `end`. `name` is that of a tag.

    A `start` or `end` is a whole tag; `is_rough`: its attributes are not well-formed. `broken` is a
    `<` and what follows it on the line up to the next tag: a tag that is being typed, or a stray
    character.
    """

    kind: TokenKind
    start: int
    end: int
    name: str = ""
    is_empty: bool = False
    is_rough: bool = False


@dataclass(eq=False, slots=True)
class Element:
    """An element from `start` to `end`; its content is from `inside` to `close`.

    One whose end tag is missing ends where the element around it does, or where an element begins
    that it cannot hold. `attributes` has the place of each value.
    """

    name: str
    start: int
    inside: int
    attributes: dict[str, tuple[int, int]]
    parent: Element | None = None
    close: int = 0
    end: int = 0
    is_closed: bool = False
    children: list[Element] = field(default_factory=list["Element"])

    def walk(self) -> Iterator[Element]:
        """This element and all elements inside it, in document order."""
        yield self
        for child in self.children:
            yield from child.walk()

    def around(self) -> Iterator[Element]:
        """This element and those around it, innermost first."""
        element: Element | None = self
        while element is not None:
            yield element
            element = element.parent

    def child(self, name: str) -> Element | None:
        """The first child of that name."""
        return next((each for each in self.children if each.name == name), None)

    def at(self, offset: int) -> Element:
        """The innermost element that has `offset` in it."""
        for child in self.children:
            is_open = offset == child.end and not child.is_closed
            if child.start < offset and (offset < child.end or is_open):
                return child.at(offset)
        return self


def neutral(text: str) -> str:
    """`text` with every `<<x>>` on one line as `{{x}}`, which has the same length."""
    if "<<" not in text:
        return text
    return _PLACEHOLDER.sub(lambda match: "{{" + match[1] + "}}", text)


def tokens(text: str) -> Iterator[Token]:
    """The pieces of a text whose placeholders are neutral; no text makes it raise an error."""
    position = 0
    unclosed: set[str] = set()
    while (match := _TOKEN.match(text, position)) is not None:
        token = _token(match)
        if match["opening"] is not None:
            token = _section(text, match, unclosed)
        yield token
        position = token.end


_CLOSINGS = {"<!--": "-->", "<?": "?>", "<![CDATA[": "]]>"}


def _section(text: str, match: Match, unclosed: set[str]) -> Token:
    """A comment, a processing instruction or a CDATA section; broken where it has no end."""
    start, end = match.span()
    opening = match[0]
    closing = _CLOSINGS[opening]
    if opening not in unclosed:
        found = text.find(closing, end)
        if found >= 0:
            kind: TokenKind
            if opening == "<![CDATA[":
                kind = "cdata"
            else:
                kind = "skipped"
            return Token(kind, start, found + len(closing))
        unclosed.add(opening)
    return Token("broken", start, end)


def _token(match: Match) -> Token:
    start, end = match.span()
    if match["start"] is not None or match["rough"] is not None:
        return Token(
            "start",
            start,
            end,
            name=match["name"] or match["rough_name"],
            is_empty=match[0].endswith("/>"),
            is_rough=match["rough"] is not None,
        )
    if match["end"] is not None:
        return Token("end", start, end, name=match["closed"])
    if match["text"] is not None:
        return Token("text", start, end)
    return Token("broken", start, end)


def attributes_in(text: str, start: int, end: int) -> dict[str, tuple[int, int]]:
    """The attributes of the tag from `start` to `end`, each with the place of its value; of two
    with one name the first.
    """
    found: dict[str, tuple[int, int]] = {}
    for match in _ATTRIBUTE.finditer(text, start, end):
        found.setdefault(match[1], match.span(2 if match[2] is not None else 3))
    return found


def read_tree(text: str) -> Element:
    """The elements of a text, below one without a name."""
    clean = neutral(text)
    document = Element("", 0, 0, {}, close=len(text), end=len(text))
    opened = [document]
    for token in tokens(clean):
        if token.kind == "start":
            for _ in _closed_before([each.name for each in opened], token.name):
                last = opened.pop()
                last.close = last.end = token.start
            values = attributes_in(clean, token.start, token.end)
            element = Element(token.name, token.start, token.end, values, opened[-1])
            opened[-1].children.append(element)
            if token.is_empty or len(opened) > MAX_DEPTH:
                element.close = element.end = token.end
                element.is_closed = True
            else:
                opened.append(element)
        elif token.kind == "end" and any(each.name == token.name for each in opened):
            while (last := opened.pop()).name != token.name:
                last.close = last.end = token.start
            last.close = token.start
            last.end = token.end
            last.is_closed = True
    for element in opened:
        element.close = element.end = len(text)
    return document


def _closed_before(opened: list[str], name: str) -> list[str]:
    """The innermost of the open elements, those that cannot hold `name`, where one around them
    can.
    """
    vocabulary = editor_vocabulary()
    for position in range(len(opened) - 1, -1, -1):
        if _holds(vocabulary, opened[position], name):
            return opened[position + 1 :]
    return []


def _holds(vocabulary: Vocabulary, parent: str, child: str) -> bool:
    return not any(vocabulary.kinds_of(parent)) or vocabulary.holds(parent, child)


def complete(text: str) -> str | None:
    """A well-formed text with the elements of `text`; None where there is no element.

    Line ends in `text` are `\\n`.
    """
    clean = neutral(text)
    parts: list[str] = []
    opened: list[str] = []
    has_root = False
    for token in tokens(clean):
        written = clean[token.start : token.end]
        if token.kind == "skipped":
            is_comment = written.startswith("<!--") and "--" not in written[4:-3]
            parts.append(_without_surrogates(written) if is_comment else _blank(written))
        elif token.kind == "end":
            if token.name not in opened:
                parts.append(_blank(written))
                continue
            while (last := opened.pop()) != token.name:
                parts.append(f"</{last}>")
            parts.append(written)
        elif (not opened and (has_root or token.kind != "start")) or (
            token.kind == "start" and not _is_bound(clean, token.name)
        ):
            parts.append(_blank(written))
        elif token.kind == "start":
            for name in reversed(_closed_before(opened, token.name)):
                parts.append(f"</{name}>")
                opened.pop()
            parts.append(_tag(clean, token))
            has_root = True
            if not token.is_empty:
                opened.append(token.name)
        elif token.kind == "text":
            parts.append(_NOT_IN_TEXT.sub(_blank_match, written))
        elif token.kind == "cdata":
            parts.append(_without_surrogates(written))
        else:
            parts.append(_blank(written))
    if not has_root:
        return None
    parts += (f"</{name}>" for name in reversed(opened))
    return "".join(parts)


def _is_bound(text: str, name: str) -> bool:
    """Whether the prefix of a name, if it has one, is declared somewhere."""
    prefix, colon, local = name.partition(":")
    if not colon:
        return True
    is_known = prefix in ("xml", "xmlns") or f"xmlns:{prefix}=" in text
    return is_known and bool(local) and ":" not in local and prefix != ""


def _tag(text: str, token: Token) -> str:
    """The tag without what is not a well-formed attribute, and without repeated attributes."""
    written = text[token.start : token.end]
    values = attributes_in(text, token.start, token.end)
    is_certain = not (token.is_rough or "&" in written or ":" in written or "{{" in written)
    if is_certain and written.count("=") == len(values):
        return _without_surrogates(written)
    kept = _blank(written)
    end = "/>" if token.is_empty else ">"
    kept = f"<{token.name}{kept[1 + len(token.name) : -len(end)]}{end}"
    for match in _ATTRIBUTE.finditer(text, token.start, token.end):
        is_first = values.get(match[1]) == match.span(2 if match[2] is not None else 3)
        if not is_first or _FULL_NAME.match(match[1]) is None or not _is_bound(text, match[1]):
            continue
        start = match.start() - token.start
        value = _NOT_IN_TEXT.sub(_blank_match, match[0])
        kept = kept[:start] + value + kept[start + len(value) :]
    return kept


def _blank_match(match: Match) -> str:
    return _blank(match[0])


def _blank(text: str) -> str:
    """Blanks in place of `text`, with the same line ends."""
    return _VISIBLE.sub(lambda match: " " * len(match[0]), text)


_NOT_XML = Pattern("[\x00-\x08\x0b-\x1f\ud800-\udfff\ufffe\uffff]")


def _without_surrogates(text: str) -> str:
    return _NOT_XML.sub(_blank_match, text)
