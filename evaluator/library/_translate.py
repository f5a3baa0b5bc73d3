"""Expressions as authors from other languages write them → Jinja's spelling, mapped to the source."""

from __future__ import annotations

import re
from functools import lru_cache

MAX_BRACKETS = 40


class TooDeep(Exception):
    """Brackets nested more than MAX_BRACKETS deep. `offset` is where."""

    def __init__(self, offset: int) -> None:
        super().__init__(offset)
        self.offset = offset


@lru_cache(4096)
def translated(source: str) -> tuple[str, list[int]]:
    """The translation, and for each of its characters and its end the offset in `source`. Raises: TooDeep."""
    translator = _Translator(source)
    translator.until(None)
    return "".join(translator.out), [*translator.offsets, len(source)]


_PIECE = re.compile(
    r"""\s+|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^\W\d]\w*|\d[\w.]*"""
    r"""|===|!==|==|!=|<=|>=|&&|\|\||\{\{|\}\}|//|\*\*|.""",
    re.S,
)
_SPELLING = {"===": "==", "!==": "!=", "&&": " and ", "||": " or ", "null": "none"}
_CLOSING = {"(": ")", "[": "]", "{": "}", "{{": "}}"}


class _Translator:
    """One pass over the pieces of an expression; `offsets`: where each character written comes from."""

    def __init__(self, source: str) -> None:
        self.pieces = [(match[0], match.start()) for match in _PIECE.finditer(source)]
        self.at = 0
        self.depth = 0
        self.out: list[str] = []
        self.offsets: list[int] = []

    def write(self, value: str, offset: int, literal: bool = False) -> None:
        self.out.append(value)
        self.offsets.extend(range(offset, offset + len(value)) if literal else [offset] * len(value))

    def until(self, closing: str | None) -> None:
        """Pieces up to and with `closing`, or to the end."""
        while self.at < len(self.pieces):
            piece, offset = self.pieces[self.at]
            if piece == "}}" and closing != "}}":
                # Two dictionaries that end together, not a placeholder.
                self.pieces[self.at : self.at + 1] = [("}", offset), ("}", offset + 1)]
                continue
            if piece == closing:
                self.at += 1
                self.write(" )" if piece == "}}" else piece, offset, True)
                return
            self.one()

    def one(self) -> None:
        piece, offset = self.pieces[self.at]
        if piece == "!":
            self.negation()
            return
        self.at += 1
        if piece in _CLOSING:
            self.depth += 1
            if self.depth > MAX_BRACKETS:
                raise TooDeep(offset)
            self.write("( " if piece == "{{" else piece, offset, True)
            self.until(_CLOSING[piece])
            self.depth -= 1
        elif piece in _SPELLING and not (piece == "null" and self.after_dot()):
            self.write(_SPELLING[piece], offset)
        else:
            self.write(piece, offset, True)

    def after_dot(self) -> bool:
        return "".join(self.out[-2:]).rstrip().endswith(".")

    def negation(self) -> None:
        """`!` binds as in C: tighter than any comparison, looser than `.`, `[]` and `()`."""
        opened = 0
        while self.at < len(self.pieces) and (self.pieces[self.at][0] == "!" or self.skip_blank(opened)):
            if self.pieces[self.at][0] == "!":
                self.write("(not ", self.pieces[self.at][1])
                opened += 1
            self.at += 1
        while self.at < len(self.pieces) and self.pieces[self.at][0] in ("-", "+"):
            self.one()
        if self.at < len(self.pieces) and self.pieces[self.at][0] not in _CLOSING.values():
            self.one()
        while self.at < len(self.pieces) and self.pieces[self.at][0] in (".", "(", "["):
            dot = self.pieces[self.at][0] == "."
            self.one()
            if dot and self.at < len(self.pieces):
                self.one()
        self.write(")" * opened, self.offsets[-1])

    def skip_blank(self, opened: int) -> bool:
        return opened > 0 and self.pieces[self.at][0].isspace()
