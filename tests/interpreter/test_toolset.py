"""The tools that a profile grants and forbids are granted and forbidden in a run."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
from pathlib import Path

import pytest

from evaluator import HandlerConfig, TaskStore, ToolGrant, load_profiles
from evaluator.record.task_lists import TaskLists
from evaluator.tools import PolicyRule

TASK = """
<task name="keep" type="atomic"><description>Keep notes</description><tools><tool name="write_file"/></tools>
  <instructions>Keep notes</instructions></task>
"""


def test_a_rule_of_the_profile_decides_a_call_by_its_arguments(make_evaluator, tmp_path):
    rules = (PolicyRule("deny", "path", "secrets/*"), PolicyRule("allow", "path", "notes/*"))
    profile = HandlerConfig(
        name="keeper", backend="simulated", tools=(ToolGrant("write_file", None, rules),)
    )
    told: list[str] = []

    def script(request):
        told.extend(m.content for m in request.messages if m.role == "tool")
        if told:
            return "done"
        paths = ["notes/a.txt", "notes/../secrets/key", "elsewhere.txt"]
        return [
            {"tool": "write_file", "arguments": {"path": path, "content": "x"}} for path in paths
        ]

    evaluator = make_evaluator(
        TASK, script=script, handler=profile, profiles={**load_profiles(), "keeper": profile}
    )
    asyncio.run(evaluator.evaluate("keep")).unwrap()
    assert (tmp_path / "notes" / "a.txt").read_text() == "x"
    assert "not allowed here with these arguments" in told[1]
    assert "nobody to ask" in told[2]
    assert not (tmp_path / "secrets").exists() and not (tmp_path / "elsewhere.txt").exists()


@pytest.mark.parametrize(("role", "owner"), [(None, "keeper"), ("MECHANIC", "MECHANIC")])
def test_a_model_keeps_tasks_in_the_role_of_its_grant_or_its_profile(
    make_evaluator, tmp_path, role, owner
):
    xml = """<task name="plan" type="atomic"><description>Plan</description><instructions>Plan</instructions></task>"""
    plan = "# Move house\n\n## [MOVER] Carry\n\n- [ ] carry\n"
    grants = (ToolGrant("manage_task", None, (), role),)
    profile = HandlerConfig(name="keeper", backend="simulated", tools=grants)

    def script(request):
        told = [m.content for m in request.messages if m.role == "tool"]
        if len(told) == 2:
            return "done"
        action = {
            "action": "update" if told else "create",
            "name": "2026-03-01-move",
            "content": plan,
        }
        return {"tool": "manage_task", "arguments": action}

    evaluator = make_evaluator(xml, script=script, handler=profile, profiles={"keeper": profile})
    asyncio.run(evaluator.evaluate("plan")).unwrap()
    task = TaskLists(tmp_path / "tasks").read("move")
    assert (task.owner, task.content.count("Owner")) == (owner, 1)
    assert [task.id for task in TaskStore(tmp_path / "tasks").list()] == [1]


def test_a_shell_stays_for_its_task_and_ends_with_it(make_evaluator, tmp_path):
    xml = """<task name="work" type="atomic"><description>Work</description><tools><tool name="bash"/></tools>
      <instructions>Work</instructions></task>"""
    profile = HandlerConfig(name="p", backend="simulated", tools=(ToolGrant("bash", "allow"),))
    told: list[str] = []

    def script(request):
        told[:] = [m.content for m in request.messages if m.role == "tool"]
        commands = [
            "mkdir -p inner; cd inner; X=kept; echo $$ > pid",
            "echo $X in $(basename $PWD)",
        ]
        return (
            {"tool": "bash", "arguments": {"command": commands[len(told)]}}
            if len(told) < 2
            else "done"
        )

    evaluator = make_evaluator(xml, script=script, handler=profile, profiles={"p": profile})
    asyncio.run(evaluator.evaluate("work")).unwrap()
    assert "kept in inner" in told[1]
    assert not Path(f"/proc/{(tmp_path / 'inner' / 'pid').read_text().strip()}").exists()


def test_a_policy_of_the_profile_is_not_softened_by_the_tool(make_evaluator, tmp_path):
    xml = """<task name="look" type="atomic"><description>Look</description>
      <tools><tool name="str_replace_based_edit_tool"/></tools><instructions>Look</instructions></task>"""
    profile = HandlerConfig(
        name="p", backend="simulated", tools=(ToolGrant("str_replace_based_edit_tool", "deny"),)
    )
    told: list[str] = []

    def script(request):
        told[:] = [m.content for m in request.messages if m.role == "tool"]
        call = {
            "tool": "str_replace_based_edit_tool",
            "arguments": {"command": "view", "path": "."},
        }
        return "done" if told else call

    asyncio.run(
        make_evaluator(xml, script=script, handler=profile, profiles={"p": profile}).evaluate(
            "look"
        )
    ).unwrap()
    assert "policy deny" in told[0]


GROW = f"{sys.executable} -c 'bytearray(400 * 2**20)'"


@pytest.mark.parametrize("tool", ["run_script", "bash"])
def test_what_a_script_may_hold_is_the_profiles_word(make_evaluator, tool):
    command = shlex.split(GROW) if tool == "run_script" else GROW
    xml = f'<task name="t" type="atomic"><description>d</description><tools><tool name="{tool}"/></tools></task>'
    said = {}
    for megabytes in (100, 2000):
        config = HandlerConfig(
            name="p",
            backend="simulated",
            script_memory_mb=megabytes,
            tools=(ToolGrant(tool, "allow"),),
        )
        seen = []

        def script(request, seen=seen):
            seen.append(request.messages[-1].content)
            return "done" if len(seen) > 1 else {"tool": tool, "arguments": {"command": command}}

        make_evaluator(xml, handler=config, script=script).evaluate_sync("t").unwrap()
        said[megabytes] = json.loads(seen[-1])["exit_code"]
    assert said == {100: 1, 2000: 0}


def test_what_a_script_may_hold_is_also_the_templates_word(make_evaluator):
    xml = """<task name="grow" type="script"><description>d</description><handler script_memory="{memory}"/>
    <command>{command}</command></task>"""
    error = make_evaluator(xml.format(memory=100, command=GROW)).evaluate_sync("grow")
    assert "MemoryError" in error.message
    assert (
        make_evaluator(xml.format(memory=2000, command=GROW)).evaluate_sync("grow").unwrap().content
        == ""
    )
