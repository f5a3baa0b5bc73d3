"""Shards that were evaluated apart merge to the batch that would have been run at once."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from evaluator import RecordError, TaskBusy, TaskStore, UsageError
from evaluator.batch import BatchOptions, Selection, merge_shards, open_batch
from evaluator.batch.folder import BatchFolder
from evaluator.batch.identity import seal_line
from evaluator.batch.rows import RowMapping, open_rows
from evaluator.batch.rows.object_rows import Shard
from tests.batch.conftest import ROWS

SHARDS = 3
# Two rows with the same content get ids by their order in the whole source.
TWINS = [
    {name: value for name, value in row.items() if name != "id"}
    for row in [*ROWS, ROWS[2], ROWS[2]]
]
WRONG = [{**row, "target": "wrong"} if row["id"] in ("r2", "r7") else row for row in ROWS]


@pytest.fixture
def shards(run: Any, tmp_path: Path) -> Any:
    """`shards(rows, **options)`: the folders of a batch's shards."""

    def make(rows: Any = ROWS, numbers: Any = range(1, SHARDS + 1), **options: Any) -> list[Path]:
        select = options.pop("select", {})
        folders: list[Path] = []
        for number in numbers:
            folders.append(tmp_path / f"shard-{number}")
            given = {"scorers": ["exact"], "output": folders[-1], **options}
            assert run(rows, select={**select, "shard": f"{number}/{SHARDS}"}, **given).is_complete
        return folders

    return make


def numbers(folder: Path) -> dict[str, Any]:
    """The summary without what differs between two runs of the same batch: times."""

    def without_times(value: Any) -> Any:
        if isinstance(value, dict):
            return {
                name: without_times(inner)
                for name, inner in value.items()
                if not name.startswith("duration")
            }
        return [without_times(inner) for inner in value] if isinstance(value, list) else value

    return without_times(open_batch(folder).summarise().to_dict())


@pytest.mark.parametrize("rows", [WRONG, TWINS], ids=["with ids", "twins"])
def test_merged_shards_have_the_numbers_of_a_batch_that_was_run_at_once(
    run: Any, shards: Any, tmp_path: Path, rows: Any
) -> None:
    options: dict[str, Any] = {
        "epochs": 2,
        "select": {"sample": 8, "seed": 3},
        "thresholds": ["accuracy >= 0.5"],
    }
    whole = run(rows, scorers=["exact"], output=tmp_path / "whole", **options)
    merged = merge_shards(shards(rows, **options), tmp_path / "merged")
    found, expected = (
        {result.key: result for result in each.results()}
        for each in (merged, open_batch(whole.folder))
    )
    assert found.keys() == expected.keys() and len(found) == 16
    for key, result in found.items():
        same = expected[key]
        assert (result.identity, result.content, result.verdict) == (
            same.identity,
            same.content,
            same.verdict,
        )
    assert numbers(merged.folder) == numbers(whole.folder)
    assert (
        merged.manifest["state"] == "complete" and merged.totals == open_batch(whole.folder).totals
    )


def test_each_result_has_its_task_file_and_the_merged_batch_is_complete(
    run: Any, shards: Any, tmp_path: Path
) -> None:
    folders = shards()
    merged = merge_shards(folders, tmp_path / "merged")
    store = TaskStore(merged.folder / "tasks")
    ids = {result.task_id: result for result in merged.results()}
    assert len(ids) == len(ROWS) and {task.id for task in store.list()} == set(ids)
    for task_id, result in ids.items():
        header = store.read(task_id).header
        assert header is not None and header.inputs == result.inputs
    assert not list(tmp_path.glob(".merged*"))
    again = run(ROWS, scorers=["exact"], output=merged.folder, resume=True)
    assert again.is_complete and again.ended.ran == 0


def test_an_incomplete_merge_says_so_and_the_rest_can_be_run(
    run: Any, shards: Any, tmp_path: Path
) -> None:
    merged = merge_shards(shards(numbers=(1, 3)), tmp_path / "merged")
    assert merged.manifest["state"] == "incomplete"
    assert merged.summarise().unfinished == "the last session ended with: missing shards: 2/3"
    rest = run(ROWS, scorers=["exact"], output=merged.folder, resume=True)
    assert rest.is_complete and rest.ended.ran == len(ROWS) // SHARDS


def test_a_shard_that_no_row_falls_to_is_complete(run: Any, tmp_path: Path) -> None:
    ran = run(
        ROWS[:1], select={"shard": "2/2"}, output=tmp_path / "b", thresholds=["accuracy >= 1"]
    )
    assert ran.ok and ran.summary.counts.total == 0


def test_what_is_not_a_shard_of_the_same_batch_is_refused(
    run: Any, shards: Any, tmp_path: Path
) -> None:
    one, two, three = shards()
    run(ROWS, scorers=["exact"], output=tmp_path / "whole")
    run(ROWS, scorers=["exact"], select={"shard": "1/2"}, output=tmp_path / "half")
    run(ROWS, scorers=["includes"], select={"shard": "2/3"}, output=tmp_path / "other")
    shutil.copytree(two, tmp_path / "copy")
    for folders, error, message in [
        ([], UsageError, "name the folders of the shards"),
        ([one, tmp_path / "whole"], UsageError, "whole: not a shard; .* --shard K/N"),
        ([one, tmp_path / "half"], UsageError, "is shard 1/3 and .* is shard 1/2"),
        ([one, two, tmp_path / "copy"], UsageError, "are both shard 2/3; name one"),
        (
            [one, tmp_path / "other"],
            UsageError,
            "shards of different batches: they differ in `scorers`;",
        ),
        ([one, tmp_path / "none"], RecordError, "no such folder"),
        ([one, two, tmp_path / "." / one.name], UsageError, f"{one.name} is named twice"),
    ]:
        with pytest.raises(error, match=message):
            merge_shards(folders, tmp_path / "merged")
    with pytest.raises(RecordError, match="exists already"):
        merge_shards([one, two], three)
    with pytest.raises(UsageError, match="is inside of the shard"):
        merge_shards([one, two], two / "merged")
    with BatchFolder.open(two), pytest.raises(TaskBusy):
        merge_shards([one, two], tmp_path / "merged")
    with pytest.raises(UsageError, match="holds the batch of shard 1/3, not 2/3"):
        run(ROWS, scorers=["exact"], select={"shard": "2/3"}, output=one, resume=True)
    assert not (tmp_path / "merged").exists() and not list(tmp_path.glob(".merged*"))


def test_segments_are_linked_and_lost_records_and_lines_leave_the_batch_incomplete(
    run: Any, shards: Any, tmp_path: Path
) -> None:
    one, two, three = shards()
    merged = merge_shards([one, two, three], tmp_path / "merged")
    found = sorted(merged.folder.glob("tasks/segments/*"))
    assert len(found) == SHARDS and all(path.stat().st_nlink == 2 for path in found)
    assert merged.manifest["state"] == "complete"

    (segment,) = one.glob("tasks/segments/*")
    segment.unlink()
    lines = (two / "results.jsonl").read_bytes().splitlines(keepends=True)
    (two / "results.jsonl").write_bytes(b"".join(lines[:-2]))
    lost = merge_shards([one, two, three], tmp_path / "lost")
    assert lost.manifest["state"] == "incomplete"
    assert lost.manifest["sessions"][-1]["reason"] == (
        f"shard 1/3 has lost the records of {len(lines) + 1} tasks; "
        f"shard 2/3 has lost 2 of its {len(lines)} results"
    )
    rest = run(ROWS, scorers=["exact"], output=lost.folder, resume=True)
    assert rest.is_complete and rest.ended.ran == 2


def test_a_sample_or_task_that_two_shards_have_is_refused(shards: Any, tmp_path: Path) -> None:
    one, two, _ = shards(task_files="each")
    [*_, result] = open_batch(one).results()
    with BatchFolder.open(two) as folder:
        folder.append(result)
    with pytest.raises(UsageError, match=r"sample 'r\d' .* is in another shard too"):
        merge_shards([one, two], tmp_path / "merged")
    one, three = tmp_path / "shard-1", tmp_path / "shard-3"
    name = next((one / "tasks" / "done").iterdir()).name
    (three / "tasks" / "done" / name).write_text("other")
    with pytest.raises(RecordError, match="another shard has a task file of this name"):
        merge_shards([one, three], tmp_path / "merged")


def test_a_damaged_shard_is_refused(shards: Any, tmp_path: Path) -> None:
    folders = shards()
    path = folders[1] / "results.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"verdict":"passed"', b'"verdict":"failed"', 1))
    with pytest.raises(RecordError, match=r"results\.jsonl:1"):
        merge_shards(folders, tmp_path / "merged")
    assert not list(tmp_path.glob(".merged*"))


def test_a_line_of_a_shard_that_is_not_a_result_is_refused_by_its_number(
    shards: Any, tmp_path: Path
) -> None:
    folders = shards()
    path = folders[1] / "results.jsonl"
    first, *rest = path.read_bytes().splitlines(keepends=True)
    data = json.loads(first) | {"epoch": [1]}
    del data["crc32"]
    path.write_bytes(b"".join([seal_line(json.dumps(data, separators=(",", ":"))), *rest]))
    with pytest.raises(RecordError, match=r"results\.jsonl:1: TypeError"):
        merge_shards(folders, tmp_path / "merged")


def dealt(shard: str | None, **select: Any) -> list[str]:
    rows = open_rows(ROWS, RowMapping(), Selection(shard=shard, **select))

    async def read() -> list[str]:
        return [sample.id async for sample in rows]

    found = asyncio.run(read())
    assert rows.total in (None, len(found))
    return found


@pytest.mark.parametrize(
    "select",
    [{}, {"sample": 5}, {"start": 2, "limit": 7}, {"where": "target != '4'"}],
    ids=json.dumps,
)
def test_shards_divide_the_selected_rows(select: dict[str, Any]) -> None:
    whole = dealt(None, **select)
    parts = [dealt(f"{number}/{SHARDS}", **select) for number in range(1, SHARDS + 1)]
    assert sorted(id for part in parts for id in part) == sorted(whole)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize("text", ["0/3", "4/3", "1", "a/b", "1/0", "-1/3", 3])
def test_an_invalid_shard_is_refused(text: Any) -> None:
    with pytest.raises(UsageError, match="expected K/N with K from 1 to N"):
        BatchOptions(select={"shard": text})  # pyright: ignore[reportArgumentType]


def test_a_shard_knows_its_part() -> None:
    assert [*Shard.parse("2/3").select(range(7), 0)] == [1, 4]
    assert [*Shard.parse("2/3").select(range(3, 7), 3)] == [4]
    assert Shard.parse("2/3").size(7) == 2


def test_merged_shards_count_what_replaced_and_left_out_results_have_used(
    shards: Any, tmp_path: Path
) -> None:
    shards(ROWS)
    changed = [{**ROWS[0], "question": "What is 7 + 7?", "target": "14"}, *ROWS[1:]]
    few: dict[str, Any] = {"on_changed": "run", "select": {"limit": 8}}
    folders = shards(changed, resume=True, **few)
    merged = merge_shards(folders, tmp_path / "merged")
    stored = BatchFolder.reader(merged.folder).summary()
    summary = merged.summarise()
    assert stored == summary.to_dict()
    assert (summary.counts.passed, summary.left_out) == (8, 2)
    parts = [open_batch(folder).summarise() for folder in folders]
    assert summary.replaced_spending is not None
    expected = sum(
        part.replaced_spending.input_tokens.known for part in parts if part.replaced_spending
    )
    assert summary.replaced_spending.input_tokens.known == expected > 0
    spending = sum(part.spending.input_tokens.known for part in parts)
    assert summary.spending.input_tokens.known == spending
