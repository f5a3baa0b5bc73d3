"""The pre-pass that makes an author's `<<name>>` well-formed XML, without moving any character."""

from __future__ import annotations

from collections.abc import Iterator

from evaluator.patterns import Pattern

_PLACEHOLDER = Pattern(r"<<(?:[^<]*?(>>))?")
# What is skipped, whether it is closed or not (comments, processing instructions), a CDATA section,
# or a tag.
_PIECE = Pattern(
    r"""<!--.*?(?:-->|\Z)|(?P<cdata><!\[CDATA\[.*?(?:\]\]>|\Z))|<\?.*?(?:\?>|\Z)|(?P<placeholder><<)"""
    r"""|(?P<tag><[^<>"']*+(?:(?:"[^"]*+"|'[^']*+')[^<>"']*+)*+)""",
    "s",
)
# In CDATA `<<` may be an operator of a program: a shift, a stream, a here-document. A variable
# stands on one line, begins with a name and has no blank space at its ends.
_IN_CDATA = Pattern(r"<<(?=[^\W\d])[^<>\n]*(?<=\S)>>")
_QUOTED = Pattern(r""""[^"]*+"|'[^']*+'""")


class UnclosedPlaceholder(Exception):
    """A `<<` at `offset` has no `>>`."""

    def __init__(self, offset: int) -> None:
        super().__init__(f"unclosed << at {offset}")
        self.offset = offset


def rewrite_placeholders(text: str) -> str:
    """`text` with every `<<expr>>` as `{{expr}}`, outside comments and processing instructions.

    In CDATA only `<<name…>>` on one line, without blank space at its ends, is a placeholder. The
    length stays the same, so every position does.
    Raises: UnclosedPlaceholder, for a `<<` without `>>` before the next `<` or the attribute's end.
    """
    if "<<" not in text:
        return text
    parts: list[str] = []
    copied = 0
    for start, end in _placeholders(text):
        parts += text[copied:start], "{{", text[start + 2 : end - 2], "}}"
        copied = end
    return "".join([*parts, text[copied:]])


def _placeholders(text: str) -> Iterator[tuple[int, int]]:
    position = 0
    while (piece := _PIECE.search(text, position)) is not None:
        position = piece.end()
        if piece["placeholder"]:
            start, position = _span(text, piece.start(), limit=len(text))
            yield start, position
        elif piece["cdata"] is not None:
            for inner in _IN_CDATA.finditer(text, *piece.span("cdata")):
                yield inner.span()
        elif piece["tag"] and "<<" in piece[0]:
            for value in _QUOTED.finditer(text, *piece.span()):
                for inner in _PLACEHOLDER.finditer(text, *value.span()):
                    yield _span(text, inner.start(), limit=value.end())


def _span(text: str, start: int, limit: int) -> tuple[int, int]:
    found = _PLACEHOLDER.match(text, start, limit)
    if found is None or found[1] is None:
        raise UnclosedPlaceholder(start)
    return start, found.end()
