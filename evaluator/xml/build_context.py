"""What every builder function is handed: elements with their source, includes in their place, findings."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

from evaluator.errors import Diagnostic, TemplateError
from evaluator.nodes import Call, Node, Span, Text
from evaluator.xml.layout import HOLE
from evaluator.xml.source import Source
from evaluator.xml.texts import join_texts, slice_text

if TYPE_CHECKING:
    from lxml.etree import _Element as Element  # pyright: ignore[reportPrivateUsage]

ReadPartial = Callable[[str, Span], Source]

MAX_INCLUDES = 1000
MAX_INCLUDE_DEPTH = 20
MAX_INCLUDED_CHARACTERS = 10_000_000
MAX_NODE_DEPTH = 60

_INTEGER = re.compile(r"[+-]?[0-9]{1,15}")
_DECIMAL = re.compile(r"[+-]?(?:[0-9]{1,400}(?:\.[0-9]{0,400})?|\.[0-9]{1,400})")
_PLACEHOLDER = re.compile(r"\{\{.*\}\}", re.DOTALL)
_BOOLEAN = {"true": True, "1": True, "false": False, "0": False}


@dataclass(frozen=True, slots=True)
class View:
    """An element, the source it stands in, and the files that were included on the way to it."""

    source: Source
    element: Element
    chain: tuple[str, ...] = ()

    @property
    def tag(self) -> str:
        return str(self.element.tag)

    @property
    def span(self) -> Span:
        return self.source.locate(self.element)

    def get(self, name: str) -> str | None:
        """The attribute without outer blank space; None if it is absent."""
        value = self.element.get(name)
        return None if value is None else value.strip()

    def attribute(self, name: str) -> Text:
        return self.source.attribute_text(self.element, name)

    def attribute_span(self, name: str) -> Span:
        return self.source.locate_attribute(self.element, name)


def stand_in(span: Span) -> Node:
    """What stands where a task that only refers (`ref`) leaves a required part to the referenced template."""
    return Call("", (), None, span)


def is_stand_in(node: Node) -> bool:
    """Whether `node` is a part to be taken from the template that its parent's `ref` names."""
    return isinstance(node, Call) and not node.template


class Builder:
    """Collects findings and reads includes while nodes are built from elements."""

    def __init__(self, read_partial: ReadPartial | None) -> None:
        self.diagnostics: list[Diagnostic] = []
        self.includes: list[str] = []
        self.errors = 0
        self.depth = 0
        self._read_partial = read_partial
        self._partials: dict[tuple[str | None, str], Source | None] = {}
        self._expansions = 0
        self._characters = 0

    def error(self, code: str, message: str, span: Span, hint: str | None = None) -> None:
        self.errors += 1
        self.diagnostics.append(Diagnostic("error", code, message, span, hint))

    def warn(self, code: str, message: str, span: Span, hint: str | None = None) -> None:
        self.diagnostics.append(Diagnostic("warning", code, message, span, hint))

    def children(self, view: View) -> list[View]:
        """The child elements, each include replaced by what its partial holds."""
        if len(view.element) == 0:
            return []
        out: list[View] = []
        for element in view.element.iterchildren("*"):
            child = View(view.source, element, view.chain)
            if element.tag != "include":
                out.append(child)
            elif (partial := self._partial(child)) is not None:
                if view.tag != "input" and (text := partial.source.text_of(partial.element)).value:
                    self.error("misplaced-text", f"<{view.tag}> holds elements, and this partial has text", text.span)
                out += self.children(partial)
        return out

    def sorted_children(self, view: View, allowed: frozenset[str], where: str | None = None) -> dict[str, View]:
        """The children by tag; a finding for each that is given twice or may not stand here."""
        found: dict[str, View] = {}
        for child in self.children(view):
            if child.tag not in allowed:
                self.unexpected(child, where or f"<{view.tag}>", allowed)
            elif child.tag in found:
                first = found[child.tag].span
                self.error(
                    "duplicate-element",
                    f"<{child.tag}> is given twice; first on line {first.line}",
                    child.span,
                )
            else:
                found[child.tag] = child
        return found

    def only(self, view: View, tag: str) -> list[View]:
        """The children, all of which must be `tag`."""
        out: list[View] = []
        for child in self.children(view):
            if child.tag == tag:
                out.append(child)
            else:
                self.unexpected(child, f"<{view.tag}>", frozenset({tag}))
        return out

    def unexpected(self, child: View, where: str, allowed: frozenset[str]) -> None:
        near = get_close_matches(child.tag, sorted(allowed), 1)
        hint = f"did you mean <{near[0]}>?" if near else None
        self.error("misplaced-element", f"<{child.tag}> cannot stand in {where}", child.span, hint)

    def text(self, view: View) -> Text:
        """The element's text, with the text of included partials in its place."""
        if len(view.element) == 0:
            return view.source.text_of(view.element)
        return self._text(view, ("include",))

    def own_text(self, view: View) -> Text:
        """The element's text where it may hold elements too: those are left out, includes of text are not."""
        return view.source.text_of(view.element) if len(view.element) == 0 else self._text(view, None)

    def _text(self, view: View, allowed: tuple[str, ...] | None) -> Text:
        whole = view.source.layout.text_of(view.element, holes=True)
        parts: list[Text] = []
        begin = 0
        for element in view.element.iterchildren("*"):
            child = View(view.source, element, view.chain)
            span = child.span
            at = whole.value.find(HOLE, begin)
            while at >= 0 and whole.locate(at) != span:  # the character itself, in the author's text
                at = whole.value.find(HOLE, at + 1)
            parts.append(slice_text(whole, begin, at))
            begin = at + 1
            if child.tag == "include":
                partial = self._partial(child)
                if partial is not None:
                    parts.append(self._text(partial, allowed))
            elif allowed is not None:
                self.unexpected(child, f"the text of <{view.tag}>", frozenset(allowed))
        parts.append(slice_text(whole, begin, len(whole.value)))
        return join_texts(parts, whole.span)

    def _partial(self, include: View) -> View | None:
        href, span = include.get("href") or "", include.attribute_span("href")
        if self._read_partial is None:
            self.error("include", "includes cannot be read here", span)
            return None
        if len(include.chain) >= MAX_INCLUDE_DEPTH or self._expansions >= MAX_INCLUDES:
            self.error(
                "include",
                f"more than {MAX_INCLUDES} includes, or {MAX_INCLUDE_DEPTH} inside each other",
                span,
            )
            return None
        source = self._read(href, span)
        if source is None:
            return None
        key = source.file or href
        chain = include.chain or (include.source.file or "<string>",)
        if key in chain:
            path = " → ".join((*chain[chain.index(key) :], key))
            self.error("include-cycle", f"this include comes back to itself: {path}", span)
            return None
        self._expansions += 1
        self._characters += len(source.text)
        if self._characters > MAX_INCLUDED_CHARACTERS:
            self.error("include", f"includes bring in more than {MAX_INCLUDED_CHARACTERS:,} characters", span)
            return None
        if key not in self.includes:
            self.includes.append(key)
        if source.root.tag != "partial":
            self.error("include", f"{key} has the root <{source.root.tag}>; only a <partial> can be included", span)
            return None
        return View(source, source.root, (*chain, key))

    def _read(self, href: str, span: Span) -> Source | None:
        key = (span.file, href)
        if key not in self._partials:
            assert self._read_partial is not None
            try:
                self._partials[key] = self._read_partial(href, span)
            except TemplateError as error:
                self.error("include", f"the partial {href!r} cannot be read", span)
                self.diagnostics += error.diagnostics
                self._partials[key] = None
        elif self._partials[key] is None:
            self.error("include", f"the partial {href!r} cannot be read", span)
        return self._partials[key]

    def integer(self, text: Text, name: str, least: int) -> int | Text | None:
        """A whole number of at least `least`, or the text itself where it holds a placeholder."""
        value = text.value.strip()
        if _PLACEHOLDER.search(value):
            return text
        if _INTEGER.fullmatch(value) and int(value) >= least:
            return int(value)
        self.error(
            "invalid-value",
            f"{name} must be a whole number of at least {least}, not {value[:60]!r}",
            text.span,
        )
        return None

    def decimal(self, text: Text, name: str, most: float | None = None, zero: bool = False) -> float | Text | None:
        """A number above 0 (or 0, if `zero`) and at most `most`, or the text itself with its placeholder."""
        value = text.value.strip()
        if _PLACEHOLDER.search(value):
            return text
        number = float(value) if _DECIMAL.fullmatch(value) else -1.0
        if (number > 0 or (zero and number == 0)) and number <= (1e15 if most is None else most):
            return number
        bounds = f"{'of at least 0' if zero else 'above 0'}{'' if most is None else f' and at most {most:g}'}"
        self.error("invalid-value", f"{name} must be a number {bounds}, not {value[:60]!r}", text.span)
        return None

    def boolean(self, text: Text, name: str) -> bool | Text:
        value = text.value.strip()
        if _PLACEHOLDER.search(value):
            return text
        if value not in _BOOLEAN:
            self.error("invalid-value", f"{name} must be true or false, not {value[:60]!r}", text.span)
        return _BOOLEAN.get(value, False)

    def flag(self, view: View, name: str) -> bool:
        """A boolean attribute that cannot hold a placeholder; false where it is absent."""
        value = view.get(name)
        if value is not None and value not in _BOOLEAN:
            self.error(
                "invalid-value",
                f"{name} must be true or false, not {value[:60]!r}",
                view.attribute_span(name),
            )
        return _BOOLEAN.get(value or "", False)
