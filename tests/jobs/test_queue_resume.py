"""An interrupted attempt is resumed from its task files: only calls that were in flight are made again."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from evaluator import Evaluator, TaskStore, TemplateLibrary, load_profiles
from evaluator.interpreter.recovery import OnUnfinished
from evaluator.jobs.queue_store import QueueStore
from evaluator.queue import GraderVerifier, TaskQueue
from evaluator.testing import Answer, HttpReply, LoopbackServer
from tests.cli.test_cli_signals import wait_until

XML = """<library>
<task name="report" type="sequential"><description>Write a report</description><steps>
  <task name="one"><description>1</description><instructions>ONE</instructions></task>
  <task name="two"><description>2</description><instructions>TWO {{steps.one.content}}</instructions></task>
  <task name="three"><description>3</description><instructions>THREE {{steps.two.content}}</instructions></task>
</steps></task>
<task name="grade"><description>Judge an answer</description><inputs><input name="answer"/></inputs>
  <instructions>GRADE {{answer}}</instructions><output_format type="json"/></task>
<task name="send" type="sequential"><description>Send it</description><steps>
  <task name="one"><description>1</description><instructions>ONE</instructions></task>
  <task name="script" type="script"><description>2</description><command>python3 send.py</command></task>
</steps></task>
</library>"""
WORKER = """
import sys
from pathlib import Path
from tests.jobs.test_queue_resume import work
work(Path(sys.argv[1]), sys.argv[2])
"""
GOOD = Answer(json.dumps({"success": True, "feedback": ""}))


def make_evaluator(folder: Path, url: str, **options) -> Evaluator:
    profile = load_profiles()["offline"].override(
        name="wire", backend="openai_compatible", model="m", base_url=url, backoff_s=()
    )
    library = TemplateLibrary.load(folder / "t.xml", shipped=False)
    options = {"tasks_dir": folder / "tasks", "roots": [folder], **options}
    return Evaluator(library, profile, profiles={"wire": profile}, **options)


def work(folder: Path, url: str, *, unfinished: OnUnfinished = "stop", **options) -> None:
    evaluator = make_evaluator(folder, url, **options)
    with TaskQueue(folder / "queue") as queue, evaluator:
        queue.work_sync(
            evaluator,
            until_empty=True,
            verifiers=[GraderVerifier(evaluator, "grade")],
            unfinished=unfinished,
        )


def kill_at(folder: Path, server: LoopbackServer, posts: int) -> None:
    """Starts a worker and kills it when the server has this many requests."""
    worker = subprocess.Popen([sys.executable, "-c", WORKER, str(folder), server.base_url])
    try:
        server.wait_for_posts(posts, 200)
    finally:
        worker.kill()
        worker.wait()


@pytest.fixture
def server():
    with LoopbackServer(default=HttpReply(silent=True, end="hang")) as found:
        yield found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "t.xml").write_text(XML)
    with TaskQueue(tmp_path / "queue") as queue:
        queue.add("write a report", template="report", max_retries=9)
    return tmp_path


def interrupt_in_second_call(folder: Path, server: LoopbackServer) -> None:
    """Leaves the entry pending, with an attempt of whose calls the first has an answer."""
    server.enqueue(Answer("1"))

    async def released() -> None:
        evaluator = make_evaluator(folder, server.base_url)
        with TaskQueue(folder / "queue") as queue:
            working = asyncio.create_task(
                queue.work(evaluator, verifiers=[GraderVerifier(evaluator, "grade")])
            )
            await asyncio.to_thread(server.wait_for_posts, 2)
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
        await evaluator.aclose()

    asyncio.run(released())


def entry_of(folder: Path):
    with TaskQueue(folder / "queue") as queue:
        (entry,) = queue.list()
    return entry


def test_only_calls_in_flight_are_paid_for_again(folder, server):
    server.enqueue(Answer("1"))
    kill_at(folder, server, 2)  # in the second call
    server.enqueue(Answer("2"), Answer("3"))
    kill_at(folder, server, 5)  # in the grader's call
    entry = entry_of(folder)
    (interrupted,) = entry.strategies_tried
    assert entry.status == "running"
    server.enqueue(GOOD)
    work(folder, server.base_url)
    entry = entry_of(folder)
    assert server.posts == 4 + 2  # calls, and one for each kill
    (attempt,) = entry.strategies_tried
    assert (entry.status, entry.retries, entry.deliverable) == ("done", 2, "3")
    assert attempt.result == "TASK-1: 3 (interrupted 2 times)"
    assert attempt.attempted_at == interrupted.attempted_at
    assert attempt.attempted_at >= (entry.started_at or "")  # another second may have begun
    assert len(list(TaskStore(folder / "tasks").list())) == 2


def test_a_released_attempt_is_resumed(folder, server):
    interrupt_in_second_call(folder, server)
    assert entry_of(folder).strategies_tried[0].result.startswith("released: ")
    server.enqueue(Answer("2"), Answer("3"), GOOD)
    work(folder, server.base_url)
    (attempt,) = entry_of(folder).strategies_tried
    assert (server.posts, attempt.result) == (5, "TASK-1: 3 (interrupted once)")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            "template",
            "TASK-1: steps[2]/turn[1]: the template 'report' was edited since this run began",
        ),
        ("model", "TASK-1 was begun with another model"),
        ("guidance", "TASK-1 was begun with another text"),
        ("tasks", "its task files are in "),
    ],
)
def test_what_has_changed_meanwhile_begins_a_new_attempt_and_is_named(
    folder, server, change, reason
):
    interrupt_in_second_call(folder, server)
    options: dict = {}
    if change == "template":
        (folder / "t.xml").write_text(XML.replace("TWO", "TWICE"))
    elif change == "guidance":
        with TaskQueue(folder / "queue") as queue:
            queue.publish()
            path = folder / "queue" / "task-queue.json"
            path.write_text(path.read_text().replace("write a report", "write a long report"))
            queue.import_file()
    else:
        options = {"model": "other"} if change == "model" else {"tasks_dir": folder / "elsewhere"}
    server.enqueue(Answer("1"), Answer("2"), Answer("3"), GOOD)
    work(folder, server.base_url, **options)
    first, second = entry_of(folder).strategies_tried
    assert f"not resumed: {reason}" in first.result
    assert (server.posts, second.attempt, entry_of(folder).retries) == (6, 2, 0)
    assert second.result.endswith(": 3")


def test_only_the_grading_begins_again_when_only_the_grader_has_changed(folder, server):
    server.enqueue(*map(Answer, "123"))
    kill_at(folder, server, 4)
    (folder / "t.xml").write_text(XML.replace("GRADE", "JUDGE"))
    server.enqueue(GOOD)
    work(folder, server.base_url)
    assert (server.posts, entry_of(folder).strategies_tried[0].result) == (
        5,
        "TASK-1: 3 (interrupted once)",
    )


def test_a_recorded_failure_whose_worker_ended_before_it_was_stored_is_not_made_again(
    folder, server, monkeypatch
):
    def crash(*args, **options):
        raise RuntimeError("the process ends here")

    json_wanted = '</instructions><output_format type="json" schema="object"/></task>\n</steps>'
    (folder / "t.xml").write_text(XML.replace("</instructions></task>\n</steps>", json_wanted, 1))
    server.enqueue(*map(Answer, "123"))
    with monkeypatch.context() as patch:
        patch.setattr(QueueStore, "end", crash)
        with pytest.raises(RuntimeError):
            work(folder, server.base_url)
    with closing(sqlite3.connect(folder / "queue" / "queue.sqlite")) as database, database:
        database.execute("UPDATE lease SET length_s = 0")
    server.enqueue(Answer("1"), Answer("2"), Answer("{}"), GOOD)
    work(folder, server.base_url)
    first, second = entry_of(folder).strategies_tried
    assert (server.posts, first.attempt, second.attempt, entry_of(folder).status) == (
        7,
        1,
        2,
        "done",
    )
    assert first.result.startswith("TASK-1: ") and first.result.endswith(" (interrupted once)")


def test_a_side_effect_in_doubt_blocks_the_entry_until_the_user_decides(folder, server):
    (folder / "send.py").write_text(
        "import pathlib, time\nopen('sent', 'a').write('x')\ntime.sleep(0 if pathlib.Path('fast').exists() else 1000)\n"
    )
    with TaskQueue(folder / "queue") as queue:
        queue.skip("T-01")
        queue.add("send it", template="send")
    server.enqueue(Answer("1"))
    worker = subprocess.Popen([sys.executable, "-c", WORKER, str(folder), server.base_url])
    wait_until(lambda: (folder / "sent").exists() and (folder / "sent").read_text() == "x")
    worker.kill()
    worker.wait()
    (folder / "fast").touch()
    work(folder, server.base_url)
    with TaskQueue(folder / "queue") as queue:
        blocked = queue.show("T-02").entry
        assert (blocked.status, blocked.retries) == ("blocked", 1)
        assert "side effect that may have taken place: TASK-1: " in blocked.blocked_reason
        assert "queue work --unfinished repeat;" in blocked.user_action_required
        queue.retry("T-02")
    assert (server.posts, (folder / "sent").read_text()) == (1, "x")
    server.enqueue(GOOD)
    work(folder, server.base_url, unfinished="repeat")
    with TaskQueue(folder / "queue") as queue:
        done = queue.show("T-02").entry
    assert (server.posts, (folder / "sent").read_text(), done.status) == (2, "xx", "done")
    assert len(done.strategies_tried) == 1
