"""Two processes that resume one task, and a task whose owner is alive, is dead, or has left a child behind."""

from __future__ import annotations

import fcntl
import os
import signal
import threading
from dataclasses import replace
from typing import Any

import pytest
from recovery_cases import BY_NAME, COMPOSITE
from recovery_child import evaluator_for
from recovery_harness import (
    HEADER,
    Place,
    files_of,
    recordings,
    result_of,
    root_of,
    snapshot,
    store_of,
)

from evaluator import TaskBusy
from evaluator.files.trust import signing_key
from evaluator.record import encoding
from evaluator.record.journal import now
from evaluator.record.steps import Header
from evaluator.store.owners import current_owner

ACTS = BY_NAME["atomic with effects"]


def crashed(lab: Any, case: Any = ACTS, share: float = 0.5) -> tuple[Place, int]:
    crashes = [crash for crash in lab.reference(case).crashes(("before",)) if crash[0] > HEADER]
    place = lab.place(case)
    assert place.do(crash=crashes[int(share * (len(crashes) - 1))]) is None
    root = root_of(place.tasks)
    assert root is not None
    return place, root


def is_busy(outcome: dict[str, Any]) -> bool:
    return outcome["status"] == "FAILED" and (outcome.get("cause") or "").startswith("TaskBusy")


@pytest.mark.parametrize(
    ("case", "rounds"), [(ACTS, 25), (BY_NAME["subtask in a subtask"], 10), (COMPOSITE, 4)], ids=str
)
def test_of_several_that_resume_at_once_one_wins_and_each_call_is_made_once(lab, case, rounds):
    reference = lab.reference(case)
    for turn in range(rounds):
        place, root = crashed(lab, case, (turn + 1) / (rounds + 1))
        then = snapshot(case, recordings(place.tasks))
        jobs = [place.job(root) for _ in range(2 + turn % 2)]
        pids = place.start(*jobs)
        said = [place.end(pid, job) for pid, job in zip(pids, jobs, strict=True)]
        outcomes = [found["outcome"] for found in said]
        ended = [outcome for outcome in outcomes if not is_busy(outcome)]
        assert ended and all(result_of(outcome) == reference.result for outcome in ended), outcomes
        assert sum((place.posts() - reference.posts).values()) <= then.calls_in_flight
        assert (
            sum((place.effects() - reference.effects).values())
            <= len(then.acts_in_flight) + then.looks_in_flight
        )
        assert (
            len(
                [path for path in place.tasks.glob("*/TASK-*.md") if path.name == f"TASK-{root}.md"]
            )
            == 1
        )
        place.remove()


def test_the_second_gets_a_busy_error_while_the_first_waits_for_an_answer(lab):
    place, root = crashed(lab)
    gate = lab.server.gates[place.key] = threading.Event()
    lab.server.asked[place.key].clear()
    first, second = place.job(root), place.job(root)
    (winner,) = place.start(first)
    lab.server.asked[place.key].wait()
    (loser,) = place.start(second)
    said = place.end(loser, second)
    assert is_busy(said["outcome"]) and str(winner) in said["outcome"]["message"]
    gate.set()
    assert result_of(place.end(winner, first)["outcome"]) == lab.reference(ACTS).result


def test_a_run_whose_owner_lives_is_neither_resumed_nor_listed_and_listed_as_soon_as_it_is_killed(
    lab,
):
    place = lab.place(ACTS)
    gate = lab.server.gates[place.key] = threading.Event()
    job = place.job()
    (pid,) = place.start(job)
    lab.server.asked[place.key].wait()
    evaluator, files = evaluator_for(ACTS, str(place.folder)), files_of(place.tasks)
    assert evaluator.interrupted() == []
    assert [task.status for task in store_of(place).list()] == ["running"]
    error = evaluator.resume_sync(1)
    assert isinstance(error.cause, TaskBusy) and str(pid) in error.message
    assert files_of(place.tasks) == files
    os.kill(pid, signal.SIGKILL)
    assert place.end(pid, job) is None
    assert [task.id for task in evaluator.interrupted()] == [1]
    gate.set()
    said = place.resume_twice(1)
    assert result_of(said["outcome"]) == lab.reference(ACTS).result
    assert evaluator.interrupted() == []
    assert sum((place.posts() - lab.reference(ACTS).posts).values()) == 1


def test_a_child_that_outlives_its_parent_holds_the_file_but_the_task_shows_as_interrupted(lab):
    place = lab.place(ACTS)
    for name in ("gone", "hold"):
        os.mkfifo(place.folder / name)
    job = place.job(crash=[12, "fork"])
    (pid,) = place.start(job)
    # Both ends are open once the child is there.
    with open(place.folder / "gone", "rb") as gone:
        with open(place.folder / "hold", "wb"):
            assert place.end(pid, job) is None
            evaluator, files = evaluator_for(ACTS, str(place.folder)), files_of(place.tasks)
            assert [task.id for task in evaluator.interrupted()] == [1]
            assert store_of(place).read(1).status == "interrupted"
            error = evaluator.resume_sync(1)
            assert isinstance(error.cause, TaskBusy)
            assert f"process {pid} is gone" in error.message and "holds its file" in error.message
            assert files_of(place.tasks) == files
        assert gone.read() == b""
    # It closed its end of the pipe; the lock goes with it, at its exit at the latest.
    said = place.resume_twice(1)
    assert result_of(said["outcome"]) == lab.reference(ACTS).result


def test_a_subtask_whose_file_is_held_stops_the_run_before_a_call(lab):
    case = BY_NAME["subtask"]
    for crash in lab.reference(case).crashes(("after",)):
        place = lab.place(case)
        assert place.do(crash=crash) is None
        if sum(found.summary is None for found in recordings(place.tasks).values()) == 2:
            break
    else:
        raise AssertionError("there was no time at which both tasks had begun and not ended")
    posts = place.posts()
    with open(place.tasks / "active" / "TASK-2.md", "rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        said = place.do(1)
    assert said["outcome"]["status"] == "FAILED" and "TASK-2" in said["outcome"]["message"], said[
        "outcome"
    ]
    assert place.posts() == posts
    assert result_of(place.do(1)["outcome"]) == lab.reference(case).result


@pytest.mark.parametrize(
    "changes",
    [{"started": 1}, {"boot_id": "00000000-0000-4000-8000-000000000000"}, {"pid": 2**22 + 1}],
    ids=[
        "its number was given to another process",
        "the machine was started again",
        "there is no such process",
    ],
)
def test_another_process_is_not_mistaken_for_the_owner(lab, changes):
    case = BY_NAME["sequential"]
    place = lab.place(case)
    library = evaluator_for(case, str(place.folder)).library
    template = library.get(case.request)
    header = Header(
        1,
        now(),
        case.request,
        {},
        case.request,
        template.sha256,
        owner=replace(current_owner(), **changes),
        extra={"handler": "sweep", "root": str(place.folder)},
    )
    record, _ = encoding.encode_header(header, key=signing_key(create=True))
    (place.tasks / "active").mkdir(parents=True, mode=0o700)
    (place.tasks / "active" / "TASK-1.md").write_bytes(record.data)
    evaluator = evaluator_for(case, str(place.folder))
    assert [task.id for task in evaluator.interrupted()] == [1]
    said = place.do(1)
    assert result_of(said["outcome"]) == lab.reference(case).result
