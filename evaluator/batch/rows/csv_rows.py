"""Rows from CSV and TSV files: a header, then one row in each record; every value is text.

Fields may be quoted with `"`; a quote inside is doubled, and a quoted field may span lines: RFC
4180.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from evaluator.batch.rows.json_values import Rows
from evaluator.batch.rows.row_error import RowError
from evaluator.batch.rows.text_lines import MAX_ROW_BYTES, nul_character, read_lines


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
            raise _broken(path, line, reason=str(error)) from error
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


def _broken(path: Path, line: int, reason: str) -> RowError:
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
    message = f"{len(fields)} fields, but the header has {len(header)}; {hint}"
    return RowError(message, source=str(path), line=line)
