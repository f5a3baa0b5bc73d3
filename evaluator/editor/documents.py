"""Texts in an editor, and places in them as the Language Server Protocol counts them.

Lines of the protocol end with `\\n`, `\\r\\n` or `\\r`, which the reader of templates makes `\\n`;
so lines are the same. Columns are counted in units of the encoding that the client has chosen;
the reader counts characters.

Source: Language Server Protocol 3.17, "Text Documents" and "Position".
"""

from __future__ import annotations

from bisect import bisect_right
from functools import cached_property

from lsprotocol import types

from evaluator.nodes import Span
from evaluator.xml.source import normalise_newlines
from evaluator.xml.tolerant import Element, read_tree

Encoding = types.PositionEncodingKind | str


class Document:
    """The text of a file at one moment, with `\\n` as line ends, and its elements as far as they
    can be told.
    """

    def __init__(
        self, path: str, text: str, encoding: Encoding, version: int | None = None
    ) -> None:
        self.path = path
        self.text = normalise_newlines(text.removeprefix("\ufeff"))
        self.version = version
        self._encoding = encoding

    @cached_property
    def tree(self) -> Element:
        return read_tree(self.text)

    @cached_property
    def _starts(self) -> list[int]:
        starts = [0]
        while (found := self.text.find("\n", starts[-1])) >= 0:
            starts.append(found + 1)
        return starts

    def offset(self, position: types.Position) -> int:
        """The offset of a place; one beyond the end of a line is its end."""
        if position.line >= len(self._starts):
            return len(self.text)
        start = self._starts[position.line]
        end = self.text.find("\n", start)
        line = self.text[start : end if end >= 0 else len(self.text)]
        return start + _characters(line, position.character, self._encoding)

    def position(self, offset: int) -> types.Position:
        line = bisect_right(self._starts, offset) - 1
        before = self.text[self._starts[line] : offset]
        return types.Position(line, _units(before, self._encoding))

    def range(self, start: int, end: int) -> types.Range:
        return types.Range(self.position(start), self.position(end))

    def offset_of(self, span: Span) -> int:
        """The offset of a place that the reader reports."""
        if span.line > len(self._starts):
            return len(self.text)
        return min(self._starts[span.line - 1] + span.column - 1, len(self.text))

    def span_at(self, offset: int) -> tuple[int, int]:
        """Line and column of an offset, as the reader counts them."""
        line = bisect_right(self._starts, offset)
        return line, offset - self._starts[line - 1] + 1

    def word_end(self, offset: int) -> int:
        """Where the word at `offset` ends; one character further where there is no word."""
        end = offset
        while end < len(self.text) and (self.text[end].isalnum() or self.text[end] in "_-"):
            end += 1
        return max(end, min(offset + 1, len(self.text)))


def _units(text: str, encoding: Encoding) -> int:
    """The length of `text` in the units of an encoding."""
    if encoding == types.PositionEncodingKind.Utf32 or text.isascii():
        return len(text)
    if encoding == types.PositionEncodingKind.Utf8:
        return len(text.encode("utf-8", "surrogatepass"))
    return len(text) + sum(character > "\uffff" for character in text)


def _characters(line: str, units: int, encoding: Encoding) -> int:
    """The number of characters in the first `units` of a line."""
    if encoding == types.PositionEncodingKind.Utf32 or line.isascii():
        return min(units, len(line))
    counted = 0
    for index, character in enumerate(line):
        if counted >= units:
            return index
        counted += _units(character, encoding)
    return len(line)
