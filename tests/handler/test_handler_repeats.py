"""A model that repeats a call with the same arguments and the same answer is told, and then stopped."""

from __future__ import annotations

import asyncio
import json
from itertools import count

import pytest

from evaluator import TaskError, TaskStore, tool
from evaluator.handler.tool_runner import STOPPED_AFTER

XML = """<task name="t" type="atomic"><description>d</description><tools><tool name="look"/><tool name="change"/>
  <tool name="tick"/></tools><handler max_turns="40"/><instructions>go</instructions></task>"""
ticks = count()


@tool(effect=False)
def look(place: str = "", depth: int = 0) -> str:
    """Looks."""
    return "nothing"


@tool
def change(n: int) -> str:
    """Changes something."""
    return "changed"


@tool(effect=False)
def tick() -> str:
    """Gives another answer each time."""
    return str(next(ticks))


def run(make_evaluator, calls):
    """The outcome, and the answers that the model got to `calls`, one in each turn."""
    answers = []

    def script(request):
        answers[:] = [m.content for m in request.messages if m.role == "tool"]
        return calls[len(answers)] if len(answers) < len(calls) else "done"

    evaluator = make_evaluator(XML, script=script, tools=[look, change, tick])
    return asyncio.run(evaluator.evaluate("t")), answers


LOOK = {"tool": "look", "arguments": {"place": "x", "depth": 1}}


def test_the_model_is_told_and_then_stopped(make_evaluator):
    outcome, answers = run(make_evaluator, [LOOK] * 20)
    assert isinstance(outcome, TaskError)
    assert (outcome.type, outcome.reason) == ("TASK_FAILURE", "execution_halted")
    assert "look 6 times with the same arguments" in outcome.message
    assert len(answers) == STOPPED_AFTER
    assert [answer == "nothing" for answer in answers] == [True, True, False, False, False]
    assert "3 times" in answers[2] and answers[2].startswith("nothing\n[")


@pytest.mark.parametrize(
    "calls",
    [
        [{"tool": "look", "arguments": {"place": str(n)}} for n in range(20)],
        [{"tool": "tick", "arguments": {}}] * 20,
        [call for n in range(10) for call in (LOOK, {"tool": "change", "arguments": {"n": n}})],
    ],
    ids=["other arguments", "other answers", "changes in between"],
)
def test_calls_that_may_lead_further_are_not_stopped(make_evaluator, calls):
    outcome, answers = run(make_evaluator, calls)
    assert outcome.ok
    assert not any("You have made this call" in answer for answer in answers)


def test_other_calls_without_effect_and_another_order_of_arguments_do_not_hide_a_repetition(
    make_evaluator,
):
    turned = {"tool": "look", "arguments": '{"depth": 1, "place": "x"}'}
    calls = [call for _ in range(10) for call in (LOOK, {"tool": "tick", "arguments": {}}, turned)]
    outcome, _ = run(make_evaluator, calls)
    assert isinstance(outcome, TaskError) and "with the same arguments" in outcome.message


def test_a_resumed_run_gets_the_same_answers(make_evaluator, tmp_path):
    def script(request):
        told = [m.content for m in request.messages if m.role == "tool"]
        return LOOK if len(told) < 4 else json.dumps(told)

    evaluator = make_evaluator(XML, script=script, tools=[look, change, tick])
    first = asyncio.run(evaluator.evaluate("t")).unwrap()
    path = next((tmp_path / "tasks").rglob("TASK-1.md"))
    store = TaskStore(tmp_path / "tasks")
    replayed = asyncio.run(evaluator.replay(1))
    assert replayed.ok, replayed.divergence
    assert "4 times" in json.loads(first.content)[3]
    assert store.read(path).status == "completed"
