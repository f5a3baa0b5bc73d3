"""A linear scanner of XML text: the one place that knows where a tag, a comment or a CDATA section ends.

It reads accepted documents (for positions) and rejected ones (to say what is wrong) alike; at the first thing
that has no end it yields one `BROKEN` token and stops, so hostile text costs one pass.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

TEXT, CDATA, COMMENT, PI, OPEN, CLOSE, EMPTY, BROKEN = range(8)

# Quantifiers are possessive: a tag that does not end fails in one pass over it.
_TAG = re.compile(r"""<(/?)([^\s<>/"'=&!?]++)((?:[^<>"']++|"[^"<]*+"|'[^'<]*+')*+)>""")
ATTRIBUTE = re.compile(r"""([^\s=<>"'/]++)\s*+=\s*+(?:"([^"<]*+)"|'([^'<]*+)')""")
_QUOTE_OR_END = re.compile(r"""["'<>]""")


class Token(NamedTuple):
    """`kind` from `start` to `end`; `name` of a tag, or what is broken."""

    kind: int
    start: int
    end: int
    name: str = ""


def scan(text: str) -> Iterator[Token]:
    """The tokens of `text` in order; comments, PIs and CDATA sections whole, with their delimiters."""
    position, size, find, match = 0, len(text), text.find, _TAG.match
    while position < size:
        start = find("<", position)
        if start < 0:
            yield Token(TEXT, position, size)
            return
        if start > position:
            yield Token(TEXT, position, start)
        tag = match(text, start)
        if tag is not None:
            position = tag.end()
            if tag[1]:
                yield Token(CLOSE, start, position, tag[2])
            elif text[position - 2] == "/":
                yield Token(EMPTY, start, position, tag[2])
            else:
                yield Token(OPEN, start, position, tag[2])
            continue
        kind, end = _other(text, start)
        yield Token(kind, start, end, "" if kind != BROKEN else _broken(text, start))
        if kind == BROKEN:
            return
        position = end


def _other(text: str, start: int) -> tuple[int, int]:
    for opening, closing, kind in (("<!--", "-->", COMMENT), ("<![CDATA[", "]]>", CDATA), ("<?", "?>", PI)):
        if text.startswith(opening, start):
            end = text.find(closing, start + len(opening))
            return (BROKEN, len(text)) if end < 0 else (kind, end + len(closing))
    return BROKEN, len(text)


def _broken(text: str, start: int) -> str:
    if text.startswith("<!--", start):
        return "comment"
    if text.startswith("<![CDATA[", start):
        return "CDATA section"
    if text.startswith("<?", start):
        return "processing instruction"
    following = text[start + 1 : start + 2]
    return "tag" if following.isalpha() or following in ("_", "/") else "less-than"


class UnclosedPlaceholder(Exception):
    """A `<<` at `offset` has no `>>`."""

    def __init__(self, offset: int) -> None:
        super().__init__(f"unclosed << at {offset}")
        self.offset = offset

    def __reduce__(self) -> tuple[type[UnclosedPlaceholder], tuple[int]]:
        return (type(self), (self.offset,))


def rewrite_placeholders(text: str) -> str:
    """`text` with every `<<expr>>` as `{{expr}}`, outside CDATA, comments and processing instructions.

    The length stays, and with it every position.
    Raises: UnclosedPlaceholder, for a `<<` without `>>` before the next `<` or the attribute's end.
    """
    if "<<" not in text:
        return text
    out: list[str] = []
    copied = position = 0
    while (start := text.find("<", position)) >= 0:
        if text.startswith("<<", start):
            close = _closing(text, start, len(text))
            out += (text[copied:start], "{{", text[start + 2 : close], "}}")
            copied = position = close + 2
        elif text.startswith(("<!", "<?"), start):
            kind, end = _other(text, start)
            position = start + 1 if kind == BROKEN and not _endless(text, start) else end
        else:
            position = start + 1
            while (mark := _QUOTE_OR_END.search(text, position)) is not None and mark[0] in "\"'":
                end = text.find(mark[0], mark.end())
                if end < 0:
                    position = len(text)
                    break
                place = mark.end()
                while (inner := text.find("<<", place, end)) >= 0:
                    close = _closing(text, inner, end)
                    out += (text[copied:inner], "{{", text[inner + 2 : close], "}}")
                    copied = place = close + 2
                position = end + 1
    out.append(text[copied:])
    return "".join(out)


def _endless(text: str, start: int) -> bool:
    return text.startswith(("<!--", "<![CDATA[", "<?"), start)


def _closing(text: str, start: int, limit: int) -> int:
    close = text.find(">>", start + 2, limit)
    stop = text.find("<", start + 2, limit if close < 0 else close)
    if close < 0 or stop >= 0:
        raise UnclosedPlaceholder(start)
    return close
