"""Where every element, attribute and character of an accepted document stands.

The parser keeps lines only, and loses the places of entities and CDATA. This scans the text once more,
linearly and on first use, and matches what it finds to the parser's elements in document order.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from typing import TYPE_CHECKING

from evaluator.nodes import Mark, Span, Text
from evaluator.xml.tokens import ATTRIBUTE, CDATA, CLOSE, EMPTY, OPEN, TEXT, scan

if TYPE_CHECKING:
    from lxml.etree import _Element as Element  # pyright: ignore[reportPrivateUsage]

_BLANK = " \t\n\r"
_SPACE = "{http://www.w3.org/XML/1998/namespace}space"
_REFERENCE = re.compile(r"&(?:#x([0-9A-Fa-f]+)|#([0-9]+)|(\w+));")
_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_AS_SPACE = str.maketrans("\n\t", "  ")
_NAMED = {"lt": "<", "gt": ">", "amp": "&", "quot": '"', "apos": "'"}

Run = tuple[str, int]
"""Characters, and the offset in the source from which they stand one to one (an entity is a run of one)."""

Piece = tuple[int, int, int]
"""Kind (TEXT, CDATA, or OPEN for a child's tag), start and end of a piece of an element's content."""

HOLE = "\ufdd0"
"""Stands in a text for each child element, where `holes` asks for it; at the place of the child's `<`."""


class Layout:
    """The places in one document. `text` is what was parsed; every offset and column is the author's."""

    def __init__(self, text: str, root: Element, file: str | None) -> None:
        self._text = text
        self._file = file
        self._lines = [0, *(match.end() for match in re.finditer("\n", text))]
        self._tags: list[tuple[int, int]] = []
        self._pieces: list[list[Piece]] = []
        self._scan()
        # Holding the elements keeps the parser's proxies, and so their identity, alive.
        self._index = {element: number for number, element in enumerate(root.iter("*"))}
        self._preserves = "xml:space" in text

    def _scan(self) -> None:
        tags, pieces = self._tags, self._pieces
        stack: list[int] = []
        for kind, start, end, _ in scan(self._text):
            if kind in (OPEN, EMPTY):
                if stack:
                    pieces[stack[-1]].append((OPEN, start, end))
                if kind == OPEN:
                    stack.append(len(tags))
                tags.append((start, end))
                pieces.append([])
            elif kind == CLOSE:
                stack.pop()
            elif stack and kind in (TEXT, CDATA):
                pieces[stack[-1]].append((kind, start, end))

    def span(self, offset: int) -> Span:
        line = bisect_right(self._lines, offset)
        return Span(self._file, line, offset - self._lines[line - 1] + 1)

    def locate(self, element: Element) -> Span:
        return self.span(self._tags[self._index[element]][0])

    def locate_attribute(self, element: Element, name: str) -> Span:
        found = self._attribute(element, name)
        return self.locate(element) if found is None else self.span(found[0])

    def locate_attribute_name(self, element: Element, name: str) -> Span:
        found = self._attribute_match(element, name)
        return self.locate(element) if found is None else self.span(found.start())

    def attribute_text(self, element: Element, name: str) -> Text:
        found = self._attribute(element, name)
        if found is None:
            return Text("", self.locate(element))
        runs: list[Run] = []
        for run, offset in _runs(self._text, *found):
            if self._text[offset] == "&":
                runs.append((run, offset))
                continue
            # A line end reads as a space, so columns start again after it.
            for line in _LINE.finditer(run):
                runs.append((line[0].translate(_AS_SPACE), offset + line.start()))
        return self._build(runs, found[0])

    def text_of(self, element: Element, holes: bool = False) -> Text:
        number = self._index[element]
        begin = self._tags[number][1]
        runs: list[Run] = []
        for kind, start, end in self._pieces[number]:
            if kind == CDATA:
                runs.append((self._text[start + 9 : end - 3], start + 9))
            elif kind == OPEN:
                if holes:
                    runs.append((HOLE, start))
            else:
                runs += _runs(self._text, start, end)
        if not runs:
            return Text("", self.span(begin))
        if not (self._preserves and _preserved(element)):
            runs = _dedent(runs)
        return self._build(runs, begin)

    def _build(self, runs: list[Run], begin: int) -> Text:
        marks: list[Mark] = []
        offset = 0
        for run, source in runs:
            if run:
                marks.append(Mark(offset, self.span(source)))
                offset += len(run)
        if not marks:
            return Text("", self.span(begin))
        value = "".join(run for run, _ in runs)
        return Text(value, marks[0].span, tuple(marks) if len(marks) > 1 else ())

    def _attribute(self, element: Element, name: str) -> tuple[int, int] | None:
        match = self._attribute_match(element, name)
        return None if match is None else match.span(2 if match[2] is not None else 3)

    def _attribute_match(self, element: Element, name: str) -> re.Match[str] | None:
        start, end = self._tags[self._index[element]]
        local = name.rpartition("}")[2]
        for match in ATTRIBUTE.finditer(self._text, start + 1, end):
            if match[1] == name or (local != name and match[1].rpartition(":")[2] == local):
                return match
        return None


def clean(value: str) -> str:
    """`value` as `text_of` gives it where blank space is not preserved."""
    return "".join(run for run, _ in _dedent([(value, 0)]))


def _runs(text: str, start: int, end: int) -> list[Run]:
    if text.find("&", start, end) < 0:
        return [(text[start:end], start)] if end > start else []
    runs: list[Run] = []
    position = start
    for match in _REFERENCE.finditer(text, start, end):
        if match.start() > position:
            runs.append((text[position : match.start()], position))
        hexadecimal, decimal, name = match.groups()
        character = _NAMED[name] if name else chr(int(hexadecimal, 16) if hexadecimal else int(decimal))
        runs.append((character, match.start()))
        position = match.end()
    if position < end:
        runs.append((text[position:end], position))
    return runs


def _dedent(runs: list[Run]) -> list[Run]:
    """The runs without common indentation and outer blank space."""
    value = runs[0][0] if len(runs) == 1 else "".join(run for run, _ in runs)
    kept = _kept(value)
    if len(runs) == 1:
        source = runs[0][1]
        return [(value[start:end], source + start) for start, end in kept]
    out: list[Run] = []
    number, begin = 0, 0
    for start, end in kept:
        while start < end:
            run, source = runs[number]
            stop = begin + len(run)
            if start >= stop:
                number, begin = number + 1, stop
                continue
            upto = min(end, stop)
            out.append((run[start - begin : upto - begin], source + start - begin))
            start = upto
    return out


def _kept(value: str) -> list[tuple[int, int]]:
    """The slices of `value` that stay: as inspect.cleandoc, but tabs stay tabs."""
    stop = len(value.rstrip(_BLANK))
    if value.find("\n", 0, stop) < 0:
        return [(len(value) - len(value.lstrip(_BLANK)), stop)] if stop else []
    lines = value[:stop].split("\n")
    indents = [line[: len(line) - len(line.lstrip(_BLANK))] for line in lines]
    full = [indent for line, indent in zip(lines[1:], indents[1:], strict=True) if len(indent) < len(line)]
    margin = _common(full)
    kept: list[tuple[int, int]] = []
    position = 0
    for number, line in enumerate(lines):
        indent = len(indents[number])
        blank = indent == len(line)
        end = min(position + len(line) + 1, stop)
        cut = indent if number == 0 or blank else margin
        if kept and kept[-1][1] == position + cut:
            kept[-1] = (kept[-1][0], end)
        elif kept or not blank:
            kept.append((position + cut, end))
        position = end
    return kept


def _common(indents: list[str]) -> int:
    """How many characters all of them begin with."""
    if not indents:
        return 0
    first, last = min(indents), max(indents)
    return next((i for i, one in enumerate(first) if last[i] != one), len(first))


def _preserved(element: Element) -> bool:
    holder: Element | None = element
    while holder is not None:
        said = holder.get(_SPACE)
        if said is not None:
            return said == "preserve"
        holder = holder.getparent()
    return False
