"""The index of a batch's results, read in the background, and the store of their texts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from evaluator.batch.folder import RESULTS
from evaluator.batch.identity import seal_line
from evaluator.viewer.server import batch_index, text_store
from evaluator.viewer.server.batch_index import BatchIndex
from evaluator.viewer.server.matrix import Matrix, MatrixQuery
from evaluator.viewer.server.text_store import TextStore
from tests.batch.export.results import result
from tests.viewer.batches import ONE, append, numbered, write_batch

CELLS = [(ONE["template"], ONE["variant"])]


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every batch is read in the background, in several steps."""
    monkeypatch.setattr(batch_index, "LINES", 7)
    monkeypatch.setattr(batch_index, "LITTLE_BYTES", -1)
    monkeypatch.setattr(text_store, "BLOCK_BYTES", 100)


def found(index: BatchIndex, **wanted: str) -> list[str]:
    samples = Matrix(index).select(MatrixQuery(**wanted), CELLS).samples
    return [index.result(index.results_of(sample)[0]).sample_id for sample in samples]


def test_an_index_that_is_read_in_steps_has_every_result_and_its_text(tmp_path: Path) -> None:
    index = BatchIndex(write_batch(tmp_path / "b", numbered(50)))
    index.update(CELLS, (), with_texts=True)
    assert (len(index), index.unread, index.unsearched, index.problem) == (50, 0, 0, "")
    assert found(index) == [f"s{n}" for n in range(50)]
    assert found(index, text="s4") == ["s4", *(f"s{n}" for n in range(40, 50))]


def test_a_page_has_the_first_results_also_where_reading_them_takes_longer(tmp_path: Path) -> None:
    index = BatchIndex(write_batch(tmp_path / "b", numbered(50)))
    index.update(CELLS, (), wait_s=0)
    assert len(index) >= 7


def test_a_page_that_does_not_wait_gets_what_is_read_so_far(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_index, "FIRST_S", 0)
    index = BatchIndex(write_batch(tmp_path / "b", numbered(50)))
    with index.lock:  # the reading thread cannot add its first lines before the end of this block
        index.update(CELLS, (), wait_s=0)
        assert found(index) == []
        assert index.unread == 1
        assert index.unsearched == 1
    index.update(CELLS, (), with_texts=True)
    assert len(found(index)) == 50


def test_a_batch_that_grows_and_replaces_results_is_found_as_it_is_now(tmp_path: Path) -> None:
    path = write_batch(
        tmp_path / "b", [result("old", place=0, content="first answer"), *numbered(20)]
    )
    index = BatchIndex(path)
    index.update(CELLS, (), with_texts=True)
    assert found(index, text="first answer") == ["old"]
    append(path, result("old", content="second answer"), result("new", content="third answer"))
    index.update(CELLS, (), with_texts=True)
    assert len(index) == 22
    assert found(index, text="first answer") == []
    assert found(index, text="second answer") == ["old"]
    assert found(index, text="third ANSWER".casefold()) == ["new"]


def test_a_batch_that_was_replaced_is_read_from_its_beginning(tmp_path: Path) -> None:
    path = write_batch(tmp_path / "b", numbered(20))
    index = BatchIndex(path)
    index.update(CELLS, (), with_texts=True)
    other = write_batch(tmp_path / "other", [result("x", content="of another batch")])
    (other / RESULTS).replace(path / RESULTS)
    index.update(CELLS, (), with_texts=True)
    assert found(index) == found(index, text="another") == ["x"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("duration_s", "x"),
        ("epoch", 2**70),
        ("place", None),
        ("verdict", "fine"),
        ("usage", []),
        ("sample_id", 3),
    ],
)
def test_a_sealed_line_that_is_no_result_ends_the_reading_and_changes_nothing_before_it(
    tmp_path: Path, name: str, value: object
) -> None:
    path = write_batch(tmp_path / "b", numbered(10))
    lines = (path / RESULTS).read_bytes().splitlines(keepends=True)
    entry = json.loads(lines[3]) | {name: value}
    del entry["crc32"]
    lines[3] = seal_line(json.dumps(entry, separators=(",", ":")))
    (path / RESULTS).write_bytes(b"".join(lines))
    index = BatchIndex(path)
    for _ in range(2):
        index.update(CELLS, (), with_texts=True)
        assert found(index, sort="duration") == found(index, text="s") == ["s0", "s1", "s2"]
        assert "not a " in index.problem


def test_a_text_is_found_in_its_own_row_only_and_across_no_end_of_one() -> None:
    store = TextStore()
    texts = ["ab", "b\nc", "", "x" * 300, "c\ud800", "ab\nb"]
    store.add(enumerate(texts))
    for text in ("a", "b", "ab\nb", "b\nb", "\n", "x" * 101, "c\ud800", "c\n", "no"):
        assert list(store.search(text)) == [text in each for each in texts], text


def test_a_cost_is_a_lower_bound_where_calls_were_interrupted(tmp_path: Path) -> None:
    first, second = numbered(2)
    known = BatchIndex(write_batch(tmp_path / "known", [first, second]))
    known.update(CELLS, (), with_texts=True)
    assert not known.has_interrupted_calls
    resumed = replace(second, interrupted_calls=1)
    index = BatchIndex(write_batch(tmp_path / "resumed", [first, resumed]))
    index.update(CELLS, (), with_texts=True)
    assert index.has_interrupted_calls and index.cost() == known.cost()
