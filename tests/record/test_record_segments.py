"""Tasks in segments read as their files would, whatever happens to the segment."""

from __future__ import annotations

import enum
import errno
import json
import math
import os
import subprocess
import sys
import uuid
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from evaluator import RecordError, TaskBusy, TaskStore, clock, disk
from evaluator.errors import RecordNotWritten, TaskNotBegun, UsageError
from evaluator.record import segment_writer
from evaluator.record.entries import Note
from evaluator.record.journal import Journal
from evaluator.record.redact import Redactor
from evaluator.record.segment_writer import Segment
from evaluator.record.segments import SegmentIndex
from evaluator.record.steps import StepEnd, StepStart, Summary

TEXT = "```\n## Step 9: fake <!-- end 9 1 0 0 -->\n<!-- completed 1 0 00000000 00000000 -->\n"


def summary(journal: Journal, status: str = "completed") -> Summary:
    result = {"status": "COMPLETE", "content": TEXT * 3}
    return Summary(status, journal.steps, 0, 0.5, {"turns": 1}, result)  # type: ignore[arg-type]


def begin(store: TaskStore, text: str = TEXT) -> Journal:
    journal = store.create("do it", {"text": text}, extra={"labels": {"sample": "a"}})
    journal.begin(StepStart("turn[1]", "model", "m", {"content": text}, "f"))
    journal.flush()
    return journal


def end(journal: Journal, status: str = "completed") -> None:
    journal.end(1, StepEnd("success", {"content": TEXT * 3}, 0.1))
    journal.close(summary(journal, status))


def packed(path: Path, count: int = 3) -> TaskStore:
    """A folder with so many tasks of each status."""
    store = TaskStore(path, is_packed=True)
    journals = [begin(store) for _ in range(3 * count)]
    for number, journal in enumerate(journals):
        if number % 3 == 0:
            end(journal)
        elif number % 3 == 1:
            end(journal, "failed")
        else:
            journal.abandon()
    return store


def segment_of(store: TaskStore) -> Path:
    (path,) = store.root.glob("segments/SEGMENT-*.md")
    return path


def copy_of(store: TaskStore, folder: Path) -> tuple[Path, bytes]:
    """A copy of the store's segment, which no process writes, and its content."""
    (folder / "segments").mkdir(parents=True)
    path = folder / "segments" / segment_of(store).name
    data = segment_of(store).read_bytes()
    path.write_bytes(data)
    return path, data


def test_the_file_made_from_a_segment_is_that_of_a_run_with_files_byte_for_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "wall_ns", lambda: 1_700_000_000_000_000_000)
    found: list[list[bytes]] = []
    for is_packed in (False, True):
        store = TaskStore(tmp_path / str(is_packed), is_packed=is_packed)
        first, second, third = begin(store), begin(store, "é\ud800"), begin(store)
        values = {"n": [None, math.nan, 2**70, -0.0, 1e300], "null": {3: "\ud800\n", "t": (1,)}}
        note = Note(StepStart("a", "parse", "é\n", values), StepEnd("failed", values, 0))
        third.add_note(note)
        third.add_note(note)
        end(second, "failed")
        end(first)
        third.abandon()
        store.close()
        found.append([TaskStore(store.root).content_of(number) for number in (1, 2, 3)])
    assert found[0] == found[1]
    assert not list((tmp_path / "True").glob("*/TASK-*"))
    assert b"- **Status**: failed " in found[0][1]


class Ambiguous:
    def __eq__(self, other: object) -> bool:
        raise ValueError("the truth value of an array is ambiguous")


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Word(enum.StrEnum):
    YES = "yes"


@pytest.mark.parametrize(
    "value",
    [
        Colour.RED,
        Level.HIGH,
        Word.YES,
        uuid.UUID(int=7),
        datetime(2026, 1, 2, tzinfo=UTC),
        Decimal(1),
        Path("x"),
        {1},
        b"x",
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("place", ["value", "list", "key"])
def test_a_segment_takes_the_values_that_a_task_file_takes(
    tmp_path: Path, value: Any, place: str
) -> None:
    if place == "key" and isinstance(value, set):
        return  # not a key in Python either
    output = {"value": value, "list": {"a": [value]}, "key": None}[place]
    if place == "key":
        output = {value: 1}
    found: list[Any] = []
    for is_packed in (False, True):
        store = TaskStore(tmp_path / str(is_packed), is_packed=is_packed)
        journal = begin(store)
        try:
            journal.end(1, StepEnd("success", output, 0.1))
            journal.flush()
        except UsageError as error:
            found.append(str(error).partition(" is not a JSON value: ")[2])
            journal.end(1, StepEnd("success", None, 0.1))
        else:
            (step,) = store.read(1).steps
            assert step.end is not None
            found.append(step.end.output)
        journal.close(Summary("completed", 1, 0, 0.1))
        store.close()
    assert found[0] == found[1]


@pytest.mark.parametrize("is_packed", [False, True])
def test_an_output_that_is_not_json_is_refused_whatever_it_is_equal_to(
    tmp_path: Path, is_packed: bool
) -> None:
    journal = begin(TaskStore(tmp_path, is_packed=is_packed))
    with pytest.raises(UsageError, match="Ambiguous is not a JSON value"):
        journal.end(1, StepEnd("success", Ambiguous(), 0.1))
    end(journal)


def test_a_segment_of_an_earlier_version_has_markdown_and_is_read(tmp_path: Path) -> None:
    store = packed(tmp_path / "new", 1)
    (tmp_path / "old" / "segments").mkdir(parents=True)
    folder = os.open(tmp_path / "old" / "segments", os.O_RDONLY)
    old = Segment(tmp_path / "old" / "segments", folder, 1)
    os.close(folder)
    for number, status in ((1, "completed"), (2, "failed"), (3, "released")):
        data = store.content_of(number)
        old.begin(number, None)
        old.append([("running", number, data[:700]), (status, number, data[700:])])  # type: ignore[list-item]
    reader = TaskStore(tmp_path / "old")
    for number in (1, 2, 3):
        assert reader.content_of(number) == store.content_of(number)
        assert reader.read(number).unsigned is None
    assert {str(labels) for _, _, labels in reader.labelled()} == {"{'sample': 'a'}"}


@pytest.mark.parametrize("is_closed", [True, False], ids=["index", "frames"])
def test_with_and_without_an_index_the_same_is_listed_and_read(
    tmp_path: Path, is_closed: bool
) -> None:
    store = packed(tmp_path / "tasks")
    if is_closed:
        store.close()
        assert (
            segment_of(store)
            .read_bytes()
            .endswith(b", last task 000000000000000009, unfinished 000000000000000003 -->\n")
        )
    reader = TaskStore(store.root)
    assert [task.id for task in reader.list()] == list(range(9, 0, -1))
    assert [task.id for task in reader.list(status="interrupted")] == [9, 6, 3]
    assert [task.id for task in reader.list(status="failed", limit=1, before=8)] == [5]
    assert {(number, status, str(labels)) for number, status, labels in reader.labelled(6)} == {
        (7, "completed", "{'sample': 'a'}"),
        (8, "failed", "{'sample': 'a'}"),
        (9, "interrupted", "{'sample': 'a'}"),
    }
    for task in reader.list():
        recording = reader.read(task.id)
        assert (task.header, task.status) == (recording.header, recording.status)
        if recording.summary is None:
            assert task.summary is None
        else:
            assert task.summary == replace(recording.summary, result=None)
    recording = reader.read(8)
    assert recording.status == "failed" and recording.steps[0].start.args == {"content": TEXT}
    assert reader.last_id() == (9 if is_closed else 64)
    with pytest.raises(TaskNotBegun, match="there is no task 10"):
        reader.read(10)


def test_a_task_is_two_writes_and_a_turn_of_the_loop_adds_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = TaskStore(tmp_path / "tasks", is_packed=True)
    begin(store).abandon()
    writes: list[bytes] = []
    real = disk.pwrite

    def pwrite(fd: int, data: bytes, offset: int) -> int:
        writes.append(data)
        return real(fd, data, offset)

    monkeypatch.setattr(disk, "pwrite", pwrite)
    journal = begin(store)
    end(journal)
    assert [data.split(b" ")[1:3] for data in writes] == [[b"running", b"2"], [b"completed", b"2"]]


def test_any_prefix_reads_as_a_prefix_and_zeros_at_the_end_are_ignored(tmp_path: Path) -> None:
    path, data = copy_of(packed(tmp_path / "tasks", 1), tmp_path / "copy")
    statuses: set[tuple[str, ...]] = set()
    for size in range(len(data)):
        path.write_bytes(data[:size] + bytes(64 * (size % 2)))
        reader = TaskStore(tmp_path / "copy")
        assert reader.damage() == []
        statuses.add(tuple(sorted(str(status) for _, status, _ in reader.labelled())))
    assert statuses == {
        (),
        ("interrupted",),
        ("interrupted", "interrupted"),
        ("interrupted", "interrupted", "interrupted"),
        ("completed", "interrupted", "interrupted"),
        ("completed", "failed", "interrupted"),
    }


def test_each_changed_byte_is_seen_and_repair_keeps_the_frames_before(tmp_path: Path) -> None:
    path, data = copy_of(packed(tmp_path / "tasks", 1), tmp_path / "copy")
    # Without its last byte the last frame is torn, which is no damage.
    for place in range(0, len(data) - 1, 7):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        reader = TaskStore(tmp_path / "copy")
        (damage,) = reader.damage()
        assert damage.offset <= place and str(path) in str(damage)
        kept = len(list(reader.labelled()))
        reader.damage(repair=True)
        assert path.read_bytes() == data[: damage.offset]
        reader = TaskStore(tmp_path / "copy")
        assert reader.damage() == [] and len(list(reader.labelled())) == kept
        (copy,) = path.parent.glob("*.damaged-1")
        assert copy.stat().st_size == len(data)
        copy.unlink()


def test_a_changed_index_is_not_believed(tmp_path: Path) -> None:
    store = packed(tmp_path / "tasks", 1)
    store.close()
    path = segment_of(store)
    data = path.read_bytes()
    path.write_bytes(data.replace(b'[1,"completed"', b'[1,"comp1eted"'))
    assert [str(each.message) for each in TaskStore(store.root).damage()] == [
        "a frame's content has been changed"
    ]
    assert len(list(TaskStore(store.root).labelled())) == 3


def test_an_unfinished_task_is_resumed_in_a_file_of_its_own(tmp_path: Path) -> None:
    packed(tmp_path / "tasks", 1).close()
    store = TaskStore(tmp_path / "tasks", is_packed=True)
    journal, recording = store.reopen(3)
    assert recording.status == "interrupted" and len(recording.steps) == 1
    with pytest.raises(TaskBusy):
        TaskStore(store.root).reopen(3)
    journal.begin(StepStart("turn[1]", "model", "m", {"content": TEXT}, "f", attempt=2))
    journal.end(1, StepEnd("success", {"content": "done"}, 0.1))
    journal.close(summary(journal))
    assert (store.root / "done" / "TASK-3.md").is_file()
    assert TaskStore(store.root).read(3).status == "completed"
    assert [task.id for task in TaskStore(store.root).list()] == [3, 2, 1]
    assert store.create().id == 4


HOLD = """
import sys
from tests.record.test_record_segments import begin, end
from evaluator.record.store import TaskStore
store = TaskStore(sys.argv[1], is_packed=True)
first, second = begin(store), begin(store)
end(first)
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_task_of_a_living_process_runs_and_of_a_killed_one_is_interrupted(
    tmp_path: Path,
) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "tasks")],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None and holder.stdout.readline() == b"ready\n"
    store = TaskStore(tmp_path / "tasks")
    assert [task.status for task in store.list()] == ["running", "completed"]
    with pytest.raises(TaskBusy, match=f"TASK-2 is run by process {holder.pid}"):
        store.reopen(2)
    owner = store.read(2).owner
    assert owner is not None
    holder.kill()
    holder.communicate()
    assert [task.status for task in store.list()] == ["interrupted", "completed"]
    assert {number for number, *_ in store.labelled(packed_by=owner)} == {1, 2}
    journal, _ = store.reopen(2)
    journal.abandon()


def test_a_full_segment_is_followed_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_writer, "MAX_TASKS", 2)
    store = TaskStore(tmp_path / "tasks", is_packed=True)
    journals = [begin(store) for _ in range(5)]
    for journal in reversed(journals):
        end(journal)
    store.close()
    names = sorted(path.name for path in store.root.glob("segments/*"))
    assert names == ["SEGMENT-1.md", "SEGMENT-3.md", "SEGMENT-5.md"]
    assert all(b"<!-- index at" in path.read_bytes() for path in store.root.glob("segments/*"))
    assert [task.id for task in TaskStore(store.root).list()] == [5, 4, 3, 2, 1]


def test_ids_are_given_once_by_several_stores(tmp_path: Path) -> None:
    stores = [TaskStore(tmp_path / "tasks", is_packed=number < 2) for number in range(3)]
    ids: list[int] = []
    for number in range(200):
        journal = begin(stores[number % 3])
        ids.append(journal.id)
        journal.abandon()
    assert len(set(ids)) == 200
    stores[0].skip_to(5_000)
    assert stores[0].create().id > 5_000
    assert TaskStore(tmp_path / "tasks").last_id() >= max(ids)


def test_a_full_disk_fails_one_task_and_leaves_the_segment_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = TaskStore(tmp_path / "tasks", is_packed=True)
    first, second = begin(store), begin(store)
    real = disk.pwrite

    def half(fd: int, data: bytes, offset: int) -> int:
        if len(data) > 100:
            monkeypatch.setattr(disk, "pwrite", full)
            return real(fd, data[:50], offset)
        return real(fd, data, offset)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(disk, "pwrite", half)
    with pytest.raises(
        RecordNotWritten, match=r"SEGMENT-1\.md: cannot write to the task file: No sp"
    ):
        end(first)
    monkeypatch.setattr(disk, "pwrite", real)
    first.abandon()
    end(second)
    store.close()
    reader = TaskStore(store.root)
    assert reader.damage() == []
    assert [task.status for task in reader.list()] == ["completed", "interrupted"]


def test_after_a_failed_sync_no_task_of_the_segment_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = TaskStore(tmp_path / "tasks", sync="step", is_packed=True)
    first, second = begin(store), begin(store)
    first.sync()

    def fail(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(disk, "fdatasync", fail)
    second.end(1, StepEnd("success", "out", 0.1))
    second.flush()
    with pytest.raises(RecordNotWritten):
        second.sync()
    monkeypatch.undo()
    with pytest.raises(RecordNotWritten):
        end(first)


def test_one_sync_covers_what_all_tasks_have_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = TaskStore(tmp_path / "tasks", sync="step", is_packed=True)
    journals = [begin(store) for _ in range(4)]
    synced: list[int] = []
    monkeypatch.setattr(disk, "fdatasync", synced.append)
    for journal in journals:
        journal.sync()
    assert len(synced) == 1


@pytest.mark.parametrize("change", ["removed", "written to"])
def test_a_segment_that_somebody_changes_while_it_is_written_is_an_error(
    tmp_path: Path, change: str
) -> None:
    store = TaskStore(tmp_path / "tasks", is_packed=True)
    journal = begin(store)
    if change == "removed":
        segment_of(store).unlink()
    else:
        with segment_of(store).open("ab") as file:
            file.write(b"x")
    with pytest.raises(RecordError, match=r"segment was (removed|changed) while it was written"):
        end(journal)


def test_secrets_are_not_in_a_segment_nor_in_its_index(tmp_path: Path) -> None:
    secret = "sk-live-0123456789abcdef"
    redactor = Redactor.from_environment({"API_KEY": secret})
    store = TaskStore(tmp_path / "tasks", redactor=redactor, is_packed=True)
    journal = store.create("do it", {"text": secret}, extra={"labels": {"sample": secret}})
    journal.begin(StepStart("turn[1]", "model", "m", {"content": secret}, "f"))
    end(journal)
    store.close()
    content = segment_of(store).read_bytes()
    assert secret.encode() not in content and b"[redacted:API_KEY]" in content


@pytest.mark.parametrize(
    "text",
    [
        # as JSON, and as JSON in JSON
        r'"\\u0068\\u0075nter2-Secret"',
        r'"\"\\\\u0068\\\\u0075nter2-Secret\""',
        # od -c, with a line end before the secret
        "0000000  \\n   h   u   n   t   e   r   2   -   S   e   c   r   e   t\n",
    ],
)
def test_an_encoded_secret_that_is_found_in_a_text_is_found_in_a_segment(
    tmp_path: Path, text: str
) -> None:
    redactor = Redactor({"KEY": "hunter2-Secret"})
    assert "[redacted:KEY]" in redactor.redact(text)
    store = TaskStore(tmp_path / "tasks", redactor=redactor, is_packed=True)
    journal = store.create("do it")
    journal.note(StepStart("a", "parse", "m"), StepEnd("success", {"content": text}, 0))
    journal.flush()
    assert b"[redacted:KEY]" in segment_of(store).read_bytes()


def test_a_secret_in_a_dump_is_found_behind_another_text_that_looks_like_one(
    tmp_path: Path,
) -> None:
    dump = "0000000 2d 34 68 75 6e 74 65 72\n0000010 32 2d 53 65 63 72 65 74"
    redactor = Redactor({"KEY": "hunter2-Secret"})
    assert "[redacted:KEY]" in redactor.redact(dump)
    store = TaskStore(tmp_path / "tasks", redactor=redactor, is_packed=True)
    journal = store.create("do it")
    values = ["id\ndead beef", dump, "dead beef"]
    journal.note(StepStart("a", "parse", "m"), StepEnd("success", values, 0))
    journal.flush()
    content = segment_of(store).read_bytes()
    assert b"[redacted:KEY]" in content and b"63 72 65 74" not in content


def test_what_is_shaped_like_a_secret_is_not_written_where_a_line_begins_with_it(
    tmp_path: Path,
) -> None:
    secret = "sk-live-0123456789abcdef"
    store = TaskStore(tmp_path / "tasks", redactor=Redactor(), is_packed=True)
    end(begin(store, f"one\n{secret}\ntwo"))
    content = segment_of(store).read_bytes()
    assert secret.encode() not in content and b"one\\n[redacted:api-key]\\ntwo" in content


@pytest.mark.parametrize("secret", ['pa"ss\\word1xyz', "line-one\nline-two", "naïve-pässword"])
@pytest.mark.parametrize("is_packed", [False, True])
def test_a_secret_in_json_within_json_is_not_written(
    tmp_path: Path, secret: str, is_packed: bool
) -> None:
    store = TaskStore(tmp_path, redactor=Redactor({"KEY": secret}), is_packed=is_packed)
    text = json.dumps({"a": json.dumps({"key": secret}), "of": "nobody"})
    journal = store.create("do it", {"text": text})
    journal.begin(StepStart("turn[1]", "model", "m", {"content": text}, "f"))
    journal.flush()
    end(journal)
    content = TaskStore(tmp_path).content_of(1).decode()
    assert "[redacted:KEY]" in content and "nobody" in content
    assert json.dumps(json.dumps({"key": secret}))[3:-3] not in content


def test_a_segment_whose_tasks_have_ended_is_not_read_to_find_interrupted_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(2):
        store = TaskStore(tmp_path / "tasks", is_packed=True)
        end(begin(store))
        if number == 1:
            begin(store).abandon()
        store.close()
    read: list[str] = []
    real = SegmentIndex.read_on

    def read_on(self: SegmentIndex) -> None:
        read.append(self.path.name)
        real(self)

    monkeypatch.setattr(SegmentIndex, "read_on", read_on)
    assert [task.id for task in TaskStore(tmp_path / "tasks").interrupted()] == [3]
    assert set(read) == {"SEGMENT-2.md"}


def test_a_segment_is_synced_before_its_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who reads the index does not read the tasks: a loss of power could take these alone."""
    store = packed(tmp_path)
    changes: list[str] = []
    pwrite = disk.pwrite
    fdatasync = disk.fdatasync

    def write(descriptor: int, data: bytes, offset: int) -> int:
        if b"<!-- index" in data:
            changes.append("index")
        return pwrite(descriptor, data, offset)

    def sync(descriptor: int) -> None:
        changes.append("sync")
        fdatasync(descriptor)

    monkeypatch.setattr(disk, "pwrite", write)
    monkeypatch.setattr(disk, "fdatasync", sync)
    store.close()
    assert changes[:2] == ["sync", "index"]
