"""The index of results, and the memory that reading results back takes."""

from __future__ import annotations

import tracemalloc

import pytest

from evaluator.batch import SampleResult, Verdict
from evaluator.batch import folder as folder_module
from evaluator.batch.folder import BatchFolder
from evaluator.batch.result_index import ResultIndex
from evaluator.batch.summary import Columns, summarise
from evaluator.store.columns import Interner


def key_of(number: int) -> str:
    return f"{number:016x}"


def an_index(count: int) -> ResultIndex:
    index = ResultIndex(Interner())
    for number in range(count):
        put(index, number, 900 * number)
    return index


def put(
    index: ResultIndex,
    number: int,
    offset: int,
    identity: bytes = b"a" * 32,
    scored_by: bytes = b"b" * 16,
    verdict: bytes = b"passed",
    is_retryable: bool = False,
) -> None:
    key = key_of(number)
    place = index._keys.number(key)
    retryable = b"true" if is_retryable else b"false"
    index.put(place, offset, (key.encode(), identity, scored_by, verdict, retryable))


def a_result(number: int) -> SampleResult:
    return SampleResult(
        f"{number:032x}", f"row-{number}", number, 1, "t", "v", Verdict.PASSED, {}, duration_s=0.5
    )


def test_the_last_entry_of_a_key_counts_in_the_place_of_its_first() -> None:
    index = an_index(3_000)
    put(index, 7, 5, b"c" * 32, b"", b"error", is_retryable=True)
    entry = index[key_of(7)]
    assert (entry.offset, entry.identity, entry.scored_by) == (5, b"c" * 32, b"")
    assert entry.verdict is Verdict.ERROR and entry.retryable
    assert list(index) == [key_of(number) for number in range(3_000)]
    assert index[key_of(8)].offset == 7_200 and index.get("0" * 15 + "g") is None


def test_entries_are_taken_in_any_order_and_once() -> None:
    index = an_index(3_000)
    taken = [0, 1, 2, 2_999, 5, 4, 3, 1_500]
    assert [index.pop(key_of(number)).offset // 900 for number in taken] == taken
    assert index.pop(key_of(4)) is None and key_of(5) not in index and key_of(6) in index
    assert len(index) == 2_992 and len(list(index.values())) == 2_992
    for key in list(index):
        index.pop(key)
    assert not index and not list(index)


def test_an_entry_is_found_by_its_identity() -> None:
    index = an_index(2)
    put(index, 9, 4, b"d" * 32, b"", b"failed")
    find = index.by_identity()
    assert find("d" * 32).offset == 4 and find("a" * 32).offset == 900 and find("e" * 32) is None


@pytest.mark.parametrize("block", [1, 700, 1_000_000])
def test_lines_are_read_in_blocks_of_any_size(
    tmp_path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    results = [a_result(number) for number in range(20)]
    with BatchFolder.create(tmp_path / "batch") as folder:
        folder.write_manifest({})
        folder.append(*results)
    monkeypatch.setattr(folder_module, "_BLOCK_BYTES", block)
    reader = BatchFolder.reader(tmp_path / "batch")
    assert [each.sample_id for each in reader.results()] == [each.sample_id for each in results]
    index = reader.index()
    assert [reader.read_at(entry.offset).place for entry in index.values()] == list(range(20))
    data = (tmp_path / "batch" / "results.jsonl").read_bytes()
    assert [data[start:end].count(b"\n") for start, end, _ in reader.entries()] == [1] * 20


def test_the_verdicts_are_those_of_the_entries_that_are_left() -> None:
    index = an_index(3)
    put(index, 1, 5, verdict=b"error")
    assert list(index.verdicts()) == [Verdict.PASSED, Verdict.ERROR, Verdict.PASSED]
    index.pop(key_of(0))
    assert list(index.verdicts()) == [entry.verdict for entry in index.values()]
    assert list(index.verdicts()) == [Verdict.ERROR, Verdict.PASSED]


def test_memory_holds_no_results_and_no_entries() -> None:
    columns = Columns(None, None)
    index = ResultIndex(columns.keys)
    result = a_result(0).to_dict()

    def add(numbers: range) -> None:
        for number in numbers:
            key = key_of(number)
            columns.add(result | {"key": key, "sample_id": key, "task_id": number})
            put(index, number, number)

    tracemalloc.start()
    try:
        add(range(4_096))
        before = tracemalloc.get_traced_memory()[0]
        add(range(4_096, 8_192))
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    # The numbers of keys are in memory until there are many. An entry as an object has over 300.
    assert grown / 4_096 < 100, grown
    assert len(columns) == len(index) == 8_192


def test_a_summary_of_many_results_has_the_numbers_of_all() -> None:
    summary = summarise((a_result(number) for number in range(5_000)), total=5_001)
    assert summary.counts.passed == 5_000 and summary.counts.pending == 1
    assert summary.samples == 5_000 and summary.durations.p50 == 0.5


@pytest.mark.parametrize("name", ["key", "sample_id"])
def test_a_result_whose_ids_are_numbers_is_not_a_result(name: str) -> None:
    """Their hashes do not spread: a full part of the table of keys would be searched forever."""
    columns = Columns(None, None)
    columns.add(a_result(1).to_dict())
    with pytest.raises(TypeError, match="are text"):
        columns.add(a_result(2).to_dict() | {name: 2})
    assert len(columns) == 1
