"""Places in a template's XML, and texts written into it, for edits: every other character stays."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from evaluator.errors import UsageError
from evaluator.patterns import Pattern
from evaluator.xml.format import end_tag
from evaluator.xml.source import Source

if TYPE_CHECKING:
    from lxml.etree import _Element as Element

_ILLEGAL = Pattern("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
PLACEHOLDER = re.compile(r"<<\s*([A-Za-z_][\w.]*)\s*>>")
INDENT = "  "


class EditError(UsageError):
    """An edit that cannot be made to this template."""


def children(element: Element, tag: str) -> list[Element]:
    return list(element.iterchildren(tag))


def child(element: Element, tag: str) -> Element | None:
    return next(iter(element.iterchildren(tag)), None)


def extent(source: Source, element: Element) -> tuple[int, int]:
    """Where the element begins and ends in the text."""
    start, end = source.tag_of(element)
    closing = end_tag(source.text, start)
    if closing is not None:
        end = source.text.index(">", closing[1]) + 1
    return start, end


def set_content(source: Source, element: Element, value: str) -> str:
    """The text of the file with `value` as the element's only content, laid out as it was."""
    text = source.text
    start, begin = source.tag_of(element)
    closing = end_tag(text, start)
    if closing is None:
        name = str(element.tag)
        return f"{text[: begin - 2].rstrip()}>{escaped(value)}</{name}>{text[begin:]}"
    close = closing[0] - 2
    if text[begin:close].lstrip().startswith("<![CDATA[") and "]]>" not in value:
        plain = readable(value).strip("\n")
        return f"{text[:begin]}<![CDATA[\n{plain}\n]]>{text[close:]}"
    preserves = element.get("{http://www.w3.org/XML/1998/namespace}space") == "preserve"
    lines = escaped(value).strip("\n").split("\n")
    is_block = text[begin:close].lstrip(" \t").startswith("\n")
    if preserves or (len(lines) == 1 and not is_block):
        return text[:begin] + escaped(value) + text[close:]
    line = text.rfind("\n", 0, start) + 1
    indent = re.match(r"[ \t]*", text[line:])
    outer = "" if indent is None else indent[0]
    shown = [f"{outer}{INDENT}{each}" if each.strip() else "" for each in lines]
    return text[:begin] + "\n" + "\n".join(shown) + "\n" + outer + text[close:]


def element_of(tag: str, value: str, indent: str) -> str:
    """An element with a text, which is in a block if it has several lines. `tag` may have
    attributes.
    """
    name = tag.split()[0]
    lines = escaped(value).strip("\n").split("\n")
    if len(lines) == 1:
        return f"<{tag}>{lines[0]}</{name}>"
    shown = [f"{indent}{INDENT}{line}" if line.strip() else "" for line in lines]
    return "\n".join([f"<{tag}>", *shown, f"{indent}</{name}>"])


def insert(source: Source, task: Element, written: str) -> str:
    """The text with an element after the task's description."""
    text = source.text
    described = child(task, "description")
    if described is None:
        place = source.tag_of(task)[1]
    else:
        place = extent(source, described)[1]
    return f"{text[:place]}\n{indent_in(source, task)}{written}{text[place:]}"


def indent_in(source: Source, element: Element) -> str:
    """The indentation of the children of an element."""
    text = source.text
    children = list(element.iterchildren("*"))
    start = source.tag_of(children[0] if children else element)[0]
    line = text.rfind("\n", 0, start) + 1
    if not text[line:start].strip():
        indent = text[line:start]
    else:
        indent = ""
    return indent if children else indent + INDENT


def joined(name: str, parts: Sequence[str], indent: str) -> str:
    inner = "".join(f"\n{indent}{INDENT}{part}" for part in parts)
    return f"<{name}>{inner}\n{indent}</{name}>"


def readable(value: str) -> str:
    """The value with its variables in braces. Raises: EditError, for what XML cannot hold."""
    if found := _ILLEGAL.search(value):
        raise EditError(f"the character U+{ord(found[0]):04X} is not allowed in XML")
    return PLACEHOLDER.sub(r"{{ \1 }}", value)


def escaped(value: str) -> str:
    return readable(value).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def quoted(value: str) -> str:
    return '"' + escaped(value).replace('"', "&quot;").replace("\n", "&#10;") + '"'
