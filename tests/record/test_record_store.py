"""Ids only increase and are used once; untrusted folders are refused before any effect."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from evaluator import CorruptRecord, RecordError, TaskStore, UsageError, disk, this_process
from evaluator.errors import TaskNotBegun
from evaluator.files.atomic import atomic_file
from evaluator.record import store as store_module
from evaluator.record.blobs import read_blob, write_blob
from evaluator.record.steps import StepEnd, StepStart, Summary
from evaluator.store.owners import current_owner, is_gone
from tests.leftovers import descriptors

DONE = Summary("completed", 1, 0, 0.5, {"turns": 1}, {"content": "x" * 10_000})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "tasks"


def finish(store: TaskStore, summary: Summary = DONE, request: str = "") -> int:
    journal = store.create(request)
    number = journal.begin(StepStart("p", "tool", "t", "in"))
    journal.end(number, StepEnd("success", "out" * 3000, 0.1))
    journal.close(summary)
    return journal.id


CREATING = """
import sys
from evaluator.record.store import TaskStore
from evaluator.record.steps import Summary
store = TaskStore(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
for n in range(10):
    journal = store.create(str(n))
    print(journal.id, flush=True)
    if n % 2:
        journal.close(Summary("completed", 0, 0, 0.0))
"""


def test_twenty_processes_that_start_at_once_get_no_id_twice_and_each_only_higher_ones(
    root: Path,
) -> None:
    children = [
        subprocess.Popen(
            [sys.executable, "-c", CREATING, str(root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(20)
    ]
    try:
        for child in children:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
        for child in children:
            assert child.stdin is not None
            child.stdin.write("go\n")
            child.stdin.flush()
        given = [[int(line) for line in child.communicate()[0].split()] for child in children]
    finally:
        for child in children:
            child.kill()
            child.wait()
    assert all(ids == sorted(ids) for ids in given)
    assert sorted(task_id for ids in given for task_id in ids) == list(range(1, 201))
    assert TaskStore(root).create().id == 201


def test_threads_and_stores_share_one_row_of_ids(root: Path) -> None:
    stores = [TaskStore(root), TaskStore(root)]
    given: list[int] = []

    def create(store: TaskStore) -> None:
        for _ in range(20):
            journal = store.create()
            given.append(journal.id)
            journal.abandon()

    threads = [threading.Thread(target=create, args=(stores[n % 2],)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(given) == list(range(1, 121))


def test_a_forked_child_does_not_share_its_parents_lock(root: Path) -> None:
    store = TaskStore(root)
    store.create().abandon()
    assert store._folders is not None
    fcntl.flock(store._folders.counter_fd, fcntl.LOCK_EX)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            fcntl.flock(store._prepared().counter_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert store.create().id == 2


def test_a_store_closes_its_descriptors_with_the_function_of_its_time(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = descriptors()
    TaskStore(root).last_id()
    assert descriptors() <= before, "the control"
    ended: set[int] = set()
    with monkeypatch.context() as simulation:
        simulation.setattr(disk, "close", lambda fd: None if fd in ended else os.close(fd))
        store = TaskStore(root)
        store.last_id()
        (counter,) = (
            fd for fd, *_ in descriptors() - before if not stat.S_ISDIR(os.fstat(fd).st_mode)
        )
        # As at the end of a simulated process: the number is free, and somebody else gets it.
        ended.add(counter)
        with open(os.devnull, "rb") as file:
            os.dup2(file.fileno(), counter)
    del store
    os.close(counter)
    assert descriptors() <= before


def test_a_file_that_the_disk_does_not_show_is_not_taken_for_lost(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = TaskStore(root)
    store.create().close(DONE)
    stat_of = os.stat

    def failing(path: str | Path, **options: bool) -> os.stat_result:
        if str(path).endswith("done/TASK-1.md"):
            raise OSError(errno.EIO, "the disk failed")
        return stat_of(path, **options)

    monkeypatch.setattr(os, "stat", failing)
    for read in (store.path_of, store.read, store.check, store.reopen):
        with pytest.raises(RecordError, match=r"TASK-1\.md: .* the disk failed") as caught:
            read(1)
        assert not isinstance(caught.value, TaskNotBegun)


@pytest.mark.parametrize("damage", ["missing", "empty", "nonsense", "behind", "torn"])
def test_a_lost_or_damaged_counter_is_recovered_from_the_files(root: Path, damage: str) -> None:
    store = TaskStore(root)
    store.create().abandon()
    finish(store)
    finish(store)
    counter = root / ".last-id"
    if damage == "missing":
        counter.unlink()
    else:
        content = {
            "empty": "",
            "nonsense": "a" * 21,
            "behind": f"{0:020d}\n",
            "torn": f"{9:020d}\0",
        }
        counter.write_text(content[damage])
    assert TaskStore(root).create().id == 4


def test_a_finished_task_is_never_overwritten_though_the_counter_was_set_back(root: Path) -> None:
    store = TaskStore(root)
    ids = [finish(store, request=f"run {n}") for n in range(3)]
    (root / ".last-id").write_text(f"{0:020d}\n")
    assert finish(TaskStore(root), request="later") == 4
    assert [store.read(n).header.request for n in ids] == ["run 0", "run 1", "run 2"]  # type: ignore[union-attr]


def link(root: Path) -> None:
    target = root.parent / "elsewhere"
    target.mkdir()
    root.symlink_to(target)


def link_inside(root: Path) -> None:
    target = root.parent / "elsewhere"
    target.mkdir()
    root.mkdir(mode=0o700)
    (root / "done").symlink_to(target)


def link_counter(root: Path) -> None:
    root.mkdir(mode=0o700)
    (root / ".last-id").symlink_to(root.parent / "elsewhere")


def file(root: Path) -> None:
    root.write_text("")


def open_to_all(root: Path) -> None:
    root.mkdir()
    root.chmod(0o777)


@pytest.mark.parametrize(
    ("prepare", "says"),
    [
        (link, "is a link"),
        (link_inside, "done: the task folder is a link"),
        (link_counter, "no task file can be created"),
        (file, "Not a directory"),
        (open_to_all, "chmod o-w"),
    ],
)
def test_a_folder_that_cannot_be_trusted_is_refused(
    root: Path, prepare: Callable[[Path], None], says: str
) -> None:
    prepare(root)
    with pytest.raises(RecordError, match=says):
        TaskStore(root).create()
    elsewhere = root.parent / "elsewhere"
    assert not elsewhere.exists() or list(elsewhere.iterdir()) == []


def test_a_folder_of_somebody_else_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root.mkdir()
    uid = os.geteuid()
    monkeypatch.setattr(store_module.os, "geteuid", lambda: uid + 1)
    with pytest.raises(RecordError, match="belongs to user"):
        TaskStore(root).create()


def test_a_folder_that_cannot_be_written_is_refused_with_what_to_do(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root.mkdir(mode=0o500)
    # The superuser may write everywhere; the answer of `access` is what the check goes by.
    monkeypatch.setattr(store_module.os, "access", lambda path, mode: False)
    with pytest.raises(RecordError, match=r"chmod u\+wx"):
        TaskStore(root).create()


def test_a_full_disk_is_reported_when_the_task_is_created_and_the_id_is_not_lost(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = TaskStore(root)
    store.create().abandon()
    real = os.open

    def full(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if str(path).startswith("TASK-"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(disk, "open", full)
    with pytest.raises(RecordError, match="No space left on device; free space"):
        store.create()
    monkeypatch.undo()
    assert store.create().id == 2


def test_a_link_at_the_next_files_place_is_not_followed(root: Path) -> None:
    store = TaskStore(root)
    store.create().abandon()
    victim = root.parent / "victim"
    (root / "active" / "TASK-2.md").symlink_to(victim)
    assert store.create().id == 3
    assert not victim.exists()


def test_a_folder_that_was_removed_is_made_again(root: Path) -> None:
    store = TaskStore(root)
    store.create().abandon()
    shutil.rmtree(root)
    assert store.create("again").path.exists()


def test_inputs_that_are_not_json_leave_no_file(root: Path) -> None:
    store = TaskStore(root)
    with pytest.raises(UsageError):
        store.create(inputs={"a": object()})
    assert list((root / "active").iterdir()) == []


def test_only_the_owner_of_a_task_decides_whether_it_runs(root: Path) -> None:
    store = TaskStore(root)
    running, gone, finished = store.create(), store.create(), finish(store)
    running.begin(StepStart("p", "tool", "t"))
    running.flush()
    gone.abandon()
    assert [(task.id, task.status) for task in store.list()] == [
        (finished, "completed"),
        (gone.id, "interrupted"),
        (running.id, "running"),
    ]
    assert [task.id for task in store.interrupted()] == [gone.id]
    assert [task.id for task in store.list(status="running")] == [running.id]
    assert [task.id for task in store.list(limit=1)] == [finished]
    running.abandon()
    assert {task.id for task in store.interrupted()} == {running.id, gone.id}


def test_a_task_that_has_not_written_yet_is_running_also_to_others(root: Path) -> None:
    store = TaskStore(root)
    journal = store.create()
    assert TaskStore(root).read(journal.id).status == "running"
    assert list(TaskStore(root).interrupted()) == []
    journal.abandon()


def test_a_task_that_is_finished_while_it_is_looked_for_is_found(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = TaskStore(root)
    task_id = finish(store)
    places = [root / "active" / f"TASK-{task_id}.md", store.path_of(task_id)]
    monkeypatch.setattr(store, "path_of", lambda task: places.pop(0))
    assert store.read(task_id).status == "completed"


def test_a_listed_task_has_header_and_summary_without_its_result(root: Path) -> None:
    store = TaskStore(root)
    finish(store, request="what was asked")
    (task,) = store.list()
    assert task.header is not None
    assert task.header.request == "what was asked"
    assert task.summary == Summary("completed", 1, 0, 0.5, {"turns": 1})


def test_a_task_that_was_reopened_is_listed_as_before_until_something_is_written(
    root: Path,
) -> None:
    store = TaskStore(root)
    journal, recording = store.reopen(finish(store))
    assert [task.status for task in store.list()] == [recording.status] == ["completed"]
    journal.abandon()


@pytest.mark.parametrize("size", [100, 3000, 9000])
def test_listing_reads_long_headers_and_long_reasons_too(root: Path, size: int) -> None:
    store = TaskStore(root)
    journal = store.create("r" * size, {"a": "i" * size})
    journal.close(Summary("failed", 0, 0, 0.0, None, None, "e\n" * size))
    (task,) = store.list(status="failed")
    assert task.summary is not None
    assert task.summary.reason == "e\n" * size
    assert task.header is not None
    assert task.header.inputs == {"a": "i" * size}


def test_listing_names_what_cannot_be_read_and_continues(root: Path) -> None:
    store = TaskStore(root)
    finish(store)
    finish(store)
    damaged = root / "done" / "TASK-1.md"
    damaged.write_bytes(damaged.read_bytes().replace(b"Created", b"Creator"))
    (root / "done" / "notes.md").write_text("not a task")
    (root / "done" / "TASK-007.md").write_text("not a task")
    good, bad = store.list()
    assert (good.id, good.error) == (2, None)
    assert bad.id == 1
    assert bad.error is not None
    assert "TASK-1.md" in bad.error
    with pytest.raises(CorruptRecord):
        store.read(1)


@pytest.mark.parametrize("task_id", ["1", "../1", -1, True, 1.0, None])
def test_a_task_is_named_by_a_number_and_never_by_a_path(root: Path, task_id: object) -> None:
    with pytest.raises(UsageError, match="whole number"):
        TaskStore(root).path_of(task_id)  # type: ignore[arg-type]


def test_a_task_that_is_not_there_is_reported(root: Path) -> None:
    with pytest.raises(RecordError, match="no task 7"):
        TaskStore(root).read(7)
    assert list(TaskStore(root).list()) == []
    with pytest.raises(RecordError, match="cannot read"):
        TaskStore(root).read(root / "nowhere.md")


def test_the_owner_is_this_process_and_not_its_number_alone() -> None:
    owner = current_owner()
    assert owner.pid == os.getpid()
    child = subprocess.run(
        [
            sys.executable,
            "-c",
            "from evaluator.store.owners import current_owner as o; print(o().started, o().boot_id)",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    started, boot_id = child.stdout.split()
    assert boot_id == owner.boot_id
    assert int(started) > owner.started > 0


def test_a_process_whose_end_nobody_has_asked_for_is_gone() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        with open(f"/proc/{child.pid}/stat", "rb") as file:
            owner = replace(
                current_owner(),
                pid=child.pid,
                started=int(file.read().rpartition(b")")[2].split()[19]),
            )
        assert not is_gone(owner) and is_gone(replace(owner, started=owner.started + 1))
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert Path(f"/proc/{child.pid}").exists() and is_gone(owner)
    finally:
        child.communicate()


@pytest.mark.parametrize(
    ("error", "expected"), [(ProcessLookupError(), True), (PermissionError(), False)]
)
def test_a_process_that_goes_while_it_is_looked_at_is_gone(
    monkeypatch: pytest.MonkeyPatch, error: OSError, expected: bool
) -> None:
    def start_of(pid: int) -> int:
        raise error

    owner = current_owner()
    monkeypatch.setattr(this_process, "start_of", start_of)
    assert is_gone(owner) is expected


def test_an_unknown_sync_policy_is_refused(root: Path) -> None:
    with pytest.raises(UsageError, match="off, task, step"):
        TaskStore(root, sync="always")  # type: ignore[arg-type]


def empty_file(root: Path, number: int) -> Path:
    """What a process leaves that is killed between creating a task file and its first write, some time ago."""
    path = root / "active" / f"TASK-{number}.md"
    path.touch(0o600)
    os.utime(path, (1_700_000_000, 1_700_000_000))
    return path


def test_an_empty_file_of_a_killed_process_is_no_task_and_is_removed_by_the_next_one(
    root: Path,
) -> None:
    for number in (1, 2):
        TaskStore(root).create().abandon()
        (root / "active" / f"TASK-{number}.md").unlink()
    path = empty_file(root, 2)
    store = TaskStore(root)
    assert not list(store.list()) and not list(store.interrupted())
    with pytest.raises(
        TaskNotBegun, match="run the task again, or for a subtask resume the task that asked for it"
    ):
        store.reopen(2)
    journal = store.create("next")
    assert journal.id == 3 and not path.exists()
    journal.abandon()


def test_the_next_process_removes_the_file_of_a_subtask_without_a_step(root: Path) -> None:
    store = TaskStore(root)
    for parent, has_step in ((None, False), (1, False), (1, True)):
        journal = store.create(parent=parent)
        if has_step:
            journal.begin(StepStart("a", "model", "m", "in", "f"))
        journal.abandon()
    TaskStore(root).create("other").abandon()
    assert sorted(task.id for task in store.list()) == [1, 3, 4]


@pytest.mark.parametrize("content", [b"", bytes(3000)], ids=["empty", "zeros"])
def test_the_next_process_removes_the_file_of_a_task_that_never_began(
    root: Path, content: bytes
) -> None:
    TaskStore(root).create("parent").abandon()
    path = empty_file(root, 2)
    path.write_bytes(content)
    torn = root / "active" / "TASK-3.md"
    torn.write_bytes(b"# TASK-3 <!-- evaluator-task 1 20")
    other = root / "active" / "TASK-4.md"
    other.write_bytes(b"# TASK-4")
    assert TaskStore(root).read(2).status == "interrupted"
    # Its id is not given a second time.
    journal = TaskStore(root).create("other")
    assert journal.id == 5
    journal.abandon()
    assert not path.exists() and not torn.exists() and other.exists()


def test_the_empty_file_of_a_live_process_is_not_removed(root: Path) -> None:
    owner = TaskStore(root)
    journal = owner.create("not yet written")
    assert owner.read(1).status == "running"
    TaskStore(root).create("other").abandon()
    assert journal.path.exists()
    journal.flush()
    journal.abandon()
    assert owner.read(1).known_header().request == "not yet written"


def test_the_next_process_removes_attachments_that_were_not_completed(root: Path) -> None:
    TaskStore(root).create().abandon()
    name = write_blob(root, b"whole", durable=False)
    folder = root / "attachments"
    left = folder / f".{name[:50]}.0123456789abcdef.tmp"
    left.write_bytes(b"who")
    other = folder / ".notes.tmp"
    other.write_bytes(b"not ours")
    with atomic_file(folder / "live") as file:
        TaskStore(root).create().abandon()
        assert not left.exists() and other.exists() and read_blob(root, name) == b"whole"
        file.write(b"live")
    assert (folder / "live").read_bytes() == b"live"


@pytest.mark.parametrize("folder", ["done", "active"])
def test_a_list_calls_those_files_unreadable_that_cannot_be_read(root: Path, folder: str) -> None:
    journal = TaskStore(root).create("request", {"n": 1})
    number = journal.begin(StepStart("a", "model", "m", {"text": "x" * 5000}, "f"))
    journal.end(number, StepEnd("success", "y" * 500, 0.1))
    if folder == "done":
        journal.close(Summary("completed", 1, 0, 0.1, {}))
    else:
        journal.abandon()
    store = TaskStore(root)
    (path,) = root.glob(f"{folder}/TASK-1.md")
    whole = path.read_bytes()
    unreadable = with_header = 0
    for at in range(0, len(whole), 29):
        data = bytearray(whole)
        data[at] ^= 1 << at % 8
        path.write_bytes(data)
        (listed,) = store.list()
        try:
            status = store.read(1).status
        except CorruptRecord:
            status = "unreadable"
        assert listed.status == status, at
        # The header is shown as long as it is whole, so that a batch finds the file of its sample.
        assert listed.header is not None or status == "unreadable"
        with_header += status == "unreadable" and listed.header is not None
        unreadable += status == "unreadable"
    assert unreadable > 150 and with_header > 140


@pytest.mark.parametrize("folder", ["", "active", "done"])
def test_a_task_file_that_was_copied_in_raises_the_counter(root: Path, folder: str) -> None:
    finish(TaskStore(root))
    (root / folder / "TASK-1747.md").write_text("# TASK-1747\n\n- **Status**: completed\n")
    assert TaskStore(root).last_id() == 1747
    store = TaskStore(root)
    assert [finish(store), finish(store)] == [1748, 1749]
