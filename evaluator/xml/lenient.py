"""Elements inside what a model wrote: prose around, fences, tags left open, bare `&`, an answer cut off.

One pass, linear in the length of the text; nesting is bounded; no entity beyond characters is known and
nothing outside the text is touched. Valid XML is read without a warning; every repair has one.
"""

from __future__ import annotations

import html
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

MAX_DEPTH = 100
"""Elements nested deeper are read as text."""

_NAME = r"[A-Za-z_][\w.\-:]*+"
# No alternative passes a `<`, so all attempts together are linear.
_TAG = re.compile(rf"""<(/?)({_NAME})((?:\s[^<>"']*+(?:(?:"[^"<]*+"|'[^'<]*+')[^<>"']*+)*+)?)(/?)>""")
_ROUGH_TAG = re.compile(rf"<(/?)({_NAME})([^<>]*+)>")
_CUT_TAG = re.compile(rf"</?(?:{_NAME}(?:\s[^<>]*+)?+)?+\Z")
_ATTRIBUTE = re.compile(r"""([A-Za-z_:][\w.\-:]*+)(?:\s*+=\s*+(?:"([^"]*+)"|'([^']*+)'|([^\s"'>]++)))?+""")
_REFERENCE = re.compile(r"&(#[0-9]{1,7}|#[xX][0-9A-Fa-f]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});|&")
_THINK = re.compile(r"<(/?)think(?:ing)?>", re.IGNORECASE)
_STARTS = re.compile(r"<[A-Za-z_]")
_ILLEGAL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_RUN = re.compile(r"<{3,}+")
_PLACEHOLDER = re.compile(r"<<([^<>\n]{1,500})>>")


@dataclass(frozen=True, slots=True)
class LenientXml:
    """What was read. `value` is None and `error` says why where there is no element; `text` is all there was.

    `value` is `{root: text | {child: …}}`: repeated siblings a list, attributes `@name`, their element's text
    `#text`, an empty element None. Several elements without a common root stand side by side.
    """

    value: Any
    text: str
    warnings: tuple[str, ...] = ()
    error: str | None = None


@dataclass(slots=True)
class _Element:
    name: str
    attributes: dict[str, str]
    content: list[str | _Element]


def read_elements(text: str) -> LenientXml:
    """Read the elements in `text`; never raises for what it holds."""
    warnings: dict[str, None] = {}
    roots = _Reader(text, warnings).read()
    if not roots:
        return LenientXml(None, text, tuple(warnings), "the text holds no XML element")
    if len(roots) > 1:
        warnings["several elements stand side by side without a common root"] = None
    value: dict[str, Any] = {}
    for root in roots:
        _add(value, root.name, _value(root))
    return LenientXml(value, text, tuple(warnings))


def extract_document(text: str, roots: Sequence[str]) -> str | None:
    """The first element of `text` whose tag is in `roots`, as well-formed XML; None if there is none.

    Repaired as `read_elements` reads it: closed where it was left open, escaped where it was not, `<<x>>` as
    `{{x}}`, what XML cannot hold left out.
    """
    wanted = frozenset(roots)
    waiting = list(reversed(_Reader(text, {}).read()))
    while waiting:
        element = waiting.pop()
        if element.name in wanted:
            out: list[str] = []
            _serialize(element, out)
            return "".join(out)
        waiting += [child for child in reversed(element.content) if not isinstance(child, str)]
    return None


class _Reader:
    """One pass over the text. `_open` are the elements not closed yet, outermost first."""

    def __init__(self, text: str, warnings: dict[str, None]) -> None:
        self._warnings = warnings
        self._text = self._without_reasoning(text)
        self._roots: list[_Element] = []
        self._open: list[_Element] = []
        self._names: Counter[str] = Counter()
        self._too_deep: Counter[str] = Counter()
        self._endless: set[str] = set()

    def read(self) -> list[_Element]:
        text, position, size = self._text, 0, len(self._text)
        while position < size:
            start = text.find("<", position)
            if start < 0:
                self._characters(text[position:])
                break
            if start > position:
                self._characters(text[position:start])
            position = self._markup(start)
        if self._open:
            names = ", ".join(f"<{element.name}>" for element in self._open[:5])
            self._warn(f"cut off or not closed at the end: {names}")
            self._cut_fence()
        return self._roots

    def _warn(self, message: str) -> None:
        self._warnings[message] = None

    def _without_reasoning(self, text: str) -> str:
        """What reasoning tags hold is no answer, also where the opening or the closing one is missing."""
        tags = list(_THINK.finditer(text))
        if not tags:
            return text
        starts = [match.start() for match in _STARTS.finditer(text)]
        parts: list[str] = []
        position, inside, cut = 0, False, False
        for match in tags:
            if inside and match[1]:
                inside, position = False, match.end()
            elif not inside and not match[1]:
                # An opening tag after an element is that element's markup.
                if bisect_left(starts, match.start()) == bisect_left(starts, position):
                    parts.append(text[position : match.start()])
                    inside = cut = True
            elif not inside and starts and starts[-1] > match.start():
                parts, position, cut = [], match.end(), True
        if not cut:
            return text
        self._warn("reasoning left out")
        return "".join(parts) + ("" if inside else text[position:])

    def _characters(self, raw: str) -> None:
        if self._open:
            self._open[-1].content.append(self._decode(raw))
        elif raw.strip():
            self._warn("text outside the elements left out")

    def _literal(self, raw: str) -> None:
        if self._open:
            self._open[-1].content.append(raw)

    def _decode(self, raw: str) -> str:
        return _REFERENCE.sub(self._character, raw) if "&" in raw else raw

    def _character(self, match: re.Match[str]) -> str:
        name = match[1]
        if name is None:
            self._warn("a bare `&` read as it is")
            return "&"
        if name.startswith("#"):
            code = int(name[2:], 16) if name[1] in "xX" else int(name[1:])
            if code < 0x110000 and not 0xD800 <= code < 0xE000:
                return chr(code)
            self._warn(f"&{name}; is no character; kept as it is")
            return match[0]
        if name not in ("amp", "lt", "gt", "quot", "apos"):
            character = html.unescape(match[0])
            known = character != match[0] and not character.endswith(";")
            self._warn(f"the entity &{name}; {'read as in HTML' if known else 'is not known; kept as it is'}")
            return character if known else match[0]
        return html.unescape(match[0])

    def _markup(self, start: int) -> int:
        """Reads what begins with the `<` at `start`; gives where to go on."""
        text = self._text
        following = text[start + 1 : start + 2]
        if following == "!" or following == "?":
            return self._declaration(start)
        if following == "<" and (run := _RUN.match(text, start)) is not None:
            self._bare(start)
            self._literal(run[0][3:])
            return run.end() - 2  # the last two may open a placeholder, the last one a tag
        if following == "<" and (placeholder := _PLACEHOLDER.match(text, start)):
            self._characters(placeholder[0])
            return placeholder.end()
        tag = _TAG.match(text, start)
        if tag is None and (tag := _ROUGH_TAG.match(text, start)) is not None:
            self._warn(f"the attributes of <{tag[2]}> are not well-formed")
        if tag is None:
            if _CUT_TAG.match(text, start):
                self._warn("a tag cut off at the end left out")
                return len(text)
            self._bare(start)
            return start + 1
        if not self._open and text[start - 1 : start] == "`" == text[tag.end() : tag.end() + 1]:
            return tag.end()  # a tag that the prose talks about
        if tag[1]:
            self._close(tag[2], tag[0])
        else:
            rest = tag[3]
            closed = rest.endswith("/") or tag[0].endswith("/>")
            self._start(tag[2], rest.removesuffix("/") if closed else rest, closed, tag[0])
        return tag.end()

    def _bare(self, start: int) -> None:
        if self._open:
            self._warn("a bare `<` read as it is")
            self._literal("<")

    def _declaration(self, start: int) -> int:
        text = self._text
        for opening, closing in (("<!--", "-->"), ("<![CDATA[", "]]>"), ("<?", "?>"), ("<!", ">")):
            if not text.startswith(opening, start):
                continue
            # Once not found, an end is nowhere further on either.
            end = -1 if opening in self._endless else text.find(closing, start + len(opening))
            if opening == "<![CDATA[":
                if end < 0:
                    self._warn("a CDATA section is not closed")
                self._literal(text[start + 9 : end if end >= 0 else len(text)])
                return len(text) if end < 0 else end + 3
            if end < 0:
                self._endless.add(opening)
                self._bare(start)
                return start + 1
            if opening == "<!":
                if text[start : start + 9].upper() != "<!DOCTYPE":
                    self._bare(start)
                    return start + 1
                self._warn("a document type declaration left out")
                bracket = text.find("[", start, end)
                if bracket >= 0 and "[" not in self._endless:
                    close = text.find("]>", bracket)
                    if close >= 0:
                        end = close + 1
                    else:
                        self._endless.add("[")
            return end + len(closing)
        self._bare(start)
        return start + 1

    def _start(self, name: str, rest: str, closed: bool, raw: str) -> None:
        if len(self._open) >= MAX_DEPTH:
            self._warn(f"elements nested more than {MAX_DEPTH} deep read as text")
            self._literal(raw)
            if not closed:
                self._too_deep[name] += 1
            return
        element = _Element(name, self._attributes(name, rest) if rest.strip() else {}, [])
        if self._open:
            self._open[-1].content.append(element)
        else:
            self._roots.append(element)
        if not closed:
            self._open.append(element)
            self._names[name] += 1

    def _attributes(self, name: str, rest: str) -> dict[str, str]:
        found: dict[str, str] = {}
        for match in _ATTRIBUTE.finditer(rest):
            value = next((group for group in match.groups()[1:] if group is not None), None)
            if value is None or match[4] is not None:
                self._warn(f"an attribute of <{name}> without quotes")
            if match[1] in found:
                self._warn(f"<{name}> has the attribute {match[1]!r} twice; the first one is read")
            found.setdefault(match[1], self._decode(value or ""))
        return found

    def _close(self, name: str, raw: str) -> None:
        if self._too_deep[name] > 0:
            self._too_deep[name] -= 1
            self._literal(raw)
        elif self._names[name] == 0:
            self._warn(f"</{name}> closes nothing; left out")
        else:
            self._close_to(name)

    def _close_to(self, name: str) -> None:
        unclosed: list[_Element] = []
        while self._open[-1].name != name:
            unclosed.append(self._pop())
        target = self._pop()
        if not unclosed:
            return
        # An element left open ends where its first child begins; its children are its siblings.
        target.content.pop()
        for element in reversed(unclosed):
            self._warn(f"<{element.name}> is not closed")
            if element is not unclosed[0]:
                element.content.pop()
            first = next((i for i, child in enumerate(element.content) if not isinstance(child, str)), None)
            moved = [] if first is None else element.content[first:]
            if first is not None:
                del element.content[first:]
            target.content.append(element)
            target.content += moved

    def _pop(self) -> _Element:
        element = self._open.pop()
        self._names[element.name] -= 1
        return element

    def _cut_fence(self) -> None:
        """A fence that ends inside an element that was left open ended the answer."""
        last = self._open[-1].content
        for number, child in enumerate(last):
            if isinstance(child, str) and (fence := child.find("\n```")) >= 0:
                before = self._text[: self._text.find("<" + self._roots[-1].name)]
                if before.count("```") % 2 == 1:
                    last[number] = child[:fence]
                    del last[number + 1 :]
                    self._warn("text after the closing fence left out")
                return


def _value(element: _Element) -> Any:
    """Recursion is bounded by MAX_DEPTH."""
    text = "".join(child for child in element.content if isinstance(child, str)).strip()
    children = [child for child in element.content if not isinstance(child, str)]
    if not children and not element.attributes:
        return text or None
    out: dict[str, Any] = {f"@{name}": value for name, value in element.attributes.items()}
    if text:
        out["#text"] = text
    for child in children:
        _add(out, child.name, _value(child))
    return out


def _add(out: dict[str, Any], name: str, value: Any) -> None:
    # An element's own value is never a list, so a list is always of siblings.
    if name not in out:
        out[name] = value
    elif isinstance(out[name], list):
        out[name].append(value)
    else:
        out[name] = [out[name], value]


def _serialize(element: _Element, out: list[str]) -> None:
    name = _xml_name(element.name)
    out.append("<" + name)
    written: set[str] = set()
    for key, value in element.attributes.items():
        key = _xml_name(key)
        if key not in written and key != "xmlns":
            written.add(key)
            escaped = _escape(value).replace('"', "&quot;").replace("\n", "&#10;").replace("\t", "&#9;")
            out.append(f' {key}="{escaped}"')
    if not element.content:
        out.append("/>")
        return
    out.append(">")
    for child in element.content:
        if isinstance(child, str):
            out.append(_escape(child))
        else:
            _serialize(child, out)
    out.append(f"</{name}>")


def _xml_name(name: str) -> str:
    """Without a prefix that nothing declares; `xml:` is always known."""
    if name in ("xml:space", "xml:lang"):
        return name
    return name.rpartition(":")[2].lstrip("-.0123456789") or "_"


def _escape(value: str) -> str:
    value = _PLACEHOLDER.sub(r"{{\1}}", _ILLEGAL.sub("", value))
    return value.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("\r", "&#13;")
