"""Measures how odd a reading of JSON tokens is: against the indentation of its lines and the
likeness of its items.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

CLOSING = {"{": "}", "[": "]"}
"""The closing bracket of each opening one."""


@dataclass(frozen=True, slots=True)
class Edit:
    """`inserted` takes the place of `removed` before or at the token `at`; one of them may be
    empty.

    The block ends before the token `end`. The closing bracket at `closer` changes its kind too, if
    it is not -1.
    """

    at: int
    inserted: str
    removed: str
    end: int
    closer: int = -1

    @property
    def kind(self) -> str:
        """The kind of repair."""
        if not self.inserted:
            if self.removed in CLOSING:
                return "surplus_opening"
            return "surplus"
        if self.inserted in CLOSING:
            if not self.removed:
                return "opening"
            if self.inserted == "[" and self.closer >= 0:
                return "tuple"
            return "mismatched_opening"
        if self.at == self.end:
            return "unclosed"
        return "mismatched"


@dataclass(slots=True)
class Tokens:
    """Tokens: `kinds` are the bracket, comma or colon, `s` for a text in quotes, `w` for a word or
    number.

    `indents` are the widths of the blanks before tokens that begin a line, else -1.
    """

    kinds: list[str] = field(default_factory=list[str])
    starts: list[int] = field(default_factory=list[int])
    ends: list[int] = field(default_factory=list[int])
    indents: list[int] = field(default_factory=list[int])
    is_whole: bool = False


class Oddities(NamedTuple):
    """How many `lines` have another indentation than their container, and how many arrays or
    objects are odd.

    `contents`: two for each array with items of several kinds, four for a key that occurs twice.
    `shapes`: objects of one array that have other keys.
    """

    lines: int
    contents: int
    shapes: int


@dataclass(slots=True)
class _Container:
    is_object: bool
    line: int | None
    is_doubled: bool
    items: int | None = None
    signature: str | None = None
    is_mixed: bool = False
    keys: set[str] = field(default_factory=set[str])
    shapes: set[frozenset[str]] = field(default_factory=set[frozenset[str]])


class _Measure:
    """The oddities of the tokens that were put in so far."""

    __slots__ = ("_before", "_is_key", "_line", "_open", "contents", "lines", "shapes")

    def __init__(self) -> None:
        self.lines = self.contents = self.shapes = 0
        self._open: list[_Container] = []
        self._line: int | None = 0
        self._before = ""
        self._is_key = False

    def put(self, kind: str, indent: int, written: str) -> None:
        """Puts one token in; `indent` is -1 inside a line, and -2 for an inserted bracket, whose
        line is unknown.
        """
        if indent >= 0:
            self._line = indent
        if kind in "}]":
            self._close(indent)
        elif kind == ",":
            self._is_key = self._open[-1].is_object
        elif kind != ":":
            self._begin(kind, indent, written=written)
        self._before = kind

    def _begin(self, kind: str, indent: int, written: str) -> None:
        around = self._open[-1] if self._open else None
        if around is not None and (self._is_key or not around.is_object) and indent >= 0:
            if around.items is None:
                around.items = indent
                self.lines += around.is_doubled + (
                    around.line is not None and indent <= around.line
                )
            else:
                self.lines += indent != around.items
        if self._is_key and around is not None:
            self.contents += 4 * (written in around.keys)
            around.keys.add(written)
            self._is_key = False
            return
        self.lines += self._before == ":" and indent >= 0
        if kind in "{[":
            is_doubled = indent < 0 and self._before == kind == "["
            self._open.append(
                _Container(kind == "{", None if indent == -2 else self._line, is_doubled=is_doubled)
            )
            self._is_key = kind == "{"
        else:
            self._add("s")

    def _close(self, indent: int) -> None:
        closed = self._open.pop()
        self._is_key = False
        self.lines += indent >= 0 and closed.line is not None and indent != closed.line
        self.contents += 2 * closed.is_mixed
        self.shapes += max(len(closed.shapes) - 1, 0)
        if self._open and closed.is_object and not self._open[-1].is_object:
            self._open[-1].shapes.add(frozenset(closed.keys))
        self._add("o" if closed.is_object else "a" + (closed.signature or ""))

    def _add(self, signature: str) -> None:
        """Adds an item or a value to the container: an array is mixed if its items differ in kind
        or in nesting.
        """
        if not self._open or self._open[-1].is_object:
            return
        around = self._open[-1]
        known = around.signature
        if known is None or signature.startswith(known):
            around.signature = signature
        elif not known.startswith(signature):
            around.is_mixed = True


def measure(text: str, tokens: Tokens, edit: Edit) -> Oddities:
    """The oddities of the tokens up to the end of the edited block."""
    found = _Measure()
    for index in range(edit.end + (edit.at == edit.end)):
        if index == edit.at:
            if edit.inserted:
                found.put(edit.inserted, tokens.indents[index] if edit.removed else -2, "")
            if edit.removed:
                continue
        if index >= edit.end:
            break
        kind = tokens.kinds[index]
        if index == edit.closer:
            kind = CLOSING[edit.inserted]
        found.put(kind, tokens.indents[index], text[tokens.starts[index] : tokens.ends[index]])
    return Oddities(found.lines, found.contents, shapes=found.shapes)
