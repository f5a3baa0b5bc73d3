"""Formats the source of a template: one layout for the same template, which never changes what it
means.

It works on the author's text. Only blank space that no reader of templates reads is changed:
between the parts of elements that hold elements, and inside tags. Texts, CDATA sections, comments,
references, attribute values and the spelling of placeholders stay as they are.

- A part is on a line of its own, two blanks deeper than the element that holds it.
- One blank line between parts stays; several become one.
- A comment that follows a part on its line stays there.
- A tag is on one line if it fits into 100 columns, else each attribute has its own line.
"""

from __future__ import annotations

from dataclasses import field

from evaluator.lazy_dataclass import dataclass
from evaluator.patterns import Pattern
from evaluator.xml.source import Source, rewrite_placeholders

WIDTH = 100
ROOTS = frozenset({"task", "template", "library", "partial"})

_TOKEN = Pattern(
    r"""(?P<comment><!--.*?-->|<\?.*?\?>)|(?P<cdata><!\[CDATA\[.*?\]\]>)|(?P<end></[^>]*>)"""
    r"""|(?P<start><[^<>"']*+(?:(?:"[^"]*+"|'[^']*+')[^<>"']*+)*+>)|(?P<text>[^<]++)""",
    "s",
)
_NAME = Pattern(r"<([^\s/>]++)")
_ATTRIBUTE = Pattern(r"""([^\s=<>"'/]++)\s*+=\s*+("[^"]*+"|'[^']*+')""")
_PRESERVED = Pattern(r"""\sxml:space\s*+=\s*+["']preserve["']""")

# Elements whose own text is never read.
_HOLDERS = """
    task template library inputs steps tools examples example context_management turns cond case
    default call inner_task reduction_task director evaluator script_execution file_paths
"""
_OF_ELEMENTS = frozenset(_HOLDERS.split())
# Elements that hold elements or a text; an include may bring in either.
_OF_EITHER = frozenset(["partial", "input", "turn", "command", "termination_condition"])


@dataclass(slots=True)
class _Element:
    """An element from `start` to `end`; its content is from `begin` to `close`."""

    name: str
    start: int
    begin: int
    preserves: bool = False
    close: int = 0
    end: int = 0
    # (kind, start, end) of texts and comments, and elements
    content: list[tuple[str, int, int] | _Element] = field(
        default_factory=list["tuple[str, int, int] | _Element"]
    )


def format_source(source: Source) -> str:
    """The text of `source` in the one layout, with `\\n` as line ends."""
    return _Formatter(source.text).text()


def end_tag(text: str, offset: int) -> tuple[int, int] | None:
    """Where the name in the end tag of the element at `offset` is; None if it has no end tag."""
    clean = rewrite_placeholders(text)
    depth = 0
    for token in _TOKEN.finditer(clean, offset):
        if token.lastgroup == "start" and not token[0].endswith("/>"):
            depth += 1
        elif token.lastgroup == "end":
            depth -= 1
        if depth == 0:
            if token.lastgroup != "end":
                return None
            return token.start() + 2, token.start() + 2 + len(token[0][2:-1].rstrip())
    return None


class _Formatter:
    def __init__(self, text: str) -> None:
        self._text = text
        self._clean = rewrite_placeholders(text)  # of the same length
        self._parts: list[str] = []

    def text(self) -> str:
        document = self._parse()
        self._content(document, depth=-1)
        return "".join(self._parts).lstrip("\n") + "\n"

    def _parse(self) -> _Element:
        document = _Element("", 0, 0, close=len(self._text))
        opened = [document]
        for token in _TOKEN.finditer(self._clean):
            kind = token.lastgroup or ""
            start, end = token.span()
            parent = opened[-1]
            if kind == "end":
                parent.close = start
                parent.end = end
                opened.pop()
            elif kind == "start":
                name = _NAME.match(token[0])
                element = _Element(
                    "" if name is None else name[1],
                    start,
                    end,
                    preserves=parent.preserves or _PRESERVED.search(token[0]) is not None,
                )
                parent.content.append(element)
                if token[0].endswith("/>"):
                    element.close = element.end = end
                else:
                    opened.append(element)
            else:
                parent.content.append((kind, start, end))
        return document

    def _content(self, holder: _Element, depth: int) -> None:
        """Writes the parts of an element, each on its line."""
        indent = "\n" + "  " * (depth + 1)
        newlines = 0
        is_first = True
        for part in holder.content:
            if not isinstance(part, _Element) and part[0] == "text":
                newlines = self._text.count("\n", part[1], part[2])
                continue
            is_comment = not isinstance(part, _Element)
            if is_comment and newlines == 0 and not (is_first and depth < 0):
                self._parts.append(" ")
            else:
                if newlines > 1 and not is_first:
                    self._parts.append("\n")
                self._parts.append(indent)
            if isinstance(part, _Element):
                self._element(part, depth + 1)
            else:
                self._parts.append(self._text[part[1] : part[2]])
            newlines = 0
            is_first = False

    def _element(self, element: _Element, depth: int) -> None:
        self._parts.append(self._tag(element, depth))
        if element.close == element.end:
            return
        if self._holds_elements(element):
            self._content(element, depth)
            self._parts.append("\n" + "  " * depth)
        else:
            self._parts.append(self._text[element.begin : element.close])
        self._parts.append(f"</{element.name}>")

    def _tag(self, element: _Element, depth: int) -> str:
        attributes = [
            f"{self._text[slice(*found.span(1))]}={self._text[slice(*found.span(2))]}"
            for found in _ATTRIBUTE.finditer(
                self._clean, element.start + 1 + len(element.name), element.begin
            )
        ]
        if self._text[element.begin - 2] == "/":
            end = "/>"
        else:
            end = ">"
        line = " ".join([f"<{element.name}", *attributes]) + end
        if len(attributes) < 2 or 2 * depth + len(line) <= WIDTH:
            return line
        indent = "\n" + "  " * (depth + 2)
        return indent.join([f"<{element.name}", *attributes]) + end

    def _holds_elements(self, element: _Element) -> bool:
        """Whether blank space between the parts of `element` is never read."""
        if element.preserves or element.name not in (_OF_ELEMENTS | _OF_EITHER):
            return False
        names: list[str] = []
        for part in element.content:
            if isinstance(part, _Element):
                names.append(part.name)
            elif part[0] == "cdata" or (
                part[0] == "text" and not self._text[part[1] : part[2]].isspace()
            ):
                return False
        return bool(names) and (element.name in _OF_ELEMENTS or "include" not in names)
