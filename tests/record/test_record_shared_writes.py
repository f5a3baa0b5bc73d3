"""Tasks that take turns in one event loop share the writes to their segment."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from evaluator import RecordError, TaskStore, disk
from evaluator.errors import RecordIncomplete, RecordNotWritten
from evaluator.record import segment_writer
from evaluator.record.journal import Journal
from evaluator.record.recorded_steps import RecordedSteps, ReplayedSteps, ResumedSteps, Unfinished
from evaluator.record.segment_writer import MAX_SHARED_BYTES
from evaluator.record.step_log import StepLog
from evaluator.record.steps import Step, StepEnd, StepStart, Summary

TEXT = "The ferry leaves at six. " * 3


def summary(journal: Journal, status: str = "completed") -> Summary:
    result = {"status": "COMPLETE", "content": TEXT}
    return Summary(status, journal.steps, 0, 0.5, {"turns": 1}, result)  # type: ignore[arg-type]


def begin(store: TaskStore) -> Journal:
    journal = store.create("do it", {"text": TEXT})
    journal.begin(StepStart("turn[1]", "model", "m", {"content": TEXT}, "f"))
    journal.flush()
    return journal


def segment_of(store: TaskStore) -> Path:
    (path,) = store.root.glob("segments/SEGMENT-*.md")
    return path


def test_tasks_of_one_turn_of_the_loop_share_a_write_and_a_full_disk_fails_them_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = TaskStore(tmp_path / "tasks", is_packed=True)
    begin(store).abandon()
    writes: list[bytes] = []
    real = disk.pwrite

    def pwrite(fd: int, data: bytes, offset: int) -> int:
        writes.append(data)
        if len(writes) > 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(fd, data, offset)

    async def evaluated(number: int) -> int:
        log = StepLog(store.create("do it"))
        step = await log.begin("turn[1]", "model", "m", {"content": f"call {number}"}, "f")
        # What follows is the call: the task and its step are in the file.
        assert f"call {number}".encode() in segment_of(store).read_bytes()
        await log.succeed(step, {"content": f"answer {number}"}, 0.1)
        await log.close(Summary("completed", 1, 0, 0.5, {"turns": 1}, {"status": "COMPLETE"}))
        assert f"answer {number}".encode() in segment_of(store).read_bytes()
        return number

    async def main(count: int) -> list[Any]:
        calls = [evaluated(number) for number in range(count)]
        return await asyncio.gather(*calls, return_exceptions=True)

    monkeypatch.setattr(disk, "pwrite", pwrite)
    assert asyncio.run(main(5)) == [0, 1, 2, 3, 4]
    assert [data.count(b"<!-- ") for data in writes] == [5, 5]
    errors = asyncio.run(main(2))
    assert [type(error) for error in errors] == [RecordNotWritten] * 2
    assert all("No space left on device; free space" in str(error) for error in errors), errors
    assert len(writes) == 3
    store.close()
    reader = TaskStore(store.root)
    assert reader.damage() == []
    assert [task.status for task in reader.list()].count("completed") == 5


def test_what_is_written_together_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = TaskStore(tmp_path / "tasks", is_packed=True)
    begin(store).abandon()
    text = "x" * (MAX_SHARED_BYTES * 2 // 5)
    writes: list[int] = []
    real = disk.pwrite

    def pwrite(fd: int, data: bytes, offset: int) -> int:
        writes.append(len(data))
        return real(fd, data, offset)

    async def begun(size: int) -> None:
        log = StepLog(store.create("do it"))
        await log.begin("turn[1]", "model", "m", {"content": text * size}, "f")

    async def main() -> None:
        await asyncio.gather(*(begun(size) for size in (1, 3, 1, 1, 0)))

    monkeypatch.setattr(disk, "pwrite", pwrite)
    asyncio.run(main())
    # Two of the small ones and the empty one share a write; the others write at once.
    assert [round(size / len(text)) for size in writes] == [3, 1, 2]
    store.close()


@pytest.mark.parametrize("moment", ["begin", "close"])
def test_a_task_that_is_stopped_while_it_waits_for_the_write_has_one_end(
    tmp_path: Path, moment: str
) -> None:
    store = TaskStore(tmp_path / "tasks", is_packed=True)
    journal = store.create("do it")
    log = StepLog(journal)

    async def main() -> None:
        task = asyncio.current_task()
        assert task is not None
        if moment == "begin":
            task.cancel()
        step = await log.begin("turn[1]", "model", "m", {"content": TEXT}, "f")
        await log.succeed(step, {"content": TEXT}, 0.1)
        task.cancel()
        await log.close(summary(journal))

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(main())
    if moment == "begin":
        journal.close(summary(journal, "aborted"))
        expected = ("aborted", "aborted", "cancelled.not_run — the task ended before it was made")
    else:
        with pytest.raises(RecordError, match="is closed"):
            journal.close(summary(journal, "aborted"))
        expected = ("completed", "success", None)
    store.close()
    recording = TaskStore(store.root).read(journal.id)
    (step,) = recording.steps
    assert step.end is not None
    assert (recording.status, step.status, step.end.error) == expected
    assert RecordedSteps(recording).interrupted_models() == []


def test_a_stopped_begin_is_no_answer_of_a_replay_and_hides_no_earlier_effect(
    tmp_path: Path,
) -> None:
    """A tool call is in flight when its process ends. It is repeated, which is stopped before the
    call: the first one is still in doubt.
    """
    store = TaskStore(tmp_path / "tasks", sync="step")
    journal = store.create("do it")
    journal.begin(StepStart("tool[1]", "tool", "pay", {"to": "Ada"}, "f"))
    journal.flush()
    journal.abandon()
    asked: list[int] = []

    async def decide(task_id: int, step: Step) -> Unfinished:
        asked.append(step.start.attempt)
        return "repeat"

    async def resume() -> None:
        reopened, recording = store.reopen(journal.id)
        log = StepLog(reopened, ResumedSteps(recording, decide))
        assert await log.may_repeat("tool[1]")
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        try:
            await log.begin("tool[1]", "tool", "pay", {"to": "Ada"}, "f")
        finally:
            reopened.abandon()

    for _ in range(2):
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(resume())
    assert asked == [1, 1]
    recording = store.read(journal.id)
    assert [step.end and step.end.reason_word for step in recording.steps[1:]] == [
        "cancelled.not_run",
        "cancelled.not_run",
    ]
    (in_doubt,) = RecordedSteps(recording).in_doubt()
    assert in_doubt.start.attempt == 1
    with pytest.raises(RecordIncomplete):
        ReplayedSteps(recording).answer("tool[1]", "tool", "f", {"to": "Ada"})


def test_a_task_that_could_not_be_written_is_free_once_it_is_abandoned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = TaskStore(tmp_path / "tasks", is_packed=True)
    journal = begin(store)
    journal.end(1, StepEnd("success", {"content": TEXT}, 0.1))

    def pwrite(fd: int, data: bytes, offset: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr(disk, "pwrite", pwrite)
        with pytest.raises(RecordNotWritten):
            journal.flush()
    with pytest.raises(RecordNotWritten):
        journal.close(summary(journal))
    journal.abandon()
    reader = TaskStore(store.root)
    assert [task.status for task in reader.list()] == ["interrupted"]
    store.close()


def test_ends_of_steps_are_written_at_the_end_of_the_turn_and_at_once_for_another_event_loop(
    tmp_path: Path,
) -> None:
    store = TaskStore(tmp_path, is_packed=True)
    journals = [begin(store) for _ in range(5)]
    segment = segment_of(store)

    def frames() -> int:
        return segment.read_bytes().count(b'["end",')

    async def end_steps(*numbers: int) -> list[bool]:
        for number in numbers:
            journals[number].end(1, StepEnd("success", {"content": TEXT}, 0.1))
        return [journals[number].flush_end() for number in numbers]

    async def main() -> None:
        assert await end_steps(0, 1) == [False, False]
        with ThreadPoolExecutor(1) as threads:
            assert threads.submit(asyncio.run, end_steps(2)).result() == [True]
        assert frames() == 1
        await asyncio.sleep(0)
        assert frames() == 3

    asyncio.run(main())
    # A loop that ends before the end of its turn.
    loop = asyncio.new_event_loop()
    ending = loop.create_task(end_steps(3))
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()
    assert ending.result() == [False]
    assert asyncio.run(end_steps(4)) == [False]
    assert frames() == 4
    for journal in journals:
        journal.close(summary(journal))
    store.close()
    assert frames() == 5
    assert {TaskStore(tmp_path).read(journal.id).status for journal in journals} == {"completed"}


@pytest.mark.timeout(300)
def test_an_interrupt_at_any_instruction_of_a_shared_write_writes_no_frame_twice(
    tmp_path: Path,
) -> None:
    """Afterwards every step that a flush has confirmed is in the record, once, or the segment
    refuses what is added.
    """
    outcomes: set[str] = set()
    place = 0
    while (outcome := _interrupted(tmp_path / str(place), place)) != "not interrupted":
        outcomes.add(outcome)
        place += 1
    assert place > 100 and outcomes == {"continued", "refused"}


def _interrupted(root: Path, place: int) -> str:
    """Two tasks of one event loop end a step and begin another one, and are interrupted before
    this instruction of their shared write; then each does a third step.
    """
    store = TaskStore(root, is_packed=True)
    left = place
    confirmed: dict[int, set[str]] = {}
    refused = False
    loop = asyncio.new_event_loop()

    def trace(frame: Any, event: str, argument: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename != segment_writer.__file__:
            return None
        if frame.f_code.co_name not in ("_flush_all", "flush", "_append", "_write", "end_flush"):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if left < 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    async def step(log: StepLog, number: int) -> None:
        nonlocal refused
        path = f"turn[{number}]"
        try:
            await log.begin(path, "model", "m", {"content": path}, "f")
            confirmed.setdefault(log.journal.id, set()).add(path)
            await log.succeed(log.journal.steps, {"content": path}, 0.1)
        except RecordError:
            refused = True

    async def steps(number: int) -> None:
        await asyncio.gather(*(step(log, number) for log in logs))

    logs = [StepLog(store.create("do it")) for _ in range(2)]
    loop.run_until_complete(steps(1))
    interrupted = False
    sys.settrace(trace)
    try:
        loop.run_until_complete(steps(2))
    except KeyboardInterrupt:
        interrupted = True
    finally:
        sys.settrace(None)
    for task in asyncio.all_tasks(loop):
        task.cancel()
    while asyncio.all_tasks(loop):
        # The interrupt is raised again by the task that it ended.
        with contextlib.suppress(KeyboardInterrupt):
            loop.run_until_complete(asyncio.sleep(0))
    loop.run_until_complete(steps(3))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    if not refused:
        ends = [TaskStore(root).read(log.journal.id).steps[-1].end for log in logs]
        assert None not in ends, place
    for log in logs:
        log.journal.abandon()
    store.close()
    reader = TaskStore(root)
    assert reader.damage() == []
    for log in logs:
        paths = [step.start.path for step in reader.read(log.journal.id).steps]
        assert len(paths) == len(set(paths)), (place, paths)
        assert confirmed[log.journal.id] <= set(paths), (place, confirmed, paths)
    if not interrupted:
        return "not interrupted"
    return "refused" if refused else "continued"
