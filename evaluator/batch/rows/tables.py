"""Rows of tables: Parquet files, and frames of pandas and Polars, which are told by what they can do."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from evaluator.batch.rows.problems import RowError
from evaluator.batch.rows.values import Rows, json_row
from evaluator.errors import MissingExtra, UsageError

_BLOCK = 512


def read_parquet(path: Path) -> Rows:
    """Each row, read block by block. Raises: RowError; MissingExtra, where there is no pyarrow."""
    with _parquet(path) as file:
        _check_names(str(path), file.schema_arrow.names)
        place = 0
        blocks = iter(file.iter_batches(batch_size=_BLOCK))
        while True:
            try:
                block = next(blocks, None)
                records: list[Any] = [] if block is None else block.to_pylist()
            except (OSError, ValueError) as error:
                raise RowError(f"the Parquet file is broken: {error}", source=str(path), place=place) from error
            if block is None:
                return
            yield from _rows(records, str(path), place)
            place += len(records)


def count_parquet(path: Path) -> int:
    """How many rows a Parquet file says it has. Raises as `read_parquet`."""
    with _parquet(path) as file:
        return file.metadata.num_rows


def _parquet(path: Path) -> Any:
    try:
        module: Any = import_module("pyarrow.parquet")
    except ImportError as error:
        raise MissingExtra("pyarrow", "parquet") from error
    try:
        return module.ParquetFile(path)
    except (OSError, ValueError) as error:
        raise RowError(f"cannot be read as Parquet: {error}", source=str(path)) from error


def is_polars(source: Any) -> bool:
    return hasattr(source, "iter_rows") and hasattr(source, "columns")


def is_pandas(source: Any) -> bool:
    return hasattr(source, "iloc") and hasattr(source, "to_dict") and hasattr(source, "columns")


def read_polars(frame: Any) -> Rows:
    """Each row. Raises: RowError."""
    for place, row in enumerate(frame.iter_rows(named=True)):
        yield from _rows([row], "polars.DataFrame", place)


def read_pandas(frame: Any) -> Rows:
    """Each row without its index; NaN, which is how pandas marks a missing value, becomes null. Raises: RowError."""
    source = "pandas.DataFrame"
    _check_names(source, list(frame.columns))
    for start in range(0, len(frame), _BLOCK):
        records: list[dict[Any, Any]] = frame.iloc[start : start + _BLOCK].to_dict("records")
        for record in records:
            for name, value in record.items():
                if isinstance(value, float) and value != value:
                    record[name] = None
        yield from _rows(records, source, start)


def _rows(records: Sequence[Any], source: str, place: int) -> Rows:
    for number, record in enumerate(records, place):
        try:
            row = json_row(record)
        except UsageError as error:
            raise RowError(str(error), source=source, place=number) from error
        yield None, row


def _check_names(source: str, names: list[Any]) -> None:
    for name in names:
        if not isinstance(name, str) or not name.strip():
            raise RowError(f"a column is named {name!r}: the name of a field is text", source=source)
        if names.count(name) > 1:
            raise RowError(f"two columns are named {name!r}", source=source)
