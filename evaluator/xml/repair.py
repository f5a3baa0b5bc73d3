"""Repairs a generated task where the meaning is clear, with a warning for each repair and each part
left out.

It repairs names with another spelling or a typing error, elements one level too high or inside
something unknown, attributes written as elements and elements as attributes, and a missing type
that follows from the parts. Nothing is
invented: what is ambiguous stays as it is, and validation reports it.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import replace

import lxml.etree as etree

from evaluator.errors import Diagnostic
from evaluator.errors.messages import cut
from evaluator.nodes import Span, operators_with
from evaluator.nodes.declare import OPERATORS
from evaluator.xml.layout import ILLEGAL
from evaluator.xml.lenient import Element
from evaluator.xml.vocabulary import Kind, Vocabulary, slip_of, spelling_of

MAX_REPAIRS = 500
"""A task that needs more is refused."""

_NODES = ("task", "call", "cond")
_LISTS = {"steps", "examples", "inputs", "tools", "turns"}
_XML_NAMESPACE = "{http://www.w3.org/XML/1998/namespace}"
_KEPT_AS_THEY_ARE = ("xml:space", "xml:lang")
_PLACEHOLDER = re.compile(r"<<([^<>\n]{1,500})>>")


class TooBroken(Exception):
    """More than MAX_REPAIRS repairs would be needed; the message says up to which line."""


class Repairer:
    """Repairs a tree of elements that was read from `text`. `cut` is the element whose text was cut
    off at the end.

    `warnings` has one finding for each repair. With `lost-part` among them, something that matters
    is missing.
    """

    def __init__(
        self, text: str, vocabulary: Vocabulary, file: str, cut: Element | None = None
    ) -> None:
        self._text = text
        self._vocabulary = vocabulary
        self._lines = [match.start() for match in re.finditer("\n", text)]
        self.file = file
        self._cut = cut
        self._is_cut = False
        self.warnings: list[Diagnostic] = []

    def task(self, element: Element) -> Element:
        """The repaired tree of a `<task>`. Raises: TooBroken."""
        repaired = self._element(element, "task", type_name="task")
        if self._is_cut:
            self.warn(
                "lost-part",
                "the end of this task was cut off, and a part of it is missing",
                offset=element.start,
            )
        return repaired

    def span(self, offset: int) -> Span:
        line = bisect_right(self._lines, offset - 1)
        return Span(self.file, line + 1, column=offset - (self._lines[line - 1] if line else -1))

    def warn(self, code: str, message: str, offset: int) -> None:
        """Adds a warning. Raises: TooBroken, if there are too many."""
        span = self.span(offset)
        if len(self.warnings) >= MAX_REPAIRS:
            raise TooBroken(f"more than {MAX_REPAIRS} repairs up to line {span.line}")
        self.warnings.append(Diagnostic("warning", code, message=message, span=span))

    # Elements

    def _element(self, old: Element, name: str, type_name: str) -> Element:
        kind = self._vocabulary.kinds[type_name]
        new = replace(old, name=name, attributes={}, content=[])
        if old.name != name:
            self.warn("respelt", f"<{_short(old.name)}> read as <{name}>", offset=old.start)
        self._attributes(old, new, kind=kind)
        if kind.is_text:
            new.content.append(self._value(old, name, kind=kind))
        else:
            for child in old.content:
                if isinstance(child, str):
                    if kind.has_text:
                        new.content.append(child)
                    elif child.strip():
                        message = f"text in <{name}> left out: {_short(child)!r}"
                        self.warn("left-out", message, offset=new.start)
                elif kind.has_text:
                    self._among_text(child, new, kind=kind)
                else:
                    self._place(child, new, kind=kind)
        if type_name in ("task", "role"):
            self._type(new, type_name)
        return new

    def _value(self, old: Element, name: str, kind: Kind) -> str:
        if old.children:
            self.warn(
                "markup-as-text",
                f"markup in the text of <{name}> read as text",
                offset=old.children[0].start,
            )
        return self._among(
            "".join(map(self._raw, old.content)), kind.values, what=f"<{name}>", offset=old.start
        )

    def _raw(self, part: str | Element) -> str:
        """The text of `part` as the model wrote it, with references decoded."""
        if isinstance(part, str):
            return part
        if part.close is None:
            closing = ""
        else:
            closing = self._text[part.close : part.end]
        return (
            self._text[part.start : part.inside] + "".join(map(self._raw, part.content)) + closing
        )

    def _among_text(self, child: Element, new: Element, kind: Kind) -> None:
        """Adds a child of an element with text and elements; as text, where it is not allowed
        there.
        """
        name = spelling_of(child.name, kind.children)
        if name is not None:
            self._add(child, name, new=new, kind=kind)
            return
        if (
            not child.children
            and not child.attributes
            and self._vocabulary.known(child.name) is not None
        ):
            self.warn(
                "unwrapped",
                f"<{_short(child.name)}> in <{new.name}> read as its text",
                offset=child.start,
            )
            new.content += child.content
            return
        new.content.append(self._raw(child))
        self.warn(
            "markup-as-text", f"markup in the text of <{new.name}> read as text", offset=child.start
        )

    def _place(self, child: Element, new: Element, kind: Kind) -> None:
        known = self._vocabulary.known(child.name)
        name = known if known in kind.children else None
        if name is None and known is None:
            name = slip_of(child.name, kind.children)
        if name is not None:
            self._add(child, name, new=new, kind=kind)
            return
        attribute = spelling_of(child.name, kind.attributes)
        if attribute is not None and not child.children and attribute not in new.attributes:
            text = "".join(part for part in child.content if isinstance(part, str)).strip()
            self.warn(
                "respelt",
                f"<{_short(child.name)}> read as the attribute {attribute!r} of <{new.name}>",
                offset=child.start,
            )
            new.attributes[attribute] = self._among(
                text, kind.attributes[attribute], what=attribute, offset=child.start
            )
            return
        if known is None:
            container = None
        else:
            container = self._container(known, new, kind=kind)
        if known is not None and container is not None:
            self.warn(
                "misplaced",
                f"<{_short(child.name)}> is in <{new.name}>; put into <{container.name}>",
                offset=child.start,
            )
            self._add(
                child,
                known,
                new=container,
                kind=self._vocabulary.kinds[kind.children[container.name]],
            )
        elif known is None and self._is_wrapper(child, kind):
            message = (
                f"<{_short(child.name)}> is not known in <{new.name}>; its content is read "
                "in its place"
            )
            self.warn("unwrapped", message, offset=child.start)
            for inner in child.children:
                self._place(inner, new, kind=kind)
        else:
            if child.content:
                what = " with its content"
            else:
                what = ""
            self.warn(
                "left-out",
                f"<{_short(child.name)}> is not known in <{new.name}>; left out{what}",
                offset=child.start,
            )

    def _add(self, child: Element, name: str, new: Element, kind: Kind) -> None:
        """Appends the repaired child, unless the end cut it off and it cannot be kept."""
        repaired = self._element(child, name, type_name=kind.children[name])
        if child is self._cut:
            self._is_cut = True
            self.warn("cut-off", f"<{name}> was cut off; left out", offset=child.start)
        if self._is_cut and new.name in _LISTS:
            self._is_cut = False
            if child is not self._cut:
                self.warn(
                    "cut-off",
                    f"<{name}>{_named(repaired)} was cut off; left out",
                    offset=child.start,
                )
            if new.name == "steps":
                self.warn(
                    "lost-part",
                    "the last step, which gives the result, is missing",
                    offset=child.start,
                )
        elif child is not self._cut:
            new.content.append(repaired)

    def _container(self, name: str, new: Element, kind: Kind) -> Element | None:
        """The element in `new` that `name` belongs to, created if it is missing; None if that is
        not clear.
        """
        kinds = self._vocabulary.kinds
        if name in _NODES:
            is_sequence = (
                any(child.name == "steps" for child in new.children)
                or new.attributes.get("type") == "sequential"
            )
            if is_sequence and "steps" in kind.children:
                places = ["steps"]
            else:
                places = []
        else:
            places = [
                one for one, type_name in kind.children.items() if name in kinds[type_name].children
            ]
        if len(places) != 1:
            return None
        found = next((child for child in new.children if child.name == places[0]), None)
        if found is None:
            found = Element(places[0], {}, content=[], start=new.start, inside=new.inside)
            new.content.append(found)
        return found

    def _is_wrapper(self, child: Element, kind: Kind) -> bool:
        has_text = any(isinstance(part, str) and part.strip() for part in child.content)
        inner = child.children
        return (
            bool(inner)
            and not has_text
            and all(self._vocabulary.known(one.name) in kind.children for one in inner)
        )

    # Attributes and values

    def _attributes(self, old: Element, new: Element, kind: Kind) -> None:
        for key, value in old.attributes.items():
            if key in _KEPT_AS_THEY_ARE:
                new.attributes[key] = value
                continue
            if key in kind.attributes:
                name = key
            else:
                name = spelling_of(key, kind.attributes)
            name = name or (None if key.startswith("xmlns") else slip_of(key, kind.attributes))
            is_free = name == key or (name not in old.attributes and name not in new.attributes)
            if name is not None and is_free:
                if name != key:
                    self.warn(
                        "respelt",
                        f"the attribute {_short(key)!r} of <{new.name}> read as {name!r}",
                        offset=old.start,
                    )
                new.attributes[name] = self._among(
                    value, kind.attributes[name], what=name, offset=old.start
                )
                continue
            element = spelling_of(key, kind.children)
            has_it = element is None or any(
                self._vocabulary.known(one.name) == element for one in old.children
            )
            if (
                element is not None
                and not has_it
                and self._vocabulary.kinds[kind.children[element]].is_text
            ):
                self.warn(
                    "respelt",
                    f"the attribute {_short(key)!r} of <{new.name}> read as <{element}>",
                    offset=old.start,
                )
                new.content.append(
                    Element(element, {}, content=[value], start=old.start, inside=old.inside)
                )
            else:
                message = f"the attribute {_short(key)!r} is not known on <{new.name}>; left out"
                self.warn("left-out", message, offset=old.start)

    def _among(self, value: str, values: frozenset[str], what: str, offset: int) -> str:
        """`value` as the schema spells it, if it differs only in spelling."""
        if not values or value.strip() in values or "{" in value:
            return value
        same = spelling_of(value.strip(), values)
        if same is None:
            return value
        self.warn("respelt", f"{what}: {_short(value)!r} read as {same!r}", offset=offset)
        return same

    def _type(self, new: Element, type_name: str) -> None:
        """Sets a missing type, where the parts show it."""
        names = [child.name for child in new.children]
        if new.attributes.get("type") is not None or new.attributes.get("ref") is not None:
            return
        told = set(OPERATORS)
        for owners in map(operators_with, names):
            told &= set(owners) or told
        if len(told) == len(OPERATORS) and type_name == "task" and "description" in names:
            told = {"atomic"}
        if len(told) == 1:
            new.attributes["type"] = told.pop()
            message = (
                f"<{new.name}>{_named(new)} has no type; read as {new.attributes['type']}, "
                "which follows from its parts"
            )
            self.warn("type-told", message, offset=new.start)


def _named(element: Element) -> str:
    name = element.attributes.get("name")
    if name:
        return f" {_short(name)!r}"
    return ""


def _short(text: str) -> str:
    return cut(" ".join(text.split()), 40)


def write_elements(root: Element, repairer: Repairer) -> str:
    """The tree as well-formed XML, each element on its line in the answer, `<<x>>` as `{{x}}`."""
    writer = _Writer(repairer, repairer.span(root.start).line)
    writer.write(root, False)
    return "\n" * (repairer.span(root.start).line - 1) + etree.tostring(
        writer.builder.close(), encoding="unicode"
    )


class _Writer:
    """Writes elements to an lxml tree; `_line` is the line of the answer up to which it has
    come.
    """

    def __init__(self, repairer: Repairer, line: int) -> None:
        self.builder = etree.TreeBuilder()
        self._repairer = repairer
        self._line = line

    def write(self, element: Element, may_pad: bool) -> None:
        line = self._repairer.span(element.start).line
        if may_pad and line > self._line:
            self._text("\n" * (line - self._line))
        attributes = {
            key.replace("xml:", _XML_NAMESPACE): _clean(value)
            for key, value in element.attributes.items()
        }
        self.builder.start(element.name, attributes)
        has_text = any(isinstance(child, str) for child in element.content)
        for child in element.content:
            if isinstance(child, str):
                self._text(_clean(child))
            else:
                self.write(child, not has_text)
        self.builder.end(element.name)

    def _text(self, text: str) -> None:
        self._line += text.count("\n")
        self.builder.data(text)


def _clean(value: str) -> str:
    return _PLACEHOLDER.sub(r"{{\1}}", ILLEGAL.sub("", value))
