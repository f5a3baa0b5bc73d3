"""`task-queue.json` is the queue for a person: without a store it is taken over or refused, and an
edit is taken over entry by entry."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from evaluator import UsageError
from evaluator.jobs.document import read_document
from evaluator.queue import TaskQueue

EXAMPLE = (Path(__file__).parent / "example.json").read_bytes()
XML = """<task name="slow" type="script"><description>Wait for a file</description>
<command shell="true">while ! test -e go; do sleep 0.01; done; echo done</command></task>
<task name="fast"><description>Work fast</description><instructions>FAST</instructions></task>"""


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "queue"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture
def file(folder):
    return folder / "task-queue.json"


def lose_store(folder):
    for path in folder.glob("queue.sqlite*"):
        path.unlink()


def edit(file, *changes, **settings):
    """Changes fields of entries in the published file; a change of an unknown entry adds it."""
    value = json.loads(file.read_bytes())
    entries = {task["id"]: task for task in value["tasks"]}
    for change in changes:
        entries.setdefault(change["id"], {**value["tasks"][0]}).update(change)
    value.update(tasks=list(entries.values()), **settings)
    file.write_text(json.dumps(value))


def test_a_file_without_a_store_is_taken_over_and_its_ids_go_on(folder, file):
    value = json.loads(EXAMPLE)
    value["lastId"] = "T-07"
    file.write_text(json.dumps(value))
    notices = []
    with TaskQueue(folder, notice=notices.append) as queue:
        assert [entry.id for entry in queue.list()] == ["T-01", "T-02", "T-03"]
        assert queue.add("more").id == "T-08"
        assert queue.stats().max_retries == value["maxRetries"]
    assert len(notices) == 1 and "taken over: 3" in notices[0]
    assert [e.id for e in read_document(file.read_bytes(), "q").tasks][-1] == "T-08"


def test_a_lost_store_gives_no_id_twice(folder, file, clock):
    with TaskQueue(folder) as queue:
        for text in ("one", "two", "three"):
            queue.add(text)
        queue.skip("T-03")
        clock.now += 1e7
        assert queue.archive() == {"2026-03": ["T-03"]}
    for lost in ((), (file,)):
        lose_store(folder)
        for path in lost:
            path.unlink()
        with TaskQueue(folder) as queue:
            assert queue.add("more").id == ("T-05" if lost else "T-04")
            assert queue.show("T-03").entry.description == "three"
            queue.skip("T-05" if lost else "T-04")
            clock.now += 1e7
            queue.archive()
    lose_store(folder)
    file.unlink()
    (folder / "archive" / "2026-03.json").unlink()
    (folder / "deliverables").mkdir()
    (folder / "deliverables" / "T-11.md").write_text("an answer")
    with TaskQueue(folder) as queue:
        assert queue.add("more").id == "T-12"


def test_what_does_not_conflict_is_taken_over_and_each_conflict_is_named(folder, file, clock):
    notices = []
    with TaskQueue(folder, notice=notices.append) as queue:
        for text in ("one", "two", "three", "four"):
            queue.add(text)
        queue.publish()
        edit(
            file,
            {"id": "T-01", "goal": "first"},
            {"id": "T-02", "status": "done"},
            {"id": "T-03", "status": "skipped"},
            {"id": "T-04", "retries": "many"},
            {"id": "T-05", "description": "five"},
            maxConcurrent=0,
            archiveDays=30,
        )
        edited = file.read_bytes()
        assert queue.publish()
        found = {entry.id: entry for entry in queue.list()}
        assert (found["T-01"].goal, found["T-02"].status) == ("first", "pending")
        assert (found["T-03"].status, found["T-05"].description) == ("skipped", "five")
        assert (queue.stats().archive_days, queue.stats().max_concurrent) == (30, 2)
        assert queue.add("six").id == "T-06"
    said = "\n".join(notices)
    assert "added T-05; changed T-01, T-03" in said
    for place in ("$.maxConcurrent is 0", "$.tasks[3].retries is 'many'", "$.tasks[1] (T-02) is"):
        assert place in said
    assert (folder / "task-queue.conflict.json").read_bytes() == edited
    assert [entry.id for entry in read_document(file.read_bytes(), "q").tasks][-1] == "T-06"


def test_an_edit_while_workers_run_is_taken_over_at_once(folder, file, make_evaluator, tmp_path):
    """The worker is busy with T-01 until the edit of T-02 is in the store. The editor still had
    T-01 as pending, which is not an edit."""
    notices = []
    with TaskQueue(folder, notice=notices.append) as queue, TaskQueue(folder) as other:
        queue.configure(max_concurrent=1)
        queue.add("one", template="slow")
        queue.add("two", template="fast")
        queue.publish()
        as_opened = file.read_bytes()

        async def edit_while_it_runs():
            while other.show("T-01").entry.status != "running":  # noqa: ASYNC110, another connection
                await asyncio.sleep(0.01)
            file.write_bytes(as_opened)
            edit(file, {"id": "T-02", "status": "skipped"})
            while other.show("T-02").entry.status != "skipped":  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            (tmp_path / "go").touch()

        async def both():
            await asyncio.gather(
                queue.work(make_evaluator(XML), until_empty=True), edit_while_it_runs()
            )

        asyncio.run(both())
        assert [entry.status for entry in queue.list()] == ["done", "skipped"]
    assert [line.rpartition("edited: ")[2] for line in notices] == ["changed T-02"]
    assert [entry.status for entry in read_document(file.read_bytes(), "q").tasks] == [
        "done",
        "skipped",
    ]


CONTRADICTIONS = [
    (1, {"deliverable": None}, "status is done, and deliverable is null"),
    (0, {"retries": 9}, "retries is 9, more than maxRetries, which is 3"),
    (2, {"blocked_reason": None}, "status is blocked, and blocked_reason is null"),
    (2, {"status": "pending"}, "status is pending, and there is a completed_at"),
    (0, {"status": "pending", "completed_at": None}, "there is a deliverable"),
    (0, {"completed_at": "2026-02-01T00:00:00Z"}, "completed_at is before the entry was started"),
]


@pytest.mark.parametrize(("index", "fields", "problem"), CONTRADICTIONS)
def test_an_entry_that_contradicts_itself_is_refused(folder, tmp_path, index, fields, problem):
    value = json.loads(EXAMPLE)
    value["tasks"][index].update(fields)
    path = tmp_path / "other.json"
    path.write_text(json.dumps(value))
    with TaskQueue(folder) as queue:
        with pytest.raises(UsageError, match=rf"tasks\[{index}\] .* contradicts itself") as caught:
            queue.import_file(path)
        assert problem in str(caught.value) and queue.list() == []
        path.write_bytes(EXAMPLE)
        assert len(queue.import_file(path).added) == 3
