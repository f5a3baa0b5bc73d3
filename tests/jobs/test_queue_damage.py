"""A damaged queue is an error that says what to do, never other content."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from evaluator import EvaluatorError, RecordError
from evaluator.queue import QueueView, TaskQueue

FLIPS = 400


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with TaskQueue(tmp_path / "queue") as queue:
        for number in range(12):
            needs = ["T-01"] if number else []
            queue.add(f"do the work {number}: größer" * 9, needs=needs, key=f"key {number}")
        queue.skip("T-03")
        queue.archive(0)
        queue.skip("T-02")
    return tmp_path / "queue"


def everything(folder: Path) -> list[object]:
    with QueueView(folder) as queue:
        return [
            queue.list_json(),
            queue.list("pending"),
            [queue.show(entry.id) for entry in queue.list()],
            queue.show("T-03"),
            queue.board(5),
            queue.stats(),
            queue.stuck(),
            queue.export(),
        ]


def read_or_error(folder: Path) -> list[object] | EvaluatorError:
    try:
        return everything(folder)
    except EvaluatorError as error:
        return error


def test_a_flipped_bit_is_harmless_or_an_error(folder: Path) -> None:
    path = folder / "queue.sqlite"
    data = path.read_bytes()
    expected = everything(folder)
    used = [n for n, byte in enumerate(data) if byte]  # most of the file is empty space
    numbers = random.Random(1)
    errors = 0
    for _ in range(FLIPS):
        damaged = bytearray(data)
        position = numbers.choice([numbers.choice(used), numbers.randrange(len(data))])
        damaged[position] ^= 1 << numbers.randrange(8)
        path.write_bytes(damaged)
        found = read_or_error(folder)
        if isinstance(found, EvaluatorError):
            errors += 1
            assert str(path) in str(found)
        else:
            assert found == expected, position
    assert errors > FLIPS / 4


def test_a_damaged_entry_is_named(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "queue.sqlite")) as database, database:
        database.execute(
            "UPDATE entry SET document = replace(document, 'work 4', 'work 5') WHERE number = 5"
        )
    with QueueView(folder) as queue, pytest.raises(RecordError, match="the entry T-05 is damaged"):
        queue.list_json()
    with QueueView(folder) as queue:
        assert queue.show("T-06").entry.id == "T-06"


def test_an_empty_database_beside_a_published_queue_is_refused(folder: Path) -> None:
    path = folder / "queue.sqlite"
    path.write_bytes(b"")
    for opened in (QueueView, TaskQueue):
        with pytest.raises(RecordError, match=r"is empty, but task-queue.json .* restore|Restore"):
            opened(folder)
    assert path.read_bytes() == b""
    (folder / "task-queue.json").unlink()
    with TaskQueue(folder) as queue:  # as it is where a file system has no links
        assert queue.list() == []


def test_a_view_of_a_missing_queue_is_empty_and_creates_nothing(tmp_path: Path) -> None:
    with QueueView(tmp_path / "queue") as queue:
        assert (queue.list(), queue.stats().last_id) == ([], None)
    assert list(tmp_path.iterdir()) == []


def test_a_view_of_a_published_file_without_a_database_shows_its_entries(folder: Path) -> None:
    for path in folder.glob("queue.sqlite*"):
        path.unlink()
    before = sorted(path.name for path in folder.iterdir())
    with QueueView(folder) as queue:
        assert (len(queue.list()), queue.stats().last_id) == (11, "T-12")
        assert queue.show("T-03").entry.status == "skipped"
    assert sorted(path.name for path in folder.iterdir()) == before


def test_a_view_of_a_queue_in_use_sees_what_was_committed_last(tmp_path: Path) -> None:
    with TaskQueue(tmp_path / "queue") as queue:
        queue.add("one")
        with QueueView(tmp_path / "queue") as view:
            queue.add("two")
            assert [entry.id for entry in view.list()] == ["T-01"]
            with pytest.raises(sqlite3.OperationalError, match="readonly"):
                view._store._connection.execute("DELETE FROM entry")  # pyright: ignore[reportPrivateUsage]
        with QueueView(tmp_path / "queue") as view:
            assert [entry.id for entry in view.list()] == ["T-01", "T-02"]
