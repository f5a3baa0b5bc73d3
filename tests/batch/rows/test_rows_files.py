"""Rows from files are read unchanged, and errors are reported with their position."""

from __future__ import annotations

import asyncio
import csv
import gzip
import io
import json
import tracemalloc
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluator import MissingExtra, UsageError
from evaluator.batch import Sample, Selection, Shot
from evaluator.batch.rows import RowError, RowMapping, checked_samples, open_rows
from evaluator.batch.rows.row_source import RowSource

ROWS = [
    {"id": "a", "question": "1 + 1?", "target": "2"},
    {"id": "b", "question": "2 + 2?", "target": "4"},
]


def read(source: Any, *arguments: Any, **options: Any) -> list[Sample]:
    async def collect() -> list[Sample]:
        return [sample async for sample in open_rows(source, *arguments, **options)]

    return asyncio.run(collect())


def as_jsonl(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def as_csv(rows: list[dict[str, Any]], delimiter: str = ",") -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), delimiter=delimiter)
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def as_parquet(rows: list[dict[str, Any]], **options: Any) -> bytes:
    import pyarrow
    import pyarrow.parquet

    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), sink, **options)
    return sink.getvalue().to_pybytes()


WRITERS: dict[str, Callable[[list[dict[str, Any]]], bytes]] = {
    "rows.jsonl": as_jsonl,
    "rows.NDJSON": as_jsonl,
    "rows.json": lambda rows: json.dumps(rows, indent=2).encode(),
    "rows.csv": as_csv,
    "rows.tsv": lambda rows: as_csv(rows, "\t"),
    "rows.jsonl.gz": lambda rows: gzip.compress(as_jsonl(rows)),
    "rows.json.gz": lambda rows: gzip.compress(json.dumps(rows).encode()),
    "rows.v2.csv.gz": lambda rows: gzip.compress(as_csv(rows)),
    "rows.parquet": as_parquet,
}


@pytest.mark.parametrize("name", WRITERS)
def test_every_format_gives_the_same_samples(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(WRITERS[name](ROWS))
    expected = [
        Sample(row["id"], {"question": row["question"]}, row["target"], {}, n)
        for n, row in enumerate(ROWS)
    ]
    assert read(path) == read(str(path)) == expected


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.jsonl", b'{"id": 1}\n{"id": 2 "x": 3}\n', ":2:10: broken JSON: "),
        ("a.jsonl", b'{"id": 1}\n\n\n{"id": 2} x\n', ":4:11: broken JSON: Extra data (found 'x')"),
        ("a.jsonl", b'{"id": 1}\n{"id": "2\n', ":2:8: broken JSON: "),
        ("a.jsonl", b'{"id": 1}\n[1]\n', ":2: a row is an object, not array"),
        ("a.jsonl", b'[{"id": 1}]\n', ":1: a row is an object, not array; name the file .json if"),
        ("a.jsonl", b'{"id": 1, "x": "NaN", "y": NaN}\n', ":1:28: NaN is not JSON; write null"),
        ("a.jsonl", b'{"id": 1, "y": [-Infinity]}\n', ":1:17: -Infinity is not JSON"),
        ("a.jsonl", b'{"id": 1, "y": 1e999}\n', ":1:16: 1e999 is a number outside the range"),
        (
            "a.jsonl",
            b'{"id": 1, "id": 2}\n',
            ":1: broken JSON: the name 'id' occurs twice in one object",
        ),
        (
            "a.jsonl",
            b'{"id": ' + b"9" * 5000 + b"}\n",
            ":1:8: broken JSON: an integer has more than",
        ),
        (
            "a.jsonl",
            b'{"id": 1, "y": ' + b"[" * 300 + b"]" * 300 + b"}\n",
            ":1: the JSON is nested too deeply",
        ),
        (
            "a.jsonl",
            b'{"id": 1, "y": ' + b"[" * 90_000 + b"]" * 90_000 + b"}\n",
            ":1: the JSON is nested too deeply",
        ),
        ("a.jsonl", b'{"id": 1}\n\0\0\n', ":2:1: a NUL character"),
        (
            "a.jsonl",
            b'{"id": 1}\n{"id": "\xc3\xa9\xe9"}\n',
            ":2:10: the text is not UTF-8; save it as UTF-8",
        ),
        ("a.jsonl", '{"id": 1}\n'.encode("utf-16"), ":1:1: the text is not UTF-8 (UTF-16?)"),
        ("a.jsonl", b"", ": the file is empty"),
        ("a.jsonl", b"\n \n", ": there are no rows"),
        (
            "a.json",
            b'{"id": 1}\n{"id": 2}',
            ":1:1: expected an array of objects; name the file .jsonl",
        ),
        ("a.json", b"  \n ", ":2:2: expected an array of objects"),
        ("a.json", b"[]", ": there are no rows"),
        ("a.json", b'[{"id": 1},\n {"id": 2},]', ":2:12: broken JSON: Expecting value (found ']')"),
        (
            "a.json",
            b'[{"id": 1}\n {"id": 2}]',
            ":2:2: broken JSON: expected a comma or the end of the array",
        ),
        ("a.json", b'[{"id": 1},\n  {"id": 2,\n "x": nul}]', ":3:7: broken JSON: Expecting value"),
        ("a.json", b'[{"id": 1}, 2]', ":1:13: a row is an object, not integer"),
        ("a.json", b'[{"id": 1}] [', ":1:13: broken JSON: unexpected text after the array"),
        ("a.json", b'[{"id": 1},\n {"id": 2', ":2:10: broken JSON: "),
        ("a.json", b'[{"id": 1}', ":1:11: broken JSON: expected a comma or the end of the array"),
        ("a.json", b'[{"id": 1},\n{"x": \0', ":2:7: a NUL character"),
        ("a.json", b'[{"id": 1},\n{"x": NaN}]', ":2:7: NaN is not JSON"),
        ("a.json", b'[{"id": 1},\n{"\xc3\xa9": "\xe9"}]', ":2:8: the text is not UTF-8"),
        (
            "a.csv",
            b"id,q\n1,a\n2,b,c\n",
            ":3: 3 fields, but the header has 2; quote a field that contains a delimiter",
        ),
        ("a.csv", b'id,q\n1,"a\nb"\n2\n', ":4: 1 field, but the header has 2; 'q' is missing"),
        ("a.csv", b"id,,q\n1,2,3\n", ":1: field 2 of the header has no name"),
        ("a.csv", b"id,q,id\n1,2,3\n", ":1: the header names 'id' twice, in fields 1 and 3"),
        (
            "a.csv",
            b"id;q\n1;2\n",
            ":1: the fields seem to be separated by ';'; save the file with ',' as separator",
        ),
        ("a.csv", b'id,q\n1,"a\n2,b\n', ':2: a quote (") is opened in this row and never closed'),
        ("a.csv", b'id,q\n1,"a"b\n', ':2: a closing quote (") is not followed by a delimiter'),
        ("a.csv", b"id,q\r1,a\r2,b", ":1: a carriage return outside quotes"),
        ("a.csv", b"id,q\n1,\0a\n", ":2:3: a NUL character"),
        ("a.csv", b"id,q\n1,\xff\n", ":2:3: the text is not UTF-8"),
        ("a.csv", b"\n\n", ": the file has no header"),
        ("a.csv", b"id,q\n", ": there are no rows"),
        ("a.tsv", b"id\tq\n1\t2\t3\n", ":2: 3 fields, but the header has 2"),
        ("a.jsonl.gz", b"no gzip", ":1: the compressed file is broken or incomplete"),
        (
            "a.jsonl.gz",
            gzip.compress(as_jsonl([{"id": n} for n in range(99)]), mtime=0)[:-12],
            "the compressed file is broken or incomplete",
        ),
        ("a.parquet", b"no Parquet file at all", ": cannot be read as Parquet"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_error_in_a_file_is_reported_with_its_position(
    name: str, data: bytes, message: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(RowError) as caught:
        read(path)
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)


def test_reading_stops_at_an_invalid_row_after_the_rows_before_it(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(as_jsonl(ROWS) + b"{broken}\n" + as_jsonl([{"id": "c"}]))

    async def collect() -> list[str]:
        seen: list[str] = []
        try:
            async for sample in open_rows(path):
                seen.append(sample.id)
        except RowError as error:
            seen.append(str(error))
        return seen

    *before, error = asyncio.run(collect())
    assert before == ["a", "b"]
    assert f"{path}:3:2: broken JSON" in error


def test_an_error_in_the_first_row_is_found_before_anything_runs(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"{broken}\n")
    with pytest.raises(RowError, match=r":1:2"):
        open_rows(path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing.jsonl", "cannot be read: No such file"),
        ("folder.jsonl", "is a folder"),
        ("pipe.jsonl", "is not a regular file"),
        ("nul\0.jsonl", "cannot be read"),
    ],
)
def test_a_path_that_is_not_a_file_is_refused(name: str, message: str, tmp_path: Path) -> None:
    import os

    (tmp_path / "folder.jsonl").mkdir()
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(RowError, match=message):
        open_rows(tmp_path / name)


@pytest.mark.parametrize(
    "name", ["rows", "rows.txt", "rows.parquet.gz", "rows.gz", ".gz", "rows.xlsx"]
)
def test_an_unknown_format_is_refused_with_the_known_ones(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(
        UsageError, match=r"unknown format; the name has to end in .*\.jsonl.*\.parquet"
    ):
        open_rows(tmp_path / name)


def test_a_folder_is_reported_as_a_folder(tmp_path: Path) -> None:
    with pytest.raises(RowError, match="is a folder"):
        open_rows(tmp_path)


def test_a_byte_order_mark_is_not_part_of_the_first_field(tmp_path: Path) -> None:
    for name in ("a.jsonl", "a.json", "a.csv"):
        (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + WRITERS[f"rows{Path(name).suffix}"](ROWS))
        assert [sample.id for sample in read(tmp_path / name)] == ["a", "b"]


def test_separators_of_unicode_and_lone_surrogates_stay_inside_a_json_string(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes('{"id": "1", "x": "a\u2028b\x85c\\u0000d\\ud800"}\r\n'.encode())
    assert read(path)[0].inputs == {"x": "a\u2028b\x85c\0d\ud800"}


def test_the_values_of_csv_are_text_and_a_long_field_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    long = "x" * 300_000
    path.write_text(f'id,number,flag,long,empty\n1,007,true,"{long}",\n', encoding="utf-8")
    (sample,) = read(path, RowMapping(target="number"))
    assert sample.id == "1" and sample.target == "007"
    assert sample.inputs == {"flag": "true", "long": long, "empty": ""}


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters()),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)
OBJECTS = st.lists(st.dictionaries(st.text(max_size=4), JSON, max_size=4), min_size=1, max_size=6)


@given(OBJECTS, st.booleans(), st.sampled_from([None, 1, 3]), st.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_any_json_is_read_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[dict[str, Any]],
    ascii_only: bool,
    indent: int | None,
    chunk: int,
) -> None:
    from evaluator.batch.rows import file_rows

    path = tmp_path_factory.mktemp("rows") / "a.json"
    written = [{"row": row} for row in rows]
    path.write_text(
        json.dumps(written, ensure_ascii=ascii_only, indent=indent),
        encoding="utf-8",
        errors="replace",
    )
    expected = json.loads(path.read_text(encoding="utf-8"))
    before, file_rows._CHUNK = file_rows._CHUNK, chunk  # pieces end anywhere
    try:
        assert [row for _, row in file_rows.read_array(path)] == expected
    finally:
        file_rows._CHUNK = before
    lines = path.with_suffix(".jsonl")
    lines.write_text(
        "\n".join(json.dumps(row, ensure_ascii=ascii_only) for row in expected),
        encoding="utf-8",
        errors="replace",
    )
    assert [row for _, row in file_rows.read_jsonl(lines)] == [
        json.loads(line) for line in lines.read_text(encoding="utf-8").split("\n")
    ]


FIELDS = st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), max_size=12)


@given(st.lists(st.tuples(FIELDS, FIELDS), min_size=1, max_size=6), st.sampled_from([",", "\t"]))
@settings(max_examples=120, deadline=None)
def test_any_csv_is_read_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]], delimiter: str
) -> None:
    from evaluator.batch.rows.file_rows import read_csv

    path = tmp_path_factory.mktemp("rows") / "a.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter=delimiter).writerows([("q", "a b"), *rows])
    assert [row for _, row in read_csv(path, delimiter)] == [{"q": q, "a b": a} for q, a in rows]


def test_a_broken_array_is_reported_before_the_rest_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b'[{"id": 1},\n{"x" 2},\n' + b'{"y": "' + b"z" * 40_000_000 + b'"}]')
    tracemalloc.start()
    with pytest.raises(RowError, match=r":2:6: broken JSON"):
        read(path)
    assert tracemalloc.get_traced_memory()[1] < 10_000_000
    tracemalloc.stop()


def test_a_line_that_is_too_long_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evaluator.batch.rows.file_rows.MAX_ROW_BYTES", 1 << 20)
    for name, data in (("a.jsonl", b'{"x": "'), ("a.json", b'[{"x": "'), ("a.csv", b"id\n")):
        path = tmp_path / name
        path.write_bytes(data + b"z" * 3_000_000 + b'"}]')
        with pytest.raises(RowError, match="longer than 1 MiB"):
            read(path)


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json", "rows.csv", "rows.parquet"])
def test_memory_does_not_grow_with_the_rows(name: str, tmp_path: Path) -> None:
    def peak(count: int) -> int:
        path = tmp_path / name
        rows = [{"question": f"{n:040}", "target": "x" * 100} for n in range(count)]
        path.write_bytes(
            as_parquet(rows, row_group_size=1000) if name == "rows.parquet" else WRITERS[name](rows)
        )
        del rows
        tracemalloc.start()

        async def drain() -> int:
            return len([None async for _ in open_rows(path, RowMapping(id="question"))])

        assert asyncio.run(drain()) == count
        held = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return held

    few, many = peak(1000), peak(6000)
    # Ids take about 100 bytes each; the rows themselves would take ten times as much.
    assert many - few < 5000 * 200


def test_the_description_matches_the_file(tmp_path: Path) -> None:
    import hashlib

    for name, rows in (
        ("rows.jsonl", 2),
        ("rows.csv", None),
        ("rows.jsonl.gz", None),
        ("rows.parquet", 2),
    ):
        path = tmp_path / name
        data = WRITERS[name](ROWS)
        path.write_bytes(data)
        source = open_rows(path)
        said = {"kind": path.suffixes[0][1:], "path": str(path), "bytes": len(data)}
        said["sha256"] = hashlib.sha256(data).hexdigest()
        assert source.description == (said if rows is None else {**said, "rows": rows})
        assert source.total == rows


@pytest.mark.parametrize(
    ("data", "rows"),
    [
        (b"{}\n", 1),
        (b"{}", 1),
        (b"{}\n\n \t\n{}\r\n{}", 3),
        (b'{"x":"' + b" " * 3_000_000 + b'"}\n{}\n', 2),
    ],
    ids=["one", "no end", "blank lines", "long"],
)
def test_the_rows_of_a_jsonl_file_are_its_nonblank_lines(
    data: bytes, rows: int, tmp_path: Path
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(data)
    assert open_rows(path).total == rows == len(read(path))


def test_the_file_is_closed_when_reading_stops_early(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(as_jsonl([{"id": n} for n in range(100)]))

    async def first() -> str:
        async with aclosing(aiter(open_rows(path))) as rows:
            async for sample in rows:
                return sample.id
        return ""

    assert asyncio.run(first()) == "0"
    assert len(read(path, selection=Selection(limit=3))) == 3


def test_other_tasks_run_while_rows_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(
        as_jsonl([{"id": n, "kind": "no" if n < 20_000 else "yes"} for n in range(20_001)])
    )

    async def main() -> tuple[int, int]:
        turns = 0

        async def tick() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        rows = open_rows(path, selection=Selection(where="kind == 'yes'"))
        ticking = asyncio.ensure_future(tick())
        found = [sample.place async for sample in rows]
        ticking.cancel()
        return found[0], turns

    place, turns = asyncio.run(main())
    assert place == 20_000 and turns > 3


def test_parquet_without_its_library_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    path = tmp_path / "a.parquet"
    path.write_bytes(as_parquet(ROWS))
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(MissingExtra, match=r"evaluator\[parquet\]"):
        open_rows(path)


def test_a_parquet_row_without_a_json_form_is_reported_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(as_parquet([{"id": "a", "x": 1.5}, {"id": "b", "x": float("nan")}]))
    with pytest.raises(RowError, match=r"a\.parquet:row 1: x is nan") as caught:
        read(path)
    assert (caught.value.place, caught.value.line) == (1, None)


@pytest.mark.parametrize("is_small", [True, False])
def test_rows_that_were_checked_are_not_read_again_unless_they_are_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_small: bool
) -> None:
    monkeypatch.setattr(checked_samples, "SLICE", 2)
    if not is_small:
        monkeypatch.setattr(checked_samples, "MAX_CHECKED_BYTES", 1)
    path = tmp_path / "rows.jsonl"
    lines = [f'{{"id": "r{n}", "q": "\\ud800", "n": [{10**30 + n}, null]}}\n' for n in range(5)]
    path.write_text("".join(lines))
    shots = (Shot({"q": "Why?"}, "so"),)
    rows = open_rows(path, RowMapping(), choose_shots=lambda row, inputs: shots)
    checked: list[Sample] = []
    rows.check(checked.append, with_shots=True)
    assert [sample.id for sample in checked] == ["r0", "r1", "r2", "r3", "r4"]
    path.write_text(lines[0])
    again = asyncio.run(_all_samples(rows))
    assert again == (checked if is_small else checked[:1])
    assert asyncio.run(_all_samples(rows)) == checked[:1]


async def _all_samples(rows: RowSource) -> list[Sample]:
    return [sample async for sample in rows]


def test_samples_as_data_are_read_as_samples() -> None:
    samples = [Sample(f"s{n}", {"q": [n]}, n, shots=(Shot({}, "a"),) * n) for n in range(3)]
    packed = checked_samples.PackedSamples([sample.pack() for sample in samples])
    assert [*packed] == samples and len(packed) == 3
    assert packed[1] == samples[1] and [*packed[1:]] == samples[1:]
    assert samples[2] in packed
