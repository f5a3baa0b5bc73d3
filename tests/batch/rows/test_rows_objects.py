"""Rows from lists, iterators, frames and `datasets`: values become JSON or are refused."""

from __future__ import annotations

import asyncio
import enum
import re
from collections import UserDict
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from evaluator import UsageError
from evaluator.batch import Sample, Selection
from evaluator.batch.rows import RowError, RowMapping, RowSource, open_rows, row_source

ROWS: list[dict[str, Any]] = [
    {"id": "a", "x": 1, "target": "t"},
    {"id": "b", "x": None, "target": "u"},
]
SAMPLES = [Sample("a", {"x": 1}, "t", {}, 0), Sample("b", {"x": None}, "u", {}, 1)]


def named(value: object) -> str:
    """An id without an address in memory, which would be another in each process."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def all_of(rows: RowSource) -> list[Sample]:
    async def collect() -> list[Sample]:
        return [sample async for sample in rows]

    return asyncio.run(collect())


async def asynchronous() -> AsyncIterator[dict[str, Any]]:
    for row in ROWS:
        await asyncio.sleep(0)
        yield row


class AsyncRows:
    def __aiter__(self) -> AsyncIterator[dict[str, Any]]:
        return asynchronous()


class Rows:
    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(ROWS)


@pytest.mark.parametrize(
    ("source", "kind", "total"),
    [
        (ROWS, "list", 2),
        (tuple(UserDict(row) for row in ROWS), "tuple", 2),
        (Rows(), "test_rows_objects.Rows", None),
        (AsyncRows(), "test_rows_objects.AsyncRows", None),
    ],
)
def test_repeatable_objects_can_be_read_again(source: Any, kind: str, total: int | None) -> None:
    rows = open_rows(source)
    assert all_of(rows) == all_of(rows) == SAMPLES
    assert rows.description == ({"kind": kind} if total is None else {"kind": kind, "rows": total})
    assert rows.total == total


@pytest.mark.parametrize(
    "source",
    [iter(ROWS), (row for row in ROWS), asynchronous()],
    ids=["iter", "generator", "async"],
)
def test_an_iterator_is_read_once(source: Any) -> None:
    rows = open_rows(source)
    assert rows.total is None
    assert all_of(rows) == SAMPLES
    with pytest.raises(UsageError, match="already read; give a list or a file"):
        all_of(rows)


def test_no_more_rows_are_taken_from_an_iterator_than_requested() -> None:
    for selection in (Selection(limit=1), Selection(stop=1)):
        source = iter(ROWS)
        assert all_of(open_rows(source, selection=selection)) == SAMPLES[:1]
        assert next(source) is ROWS[1]


def test_an_error_of_an_iterator_is_raised() -> None:
    def failing() -> Iterator[dict[str, Any]]:
        yield ROWS[0]
        raise OSError("the line is down")

    with pytest.raises(OSError, match="the line is down"):
        all_of(open_rows(failing()))


def test_drawn_rows_come_in_slices_and_those_before_an_invalid_one_come_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(row_source, "SLICE", 2)
    numbered: list[dict[str, Any]] = [{"id": str(n), "x": n} for n in range(5)]
    numbered[4]["id"] = "0"
    rows = open_rows(numbered, selection=Selection(sample=5))
    found: list[list[str]] = []

    async def collect() -> None:
        async for samples in rows.slices():
            found.append([sample.id for sample in samples])

    with pytest.raises(RowError, match="the id is not unique"):
        asyncio.run(collect())
    assert [id for ids in found for id in ids] == ["0", "1", "2", "3"]
    assert max(map(len, found)) <= 2


@pytest.mark.parametrize("source", [[], (), iter([])])
def test_no_rows_are_an_error(source: Any) -> None:
    with pytest.raises(RowError, match="there are no rows"):
        all_of(open_rows(source))


class Colour(enum.StrEnum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


def numpy_values() -> list[tuple[Any, Any]]:
    import numpy as np

    return [
        (np.int64(3), 3),
        (np.float32(0.5), 0.5),
        (np.bool_(True), True),
        (np.str_("x"), "x"),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (np.array(["a"], dtype=object), ["a"]),
        (np.datetime64("2024-02-29"), "2024-02-29"),
    ]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ((1, (2, "x")), [1, [2, "x"]]),
        (UserDict({"a": {"b": (1,)}}), {"a": {"b": [1]}}),
        (Colour.RED, "red"),
        (Level.HIGH, 3),
        (date(2024, 2, 29), "2024-02-29"),
        (datetime(2024, 2, 29, 1, 2, tzinfo=UTC), "2024-02-29T01:02:00+00:00"),
        (time(1, 2), "01:02:00"),
        (Decimal("12"), 12),
        (Decimal("12.50"), 12.5),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        *numpy_values(),
    ],
    ids=named,
)
def test_a_value_becomes_json(value: Any, expected: Any) -> None:
    (sample,) = all_of(open_rows([{"id": 1, "x": value}]))
    assert sample.inputs == {"x": expected}
    assert type(sample.inputs["x"]) is type(expected)


def loop() -> list[Any]:
    inner: list[Any] = []
    inner.append(inner)
    return inner


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (float("nan"), "x is nan, which is not a JSON value"),
        ([{"y": float("-inf")}], "x.0.y is -inf"),
        (Decimal("NaN"), "x is NaN"),
        (b"bytes", "x is bytes, which has no JSON form; omit it or convert it to text"),
        ({1, 2}, "x is set"),
        (object(), "x is object"),
        ({1: 2}, "x has the field 1, expected a text as name"),
        (loop(), "nested more than 100 deep, or contains itself"),
    ],
    ids=named,
)
def test_a_value_that_has_no_json_form_is_an_error(value: Any, message: str) -> None:
    with pytest.raises(RowError) as caught:
        all_of(open_rows([{"id": 1, "x": 1}, {"id": 2, "x": value}]))
    assert str(caught.value).startswith("list:row 1: ") and message in str(caught.value)


def test_a_row_is_copied() -> None:
    row: dict[str, Any] = {"id": 1, "x": [1]}
    (sample,) = all_of(open_rows([row]))
    row["x"].append(2)
    assert sample.inputs == {"x": [1]}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            {"train": ROWS, "test": ROWS},
            "a mapping (dict) is a row or several sets of rows; give a list, or one of: `test`, `train`",
        ),
        (b"[]", "rows can be a file, a list, an iterator or a frame, not bytes"),
        (3, "or a frame, not int"),
    ],
)
def test_an_object_without_rows_is_refused(source: Any, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_rows(source)
    assert message in str(caught.value)


@pytest.mark.parametrize("row", ["text", 3, None, ["id"]])
def test_a_row_that_is_not_an_object_is_an_error(row: Any) -> None:
    with pytest.raises(RowError, match=r"list:row 1: a row is an object .* not "):
        all_of(open_rows([ROWS[0], row]))


def test_a_pandas_frame_gives_its_rows_with_null_for_what_is_missing() -> None:
    import pandas as pd

    frame = pd.DataFrame(
        {
            "id": [f"r{n}" for n in range(600)],
            "number": [1.5, float("nan"), *range(598)],
            "when": pd.to_datetime(["2024-02-29", None, *["2024-03-01"] * 598]),
            "word": pd.array(["a", pd.NA, *["b"] * 598], dtype="string"),
            "whole": pd.array([1, pd.NA, *range(598)], dtype="Int64"),
        },
        index=range(1000, 400, -1),
    )
    rows = open_rows(frame)
    samples = all_of(rows)
    assert (
        rows.description == {"kind": "pandas.DataFrame", "rows": 600}
        and rows.total == len(samples) == 600
    )
    assert samples[0] == Sample(
        "r0", {"number": 1.5, "when": "2024-02-29T00:00:00", "word": "a", "whole": 1}, None, {}, 0
    )
    assert samples[1].inputs == {"number": None, "when": None, "word": None, "whole": None}
    assert samples[599].id == "r599" and samples[599].inputs["whole"] == 597


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["id", "id"], "two columns are named 'id'"),
        (["id", 0], "a column is named 0"),
        (["id", " "], "a column is named ' '"),
    ],
)
def test_columns_of_a_pandas_frame_need_unique_names(columns: list[Any], message: str) -> None:
    import pandas as pd

    with pytest.raises(RowError, match=message):
        open_rows(pd.DataFrame([[1, 2]], columns=columns))


def test_a_polars_frame_gives_its_rows() -> None:
    import polars as pl

    frame = pl.DataFrame(
        {
            "id": ["a", "b"],
            "x": [[1, 2], None],
            "s": [{"t": 1.5}, {"t": None}],
            "d": [date(2024, 1, 2)] * 2,
        }
    )
    rows = open_rows(frame, selection=Selection(where="x is defined"))
    assert rows.description == {"kind": "polars.DataFrame", "rows": 2}
    assert [sample.inputs for sample in all_of(rows)] == [
        {"x": [1, 2], "s": {"t": 1.5}, "d": "2024-01-02"},
        {"x": None, "s": {"t": None}, "d": "2024-01-02"},
    ]
    with pytest.raises(RowError, match=r"polars\.DataFrame:row 1: x is nan"):
        all_of(open_rows(pl.DataFrame({"x": [1.0, float("nan")]})))
    with pytest.raises(UsageError, match=r"not polars\.LazyFrame; collect\(\) it first"):
        open_rows(frame.lazy())


def test_a_dataset_of_hugging_face_gives_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    datasets = pytest.importorskip("datasets")
    dataset = datasets.Dataset.from_list(ROWS)
    mapping = RowMapping(metadata=["x"])
    for source, total in ((dataset, 2), (dataset.to_iterable_dataset(), None)):
        rows = open_rows(source, mapping)
        expected = [Sample("a", {}, "t", {"x": 1}, 0), Sample("b", {}, "u", {"x": None}, 1)]
        assert all_of(rows) == all_of(rows) == expected
        assert rows.total == total
    with pytest.raises(UsageError, match="one of: `test`, `train`"):
        open_rows(datasets.DatasetDict({"train": dataset, "test": dataset}))
