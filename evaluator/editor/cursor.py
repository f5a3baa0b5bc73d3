"""What is at a place in a text that is being typed: a tag, an attribute, an expression, or
text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from evaluator.editor.documents import Document
from evaluator.editor.project import Project
from evaluator.lazy_dataclass import dataclass
from evaluator.library.scoping import Binding, Bindings, ScopeObserver
from evaluator.nodes import Expression, Text
from evaluator.patterns import Pattern
from evaluator.xml.tolerant import Element, neutral, tokens

CursorKind = Literal["element", "end", "attribute", "value", "expression", "text", "nothing"]

_QUOTED = Pattern(r""""[^"]*+"|'[^']*+'""")
_IN_TAG = Pattern(r"<(/?+)([\w.\-:]*+)")
_LAST_ATTRIBUTE = Pattern(r"""\s([\w.\-:]++)\s*+=\s*+(?:"([^"]*+)|'([^']*+))\Z""")
_NAME_BEFORE = Pattern(r"\s([\w.\-:]*+)\Z")
_OPENS = Pattern(r"\{\{|\{%|<<")
_EXPRESSIONS = frozenset({("case", "test"), ("input", "from"), ("tools", "from")})
"""Attributes whose values are expressions."""
_CONDITIONS = frozenset({"termination_condition", "condition"})
"""Elements whose texts are expressions."""
_CLOSINGS = {"{{": "}}", "{%": "%}", "<<": ">>"}


@dataclass(frozen=True)
class Cursor:
    """What is at `offset`.

    `element` is the innermost element around it, or the one whose tag it is in. `word` is what is
    written before the cursor of the name, value or expression that begins at `start`; the rest of
    it ends at `end`. `opening` is the mark that an expression begins with, empty where the whole
    value or text is one.
    """

    kind: CursorKind
    offset: int
    element: Element
    start: int = 0
    word: str = ""
    end: int = 0
    tag: str = ""
    attribute: str = ""
    opening: str = ""


def cursor_at(document: Document, offset: int) -> Cursor:
    text = neutral(document.text)
    element = document.tree.at(offset)
    for token in tokens(text):
        if token.start < offset < token.end and token.kind == "skipped":
            return Cursor("nothing", offset, element)
        if token.start < offset < token.end and token.kind == "cdata":
            return _in_text(text, offset, element)
        if token.start >= offset:
            break
    start = text.rfind("<", 0, offset)
    if start >= 0 and text[start - 1 : start] != "<":
        cursor = _in_tag(text, start, offset, element)
        if cursor is not None:
            return cursor
    return _in_text(text, offset, element)


def _in_tag(text: str, start: int, offset: int, element: Element) -> Cursor | None:
    """The cursor in the tag that begins at `start`; None where no tag that is open begins there."""
    tag = _IN_TAG.match(text, start, offset)
    if tag is None:
        return None
    rest = text[tag.end() : offset]
    if ">" in _QUOTED.sub("", rest).partition('"')[0].partition("'")[0]:
        return None
    if tag.end() == offset:
        end = offset
        while end < len(text) and (text[end].isalnum() or text[end] in "_-."):
            end += 1
        kind: CursorKind = "end" if tag[1] else "element"
        around = element
        if element.start == start and element.parent is not None:
            around = element.parent
        return Cursor(kind, offset, around, start=tag.start(2), word=tag[2], end=end)
    if tag[1] or not rest[:1].isspace():
        return None
    value = _LAST_ATTRIBUTE.search(rest)
    if value is not None:
        group = 2 if value[2] is not None else 3
        quote = rest[value.start(group) - 1]
        begin = tag.end() + value.start(group)
        end = text.find(quote, offset)
        line_end = text.find("\n", offset)
        if end < 0 or 0 <= line_end < end:
            end = offset
        word = text[begin:offset]
        if (tag[2], value[1]) in _EXPRESSIONS:
            return Cursor(
                "expression", offset, element, begin, word, end, tag=tag[2], attribute=value[1]
            )
        inner = _expression(text, begin, offset, element)
        if inner is not None:
            return inner
        return Cursor("value", offset, element, begin, word, end, tag=tag[2], attribute=value[1])
    name = _NAME_BEFORE.search(rest)
    if name is None:
        return Cursor("nothing", offset, element)
    begin = tag.end() + name.start(1)
    return Cursor("attribute", offset, element, begin, name[1], offset, tag=tag[2])


def _in_text(text: str, offset: int, element: Element) -> Cursor:
    if element.name in _CONDITIONS and not element.children:
        begin = element.inside
        return Cursor("expression", offset, element, begin, text[begin:offset], element.close)
    begin = max([element.inside, *(each.end for each in element.children if each.end <= offset)])
    inner = _expression(text, begin, offset, element)
    if inner is not None:
        return inner
    word = text[begin:offset]
    return Cursor("text", offset, element, begin, word, element.close)


def _expression(text: str, begin: int, offset: int, element: Element) -> Cursor | None:
    """The cursor in a placeholder or a statement that begins after `begin`."""
    last = None
    for match in _OPENS.finditer(text, begin, offset):
        last = match
    if last is None:
        return None
    closing = _CLOSINGS[last[0]]
    if closing in text[last.end() : offset]:
        return None
    line_end = text.find("\n", offset)
    rest = text[offset : line_end if line_end >= 0 else len(text)]
    found = rest.find(closing)
    following = _OPENS.search(rest)
    end = offset
    if found >= 0 and (following is None or found <= following.start()):
        end = offset + found
    word = text[last.end() : offset]
    return Cursor("expression", offset, element, last.end(), word, end, opening=last[0])


MARK = "cursor_is_here_"


class _ScopeAtMark(ScopeObserver):
    def __init__(self) -> None:
        self.scope: dict[str, Binding] | None = None

    def text(self, value: Text | Expression, scope: Bindings) -> None:
        if isinstance(value, Expression):
            text = value.source
        else:
            text = value
        if MARK in text.value:
            self.scope = dict(scope)


def scope_at(project: Project, document: Document, cursor: Cursor) -> Mapping[str, Binding]:
    """The names that the expression at the cursor may read."""
    text = document.text
    if cursor.opening:
        begin = cursor.start - len(cursor.opening)
        end = cursor.end
        closing = _CLOSINGS[cursor.opening]
        if text.startswith(closing, end):
            end += len(closing)
        changed = f"{text[:begin]}{{{{ {MARK} }}}}{text[end:]}"
    else:
        # The text of an argument is an expression only where it names a variable.
        if cursor.kind == "text":
            mark = f"{{{{ {MARK} }}}}"
        else:
            mark = MARK
        changed = f"{text[: cursor.start]}{mark}{text[cursor.end :]}"
    view = project.view_of_text(document.path, changed)
    if view is None:
        return {}
    observer = _ScopeAtMark()
    view.watch(observer)
    return observer.scope or {}
