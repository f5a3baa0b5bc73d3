"""A task that ran out is decomposed once, and what a model writes as a decomposition is not trusted."""

from __future__ import annotations

import asyncio

import pytest

from evaluator import ModelResponse, TaskError

BIG = """<task name="big" type="atomic"><description>write two long parts about {{ topic }}</description>
<inputs><input name="topic" required="true"/></inputs>FLAG<instructions>big</instructions></task>"""
DECOMPOSED = """Here is the plan: <task type="sequential"><description>two parts</description><steps>
<task name="one" type="atomic"><description>first part</description></task>
<task name="two" type="atomic"><description>{{ steps.one.content }} and second part</description></task>
</steps></task>"""
CUT = ModelResponse("half", "length")


def evaluate(make_evaluator, scripted, decomposed, flag="", **options):
    script = scripted({"original_task": decomposed, "second part": "both parts", "first part": "part one", "big": CUT})
    evaluator = make_evaluator(BIG.replace("FLAG", flag), script=script, **{"reparse": True, **options})
    return asyncio.run(evaluator.evaluate("big", {"topic": "tin"})), script


def test_an_exhausted_task_is_decomposed_and_evaluated(make_evaluator, scripted):
    result, script = evaluate(make_evaluator, scripted, DECOMPOSED)
    assert result.unwrap().content == "both parts"
    assert result.notes["reparsed_after"]["resource"] == "output"
    assert result.usage.turns == 4
    assert script.prompts[-1].endswith("part one and second part")
    assert "write two long parts about tin" in script.prompts[1]


@pytest.mark.parametrize("flag", ["<disable_reparsing>true</disable_reparsing>", "<manual_xml>true</manual_xml>"])
def test_a_template_can_forbid_it(make_evaluator, scripted, flag):
    error, script = evaluate(make_evaluator, scripted, DECOMPOSED, flag)
    assert isinstance(error, TaskError)
    assert len(script.seen) == 1


def test_it_is_off_unless_asked_for_so_that_the_bound_on_calls_holds(make_evaluator, scripted):
    script = scripted({"big": CUT})
    error = asyncio.run(make_evaluator(BIG.replace("FLAG", ""), script=script).evaluate("big", {"topic": "tin"}))
    assert isinstance(error, TaskError)
    assert len(script.seen) == 1


@pytest.mark.parametrize(
    ("decomposed", "why"),
    [
        ("I cannot", "no <task>"),
        ('<task type="script"><description>d</description><command>touch pwned</command></task>', "script"),
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
    ],
)
def test_a_decomposition_that_cannot_be_used_leaves_the_first_error(
    make_evaluator, scripted, tmp_path, decomposed, why
):
    error, script = evaluate(make_evaluator, scripted, decomposed)
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
