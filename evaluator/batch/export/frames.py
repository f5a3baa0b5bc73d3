"""Results as a DataFrame or a Parquet file, with the columns and types of `result_table`; missing
values are null.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

from evaluator.batch.export.about import About
from evaluator.batch.export.output_path import output_file
from evaluator.batch.export.result_table import result_table, to_columns
from evaluator.batch.records import SampleResult
from evaluator.files.libraries import import_extra

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
