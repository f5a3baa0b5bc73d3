"""Rows from tables: CSV, TSV, Parquet files and pandas DataFrames.

Rows from CSV and TSV files: a header, then one row in each record; every value is text.
Fields may be quoted with `"`; a quote inside is doubled, and a quoted field may span lines: RFC
4180.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from evaluator.batch.rows.json_values import RowError, Rows, read_objects
from evaluator.batch.rows.text_lines import MAX_ROW_BYTES, nul_character, read_lines
from evaluator.files.libraries import import_extra


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
