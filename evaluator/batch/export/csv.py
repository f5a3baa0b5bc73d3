"""Exports to CSV (RFC 4180): UTF-8, a header, CRLF after rows, quotes where a text needs them.

A text that a spreadsheet would run as a formula gets an apostrophe in front: one whose first
character, after white space and apostrophes, is one of = + - @ (and their full-width forms), a tab,
a carriage return or a line feed. A plain number such as -5 is unchanged. `unguarded` removes
exactly that apostrophe. Source: OWASP, "CSV Injection".
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from evaluator.batch.export.about import About
from evaluator.batch.export.output_path import output_file
from evaluator.batch.export.result_table import result_table
from evaluator.batch.records import SampleResult

_RISKY = re.compile(r"'*(?:[\t\r\n]|\s*[=+\-@＝＋－＠])")
_GUARDED = re.compile(r"'+(?:[\t\r\n]|\s*[=+\-@＝＋－＠])")
_NUMBER = re.compile(r"[+-]?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?", re.ASCII)


def write_csv(results: Iterable[SampleResult], about: About, path: Path) -> None:
    """One row for each result. A missing value and an empty text are both an empty cell."""
    with result_table(results) as table, output_file(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        writer = csv.writer(text)
        writer.writerow([guarded(name) for name in table.columns])
        for row in table.rows():
            writer.writerow([_cell(value) for value in row.values()])
        text.flush()
        text.detach()


def guarded(text: str) -> str:
    """`text` in a form that no spreadsheet takes for a formula."""
    if _RISKY.match(text) and not _NUMBER.fullmatch(text):
        return f"'{text}"
    return text


def unguarded(cell: str) -> str:
    """The original text of a guarded one."""
    if _GUARDED.match(cell):
        return cell[1:]
    return cell


def _cell(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            if value:
                return "true"
            return "false"
        case int() | float():
            return repr(value)
        case datetime():
            return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
        case _:
            # A NUL ends the cell for many readers.
            return guarded(str(value).replace("\0", "\ufffd"))
