"""A segment of somebody else is data: nothing in it starts something or reads another file."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from evaluator import RecordError, TaskStore
from evaluator.record.segment_writer import Segment
from evaluator.record.segments import frame_head
from evaluator.record.steps import StepStart
from tests.conftest import MakeEvaluator

SAY = (
    '<task name="say" type="atomic"><description>Say a word</description>'
    '<inputs><input name="word" type="string" required="true">it</input></inputs>'
    "<instructions>Say {{ word }}</instructions></task>"
)


def packed(root: Path, *, signed: bool, count: int = 1) -> TaskStore:
    """A folder with interrupted tasks in a segment."""
    store = TaskStore(root, is_packed=True)
    for _ in range(count):
        inputs = {"word": "hello"}
        extra: dict[str, Any] = {"root": str(root.parent)}
        journal = store.create(template="say", inputs=inputs, extra=extra, is_own=signed)
        journal.begin(StepStart("turn[1]", "model", "m", {}, "f"))
        journal.abandon()
    store.close()
    return store


@pytest.mark.parametrize("signed", [True, False], ids=["the control", "not signed"])
def test_a_task_that_this_user_did_not_write_is_not_resumed(
    make_evaluator: MakeEvaluator, tmp_path: Path, signed: bool
) -> None:
    asked: list[str] = []

    def answer(request: Any) -> str:
        asked.append(request.messages[-1].content)
        return "hello"

    evaluator = make_evaluator(SAY, script=answer, tasks_dir=tmp_path / "tasks")
    packed(tmp_path / "tasks", signed=signed)
    outcome = evaluator.resume_sync(1, unfinished="repeat", allow_changed=True)
    assert outcome.ok == signed and bool(asked) == signed
    if not signed:
        assert "--trust" in str(outcome) or "trust" in outcome.message  # type: ignore[union-attr]


def with_index(path: Path, rows: list[Any]) -> None:
    """Replaces the index of a segment by one with a right checksum and these rows."""
    data = path.read_bytes()
    at = data.rindex(b"<!-- index ", 0, data.rindex(b"<!-- index at"))
    body = json.dumps({"tasks": rows}).encode()
    body += b"\n<!-- index at %018d, last task %018d, unfinished %018d -->\n" % (at, 2, 1)
    head, _ = frame_head("index", len(rows), body, crc32(b"any"))
    path.write_bytes(data[:at] + head + body)


def test_an_index_that_gives_a_task_the_frames_of_another_is_not_believed(tmp_path: Path) -> None:
    store = packed(tmp_path / "tasks", signed=True, count=2)
    (path,) = store.root.glob("segments/*")
    index = json.loads(path.read_bytes().rsplit(b" -->\n", 2)[1].split(b"\n")[0])
    first, second = index["tasks"]
    with_index(path, [first, [2, *second[1:3], first[3]]])
    reader = TaskStore(store.root)
    assert reader.read(1).known_header().task_id == 1
    with pytest.raises(RecordError, match="the frames are not those of this task"):
        reader.read(2)
    assert [task.status for task in reader.list()] == ["unreadable", "interrupted"]


@pytest.mark.parametrize(
    "rows",
    [
        [[1, "running", None, [0, 10**15]]],
        [[1, "running", None, [-5, 10]]],
        [["1", "running", None, []]],
        [[1, "deleted", None, []]],
        [[1, "completed", None, [7]]],
        [[[1, 2, 3]]],
        "x",
    ],
    ids=str,
)
def test_an_index_with_other_values_reads_nothing_else(tmp_path: Path, rows: Any) -> None:
    store = packed(tmp_path / "tasks", signed=True)
    (path,) = store.root.glob("segments/*")
    with_index(path, rows)
    reader = TaskStore(store.root)
    assert all(task.status in ("unreadable", "interrupted") for task in reader.list())
    list(reader.labelled())
    try:
        reader.read(1)
    except RecordError:
        pass


HEADER = '["header",0,null,[1,"2026","",{},"say",null,null,null,null,null,2,{}]]'


@pytest.mark.parametrize("is_closed", [True, False], ids=["index", "frames"])
@pytest.mark.parametrize(
    "frame",
    [
        HEADER,
        HEADER.replace("{}]", "[]]"),
        HEADER.replace('"2026"', "[7]"),
        HEADER.replace('["header"', '["footer"'),
        HEADER.replace("[1,", "[null,"),
        HEADER.replace(',"2026"', ""),
        '["begin",1,null,["turn[1]","model","m"]]',
        '["end",1,null,["success",null,1,null,null,{"labels":[]}]]',
        f'{HEADER},["end",2,null,["success",null,1e999,null,null,null]]',
        f'{HEADER},["begin","x",null,[]]',
        f"{HEADER},7",
        f'{HEADER},["note",1,null,[]]',
        '{"header":' + "[" * 5_000,
        "",
    ],
)
def test_records_that_this_user_did_not_write_are_not_trusted_whatever_they_hold(
    tmp_path: Path, frame: str, is_closed: bool
) -> None:
    packed(tmp_path / "tasks", signed=True)
    (path,) = (tmp_path / "tasks").glob("segments/*")
    signature = re.findall(rb'\["([0-9a-f]{32})"', path.read_bytes())[0].decode()
    path.unlink()
    folder = os.open(path.parent, os.O_RDONLY)
    segment = Segment(path.parent, folder, 1)
    os.close(folder)
    segment.begin(1, None)
    segment.append([("running", 1, f'["{signature}",{frame}]\n'.encode())])
    segment.end(1)
    segment.close()
    if not is_closed:
        data = path.read_bytes()
        path.write_bytes(data[: data.index(b"<!-- index ")])
    reader = TaskStore(tmp_path / "tasks")
    assert all(task.status in ("unreadable", "interrupted") for task in reader.list())
    list(reader.labelled())
    try:
        recording = reader.read(1)
    except RecordError:
        return
    assert recording.unsigned == "header" and not recording.steps


def test_a_linked_folder_or_segment_is_not_followed(tmp_path: Path) -> None:
    packed(tmp_path / "other", signed=True)
    (path,) = (tmp_path / "other").glob("segments/*")
    for name in ("folder", "file"):
        (tmp_path / name).mkdir()
    (tmp_path / "folder" / "segments").symlink_to(tmp_path / "other" / "segments")
    (tmp_path / "file" / "segments").mkdir()
    (tmp_path / "file" / "segments" / path.name).symlink_to(path)
    for name in ("folder", "file"):
        with pytest.raises(RecordError, match="link"):
            TaskStore(tmp_path / name).read(1)
    assert TaskStore(tmp_path / "other").read(1).known_header().template == "say"
