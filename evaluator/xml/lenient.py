"""Reads the elements in a model's text: among prose, in fences, with unclosed tags, bare `&`, or
cut off.

It makes one pass, linear in the length of the text. Nesting is bounded, no entity except characters
is known, and nothing outside the text is touched. Valid XML is read without a warning; every repair
has one. With a `Grammar` the reader knows which elements end where another begins, and which
contain only text.
"""

from __future__ import annotations

import html
from collections import Counter
from dataclasses import field
from typing import Any

from evaluator.lazy_dataclass import dataclass, frozen
from evaluator.patterns import Match, Pattern

MAX_DEPTH = 100
"""Elements nested deeper are read as text."""

MAX_MARKUP = 50_000
"""After this many tags and stray `<` the rest is read as text, and after as many attributes of one
element left out.
"""

_NAME = r"[^\W\d][\w.\-:]*+"
# In a closing tag blanks are allowed around the slash.
_OPENS = r"<((?:\s{0,4}/\s{0,4})?)"
# No alternative passes a `<`, so all attempts together are linear.
_TAG = Pattern(
    rf"""{_OPENS}({_NAME})((?:\s[^<>"']*+(?:(?:"[^"<]*+"|'[^'<]*+')[^<>"']*+)*+)?)(/?)>"""
)
_ROUGH_TAG = Pattern(rf"{_OPENS}({_NAME})((?:\s[^<>]*+)?+)>")
_CUT_TAG = Pattern(rf"</?(?:{_NAME}(?:\s[^<>]*+)?+)?+\Z")
_ATTRIBUTE = Pattern(
    r"""((?:[^\W\d]|:)[\w.\-:]*+)(?:\s*+=\s*+"""
    r"""(?:"([^"]*+(?:"(?![\s/]|\Z|[\w:.-]{1,64}+=)[^"]*+){0,8}+)"|'([^']*+)'|([^\s"'>]++)))?+"""
)
_REFERENCE = Pattern(r"&(#[0-9]{1,7}|#[xX][0-9A-Fa-f]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});|&")
_THINK = Pattern(r"<(/?)think(?:ing)?>", "i")
_DECLARATIONS = {"<!--": "-->", "<?": "?>", "<!DOCTYPE": ">"}
_DECLARATION = Pattern(r"<!(?:--|\[CDATA\[|DOCTYPE)", "i")
_STARTS = Pattern(r"<[^\W\d]")
_NO_LINE_END = Pattern(r"[^\n]+")
_RUN = Pattern(r"<{3,}+")
_PLACEHOLDER = Pattern(r"<<([^<>\n]{1,500})>>")


@frozen
class LenientXml:
    """The result of reading `text`. If there is no element, `value` is None and `error` says why.

    `value` is `{root: text | {child: …}}`: repeated siblings are a list, attributes are `@name`,
    the text of an element with attributes or children is `#text`, an empty element is None. Without
    a common root it has several keys.
    """

    value: Any
    text: str
    warnings: tuple[str, ...] = ()
    error: str | None = None


@dataclass(slots=True)
class Element:
    """An element as it was read.

    Offsets are into the text: `start` of its `<`, `inside` after its opening tag, `close` and `end`
    of its closing tag (None where it has none).
    """

    name: str
    attributes: dict[str, str]
    content: list[str | Element]
    start: int
    inside: int
    close: int | None = None
    end: int | None = None

    @property
    def children(self) -> list[Element]:
        return [child for child in self.content if not isinstance(child, str)]

    def walk(self) -> list[Element]:
        """This element and all elements inside it."""
        found: list[Element] = [self]
        for element in found:
            found += element.children
        return found


class Grammar:
    """A reader's knowledge of a language, with names as written in the text. This base class knows
    nothing.
    """

    def fold(self, name: str) -> str:
        """A key that is equal for an opening tag and its closing tag."""
        return name

    def holds(self, parent: str, child: str) -> bool:
        """Whether `child` stays inside a `parent` that is never closed; otherwise `parent` ends
        before it.
        """
        return False

    def is_markup(self, parent: str, name: str) -> bool:
        """Whether a tag `name` in `parent` is markup; otherwise it is part of the parent's text."""
        return True


@dataclass(slots=True)
class Tree:
    """The elements in a text. `warnings` has the offset of the first repair of each kind.

    `open` are the elements, outermost first, that were not closed when the text was cut off; none
    where a closing fence ended the text.
    """

    roots: list[Element] = field(default_factory=list[Element])
    warnings: dict[str, int] = field(default_factory=dict[str, int])
    open: list[Element] = field(default_factory=list[Element])


def read_elements(text: str) -> LenientXml:
    """The elements in `text` as a value; no text makes it raise an error."""
    tree = read_tree(text)
    warnings = list(tree.warnings)
    if not tree.roots:
        return LenientXml(
            None, text, warnings=tuple(warnings), error="the text contains no XML element"
        )
    if len(tree.roots) > 1:
        warnings.append("several elements stand side by side without a common root")
    value: dict[str, Any] = {}
    for root in tree.roots:
        _add(value, root.name, value=_value(root))
    return LenientXml(value, text, warnings=tuple(warnings))


def read_tree(text: str, grammar: Grammar | None = None) -> Tree:
    """The elements in `text`, with their places; no text makes it raise an error."""
    return _LenientReader(text, grammar).read()


class _LenientReader:
    """One pass over a text. `_open` are the elements that are not closed yet, outermost first."""

    def __init__(self, text: str, grammar: Grammar | None) -> None:
        self._knows = grammar is not None
        self._grammar = grammar or Grammar()
        self._tree = Tree()
        self._at = 0
        self._text = self._without_reasoning(text)
        self._open: list[Element] = []
        self._names: Counter[str] = Counter()
        self._too_deep: Counter[str] = Counter()
        self._endless: set[str] = set()
        self._firsts: dict[str, str] = {}
        self._others: Counter[str] = Counter()

    def read(self) -> Tree:
        text = self._text
        position = 0
        size = len(self._text)
        markup = 0
        while position < size:
            start = text.find("<", position)
            if start < 0:
                self._at = position
                self._characters(text[position:])
                break
            if start > position:
                self._at = position
                self._characters(text[position:start])
            self._at = start
            markup += 1
            if markup > MAX_MARKUP:
                self._warn(f"more than {MAX_MARKUP:,} tags: the rest read as text")
                self._literal(text[start:])
                break
            position = self._markup(start)
        if self._open:
            self._at = self._open[-1].start
            names = ", ".join(f"<{element.name}>" for element in self._open[:5])
            self._warn(f"cut off or not closed at the end: {names}")
            if not self._cut_fence():
                self._tree.open = list(self._open)
            if self._knows:
                self._spread(self._open[0], self._open[1:])
        others = {
            message: f" (and {count:,} more like it)" for message, count in self._others.items()
        }
        self._tree.warnings = {
            message + others.get(message, ""): at for message, at in self._tree.warnings.items()
        }
        return self._tree

    def _warn(self, message: str, kind: str = "") -> None:
        """Adds a warning. Each `kind` has one: for the first name, with the number of the
        others.
        """
        if kind:
            first = self._firsts.setdefault(kind, message)
            if first != message:
                self._others[first] += 1
                return
        self._tree.warnings.setdefault(message, self._at)

    def _without_reasoning(self, text: str) -> str:
        """`text` with blanks in place of reasoning, also where its opening or its closing tag is
        missing.
        """
        removed: list[tuple[int, int]] = []
        opened: int | None = None
        position = 0
        last_element = max((match.start() for match in _STARTS.finditer(text)), default=-1)
        for tag in _THINK.finditer(text):
            if tag[1] and opened is not None:
                removed.append((opened, tag.end()))
                opened = None
                position = tag.end()
            elif tag[1] and last_element > tag.start():
                removed = [(0, tag.end())]
                position = tag.end()
            elif (
                not tag[1]
                and opened is None
                and _STARTS.search(text, position, tag.start()) is None
            ):
                opened = tag.start()  # an opening tag after an element is markup of that element
        if removed or opened is not None:
            self._warn("reasoning left out")
        parts: list[str] = []
        position = 0
        for start, end in removed:
            blanks = _NO_LINE_END.sub(lambda match: " " * len(match[0]), text[start:end])
            parts += text[position:start], blanks
            position = end
        return "".join([*parts, text[position:opened]])

    def _characters(self, raw: str) -> None:
        if self._open:
            self._open[-1].content.append(self._decode(raw))
        elif raw.strip():
            self._warn("text outside the elements left out")

    def _literal(self, raw: str) -> None:
        if self._open:
            self._open[-1].content.append(raw)

    def _decode(self, raw: str) -> str:
        if "&" in raw:
            return _REFERENCE.sub(self._character, raw)
        return raw

    def _character(self, match: Match) -> str:
        name = match[1]
        if name is None:
            self._warn("a bare `&` read as it is")
            return "&"
        if name.startswith("#"):
            if name[1] in "xX":
                code = int(name[2:], 16)
            else:
                code = int(name[1:])
            if code < 0x110000 and not 0xD800 <= code < 0xE000:
                return chr(code)
            self._warn(f"&{name}; is not a character; kept as it is", "character")
            return match[0]
        if name not in ("amp", "lt", "gt", "quot", "apos"):
            character = html.unescape(match[0])
            known = character != match[0] and not character.endswith(";")
            if known:
                outcome = "read as in HTML"
            else:
                outcome = "is not known; kept as it is"
            self._warn(f"the entity &{name}; {outcome}", outcome)
            if known:
                return character
            return match[0]
        return html.unescape(match[0])

    def _markup(self, start: int) -> int:
        """Reads what begins with the `<` at `start`. Returns where to continue."""
        text = self._text
        following = text[start + 1 : start + 2]
        if following == "?" or (following == "!" and _DECLARATION.match(text, start)):
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
            self._warn(f"the attributes of <{tag[2]}> are not well-formed", "attributes")
        if tag is None:
            if _CUT_TAG.match(text, start):
                self._warn("a tag cut off at the end left out")
                return len(text)
            self._bare(start)
            return start + 1
        if not self._open and text[start - 1 : start] == "`" == text[tag.end() : tag.end() + 1]:
            return tag.end()  # a tag that the prose mentions
        if self._open and self._is_text(tag):
            self._warn(f"markup in the text of <{self._open[-1].name}> read as text", "text")
            self._literal(tag[0])
            return tag.end()
        if tag[1]:
            if tag[1] != "/":
                self._warn("blanks in a closing tag left out")
            self._close(tag)
        else:
            rest = tag[3]
            closed = rest.endswith("/") or tag[0].endswith("/>")
            self._start(tag, rest.removesuffix("/") if closed else rest, closed=closed)
        return tag.end()

    def _is_text(self, tag: Match) -> bool:
        """Whether a tag is part of the text of the element around it; one that closes an open
        element never is.
        """
        if self._grammar.is_markup(self._open[-1].name, tag[2]):
            return False
        return not (tag[1] and self._names[self._grammar.fold(tag[2])])

    def _bare(self, start: int) -> None:
        if self._open:
            self._warn("a bare `<` read as it is")
            self._literal("<")

    def _declaration(self, start: int) -> int:
        text = self._text
        if text.startswith("<![CDATA[", start):
            end = text.find("]]>", start)
            if end < 0:
                self._warn("a CDATA section is not closed")
            self._literal(text[start + 9 : end if end >= 0 else len(text)])
            if end < 0:
                return len(text)
            return end + 3
        opening = next(
            (one for one in _DECLARATIONS if text[start : start + 9].upper().startswith(one)), "<!"
        )
        closing = _DECLARATIONS.get(opening)
        if closing is None:
            end = -1
        else:
            end = self._find(closing, start + len(opening))
        if closing is None or end < 0:
            self._bare(start)
            return start + 1
        if opening == "<!DOCTYPE":
            self._warn("a document type declaration left out")
            bracket = text.find("[", start, end)
            if bracket >= 0:
                end = max(end, self._find("]>", bracket) + 1)
        return end + len(closing)

    def _find(self, end: str, start: int) -> int:
        """The next `end`, -1 if there is none. One that was not found once is not further on
        either.
        """
        if end in self._endless:
            found = -1
        else:
            found = self._text.find(end, start)
        if found < 0:
            self._endless.add(end)
        return found

    def _start(self, tag: Match, rest: str, closed: bool) -> None:
        name = tag[2]
        if len(self._open) >= MAX_DEPTH:
            self._warn(f"elements nested more than {MAX_DEPTH} deep read as text")
            self._literal(tag[0])
            if not closed:
                self._too_deep[self._grammar.fold(name)] += 1
            return
        element = Element(
            name,
            self._attributes(name, rest) if rest.strip() else {},
            content=[],
            start=tag.start(),
            inside=tag.end(),
        )
        if self._open:
            self._open[-1].content.append(element)
        else:
            self._tree.roots.append(element)
        if closed:
            element.close = element.end = tag.end()
        else:
            self._open.append(element)
            self._names[self._grammar.fold(name)] += 1

    def _attributes(self, name: str, rest: str) -> dict[str, str]:
        found: dict[str, str] = {}
        for count, match in enumerate(_ATTRIBUTE.finditer(rest)):
            if count >= MAX_MARKUP:
                self._warn(f"more than {MAX_MARKUP:,} attributes: the rest left out")
                break
            value = next((group for group in match.groups()[1:] if group is not None), None)
            if value is None or match[4] is not None:
                self._warn(f"an attribute of <{name}> without quotes", "unquoted")
            if match[2] is not None and '"' in match[2]:
                self._warn(f"an attribute of <{name}> has quotes inside its quotes", "inner")
            if match[1] in found:
                self._warn(
                    f"<{name}> has the attribute {match[1]!r} twice; the first one is read", "twice"
                )
            found.setdefault(match[1], self._decode(value or ""))
        return found

    def _close(self, tag: Match) -> None:
        name = self._grammar.fold(tag[2])
        if self._too_deep[name] > 0:
            self._too_deep[name] -= 1
            self._literal(tag[0])
        elif self._names[name] == 0:
            self._warn(f"</{tag[2]}> closes nothing; left out", "closing")
        else:
            unclosed: list[Element] = []
            while self._grammar.fold(self._open[-1].name) != name:
                unclosed.append(self._pop())
            target = self._pop()
            target.close = tag.start()
            target.end = tag.end()
            unclosed.reverse()
            for element in unclosed:
                self._at = element.start
                self._warn(f"<{element.name}> is not closed", "unclosed")
            self._spread(target, unclosed)

    def _spread(self, target: Element, unclosed: list[Element]) -> None:
        """Ends a chain of elements that were left open inside `target`, outermost first.

        Each is put into the nearest one above that holds it, and ends before its first child that
        it does not hold. What follows is put where that child is put.
        """
        if not unclosed:
            return
        chain = [target]
        target.content.pop()
        for element in unclosed:
            if element is not unclosed[-1]:
                element.content.pop()
            content, element.content = element.content, []
            self._put(chain, element)
            chain.append(element)
            for child in content:
                if isinstance(child, str):
                    chain[-1].content.append(child)
                else:
                    self._put(chain, child)

    def _put(self, chain: list[Element], element: Element) -> None:
        while len(chain) > 1 and not self._grammar.holds(chain[-1].name, element.name):
            chain.pop()
        chain[-1].content.append(element)

    def _pop(self) -> Element:
        element = self._open.pop()
        self._names[self._grammar.fold(element.name)] -= 1
        return element

    def _cut_fence(self) -> bool:
        """Whether a closing code fence ended the answer inside an element that was left open."""
        last = self._open[-1].content
        for number, child in enumerate(last):
            if isinstance(child, str) and (fence := child.find("\n```")) >= 0:
                before = self._text[: self._tree.roots[-1].start]
                if before.count("```") % 2 == 1:
                    last[number] = child[:fence]
                    del last[number + 1 :]
                    self._warn("text after the closing fence left out")
                    return True
                return False
        return False


def _value(element: Element) -> Any:
    """Recursion is bounded by MAX_DEPTH."""
    text = "".join(child for child in element.content if isinstance(child, str)).strip()
    children = [child for child in element.content if not isinstance(child, str)]
    if not children and not element.attributes:
        return text or None
    out: dict[str, Any] = {f"@{name}": value for name, value in element.attributes.items()}
    if text:
        out["#text"] = text
    for child in children:
        _add(out, child.name, value=_value(child))
    return out


def _add(out: dict[str, Any], name: str, value: Any) -> None:
    # An element's own value is never a list, so a list is always of siblings.
    if name not in out:
        out[name] = value
    elif isinstance(out[name], list):
        out[name].append(value)
    else:
        out[name] = [out[name], value]
