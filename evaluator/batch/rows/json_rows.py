"""Rows from JSON files: one object on each line, or one array of objects. Only standard JSON is
accepted.
"""

from __future__ import annotations

import codecs
import json
import math
import re
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, cast

from evaluator.batch.rows.json_values import RowError, Rows
from evaluator.batch.rows.text_lines import (
    MAX_ROW_BYTES,
    not_utf8,
    nul_character,
    open_bytes,
    read_bytes,
    read_lines,
)
from evaluator.errors.messages import MAX_DIGITS, json_problem, shortened
from evaluator.language.types import describe
from evaluator.output.strict import read_strict

_CHUNK = 1 << 18
_SPACE = re.compile(r"[ \t\r\n]*")
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|-?Infinity|NaN|-?\d[\d.eE+-]*')
# An error closer than this to the end of the piece may be a token that is not complete yet.
_LONGEST_TOKEN = 16


def read_jsonl(path: Path) -> Rows:
    """Each row with its line; blank lines are skipped. Raises: RowError, with line and column."""
    for number, line in read_lines(path):
        if line.isspace():
            continue
        try:
            row = read_strict(line)
        except (ValueError, RecursionError) as error:
            raise _broken(line.rstrip("\r\n"), path, line=number, column=0) from error
        if row.__class__ is not dict:
            if number == 1 and line[0] == "[":
                hint = "; name the file .json if it is one array of rows"
            else:
                hint = ""
            raise RowError(
                f"a row is an object, not {describe(row)}{hint}", source=str(path), line=number
            )
        yield number, row


def read_array(path: Path) -> Rows:
    """Each object of the array with the line where it begins, read piece by piece. Raises:
    RowError.
    """
    with open_bytes(path) as file:
        yield from _ArrayReader(path, file).rows()


def _broken(text: str, path: Path, line: int, column: int) -> RowError:
    """The error in a text that `read_strict` refused; the text begins at `line`, after `column`
    characters.
    """
    message, offset = _problem(text)
    if offset is None:
        return RowError(message, source=str(path), line=line)
    newlines = text.count("\n", 0, offset)
    if newlines:
        at = offset - text.rfind("\n", 0, offset)
    else:
        at = column + offset + 1
    if text[offset : offset + 1] == "\0":
        return nul_character(path, line + newlines, column=at)
    return RowError(message, source=str(path), line=line + newlines, column=at)


def _problem(text: str) -> tuple[str, int | None]:
    try:
        json.loads(text, object_pairs_hook=_distinct)
    except json.JSONDecodeError as error:
        found = text[error.pos :].rstrip()
        if found:
            what = f"found {shortened(found, 30)}"
        else:
            what = "the text ends there"
        return (
            f"broken JSON: {error.msg.removesuffix(' starting at').removesuffix(' at')} ({what})",
            error.pos,
        )
    except RecursionError:
        return "the JSON is nested too deeply", None
    except ValueError as error:
        return f"broken JSON: {json_problem(error)}", _long_integer(text)
    for token in _TOKEN.finditer(text):
        word = token[0]
        if word[0] != '"' and not math.isfinite(float(word)):
            if word[-1].isdigit():
                reason = "a number outside the range of a float"
            else:
                reason = "not JSON; write null"
            return f"{word} is {reason}", token.start()
    return "the JSON is nested too deeply", None


def _long_integer(text: str) -> int | None:
    """Where the first integer begins that Python does not read."""
    for token in _TOKEN.finditer(text):
        if len(token[0].lstrip("-")) > MAX_DIGITS and token[0].lstrip("-").isdigit():
            return token.start()
    return None


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for name, value in pairs:
        if name in row:
            raise ValueError(f"the name {shortened(name)} occurs twice in one object")
        row[name] = value
    return row


class _ArrayReader:
    """Reads an array of objects from a file; memory holds one piece and one row.

    `_at` is the position in `_text`, on `_line`, which began at `_begin` (negative: in an earlier
    piece).
    """

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path = path
        self._file = file
        self._decode = codecs.getincrementaldecoder("utf-8-sig")().decode
        self._scan = json.JSONDecoder().raw_decode
        self._text = ""
        self._at = 0
        self._line = 1
        self._begin = 0
        self._lines_read = 0
        self._is_end = False

    def rows(self) -> Rows:
        if self._next() != "[":
            if self._next() == "{":
                hint = "; name the file .jsonl if it has one row a line"
            else:
                hint = ""
            self._refuse(f"expected an array of objects{hint}")
        self._move(self._at + 1)
        if self._next() == "]":
            return self._finish()
        while True:
            self._next()
            line = self._line
            row = self._object()
            yield line, row
            if self._next() == "]":
                return self._finish()
            if self._next() != ",":
                self._refuse("broken JSON: expected a comma or the end of the array")
            self._move(self._at + 1)

    def _finish(self) -> None:
        self._move(self._at + 1)
        if self._next():
            self._refuse("broken JSON: unexpected text after the array")

    def _object(self) -> dict[str, Any]:
        while True:
            try:
                _, end = self._scan(self._text, self._at)
                break
            except json.JSONDecodeError as error:
                is_cut_off = (
                    error.msg.startswith("Unterminated")
                    or error.pos > len(self._text) - _LONGEST_TOKEN
                )
                if not (is_cut_off and self._fill()):
                    raise self._broken(self._text[self._at :]) from error
            except (ValueError, RecursionError) as error:
                raise self._broken(self._text[self._at :]) from error
        text = self._text[self._at : end]
        try:
            row = read_strict(text)
        except (ValueError, RecursionError) as error:
            raise self._broken(text) from error
        if row.__class__ is not dict:
            self._refuse(f"a row is an object, not {describe(row)}")
        self._move(end)
        return cast("dict[str, Any]", row)

    def _next(self) -> str:
        """The next character that is not white space; empty at the end."""
        while True:
            match = _SPACE.match(self._text, self._at)
            self._move(match.end() if match else self._at)
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._fill():
                return ""

    def _move(self, to: int) -> None:
        newlines = self._text.count("\n", self._at, to)
        if newlines:
            self._line += newlines
            self._begin = self._text.rfind("\n", self._at, to) + 1
        self._at = to

    def _fill(self) -> bool:
        """Reads a piece, at least as long as the rest of the last one; False at the end."""
        if self._is_end:
            return False
        left = len(self._text) - self._at
        if left > MAX_ROW_BYTES:
            self._refuse(f"the row is longer than {MAX_ROW_BYTES >> 20} MiB")
        data = read_bytes(
            self._file.read, self._path, line=self._lines_read, size=max(_CHUNK, left)
        )
        self._is_end = not data
        try:
            piece = self._decode(data, self._is_end)
        except UnicodeDecodeError as error:
            line = self._lines_read + error.object.count(b"\n", 0, error.start) + 1
            begin = error.object.rfind(b"\n", 0, error.start) + 1
            column = len(error.object[begin : error.start].decode(errors="replace")) + 1
            raise not_utf8(self._path, line, column=column, data=error.object) from error
        self._lines_read += piece.count("\n")
        self._text = self._text[self._at :] + piece
        self._begin = self._begin - self._at
        self._at = 0
        return not self._is_end or bool(piece)

    def _broken(self, text: str) -> RowError:
        return _broken(text, self._path, line=self._line, column=self._at - self._begin)

    def _refuse(self, message: str) -> NoReturn:
        if self._text[self._at : self._at + 1] == "\0":
            raise nul_character(self._path, self._line, column=self._at - self._begin + 1)
        raise RowError(
            message, source=str(self._path), line=self._line, column=self._at - self._begin + 1
        )
