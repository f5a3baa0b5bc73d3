"""Each flush of a journal is written as a whole or not at all, whatever happens to the disk or the process."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import resource
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from evaluator import RecordError, TaskStore, UsageError, disk
from evaluator.record import journal as journal_module
from evaluator.record.grammar import decode
from evaluator.record.journal import SYNC_POLICIES, Journal
from evaluator.record.recorded_steps import SharedRunState
from evaluator.record.redact import Redactor
from evaluator.record.step_log import StepLog
from evaluator.record.steps import StepEnd, StepStart, Summary

DONE = Summary("completed", 1, 0, 0.5, None, {"status": "COMPLETE"})


@pytest.fixture
def store(tmp_path: Path) -> TaskStore:
    return TaskStore(tmp_path / "tasks")


def start(path: str = "turn[1]", attempt: int = 1, args: object = "in") -> StepStart:
    return StepStart(path, "model", "m", args, "f", attempt, 3)


def test_nothing_is_written_before_flush_and_all_of_it_after(store: TaskStore) -> None:
    journal = store.create("do it")
    journal.begin(start())
    assert journal.path.read_bytes() == b""
    journal.flush()
    read = decode(journal.path.read_bytes())
    assert read.header is not None
    assert read.header.request == "do it"
    assert [step.status for step in read.steps] == ["running"]
    journal.abandon()


def test_one_flush_is_one_write(store: TaskStore, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    real = os.pwrite

    def counting(fd: int, data: bytes, at: int) -> int:
        sizes.append(len(data))
        return real(fd, data, at)

    journal = store.create()
    monkeypatch.setattr(disk, "pwrite", counting)
    number = journal.begin(start())
    journal.flush()
    journal.end(number, StepEnd("success", "out", 0.1))
    number = journal.begin(start("parse"))
    journal.end(number, StepEnd("success", 1, 0.1))
    journal.close(DONE)
    path = journal.path
    # Header and beginning; everything else; the status under the title.
    assert len(sizes) == 3
    assert sum(sizes[:2]) == path.stat().st_size


def test_a_closed_task_is_in_the_folder_of_finished_ones_and_says_so(store: TaskStore) -> None:
    journal = store.create()
    number = journal.begin(start())
    journal.end(number, StepEnd("success", "out", 0.1))
    before = journal.path
    journal.close(DONE)
    path = journal.path
    assert path == journal.path == store.root / "done" / before.name
    assert not before.exists()
    assert "- **Status**: completed" in path.read_text()
    read = store.read(journal.id)
    assert (read.status, read.summary, read.warnings) == ("completed", DONE, ())


def test_a_retry_keeps_the_number_of_its_step(store: TaskStore) -> None:
    journal = store.create()
    first = journal.begin(start())
    other = journal.begin(start("other"))
    journal.end(first, StepEnd("failed", None, 0.1, "429"))
    again = journal.begin(start(attempt=2))
    journal.end(again, StepEnd("success", "out", 0.1))
    journal.end(other, StepEnd("success", "out", 0.1))
    assert (first, other, again) == (1, 2, 1)
    assert (journal.steps, journal.retries) == (2, 1)
    journal.close(DONE)
    path = journal.path
    assert [
        (s.number, s.start.path, s.start.attempt, s.status) for s in store.read(path).steps
    ] == [
        (1, "turn[1]", 1, "failed"),
        (2, "other", 1, "success"),
        (1, "turn[1]", 2, "success"),
    ]


def test_steps_are_ended_once_and_retried_only_after_they_ended(store: TaskStore) -> None:
    journal = store.create()
    number = journal.begin(start())
    journal.end(number, StepEnd("failed", None, 0.1))
    with pytest.raises(UsageError, match="not open"):
        journal.end(number, StepEnd("success", None, 0.1))
    again = journal.begin(start(attempt=2))
    with pytest.raises(UsageError, match="has not ended"):
        journal.begin(start(attempt=3))
    journal.end(again, StepEnd("success", None, 0.1))
    journal.close(DONE)
    assert len(store.read(journal.id).steps) == 2


def test_a_step_after_a_success_at_the_same_path_has_a_number_of_its_own(store: TaskStore) -> None:
    journal = store.create()
    numbers: list[int] = []
    for attempt, status in ((1, "failed"), (2, "success"), (2, "success")):
        numbers.append(journal.begin(start(attempt=attempt)))
        journal.end(numbers[-1], StepEnd(status, "out", 0.1))
    assert numbers == [1, 1, 2]
    journal.close(DONE)


def test_the_first_reason_to_halt_stays_the_reason() -> None:
    state = SharedRunState()
    first, second = RecordError("the disk is full"), RecordError("the file is closed")
    for error in (first, second):
        assert state.halt(error) is error
    with pytest.raises(RecordError, match="the disk is full"):
        state.check()


def test_a_step_that_could_not_be_encoded_leaves_no_trace(store: TaskStore) -> None:
    journal = store.create()
    with pytest.raises(UsageError):
        journal.begin(start(args=object()))
    number = journal.begin(start())
    with pytest.raises(UsageError):
        journal.end(number, StepEnd("success", object(), 0.1))
    journal.end(number, StepEnd("success", "out", 0.1))
    assert number == 1
    journal.close(DONE)
    assert [step.status for step in store.read(journal.id).steps] == ["success"]


def test_a_closed_or_abandoned_journal_refuses_more(store: TaskStore) -> None:
    calls: tuple[Callable[[Journal], object], ...] = (
        lambda journal: journal.begin(start()),
        lambda journal: journal.end(1, StepEnd("success", "x", 0.0)),
        Journal.flush,
        lambda journal: journal.close(DONE),
    )
    closed, abandoned = store.create(), store.create()
    closed.close(DONE)
    abandoned.abandon()
    for journal in (closed, abandoned):
        for call in calls:
            with pytest.raises(RecordError):
                call(journal)
        journal.abandon()


def test_an_abandoned_journal_keeps_what_was_added(store: TaskStore) -> None:
    with store.create() as journal:
        number = journal.begin(start())
        journal.end(number, StepEnd("success", "paid for", 0.1))
    read = store.read(journal.id)
    assert read.status == "interrupted"
    assert [(step.status, step.end and step.end.output) for step in read.steps] == [
        ("success", "paid for")
    ]


@pytest.mark.parametrize("sync", SYNC_POLICIES)
def test_the_sync_policy_says_what_reaches_the_disk_when(
    store: TaskStore, monkeypatch: pytest.MonkeyPatch, sync: journal_module.Sync
) -> None:
    calls: list[str] = []
    monkeypatch.setattr(disk, "fdatasync", lambda fd: calls.append("file"))
    monkeypatch.setattr(disk, "fsync", lambda fd: calls.append("folder"))
    journal = store.create(sync=sync)
    steps = StepLog(journal)
    number = asyncio.run(steps.begin("turn[1]", "model", "m", "in", "f"))
    assert calls == (["file", "folder"] if sync == "step" else [])
    asyncio.run(steps.succeed(number, "out", 0.1))
    assert calls == (["file", "folder", "file"] if sync == "step" else [])
    flushed = len(calls)
    journal.close(DONE)
    assert calls[flushed:] == ([] if sync == "off" else ["file", "folder", "folder"])


def test_steps_that_wait_for_the_disk_together_share_one_sync(
    store: TaskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    first_waits, go_on = threading.Event(), threading.Event()

    def slow(fd: int) -> None:
        calls.append(fd)
        first_waits.set()
        assert go_on.wait(200)

    monkeypatch.setattr(disk, "fdatasync", slow)
    journal = store.create(sync="step")
    journal.begin(start("a"))
    journal.flush()
    waiting = [threading.Thread(target=journal.sync)]
    waiting[0].start()
    assert first_waits.wait(200)
    for path in ("b", "c", "d"):
        journal.begin(start(path))
        journal.flush()
        waiting.append(threading.Thread(target=journal.sync))
        waiting[-1].start()
    go_on.set()
    for thread in waiting:
        thread.join(200)
    # The first one's, and one for the three that came while it ran.
    assert len(calls) == 2
    journal.abandon()


@pytest.mark.parametrize("fails", [False, True])
def test_a_task_that_is_cancelled_while_its_file_is_closed_waits_for_the_disk(
    store: TaskStore, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    waits, go_on = threading.Event(), threading.Event()
    logged: list[object] = []

    def slow(fd: int) -> None:
        waits.set()
        assert go_on.wait(200)
        if fails:
            raise OSError(errno.EIO, "the disk failed")

    monkeypatch.setattr(disk, "fdatasync", slow)
    journal = store.create(sync="task")

    async def cancelled() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context))
        closing = asyncio.create_task(StepLog(journal).close(DONE))
        assert await asyncio.to_thread(waits.wait, 200)
        try:
            for _ in range(3):
                # As the end of the event loop cancels them.
                for task in asyncio.all_tasks() - {asyncio.current_task()}:
                    task.cancel()
                await asyncio.sleep(0)
            # Who is cancelled abandons the journal, which the thread still writes.
            assert not closing.done()
        finally:
            go_on.set()
        await asyncio.wait([closing])
        assert closing.cancelled()

    asyncio.run(cancelled())
    gc.collect()
    assert logged == []
    if fails:
        journal.abandon()
    else:
        assert journal.path.parent.name == "done"
    assert store.read(journal.id).status == "completed"


def test_after_a_failed_sync_nothing_more_is_written(
    store: TaskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    journal = store.create(sync="step")
    journal.begin(start())
    monkeypatch.setattr(disk, "fdatasync", fail)
    journal.flush()
    with pytest.raises(RecordError, match="sync"):
        journal.sync()
    size = journal.path.stat().st_size
    with pytest.raises(RecordError):
        journal.begin(start())
    journal.abandon()
    assert journal.path.stat().st_size == size


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_write_that_the_kernel_cuts_short_is_taken_back(store: TaskStore) -> None:
    journal = store.create()
    number = journal.begin(start())
    journal.flush()
    good = journal.path.read_bytes()
    journal.end(number, StepEnd("success", "x" * 5000, 0.1))
    with files_of_at_most(len(good) + 1000), pytest.raises(RecordError, match="free space"):
        journal.flush()
    assert journal.path.read_bytes() == good
    with pytest.raises(RecordError, match="cannot be written any more"):
        journal.flush()
    journal.abandon()
    assert decode(good).tail == "clean"
    assert store.read(journal.id).status == "interrupted"


@pytest.mark.parametrize(
    ("code", "advice"),
    [(errno.ENOSPC, "free space"), (errno.EIO, "dmesg"), (errno.EDQUOT, "free space")],
)
def test_a_full_or_failing_disk_ends_the_file_at_its_last_whole_flush(
    store: TaskStore, monkeypatch: pytest.MonkeyPatch, code: int, advice: str
) -> None:
    real, room = os.pwrite, [300]

    def filling(fd: int, data: bytes, at: int) -> int:
        if room[0] == 0:
            raise OSError(code, os.strerror(code))
        written = real(fd, data[: room[0]], at)
        room[0] -= written
        return written

    journal = store.create()
    monkeypatch.setattr(disk, "pwrite", filling)
    journal.begin(start(args="y" * 2000))
    with pytest.raises(RecordError, match=rf"TASK-1\.md.*{advice}"):
        journal.flush()
    # Of a task that never began no empty file is left.
    assert not journal.path.exists()


def test_short_writes_go_on_where_they_stopped(
    store: TaskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pwrite
    monkeypatch.setattr(disk, "pwrite", lambda fd, data, at: real(fd, data[:7], at))
    journal = store.create()
    number = journal.begin(start(args={"text": "a\nb" * 100}))
    journal.end(number, StepEnd("success", "out", 0.1))
    monkeypatch.undo()
    journal.close(DONE)
    assert store.read(journal.id).steps[0].start.args == {"text": "a\nb" * 100}


def test_secrets_never_reach_the_file(tmp_path: Path) -> None:
    secret = 'very"secret\nvalue'
    store = TaskStore(tmp_path / "tasks", redactor=Redactor({"MY_KEY": secret}))
    journal = store.create(f"use {secret}", {"key": secret, secret: [secret]}, extra={"x": secret})
    number = journal.begin(
        StepStart("p", "tool", f"t {secret}", {"a": {"b": f"- {secret} -"}, "c": secret})
    )
    other = journal.begin(StepStart("q", "tool", f"t {secret}", secret))
    journal.end(
        number, StepEnd("failed", [secret], 0.1, f"bad {secret}", {"x": secret}, {"y": secret})
    )
    journal.end(other, StepEnd("failed", secret, 0.1))
    journal.close(Summary("failed", 2, 0, 0.1, {"z": secret}, {"m": secret}, f"because {secret}"))
    path = journal.path
    text = path.read_text()
    assert "very" not in text
    assert "secret" not in text
    read = store.read(path)
    assert read.steps[0].start.args == {
        "a": {"b": "- [redacted:MY_KEY] -"},
        "c": "[redacted:MY_KEY]",
    }
    assert read.steps[1].end == StepEnd("failed", "[redacted:MY_KEY]", 0.1)


def test_a_task_file_belongs_to_its_owner_alone(store: TaskStore) -> None:
    journal = store.create()
    journal.close(DONE)
    path = journal.path
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for folder in (store.root, store.root / "active", store.root / "done"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


CHILD = """
import sys
from evaluator.record.steps import StepStart, StepEnd
from evaluator.record.store import TaskStore
journal = TaskStore(sys.argv[1]).create("crash")
for n in range(1, 4):
    number = journal.begin(StepStart(f"turn[{n}]", "model", "m", "q" * 50, "f"))
    journal.flush()
    if n < 3:
        journal.end(number, StepEnd("success", f"answer {n}", 0.1))
        journal.flush()
print(journal.id, flush=True)
sys.stdin.read()
"""


def test_a_killed_process_leaves_all_that_it_flushed_and_reads_as_interrupted(
    store: TaskStore,
) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(store.root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdout is not None
        task_id = int(child.stdout.readline())
        assert store.read(task_id).status == "running"
        assert list(store.interrupted()) == []
        child.send_signal(signal.SIGKILL)
        child.wait()
    finally:
        child.kill()
        child.communicate()
    read = store.read(task_id)
    assert (read.status, read.tail) == ("interrupted", "clean")
    assert [step.status for step in read.steps] == ["success", "success", "running"]
    assert [task.id for task in store.interrupted()] == [task_id]
    assert read.header is not None
    assert read.header.owner is not None
    assert read.header.owner.pid == child.pid


KILLED_IN_A_WRITE = """
import os, signal, sys
from evaluator import disk
from evaluator.record.steps import StepStart, StepEnd
from evaluator.record.store import TaskStore
journal = TaskStore(sys.argv[1]).create("crash")
number = journal.begin(StepStart("turn[1]", "model", "m", "q", "f"))
journal.flush()
journal.end(number, StepEnd("success", "answer" * 100, 0.1))
real = os.pwrite
def cut(fd, data, at):
    real(fd, data[:200], at)
    os.kill(os.getpid(), signal.SIGKILL)
disk.pwrite = cut
journal.flush()
"""


def test_a_process_killed_inside_a_write_leaves_a_torn_end_after_whole_records(
    store: TaskStore,
) -> None:
    child = subprocess.run([sys.executable, "-c", KILLED_IN_A_WRITE, str(store.root)], check=False)
    assert child.returncode == -signal.SIGKILL
    read = store.read(1)
    assert (read.status, read.tail) == ("interrupted", "torn")
    assert [step.status for step in read.steps] == ["running"]
    assert read.torn_offset == (store.root / "active" / "TASK-1.md").stat().st_size - 200
