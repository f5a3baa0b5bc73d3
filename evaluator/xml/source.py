"""Reads bytes into a checked tree with exact positions: decoding, placeholders, parsing.

Decoding knows byte order marks, declared encodings, and the place of an invalid byte. Line ends
become line feeds, as XML 1.0, section 2.11, requires of every processor; lines and columns stay the
same.

Nothing outside the text is ever touched: no entity, no DTD, no XInclude, no network, no other file.
Bytes are bounded before decoding, elements and depth before a tree is built.
"""

from __future__ import annotations

import codecs
import errno
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import lxml.etree as etree

from evaluator.errors import TemplateError
from evaluator.files.open_below import read_named
from evaluator.nodes import Span, Text
from evaluator.patterns import BytesPattern, Match, Pattern
from evaluator.xml.layout import Layout, Limits, Place, Run

if TYPE_CHECKING:
    from lxml.etree import _Element as Element

_DECLARED = BytesPattern(rb"""<\?xml\s[^>]{0,200}?encoding\s*=\s*["']([A-Za-z0-9._\-]{1,40})["']""")
# Codecs that are not character encodings (punycode, unicode_escape, …) are refused.
_ENCODING = Pattern(
    r"utf-8|utf-16(-[lb]e)?|utf-32(-[lb]e)?|ascii|iso8859-\d+|cp\d+|koi8-[rtu]|mac-\w+|"
    r"shift_jis\w*|euc_\w+|iso2022_\w+|gb\w+|big5\w*|hz|johab|tis-620|ptcp154|kz1048"
)


def decode(data: bytes, file: str | None) -> str:
    """The text of `data`, without a byte order mark, line ends as `\\n`.

    UTF-8 unless a byte order mark (UTF-8, UTF-16) or the XML declaration says otherwise.
    Raises: TemplateError, with the place of the first invalid byte.
    """
    encoding, skip = encoding_of(data, file)
    body = data[skip:]
    try:
        text = body.decode(encoding)
    except UnicodeDecodeError as error:
        before = normalise_newlines(body[: error.start].decode(encoding, "ignore"))
        message = (
            f"byte 0x{body[error.start]:02x} at offset {skip + error.start} is not valid {encoding}"
        )
        hint = 'save the file as UTF-8, or name its encoding: <?xml version="1.0" encoding="…"?>'
        span = Span.at(before, len(before), file=file)
        raise TemplateError.of("encoding", message, span=span, hint=hint) from error
    return normalise_newlines(text)


def normalise_newlines(text: str) -> str:
    if "\r" in text:
        return text.replace("\r\n", "\n").replace("\r", "\n")
    return text


def encoding_of(data: bytes, file: str | None) -> tuple[str, int]:
    """The encoding of `data`, and the length of its byte order mark. Raises: TemplateError."""
    if data.startswith(codecs.BOM_UTF8):
        return "utf-8", 3
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16-le" if data[0] == 0xFF else "utf-16-be", 2
    if data[:4] in (b"<\0?\0", b"\0<\0?") or data[:2] in (b"<\0", b"\0<"):
        raise _unusable("this looks like UTF-16 without a byte order mark", file)
    declared = _DECLARED.match(data[:400])
    if declared is None:
        return "utf-8", 0
    name = declared[1].decode("ascii")
    try:
        known = codecs.lookup(name).name
    except LookupError as error:
        raise _unusable(f"the declared encoding {name!r} is unknown", file) from error
    if known == "utf-8":
        return known, 0
    if _ENCODING.fullmatch(known) is None or known.startswith(("utf-16", "utf-32")):
        # A file whose declaration reads as ASCII is not UTF-16 or UTF-32, whatever it says.
        raise _unusable(f"the declared encoding {name!r} is not supported in templates", file)
    return known, 0


def _unusable(message: str, file: str | None) -> TemplateError:
    return TemplateError.of("encoding", message, span=Span(file), hint="save the file as UTF-8")


_PLACEHOLDER = Pattern(r"<<(?:[^<]*?(>>))?")
# What is skipped, whether it is closed or not (comments, processing instructions), a CDATA section,
# or a tag.
_PIECE = Pattern(
    r"""<!--.*?(?:-->|\Z)|(?P<cdata><!\[CDATA\[.*?(?:\]\]>|\Z))"""
    r"""|<\?.*?(?:\?>|\Z)|(?P<placeholder><<)"""
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


_TAG = Pattern(r"""<[^<>"']*+(?:(?:"[^"]*+"|'[^']*+')[^<>"']*+)*+>""")
_ATTRIBUTE = Pattern(r"""([^\s=<>"'/]++)\s*+=\s*+(?:"([^"]*+)"|'([^']*+)')""")
_PIECE_OF_VALUE = Pattern(r"&[^;]*;|[^&\n]*\n|[^&\n]+")
_DEFAULT_LIMITS = Limits()


class Source:
    """A well-formed, bounded document and the place of everything in it.

    `text` is the author's text, decoded, line ends as `\\n`; `root` the parsed tree, in which
    `<<x>>` reads `{{x}}`. Elements given to the methods must come from `root`.
    """

    def __init__(self, file: str | None, text: str, root: Element, layout: Layout) -> None:
        self.file = file
        self.text = text
        self.root = root
        self._layout = layout
        self._renamed: dict[tuple[Element, str], str] = {}
        # Holding the elements keeps the parser's proxies, and so their identity, alive.
        self._places = dict(zip(root.iter("*"), layout.elements, strict=True))

    def locate(self, element: Element) -> Span:
        """The place of the element's `<`."""
        return self._layout.span(self._places[element].start)

    def locate_attribute(self, element: Element, name: str) -> Span:
        """The place of the attribute value's first character; the element's, if it has no such
        attribute.
        """
        found = self._attribute(element, name)
        if found is None:
            return self.locate(element)
        return self._layout.span(_value_span(found)[0])

    def locate_attribute_name(self, element: Element, name: str) -> Span:
        """The place of the first character of the attribute's name; the element's, if it has no
        such attribute.
        """
        found = self._attribute(element, name)
        if found is None:
            return self.locate(element)
        return self._layout.span(found.start())

    def tag_of(self, element: Element) -> tuple[int, int]:
        """Where the element's start tag begins and ends in `text`."""
        place = self._places[element]
        return place.start, self._opening_tag(place).end()

    def starts_with(self, span: Span, written: str) -> bool:
        """Whether `written` is at `span` in the author's text."""
        return self._layout.text.startswith(written, self._layout.offset(span))

    def rename_attribute(self, element: Element, name: str, new: str) -> None:
        """Reads the attribute `name` as `new` from now on; its place stays that in the text."""
        value = element.attrib.pop(name)
        element.set(new, value)
        self._renamed[element, new] = name

    def text_of(self, element: Element, *, holes: bool = False) -> Text:
        """The element's whole direct text.

        CDATA is included; comments and child elements are left out (with `holes`, each child is a
        HOLE). Indentation common to the lines after the first is removed, and blank space around
        the whole, unless `xml:space="preserve"` applies.
        """
        place = self._places[element]
        children = ()
        if holes:
            children = element.iterchildren("*")
        starts = [self._places[child].start for child in children]
        return self._layout.text_of(place, self._opening_tag(place).end(), starts)

    def attribute_text(self, element: Element, name: str) -> Text:
        """The attribute's value, with line ends and tabs as spaces, as XML has it; empty if it is
        absent.
        """
        found = self._attribute(element, name)
        if found is None:
            return Text("", self.locate(element))
        value = element.get(name) or ""
        read = 0
        start, end = _value_span(found)
        if value == self._layout.text[start:end]:
            return self._layout.build([(value, start)], start)
        runs: list[Run] = []
        for piece in _PIECE_OF_VALUE.finditer(self._layout.text, start, end):
            length = 1
            if piece[0][0] != "&":
                length = len(piece[0])
            runs.append((value[read : read + length], piece.start()))
            read += length
        return self._layout.build(runs, start)

    def _opening_tag(self, place: Place) -> Match:
        found = _TAG.match(self._layout.text, place.start)
        if found is None:
            raise ValueError(f"no tag begins at {place.start}")
        return found

    def _attribute(self, element: Element, name: str) -> Match | None:
        start, end = self._opening_tag(self._places[element]).span()
        name = self._renamed.get((element, name), name)
        local = name.rpartition("}")[2]
        for match in _ATTRIBUTE.finditer(self._layout.text, start + 1, end):
            if match[1] == name or (local != name and match[1].rpartition(":")[2] == local):
                return match
        return None


def _value_span(attribute: Match) -> tuple[int, int]:
    return attribute.span(2 if attribute[2] is not None else 3)


def read_file(path: str | Path, limits: Limits = _DEFAULT_LIMITS) -> Source:
    """Read a regular file; never more than `limits.max_bytes` of it.

    Raises: TemplateError, also for a file that cannot be read.
    """
    name = str(path)
    try:
        data = read_named(path, limits.max_bytes)
    except (OSError, ValueError) as error:  # a NUL in the path is a ValueError
        if getattr(error, "errno", None) == errno.EFBIG:
            raise _too_large(limits, name) from error
        raise TemplateError.of(
            "unreadable", f"cannot be read: {getattr(error, 'strerror', error)}", span=Span(name)
        ) from error
    return read_source(data, name, limits=limits)


def read_source(
    data: bytes | str, file: str | None = None, limits: Limits = _DEFAULT_LIMITS
) -> Source:
    """Read one document.

    Raises: TemplateError with one located diagnostic: too-large, empty, encoding, doctype,
    unclosed-placeholder, not-well-formed, too-deep, too-many-elements or xinclude.
    """
    if len(data) > limits.max_bytes:
        raise _too_large(limits, file)
    if isinstance(data, str):
        text = normalise_newlines(data.removeprefix("\ufeff"))
    else:
        text = decode(data, file)
    if not text.strip():
        raise TemplateError.of(
            "empty", "the file is empty", span=Span(file), hint="a template begins with <task …>"
        )
    try:
        clean = rewrite_placeholders(text)
        layout = Layout(clean, file, limits=limits)
    except UnclosedPlaceholder as error:
        hint = (
            "write <<name>> or {{ name }}; a < inside is written &lt;, and the text << is "
            "written &lt;&lt;"
        )
        span = Span.at(text, error.offset, file=file)
        raise TemplateError.of(
            "unclosed-placeholder", "`<<` has no `>>`", span=span, hint=hint
        ) from None
    except UnicodeEncodeError as error:
        raise TemplateError.of(
            "encoding",
            f"the lone surrogate U+{ord(text[error.start]):04X} is not a character",
            span=Span.at(text, error.start, file=file),
        ) from error
    return Source(file, text, root=_parse(clean, file), layout=layout)


def _parse(text: str, file: str | None) -> Element:
    # Not shared: a parser serves one thread at a time.
    parser = etree.XMLParser(
        encoding="utf-8",  # that of the bytes below, whatever the XML declaration says
        resolve_entities=False,
        no_network=True,
        load_dtd=False,
        dtd_validation=False,
        attribute_defaults=False,
        huge_tree=False,
        strip_cdata=True,
    )
    try:
        return etree.fromstring(text.encode("utf-8"), parser)
    except (
        etree.XMLSyntaxError
    ) as error:  # what expat allows and libxml2 does not, such as a very long text
        message = (error.msg or "not well-formed").partition(", line ")[0]
        raise TemplateError.of(
            "not-well-formed", message, span=Span(file, max(error.lineno or 1, 1))
        ) from error


def _too_large(limits: Limits, file: str | None) -> TemplateError:
    return TemplateError.of(
        "too-large",
        f"more than {limits.max_bytes:,} bytes, which is the limit",
        span=Span(file),
        hint="put large material into files and name them in <file_paths>",
    )
