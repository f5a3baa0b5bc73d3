"""What a model can do with background tasks: start, list, read, await and kill its own, within its task's authority."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from evaluator import HandlerConfig, TaskError, ToolGrant
from evaluator.background import BackgroundStore, BackgroundTools
from evaluator.interpreter.background import BACKGROUND_TOOLS
from evaluator.testing import Answer, LoopbackServer
from evaluator.tools import PolicyRule
from tests.jobs.test_background_scripts import DETACHED
from tests.jobs.test_background_store import a_task

WORK = """<task name="work" type="atomic"><description>Work</description><instructions>Work</instructions></task>"""
SAY = """<task name="say" type="atomic"><description>Say it</description><inputs><input name="word"/></inputs>
  <instructions>Say {{ word }}</instructions></task>"""
KEEP = """<task name="keep" type="atomic"><description>Keep on</description><instructions>Keep on</instructions>
  <tools><tool name="start_script"/><tool name="wait_background"/></tools></task>"""
RUN = """<task name="run" type="script"><description>Run</description><command>touch ran</command></task>"""


@pytest.fixture
def run(make_evaluator, tmp_path):
    """`run(*calls)`: the outcome of a task whose model makes these calls, one a turn, and the answers that it got. A
    call is a tool and its arguments, or a function of the answers so far that returns one."""

    def begin(*calls, xml=WORK, grants=None, say=None):
        grants = grants or tuple(ToolGrant(name, "allow") for name in BACKGROUND_TOOLS)
        profile = HandlerConfig(name="p", backend="simulated", tools=grants, max_turns=50)
        told: list[str] = []

        def script(request):
            if say is not None and "Work" not in request.messages[0].content:
                return say(request)
            told[:] = [m.content for m in request.messages if m.role == "tool"]
            if len(told) == len(calls):
                return "done"
            call = calls[len(told)]
            name, arguments = call(told) if callable(call) else call
            return {"tool": name, "arguments": arguments}

        evaluator = make_evaluator(
            xml,
            script=script,
            handler=profile,
            profiles={"p": profile},
            background=BackgroundTools(tmp_path / "tasks" / "background"),
        )
        outcome = asyncio.run(evaluator.evaluate("work"))
        return outcome, told

    return begin


def first_id(told):
    return json.loads(told[0])["task_id"]


def states(tmp_path):
    store = BackgroundStore(tmp_path / "tasks" / "background")
    try:
        return store.list()
    finally:
        store.close()


def test_a_model_starts_a_script_waits_for_it_and_reads_its_output(run, tmp_path):
    outcome, told = run(
        (
            "start_script",
            {"command": ["sh", "-c", "printf 'één\\ntwee'; exit 3"], "description": "count"},
        ),
        lambda told: ("wait_background", {"task_id": first_id(told)}),
        lambda told: ("read_background", {"task_id": first_id(told)}),
        lambda told: ("read_background", {"task_id": first_id(told), "offset": 5, "max_bytes": 2}),
        ("list_background", {}),
    )
    assert outcome.ok
    ended, whole, part, listed = (json.loads(answer) for answer in told[1:])
    assert (ended["status"], ended["exit_code"], ended["description"]) == ("failed", 3, "count")
    assert (whole["text"], whole["next_offset"]) == ("één\ntwee", 10)
    assert (part["text"], part["next_offset"]) == ("\nt", 7)
    assert [task["task_id"] for task in listed["tasks"]] == [first_id(told)]
    assert "notifications" not in listed  # the answer of wait_background was it


def test_a_read_never_cuts_a_character_in_two(run):
    outcome, told = run(
        ("start_script", {"command": ["printf", "aé"]}),
        lambda told: ("wait_background", {"task_id": first_id(told)}),
        lambda told: ("read_background", {"task_id": first_id(told), "max_bytes": 2}),
        lambda told: ("read_background", {"task_id": first_id(told), "offset": 1}),
    )
    assert outcome.ok
    assert [(json.loads(each)["text"], json.loads(each)["next_offset"]) for each in told[2:]] == [
        ("a", 1),
        ("é", 3),
    ]


def test_what_a_model_started_ends_with_its_task_detached_processes_too(run, tmp_path):
    outcome, _ = run(
        ("start_script", {"command": [sys.executable, "-c", DETACHED]}),
        ("start_script", {"command": ["sh", "-c", "until [ -e pid ]; do sleep 0.02; done"]}),
        lambda told: ("wait_background", {"task_id": json.loads(told[1])["task_id"]}),
    )
    assert outcome.ok
    pid = int((tmp_path / "pid").read_text())
    assert not Path(f"/proc/{pid}").exists()
    assert [task.status for task in states(tmp_path)] == ["killed", "completed"]
    assert states(tmp_path)[0].reason == "the task that started it has ended"


def test_a_model_kills_what_it_started(run, tmp_path):
    outcome, told = run(
        ("start_script", {"command": ["sleep", "600"]}),
        lambda told: ("kill_background", {"task_id": first_id(told)}),
    )
    assert outcome.ok and json.loads(told[1])["status"] == "killed"


def test_a_model_starts_a_subtask_and_reads_its_transcript(run, tmp_path):
    outcome, told = run(
        (
            "start_subtask",
            {
                "type": "atomic",
                "description": "Say it",
                "inputs": {"word": "tree"},
                "hints": {"template": "say"},
            },
        ),
        lambda told: ("wait_background", {"task_id": first_id(told)}),
        lambda told: ("read_background", {"task_id": first_id(told)}),
        xml=WORK + SAY,
        say=lambda request: "a tree",
    )
    assert outcome.ok
    ended, read = json.loads(told[1]), json.loads(told[2])
    assert (ended["status"], ended["summary"], ended["task_id"][0]) == ("completed", "a tree", "a")
    records = [json.loads(line) for line in read["text"].splitlines()]
    assert [record.get("content") for record in records[1:]] == ["a tree", "a tree"]
    assert (tmp_path / "tasks" / "done" / "TASK-2.md").exists()
    (task,) = states(tmp_path)
    assert task.task_file == "TASK-2" and task.tool_use_id


def test_a_subtask_in_the_background_has_no_more_authority_than_one_in_the_foreground(
    run, tmp_path
):
    outcome, told = run(
        (
            "start_subtask",
            {"type": "atomic", "description": "Run", "inputs": {}, "hints": {"template": "run"}},
        ),
        lambda told: ("wait_background", {"task_id": first_id(told)}),
        xml=WORK + RUN,
    )
    assert outcome.ok
    ended = json.loads(told[1])
    assert ended["status"] == "failed" and "cannot be chosen here" in ended["reason"]
    assert not (tmp_path / "ran").exists()


def test_what_a_subtask_in_the_background_started_ends_with_the_task_above(run, tmp_path):
    def say(request):
        told = [message.content for message in request.messages if message.role == "tool"]
        if not told:
            return {
                "tool": "start_script",
                "arguments": {"command": [sys.executable, "-c", DETACHED]},
            }
        return {
            "tool": "wait_background",
            "arguments": {"task_id": json.loads(told[0])["task_id"], "timeout_s": 600},
        }

    outcome, _ = run(
        (
            "start_subtask",
            {
                "type": "atomic",
                "description": "Keep on",
                "inputs": {},
                "hints": {"template": "keep"},
            },
        ),
        ("start_script", {"command": ["sh", "-c", "until [ -e pid ]; do sleep 0.02; done"]}),
        lambda told: ("wait_background", {"task_id": json.loads(told[1])["task_id"]}),
        xml=WORK + KEEP,
        say=say,
    )
    assert outcome.ok
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text()}").exists()
    found = {task.description: task for task in states(tmp_path)}
    assert sorted(task.status for task in found.values()) == ["completed", "killed", "killed"]
    assert found["Keep on"].task_file == "TASK-2"


def test_a_subtask_in_the_background_spends_the_money_of_the_task_that_started_it(
    make_evaluator, tmp_path
):
    usage = {"prompt_tokens": 10_000, "completion_tokens": 1, "total_tokens": 10_001}
    request = {
        "type": "atomic",
        "description": "Say it",
        "inputs": {"word": "tree"},
        "hints": {"template": "say"},
    }
    start = Answer(
        "", "tool_calls", tool_calls=(("c1", "start_subtask", json.dumps(request)),), usage=usage
    )
    look = Answer("", "tool_calls", tool_calls=(("c2", "list_background", "{}"),), usage=usage)
    with LoopbackServer(start, default=look) as server:
        profile = HandlerConfig(
            name="p",
            backend="openai_compatible",
            model="gpt-4o-mini",
            base_url=server.base_url,
            max_turns=50,
            max_cost_usd=0.005,
            max_output_tokens=100,
            tools=tuple(ToolGrant(name, "allow") for name in BACKGROUND_TOOLS),
        )
        evaluator = make_evaluator(
            WORK + SAY,
            backend=None,
            handler=profile,
            profiles={"p": profile},
            background=BackgroundTools(tmp_path / "tasks" / "background"),
        )

        async def work():
            try:
                return await evaluator.evaluate("work")
            finally:
                await evaluator.aclose()

        outcome = asyncio.run(work())
    assert (
        isinstance(outcome, TaskError)
        and outcome.resource is not None
        and outcome.resource.name == "cost"
    )
    # 0.0015 dollars a request: there is room for three, whoever makes them.
    assert 1 < server.posts <= 3
    (task,) = states(tmp_path)
    assert task.status in ("killed", "failed")


def test_rules_of_the_profile_decide_about_scripts_in_the_background(run, tmp_path):
    grants = (ToolGrant("start_script", None, (PolicyRule("deny", "command", "*"),)),)
    outcome, told = run(("start_script", {"command": ["touch", "ran"]}), grants=grants)
    assert (
        outcome.ok and "not allowed" in told[0] and not (tmp_path / "tasks" / "background").exists()
    )
    outcome, told = run(
        ("start_script", {"command": ["touch", "ran"]}), grants=(ToolGrant("start_script"),)
    )
    assert outcome.ok and "nobody to ask" in told[0] and not (tmp_path / "ran").exists()


def test_a_model_sees_no_tasks_of_others(run, tmp_path):
    store = BackgroundStore(tmp_path / "tasks" / "background")

    other = a_task(tmp_path, session="somebody else")
    store.add(other)
    store.close()
    outcome, told = run(
        ("list_background", {}),
        ("read_background", {"task_id": other.id}),
        ("kill_background", {"task_id": other.id}),
        ("wait_background", {"task_id": "../../etc"}),
    )
    assert outcome.ok and json.loads(told[0]) == {"tasks": []}
    assert all("has not started" in answer for answer in told[1:])
    assert states(tmp_path)[0].status == "pending"


def test_a_later_notification_comes_with_the_next_message_of_the_user(make_evaluator, tmp_path):
    profile = HandlerConfig(
        name="p", backend="simulated", tools=(ToolGrant("start_script", "allow"),)
    )
    seen: list[str] = []

    def script(request):
        last = request.messages[-1]
        seen.append(last.content)
        if last.content == "go":
            return {"tool": "start_script", "arguments": {"command": ["sh", "-c", "exit 5"]}}
        return "fine"

    background = BackgroundTools(tmp_path / "bg")
    evaluator = make_evaluator(
        WORK, script=script, handler=profile, profiles={"p": profile}, background=background
    )
    lines = iter(["go", "what now"])

    async def ask():
        line = next(lines, None)
        if line == "what now":
            tasks = background.make_tasks()
            (task,) = tasks.store.list()
            await tasks.wait(task.id)
        return line

    asyncio.run(evaluator.chat(ask, lambda reply: None)).unwrap()
    assert seen[0] == "go"
    assert seen[-1].startswith("<task_notification>") and seen[-1].endswith(
        "</task_notification>\n\nwhat now"
    )
    assert "<status>failed</status>" in seen[-1] and "<tool_use_id>" in seen[-1]


def test_without_a_place_for_background_tasks_the_tools_are_an_error(make_evaluator):
    profile = HandlerConfig(
        name="p", backend="simulated", tools=(ToolGrant("start_script", "allow"),)
    )
    outcome = asyncio.run(
        make_evaluator(WORK, handler=profile, profiles={"p": profile}).evaluate("work")
    )
    assert isinstance(outcome, TaskError) and "BackgroundTools" in outcome.message
