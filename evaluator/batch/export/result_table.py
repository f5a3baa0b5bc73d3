"""Results as rows of plain values, and their exports as tables and lines: CSV, JSON Lines,
DataFrames, Parquet.

The columns are known only after every result was read, so rows go to a temporary file first: memory
holds one row and the columns' names. A column has one type, determined by its values; where they
differ, it is text.

CSV is as in RFC 4180: UTF-8, a header, CRLF after rows, quotes where a text needs them.
A text that a spreadsheet would run as a formula gets an apostrophe in front: one whose first
character, after white space and apostrophes, is one of = + - @ (and their full-width forms), a tab,
a carriage return or a line feed. A plain number such as -5 is unchanged. `unguarded` removes
exactly that apostrophe. Source: OWASP, "CSV Injection".
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import re
import tempfile
from collections.abc import Generator, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TextIO

from evaluator.batch.export.output_path import About, output_file
from evaluator.batch.labels import CurrentLabels, majority
from evaluator.batch.records import SampleResult
from evaluator.batch.summary.parts import flips_of
from evaluator.files.project_code import import_extra
from evaluator.lazy_dataclass import frozen

Kind = Literal["bool", "int", "float", "text", "time"]
Row = dict[str, Any]

_KIND_OF: dict[str, Kind] = {
    "identity": "text",
    "sample_id": "text",
    "place": "int",
    "epoch": "int",
    "template": "text",
    "variant": "text",
    "model": "text",
    "verdict": "text",
    "target": "text",
    "content": "text",
    "parsed": "text",
    "error.type": "text",
    "error.kind": "text",
    "error.message": "text",
    "error.retryable": "bool",
    "input_tokens": "int",
    "output_tokens": "int",
    "cached_tokens": "int",
    "reasoning_tokens": "int",
    "cache_write_tokens": "int",
    "cache_saved_usd": "float",
    "cost_usd": "float",
    "turns": "int",
    "tool_calls": "int",
    "scoring_cost_usd": "float",
    "duration_s": "float",
    "started": "time",
    "cached_calls": "int",
    "interrupted_calls": "int",
    "task_id": "int",
    "task_file": "text",
    "warnings": "text",
}
_FIRST = ("identity", "sample_id", "place", "epoch", "template", "variant", "model", "verdict")
_LAST = (
    "duration_s",
    "started",
    "cached_calls",
    "interrupted_calls",
    "task_id",
    "task_file",
)
_SECTIONS = ("score.", "label.", "input.", "target", "metadata.")
_EXACT = 2**53
_WIDE = 2**63
_SURROGATES = re.compile("[\ud800-\udfff]")


@frozen
class ResultTable:
    """The columns of some results, with their types, and the rows."""

    columns: Mapping[str, Kind]
    spool: TextIO

    def rows(self) -> Iterator[Row]:
        """Every row, with a value of the column's type, or None, for each column."""
        self.spool.seek(0)
        for line in self.spool:
            row = json.loads(line)
            yield {name: _converted(kind, row.get(name)) for name, kind in self.columns.items()}


@contextlib.contextmanager
def result_table(
    results: Iterable[SampleResult], labels: CurrentLabels | None = None
) -> Generator[ResultTable]:
    """`results`, read once, with the labels of people, as a table that can be read until the block
    ends.
    """
    labels = labels or CurrentLabels()
    with tempfile.TemporaryFile("w+", encoding="utf-8", newline="\n") as spool:
        found: dict[str, set[str]] = {name: set() for name in _KIND_OF}
        for result in results:
            row: Row = {}
            for name, value in _cells(result, labels):
                kinds = found.setdefault(name, set())
                if value is not None:
                    row[name] = value
                    kinds.add(_value_kind(name, value))
            spool.write(json.dumps(row) + "\n")
        yield ResultTable(
            {name: _column_kind(name, found[name]) for name in sorted(found, key=_section)}, spool
        )


def to_columns(
    results: Iterable[SampleResult], labels: CurrentLabels | None = None
) -> tuple[dict[str, Kind], dict[str, list[Any]]]:
    """The types and the values of each column, in memory."""
    with result_table(results, labels) as table:
        values: dict[str, list[Any]] = {name: [] for name in table.columns}
        for row in table.rows():
            for name, value in row.items():
                values[name].append(value)
        return dict(table.columns), values


def clean(text: str) -> str:
    """`text` with unpaired surrogates, which UTF-8 cannot encode, as U+FFFD."""
    return _SURROGATES.sub("\ufffd", text)


def as_text(value: Any) -> str:
    """A text unchanged, anything else as JSON."""
    return clean(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _section(name: str) -> int:
    """The rank of a column: first the fixed ones, then scores, labels, inputs, target and
    metadata, then the others.
    """
    if name in _FIRST:
        return -1
    return next(
        (place for place, prefix in enumerate(_SECTIONS) if name.startswith(prefix)), len(_SECTIONS)
    )


def _cells(result: SampleResult, labels: CurrentLabels) -> Iterator[tuple[str, Any]]:
    """The columns and values of a result. Optional parts of a score, and labels, have a column only
    where a result has them.
    """
    for name in _FIRST:
        yield name, _plain(getattr(result, name))
    for name, score in result.scores.items():
        column = clean(f"score.{name}")
        yield f"{column}.value", score.value
        yield f"{column}.passed", score.passed
        yield f"{column}.explanation", clean(score.explanation)
        if score.answer is not None:
            yield f"{column}.answer", clean(score.answer)
        if score.error is not None:
            yield f"{column}.error", clean(score.error)
        if score.metadata:
            yield f"{column}.metadata", as_text(dict(score.metadata))
        flips = flips_of(score)
        if flips is not None:
            yield f"{column}.flips", flips
    for name, given in labels.shown(result).items():
        column = clean(f"label.{name}")
        yield f"{column}.passed", majority(given)
        yield f"{column}.labels", len(given)
    for prefix, values in (("input", result.inputs), ("metadata", result.metadata)):
        for name, value in values.items():
            yield clean(f"{prefix}.{name}"), _plain(value)
    yield "target", _plain(result.target)
    yield "content", clean(result.content)
    yield "parsed", _plain(result.parsed)
    if result.failure is not None:
        for name, value in result.failure.to_dict().items():
            yield f"error.{name}", _plain(value)
    yield from result.usage.to_dict().items()
    yield "scoring_cost_usd", result.scoring_usage.cost_usd
    for name in _LAST:
        value = getattr(result, name)
        yield name, None if value == "" else _plain(value)
    yield "warnings", _plain(list(result.warnings) or None)


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return as_text(value)


def _value_kind(name: str, value: Any) -> str:
    match value:
        case bool():
            return "bool"
        case int():
            if abs(value) <= _EXACT:
                return "int"
            if -_WIDE <= value < _WIDE:
                return "wide"
            return "text"
        case float():
            return "float"
        case _:
            if _KIND_OF.get(name) == "time" and _time(value) is not None:
                return "time"
            return "text"


def _column_kind(name: str, found: set[str]) -> Kind:
    """The one type for all values. Integers become floats only where none loses a digit."""
    usual = _KIND_OF.get(name, "text")
    if name.startswith("score."):
        if name.endswith(".value"):
            usual = "float"
        elif name.endswith(".passed"):
            usual = "bool"
        else:
            usual = "text"
    if not found:
        return usual
    if found == {"bool"}:
        return "bool"
    if found <= {"int", "wide"}:
        if usual == "float":
            return "float"
        return "int"
    if found <= {"int", "float"}:
        return "float"
    if found == {"time"}:
        return "time"
    return "text"


def _converted(kind: Kind, value: Any) -> Any:
    if value is None:
        return None
    match kind:
        case "text":
            return as_text(value)
        case "float":
            return float(value)
        case "time":
            return _time(value)
        case _:
            return value


def _time(text: str) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return None if moment.tzinfo is None else moment


_RISKY = re.compile(r"'*(?:[\t\r\n]|\s*[=+\-@＝＋－＠])")
_GUARDED = re.compile(r"'+(?:[\t\r\n]|\s*[=+\-@＝＋－＠])")
_NUMBER = re.compile(r"[+-]?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?", re.ASCII)


def write_csv(results: Iterable[SampleResult], about: About, path: Path) -> None:
    """One row for each result. A missing value and an empty text are both an empty cell."""
    with result_table(results, about.labels) as table, output_file(path) as file:
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
    """Numbers that JSON does not have (NaN, infinities) are written as in Python. A result that
    people have labelled has its `labels`.
    """
    labels = about.labels or CurrentLabels()
    with output_file(path) as file:
        for result in results:
            data = result.to_dict()
            given = [label.to_dict() for each in labels.shown(result).values() for label in each]
            if given:
                data["labels"] = given
            file.write(json.dumps(data, separators=(",", ":")).encode() + b"\n")


ROWS_A_GROUP = 1_024
MANIFEST_KEY = "evaluator.manifest"
_PANDAS = {
    "bool": "boolean",
    "int": "Int64",
    "float": "Float64",
    "text": "string",
    "time": "datetime64[us, UTC]",
}


def to_pandas(results: Iterable[SampleResult], labels: CurrentLabels | None = None) -> Any:
    """A `pandas.DataFrame` with one row for each result and pandas' nullable types. Raises:
    MissingExtra.
    """
    pandas = import_extra("pandas", "pandas")
    kinds, values = to_columns(results, labels)
    return pandas.DataFrame(
        {name: pandas.Series(column, dtype=_PANDAS[kinds[name]]) for name, column in values.items()}
    )


def to_polars(results: Iterable[SampleResult], labels: CurrentLabels | None = None) -> Any:
    """A `polars.DataFrame` with one row for each result. Raises: MissingExtra."""
    polars = import_extra("polars", "polars")
    types = {
        "bool": polars.Boolean,
        "int": polars.Int64,
        "float": polars.Float64,
        "text": polars.String,
        "time": polars.Datetime("us", "UTC"),
    }
    kinds, values = to_columns(results, labels)
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
    with result_table(results, about.labels) as table, output_file(path) as file:
        schema = arrow.schema(
            [arrow.field(name, types[kind]) for name, kind in table.columns.items()],
            metadata={MANIFEST_KEY: json.dumps(about.manifest)},
        )
        with parquet.ParquetWriter(file, schema, compression="zstd") as writer:
            rows = table.rows()
            while group := list(islice(rows, ROWS_A_GROUP)):
                writer.write_table(arrow.Table.from_pylist(group, schema=schema))
