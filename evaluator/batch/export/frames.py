"""Exports of results as tables and lines: CSV, JSON Lines, DataFrames, Parquet.

Exports to CSV (RFC 4180): UTF-8, a header, CRLF after rows, quotes where a text needs them.
A text that a spreadsheet would run as a formula gets an apostrophe in front: one whose first
character, after white space and apostrophes, is one of = + - @ (and their full-width forms), a tab,
a carriage return or a line feed. A plain number such as -5 is unchanged. `unguarded` removes
exactly that apostrophe. Source: OWASP, "CSV Injection".

values are null.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

from evaluator.batch.export.output_path import About, output_file
from evaluator.batch.export.result_table import result_table, to_columns
from evaluator.batch.records import SampleResult
from evaluator.files.libraries import import_extra

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


def write_jsonl(results: Iterable[SampleResult], about: About, path: Path) -> None:
    """Numbers that JSON does not have (NaN, infinities) are written as in Python."""
    with output_file(path) as file:
        for result in results:
            file.write(json.dumps(result.to_dict(), separators=(",", ":")).encode() + b"\n")


ROWS_A_GROUP = 1_024
MANIFEST_KEY = "evaluator.manifest"
_PANDAS = {
    "bool": "boolean",
    "int": "Int64",
    "float": "Float64",
    "text": "string",
    "time": "datetime64[us, UTC]",
}


def to_pandas(results: Iterable[SampleResult]) -> Any:
    """A `pandas.DataFrame` with one row for each result and pandas' nullable types. Raises:
    MissingExtra.
    """
    pandas = import_extra("pandas", "pandas")
    kinds, values = to_columns(results)
    return pandas.DataFrame(
        {name: pandas.Series(column, dtype=_PANDAS[kinds[name]]) for name, column in values.items()}
    )


def to_polars(results: Iterable[SampleResult]) -> Any:
    """A `polars.DataFrame` with one row for each result. Raises: MissingExtra."""
    polars = import_extra("polars", "polars")
    types = {
        "bool": polars.Boolean,
        "int": polars.Int64,
        "float": polars.Float64,
        "text": polars.String,
        "time": polars.Datetime("us", "UTC"),
    }
    kinds, values = to_columns(results)
    return polars.DataFrame(
        values, schema={name: types[kind] for name, kind in kinds.items()}, strict=True
    )


def write_parquet(results: Iterable[SampleResult], about: About, path: Path) -> None:
    """Row groups of 1,024 rows, at most two of them in memory; the manifest is in the file's
    metadata.

    Raises: MissingExtra, without pyarrow.
    """
    arrow = import_extra("pyarrow", "parquet")
    parquet = import_extra("pyarrow.parquet", "parquet")
    types = {
        "bool": arrow.bool_(),
        "int": arrow.int64(),
        "float": arrow.float64(),
        "text": arrow.string(),
        "time": arrow.timestamp("us", tz="UTC"),
    }
    with result_table(results) as table, output_file(path) as file:
        schema = arrow.schema(
            [arrow.field(name, types[kind]) for name, kind in table.columns.items()],
            metadata={MANIFEST_KEY: json.dumps(about.manifest)},
        )
        with parquet.ParquetWriter(file, schema, compression="zstd") as writer:
            rows = table.rows()
            while group := list(islice(rows, ROWS_A_GROUP)):
                writer.write_table(arrow.Table.from_pylist(group, schema=schema))
