"""Results as a frame of pandas or Polars, with the columns of `flat`, their types, and missing values as null."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Any

from evaluator.batch.export.flat import to_columns
from evaluator.batch.records import SampleResult
from evaluator.errors import MissingExtra

_PANDAS = {"bool": "boolean", "int": "Int64", "float": "Float64", "text": "string", "time": "datetime64[us, UTC]"}


def to_pandas(results: Iterable[SampleResult]) -> Any:
    """A `pandas.DataFrame`, a row a result, with pandas' nullable types. Raises: MissingExtra."""
    pandas = _module("pandas")
    kinds, values = to_columns(results)
    return pandas.DataFrame(
        {name: pandas.Series(column, dtype=_PANDAS[kinds[name]]) for name, column in values.items()}
    )


def to_polars(results: Iterable[SampleResult]) -> Any:
    """A `polars.DataFrame`, a row a result. Raises: MissingExtra."""
    polars = _module("polars")
    types = {
        "bool": polars.Boolean,
        "int": polars.Int64,
        "float": polars.Float64,
        "text": polars.String,
        "time": polars.Datetime("us", "UTC"),
    }
    kinds, values = to_columns(results)
    return polars.DataFrame(values, schema={name: types[kind] for name, kind in kinds.items()}, strict=True)


def _module(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise MissingExtra(name, name) from error
