"""Reads one JSON block leniently: iteratively, in one pass, and never backwards.

It stops early on what is not JSON (`[see below]`, `{x | x > 0}`). After a quoted key, or a list of quoted texts or
containers, a block is taken for JSON and read to its end.
"""

from __future__ import annotations

import json
import re
from typing import Any

from evaluator.output.scalars import read_number
from evaluator.output.strict import MAX_DEPTH, StrictScanner
from evaluator.output.strings import CLOSING_TAG, OPENING, WS, ReadString

_WS = r"[ \t\r\n]*+"
_KEY = re.compile(rf'{_WS}"([^"\\\x00-\x1f]*+)"{_WS}:')
_SCALAR = (
    r'"([^"\\\x00-\x1f]*+)"(?={ws}(?:[\]}}]|,{ws}{after}))'
    r"|(-?(?:0|[1-9]\d*+)(\.\d++)?([eE][+-]?\d++)?)(?=[ \t\r\n\]}}]|,{grouped})"
    r"|(true|false|null)(?=[ \t\r\n,\]}}])"
)
_ITEM = re.compile(_WS + "(?:" + _SCALAR.format(ws=_WS, after=r'["\[{\]}\d-]', grouped="") + rf"){_WS}(,)?", re.A)
_MEMBER = re.compile(_WS + "(?:" + _SCALAR.format(ws=_WS, after="[\"'}]", grouped=r"(?!\d{3})") + rf"){_WS}(,)?", re.A)
_RUN = re.compile(rf"(?:{_WS}-?(?:0|[1-9]\d{{0,17}}+)(?:\.\d{{1,20}}+)?{_WS},){{16,}}+", re.A)
_SPACE = re.compile(rf"{WS}*+")
_COMMENT = re.compile(r"//[^\n]*+|/\*[\s\S]*?(?:\*/|\Z)|#[^\n]*+")
_BARE_KEY = re.compile(rf"([A-Za-z_$\d\u00aa-\uffdc][\w$.-]{{0,63}}+){WS}*+(?::|=>|=(?!=))")
_COLON = re.compile(r":=|:|=>|=|：")
_BARE_MEMBER = re.compile(r"[^,;}\]\n\"{\[<`]{1,400}+(?=[,;}\]\n]|\Z)")
_BARE_ITEM = re.compile(r"[^,}\]\n\"{\[:<`]{1,400}+(?=[,}\]\n]|\Z)")
_GROUPED = re.compile(r"-?\d{1,3}(?:,\d{3})++(?:\.\d+)?+(?=[ \t\r\n]*+(?:\}|,[ \t\r\n]*+[\"'}]))", re.A)
_BOUNDARY = re.compile(rf"```|{CLOSING_TAG}", re.I)
_BRACKET = re.compile(r"[\[\]{}]|\"(?:[^\"\\\n]++|\\.)*+\"?")
_LITERALS: dict[str, tuple[Any, str]] = {
    "true": (True, ""), "false": (False, ""), "null": (None, ""),
    "True": (True, "literal"), "False": (False, "literal"), "None": (None, "literal"),
    "TRUE": (True, "literal"), "FALSE": (False, "literal"), "NULL": (None, "literal"),
    "undefined": (None, "literal"),
    "NaN": (None, "nan"), "nan": (None, "nan"), "Infinity": (None, "nan"), "-Infinity": (None, "nan"),
    "inf": (None, "nan"), "-inf": (None, "nan"), "+Infinity": (None, "nan"), "-NaN": (None, "nan"),
}  # fmt: skip
_MAX_DIGITS = 4000


class Unreadable(Exception):
    """A block is not JSON. `resume` is the position from which to look for the next; `reason` is for a message."""

    def __init__(self, reason: str, at: int, resume: int, committed: bool) -> None:
        super().__init__(reason)
        self.reason, self.at, self.resume, self.committed = reason, at, resume, committed


class BlockReader:
    """Reads the block that begins at `start`. `read` sets `value`, `end`, `repairs`, `cut`, `evidence`, `bare`."""

    __slots__ = (
        "_arrays", "_comma", "_container", "_key", "_objects", "_stack",
        "bare", "cut", "end", "evidence", "repairs", "start", "strict", "text", "value",
    )  # fmt: skip

    def __init__(self, text: str, start: int, strict: StrictScanner) -> None:
        self.text, self.start, self.strict = text, start, strict
        self.repairs: dict[str, None] = {}
        self.cut = self.evidence = self.bare = False
        self.end = start
        self.value: Any = None
        self._stack: list[Any] = []
        self._key: str | None = None
        self._comma = True
        self._arrays = self._objects = 0
        self._container: Any = None

    def read(self) -> None:
        """Read the block. Raises: Unreadable."""
        position = self._open(self.text[self.start], self.start)
        while self._container is not None:
            if self._container.__class__ is dict and self._key is None:
                position = self._read_key(position)
            else:
                position = self._read_value(position)
        self.end = position

    # Tokens

    def _slowly(self, position: int) -> int:
        """Skips to the next token where the quick patterns did not match; such steps are counted."""
        self.strict.steps -= 1
        if self.strict.steps < 0:
            raise Unreadable("the text needs too many repairs", position, len(self.text), True)
        return self._skip(position)

    def _skip(self, position: int) -> int:
        """The position after white space and comments."""
        text = self.text
        while True:
            match = _SPACE.match(text, position)
            position = match.end() if match else position
            if position >= len(text) or text[position] not in "/#":
                return position
            comment = _COMMENT.match(text, position)
            if comment is None:
                return position
            self.repairs["comment"] = None
            position = comment.end()

    def _read_key(self, position: int) -> int:
        text = self.text
        match = _KEY.match(text, position)
        if match is not None:
            self._take_key(match[1])
            return match.end()
        position = self._slowly(position)
        if position >= len(text):
            return self._finish_cut(position)
        char = text[position]
        if char in "}],;":
            return self._punctuation(char, position)
        if char in OPENING and not text.startswith("```", position):
            return self._read_quoted_key(position)
        match = _BARE_KEY.match(text, position)
        if match is not None and (self._comma or self._on_new_line(position)):
            self.repairs["unquoted_key"] = None
            if text[match.end() - 1] != ":":
                self.repairs["separator"] = None
            evident = self.evidence
            self._take_key(match[1])
            self.evidence = evident
            return match.end()
        if text.startswith("...", position) or char == "…":
            return self._ellipsis(position, char)
        return self._garbage(position, "a key in quotes")

    def _on_new_line(self, position: int) -> bool:
        """Whether there is only white space between `position` and the line break before it."""
        text, position = self.text, position - 1
        while position >= 0 and text[position] in " \t\r":
            position -= 1
        return position >= 0 and text[position] == "\n"

    def _take_key(self, key: str) -> None:
        if not self._comma and self._container:
            self.repairs["missing_comma"] = None
        if key in self._container:
            self.repairs["duplicate"] = None
        self._key, self.evidence = key, True

    def _read_quoted_key(self, position: int) -> int:
        found = ReadString(self.text, position, "key")
        if found.cut or found.stopped:
            if found.stopped or not (self.evidence or self._stack):
                raise Unreadable("a key without an end", position, found.end, self.evidence)
            return self._finish_cut(len(self.text))
        after = self._skip(found.end)
        colon = _COLON.match(self.text, after)
        if colon is not None:
            self.repairs.update(dict.fromkeys(found.repairs))
            if colon[0] != ":":
                self.repairs["separator"] = None
            self._take_key(found.value)
            return colon.end()
        if after >= len(self.text) and (self.evidence or self._stack):
            return self._finish_cut(after)
        if not self.evidence:
            raise Unreadable("a colon was expected after the key", after, after, False)
        self.repairs["no_value"] = None
        self._comma = False
        return after

    def _read_value(self, position: int) -> int:
        text = self.text
        array = self._container.__class__ is list
        if array and not self._comma:
            after = self._slowly(position)
            if after < len(text) and text[after] in "}],;":
                return self._punctuation(text[after], after)
        match = (_ITEM if array else _MEMBER).match(text, position)
        if match is not None:
            string, number, fraction, exponent, word, comma = match.groups()
            if comma is not None and array:
                run = _RUN.match(text, position)
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
                self._put(_LITERALS[word][0])
            else:
                self._put(self._number(number, fraction or exponent))
            self._comma = comma is not None
            return match.end()
        position = self._slowly(position)
        if position >= len(text):
            return self._finish_cut(position)
        char = text[position]
        if char in "[{":
            return self._read_container(char, position)
        if char in "}],;":
            return self._punctuation(char, position)
        if char in OPENING and not text.startswith("```", position):
            return self._read_string(position, array)
        if text.startswith("...", position) or char == "…":
            return self._ellipsis(position, char)
        return self._read_bare(position, array)

    def _read_container(self, char: str, position: int) -> int:
        if not self._comma and self._container.__class__ is list and self._container:
            self.repairs["missing_comma"] = None
            self._comma = True
        found = self.strict.read(position, len(self._stack) + 1)
        if found is None:
            return self._open(char, position)
        self._put(found[0])
        self.evidence = self.evidence or bool(found[0])
        self._comma = False
        return found[1]

    def _read_string(self, position: int, array: bool) -> int:
        found = ReadString(self.text, position, "array" if array else "object")
        if found.stopped or (found.cut and not self.evidence and self.text[position] != '"'):
            # It is more likely an apostrophe in prose than a string.
            raise Unreadable("a string without an end", position, found.end, self.evidence)
        self.repairs.update(dict.fromkeys(found.repairs))
        if found.cut:
            self._put(found.value)
            return self._finish_cut(len(self.text))
        self._put(found.value)
        if array:
            self.evidence = True
        return found.end

    def _read_bare(self, position: int, array: bool) -> int:
        text = self.text
        match = None if array else _GROUPED.match(text, position)
        if match is not None:
            self.repairs["number"] = None
            self._put(read_number(match[0]))
            return match.end()
        match = (_BARE_ITEM if array else _BARE_MEMBER).match(text, position)
        if match is None:
            return self._garbage(position, "a value")
        written = match[0]
        for mark in ("//", "/*", "#"):
            if mark in written and (at := written.find(mark)) > 0 and written[at - 1] in " \t":
                written = written[:at]
        end = position + len(written)
        written = written.rstrip().rstrip(";")
        known = _LITERALS.get(written)
        if end >= len(text) and known is None:
            # It may be incomplete: 13 may be 137. (Of a string the beginning is kept.)
            self.repairs["cut_value"] = None
            return self._finish_cut(end)
        if known is not None:
            self._put(known[0])
            if known[1]:
                self.repairs[known[1]] = None
            return end
        return self._put_written(written, position, end, array)

    def _put_written(self, written: str, position: int, end: int, array: bool) -> int:
        number = read_number(written) if written[0] not in "$€£¥₹0" or written.startswith(("0.", "0_")) else None
        if number is not None and "," not in written and not written.endswith(("$", "€", "£", "¥", "₹")):
            self._put(number)
            if not re.fullmatch(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", written, re.A):
                self.repairs["number"] = None
            return end
        if array and self.evidence and self._on_new_line(position) and self.text[end : end + 1] not in (",", "]"):
            return self._garbage(position, "a value")
        if array and not self._comma:
            return self._garbage(position, "a comma or a closing bracket")
        self._put(written)
        self.bare = True
        self.repairs["unquoted_text"] = None
        return end

    # Values

    def _number(self, digits: str, real: str | None) -> Any:
        if real is None:
            if len(digits) <= _MAX_DIGITS:
                return int(digits)
        else:
            number = float(digits)
            if number - number == 0.0:
                return number
        self.repairs["huge_number"] = None
        return digits

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
        value: Any = [] if char == "[" else {}
        if self._container is None:
            self.value = value
        else:
            if len(self._stack) + 1 >= MAX_DEPTH:
                end = skip_balanced(self.text, self.start)
                raise Unreadable(f"nested deeper than {MAX_DEPTH}", position, end, True)
            parent = self._container
            self._put(value)
            self._stack.append(parent)
        if char == "[":
            self._arrays += 1
        else:
            self._objects += 1
        self._container, self._key, self._comma = value, None, True
        return position + 1

    def _close(self) -> None:
        if self._container.__class__ is list:
            self._arrays -= 1
        else:
            self._objects -= 1
        self._container = self._stack.pop() if self._stack else None
        self._key, self._comma = None, False

    def _punctuation(self, char: str, position: int) -> int:
        if char in ",;":
            if char == ";":
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
            self.repairs["trailing_comma"] = None
        wanted = "]" if self._container.__class__ is list else "}"
        if char != wanted:
            self.repairs["mismatched"] = None
            if not self.evidence:
                raise Unreadable(f"{wanted} was expected", position, position + 1, False)
            if (self._arrays if char == "]" else self._objects) > 0:
                self._close()
                return position
        self._close()
        return position + 1

    def _drop_key(self) -> None:
        self.repairs["no_value"] = None
        self._key = None

    def _ellipsis(self, position: int, char: str) -> int:
        self.repairs["ellipsis"] = None
        if self._key is not None:
            self._drop_key()
        after = self._skip(position + (1 if char == "…" else 3))
        if after < len(self.text) and self.text[after] == ",":
            after += 1
        self._comma = True
        if after < len(self.text) and self.text[after] in "]}":
            self._comma = False
        return after

    def _garbage(self, position: int, expected: str) -> int:
        """Handles what cannot be JSON: the end of a block that was never closed, or a block that is not JSON."""
        boundary = _BOUNDARY.match(self.text, position)
        if self.evidence and (boundary is not None or self._on_new_line(position)):
            if self._key is not None:
                self._drop_key()
            self.repairs["unclosed"] = None
            self._container = None
            return position
        if boundary is not None:
            raise Unreadable("the block has no end", position, position, False)
        resume = skip_balanced(self.text, self.start) if self.evidence else position
        raise Unreadable(f"{expected} was expected", position, resume, self.evidence)

    def _finish_cut(self, position: int) -> int:
        if self._key is not None:
            self._key = None
        self.cut = True
        if "cut_value" not in self.repairs:
            self.repairs["cut"] = None
        self._container = None
        return position


def skip_balanced(text: str, start: int) -> int:
    """The end of the block that begins at `start`, by its brackets outside quotes; else the end of the text."""
    depth = 0
    for match in _BRACKET.finditer(text, start):
        char = match[0]
        if char in "[{":
            depth += 1
        elif char in "]}":
            depth -= 1
            if depth <= 0:
                return match.end()
    return len(text)
