"""CSV, JSON Lines, Parquet and frames have all values with types, and nothing that a spreadsheet would run."""

from __future__ import annotations

import csv
import json
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from evaluator import MissingExtra, RecordError, UsageError
from evaluator.batch import SampleResult, Score
from evaluator.batch.export import EXPORTERS, export, to_pandas, to_polars
from evaluator.batch.export.result_table import guarded, unguarded
from tests.batch.export.results import EACH, ERROR, HOSTILE, PASSED, hostile, many, result


def read_csv(path: Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, strict=True))


def test_a_csv_row_has_the_values_of_the_result(tmp_path: Path) -> None:
    export(EACH, {}, "csv", tmp_path / "out.csv")
    passed, failed, error, scorer_error, unscored = read_csv(tmp_path / "out.csv")
    assert {
        name: passed[name]
        for name in ("sample_id", "epoch", "verdict", "target", "cost_usd", "input_tokens")
    } == {
        "sample_id": "lead",
        "epoch": "1",
        "verdict": "passed",
        "target": "lead",
        "cost_usd": "0.0005",
        "input_tokens": "12",
    }
    assert (passed["score.includes.value"], passed["score.includes.passed"]) == ("1.0", "true")
    assert (
        passed["input.question"] == "Which element has the symbol Pb?"
        and passed["metadata.group"] == "metals"
    )
    assert passed["started"] == "2026-03-04T05:06:07.000008Z" and passed["error.kind"] == ""
    assert (failed["verdict"], failed["score.includes.passed"]) == ("failed", "false")
    assert (error["error.type"], error["error.kind"]) == ("TASK_FAILURE", "provider_failure")
    assert error["error.message"] == "503 from the model\nafter 4 attempts"
    assert (error["cost_usd"], error["score.includes.value"]) == ("", "")
    assert scorer_error["score.includes.error"].startswith("ZeroDivisionError")
    assert (unscored["verdict"], unscored["score.includes.value"], unscored["target"]) == (
        "unscored",
        "",
        "",
    )


def test_every_csv_cell_reads_back_and_none_is_a_formula(tmp_path: Path) -> None:
    export(hostile(), {}, "csv", tmp_path / "out.csv")
    rows = read_csv(tmp_path / "out.csv")
    assert len(rows) == 5 * len(HOSTILE)
    for row in rows:
        for text in (*row, *row.values()):
            assert not text.lstrip().startswith(("=", "@", "+", "-"))
    kept = [unguarded(row["content"]) for row in rows[::5]]
    assert kept == [text.replace("\0", "\ufffd").replace("\ud83d", "\ufffd") for text in HOSTILE]


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("=1+1", "'=1+1"),
        ("+cmd|' /C calc'!A0", "'+cmd|' /C calc'!A0"),
        ("-2+3", "'-2+3"),
        ("@SUM(1)", "'@SUM(1)"),
        ("  =1", "'  =1"),
        ("\t=1", "'\t=1"),
        ("＝1", "'＝1"),
        ("'=1", "''=1"),
        ("\rx", "'\rx"),
        ("-5", "-5"),
        ("+3.2e5", "+3.2e5"),
        ("a=b", "a=b"),
        ("'tis", "'tis"),
        ("", ""),
    ],
)
def test_a_text_like_a_formula_gets_an_apostrophe(text: str, cell: str) -> None:
    assert guarded(text) == cell


@given(st.text(alphabet="'=+-@\t\r\n 1a＝"))
@example("'-5")
def test_the_apostrophe_can_be_removed(text: str) -> None:
    assert unguarded(guarded(text)) == text


def test_jsonl_reads_back_as_the_results(tmp_path: Path) -> None:
    export(iter([*EACH, *hostile()]), {}, "jsonl", tmp_path / "out.jsonl")
    lines = (tmp_path / "out.jsonl").read_text(encoding="utf-8").split("\n")
    assert lines.pop() == ""
    assert [SampleResult.from_dict(json.loads(line)) for line in lines] == [*EACH, *hostile()]


MIXED: list[tuple[list[Any], str, list[Any]]] = [
    ([1, 2], "int", [1, 2]),
    ([1, 0.5], "float", [1.0, 0.5]),
    ([True, False], "bool", [True, False]),
    ([None, "a"], "text", [None, "a"]),
    ([1, "a"], "text", ["1", "a"]),
    ([True, 1], "text", ["true", "1"]),
    ([{"a": 1}, [2]], "text", ['{"a": 1}', "[2]"]),
    ([2**60, 1], "int", [2**60, 1]),
    ([2**60, 0.5], "text", [str(2**60), "0.5"]),
    ([2**70, 1], "text", [str(2**70), "1"]),
    ([None, None], "text", [None, None]),
]
POLARS = {"int": "Int64", "float": "Float64", "bool": "Boolean", "text": "String"}
PANDAS = {"int": "Int64", "float": "Float64", "bool": "boolean", "text": "string"}
ARROW = {"int": "int64", "float": "double", "bool": "bool", "text": "string"}


def with_metadata(values: list[Any]) -> list[SampleResult]:
    return [result(str(place), metadata={"x": value}) for place, value in enumerate(values)]


@pytest.mark.parametrize(("values", "kind", "kept"), MIXED)
def test_a_column_has_the_one_type_that_loses_nothing_in_polars(
    values: list[Any], kind: str, kept: list[Any]
) -> None:
    pytest.importorskip("polars", reason="needs polars")
    frame = to_polars(with_metadata(values))
    assert str(frame.schema["metadata.x"]) == POLARS[kind] and frame["metadata.x"].to_list() == kept


@pytest.mark.parametrize(("values", "kind", "kept"), MIXED)
def test_a_column_has_the_one_type_that_loses_nothing_in_pandas(
    values: list[Any], kind: str, kept: list[Any]
) -> None:
    pandas = pytest.importorskip("pandas", reason="needs pandas")
    column = to_pandas(with_metadata(values))["metadata.x"]
    assert str(column.dtype) == PANDAS[kind]
    assert [None if pandas.isna(value) else value for value in column] == kept


@pytest.mark.parametrize(("values", "kind", "kept"), MIXED)
def test_a_column_has_the_one_type_that_loses_nothing_in_parquet(
    values: list[Any], kind: str, kept: list[Any], tmp_path: Path
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow")
    export(with_metadata(values), {"name": "b"}, "parquet", tmp_path / "out.parquet")
    table = parquet.read_table(tmp_path / "out.parquet")
    assert (
        str(table.schema.field("metadata.x").type) == ARROW[kind]
        and table["metadata.x"].to_pylist() == kept
    )
    assert json.loads(table.schema.metadata[b"evaluator.manifest"]) == {"name": "b"}


def test_frames_have_times_flags_and_nulls() -> None:
    pytest.importorskip("polars", reason="needs polars")
    frame = to_polars([*EACH, *hostile()])
    assert frame["started"].to_list()[0] == datetime(2026, 3, 4, 5, 6, 7, 8, UTC)
    assert frame["cost_usd"].to_list()[:3] == [0.0005, 0.0005, None]
    assert frame["score.includes.passed"].to_list()[:5] == [True, False, None, None, None]
    assert frame["error.retryable"].to_list()[:3] == [None, None, True]


def test_a_batch_without_a_result_has_its_typed_columns(tmp_path: Path) -> None:
    export([], {}, "csv", tmp_path / "out.csv")
    assert (
        (tmp_path / "out.csv")
        .read_text()
        .startswith("identity,sample_id,place,epoch,template,variant,model,verdict,")
    )
    pytest.importorskip("polars", reason="needs polars")
    assert str(to_polars([]).schema["cost_usd"]) == "Float64"


def test_parquet_is_written_in_row_groups(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow")
    export(many(2_500), {}, "parquet", tmp_path / "out.parquet")
    file = parquet.ParquetFile(tmp_path / "out.parquet")
    assert (file.num_row_groups, file.metadata.num_rows) == (3, 2_500)
    assert file.read(["sample_id"])["sample_id"].to_pylist() == [
        each.sample_id for each in many(2_500)
    ]


@pytest.mark.parametrize("format", ["csv", "jsonl", "junit", "parquet"])
def test_memory_does_not_grow_with_the_results(
    format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if format == "parquet":
        pytest.importorskip("pyarrow", reason="needs pyarrow")
    monkeypatch.setattr("evaluator.batch.export.result_table.ROWS_A_GROUP", 64)
    export(many(10), {}, format, tmp_path / "warm")

    def large(count: int) -> Iterator[SampleResult]:
        for each in many(count):
            yield replace(each, content="x" * 2_000)

    def peak(count: int) -> int:
        tracemalloc.start()
        export(large(count), {}, format, tmp_path / "out")
        highest = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return highest

    small, big = peak(200), peak(600)
    assert big < 1.5 * small


@pytest.mark.parametrize("format", sorted(EXPORTERS))
def test_a_file_is_replaced_completely_or_left_unchanged(format: str, tmp_path: Path) -> None:
    if format == "parquet":
        pytest.importorskip("pyarrow", reason="needs pyarrow")
    path = tmp_path / "out.eval"
    path.write_text("before")

    def breaks() -> Iterator[SampleResult]:
        yield PASSED
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        export(breaks(), {}, format, path)
    assert path.read_text() == "before" and [each.name for each in tmp_path.iterdir()] == [
        "out.eval"
    ]
    export([PASSED, ERROR], {}, format, path)
    assert path.read_bytes()[:6] != b"before" and [each.name for each in tmp_path.iterdir()] == [
        "out.eval"
    ]
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_link_at_the_path_is_replaced_and_its_target_left(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("other")
    (tmp_path / "out.csv").symlink_to(tmp_path / "other")
    export(EACH, {}, "csv", tmp_path / "out.csv")
    assert (tmp_path / "other").read_text() == "other" and not (tmp_path / "out.csv").is_symlink()


def test_a_path_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"nowhere/out\.csv: cannot be written: No such file"):
        export(EACH, {}, "csv", tmp_path / "nowhere" / "out.csv")
    with pytest.raises(
        UsageError, match="unknown export format 'marckdown'; did you mean `markdown`"
    ):
        export(EACH, {}, "marckdown", tmp_path / "out")


@pytest.mark.parametrize(
    ("package", "extra"), [("pyarrow", "parquet"), ("pandas", "pandas"), ("polars", "polars")]
)
def test_a_missing_package_names_its_extra(
    package: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    calls: dict[str, Callable[[], Any]] = {
        "pyarrow": lambda: export(EACH, {}, "parquet", tmp_path / "out"),
        "pandas": lambda: to_pandas(EACH),
        "polars": lambda: to_polars(EACH),
    }
    with pytest.raises(MissingExtra, match=rf"evaluator\[{extra}\]"):
        calls[package]()


def test_scorers_that_are_not_in_every_result_have_their_columns(tmp_path: Path) -> None:
    other = result("z", scores={"exact": Score(0.5, True)})
    export([PASSED, other], {}, "csv", tmp_path / "out.csv")
    first, second = read_csv(tmp_path / "out.csv")
    assert (first["score.exact.value"], second["score.exact.value"]) == ("", "0.5")
    assert (first["score.includes.answer"], second["score.includes.answer"]) == ("lead", "")
