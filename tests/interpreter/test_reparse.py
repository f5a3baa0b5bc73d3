"""An exhausted task is decomposed once, and the decomposition that a model writes is not trusted."""

from __future__ import annotations

import asyncio

import pytest

from evaluator import HandlerConfig, ModelResponse, SimulatedBackend, TaskError, ToolCall, Usage
from tests.interpreter.crashes import cut, reading
from tests.patience import with_enough_time

BIG = """<task name="big" type="atomic"><description>write two long parts about {{ topic }}</description>
<inputs><input name="topic" required="true"/></inputs>FLAG<instructions>big</instructions></task>"""
DECOMPOSED = """Here is the plan: <task type="sequential"><description>two parts</description><steps>
<task name="one" type="atomic"><description>first part</description></task>
<task name="two" type="atomic"><description>{{ steps.one.content }} and second part</description></task>
</steps></task>"""
CUT = ModelResponse("half", "length")
READ = ToolCall("c1", "read_file", '{"path": "x"}')
DEAR_CALL = ModelResponse("", "tool_calls", (READ,), None, Usage(1, 1, 0, 0, 0.5, 1))


def evaluate(make_evaluator, scripted, decomposed, flag="", more="", **options):
    script = scripted(
        {
            "original_task": decomposed,
            "second part": "both parts",
            "first part": "part one",
            "big": CUT,
        }
    )
    evaluator = make_evaluator(
        BIG.replace("FLAG", flag) + more, script=script, **{"reparse": True, **options}
    )
    return asyncio.run(evaluator.evaluate("big", {"topic": "tin"})), script


def test_an_exhausted_task_is_decomposed_and_evaluated(make_evaluator, scripted):
    result, script = evaluate(make_evaluator, scripted, DECOMPOSED)
    assert result.unwrap().content == "both parts"
    assert result.notes["reparsed_after"]["resource"] == "output"
    assert result.usage.turns == 4
    assert script.prompts[-1].endswith("part one and second part")
    assert "write two long parts about tin" in script.prompts[1]


@pytest.mark.parametrize(
    "flag", ["<disable_reparsing>true</disable_reparsing>", "<manual_xml>true</manual_xml>"]
)
def test_a_template_can_forbid_it(make_evaluator, scripted, flag):
    error, script = evaluate(make_evaluator, scripted, DECOMPOSED, flag)
    assert isinstance(error, TaskError)
    assert len(script.seen) == 1


def test_it_is_off_unless_asked_for_so_that_the_bound_on_calls_holds(make_evaluator, scripted):
    script = scripted({"big": CUT})
    error = asyncio.run(
        make_evaluator(BIG.replace("FLAG", ""), script=script).evaluate("big", {"topic": "tin"})
    )
    assert isinstance(error, TaskError)
    assert len(script.seen) == 1


CALLED = """<task name="shell" type="script"><description>d</description><command>touch pwned</command></task>
<task name="outer" type="atomic"><description>d</description><tools><tool name="shell"/></tools></task>
<task name="reads" type="atomic"><description>d</description><tools><tool name="read_file"/></tools></task>"""
CALL = '<task type="sequential"><description>d</description><steps><call template="{}"/></steps></task>'


@pytest.mark.parametrize(
    ("decomposed", "why"),
    [
        ("I cannot", "no <task>"),
        (
            '<task type="script"><description>d</description><command>touch pwned</command></task>',
            "script",
        ),
        (
            '<task type="atomic"><description>d</description><tools><tool name="run_script"/></tools></task>',
            "tool",
        ),
        ('<task type="atomic"><description>{{ nobody }}</description></task>', "nobody"),
        (
            '<task type="atomic"><description>d</description><file_paths source="command"><command>touch pwned'
            "</command></file_paths></task>",
            "command",
        ),
        (
            '<task type="atomic"><description>d</description><file_paths><path>t.xml</path></file_paths></task>',
            "may not read the file 't.xml'",
        ),
        (
            '<task type="atomic"><description>d</description><output_format schema="os:abort"/></task>',
            "module",
        ),
        (
            '<task type="atomic"><description>d</description><output_format schema="/etc/x.json"/></task>',
            "file",
        ),
        (CALL.format("shell"), "'shell', which runs a process"),
        (CALL.format("outer"), "may not call"),
        (CALL.format("reads"), "'reads', which has tools of its own"),
        (CALL.format("nothing"), "nothing"),
        (
            '<task type="sequential"><description>d</description><steps><task ref="shell" type="script"/></steps></task>',
            "script",
        ),
        (
            '<task type="sequential"><description>d</description><steps><task type="atomic"><description>first part'
            "</description></task><task type='atomic'><description>second",
            "gives the result, is missing",
        ),
        (
            '<task type="atomic"><description>d</description></task><task type="atomic"><description>d</description></task>',
            "side by side",
        ),
    ],
)
def test_a_decomposition_that_cannot_be_used_leaves_the_first_error(
    make_evaluator, scripted, tmp_path, decomposed, why
):
    error, script = evaluate(make_evaluator, scripted, decomposed, more=CALLED)
    assert isinstance(error, TaskError)
    assert (error.type, error.content) == ("RESOURCE_EXHAUSTION", "half")
    assert why in error.details["reparse"]
    assert len(script.seen) == 2
    assert not (tmp_path / "pwned").exists()


def test_a_decomposition_is_not_decomposed_again(make_evaluator, scripted):
    again = '<task type="atomic"><description>big again</description></task>'
    error, script = evaluate(make_evaluator, scripted, again)
    assert isinstance(error, TaskError)
    assert len(script.seen) == 3


def test_a_subtask_of_a_decomposition_is_not_decomposed(make_evaluator, scripted):
    tools = '<tools><tool name="subtask"/></tools>'
    asked = {"type": "atomic", "description": "long text", "inputs": {}}
    script = scripted(
        {
            "original_task": f'<task type="atomic"><description>delegate</description>{tools}</task>',
            "long text": CUT,
            "delegate": {"tool": "subtask", "arguments": asked},
            "big": CUT,
        }
    )
    evaluator = make_evaluator(BIG.replace("FLAG", tools), script=script, reparse=True)
    asyncio.run(evaluator.evaluate("big", {"topic": "tin"}))
    assert sum("original_task" in prompt for prompt in script.prompts) == 1


def test_the_readable_parts_of_an_invalid_decomposition_are_used_and_the_notes_list_the_others(
    make_evaluator, scripted, tmp_path
):
    broken = (
        "```xml\n<Task>\n<description>two parts & more\n<steps>"
        '<Step name="one"><description>first part</description><colour>red</colour></Step>\n'
        '<Step name="two"><description>{{ steps.one.content }} and second part</description></Step>\n```'
    )
    result, script = evaluate(make_evaluator, scripted, broken)
    assert result.unwrap().content == "both parts"
    warnings = [w for w in result.notes["warnings"] if w.startswith("decomposition, ")]
    assert any(
        w.startswith("decomposition, line 4: <colour> is not known in <task>") for w in warnings
    )
    assert any("line 3: a bare `&`" in w for w in warnings)
    assert len(script.seen) == 4
    note = next(step for step in reading(tmp_path).steps if step.start.path == "reparse/task")
    assert (
        "line 4: <colour> is not known in <task>; left out with its content"
        in note.end.output["warnings"]
    )
    assert note.end.output["xml"].startswith('<task type="sequential">')


def test_what_was_refused_is_in_the_record(make_evaluator, scripted, tmp_path):
    evaluate(
        make_evaluator,
        scripted,
        '<task type="atomic"><description>{{ nobody }}</description></task>',
    )
    note = next(step for step in reading(tmp_path).steps if step.start.path == "reparse/task")
    assert (note.status, "nobody" in note.end.output["xml"]) == ("failed", True)
    assert "`nobody` is not defined" in note.end.error


def test_the_decomposer_sees_the_instructions_with_their_inputs(make_evaluator, scripted):
    xml = BIG.replace("FLAG", "").replace(">big<", ">big words on {{ topic }}<")
    script = scripted(
        {"original_task": DECOMPOSED, "second part": "both", "first part": "one", "big": CUT}
    )
    asyncio.run(
        make_evaluator(xml, script=script, reparse=True).evaluate("big", {"topic": "tin"})
    ).unwrap()
    assert "Instructions: big words on tin" in script.prompts[1]


SEQUENCE = """<task name="all" type="sequential"><description>all of it</description>
<inputs><input name="topic" required="true"/></inputs><context_management><accumulate_data>false</accumulate_data></context_management><steps>
<task name="start" type="atomic"><description>start</description></task>
<task name="long" type="atomic"><description>long</description><instructions>big {{ steps.start.content }}</instructions></task>
<task name="end" type="atomic"><description>end</description><instructions>end of {{ steps.long.content }}</instructions></task>
</steps></task>"""


def test_a_step_is_decomposed_in_its_place_and_the_sequence_continues(make_evaluator, scripted):
    script = scripted(
        {
            "original_task": DECOMPOSED,
            "end of": "the end",
            "second part": "both",
            "first part": "one",
            "big": CUT,
        },
    )
    evaluator = make_evaluator(SEQUENCE, script=script, reparse=True)
    result = asyncio.run(evaluator.evaluate("all", {"topic": "tin"})).unwrap()
    assert result.content == "the end"
    assert script.prompts[-1].endswith("end of both")
    assert [prompt for prompt in script.prompts if prompt == "start"] == ["start"]
    assert result.usage.turns == len(script.seen) == 6


@pytest.mark.parametrize(
    ("flag", "answer", "resource", "is_decomposed"),
    [
        (
            '<handler max_turns="1"/><tools><tool name="read_file"/></tools>',
            {"tool": "read_file", "arguments": {"path": "x"}},
            "turns",
            True,
        ),
        ('<handler max_context_fraction="0.0001"/>', "fine", "context", True),
        ("", CUT, "output", True),
        (
            '<handler max_cost="0.01"/><tools><tool name="read_file"/></tools>',
            DEAR_CALL,
            "cost",
            False,
        ),
    ],
)
def test_exhausted_turns_context_and_output_are_decomposed_and_cost_is_not(
    make_evaluator, scripted, flag, answer, resource, is_decomposed
):
    script = scripted(
        {"original_task": DECOMPOSED, "second part": "both", "first part": "one", "big": answer}
    )
    profile = HandlerConfig(context_window=20_000)
    evaluator = make_evaluator(
        BIG.replace("FLAG", flag), script=script, reparse=True, handler=profile
    )
    outcome = asyncio.run(evaluator.evaluate("big", {"topic": "tin"}))
    assert any("original_task" in prompt for prompt in script.prompts) == is_decomposed
    named = (
        outcome.resource.name
        if isinstance(outcome, TaskError)
        else outcome.notes["reparsed_after"]["resource"]
    )
    assert named == resource


def test_time_that_has_passed_is_not_decomposed(make_evaluator):
    flag = '<handler timeout="0.05"/>'
    evaluator = make_evaluator(
        BIG.replace("FLAG", flag), backend=SimulatedBackend(hang=1.0), reparse=True
    )
    error = asyncio.run(evaluator.evaluate("big", {"topic": "tin"}))
    assert isinstance(error, TaskError)
    assert "reparse" not in error.details


def test_a_decomposition_ends_with_the_time_of_the_task(make_evaluator, scripted):
    class Hanging(SimulatedBackend):
        async def complete(self, request, *, on_text=None):
            if "original_task" in request.messages[-1].content:
                await asyncio.Event().wait()
            return await super().complete(request, on_text=on_text)

    def attempt(limit_s):
        backend = Hanging(script=scripted({"big": CUT}))
        xml = BIG.replace("FLAG", f'<handler timeout="{limit_s}"/>')
        evaluator = make_evaluator(xml, backend=backend, reparse=True)
        return asyncio.run(evaluator.evaluate("big", {"topic": "tin"}))

    error = with_enough_time(attempt, lambda error: error.resource.name == "output")
    assert isinstance(error, TaskError)
    assert (error.resource.name, error.content) == ("output", "half")
    assert "time" in error.details["reparse"]


def charged(text, cost):
    return ModelResponse(text, "stop", (), None, Usage(1, 1, 0, 0, cost, 1))


def test_a_decomposition_shares_the_remaining_cost_of_the_task(make_evaluator, scripted):
    half = ModelResponse("half", "length", (), None, Usage(1, 1, 0, 0, 0.6, 1))
    script = scripted(
        {
            "original_task": lambda _: charged(DECOMPOSED, 0.3),
            "first part": lambda _: charged("one", 0.2),
            "second part": "never",
            "big": half,
        }
    )
    profile = HandlerConfig(name="priced", prices=(0.0, 0.0), max_cost_usd=1.0)
    evaluator = make_evaluator(
        BIG.replace("FLAG", ""), script=script, reparse=True, handler=profile
    )
    error = asyncio.run(evaluator.evaluate("big", {"topic": "tin"}))
    assert isinstance(error, TaskError)
    assert (error.resource.name, "the decomposed task failed" in error.details["reparse"]) == (
        "output",
        True,
    )
    assert len(script.seen) == 3
    assert error.usage.cost_usd == pytest.approx(1.1)


def test_the_turns_of_a_task_above_limit_a_decomposition(make_evaluator, scripted):
    xml = SEQUENCE.replace("<inputs>", '<handler max_turns="4"/><inputs>', 1)
    script = scripted(
        {
            "original_task": DECOMPOSED,
            "end of": "the end",
            "second part": "both",
            "first part": "one",
            "big": CUT,
        }
    )
    error = asyncio.run(
        make_evaluator(xml, script=script, reparse=True).evaluate("all", {"topic": "tin"})
    )
    assert isinstance(error, TaskError)
    assert len(script.seen) == 4
    assert "all has used its 4 turns" in error.details["reparse"]


def test_smaller_tasks_have_model_and_limits_of_the_task_and_not_those_that_they_name(
    make_evaluator, scripted
):
    greedy = DECOMPOSED.replace(
        "first part</description>",
        'first part</description><model>dear/model</model><handler max_turns="99" max_output_tokens="9999"/>',
    )
    flag = '<model>small/{{ topic }}</model><handler max_output_tokens="77"/>'
    result, script = evaluate(make_evaluator, scripted, greedy, flag)
    assert result.unwrap().content == "both parts"
    assert {request.model for request in script.seen} == {"small/tin"}
    assert [request.max_output_tokens for request in script.seen] == [77, None, 77, 77]


def test_the_librarys_own_decompose_is_used(make_evaluator, scripted):
    own = """<task name="decompose" type="atomic"><description>d</description>
    <inputs><input name="task"/><input name="resource"/><input name="partial"/></inputs>
    <instructions>cut up {{ task }} after {{ partial }}: {{ resource }}</instructions></task>"""
    script = scripted(
        {"cut up": DECOMPOSED, "second part": "both parts", "first part": "part one", "big": CUT}
    )
    evaluator = make_evaluator(BIG.replace("FLAG", "") + own, script=script, reparse=True)
    assert asyncio.run(evaluator.evaluate("big", {"topic": "tin"})).unwrap().content == "both parts"
    assert script.prompts[1].startswith("cut up write two long parts about tin")
    assert script.prompts[1].endswith("after half: output")


@pytest.mark.parametrize(
    ("at", "left"),
    [("reparse/turn[1]", 3), ("reparsed/steps[1]/turn[1]", 2), ("reparsed/steps[2]/turn[1]", 1)],
)
def test_a_decomposition_is_resumed_after_a_crash(make_evaluator, scripted, tmp_path, at, left):
    whole, script = evaluate(make_evaluator, scripted, DECOMPOSED)
    cut(tmp_path, at)
    script.seen.clear()
    evaluator = make_evaluator(BIG.replace("FLAG", ""), script=script, reparse=True)
    again = asyncio.run(evaluator.resume(1)).unwrap()
    assert (again.content, again.usage) == (whole.content, whole.usage)
    assert len(script.seen) == left
    paths = [step.start.path for step in reading(tmp_path).steps]
    assert paths.count("reparse/task") == 1


def test_a_recorded_decomposition_is_replayed_without_a_call(make_evaluator, scripted):
    _, script = evaluate(make_evaluator, scripted, DECOMPOSED)
    calls = len(script.seen)
    evaluator = make_evaluator(BIG.replace("FLAG", ""), script=script, reparse=True)
    replayed = asyncio.run(evaluator.replay(1))
    assert (replayed.ok, len(script.seen)) == (True, calls)
