"""The context that the builder functions share: elements with their source, expanded includes, and
findings.

Joining `Text` without losing the places of its characters, and splitting a command line into
arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from evaluator.errors import Diagnostic, TemplateError
from evaluator.lazy_dataclass import frozen
from evaluator.nodes import Mark, Span, Text
from evaluator.nodes.declare import Field
from evaluator.patterns import Pattern
from evaluator.xml.layout import HOLE
from evaluator.xml.source import Source

if TYPE_CHECKING:
    from lxml.etree import _Element as Element

MAX_COMMAND_PARTS = 5000

_BLOCK = r"(?>\{\{.*?\}\}|\{%.*?%\}|\{#.*?#\})"
_ONE = r"(?!\{[{%#])"  # not the start of a block that is not closed
_SINGLE = rf"'(?:{_BLOCK}|{_ONE}[^'])*+"
_DOUBLE = rf'"(?:{_BLOCK}|\\["\\]|{_ONE}[^"])*+'
_PART = Pattern(
    rf"""(?P<space>\s+)|(?P<block>{_BLOCK})|(?P<single>{_SINGLE}')|(?P<double>{_DOUBLE}")"""
    rf"""|\\(?P<escaped>.)|(?P<plain>(?:{_ONE}[^\s'"\\])+)""",
    "s",
)
_UNCLOSED = Pattern(rf"{_SINGLE}|{_DOUBLE}", "s")
_IN_DOUBLE = Pattern(rf"""{_BLOCK}|\\(?=["\\])(.)""", "s")


def join_texts(parts: Sequence[Text], span: Span) -> Text:
    """The parts one after the other; `span` is the place of an empty whole."""
    filled = [part for part in parts if part.value]
    if not filled:
        return Text("", span)
    if len(filled) == 1:
        return filled[0]
    marks: list[Mark] = []
    offset = 0
    for part in filled:
        marks.append(Mark(offset, part.span))
        marks += [Mark(offset + mark.offset, mark.span) for mark in part.marks if mark.offset]
        offset += len(part.value)
    return Text("".join(part.value for part in filled), filled[0].span, marks=tuple(marks))


def expression_of(text: Text) -> Text:
    """`text` without outer blank space, and without the braces where it is one `{{ … }}` as a
    whole.
    """
    value = text.value
    start = len(value) - len(value.lstrip())
    end = len(value.rstrip())
    if value.startswith("{{", start) and value.find("}}", start, end) == end - 2 >= start + 2:
        inner = value[start + 2 : end - 2]
        if "{{" not in inner:
            start += 2 + len(inner) - len(inner.lstrip())
            end -= 2 + len(inner) - len(inner.rstrip())
    return text.part(start, max(start, end))


class SplitError(ValueError):
    """A command line that cannot be split; `offset` is the place of what is not closed."""

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message)
        self.offset = offset


def split_command(text: Text) -> tuple[Text, ...]:
    """`text` as arguments, split at blank space as a POSIX shell splits words.

    Single quotes keep everything, double quotes all but `\\"` and `\\\\`, a backslash the next
    character. `{{ … }}`, `{% … %}` and `{# … #}` stay whole, wherever they stand. Nothing is
    expanded.
    Raises: SplitError, for a quote, a placeholder or a backslash that is not completed,
    and for a command that is too long.
    """
    arguments: list[Text] = []
    word: list[Text] | None = None
    position = parts = 0
    while position < len(text.value):
        parts += 1
        if parts > MAX_COMMAND_PARTS:
            raise SplitError(
                f"the command has more than {MAX_COMMAND_PARTS:,} words, spaces and quotes",
                position,
            )
        found = _PART.match(text.value, position)
        if found is None:
            raise _unclosed(text.value, position)
        start = position
        position = found.end()
        if found.lastgroup == "space":
            if word is not None:
                arguments.append(join_texts(word, text.locate(start)))
            word = None
        else:
            word = [] if word is None else word
            word += _without_quotes(text, start, end=position, kind=found.lastgroup or "")
    if word is not None:
        arguments.append(join_texts(word, text.locate(position)))
    return tuple(arguments)


_SHELL_OPERATOR = Pattern(r"(?:\|\|?|&&?|[^\s'\"\\]*+(?<=;))(?=\s|\Z)|\d?>|&>|<|\$\(|`")


def find_shell_operator(text: Text) -> tuple[str, int] | None:
    """The first word of a command that only a shell understands, and its offset: a pipe, a list, a
    redirection.

    Quoted and escaped words are arguments, and so is a word that has such a character inside.
    `text` can be split, see `split_command`.
    """
    before = "space"
    for part in _PART.finditer(text.value):
        if (before, part.lastgroup) == ("space", "plain") and _SHELL_OPERATOR.match(
            text.value, part.start()
        ):
            return part[0], part.start()
        before = part.lastgroup
    return None


def _without_quotes(text: Text, start: int, end: int, kind: str) -> list[Text]:
    """A part of a word without its quotes and the backslashes that escape."""
    if kind == "escaped":
        return [text.part(start + 1, end)]
    if kind == "single":
        return [text.part(start + 1, end - 1)]
    if kind != "double":
        return [text.part(start, end)]
    parts: list[Text] = []
    begin = start + 1
    for escape in _IN_DOUBLE.finditer(text.value, begin, end - 1):
        if escape[1] is not None:
            parts.append(text.part(begin, escape.start()))
            begin = escape.start(1)
    return [*parts, text.part(begin, end - 1)]


def _unclosed(value: str, position: int) -> SplitError:
    if value[position] == "\\":
        return SplitError("nothing follows the backslash", position)
    quoted = _UNCLOSED.match(value, position)
    block = position if quoted is None else quoted.end()
    if block < len(value):
        return SplitError(f"`{value[block : block + 2]}` is not closed", block)
    return SplitError(f"the quote {value[position]} is not closed", position)


ReadPartial = Callable[[str, Span], Source]

MAX_INCLUDES = 1000
MAX_INCLUDE_DEPTH = 20
MAX_INCLUDED_CHARACTERS = 10_000_000
MAX_NODE_DEPTH = 60
MAX_ERRORS = 100

_INTEGER = Pattern(r"[+-]?[0-9]{1,15}")
_DECIMAL = Pattern(r"[+-]?(?:[0-9]{1,400}(?:\.[0-9]{0,400})?|\.[0-9]{1,400})")
_PLACEHOLDER = Pattern(r"\{\{.*\}\}", "s")
_BOOLEAN = {"true": True, "1": True, "false": False, "0": False}


@frozen
class View:
    """An element, its source, and the files that were included on the way to it."""

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
        if value is None:
            return None
        return value.strip()

    def attribute(self, name: str) -> Text:
        return self.source.attribute_text(self.element, name)

    def attribute_span(self, name: str) -> Span:
        return self.source.locate_attribute(self.element, name)


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
        if self.errors <= MAX_ERRORS:
            self.diagnostics.append(
                Diagnostic("error", code, message=message, span=span, hint=hint)
            )
        elif self.errors == MAX_ERRORS + 1:
            message = f"more than {MAX_ERRORS} errors in this file; the others are not shown"
            self.diagnostics.append(
                Diagnostic("error", "too-many-errors", message=message, span=span)
            )

    def warn(
        self,
        code: str,
        message: str,
        span: Span,
        hint: str | None = None,
        fix: tuple[str, str] | None = None,
    ) -> None:
        self.diagnostics.append(
            Diagnostic("warning", code, message=message, span=span, hint=hint, fix=fix)
        )

    def note(self, code: str, message: str, span: Span, hint: str | None = None) -> None:
        self.diagnostics.append(Diagnostic("note", code, message=message, span=span, hint=hint))

    def children(self, view: View) -> list[View]:
        """The child elements, each include replaced by what its partial holds."""
        if len(view.element) == 0:
            return []
        out: list[View] = []
        for element in view.element.iterchildren("*"):
            child = View(view.source, element, chain=view.chain)
            if element.tag != "include":
                out.append(child)
            elif (partial := self._partial(child)) is not None:
                if view.tag != "input" and (text := partial.source.text_of(partial.element)).value:
                    self.error(
                        "misplaced-text",
                        f"<{view.tag}> holds elements, and this partial has text",
                        span=text.span,
                    )
                out += self.children(partial)
        return out

    def sorted_children(
        self,
        view: View,
        once: Collection[str],
        many: Collection[str] = (),
        where: str | None = None,
    ) -> tuple[dict[str, View], list[View]]:
        """The children that may be given `once`, by tag, and those that may be given `many` times,
        in order.

        A finding for each that is given twice or may not stand here.
        """
        found: dict[str, View] = {}
        others: list[View] = []
        for child in self.children(view):
            if child.tag in many:
                others.append(child)
            elif child.tag not in once:
                self.unexpected(child, where or f"<{view.tag}>", allowed=(*once, *many))
            elif child.tag in found:
                first = found[child.tag].span.line
                message = f"<{child.tag}> is given twice; first on line {first}"
                self.error("duplicate-element", message, span=child.span)
            else:
                found[child.tag] = child
        return found, others

    def items(self, view: View, *tags: str) -> list[View]:
        """The children of an element that holds a list; a finding for each with another tag."""
        return self.sorted_children(view, (), tags)[1]

    def is_new(self, name: str | None, seen: dict[str, Span], span: Span, what: str) -> bool:
        """Adds `name` to `seen`. Returns False, with a finding, if it is there already.

        A name that cannot be used has a finding of its own, and is empty here.
        """
        if name and name in seen:
            message = f"{what} {name!r} is given twice; first on line {seen[name].line}"
            self.error("duplicate-name", message, span=span)
            return False
        if name:
            seen[name] = span
        return True

    def unexpected(self, child: View, where: str, allowed: Collection[str]) -> None:
        from difflib import get_close_matches

        near = get_close_matches(child.tag, sorted(allowed), 1)
        hint = None
        if near:
            hint = f"did you mean <{near[0]}>?"
        message = f"<{child.tag}> is not allowed in {where}"
        self.error("misplaced-element", message, span=child.span, hint=hint)

    def own_text(self, view: View) -> Text:
        """The text of an element that may hold elements too; it includes partials and leaves out
        other elements.
        """
        return self.text(view, is_text_only=False)

    def text(self, view: View, *, is_text_only: bool = True) -> Text:
        """The element's text, with the text of included partials in its place."""
        if len(view.element) == 0:
            return view.source.text_of(view.element)
        whole = view.source.text_of(view.element, holes=True)
        parts: list[Text] = []
        begin = 0
        for element in view.element.iterchildren("*"):
            child = View(view.source, element, chain=view.chain)
            span = child.span
            at = whole.value.find(HOLE, begin)
            # At another place it is the character itself, in the author's text.
            while at >= 0 and whole.locate(at) != span:
                at = whole.value.find(HOLE, at + 1)
            parts.append(whole.part(begin, at))
            begin = at + 1
            if child.tag == "include":
                partial = self._partial(child)
                if partial is not None:
                    parts.append(self.text(partial, is_text_only=is_text_only))
            elif is_text_only:
                self.unexpected(child, f"the text of <{view.tag}>", allowed=("include",))
        parts.append(whole.part(begin, len(whole.value)))
        return join_texts(parts, whole.span)

    def _partial(self, include: View) -> View | None:
        href = include.get("href") or ""
        span = include.attribute_span("href")
        if len(include.chain) >= MAX_INCLUDE_DEPTH or self._expansions >= MAX_INCLUDES:
            message = f"more than {MAX_INCLUDES} includes, or {MAX_INCLUDE_DEPTH} inside each other"
            return self._refuse(message, span)
        source = self._read(href, span)
        if source is None:
            return None
        key = source.file or href
        chain = include.chain or (include.source.file or "<string>",)
        if key in chain:
            path = " → ".join((*chain[chain.index(key) :], key))
            return self._refuse(
                f"this include leads back to itself: {path}", span, code="include-cycle"
            )
        self._expansions += 1
        self._characters += len(source.text)
        if self._characters > MAX_INCLUDED_CHARACTERS:
            return self._refuse(
                f"includes bring in more than {MAX_INCLUDED_CHARACTERS:,} characters", span
            )
        if key not in self.includes:
            self.includes.append(key)
        if source.root.tag != "partial":
            return self._refuse(
                f"{key} has the root <{source.root.tag}>; only a <partial> can be included", span
            )
        return View(source, source.root, chain=(*chain, key))

    def _refuse(self, message: str, span: Span, code: str = "include") -> None:
        self.error(code, message, span=span)

    def _read(self, href: str, span: Span) -> Source | None:
        if self._read_partial is None:
            return self._refuse("includes cannot be read here", span)
        key = (span.file, href)
        if key not in self._partials:
            try:
                self._partials[key] = self._read_partial(href, span)
            except TemplateError as error:
                self._partials[key] = None
                self.diagnostics += error.diagnostics
        if self._partials[key] is None:
            self._refuse(f"the partial {href!r} cannot be read", span)
        return self._partials[key]

    def setting(self, text: Text, field: Field, label: str) -> float | bool | Text | None:
        """The number or boolean that `text` holds, or the text itself where it holds a
        placeholder.
        """
        value = text.value.strip()
        if _PLACEHOLDER.search(value):
            return text
        found: float | bool | None = None
        if field.form == "boolean":
            found = _BOOLEAN.get(value)
        elif field.form == "integer":
            if _INTEGER.fullmatch(value):
                found = int(value)
        elif _DECIMAL.fullmatch(value):
            found = float(value)
        if found is None or not (field.form == "boolean" or field.admits(found)):
            message = f"{label} must be {field.wanted}, not {value[:60]!r}"
            return self.error("invalid-value", message, span=text.span)
        return found

    def flag(self, view: View, name: str) -> bool:
        """A boolean attribute that cannot hold a placeholder; false where it is absent."""
        value = view.get(name)
        if value is not None and value not in _BOOLEAN:
            self.error(
                "invalid-value",
                f"{name} must be true or false, not {value[:60]!r}",
                span=view.attribute_span(name),
            )
        return _BOOLEAN.get(value or "", False)
