"""Steps with effects in a run that continues: tools, scripts, commands, memory."""

from __future__ import annotations

import asyncio

import pytest

from evaluator import (
    InMemoryIndex,
    StepUnfinished,
    TaskError,
    tool,
)
from tests.interpreter.crashes import cut, file_of
from tests.interpreter.resume_runs import SCRIPTED, run

TOOLED = """
<task name="act" type="atomic"><description>Act</description><tools><tool name="press"/></tools>
  <instructions>Act now</instructions></task>
"""


def presser(effects: list[str], **settings: bool):
    @tool(**settings)
    def press(button: str) -> str:
        """Press a button."""
        effects.append(button)
        if button == "broken":
            raise ValueError("it is stuck")
        return f"pressed {button}"

    return press


def pressing(*buttons: str):
    """A model that presses the buttons in its first turn and then says what came of it."""

    def script(request):
        answers = [m.content for m in request.messages if m.role == "tool"]
        if not answers:
            return [{"tool": "press", "arguments": {"button": b}} for b in buttons]
        return " and ".join(answers)

    return script


def test_a_completed_tool_call_is_never_run_again(make_evaluator, tmp_path):
    effects: list[str] = []
    options = {"script": pressing("a", "broken"), "tools": [presser(effects)]}
    _, whole = run(make_evaluator, TOOLED, "act", {}, **options)
    assert effects == ["a", "broken"]
    cut(tmp_path, "turn[2]")
    again = asyncio.run(make_evaluator(TOOLED, **options).resume(1)).unwrap()
    assert effects == ["a", "broken"]
    assert again.content == whole.content
    assert "stuck" in again.content


@pytest.mark.parametrize("asked", [False, True])
def test_an_unfinished_tool_call_stops_the_run_unless_somebody_decides(
    make_evaluator, tmp_path, asked
):
    class Asker:
        def __init__(self) -> None:
            self.questions: list[str] = []

        async def ask(self, question: str) -> str:
            self.questions.append(question)
            return "no idea"

    effects: list[str] = []
    asker = Asker()
    options = {"script": pressing("a"), "tools": [presser(effects)]}
    run(make_evaluator, TOOLED, "act", {}, **options)
    cut(tmp_path, "turn[1]/tool[1]", begun=True)
    before = file_of(tmp_path, 1).read_bytes()
    error = asyncio.run(make_evaluator(TOOLED, **options, asker=asker if asked else None).resume(1))
    assert isinstance(error, TaskError) and isinstance(error.cause, StepUnfinished)
    assert (error.cause.path, error.cause.name) == ("turn[1]/tool[1]", "press")
    assert effects == ["a"]
    assert file_of(tmp_path, 1).read_bytes() == before
    assert bool(asker.questions) == asked
    if asked:
        assert "press" in asker.questions[0] and "button" in asker.questions[0]


@pytest.mark.parametrize(
    ("how", "pressed", "says"),
    [("repeat", ["a", "a"], "pressed a"), ("tell", ["a"], "whether it took effect is not known")],
)
def test_an_unfinished_tool_call_is_repeated_or_reported_as_decided(
    make_evaluator, tmp_path, how, pressed, says
):
    effects: list[str] = []
    options = {"script": pressing("a"), "tools": [presser(effects)]}
    run(make_evaluator, TOOLED, "act", {}, **options)
    cut(tmp_path, "turn[1]/tool[1]", begun=True)
    result = asyncio.run(make_evaluator(TOOLED, **options).resume(1, unfinished=how)).unwrap()
    assert effects == pressed
    assert says in result.content


@pytest.mark.parametrize("settings", [{"retryable": True}, {"effect": False}])
def test_a_tool_that_is_safe_to_repeat_is_repeated_unasked(make_evaluator, tmp_path, settings):
    effects: list[str] = []
    options = {"script": pressing("a"), "tools": [presser(effects, **settings)]}
    run(make_evaluator, TOOLED, "act", {}, **options)
    cut(tmp_path, "turn[1]/tool[1]", begun=True)
    assert asyncio.run(make_evaluator(TOOLED, **options).resume(1)).ok
    assert effects == ["a", "a"]


def test_an_unfinished_script_is_repeated_only_when_asked_to(make_evaluator, tmp_path):
    run(make_evaluator, SCRIPTED, "act", {})
    cut(tmp_path, "script", begun=True)
    evaluator = make_evaluator(SCRIPTED)
    for decision in ("ask", "stop", "tell"):
        error = asyncio.run(evaluator.resume(1, unfinished=decision))
        assert isinstance(error, TaskError) and isinstance(error.cause, StepUnfinished)
    assert (tmp_path / "effects").read_text() == "ran\n"
    assert asyncio.run(evaluator.resume(1, unfinished="repeat")).unwrap().content == "ran\nran\n"


COMMANDED = """
<task name="sum" type="sequential"><description>Sum up files</description><steps>
  <task name="one" type="atomic"><description>one</description>
    <file_paths source="command"><command>sh -c "echo ran >> effects; echo a.txt"</command></file_paths>
    <instructions>First</instructions></task>
  <task name="two" type="atomic"><description>two</description><instructions>Second</instructions></task></steps></task>
"""


def test_a_command_that_lists_files_is_a_step_and_not_run_again(make_evaluator, echoing, tmp_path):
    (tmp_path / "a.txt").write_text("the text")
    run(make_evaluator, COMMANDED, "sum", {}, echoing)
    cut(tmp_path, "steps[2]/turn[1]")
    assert asyncio.run(make_evaluator(COMMANDED, script=echoing).resume(1)).ok
    assert (tmp_path / "effects").read_text() == "ran\n"


FRESH = """
<task name="ask" type="sequential"><description>Ask</description><steps>
  <task name="one" type="atomic"><description>facts about lakes</description>
    <context_management><fresh_context>enabled</fresh_context></context_management><instructions>First</instructions></task>
  <task name="two" type="atomic"><description>two</description><instructions>Second</instructions></task></steps></task>
"""


def test_what_memory_found_is_a_step_so_that_a_new_index_changes_nothing(
    make_evaluator, echoing, tmp_path
):
    (tmp_path / "lakes.md").write_text("Lake Baikal")
    memory = InMemoryIndex({"lakes.md": "facts about lakes"})
    run(make_evaluator, FRESH, "ask", {}, echoing, memory=memory)
    cut(tmp_path, "steps[2]/turn[1]")
    again = make_evaluator(FRESH, script=echoing, memory=InMemoryIndex({}))
    assert asyncio.run(again.resume(1)).ok


def test_somebody_who_mistypes_is_asked_again_and_of_a_script_nobody_can_be_told(
    make_evaluator, tmp_path
):
    class Asker:
        questions: list[str]

        def __init__(self, *answers: str) -> None:
            self.answers, self.questions = list(answers), []

        async def ask(self, question: str) -> str:
            self.questions.append(question)
            return self.answers.pop(0)

    run(make_evaluator, SCRIPTED, "act", {})
    cut(tmp_path, "script", begun=True)
    asker = Asker("what", "t", "r")
    assert asyncio.run(make_evaluator(SCRIPTED, asker=asker).resume(1)).ok
    assert len(asker.questions) == 3
    assert "tell the model" not in asker.questions[0]
