"""Interactive sessions: idle until a message arrives, active until it is answered, and one end."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from evaluator import HandlerConfig, SimulatedBackend, TaskStore, ToolGrant, UsageError
from evaluator.background import BackgroundStore, BackgroundTasks, BackgroundTools, SessionWork
from evaluator.interpreter.background import BACKGROUND_TOOLS
from tests.jobs.test_background_store import a_dead_owner, a_task

WORK = '<task name="work" type="atomic"><description>Work</description><instructions>Work</instructions></task>'


def session_of(evaluator):
    async def converse(ask, show, on_message, on_begin):
        return await evaluator.chat(ask, show, on_message=on_message, on_begin=on_begin)

    return SessionWork(converse, evaluator.services.redactor)


def count_words(request):
    return f"message {sum(message.role == 'user' for message in request.messages)}"


def lines(task):
    return [
        json.loads(line) for line in Path(task.output_file).read_text(encoding="utf-8").splitlines()
    ]


@pytest.mark.parametrize("sender", ["here", "another process"])
def test_a_session_is_idle_until_it_is_asked_and_remembers(make_evaluator, tmp_path, sender):
    evaluator = make_evaluator(WORK, script=count_words)

    async def work():
        async with BackgroundTasks(tmp_path / "bg") as tasks:
            other = BackgroundStore(tmp_path / "bg")  # as another process has it

            async def send(text):
                await tasks.send(task.id, text) if sender == "here" else other.send(task.id, text)
                assert other.get(task.id).activity == "active"
                return await tasks.wait(task.id, 60, idle=True)

            task = tasks.start(session_of(evaluator), "talk", session="s")
            assert task.id[0] == "t"
            assert (await tasks.wait(task.id, 60, idle=True)).activity == "idle"
            assert tasks.store.notices(task.id) == []
            for number in (1, 2):
                assert (await send(f"question {number}")).status == "running"
                (notice,) = tasks.store.claim(session="s")
                assert (notice.kind, notice.priority) == ("event", "next")
                assert f"message {number}" in notice.xml and "<status>" not in notice.xml
            await send(None)
            ended = await tasks.wait(task.id, 200)
            other.close()
            assert [n.kind for n in tasks.store.claim(session="s")] == ["end"]
            return ended

    ended = asyncio.run(work())
    assert (ended.status, ended.summary, ended.activity, ended.task_file) == (
        "completed",
        "message 2",
        None,
        "TASK-1",
    )
    said = [(each["role"], each["content"]) for each in lines(ended) if each["type"] == "message"]
    assert said == [
        ("user", "question 1"),
        ("assistant", "message 1"),
        ("user", "question 2"),
        ("assistant", "message 2"),
    ]
    assert ended.input_tokens is not None and ended.output_tokens is not None


def test_messages_that_are_sent_at_once_are_answered_in_their_order(make_evaluator, tmp_path):
    evaluator = make_evaluator(
        WORK, script=lambda request: f"you said {request.messages[-1].content}"
    )

    async def work():
        async with BackgroundTasks(tmp_path / "bg") as tasks:
            task = tasks.start(session_of(evaluator), "talk")
            for number in range(5):
                await tasks.send(task.id, str(number))
            await tasks.send(task.id, None)
            return await tasks.wait(task.id, 200)

    said = [
        each["content"] for each in lines(asyncio.run(work())) if each.get("role") == "assistant"
    ]
    assert said == [f"you said {number}" for number in range(5)]


@pytest.mark.parametrize("when", ["idle", "active"])
def test_a_kill_aborts_the_session_and_closes_its_record(make_evaluator, tmp_path, when):
    asked = asyncio.Event()

    class Hanging(SimulatedBackend):
        async def complete(self, request, *, on_text=None):
            asked.set()
            await asyncio.Event().wait()
            return await super().complete(request, on_text=on_text)

    evaluator = make_evaluator(WORK, backend=Hanging())

    async def work():
        async with BackgroundTasks(tmp_path / "bg") as tasks:
            task = tasks.start(session_of(evaluator), "talk")
            await tasks.wait(task.id, 60, idle=True)
            if when == "active":
                await tasks.send(task.id, "hello")
                await asyncio.wait_for(asked.wait(), 200)
            killed = await tasks.kill(task.id, "enough", timeout_s=200)
            assert [n.kind for n in tasks.store.notices(task.id)] == ["end"]
            return killed

    killed = asyncio.run(work())
    assert (killed.status, killed.reason) == ("killed", "enough") and lines(killed)[-1][
        "type"
    ] == "aborted"
    (record,) = TaskStore(tmp_path / "tasks").list()
    assert record.status == "aborted"


def test_only_a_running_session_takes_messages_and_not_any_number(tmp_path):
    store = BackgroundStore(tmp_path)
    script, session, gone = (
        a_task(tmp_path),
        a_task(tmp_path, "t"),
        a_task(tmp_path, "t", owner=a_dead_owner()),
    )
    for task in (script, session, gone):
        store.add(task)
        store.begin(task.id)
    with pytest.raises(UsageError, match="is not an interactive session"):
        store.send(script.id, "hello")
    for number in range(100):
        store.send(session.id, str(number))
    with pytest.raises(UsageError, match="100 messages wait"):
        store.send(session.id, "one more")
    with pytest.raises(UsageError, match="at most 1,000,000"):
        store.send(session.id, "x" * 1_000_001)
    store.set_activity(session.id, "idle")
    assert store.get(session.id).activity == "active"  # nobody has taken the messages
    assert store.take_messages(session.id) == [str(number) for number in range(100)]
    store.set_activity(session.id, "idle")
    assert store.get(session.id).activity == "idle" and store.addressees() == []
    store.end_orphans()
    with pytest.raises(UsageError, match=r"has ended \(failed\)"):
        store.send(gone.id, "hello")
    store.close()


def test_a_model_talks_with_a_session_within_its_authority(make_evaluator, tmp_path):
    calls = [
        ("start_session", {"message": "first"}),
        ("wait_background", {}),
        ("send_message", {"message": "second"}),
        ("wait_background", {}),
        ("read_background", {}),
        ("send_message", {"message": None}),
        ("wait_background", {}),
        ("send_message", {"message": "too late"}),
    ]
    told: list[str] = []
    offered: list[set[str]] = []

    def script(request):
        if "Work" not in request.messages[0].content:
            offered.append({spec.name for spec in request.tools})
            return f"reply to {request.messages[-1].content}"
        told[:] = [message.content for message in request.messages if message.role == "tool"]
        if len(told) == len(calls):
            return "done"
        name, arguments = calls[len(told)]
        return {
            "tool": name,
            "arguments": arguments | ({"task_id": json.loads(told[0])["task_id"]} if told else {}),
        }

    grants = tuple(ToolGrant(name, "allow") for name in BACKGROUND_TOOLS)
    profile = HandlerConfig(name="p", backend="simulated", tools=grants, max_turns=50)
    evaluator = make_evaluator(
        WORK,
        script=script,
        handler=profile,
        profiles={"p": profile},
        background=BackgroundTools(tmp_path / "bg"),
    )
    assert asyncio.run(evaluator.evaluate("work")).ok
    assert json.loads(told[1])["activity"] == "idle" and json.loads(told[2])["activity"] == "active"
    said = [json.loads(line)["content"] for line in json.loads(told[4])["text"].splitlines()]
    assert said == ["first", "reply to first", "second", "reply to second"]
    assert json.loads(told[6])["status"] == "completed" and "has ended (completed)" in told[7]
    assert offered and all(names <= set(BACKGROUND_TOOLS) for names in offered)
