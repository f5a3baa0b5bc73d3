"""Results as rows of plain values, for formats that are tables.

The columns are known once every result was seen, so rows go to a temporary file first: memory holds one row and the
columns' names. A column has one type, found from its values; where they differ it holds text.
"""

from __future__ import annotations

import contextlib
import json
import re
import tempfile
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TextIO

from evaluator.batch.records import SampleResult, Score

Kind = Literal["bool", "int", "float", "text", "time"]
Row = dict[str, Any]

_KIND_OF: dict[str, Kind] = {
    "identity": "text", "sample_id": "text", "place": "int", "epoch": "int", "template": "text", "variant": "text",
    "model": "text", "verdict": "text", "target": "text", "content": "text", "parsed": "text", "error.type": "text",
    "error.kind": "text", "error.message": "text", "error.retryable": "bool", "input_tokens": "int",
    "output_tokens": "int", "cached_tokens": "int", "reasoning_tokens": "int", "cost_usd": "float", "turns": "int",
    "tool_calls": "int", "scoring_cost_usd": "float", "duration_s": "float", "started": "time", "cached_calls": "int",
    "task_id": "int", "task_file": "text", "warnings": "text",
}  # fmt: skip
_FIRST = ("identity", "sample_id", "place", "epoch", "template", "variant", "model", "verdict")
_SECTIONS = len(("first", "scores", "inputs", "target", "metadata", "rest"))
_EXACT, _WIDE = 2**53, 2**63
_SURROGATES = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class FlatTable:
    """The columns of some results, with their types, and the rows."""

    columns: Mapping[str, Kind]
    spool: TextIO

    def rows(self) -> Iterator[Row]:
        """Every row, with a value of its column's type, or None, for each column."""
        self.spool.seek(0)
        for line in self.spool:
            row = json.loads(line)
            yield {name: _as(kind, row.get(name)) for name, kind in self.columns.items()}


@contextlib.contextmanager
def flat_table(results: Iterable[SampleResult]) -> Generator[FlatTable]:
    """`results`, read once, as a table that can be read for as long as the block lasts."""
    with tempfile.TemporaryFile("w+", encoding="utf-8", newline="\n") as spool:
        yield FlatTable(_spooled(results, spool), spool)


def _spooled(results: Iterable[SampleResult], spool: TextIO) -> dict[str, Kind]:
    sections: list[dict[str, set[str]]] = [{} for _ in range(_SECTIONS)]
    for name in _KIND_OF:
        section = 0 if name in _FIRST else 3 if name == "target" else 5
        sections[section][name] = set()
    for result in results:
        row: Row = {}
        for section, name, value in _cells(result):
            found = sections[section].setdefault(name, set())
            if value is not None:
                row[name] = value
                found.add(_nature(name, value))
        spool.write(json.dumps(row) + "\n")
    return {name: _kind(name, found) for section in sections for name, found in section.items()}


def to_columns(results: Iterable[SampleResult]) -> tuple[dict[str, Kind], dict[str, list[Any]]]:
    """The types and the values of each column, in memory."""
    with flat_table(results) as table:
        values: dict[str, list[Any]] = {name: [] for name in table.columns}
        for row in table.rows():
            for name, value in row.items():
                values[name].append(value)
        return dict(table.columns), values


def clean(text: str) -> str:
    """`text` with halves of surrogate pairs, which UTF-8 cannot hold, as U+FFFD."""
    return _SURROGATES.sub("\ufffd", text)


def as_text(value: Any) -> str:
    """A text as it is, anything else as JSON."""
    return clean(value) if isinstance(value, str) else clean(json.dumps(value, ensure_ascii=False))


def _cells(result: SampleResult) -> Iterator[tuple[int, str, Any]]:
    for name in _FIRST:
        yield 0, name, _plain(getattr(result, name))
    for name, score in result.scores.items():
        yield from ((1, clean(f"score.{name}.{part}"), value) for part, value in _parts(score))
    for name, value in result.inputs.items():
        yield 2, clean(f"input.{name}"), _plain(value)
    yield 3, "target", _plain(result.target)
    for name, value in result.metadata.items():
        yield 4, clean(f"metadata.{name}"), _plain(value)
    yield 5, "content", clean(result.content)
    yield 5, "parsed", _plain(result.parsed)
    if result.failure is not None:
        for name, value in result.failure.to_dict().items():
            yield 5, f"error.{name}", _plain(value)
    for name, value in result.usage.to_dict().items():
        yield 5, name, value
    yield 5, "scoring_cost_usd", result.scoring_usage.cost_usd
    yield 5, "duration_s", result.duration_s
    yield 5, "started", result.started or None
    yield 5, "cached_calls", result.cached_calls
    yield 5, "task_id", result.task_id
    yield 5, "task_file", _plain(result.task_file)
    yield 5, "warnings", _plain(list(result.warnings) or None)


def _parts(score: Score) -> Iterator[tuple[str, Any]]:
    """A score's columns; those that most scorers leave empty are there only where one has something to say."""
    yield "value", score.value
    yield "passed", score.passed
    yield "explanation", clean(score.explanation)
    if score.answer is not None:
        yield "answer", clean(score.answer)
    if score.error is not None:
        yield "error", clean(score.error)
    if score.metadata:
        yield "metadata", as_text(dict(score.metadata))


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return as_text(value)


def _nature(name: str, value: Any) -> str:
    match value:
        case bool():
            return "bool"
        case int():
            return "int" if abs(value) <= _EXACT else "wide" if -_WIDE <= value < _WIDE else "text"
        case float():
            return "float"
        case _:
            return "time" if _KIND_OF.get(name) == "time" and _time(value) is not None else "text"


def _kind(name: str, found: set[str]) -> Kind:
    """The one type that holds all values. Whole numbers become fractions only where none loses a digit."""
    told = _KIND_OF.get(name)
    if not found:
        return told or _kind_by_name(name)
    if found == {"bool"}:
        return "bool"
    if found <= {"int", "wide"}:
        return "float" if told == "float" or _kind_by_name(name) == "float" else "int"
    if found <= {"int", "float"}:
        return "float"
    return "time" if found == {"time"} else "text"


def _kind_by_name(name: str) -> Kind:
    if name.startswith("score."):
        return "float" if name.endswith(".value") else "bool" if name.endswith(".passed") else "text"
    return "text"


def _as(kind: Kind, value: Any) -> Any:
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
    return moment if moment.tzinfo is not None else None
