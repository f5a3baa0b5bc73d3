"""`task-queue.json` on the disk is a committed state of the store; files that people edit are imported or stay."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest

from evaluator import UsageError
from evaluator.jobs.document import document_bytes, parse_entry, read_document
from evaluator.jobs.entries import EntryOptions
from evaluator.jobs.queue_files import Publisher, archive, import_document
from evaluator.jobs.queue_store import QueueStore

EXAMPLE = (Path(__file__).parent / "example.json").read_bytes()


def add(store, text="do it"):
    return store.add(text, text, "unknown", EntryOptions()).id


@pytest.fixture
def notices():
    return []


@pytest.fixture
def publisher(store, tmp_path, notices):
    return Publisher(store, tmp_path, notices.append)


def edited(publisher, **fields):
    """Changes fields of the first entry in the published file."""
    value = json.loads(publisher.path.read_bytes())
    value["tasks"][0].update(fields)
    publisher.path.write_text(json.dumps(value))
    return publisher.path.read_bytes()


def test_an_imported_file_is_published_with_equal_fields(store, publisher):
    assert import_document(store, EXAMPLE, "x").added == ["T-01", "T-02", "T-03"]
    assert publisher.publish() and publisher.path.read_bytes() == EXAMPLE
    assert import_document(store, EXAMPLE, "x").unchanged == ["T-01", "T-02", "T-03"]
    assert add(store) == "T-04"


def test_an_ended_entry_without_completed_at_gets_the_last_time_that_it_names(store, publisher):
    value = json.loads(EXAMPLE)
    for task in value["tasks"]:
        del task["completed_at"]
    value["tasks"][0]["started_at"] = "2026-03-07T12:00:00+01:00"  # the latest one, in another zone
    data = json.dumps(value).encode()
    assert import_document(store, data, "x").dated == ["T-01", "T-02", "T-03"]
    found = [entry.completed_at for entry in map(parse_entry, store.documents())]
    assert found == ["2026-03-07T12:00:00+01:00", "2026-03-07T09:16:00Z", "2026-03-08T10:40:00Z"]
    again = import_document(store, data, "x")
    assert (again.unchanged, again.dated) == (["T-01", "T-02", "T-03"], [])
    assert list(archive(store, publisher.path.parent, days=0).values()) == [["T-01", "T-02"]]


def test_a_refused_file_changes_nothing(store, publisher):
    import_document(store, EXAMPLE, "x")
    publisher.publish()
    value = json.loads(EXAMPLE)
    value["tasks"][0]["goal"], value["maxConcurrent"] = "another goal", 7
    value["tasks"].append({**value["tasks"][0], "id": "T-02x"})
    with pytest.raises(UsageError, match=r"x: \$.tasks\[3\].id is 'T-02x'"):
        import_document(store, json.dumps(value).encode(), "x")
    value["tasks"][3] = {**value["tasks"][0], "id": "T-04"}
    value["tasks"][2]["added_at"], value["lastId"] = "2026-01-01T00:00:00Z", "T-04"
    with pytest.raises(UsageError, match=r"x: \$.tasks\[2\] is not the T-03 of this queue"):
        import_document(store, json.dumps(value).encode(), "x")
    publisher.publish()
    assert publisher.path.read_bytes() == EXAMPLE


def test_changes_are_published_by_a_thread_and_at_the_end(store, publisher):
    done, publish = threading.Event(), publisher.publish
    publisher.publish = lambda: (publish(), done.set())
    add(store)
    publisher.schedule()
    publisher.schedule()
    assert done.wait(200)
    assert [e.id for e in read_document(publisher.path.read_bytes(), "q").tasks] == ["T-01"]
    add(store)
    publisher.schedule()
    publisher.close()
    assert [e.id for e in read_document(publisher.path.read_bytes(), "q").tasks] == ["T-01", "T-02"]


def test_an_edited_file_is_imported_with_one_notice_and_published_again(store, publisher, notices):
    for _ in range(2):
        add(store)
    publisher.publish()
    edited(publisher, goal="do it well", status="skipped")
    store.skip(2)
    assert publisher.publish() and publisher.publish()
    assert [notice.rpartition(" was ")[2] for notice in notices] == ["edited: changed T-01"]
    found = publisher.edited
    assert (found.changed, found.unchanged, found.conflicts) == (("T-01",), ("T-02",), ())
    first, second = read_document(publisher.path.read_bytes(), "q").tasks
    assert (first.goal, first.status, second.status) == ("do it well", "skipped", "skipped")
    assert first.completed_at == "2026-03-08T09:00:00Z"


def test_an_edit_that_retries_a_blocked_entry_is_a_retry(store, publisher):
    import_document(store, EXAMPLE, "x")
    publisher.publish()
    value = json.loads(EXAMPLE)
    value["tasks"][2]["status"] = "pending"
    assert import_document(store, json.dumps(value).encode(), "q").changed == ["T-03"]
    entry = store.get(3).entry
    assert (entry.status, entry.retries, entry.blocked_reason, len(entry.strategies_tried)) == (
        "pending",
        0,
        None,
        3,
    )


@pytest.mark.parametrize(
    ("fields", "meanwhile", "message"),
    [
        ({"goal": "x"}, lambda store: store.skip(1), "was edited and has changed in the queue too"),
        ({"status": "done"}, None, "is pending; an edit cannot make it done"),
        ({"status": "running"}, None, "is pending; an edit cannot make it running"),
        (
            {"goal": "x"},
            lambda store: store.claim(60),
            "was edited and has changed in the queue too",
        ),
        ({"added_at": "2025-03-08T09:00:00Z"}, None, "is not the T-01 of this queue"),
        ({"id": "T-02", "added_at": "2025-03-08T09:00:00Z"}, None, "is not the T-02 of this queue"),
    ],
)
def test_an_edit_that_contradicts_the_queue_is_refused(
    store, publisher, fields, meanwhile, message
):
    for _ in range(2):
        add(store)
    value = json.loads(document_bytes(read_document(publish(publisher), "q")))
    del value["tasks"][1]
    value["tasks"][0].update(fields)
    if meanwhile is not None:
        meanwhile(store)
    before = store.documents()
    with pytest.raises(UsageError, match=message):
        import_document(store, json.dumps(value).encode(), "q")
    assert store.documents() == before


def publish(publisher):
    assert publisher.publish()
    return publisher.path.read_bytes()


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"{", r"$ is not valid JSON"),
        (b"[]", r"$ is an array"),
        (b'{"version": "2.0", "tasks": []}', "$.version"),
    ],
)
def test_a_file_that_is_not_a_queue_stays_until_it_is_removed(
    store, publisher, notices, data, problem
):
    publisher.path.write_bytes(data)
    add(store)
    assert not publisher.publish() and not publisher.publish()
    assert publisher.path.read_bytes() == data
    (notice,) = notices
    assert problem in notice and "corrected or deleted" in notice
    publisher.path.unlink()
    assert publisher.publish()


def test_an_id_that_was_given_before_is_not_given_by_a_file(store):
    add(store)
    value = json.loads(EXAMPLE)
    store.raise_last_number(9)
    del value["tasks"][0]
    with pytest.raises(
        UsageError, match="has the id T-02, which was given before; the next free id is T-10"
    ):
        import_document(store, json.dumps(value).encode(), "x")


@pytest.mark.parametrize("point", ["begin_publication", "end_publication"])
def test_a_crash_while_publishing_is_not_taken_for_an_edit(
    store, tmp_path, publisher, notices, point
):
    add(store)
    publish(publisher)
    add(store)
    with closing(QueueStore(store.path)) as crashing:
        whole = getattr(crashing, point)

        def crash(*arguments):
            if (
                point == "begin_publication"
            ):  # the intention is stored, and the file is not replaced
                whole(*arguments)
            raise KeyboardInterrupt

        setattr(crashing, point, crash)
        with pytest.raises(KeyboardInterrupt):
            Publisher(crashing, tmp_path, notices.append).publish()
    add(store)
    assert publisher.publish()
    assert notices == [] and len(read_document(publisher.path.read_bytes(), "q").tasks) == 3


FULL = """
import resource, sys
from evaluator.errors import RecordError
from evaluator.queue import TaskQueue

with TaskQueue(sys.argv[1]) as queue:
    queue.add("first")
    queue.publish()
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, hard))
    try:
        queue.add("second")
    except RecordError as error:
        print(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    print(queue.add("third").id)
"""


def test_a_disk_that_takes_no_more_is_an_error_that_changes_nothing(tmp_path):
    folder = tmp_path / "queue"
    done = subprocess.run(
        [sys.executable, "-c", FULL, folder], capture_output=True, text=True, check=True
    )
    error, third = done.stdout.splitlines()
    assert "cannot be read or written" in error and "has free space" in error and third == "T-02"
    found = read_document((folder / "task-queue.json").read_bytes(), "q")
    assert [entry.description for entry in found.tasks] == ["first", "third"]
