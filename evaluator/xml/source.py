"""Bytes to a checked tree with exact positions: what every template and profile is read through.

Nothing outside the text is ever touched: no entity, no DTD, no XInclude, no network, no other file. Bytes are
bounded before decoding, elements and depth before anything walks the tree.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import lxml.etree as etree

from evaluator.errors import Diagnostic, TemplateError
from evaluator.nodes import Span, Text
from evaluator.xml.decoding import decode, normalise_newlines
from evaluator.xml.explain import explain
from evaluator.xml.layout import Layout
from evaluator.xml.tokens import CLOSE, EMPTY, OPEN, UnclosedPlaceholder, rewrite_placeholders, scan

if TYPE_CHECKING:
    from lxml.etree import _Element as Element  # pyright: ignore[reportPrivateUsage]

_XINCLUDE = "{http://www.w3.org/2001/XInclude}*"


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on one source: bytes, levels of elements, number of elements."""

    max_bytes: int = 10_000_000
    max_depth: int = 100
    max_elements: int = 100_000


_DEFAULT_LIMITS = Limits()


class Source:
    """A well-formed, bounded document and the place of everything in it.

    `text` is the author's text, decoded, line ends as `\\n`; `root` the parsed tree, in which `<<x>>` reads
    `{{x}}`. Elements given to the methods must come from `root`.
    """

    __slots__ = ("_clean", "_layout", "file", "root", "text")

    def __init__(self, file: str | None, text: str, clean: str, root: Element) -> None:
        self.file = file
        self.text = text
        self.root = root
        self._clean = clean
        self._layout: Layout | None = None

    def __repr__(self) -> str:
        return f"Source({self.file or '<string>'!r}, <{self.root.tag}>)"

    @property
    def layout(self) -> Layout:
        if self._layout is None:
            self._layout = Layout(self._clean, self.root, self.file)
        return self._layout

    def locate(self, element: Element) -> Span:
        """The place of the element's `<`."""
        return self.layout.locate(element)

    def locate_attribute(self, element: Element, name: str) -> Span:
        """The place of the attribute value's first character; the element's, if it has no such attribute."""
        return self.layout.locate_attribute(element, name)

    def locate_attribute_name(self, element: Element, name: str) -> Span:
        """The place of the first character of the attribute's name."""
        return self.layout.locate_attribute_name(element, name)

    def text_of(self, element: Element) -> Text:
        """The element's whole direct text.

        CDATA is included, comments and child elements are left out. Indentation common to the lines after
        the first is removed, and blank space around the whole, unless `xml:space="preserve"` holds there.
        """
        return self.layout.text_of(element)

    def attribute_text(self, element: Element, name: str) -> Text:
        """The attribute's value, with line ends and tabs as spaces, as XML has it; empty if it is absent."""
        return self.layout.attribute_text(element, name)

    def line(self, number: int) -> str:
        """The author's line, counted from 1, without its end; empty past the last one."""
        lines = self.text.split("\n")
        return lines[number - 1] if 0 < number <= len(lines) else ""


def read_file(path: str | Path, limits: Limits = _DEFAULT_LIMITS) -> Source:
    """Read a regular file; never more than `limits.max_bytes` of it.

    Raises: TemplateError, also for a file that cannot be read.
    """
    name = str(path)
    try:
        # Non-blocking, so that a fifo in a template folder is refused below and not waited for.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
        with open(descriptor, "rb") as stream:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise _error("unreadable", "not a regular file", Span(name))
            if status.st_size > limits.max_bytes:
                raise _too_large(status.st_size, limits, name)
            data = stream.read(limits.max_bytes + 1)
    except OSError as error:
        raise _error("unreadable", f"cannot be read: {error.strerror}", Span(name)) from error
    except ValueError as error:  # a NUL in the path
        raise _error("unreadable", f"cannot be read: {error}", Span(name)) from error
    return read_source(data, name, limits)


def read_source(data: bytes | str, file: str | None = None, limits: Limits = _DEFAULT_LIMITS) -> Source:
    """Read one document.

    Raises: TemplateError with one located diagnostic: too-large, empty, encoding, doctype,
    unclosed-placeholder, not-well-formed, too-deep, too-many-elements or xinclude.
    """
    if len(data) > limits.max_bytes:
        raise _too_large(len(data), limits, file)
    text = normalise_newlines(data.removeprefix("\ufeff")) if isinstance(data, str) else decode(data, file)
    if not text.strip():
        raise _error("empty", "the file is empty", Span(file), "a template begins with <task …>")
    _refuse_doctype(text, file)
    _bound_elements(text, file, limits)
    try:
        clean = rewrite_placeholders(text)
    except UnclosedPlaceholder as error:
        span = span_at(text, error.offset, file)
        hint = "write <<name>> or {{ name }}; a < inside is written &lt;, and the text << is written &lt;&lt;"
        raise _error("unclosed-placeholder", "`<<` has no `>>`", span, hint) from None
    root = _parse(text, clean, file)
    _check_tree(root, Source(file, text, clean, root), limits)
    return Source(file, text, clean, root)


def span_at(text: str, offset: int, file: str | None) -> Span:
    """The place of the character at `offset`."""
    return Span(file, text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset))


def _parse(text: str, clean: str, file: str | None) -> Element:
    # Not shared: a parser serves one thread at a time.
    parser = etree.XMLParser(
        encoding="utf-8",  # what `clean` is encoded to below, whatever its declaration says
        resolve_entities=False,
        no_network=True,
        load_dtd=False,
        dtd_validation=False,
        attribute_defaults=False,
        huge_tree=False,
        strip_cdata=True,
    )
    try:
        root = etree.fromstring(clean.encode("utf-8"), parser)
    except UnicodeEncodeError as error:
        message = f"the lone surrogate U+{ord(clean[error.start]):04X} is not a character"
        raise _error("encoding", message, span_at(text, error.start, file)) from error
    except etree.XMLSyntaxError as error:
        raise _not_well_formed(text, clean, file, error) from error
    if root.getroottree().docinfo.doctype:
        raise _error("doctype", "a document type declaration is not allowed", Span(file))
    return root


def _not_well_formed(text: str, clean: str, file: str | None, error: etree.XMLSyntaxError) -> TemplateError:
    message = (error.msg or "not well-formed").partition(", line ")[0]
    if "xcessive depth" in message:
        return _error("too-deep", "elements are nested too deeply", Span(file, *_position(clean, error)))
    found = explain(clean)
    if found is None:
        return _error("not-well-formed", message, Span(file, *_position(clean, error)))
    offset, explanation, hint = found
    return _error("not-well-formed", explanation, span_at(text, offset, file), hint)


def _position(text: str, error: etree.XMLSyntaxError) -> tuple[int, int]:
    line, column = error.position
    lines = text.split("\n")
    if not 0 < line <= len(lines):
        return max(line, 1), 1
    # libxml2 counts bytes; authors count characters.
    return line, len(lines[line - 1].encode()[: max(column - 1, 0)].decode("utf-8", "ignore")) + 1


def _refuse_doctype(text: str, file: str | None) -> None:
    """Only a prolog can hold one; anywhere else it is not well-formed, and the parser says so."""
    position = 0
    while True:
        while position < len(text) and text[position].isspace():
            position += 1
        if text.startswith("<!--", position):
            end, width = text.find("-->", position + 4), 3
        elif text.startswith("<?", position):
            end, width = text.find("?>", position + 2), 2
        else:
            break
        if end < 0:
            return
        position = end + width
    if text[position : position + 9].upper() == "<!DOCTYPE":
        raise _error(
            "doctype", "a document type declaration is not allowed", span_at(text, position, file),
            "remove it: entities and DTDs are never read",
        )  # fmt: skip


def _bound_elements(text: str, file: str | None, limits: Limits) -> None:
    """Counts exactly only where the text could hold too many; before the parser builds a tree of them."""
    if text.count("<") - text.count("</") <= limits.max_elements:
        return
    count = depth = 0
    for token in scan(text):
        if token.kind in (OPEN, EMPTY):
            count += 1
            depth += token.kind == OPEN
            if count > limits.max_elements:
                message = f"more than {limits.max_elements} elements"
                raise _error("too-many-elements", message, span_at(text, token.start, file))
            if depth > limits.max_depth:
                raise _too_deep(span_at(text, token.start, file), limits)
        elif token.kind == CLOSE:
            depth -= 1


def _check_tree(root: Element, source: Source, limits: Limits) -> None:
    level, depth = [root], 1
    while level := [child for element in level for child in element.iterchildren("*")]:
        depth += 1
        if depth > limits.max_depth:
            raise _too_deep(source.locate(level[0]), limits)
    for element in root.iter(_XINCLUDE):
        raise _error(
            "xinclude", "XInclude is not allowed", source.locate(element), 'use <include href="…"/>'
        )  # fmt: skip


def _too_deep(span: Span, limits: Limits) -> TemplateError:
    return _error("too-deep", f"elements are nested more than {limits.max_depth} deep", span)


def _too_large(size: int, limits: Limits, file: str | None) -> TemplateError:
    message = f"{size:,} bytes; at most {limits.max_bytes:,} are read"
    return _error("too-large", message, Span(file), "put large material into files and name them in <file_paths>")


def _error(code: str, message: str, span: Span, hint: str | None = None) -> TemplateError:
    return TemplateError([Diagnostic("error", code, message, span, hint)])
