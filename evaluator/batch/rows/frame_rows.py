"""Rows from Parquet files and pandas DataFrames."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from evaluator.batch.rows.json_values import Rows, read_objects
from evaluator.batch.rows.row_error import RowError
from evaluator.files.libraries import import_extra

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
                records: list[Any] = [] if block is None else block.to_pylist()
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
