"""Notes: what one step leaves for later ones, what is taken out of an answer for it, and the notes of errors."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from evaluator import ProviderError, TaskError, load_profiles
from evaluator.interpreter.notes import MAX_SUMMARY, REQUEST, read_notes, summary_of
from tests.patience import with_enough_time

NOTES = "Notes for later steps: tin melts early"
ASKED = [
    (
        f"The answer.\n\n{NOTES}\nData used: a.md, b.md",
        "The answer.",
        "tin melts early",
        ["a.md", "b.md"],
    ),
    (f"The answer.\nData used: none\n{NOTES}", "The answer.", "tin melts early", []),
    (
        f"The answer.\n\n---\n\n**{NOTES}**\n\n**Data used:** `a.md`.",
        "The answer.",
        "tin melts early",
        ["a.md"],
    ),
    (
        "X\n\n## Notes for later steps:\nfirst line\nsecond\n\n## Data used:\n- a.md\n- the inputs\n",
        "X",
        "first line\nsecond",
        ["a.md", "the inputs"],
    ),
    (f"X\n{NOTES}", "X", "tin melts early", None),
    ("X\nDATA USED: sources one; two", "X", None, ["sources one", "two"]),
    (f"print(1)\n```\n{NOTES}\nData used: none\n```", "print(1)", "tin melts early", []),
    (
        f"```python\nprint(1)\n\n{NOTES}\nData used: none\n```",
        "```python\nprint(1)\n```",
        "tin melts early",
        [],
    ),
    (
        f"```python\nprint(1)\n```\n{NOTES}\nData used: none",
        "```python\nprint(1)\n```",
        "tin melts early",
        [],
    ),
    (
        f"{NOTES}\nand more\nX\n\n{NOTES}\nData used: a",
        f"{NOTES}\nand more\nX",
        "tin melts early",
        ["a"],
    ),
]
LEFT = [
    "An answer without entries.",
    f"{NOTES}\nData used: none\n\nThe answer follows its entries.",
    f"{NOTES}\nData used: none",
    "The data used: it comes from a survey.\n\nMore.",
    "x\n" + NOTES + "\n" + "long " * 2000,
    "",
]


@pytest.mark.parametrize(("answer", "content", "summary", "used"), ASKED)
def test_entries_at_the_end_of_an_answer_are_taken_out(answer, content, summary, used):
    found = read_notes(answer, asked=True)
    assert (found.content, found.summary, found.data_usage) == (content, summary, used)


@pytest.mark.parametrize("answer", LEFT)
def test_what_is_not_certainly_an_entry_stays(answer):
    assert read_notes(answer, asked=True).content == answer


@pytest.mark.parametrize("answer", [row[0] for row in ASKED] + LEFT)
def test_an_answer_that_was_not_asked_for_notes_is_never_changed(answer):
    found = read_notes(answer, asked=False)
    assert (found.content, found.summary) == (answer, None)


def test_data_used_is_read_where_it_was_not_asked_for():
    assert read_notes("X\n\nData used: a.md", asked=False).data_usage == ["a.md"]


def test_a_summary_is_the_beginning_in_one_line():
    assert summary_of("one\n two") == "one two"
    assert summary_of("word " * 500).startswith("word word")
    assert len(summary_of("word " * 500)) <= MAX_SUMMARY + 2
    assert len(summary_of("x" * 5000)) <= MAX_SUMMARY + 2


CHAIN = """<task name="s" type="sequential"><description>d</description>{context}<steps>
  <task name="one"><description>first</description></task>
  <task name="two"><description>{two}</description></task>
</steps></task>"""


def chain(context: str = "", two: str = "second") -> str:
    return CHAIN.format(
        context=f"<context_management>{context}</context_management>" if context else "", two=two
    )


def test_a_step_receives_the_notes_of_the_one_before(make_evaluator, scripted):
    script = scripted({"second": "done", "first": f"A long text.\n\n{NOTES}\nData used: a.md"})
    result = asyncio.run(make_evaluator(chain(), script=script).evaluate("s")).unwrap()
    assert script.prompts[0] == f"first\n\n{REQUEST}"
    assert (
        script.prompts[1]
        == '<context source="step:one">\ntin melts early\ndata used: a.md\n</context>\n\nsecond'
    )
    assert result.content == "done"


def test_an_answer_without_notes_is_carried_by_its_beginning(make_evaluator, scripted):
    script = scripted({"second": "done", "first": "A text without notes."})
    asyncio.run(make_evaluator(chain(), script=script).evaluate("s")).unwrap()
    assert '<context source="step:one">\nA text without notes.\n</context>' in script.prompts[1]


@pytest.mark.parametrize(
    "xml",
    [
        chain("<accumulate_data>false</accumulate_data>"),
        chain("<accumulation_format>full_output</accumulation_format>"),
        chain(two="second {{ steps.one.content }}"),
        chain(two="second {{ previous.content }}"),
        chain(two="second {{ steps[0].parsed | default(1) }}"),
        chain().replace(
            "<description>second",
            "<context_management><inherit_context>none</inherit_context></context_management><description>second",
        ),
        chain().replace(
            '<task name="two"><description>second</description></task>',
            '<task name="two" type="script"><description>second</description><command>true</command></task>',
        ),
        chain().replace("first</description>", 'first</description><output_format type="json"/>'),
    ],
)
def test_notes_are_asked_for_only_where_a_later_step_needs_them(make_evaluator, scripted, xml):
    script = scripted(default='{"a": 1}')
    asyncio.run(make_evaluator(xml, script=script).evaluate("s")).unwrap()
    assert not any(REQUEST in prompt for prompt in script.prompts)
    if "steps." in xml or "previous" in xml:
        assert "<context" not in script.prompts[1]


def test_an_atomic_task_alone_has_no_further_text(make_evaluator, scripted):
    script = scripted(default=f"X\n{NOTES}\nData used: a.md")
    result = asyncio.run(
        make_evaluator(
            '<task name="t"><description>d</description></task>', script=script
        ).evaluate("t")
    ).unwrap()
    assert script.prompts == ["d"]
    assert result.content == f"X\n{NOTES}\nData used: a.md"


def test_notes_are_those_of_the_task_that_a_step_leads_to(make_evaluator, scripted):
    xml = """<template name="f" params="x"><task><description>inside {{ x }}</description></task></template>
      <task name="s" type="sequential"><description>d</description><steps>
        <cond><case test="true"><call template="f"><arg>1</arg></call></case></cond>
        <task name="inner" type="sequential"><description>i</description><steps>
          <task><description>aaa</description></task><task><description>bbb {{ previous.content }}</description></task>
        </steps></task>
        <task><description>last</description></task></steps></task>"""
    script = scripted(
        {"last": "z", "bbb": f"B\n{NOTES}\nData used: none", "aaa": "A", "inside": f"I\n{NOTES}"}
    )
    result = asyncio.run(make_evaluator(xml, script=script).evaluate("s")).unwrap()
    assert [REQUEST in prompt for prompt in script.prompts] == [True, False, True, False]
    assert script.prompts[3].count("tin melts early") == 2
    assert script.prompts[2].endswith(f"bbb A\n\n{REQUEST}")
    assert result.notes["summary"] == "z"


LOOP = """<task name="l" type="director_evaluator_loop"><description>d</description><max_iterations>3</max_iterations>
  <director><description>direct {{{{ evaluation_feedback }}}}{more}</description></director>
  <evaluator><description>evaluate {{{{ director_result }}}}</description></evaluator></task>"""


def test_later_iterations_receive_the_notes_of_earlier_ones(make_evaluator, scripted):
    script = scripted(
        {
            "evaluate": '{"success": false, "feedback": "f"}',
            "direct": f"D\n{NOTES}\nData used: none",
        }
    )
    asyncio.run(make_evaluator(LOOP.format(more=""), script=script).evaluate("l")).unwrap()
    directors = script.prompts[::2]
    assert [REQUEST in prompt for prompt in directors] == [True, True, False]
    assert [prompt.count("tin melts early") for prompt in directors] == [0, 1, 2]
    assert all("evaluate D" in prompt for prompt in script.prompts[1::2])


def test_a_director_that_reads_its_last_result_is_not_asked(make_evaluator, scripted):
    script = scripted({"evaluate": '{"success": false, "feedback": "f"}', "direct": "D"})
    asyncio.run(
        make_evaluator(LOOP.format(more=" {{ director_result }}"), script=script).evaluate("l")
    ).unwrap()
    assert not any(REQUEST in prompt for prompt in script.prompts)
    assert ["iteration:1" in prompt for prompt in script.prompts[::2]] == [False, False, True]


def test_the_partial_results_of_a_failed_sequence_have_a_summary(make_evaluator, scripted):
    script = scripted({"second": " ", "first": f"A\n{NOTES}\nData used: a.md"})
    error = asyncio.run(make_evaluator(chain(), script=script).evaluate("s"))
    assert isinstance(error, TaskError)
    (partial,) = error.details["partial_results"]
    assert (partial["step"], partial["notes"]["summary"]) == ("one", "tin melts early")
    assert partial["notes"]["data_usage"] == ["a.md"]


def test_a_sequence_that_runs_out_of_time_keeps_what_was_done(make_evaluator, scripted):
    xml = """<task name="s" type="sequential"><description>d</description><handler timeout="{}"/><steps>
      <task name="one"><description>first</description></task>
      <task name="two" type="script"><description>s</description><command>sleep 60</command></task></steps></task>"""

    def attempt(limit_s):
        return asyncio.run(
            make_evaluator(xml.format(limit_s), script=scripted(default="A")).evaluate("s")
        )

    error = with_enough_time(attempt, lambda error: error.details["failed_step"]["index"] == 1)
    assert (error.type, error.resource.name) == ("RESOURCE_EXHAUSTION", "time")
    assert error.details["failed_step"] == {"index": 1, "name": "two"}
    assert [one["step"] for one in error.details["partial_results"]] == ["one"]
    assert error.notes["template"] == "s"


NOTES_OF_ERRORS = {"template", "data_usage", "context", "models", "warnings", "recovery", "summary"}


def fail(make_evaluator, scripted, default, more="", **options):
    xml = f'<task name="t"><description>d</description><inputs><input name="q"/></inputs>{more}</task>'
    return asyncio.run(
        make_evaluator(xml, script=scripted(default=default), **options).evaluate("t", {"q": "x"})
    )


@pytest.mark.parametrize(
    ("default", "more", "advice"),
    [
        (" ", "", "evaluate the task again"),
        ("no", '<output_format type="json" schema="object"/>', "evaluate the task again"),
        (ProviderError("gone", kind="bad_request"), "", "correct what the message names"),
        (ProviderError("busy", kind="server", status=500, retryable=True), "", "resume the run"),
        (
            {"tool": "read_file", "arguments": {"path": "x"}},
            '<handler max_turns="1"/><tools><tool name="read_file"/></tools>',
            "reparse",
        ),
    ],
)
def test_an_error_has_the_notes_of_a_result_and_says_what_to_do(
    make_evaluator, scripted, default, more, advice
):
    hasty = replace(load_profiles()["offline"], backoff_s=(0.0, 0.0, 0.0))
    error = fail(make_evaluator, scripted, default, more, handler=hasty)
    assert isinstance(error, TaskError)
    assert error.notes.keys() >= NOTES_OF_ERRORS
    assert error.notes["template"] == "t"
    assert error.notes["model"].startswith("simulated")
    assert error.notes["data_usage"] == ["input:q"]
    assert advice in error.notes["recovery"]


def test_an_error_keeps_the_warning_at_80_percent_and_the_models_that_answered(
    make_evaluator, scripted
):
    more = '<handler max_turns="2"/><tools><tool name="read_file"/></tools>'
    error = fail(make_evaluator, scripted, {"tool": "read_file", "arguments": {"path": "x"}}, more)
    assert error.resource.name == "turns"
    assert any("has used 2 of 2 turns" in warning for warning in error.notes["warnings"])
    assert error.notes["models"] == [error.notes["model"]]


def test_an_error_before_the_first_answer_names_no_model_that_answered(make_evaluator, scripted):
    error = fail(make_evaluator, scripted, ProviderError("gone", kind="bad_request"))
    assert error.notes["models"] == []


def test_a_composite_says_which_models_answered(make_evaluator, scripted):
    result = asyncio.run(make_evaluator(chain(), script=scripted()).evaluate("s")).unwrap()
    (model,) = result.notes["models"]
    assert model.startswith("simulated")


def test_an_error_of_a_composite_is_about_the_composite(make_evaluator, scripted):
    error = asyncio.run(make_evaluator(chain(), script=scripted({"second": " "})).evaluate("s"))
    assert error.notes["template"] == "s"
    assert error.notes.keys() >= NOTES_OF_ERRORS
    assert len(error.notes["models"]) == 1
