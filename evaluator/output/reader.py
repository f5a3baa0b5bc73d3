"""Reads one JSON block leniently: iteratively, in one pass, and never backwards.

It stops early on what is not JSON (`[see below]`, `{x | x > 0}`). After a quoted key, or a list of
quoted texts or containers, a block is taken for JSON and read to its end.
"""

from __future__ import annotations

import json
from math import isfinite
from typing import Any

from evaluator.output import tokens
from evaluator.output.scalars import read_number
from evaluator.output.strict import MAX_DEPTH, StrictScanner, Unreadable, decode
from evaluator.output.strings import CLOSERS, Lookahead, ReadString, ends_block
from evaluator.output.tokens import OPENING, PUNCTUATION

_QUOTES = frozenset(OPENING)
_MAX_DIGITS = 4000


def read_block(strict: StrictScanner) -> BlockReader | None:
    """The reader of the block with which a text begins; None if it is not one."""
    reader = BlockReader(strict, 0)
    try:
        reader.read()
    except Unreadable:
        return None
    return reader


class BlockReader:
    """Reads the block that begins at `start`, and builds its `value`.

    `cut`: the text ended before the block. `evidence`: it is JSON, not prose. `bare`: a text in it
    has no quotes.
    """

    __slots__ = (
        "_ahead",
        "_comma",
        "_container",
        "_key",
        "_kinds",
        "_lines_end",
        "_stack",
        "bare",
        "cut",
        "end",
        "evidence",
        "repairs",
        "start",
        "strict",
        "text",
        "value",
    )

    def __init__(self, strict: StrictScanner, start: int) -> None:
        self.text = strict.text
        self.start = start
        self.strict = strict
        self.repairs: dict[str, None] = {}
        self.evidence = False
        self.bare = False
        self.cut = False
        self.value: Any = None
        self.end = start
        self._stack: list[Any] = []
        self._key: str | None = None
        self._comma = True
        self._container: Any = None
        self._kinds: list[str] = []
        self._ahead = Lookahead(self._kinds, strict)
        # Up to here each line is a text without quotes.
        self._lines_end = 0

    def read(self) -> None:
        """Read the block. Raises: Unreadable."""
        uniform = self.strict.read_uniform(self.start, 0)
        if uniform is not None and ends_block(self.text, uniform[1]):
            self.value, self.end, self.repairs = uniform
            self.evidence = bool(self.value)
            return
        position = self._open(self.text[self.start], self.start)
        while self._container is not None:
            if self._container.__class__ is dict and self._key is None:
                position = self._read_key(position)
            else:
                position = self._read_value(position)
        self.end = position

    # Tokens

    def _slowly(self, position: int) -> int:
        """As `_skip`, where the quick patterns did not match: such steps are counted."""
        self._ahead.spend(position)
        return self._skip(position)

    def _skip(self, position: int) -> int:
        """The position after white space and comments."""
        text = self.text
        while True:
            match = tokens.SPACE.match(text, position)
            end = match.end() if match else position
            if end > position and text[position:end].strip(" \t\r\n"):
                self.repairs["blanks"] = None
            position = end
            if position >= len(text) or text[position] not in "/#<":
                return position
            comment = tokens.ANY_COMMENT.match(text, position)
            if comment is None:
                return position
            self.repairs["comment"] = None
            position = comment.end()

    def _read_key(self, position: int) -> int:
        text = self.text
        match = tokens.KEY.match(text, position)
        if match is not None:
            self._take_key(match[1])
            self.evidence = True
            return match.end()
        position = self._slowly(position)
        if position >= len(text):
            return self._finish_cut(position)
        char = text[position]
        if char in "bBrRuU" and (prefix := tokens.PREFIX.match(text, position)) is not None:
            self.repairs["prefix"] = None
            position = prefix.end()
            char = text[position]
        if char in PUNCTUATION:
            return self._punctuation(char, position)
        if char in OPENING and not text.startswith("```", position):
            return self._read_quoted_key(position)
        if text.startswith("...", position) or char == "…":
            return self._ellipsis(position, char)
        if char == "{" and self._stack and self._stack[-1].__class__ is list and self._container:
            # The object before it was not closed.
            self.repairs["mismatched"] = None
            self._close()
            return position
        if (stop := tokens.STOP.match(text, position)) is not None and not self._comma:
            self.repairs["separator"] = None
            self._comma = True
            return stop.end()
        return self._read_bare_key(position)

    def _read_bare_key(self, position: int) -> int:
        text = self.text
        is_json = self.evidence or self._stack or self._container
        if tokens.KEY_CUT.match(text, position) and is_json:
            return self._finish_cut(len(text))
        separated = self._comma or self._on_new_line(position)
        match = tokens.BARE_KEY.match(text, position)
        if match is not None and (
            separated or self.evidence or tokens.VALUE_NEXT.match(text, match.end())
        ):
            self.repairs["opening_quote" if match[2] else "unquoted_key"] = None
            if text[match.end() - 1] != ":":
                self.repairs["separator"] = None
        elif (match := tokens.WORDS_KEY.match(text, position)) is not None and separated:
            self.repairs["opening_quote" if match[2] else "unquoted_key"] = None
        elif (match := tokens.KEY_ALONE.match(text, position)) is not None and separated:
            self.repairs["unquoted_key"] = self.repairs["missing_colon"] = None
        else:
            return self._garbage(position, "a key in quotes")
        self._take_key(match[1])
        return match.end()

    def _on_new_line(self, position: int) -> bool:
        """Whether there is only white space between `position` and the line break before it."""
        text = self.text
        position = position - 1
        while position >= 0 and text[position] in " \t\r":
            position -= 1
        return position >= 0 and text[position] == "\n"

    def _read_quoted_key(self, position: int) -> int:
        found = ReadString(self._ahead, position, is_key=True)
        if found.cut or found.stopped:
            if found.stopped or not (self.evidence or self._stack):
                raise self._unreadable("a key without an end", position, found.end)
            return self._finish_cut(len(self.text))
        after = self._skip(found.end)
        colon = tokens.ANY_COLON.match(self.text, after)
        if colon is not None:
            self.repairs.update(dict.fromkeys(found.repairs))
            if colon[0] != ":":
                self.repairs["separator"] = None
            self._take_key(found.value)
            self.evidence = True
            return colon.end()
        if after >= len(self.text) and (self.evidence or self._stack):
            return self._finish_cut(after)
        following = self.text[after : after + 1]
        if not self.evidence and (
            following in ("", ",", "}")
            or (
                following in "{["
                and tokens.CONTAINER.match(self.text, after) is None
                and self.strict.read(after, len(self._stack) + 1) is None
            )
        ):
            raise self._unreadable("a colon was expected after the key", after, after)
        if following not in ",;}]":
            self.repairs.update(dict.fromkeys(found.repairs))
            self.repairs["missing_colon"] = None
            self._take_key(found.value)
            return after
        self.repairs["no_value"] = None
        self._comma = False
        return after

    def _read_value(self, position: int) -> int:
        text = self.text
        array = self._container.__class__ is list
        if array and not self._comma:
            after = self._slowly(position)
            if after < len(text) and text[after] in PUNCTUATION:
                return self._punctuation(text[after], after)
        match = (tokens.ITEM if array else tokens.MEMBER).match(text, position)
        if match is not None:
            string, number, fraction, exponent, word, comma = match.groups()
            if comma is not None and array:
                run = tokens.RUN.match(text, position)
                if run is not None:
                    # A long list is read in C.
                    self._container.extend(json.loads(f"[{run[0][:-1]}]"))
                    self._comma = True
                    return run.end()
            if string is not None:
                self._put(string)
                if array:
                    self.evidence = True
            elif word is not None:
                self._put(tokens.EXACT[word])
            else:
                self._put_number(number, is_whole=fraction is None and exponent is None)
            self._comma = comma is not None
            return match.end()
        if (color := tokens.COLOR.match(text, position)) is not None:
            return self._put_text(color[1], color.start(1), end=color.end(), array=array)
        return self._read_other_value(self._slowly(position), array)

    def _read_other_value(self, position: int, array: bool) -> int:
        text = self.text
        mark = tokens.ANY_MARK.match(text, position) if array else None
        if mark is not None and self._on_new_line(position):
            self.repairs["list_marks"] = None
            position = mark.end()
        if position >= len(text):
            return self._finish_cut(position)
        char = text[position]
        if char in "[{":
            return self._read_container(char, position)
        if char in PUNCTUATION:
            return self._punctuation(char, position)
        if char in "［｛":
            self.repairs["wide"] = None
            return self._open("[" if char == "［" else "{", position)
        if char in ":=" and not array:
            self.repairs["separator"] = None
            return position + 1
        if array and self._container and self._ends_at_key(position):
            return position
        if char == "\\" and (escaped := tokens.ESCAPED_QUOTES.match(text, position)) is not None:
            self.repairs["escape"] = None
            self._put(escaped[1])
            return escaped.end()
        if (prefix := tokens.PREFIX.match(text, position)) is not None:
            self.repairs["prefix"] = None
            position = prefix.end()
            char = text[position]
        if char in OPENING and not text.startswith("```", position):
            return self._read_string(position, array)
        if text.startswith("...", position) or char == "…":
            return self._ellipsis(position, char)
        if char == "(" and tokens.TUPLE.match(text, position):
            return self._open(char, position)
        return self._read_bare(position, array)

    def _ends_at_key(self, position: int) -> bool:
        """Ends an array before a key, or opens the object of the key; False if there is none."""
        key = tokens.KEY_IN_ARRAY.match(self.text, position)
        if key is None:
            return False
        last = self._container[-1]
        if last.__class__ is dict and key[1][1:-1] in last:
            self.repairs["opening"] = None
            self._open("{", position)
            return True
        if not self._stack or self._stack[-1].__class__ is not dict:
            return False
        self.repairs["mismatched"] = None
        self._close()
        self._comma = True
        return True

    def _read_container(self, char: str, position: int) -> int:
        if not self._comma and self._container.__class__ is list and self._container:
            self.repairs["missing_comma"] = None
            self._comma = True
        depth = len(self._stack) + 1
        found = self.strict.read(position, depth)
        repairs: dict[str, None] = {}
        if found is None and (uniform := self.strict.read_uniform(position, depth)) is not None:
            *found, repairs = uniform
        if found is None or (
            self.text[found[1] : found[1] + 1] in _QUOTES
            and not self._ahead.after_value(found[1], len(self._kinds))
        ):
            return self._open(char, position)
        self._put(found[0])
        self.repairs.update(repairs)
        self.evidence = self.evidence or bool(found[0])
        self._comma = False
        return found[1]

    def _read_string(self, position: int, array: bool) -> int:
        found = ReadString(self._ahead, position, is_key=False)
        if found.stopped or (found.cut and not self.evidence and self.text[position] != '"'):
            # It is more likely an apostrophe in prose than a string.
            raise self._unreadable("a string without an end", position, found.end)
        value = found.value
        self.repairs.update(dict.fromkeys(found.repairs))
        if self._kinds[-1] == "(":
            joint = tokens.JOIN_NEXT
        elif array:
            joint = tokens.JOIN
        else:
            joint = tokens.JOIN_LINES
        while not found.cut and (join := joint.match(self.text, found.end)) is not None:
            self._ahead.spend(join.end())
            found = ReadString(self._ahead, join.end(), is_key=False)
            self.repairs["joined"] = None
            self.repairs.update(dict.fromkeys(found.repairs))
            value += found.value
        self._put(value)
        if found.cut:
            return self._finish_cut(len(self.text))
        if array:
            self.evidence = True
        return found.end

    def _read_bare(self, position: int, array: bool) -> int:
        text = self.text
        self._ahead.spend(position)
        if (atom := tokens.ATOM.match(text, position)) is not None:
            return self._put_text(atom[1], position, end=atom.end(), array=array)
        if not array and (grouped := tokens.GROUPED.match(text, position)) is not None:
            self.repairs["number"] = None
            self._put(read_number(grouped[0]))
            return grouped.end()
        match = (tokens.ITEM_TOKEN if array else tokens.MEMBER_TOKEN).match(text, position)
        if match is not None and self._put_token(match[1]):
            return match.end()
        open_text = tokens.OPEN_ITEM if array and self.bare else tokens.OPEN_TEXT
        match = open_text.match(text, position)
        if match is not None and self._ahead.after_value(match.end(), len(self._kinds)):
            value, repairs = decode(match[0][:-1])
            self.repairs.update({"opening_quote": None, **repairs})
            self._put(value)
            return match.end()
        match = (tokens.BARE_ITEM if array else tokens.BARE_MEMBER).match(text, position)
        if match is None:
            return self._garbage(position, "a value")
        written = match[0]
        for mark in ("//", "/*", "#"):
            if mark in written and (at := written.find(mark)) > 0 and written[at - 1] in " \t":
                written = written[:at]
        end = position + len(written)
        written = written.rstrip(tokens.BLANKS).rstrip(";")
        if end >= len(text) and written not in tokens.WHOLE_WORDS:
            # It may be incomplete: 13 may be 137. (Of a string the beginning is kept.)
            self.repairs["cut_value"] = None
            return self._finish_cut(end)
        if self._put_token(written):
            return end
        if written.endswith('"'):
            self.repairs["opening_quote"] = None
            self._put(written[:-1])
            return end
        return self._put_text(written, position, end=end, array=array)

    def _put_text(self, written: str, position: int, end: int, array: bool) -> int:
        if array and not self._container and self._on_new_line(position):
            lines = tokens.LINES.match(self.text, position)
            if lines is not None:
                self._ahead.spend(position, (lines.end() - position) >> 6)
                self._lines_end = lines.end()
        if array and position >= self._lines_end:
            is_open = self.text[end : end + 1] not in (",", "]")
            if self.evidence and is_open and self._on_new_line(position):
                return self._garbage(position, "a value")
            if not self._comma:
                return self._garbage(position, "a comma or a closing bracket")
        self._put(written)
        self.bare = True
        self.repairs["unquoted_text"] = None
        return end

    def _punctuation(self, char: str, position: int) -> int:
        plain = char.translate(tokens.WIDE)
        if plain != char:
            self.repairs["separator"] = None
        if plain in ",;":
            if plain == ";":
                self.repairs["separator"] = None
            if self._key is not None:
                self._drop_key()
            elif self._comma:
                self.repairs["extra_comma"] = None
            self._comma = True
            return position + 1
        if self._key is not None:
            self._drop_key()
        elif self._comma and self._container:
            # A comma before the closing bracket makes a tuple of one item.
            is_tuple = plain == ")" and self._kinds[-1] == "(" and len(self._container) == 1
            if not is_tuple:
                self.repairs["trailing_comma"] = None
        if plain == CLOSERS[self._kinds[-1]]:
            return self._closed(position)
        if not self.evidence:
            reason = f"{CLOSERS[self._kinds[-1]]} was expected"
            raise self._unreadable(reason, position, position + 1)
        return self._mismatched(plain, position)

    def _closed(self, position: int) -> int:
        if self._kinds[-1] == "(" and len(self._container) == 1 and not self._comma:
            # Parentheses around one value are not a tuple.
            group = self._container
            parent = self._stack[-1]
            place = len(parent) - 1
            if parent.__class__ is dict:
                place = next(reversed(parent))
            self._kinds[-1] = "["
            self._close()
            if parent[place] is group:
                parent[place] = group[0]
            self.repairs["parentheses"] = None
            return position + 1
        is_last = self._kinds == ["{"] and self.evidence and not ends_block(self.text, position + 1)
        if is_last and self._ahead.unmatched(position + 1):
            # Members follow: this bracket is one too many.
            self.repairs["surplus"] = None
        else:
            self._close()
        return position + 1

    def _mismatched(self, char: str, position: int) -> int:
        """A bracket of the wrong kind: it closes an outer container too, or it is a slip, or one
        too many.

        What follows decides, and where that leaves a choice, the brackets that are still to come.
        """
        level = len(self._kinds)
        ahead = self._ahead
        outer = level - (ahead.closed_by(char, level) or 1)
        choices = list(dict.fromkeys((outer, level - 1, level)))
        fitting = [left for left in choices if ahead.after_value(position + 1, left)]
        if len(fitting) > 1:
            unmatched = ahead.unmatched(position + 1)
            fitting.sort(key=lambda left: left != unmatched)
        left = fitting[0] if fitting else outer
        self.repairs["surplus" if left == level else "mismatched"] = None
        for _ in range(level - left):
            self._close()
        return position + 1

    def _ellipsis(self, position: int, char: str) -> int:
        self.repairs["ellipsis"] = None
        if self._key is not None:
            self._drop_key()
        position += 1 if char == "…" else 3
        remark = tokens.REMARK.match(self.text, position)
        after = self._skip(remark.end() if remark is not None else position)
        if after < len(self.text) and self.text[after] == ",":
            after += 1
        self._comma = True
        if after < len(self.text) and self.text[after] in "]}":
            self._comma = False
        return after

    def _garbage(self, position: int, expected: str) -> int:
        """Ends a block that was never closed. Raises: Unreadable, if it is not JSON."""
        boundary = tokens.BOUNDARY.match(self.text, position)
        if self.evidence and (boundary is not None or self._on_new_line(position)):
            if self._key is not None:
                self._drop_key()
            self.repairs["unclosed"] = None
            self._container = None
            return position
        if boundary is not None:
            raise self._unreadable("the block has no end", position, position)
        if self.evidence:
            resume = tokens.skip_balanced(self.text, self.start)
        else:
            resume = position
        is_outer = not self._stack and self._kinds[0] == "{" and resume >= len(self.text)
        if is_outer and (prose := tokens.ABANDONED.match(self.text, position)) is not None:
            self._ahead.spend(position, (len(self.text) - position) >> 6)
            resume = prose.end()
        raise self._unreadable(f"{expected} was expected", position, resume)

    def _unreadable(self, reason: str, at: int, resume: int) -> Unreadable:
        return Unreadable(reason, at, resume=resume, committed=self.evidence)

    def _finish_cut(self, position: int) -> int:
        self._key = None
        self.cut = True
        if "cut_value" not in self.repairs:
            self.repairs["cut"] = None
        self._container = None
        return position

    # The value so far

    def _take_key(self, key: str) -> None:
        if not self._comma and self._container:
            self.repairs["missing_comma"] = None
        if key in self._container:
            self.repairs["duplicate"] = None
        self._key = key

    def _drop_key(self) -> None:
        self.repairs["no_value"] = None
        self._key = None

    def _put_token(self, written: str) -> bool:
        """Puts a literal or a number in one of its notations; False if `written` is neither."""
        token = tokens.read_token(written)
        if token is None:
            return False
        self._put(token[0])
        if token[1]:
            self.repairs[token[1]] = None
        return True

    def _put_number(self, digits: str, *, is_whole: bool) -> None:
        if is_whole and len(digits) <= _MAX_DIGITS:
            self._put(int(digits))
            return
        if not is_whole and isfinite(float(digits)):
            self._put(float(digits))
            return
        self.repairs["huge_number"] = None
        self._put(digits)

    def _put(self, value: Any) -> None:
        container = self._container
        if container.__class__ is list:
            if not self._comma and container:
                self.repairs["missing_comma"] = None
            container.append(value)
        else:
            container[self._key] = value
            self._key = None
        self._comma = False

    def _open(self, char: str, position: int) -> int:
        kind = char
        opening = tokens.SET.match(self.text, position) if char == "{" else None
        # A set that stands alone is mathematics, unless it has several texts in quotes.
        if opening is not None and (
            self._container is not None
            or ("," in opening[0] and opening[0].lstrip("{ \t\r\n")[:1] in _QUOTES)
        ):
            kind = "set"
            self.repairs["tuple"] = None
        value: Any = {} if kind == "{" else []
        if self._container is None:
            self.value = value
        else:
            if len(self._stack) + 1 >= MAX_DEPTH:
                end = tokens.skip_balanced(self.text, self.start)
                raise Unreadable(
                    f"nested deeper than {MAX_DEPTH}", position, resume=end, committed=True
                )
            parent = self._container
            self._put(value)
            self._stack.append(parent)
        self._kinds.append(kind)
        self._container = value
        self._key = None
        self._comma = True
        return position + 1

    def _close(self) -> None:
        if self._kinds.pop() == "(":
            self.repairs["tuple"] = None
        self._container = self._stack.pop() if self._stack else None
        self._key = None
        self._comma = False
