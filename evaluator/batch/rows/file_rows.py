"""Rows from files (JSON, JSON Lines, CSV, TSV and Parquet) and from pandas DataFrames; fingerprints
of files.

Only standard JSON is accepted: one object on each line, or one array of objects. Text files are
UTF-8, optionally compressed with gzip.

CSV and TSV files have a header, then one row in each record; every value is text. Fields may be
quoted with `"`; a quote inside is doubled, and a quoted field may span lines: RFC 4180.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import hashlib
import json
import math
import os
import re
import stat
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, cast

from evaluator.batch.rows.object_rows import RowError, Rows, read_objects
from evaluator.errors.messages import MAX_DIGITS, amount, json_problem, shortened
from evaluator.files.open_below import hole_problem
from evaluator.files.project_code import import_extra
from evaluator.language.scopes import describe
from evaluator.output.strict import read_strict

MAX_ROW_BYTES = 64 * 1024 * 1024
"""The longest row that is read: anything longer is a file of another format."""

_BOM = b"\xef\xbb\xbf"
_PIECE = 1 << 20
_BROKEN = (OSError, EOFError, zlib.error)
"""What reading a file raises that cannot be read, or is not compressed as its name says."""


def check_file(path: Path) -> None:
    """Raises: RowError, unless `path` is a regular file that is not empty."""
    try:
        found = path.stat()
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    if stat.S_ISDIR(found.st_mode):
        raise RowError("is a folder; give a file in it", source=str(path))
    if not stat.S_ISREG(found.st_mode):
        raise RowError("is not a regular file; save the rows to one first", source=str(path))
    if (problem := hole_problem(found)) is not None:
        raise RowError(f"is not a file of rows: {problem}", source=str(path))
    if found.st_size == 0:
        raise RowError("the file is empty", source=str(path))


def open_bytes(path: Path) -> BinaryIO:
    """The file, decompressed where its name ends in .gz. Raises: RowError."""
    try:
        if path.suffix.lower() == ".gz":
            return cast(BinaryIO, gzip.open(path, "rb"))
        return path.open("rb")
    except OSError as error:
        raise _unreadable(path, error) from error


def read_bytes(read: Callable[[int], bytes], path: Path, line: int, size: int) -> bytes:
    """The next bytes by `read(size)`. Raises: RowError, after `line` lines."""
    try:
        return read(size)
    except _BROKEN as error:
        raise _unreadable(path, error, line=line + 1) from error


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Each line with its number from 1, including its line end. A byte order mark is removed.

    Lines end only with a line feed: other line ends of Python may occur inside JSON strings.

    Raises: RowError, for text that is not UTF-8, a line of more than MAX_ROW_BYTES, and a file that
    cannot be read.
    """
    number = 0
    with open_bytes(path) as file:
        lines = iter(partial(file.readline, MAX_ROW_BYTES + 1), b"")
        try:
            for line in lines:
                number += 1
                if len(line) > MAX_ROW_BYTES:
                    message = (
                        f"the line is longer than {MAX_ROW_BYTES >> 20} MiB; put each row on one "
                        "line"
                    )
                    raise RowError(message, source=str(path), line=number)
                if number == 1:
                    line = line.removeprefix(_BOM)
                try:
                    text = line.decode()
                except UnicodeDecodeError as error:
                    column = len(line[: error.start].decode()) + 1
                    raise not_utf8(path, number, column=column, data=line) from error
                yield number, text
        except _BROKEN as error:
            raise _unreadable(path, error, line=number + 1) from error


def not_utf8(path: Path, line: int, column: int, data: bytes) -> RowError:
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        guess = " (UTF-16?)"
    else:
        guess = ""
    return RowError(
        f"the text is not UTF-8{guess}; save it as UTF-8",
        source=str(path),
        line=line,
        column=column,
    )


def nul_character(path: Path, line: int, column: int) -> RowError:
    message = "a NUL character: the file is not text, or not UTF-8 (UTF-16?); save it as UTF-8"
    return RowError(message, source=str(path), line=line, column=column)


def fingerprint(path: Path, *, count_lines: bool) -> tuple[int, str, int | None]:
    """The size in bytes, the SHA-256 and, with `count_lines`, the number of nonblank lines, in one
    pass.

    Raises: RowError, if the file cannot be read.
    """
    digest = hashlib.sha256()
    lines = 0
    has_content = False
    try:
        with path.open("rb") as file:
            if not count_lines:
                size = os.fstat(file.fileno()).st_size
                return size, hashlib.file_digest(file, "sha256").hexdigest(), None
            while piece := file.read(_PIECE):
                digest.update(piece)
                # The first part ends the line that the piece before began.
                *ended, last = piece.split(b"\n")
                lines += len(ended) - ended.count(b"") - sum(map(bytes.isspace, ended))
                if ended:
                    lines += has_content and not ended[0].strip()
                    has_content = False
                has_content = has_content or bool(last.strip())
            return file.tell(), digest.hexdigest(), lines + has_content
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception, line: int | None = None) -> RowError:
    message = f"cannot be read: {getattr(error, 'strerror', None) or error}"
    if line is not None and not getattr(error, "strerror", None):
        message = f"the compressed file is broken or incomplete: {error}"
    return RowError(message, source=str(path), line=line)


_CHUNK = 1 << 18
_SPACE = re.compile(r"[ \t\r\n]*")
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|-?Infinity|NaN|-?\d[\d.eE+-]*')
# An error closer than this to the end of the piece may be a token that is not complete yet.
_LONGEST_TOKEN = 16


def read_jsonl(path: Path) -> Rows:
    """Each row with its line; blank lines are skipped. Raises: RowError, with line and column."""
    for number, line in read_lines(path):
        try:
            row = read_strict(line)
        except (ValueError, RecursionError) as error:
            if line.isspace():
                continue
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


def read_csv(path: Path, delimiter: str) -> Rows:
    """Each row with the line where it begins; blank lines are skipped.

    Raises: RowError: an empty or duplicate name in the header, a different number of fields than in
    the header, an unclosed quote, a NUL.
    """
    # One limit for the whole process, by default 128 KiB, which is less than a document may have.
    csv.field_size_limit(max(csv.field_size_limit(), MAX_ROW_BYTES))
    reader = csv.reader(_without_nul(path), delimiter=delimiter, strict=True)
    header: list[str] | None = None
    while True:
        line = reader.line_num + 1
        try:
            fields = next(reader)
        except StopIteration:
            break
        except csv.Error as error:
            raise _broken_table(path, line, reason=str(error)) from error
        if not fields:
            continue
        if header is None:
            header = _checked(fields, path, line=line, delimiter=delimiter)
            continue
        if len(fields) != len(header):
            raise _uneven(path, line, fields=fields, header=header)
        yield line, dict(zip(header, fields, strict=True))
    if header is None:
        raise RowError("the file has no header", source=str(path))


def _without_nul(path: Path) -> Iterator[str]:
    for number, line in read_lines(path):
        if "\0" in line:
            raise nul_character(path, number, column=line.index("\0") + 1)
        yield line


def _broken_table(path: Path, line: int, reason: str) -> RowError:
    if "unexpected end of data" in reason:
        reason = 'a quote (") is opened in this row and never closed'
    elif "expected after" in reason:
        reason = (
            'a closing quote (") is not followed by a delimiter; double a quote that is part '
            "of the text"
        )
    elif "new-line character" in reason:
        reason = "a carriage return outside quotes; end lines with a line feed"
    return RowError(reason, source=str(path), line=line)


def _checked(header: list[str], path: Path, line: int, delimiter: str) -> list[str]:
    seen: dict[str, int] = {}
    for number, name in enumerate(header, 1):
        if not name.strip():
            raise RowError(f"field {number} of the header has no name", source=str(path), line=line)
        if name in seen:
            message = f"the header names {name!r} twice, in fields {seen[name]} and {number}"
            raise RowError(message, source=str(path), line=line)
        seen[name] = number
    other = next(
        (sign for sign in (",", ";", "\t") if sign != delimiter and sign in header[0]), None
    )
    if len(header) == 1 and other is not None:
        message = (
            f"the fields seem to be separated by {other!r}; save the file with "
            f"{delimiter!r} as separator"
        )
        raise RowError(message, source=str(path), line=line)
    return header


def _uneven(path: Path, line: int, fields: list[str], header: list[str]) -> RowError:
    more = len(fields) > len(header)
    if more:
        hint = "quote a field that contains a delimiter"
    else:
        hint = f"{header[len(fields)]!r} is missing"
    message = f"{amount(len(fields), 'field')}, but the header has {len(header)}; {hint}"
    return RowError(message, source=str(path), line=line)


_BLOCK = 512


def read_parquet(path: Path) -> Rows:
    """Each row, read block by block. Raises: RowError; MissingExtra, without pyarrow."""
    with _parquet(path) as file:
        _check_names(str(path), file.schema_arrow.names)
        place = 0
        blocks = iter(file.iter_batches(batch_size=_BLOCK))
        while True:
            try:
                block = next(blocks, None)
                records: list[Any]
                if block is None:
                    records = []
                else:
                    records = block.to_pylist()
            except (OSError, ValueError) as error:
                raise RowError(
                    f"the Parquet file is broken: {error}", source=str(path), place=place
                ) from error
            if block is None:
                return
            yield from read_objects(records, str(path), start=place)
            place += len(records)


def count_parquet(path: Path) -> int:
    """The number of rows according to the Parquet file. Raises: as `read_parquet`."""
    with _parquet(path) as file:
        return file.metadata.num_rows


def _parquet(path: Path) -> Any:
    module = import_extra("pyarrow.parquet", "parquet")
    try:
        return module.ParquetFile(path)
    except (OSError, ValueError) as error:
        raise RowError(f"cannot be read as Parquet: {error}", source=str(path)) from error


def is_polars(source: Any) -> bool:
    return hasattr(source, "iter_rows") and hasattr(source, "columns")


def is_pandas(source: Any) -> bool:
    return hasattr(source, "iloc") and hasattr(source, "to_dict") and hasattr(source, "columns")


def read_pandas(frame: Any, source: str) -> Rows:
    """Each row without its index; NaN, which marks a missing value in pandas, becomes null. Raises:
    RowError.
    """
    _check_names(source, list(frame.columns))
    for start in range(0, len(frame), _BLOCK):
        records: list[dict[Any, Any]] = frame.iloc[start : start + _BLOCK].to_dict("records")
        for record in records:
            for name, value in record.items():
                if isinstance(value, float) and value != value:
                    record[name] = None
        yield from read_objects(records, source, start=start)


def _check_names(source: str, names: list[Any]) -> None:
    for name in names:
        if not isinstance(name, str) or not name.strip():
            raise RowError(f"a column is named {name!r}, expected text", source=source)
        if names.count(name) > 1:
            raise RowError(f"two columns are named {name!r}", source=source)
