"""Finds the one bracket that was left out, doubled or mistaken in a block that is well formed
otherwise.

The block is read as tokens up to the first one that cannot follow. Then one bracket at or before it
is inserted, left out or replaced, and each result that is one whole value is a candidate. Tokens
and steps are limited for each text.

The candidates are ranked by how odd each is as a reading: against the indentation of its lines and
the likeness of its items.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from typing import NamedTuple

from evaluator.lazy_dataclass import dataclass, frozen
from evaluator.output.strict import Unreadable
from evaluator.output.strings import Lookahead
from evaluator.output.tokens import COLON, COMMENT, QUOTED, WS
from evaluator.patterns import Pattern

CLOSING = {"{": "}", "[": "]"}
"""The closing bracket of each opening one."""


class Edit(NamedTuple):
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


_TOKEN = Pattern(
    rf"(?:[ \t\r\n]++|{COMMENT}){{0,8}}+"
    rf'(?:([{{}}\[\],:])|("(?:[^"\\]++|\\[\s\S])*+"|(?!```){QUOTED})|([\w$+-][\w$.+-]{{0,200}}+))'
)
_END = Pattern(r"\s*+(?:\Z|```|</)")
_COLON_NEXT = Pattern(rf"{WS}*+{COLON}{WS}*+")
_NUMBER = Pattern(r"[+-]?\d")
_MAX_TOKENS = 12_000
_MAX_CHARACTERS = 300_000
_MAX_STEPS = 200_000
_MAX_CANDIDATES = 24
_MAX_OTHERS = 8
_OTHER = {"{": "[", "[": "{", "}": "]", "]": "}"}
_EITHER = {"{": "O", "[": "A"}
"""Containers of a mistaken kind, whose closing bracket may be of either kind."""

# What may come next in a container.
_ROOT, _ITEM, _AFTER, _KEY, _COLON, _VALUE, _DONE = range(7)

_Node = tuple[str, "_Node | None"]
_State = tuple[int, _Node | None]


@frozen
class Corrected:
    """A block of the text, from its start to `end`, as it reads after an edit of this kind."""

    text: str
    kind: str
    end: int


class BracketRepairer:
    """Corrects blocks of one text while its budget lasts."""

    __slots__ = ("_ahead", "_characters", "_steps", "_text", "_tokens")

    def __init__(self, ahead: Lookahead) -> None:
        self._ahead = ahead
        self._text = ahead.text
        self._tokens = _MAX_TOKENS
        self._characters = _MAX_CHARACTERS
        self._steps = _MAX_STEPS

    def correct(self, start: int) -> tuple[Corrected | None, tuple[Corrected, ...]]:
        """The readings of the block that begins at `start` with one bracket changed: the one that
        was chosen, if there is one, and all.
        """
        self._tokens -= 8
        if self._tokens < 0:
            return None, ()
        tokens = self._scan(start)
        if "s" not in tokens.kinds and (
            not tokens.is_whole or start >= 16 or self._text[:start].strip("`json \t\r\n")
        ):
            return None, ()  # It may be a part of prose, such as `[1], [2]`.
        states, error = self._states(tokens)
        if error is None:
            return None, ()
        is_at_end = error == len(tokens.kinds)
        if is_at_end and tokens.kinds[-1] == "w" and tokens.ends[-1] == len(self._text):
            return None, ()  # The number or word at the end of the text may be cut off.
        found: list[Edit] = []
        spare = self._steps // 2
        for edit in self._candidates(tokens, states, error=error, spare=spare):
            found.append(edit)
            if len(found) > _MAX_CANDIDATES:
                return None, ()
        steps = len(found) * len(tokens.kinds)
        if not found or (is_at_end and self._steps < spare) or self._steps < steps:
            return None, ()
        self._steps -= steps
        odd: dict[tuple[str, int], tuple[Oddities, Edit]] = {}
        for edit in found:
            # Beside the same bracket, all places mean the same.
            oddities = measure(self._text, tokens, edit=edit)
            key = _reading(tokens.kinds, edit)
            if key not in odd or oddities < odd[key][0]:
                odd[key] = oddities, edit
        readings = list(odd.values())
        best = _choose(self._text, tokens, found=readings, error=error)
        corrected = {
            edit: self._corrected(start, tokens, edit=edit) for _, edit in readings[:_MAX_OTHERS]
        }
        if best is not None and best not in corrected:
            return self._corrected(start, tokens, edit=best), tuple(corrected.values())
        return corrected[best] if best is not None else None, tuple(corrected.values())

    # Tokens

    def _scan(self, start: int) -> Tokens:
        """The tokens from `start` on, up to two that cannot stand side by side, or to what is not a
        token.
        """
        text = self._text
        tokens = Tokens()
        position = start
        before = ","
        quote = ""
        limit = start + max(self._characters, 0)
        while self._tokens > 0 and (match := _TOKEN.match(text, position, limit)) is not None:
            which = match.lastindex or 0
            if which == 1:
                kind = match[1]
            elif which == 2:
                kind = "s"
            else:
                kind = "w"
            begin = match.start(which)
            if kind == "s" and text[begin] != quote:
                quote = quote or text[begin]
                if quote != text[begin] and quote in match[2]:
                    # A quote of the usual kind inside shows that this one may be an apostrophe.
                    break
            line = text.rfind("\n", position, begin)
            tokens.kinds.append(kind)
            tokens.starts.append(begin)
            tokens.ends.append(match.end())
            tokens.indents.append(begin - line - 1 if line >= 0 else -1)
            self._tokens -= 1
            position = match.end()
            if kind in "sw" and before in "sw}]":
                break
            before = kind
        else:
            tokens.is_whole = _END.match(text, position) is not None
        self._characters -= position - start
        return tokens

    def _states(self, tokens: Tokens) -> tuple[list[_State], int | None]:
        """What may come before each token, and the first token that may not come; None if there is
        no such token.
        """
        states: list[_State] = [(_ROOT, None)]
        for index, kind in enumerate(tokens.kinds):
            state = _step(kind, *states[-1])
            if state is None:
                return states, index
            states.append(state)
            if state[0] == _DONE:
                return states, None if self._is_clean(
                    tokens, index + 1, is_inserted=False
                ) else index + 1
        return states, len(tokens.kinds) if tokens.is_whole else None

    def _is_clean(self, tokens: Tokens, index: int, *, is_inserted: bool) -> bool:
        """Whether a block may end before a token: what follows is prose or another block."""
        if index >= len(tokens.kinds):
            return tokens.is_whole or not is_inserted
        kind = tokens.kinds[index]
        is_new_line = tokens.indents[index] >= 0
        if kind not in "{[w" or not (is_new_line or (kind == "w" and not is_inserted)):
            return False
        if is_inserted and kind == "w":
            colon = _COLON_NEXT.match(self._text, tokens.ends[index])
            if colon is not None and self._ahead.scanner.read(colon.end(), 0) is not None:
                return False  # It is rather a key, and a comma is missing.
        self._steps -= 50
        try:
            return self._ahead.unmatched(tokens.ends[index - 1]) == 0
        except Unreadable:
            return False  # The text has used up the repairs that it may take.

    # Edits

    def _candidates(
        self, tokens: Tokens, states: list[_State], error: int, spare: int
    ) -> Iterator[Edit]:
        """The edits that make one whole value, those next to the error first, until only `spare`
        steps are left.
        """
        kinds = tokens.kinds
        for at in range(error, -1, -1):
            if self._steps < spare:
                return
            self._steps -= 4
            here = kinds[at] if at < len(kinds) else ""
            for char in "{[}]":
                if char in "}]" and here == "," == kinds[at - 1]:
                    continue
                state = _step(char, *states[at])
                if state is not None and (
                    state[0] != _DONE or (at == error and kinds[at - 1] not in ",{[")
                ):
                    yield from self._try(tokens, at, following=at, state=state, char=char)
            if here not in _OTHER:
                continue
            yield from self._try(tokens, at, following=at + 1, state=states[at], char="")
            other = _OTHER[here]
            if (state := _step(other, *states[at])) is not None:
                if other in _EITHER and state[1] is not None and _is_like(other, tokens, at=at + 1):
                    state = (state[0], (_EITHER[other], state[1][1]))
                yield from self._try(tokens, at, following=at + 1, state=state, char=other)

    def _try(
        self, tokens: Tokens, at: int, following: int, state: _State, char: str
    ) -> Iterator[Edit]:
        kinds = tokens.kinds
        index = following
        closer = -1
        here = CLOSING.get(_OTHER.get(char, ""), "")
        while state[0] != _DONE:
            if index >= len(kinds) or self._steps < 0:
                return
            node = state[1]
            after = _step(kinds[index], *state)
            if after is None:
                return
            if node is not None and node[0] in "OA" and kinds[index] == here:
                closer = index
            state = after
            index += 1
            self._steps -= 1
        is_inserted = following == at and not set(kinds[at:index]) - {char}
        if self._is_clean(tokens, index, is_inserted=is_inserted):
            yield Edit(
                at, char, removed=kinds[at] if following > at else "", end=index, closer=closer
            )

    def _corrected(self, start: int, tokens: Tokens, edit: Edit) -> Corrected:
        text = self._text
        at = edit.at
        end = tokens.ends[edit.end - 1]
        if edit.removed:
            first = tokens.starts[at]
            resume = tokens.ends[at]
        elif edit.inserted in "{[":
            first = resume = tokens.starts[at]
        else:
            first = resume = tokens.ends[at - 1]
        rest = text[resume:end]
        if edit.closer >= 0:
            place = tokens.starts[edit.closer] - resume
            rest = rest[:place] + CLOSING[edit.inserted] + rest[place + 1 :]
        return Corrected(text[start:first] + edit.inserted + rest, edit.kind, end=end)


_CLOSES = {"{": "}", "[": "]", "O": "}]", "A": "}]"}


def _step(kind: str, phase: int, node: _Node | None) -> _State | None:
    """The state after a token; None if it may not come. A comma may stand before a closing
    bracket.
    """
    if kind == "s" or kind == "w":
        if phase in (_ITEM, _VALUE):
            return _AFTER, node
        if phase == _KEY:
            return (_COLON, node)
        return None
    if kind == ":":
        if phase == _COLON:
            return (_VALUE, node)
        return None
    if kind == "{" or kind == "[":
        if phase in (_ROOT, _ITEM, _VALUE):
            return (_KEY if kind == "{" else _ITEM, (kind, node))
        return None
    if node is None:
        return None
    if kind == ",":
        if phase == _AFTER:
            return (_KEY if node[0] in "{O" else _ITEM, node)
        return None
    if phase not in (_ITEM, _AFTER, _KEY) or kind not in _CLOSES[node[0]]:
        return None
    return (_AFTER if node[1] is not None else _DONE), node[1]


def _is_like(kind: str, tokens: Tokens, at: int) -> bool:
    """Whether a container of the other kind is plainly one of this: its first member has, or lacks,
    a quoted key.
    """
    first = tokens.kinds[at : at + 1]
    second = tokens.kinds[at + 1 : at + 2]
    if kind == "{":
        return first == ["s"] and second == [":"]
    return first in (["s"], ["["])


def _reading(kinds: list[str], edit: Edit) -> tuple[str, int]:
    """The same for two edits that give the same tokens: an insertion or an omission in a run of
    equal brackets.
    """
    if edit.inserted and edit.removed:
        return "other", edit.at
    char = edit.inserted or kinds[edit.at]
    at = edit.at
    while at and kinds[at - 1] == char:
        at -= 1
    return edit.inserted, at


def _choose(
    text: str, tokens: Tokens, found: list[tuple[Oddities, Edit]], error: int
) -> Edit | None:
    """The least odd reading; None if there are several, or only the closing bracket at the end is
    missing.
    """
    kinds = tokens.kinds
    last = [
        one
        for one in found
        if one[1].end == error and not set(kinds[one[1].at : error]) - {one[1].inserted}
    ]
    if last:
        # The block may be cut off. Only its lines tell that the bracket is missing elsewhere.
        least_lines = min(odd.lines for odd, _ in last)
        if all(odd.lines >= least_lines for odd, _ in found):
            if error < len(kinds):
                return last[0][1]
            return None
        found = [(odd, edit) for odd, edit in found if odd.lines < least_lines]
    if not found:
        return None
    ranks = [
        (odd.lines, odd.contents + _arbitrariness(edit, tokens, error=error), odd.shapes)
        for odd, edit in found
    ]
    least = min(ranks)
    best = [edit for rank, (_, edit) in zip(ranks, found, strict=True) if rank == least]
    if len(best) == 1:
        return best[0]
    return _doubled(text, tokens, best=best)


def _doubled(text: str, tokens: Tokens, best: list[Edit]) -> Edit | None:
    """The edit that leaves out a doubled bracket, if the others add its partner: `[["a"]` may be
    `["a"]` or `[["a"]]`.

    Lists of numbers are often nested, and closing brackets are forgotten: in them the partner may
    be missing.
    """
    removed = [edit for edit in best if not edit.inserted]
    added = {edit.inserted for edit in best if not edit.removed}
    if (
        len(removed) != 1
        or len(removed) + len(added) < 2
        or any(edit.inserted and edit.removed for edit in best)
    ):
        return None
    at = removed[0].at
    char = removed[0].removed
    if not _is_doubled(removed[0], tokens):
        return None
    if char in "}]":
        if not added & {"}", "]"}:
            return removed[0]
        return None
    while tokens.kinds[at] == char:
        at += 1
    if added & {"{", "["} or _NUMBER.match(text, tokens.starts[at]):
        return None
    return removed[0]


def _is_doubled(edit: Edit, tokens: Tokens) -> bool:
    """Whether the bracket that is left out is next to another one of its kind."""
    return (
        edit.removed
        in tokens.kinds[max(edit.at - 1, 0) : edit.at] + tokens.kinds[edit.at + 1 : edit.at + 2]
    )


def _arbitrariness(edit: Edit, tokens: Tokens, error: int) -> int:
    """How odd it is to leave out this bracket: not at all if it stands twice, or closes something
    next to the error.
    """
    if edit.inserted or _is_doubled(edit, tokens):
        return 0
    if edit.removed in CLOSING:
        return 2
    return int(edit.at < error - 1)
