"""Task files of other programs are taken over; what cannot be read is reported with its line and reason."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_record_other_writers import ABORTED, NAMED, RETRIED

from evaluator import TaskStore, UsageError
from evaluator.record.importing import import_files
from evaluator.record.redact import Redactor
from evaluator.record.task_lists import TaskLists


@pytest.fixture
def flat(tmp_path: Path) -> Path:
    """A folder without active/ and done/, as other programs have it."""
    folder = tmp_path / "other"
    folder.mkdir()
    (folder / "TASK-208.md").write_text(RETRIED)
    (folder / "TASK-5.md").write_text(ABORTED)
    (folder / "TASK-m1x9k2ab.md").write_text(NAMED)
    (folder / "TASK-9.md").write_text("# TASK-9\n\n- **Status**: wonderful\n")
    (folder / "TASK-9-detail.log").write_text("log\n")
    (folder / "2026-02-20-agent.md").write_text("# Agent\n\n- [ ] a\n")
    return folder


@pytest.fixture
def store(tmp_path: Path) -> TaskStore:
    return TaskStore(tmp_path / "tasks")


def test_every_file_of_a_folder_is_taken_over_or_reported(store: TaskStore, flat: Path) -> None:
    before = {path: path.read_bytes() for path in flat.iterdir()}
    found = {file.path.name: file for file in import_files(store, [flat])}
    assert {name: (file.state, file.name, file.line) for name, file in found.items()} == {
        "2026-02-20-agent.md": ("imported", "2026-02-20-agent", None),
        "TASK-208.md": ("imported", "TASK-1", None),
        "TASK-5.md": ("imported", "TASK-2", None),
        "TASK-9-detail.log": ("ignored", None, None),
        "TASK-9.md": ("unreadable", None, 3),
        "TASK-m1x9k2ab.md": ("imported", "TASK-3", None),
    }
    assert "not a status: 'wonderful'" in (found["TASK-9.md"].reason or "")
    assert found["TASK-5.md"].warnings == (
        "line 6: this is not a field and is left out: '__Not a field__'",
    )
    assert TaskLists(store.root).read("agent").content == "# Agent\n\n- [ ] a\n"
    assert {path: path.read_bytes() for path in flat.iterdir()} == before


def test_what_is_taken_over_is_what_was_read(store: TaskStore, flat: Path) -> None:
    for file in import_files(store, [flat]):
        if file.name is None or not file.name.startswith("TASK-"):
            continue
        there, here = store.read(file.path), store.read(int(file.name[5:]))
        assert [(s.start, s.end) for s in here.steps] == [(s.start, s.end) for s in there.steps]
        assert here.header is not None
        assert there.header is not None
        assert (here.status, here.header.created, here.header.request) == (
            there.status,
            there.header.created,
            there.header.request,
        )
        source = here.header.extra["imported"]
        assert source["path"] == str(file.path)
        assert source.get("id") == (
            f"TASK-{there.header.task_id}" if there.header.task_id else None
        )
        assert there.header.extra.items() <= here.header.extra.items()
        assert here.summary is not None
        assert there.summary is not None
        assert (here.summary.retries, here.summary.reason) == (
            there.summary.retries,
            there.summary.reason,
        )
    assert [task.status for task in store.list()] == ["failed", "aborted", "completed"]


def test_a_file_is_taken_over_once(store: TaskStore, flat: Path, tmp_path: Path) -> None:
    first = [file.name for file in import_files(store, [flat])]
    (tmp_path / "copy.md").write_text(NAMED)
    again = list(import_files(TaskStore(store.root), [flat, tmp_path / "copy.md"]))
    assert [file.name for file in again if file.state == "known"] == [
        *(name for name in first if name is not None),
        "TASK-3",
    ]
    assert [task.id for task in store.list()] == [3, 2, 1]
    assert [
        file.reason
        for file in import_files(store, [store.root / "done"])
        if file.state == "ignored"
    ] == ["this program wrote it; name its folder with --tasks"] * 3


def test_a_task_that_had_not_ended_is_taken_over_as_aborted(
    store: TaskStore, tmp_path: Path
) -> None:
    path = tmp_path / "TASK-4.md"
    path.write_text(
        "# TASK-4\n- Status: running\n## Step 1: a\n- Status: failed\n## Step 1 (retry): a\n- Args: {}\n"
    )
    [file] = import_files(store, [path])
    read = store.read(1)
    assert (file.name, read.status) == ("TASK-1", "aborted")
    assert [(s.number, s.start.attempt, s.status) for s in read.steps] == [
        (1, 1, "failed"),
        (1, 2, "aborted"),
    ]


def test_folders_of_finished_lists_and_secrets_are_kept_as_such(tmp_path: Path) -> None:
    done = tmp_path / "plans" / "done"
    done.mkdir(parents=True)
    (done / "2026-02-20-old.md").write_text("# Old\n\n- [ ] left open\n")
    (done / "TASK-1.md").write_text(
        "# TASK-1\n- Status: ok\n## Step 1: a\n- Output: the key is s3cr3t-value-42\n- Status: ok\n"
    )
    store = TaskStore(tmp_path / "tasks", redactor=Redactor({"MY_KEY": "s3cr3t-value-42"}))
    assert [file.state for file in import_files(store, [tmp_path / "plans"])] == ["imported"] * 2
    assert TaskLists(store.root).read("2026-02-20-old").state == "done"
    assert "s3cr3t" not in store.path_of(1).read_text()


BAD: list[tuple[bytes, str, int | None]] = [
    (b"", "the file has no task", 1),
    (b"# Hello\n", "a title such as `# TASK-12` or `# Task: name` was expected", 1),
    (b"# TASK-1\n\n- x: \xff\n", "the file is not UTF-8 text", 3),
]


@pytest.mark.parametrize(("data", "reason", "line"), BAD)
def test_an_unreadable_file_is_reported_and_leaves_nothing_behind(
    store: TaskStore, tmp_path: Path, data: bytes, reason: str, line: int | None
) -> None:
    path = tmp_path / "x.md"
    path.write_bytes(data)
    [file] = import_files(store, [path])
    assert (file.state, file.reason, file.line) == ("unreadable", reason, line)
    assert list(store.list()) == []
    link = tmp_path / "link.md"
    link.symlink_to(path)
    [file] = import_files(store, [link])
    assert file.state == "unreadable"
    with pytest.raises(UsageError, match="there is no such file or folder"):
        list(import_files(store, [tmp_path / "none"]))


def test_a_flat_folder_is_listed_and_read_where_it_is(flat: Path) -> None:
    store = TaskStore(flat)
    assert [(task.id, task.status) for task in store.list()] == [
        (208, "completed"),
        (9, "unreadable"),
        (5, "aborted"),
    ]
    assert store.unnumbered() == ["TASK-m1x9k2ab.md"]
    assert store.read(208).status == "completed"
    # A run of this program in that folder gets a higher number.
    with store.create("run") as journal:
        assert journal.id == 209
