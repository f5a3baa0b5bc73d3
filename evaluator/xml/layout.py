"""Where every element and every character of a document is, found by one pass of expat within
bounds, and why a text is not well-formed.

lxml keeps only the line of an element; expat reports the place of everything. The pass runs before
lxml builds a tree, and refuses what is not well-formed, document type declarations, XInclude, too
many elements and too much nesting.

expat says which rule is broken and where it noticed. `explain` looks at the text around that place
and says in an author's words what is wrong, exactly where, and what to do.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import field
from operator import itemgetter
from xml.parsers import expat
from xml.parsers.expat import errors

from evaluator.errors import TemplateError
from evaluator.lazy_dataclass import dataclass, frozen
from evaluator.nodes import Mark, Span, Text
from evaluator.patterns import Pattern

_NAME = Pattern(r"[^\s<>/=\"'&]+")
_UNDEFINED = Pattern(r"&(?!(?:amp|lt|gt|quot|apos);)[A-Za-z_:][\w.:-]*;")
_PART_OF_REFERENCE = Pattern(r"&[#\w.:-]{0,99}\Z")
_PART_OF_ATTRIBUTE = Pattern(r"(?<=\s)[^\s=<>\"'/]{1,99}\s{0,9}=?\s{0,9}\Z")
_PROLOG = Pattern(r"(?:\s+|<!--.*?-->|<\?.*?\?>)*+", "s")
_TAG = Pattern(r"""<[^<>"']*+(?:(?:"[^"]*+"|'[^']*+')[^<>"']*+)*+>""")
ILLEGAL = Pattern("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
"""A character that XML does not allow."""
ILLEGAL_IN_ASCII = Pattern("[\x00-\x08\x0b\x0c\x0e-\x1f]")
"""The same for ASCII text. It compiles in a tenth of the time."""
# An attribute's opening quote after which comes no closing one, or a `<` before it.
_OPEN_QUOTE = Pattern(r"""<[^<>"']*+(?:"[^"<]*+"[^<>"']*+|'[^'<]*+'[^<>"']*+)*+["']""")
_ESCAPE = "write &lt; for < and &amp; for &, or put the whole text in <![CDATA[ … ]]>"

Finding = tuple[int, str, str | None]
"""Offset, message, hint."""

OpenTag = tuple[str, int]
"""The name and the offset of an element that is not closed yet."""


def explain(text: str, code: int, offset: int, open_tags: Sequence[OpenTag]) -> Finding:
    """What expat's error `code` at `offset` means, with `open_tags` from the outermost to the
    innermost.
    """
    problem = expat.ErrorString(code)
    match problem:
        case errors.XML_ERROR_INVALID_TOKEN:
            return _invalid(text, offset, is_inside=bool(open_tags))
        case errors.XML_ERROR_UNCLOSED_TOKEN:
            return _unclosed(text, offset)
        case errors.XML_ERROR_TAG_MISMATCH:
            return _mismatch(text, offset, open_tags=open_tags)
        case errors.XML_ERROR_NO_ELEMENTS if open_tags:
            name, start = open_tags[-1]
            return _in_braces(text, start) or (start, f"<{name}> is never closed", f"add </{name}>")
        case errors.XML_ERROR_NO_ELEMENTS:
            return 0, "there is no element", "a template begins with <task …>"
        case errors.XML_ERROR_SYNTAX:
            return _text_outside(text, offset)
        case errors.XML_ERROR_JUNK_AFTER_DOC_ELEMENT:
            tag = _NAME.match(text, offset + 1)
            if text[offset] != "<" or tag is None or tag[0].startswith("!"):
                return offset, "text after the root element", None
            return offset, f"a second root element <{tag[0]}>", "put several into one <library>"
        case errors.XML_ERROR_MISPLACED_XML_PI:
            return (
                offset,
                "the XML declaration is not at the beginning of the file",
                "remove what is before it",
            )
        case errors.XML_ERROR_DUPLICATE_ATTRIBUTE:
            return (
                offset,
                f"the attribute {_name(text, offset)!r} is given twice",
                "keep one of them",
            )
        case errors.XML_ERROR_UNDEFINED_ENTITY if (
            entity := _UNDEFINED.search(text, offset)
        ) is not None:
            hint = "only &amp; &lt; &gt; &quot; &apos; and numbers such as &#160; are known"
            return entity.start(), f"the entity {entity[0]} is not defined", hint
        case errors.XML_ERROR_BAD_CHAR_REF:
            reference = text[offset : text.find(";", offset) + 1]
            return offset, f"{reference} is not a character that XML allows", "remove it"
        case errors.XML_ERROR_UNCLOSED_CDATA_SECTION:
            begin = max(text.rfind("]]>", 0, offset), open_tags[-1][1] if open_tags else 0)
            return text.find("<![CDATA[", begin), "this CDATA section is never closed", None
        case _:
            return offset, problem, None


def _mismatch(text: str, offset: int, open_tags: Sequence[OpenTag]) -> Finding:
    closing = _name(text, offset)
    name, start = open_tags[-1]
    if any(closing == other for other, _ in open_tags[:-1]):
        message = f"<{name}> is not closed before </{closing}> on line {_line(text, offset)}"
        return _in_braces(text, start) or (start, message, f"add </{name}>")
    message = f"</{closing}> does not match <{name}> opened on line {_line(text, start)}"
    return text.rfind("<", 0, offset), message, f"write </{name}>"


def _invalid(text: str, offset: int, is_inside: bool) -> Finding:
    """What is wrong at a character with which nothing can continue."""
    character = text[offset]
    if ILLEGAL.match(character):
        return offset, f"the character U+{ord(character):04X} is not allowed in XML", "remove it"
    if text.startswith("--", offset - 2) and (
        text.rfind("<!--", 0, offset - 2) > text.rfind("-->", 0, offset - 2)
    ):
        return (
            offset - 2,
            "`--` inside a comment",
            "write a single - or a dash; a comment ends with -->",
        )
    start = text.rfind("<", 0, offset)
    if not is_inside and (start < 0 or _TAG.match(text, start, offset)):
        return _text_outside(text, offset)
    if not is_inside and character == "/":
        return offset - 1, f"</{_name(text, offset + 1)}> closes nothing", None
    if text.startswith("]]>", offset - 2):
        return offset - 2, "`]]>` cannot be in text", "write ]]&gt;"
    if (reference := _PART_OF_REFERENCE.search(text, max(0, offset - 100), offset)) is not None:
        return _bare_ampersand(text, reference.start())
    return _bad_tag(text, start, end=offset)


def _text_outside(text: str, offset: int) -> Finding:
    """The finding for text before the root element, or else at `offset` after it."""
    prolog = _PROLOG.match(text)
    begin = prolog.end() if prolog else 0
    if text.startswith("<![CDATA[", begin) or not text.startswith("<", begin):
        return begin, "text before the root element", None
    return offset, "text after the root element", None


def _unclosed(text: str, start: int) -> Finding:
    """What is wrong with something that begins at `start` and does not end."""
    if text[start] == "&":
        return _bare_ampersand(text, start)
    if text[start] != "<":
        return _text_outside(text, start)
    for opening, what in (("<!--", "comment"), ("<?", "processing instruction")):
        if text.startswith(opening, start):
            return start, f"this {what} is never closed", None
    return _bad_tag(text, start, end=len(text))


def _bare_ampersand(text: str, offset: int) -> Finding:
    return _in_braces(text, offset) or (offset, "a bare `&`", "write &amp;, or use CDATA")


def _bad_tag(text: str, start: int, end: int) -> Finding:
    """What is wrong with the tag from `start`, which expat could read up to `end`."""
    if (braces := _in_braces(text, start)) is not None:
        return braces
    following = text[start + 1 : start + 2]
    if not following.isalpha() and following not in ("_", "/"):
        return start, "a bare `<`", _ESCAPE
    tag = _name(text, start + 1 + (following == "/"))
    if tag and text[end : end + 1] not in ("<", ""):
        begun = _PART_OF_ATTRIBUTE.search(text, max(start, end - 100), end)
        message = f"<{tag}> has something that is not an attribute here"
        hint = 'attributes look like name="value", with spaces between them'
        return end if begun is None else begun.start(), message, hint
    quote = _OPEN_QUOTE.match(text, start, end)
    if quote is None:
        return start, "this tag does not end with `>`", _ESCAPE
    at = quote.end() - 1
    if text.find(text[at], quote.end()) < 0 or "\n" in text[at:end] or ">" in text[at:end]:
        return at, "this attribute value has no closing quote", f"add {text[at]}"
    return end, "`<` inside an attribute value", "write &lt; for it"


def _in_braces(text: str, offset: int) -> Finding | None:
    """The finding for a `<` or `&` inside `{% … %}` or `{{ … }}`; None if it is elsewhere."""
    character = text[offset]
    before = text[max(0, offset - 2000) : offset]
    after = text[offset : offset + 2000]
    for opening, closing in (("{%", "%}"), ("{{", "}}")):
        start = before.rfind(opening)
        if (
            start >= 0
            and closing not in before[start:]
            and ">" not in before[start:]
            and closing in after
        ):
            escape = "&amp;"
            if character == "<":
                escape = "&lt;"
            message = f"`{character}` inside {opening} … {closing} is not well-formed XML"
            return (
                offset,
                message,
                f"write {escape} for it, or put the whole text in <![CDATA[ … ]]>",
            )
    return None


def _name(text: str, offset: int) -> str:
    found = _NAME.match(text, offset)
    if found:
        return found[0]
    return ""


def _line(text: str, offset: int) -> int:
    return text.count("\n", 0, offset) + 1


_BLANK = " \t\n\r"
_SPACE = "http://www.w3.org/XML/1998/namespace space"
_XINCLUDE = "http://www.w3.org/2001/XInclude "

Run = tuple[str, int]
"""Characters, and their offset in the source, which they match one to one (an entity is a run of
one).
"""

HOLE = "\ufdd0"
"""The character that represents a child element in a text with holes, at the place of the child's
`<`.
"""


@frozen
class Limits:
    """Bounds on one source: bytes, levels of elements, number of elements, attributes of one
    element.
    """

    max_bytes: int = 10_000_000
    max_depth: int = 100
    max_elements: int = 20_000
    max_attributes: int = 100


@dataclass(slots=True)
class Piece:
    """A part of an element's content from `start` to `end`.

    `read` is what the parser reads there if that differs from the source: a reference.
    """

    start: int
    end: int
    read: str | None = None


@dataclass(slots=True)
class Place:
    """One element: the offset of its `<`, its name, and whether `xml:space` preserves the blank
    space in it.

    `pieces` is its content.
    """

    start: int
    name: str
    preserves: bool
    pieces: list[Piece] = field(default_factory=list["Piece"])


class Layout:
    """The places in one document: its elements in document order. Every offset is one into
    `text`.
    """

    def __init__(self, text: str, file: str | None, limits: Limits) -> None:
        """Raises: TemplateError, where the document is refused; UnicodeEncodeError, for a lone
        surrogate.
        """
        self.text = text
        self.elements: list[Place] = []
        self._file = file
        self._limits = limits
        self._lines = [0, *(match.end() for match in re.finditer("\n", text))]
        self._open: list[Place] = []
        parser = self._parser = expat.ParserCreate("utf-8", " ")
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._characters
        parser.StartDoctypeDeclHandler = self._doctype
        try:
            parser.Parse(text, True)
        except expat.ExpatError as error:
            offset = self._lines[error.lineno - 1] + error.offset
            # In small letters it is not well-formed either.
            if text[offset : offset + 9].upper() == "<!DOCTYPE":
                self._doctype()
            found = explain(
                text,
                error.code,
                offset=offset,
                open_tags=[(place.name, place.start) for place in self._open],
            )
            raise self._error("not-well-formed", *found) from error
        del self._parser, parser  # a parser and its handlers refer to each other

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        offset = self._offset()
        limits = self._limits
        local = name.rpartition(" ")[2]
        if name.startswith(_XINCLUDE):
            hint = 'use <include href="…"/>'
            raise self._error("xinclude", offset, message="XInclude is not allowed", hint=hint)
        if len(self.elements) >= limits.max_elements:
            message = f"more than {limits.max_elements:,} elements"
            hint = "divide the templates among several files"
            raise self._error("too-many-elements", offset, message=message, hint=hint)
        if len(self._open) >= limits.max_depth:
            message = f"elements are nested more than {limits.max_depth} deep"
            raise self._error("too-deep", offset, message=message)
        if len(attributes) > limits.max_attributes:
            message = f"<{local}> has more than {limits.max_attributes} attributes"
            hint = "write the attributes that its element has"
            raise self._error("too-many-attributes", offset, message=message, hint=hint)
        preserves = bool(self._open) and self._open[-1].preserves
        if _SPACE in attributes:
            preserves = attributes[_SPACE] == "preserve"
        place = Place(offset, local, preserves=preserves)
        self.elements.append(place)
        self._open.append(place)

    def _end(self, _name: str) -> None:
        self._open.pop()

    def _characters(self, data: str) -> None:
        """Expat calls this for each line, line end and reference; lines in sequence become one
        piece.
        """
        start = self._lines[self._parser.CurrentLineNumber - 1] + self._parser.CurrentColumnNumber
        end = start + len(data)
        pieces = self._open[-1].pieces
        if not self.text.startswith(data, start):
            pieces.append(Piece(start, end, read=data))
        elif pieces and (last := pieces[-1]).end == start and last.read is None:
            last.end = end
        else:
            pieces.append(Piece(start, end))

    def _doctype(self, *_: object) -> None:
        offset = self.text.upper().rfind("<!DOCTYPE", 0, self._offset() + 9)
        message = "a document type declaration is not allowed"
        raise self._error(
            "doctype", offset, message=message, hint="remove it: entities and DTDs are never read"
        )

    def _offset(self) -> int:
        return self._lines[self._parser.CurrentLineNumber - 1] + self._parser.CurrentColumnNumber

    def _error(
        self, code: str, offset: int, message: str, hint: str | None = None
    ) -> TemplateError:
        return TemplateError.of(code, message, span=self.span(offset), hint=hint)

    def span(self, offset: int) -> Span:
        """The line and column of the character at `offset`."""
        line = bisect_right(self._lines, offset)
        return Span(self._file, line, column=offset - self._lines[line - 1] + 1)

    def offset(self, span: Span) -> int:
        """The offset of the character at a place of this text."""
        return self._lines[span.line - 1] + span.column - 1

    def text_of(self, place: Place, begin: int, holes: list[int]) -> Text:
        """The direct text of an element whose content begins at `begin`, with HOLE at each offset
        of `holes`.

        It is dedented unless its space is preserved.
        """
        runs = [
            (self.text[one.start : one.end] if one.read is None else one.read, one.start)
            for one in place.pieces
        ]
        if holes:
            runs = sorted([*runs, *((HOLE, offset) for offset in holes)], key=itemgetter(1))
        return self.build(runs if place.preserves else _dedent(runs), begin)

    def build(self, runs: list[Run], begin: int) -> Text:
        """The text of `runs`; an empty one is at `begin`."""
        marks: list[Mark] = []
        offset = 0
        for run, source in runs:
            if run:
                marks.append(Mark(offset, self.span(source)))
                offset += len(run)
        if not marks:
            return Text("", self.span(begin))
        value = "".join(run for run, _ in runs)
        return Text(value, marks[0].span, marks=tuple(marks) if len(marks) > 1 else ())


def clean(value: str) -> str:
    """`value` as `text_of` returns it where blank space is not preserved."""
    return "".join(run for run, _ in _dedent([(value, 0)]))


def _dedent(runs: list[Run]) -> list[Run]:
    """The runs without common indentation and outer blank space."""
    if len(runs) == 1:
        value, source = runs[0]
        return [(value[start:end], source + start) for start, end in _slices_to_keep(value)]
    out: list[Run] = []
    number = 0
    begin = 0
    for start, end in _slices_to_keep("".join(run for run, _ in runs)):
        while start < end:
            run, source = runs[number]
            stop = begin + len(run)
            if start >= stop:
                number = number + 1
                begin = stop
                continue
            upto = min(end, stop)
            out.append((run[start - begin : upto - begin], source + start - begin))
            start = upto
    return out


def _slices_to_keep(value: str) -> list[tuple[int, int]]:
    """The slices of `value` that stay: those that inspect.cleandoc keeps, except that tabs stay
    tabs.
    """
    stop = len(value.rstrip(_BLANK))
    if value.find("\n", 0, stop) < 0:
        if stop:
            return [(len(value) - len(value.lstrip(_BLANK)), stop)]
        return []
    lines = value[:stop].split("\n")
    indents = [line[: len(line) - len(line.lstrip(_BLANK))] for line in lines]
    full = [
        indent
        for line, indent in zip(lines[1:], indents[1:], strict=True)
        if len(indent) < len(line)
    ]
    margin = len(os.path.commonprefix(full))  # noqa: RUF071 (by characters, as is meant)
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
