"""Parquet, by pyarrow: the columns of `flat` with their types, missing values as null, the manifest in its metadata."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

from evaluator.batch.export.about import About
from evaluator.batch.export.atomic import atomic_file
from evaluator.batch.export.flat import Row, flat_table
from evaluator.batch.records import SampleResult
from evaluator.errors import MissingExtra

ROWS_A_GROUP = 1_024
MANIFEST_KEY = "evaluator.manifest"


def write_parquet(results: Iterable[SampleResult], about: About, path: Path) -> None:
    """Row groups of 1,024 rows; memory holds two of them at most.

    Raises: MissingExtra, where there is no pyarrow.
    """
    try:
        arrow: Any = import_module("pyarrow")
        parquet: Any = import_module("pyarrow.parquet")
    except ImportError as error:
        raise MissingExtra("pyarrow", "parquet") from error
    types = {
        "bool": arrow.bool_(),
        "int": arrow.int64(),
        "float": arrow.float64(),
        "text": arrow.string(),
        "time": arrow.timestamp("us", tz="UTC"),
    }
    with flat_table(results) as table, atomic_file(path) as file:
        schema = arrow.schema(
            [arrow.field(name, types[kind]) for name, kind in table.columns.items()],
            metadata={MANIFEST_KEY: json.dumps(about.manifest)},
        )
        with parquet.ParquetWriter(file, schema, compression="zstd") as writer:
            for group in _groups(table.rows()):
                writer.write_table(arrow.Table.from_pylist(group, schema=schema))


def _groups(rows: Iterator[Row]) -> Iterator[list[Row]]:
    return iter(lambda: list(islice(rows, ROWS_A_GROUP)), [])
