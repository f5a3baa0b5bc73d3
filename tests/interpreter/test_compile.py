"""Words are compiled to a task: what of the answer is kept, what is refused, and that nothing is run."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from evaluator import ProviderError, TemplateLibrary, UsageError
from evaluator.interpreter.compile import compile_task
from evaluator.interpreter.generated import INTERNAL
from evaluator.nodes import Sequential
from evaluator.xml.generated import read_generated_task
from tests.interpreter.crashes import reading

ROOT = Path(__file__).parents[2]
LIBRARY = """<task name="polish" type="atomic"><description>Polish a text</description>
<inputs><input name="text" type="string" required="true"/><input name="tone" default="plain"/></inputs></task>
<task name="shell" type="script"><description>Touch a file</description><command>touch pwned</command></task>
<task name="outer" type="sequential"><description>Runs a shell</description><steps><call template="shell"/></steps></task>
<task name="reader" type="atomic"><description>Read files</description><tools><tool name="read_file"/></tools></task>
<template name="greet" params="who, mood=glad"><description>Greet somebody</description>
<task type="atomic"><description>Greet {{ who }}, {{ mood }}</description></task></template>"""
TWO = """<task name="two" type="sequential"><description>Two steps</description>
<inputs><input name="text" type="string" required="true"/></inputs><steps>
<call template="polish" name="polished"><arg name="text">text</arg></call>
<task name="short" type="atomic"><description>Shorten</description><instructions>Shorten {{ steps.polished.content }}</instructions></task>
</steps></task>"""


def compiled(
    make_evaluator, scripted, answer, words="do two things with a text", xml=LIBRARY, **options
):
    script = scripted(default=answer)
    evaluator = make_evaluator(xml, script=script)
    return asyncio.run(compile_task(evaluator.services, words, **options)), script


def test_words_become_canonical_xml_with_a_bound_and_nothing_is_run(make_evaluator, scripted):
    task, script = compiled(make_evaluator, scripted, f"Here it is:\n{TWO}")
    assert task.ok and isinstance(task.node, Sequential)
    assert [w.message for w in task.warnings] == ["text outside the elements left out"]
    assert (task.errors, task.failure, task.bound.min_calls, task.bound.max_calls) == (
        (),
        None,
        2,
        2,
    )
    assert (task.usage.turns, len(script.seen)) == (1, 1)
    again = read_generated_task(task.xml)
    assert (again.warnings, again.errors, again.xml + "\n") == ((), (), task.xml)


def test_the_call_is_an_ordinary_recorded_run_with_what_was_read(
    make_evaluator, scripted, tmp_path
):
    task, _ = compiled(make_evaluator, scripted, TWO)
    read = reading(tmp_path, task.task_id)
    assert (read.status, read.header.template, read.header.request) == (
        "completed",
        "compile_task",
        "do two things with a text",
    )
    note = next(step for step in read.steps if step.start.path == "task")
    assert note.end.output == {"warnings": [], "xml": task.xml}


def test_an_answer_that_cannot_be_used_is_a_failed_run_with_the_reason(
    make_evaluator, scripted, tmp_path
):
    task, _ = compiled(
        make_evaluator,
        scripted,
        '<task type="atomic"><description>\n{{ nobody }}</description></task>',
    )
    assert (task.ok, task.xml, task.bound) == (False, None, None)
    assert [(e.code, e.span.line) for e in task.errors] == [("undefined-variable", 2)]
    assert "{{ nobody }}" in task.answer
    read = reading(tmp_path, task.task_id)
    assert read.status == "failed" and "`nobody` is not defined" in read.summary.reason


@pytest.mark.parametrize("answer", ["I would rather not", "<plan/>"])
def test_an_answer_without_a_task_is_an_error(make_evaluator, scripted, answer):
    task, _ = compiled(make_evaluator, scripted, answer)
    assert [e.code for e in task.errors] == ["no-task"]
    assert task.answer == answer


def test_without_an_answer_the_failure_says_why(make_evaluator, scripted):
    task, _ = compiled(make_evaluator, scripted, ProviderError("no key", kind="authentication"))
    assert (task.ok, task.errors) == (False, ())
    assert task.failure is not None and "no key" in task.failure.message


COMMAND = (
    '<task name="c" type="script"><description>d</description><command>touch pwned</command></task>'
)
PATHS = (
    '<task name="p" type="atomic"><description>d</description><file_paths source="command"><command>ls</command>'
    "</file_paths></task>"
)
LOOP = """<task name="l" type="director_evaluator_loop"><description>d</description><max_iterations>2</max_iterations>
<director><description>d</description></director><evaluator><description>e</description></evaluator>
<script_execution><command>touch pwned</command></script_execution></task>"""
CALL = '<task name="s" type="sequential"><description>d</description><steps><call template="{}"/></steps></task>'
TOOL = '<task name="t" type="atomic"><description>d</description><tools><tool name="{}"/></tools></task>'
SCHEMA = '<task name="t" type="atomic"><description>d</description><output_format type="json" schema="{}"/></task>'


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (COMMAND, "may not run a script"),
        (PATHS, "may not run a command"),
        (LOOP, "may not run a script"),
        (CALL.format("shell"), "'shell', which runs a process"),
        (CALL.format("outer"), "which runs a process"),
        (TOOL.format("shell"), "'shell', which runs a process"),
        ('<task name="r" type="script" ref="shell"/>', "script"),
        ('<task name="r" type="sequential" ref="outer"/>', "which runs a process"),
    ],
)
def test_scripts_and_commands_are_refused_unless_allowed(
    make_evaluator, scripted, tmp_path, answer, why
):
    task, _ = compiled(make_evaluator, scripted, answer)
    assert [e.code for e in task.errors] == ["forbidden"]
    assert why in task.errors[0].message
    allowed, _ = compiled(make_evaluator, scripted, answer, allow_scripts=True)
    assert allowed.ok, allowed.errors
    assert not (tmp_path / "pwned").exists()


def test_tools_are_refused_except_those_allowed_and_templates(make_evaluator, scripted):
    assert [
        e.code for e in compiled(make_evaluator, scripted, TOOL.format("read_file"))[0].errors
    ] == ["forbidden"]
    assert compiled(make_evaluator, scripted, TOOL.format("read_file"), allow_tools=["read_file"])[
        0
    ].ok
    assert compiled(make_evaluator, scripted, TOOL.format("polish"))[0].ok
    assert compiled(make_evaluator, scripted, CALL.format("reader"))[0].ok


@pytest.mark.parametrize("schema", ["os:abort", "/etc/passwd.json", "../x.json"])
def test_no_module_and_no_file_is_read_for_a_schema(make_evaluator, scripted, schema):
    task, _ = compiled(make_evaluator, scripted, SCHEMA.format(schema))
    assert [e.code for e in task.errors] == ["forbidden"]
    assert compiled(make_evaluator, scripted, SCHEMA.format("string[]"))[0].ok


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (CALL.format("nowhere"), "unknown-template"),
        (CALL.format("polish"), "wrong-arity"),
        (
            TOOL.format("x")
            .replace("<tools>", '<handler ref="no_such_profile"/><tools>')
            .replace('"x"', '"polish"'),
            "unknown-handler",
        ),
    ],
)
def test_it_is_checked_against_the_library_and_the_profiles(make_evaluator, scripted, answer, code):
    task, _ = compiled(make_evaluator, scripted, answer)
    assert [e.code for e in task.errors] == [code]


def test_the_model_sees_the_templates_that_may_be_called(make_evaluator, scripted):
    _, script = compiled(make_evaluator, scripted, TWO)
    prompt = script.prompts[0]
    assert "polish(text: string, tone?: any): Polish a text" in prompt
    assert "greet(who, mood?): Greet somebody" in prompt
    assert "shell(" not in prompt and "outer(" not in prompt
    assert "no scripts, no commands, no tools" in prompt
    _, script = compiled(
        make_evaluator, scripted, TWO, allow_scripts=True, allow_tools=["read_file"]
    )
    assert "shell(): Touch a file" in script.prompts[0]
    assert "run scripts (type script, <command>); use the tools read_file" in script.prompts[0]


def test_words_are_data_and_never_rendered(make_evaluator, scripted):
    _, script = compiled(
        make_evaluator, scripted, TWO, words="print {{ 6 * 7 }} and </request> {% if %}"
    )
    assert "print {{ 6 * 7 }} and <\\/request> {% if %}" in script.prompts[0]


def test_a_task_without_a_name_gets_one_so_that_it_is_not_taken_for_a_request(
    make_evaluator, scripted
):
    script = scripted(
        {"<request>": '<task type="atomic"><description>Polish a text</description></task>'},
        default="done",
    )
    evaluator = make_evaluator(LIBRARY, script=script)
    task = asyncio.run(compile_task(evaluator.services, "polish"))
    assert task.node is not None and task.node.name == "compiled"
    assert [w.code for w in task.warnings] == ["no-name"]
    assert asyncio.run(evaluator.evaluate(task.node)).unwrap().content == "done"
    assert script.prompts[-1] == "Polish a text"


def test_the_librarys_own_template_is_used(make_evaluator, scripted):
    own = """<task name="compile_task" type="atomic"><description>d</description><inputs><input name="request"/>
    <input name="templates"/><input name="allowed"/></inputs><instructions>as {{ request }}{% if false %}{{ templates }}{{ allowed }}{% endif %}</instructions></task>"""
    _, script = compiled(make_evaluator, scripted, TWO, words="we do it here", xml=LIBRARY + own)
    assert script.prompts == ["as we do it here"]


def test_without_words_there_is_nothing_to_compile(make_evaluator):
    with pytest.raises(UsageError, match="nothing to compile"):
        asyncio.run(compile_task(make_evaluator().services, "  "))


SHIPPED = TemplateLibrary.load(ROOT / "templates", shipped=False)


@pytest.mark.parametrize("number", range(len(SHIPPED.get("compile_task").node.examples)))  # type: ignore[union-attr]
def test_every_example_of_the_shipped_template_compiles_without_a_warning(
    make_evaluator, scripted, number
):
    example = SHIPPED.get("compile_task").node.examples[number]  # type: ignore[union-attr]
    task, _ = compiled(
        make_evaluator, scripted, example.output, words=example.inputs["request"], xml=""
    )
    assert (task.warnings, task.errors) == ((), ())


def test_offline_the_simulated_model_gives_a_task(make_evaluator):
    task = asyncio.run(compile_task(make_evaluator().services, "suggest titles for an article"))
    assert task.ok and task.model is not None and task.model.startswith("simulated")


def test_templates_that_serve_the_evaluator_are_shipped():
    assert set(SHIPPED.templates) >= INTERNAL


def test_the_evaluator_compiles_and_evaluates_the_result(make_evaluator) -> None:
    written = (
        '<task type="atomic" name="greet"><description>Greet somebody</description>'
        '<inputs><input name="who" required="true"/></inputs><instructions>Greet {{ who }}</instructions></task>'
    )
    evaluator = make_evaluator(
        script=lambda request: "hello" if "Greet Ada" in request.messages[-1].content else written
    )
    task = asyncio.run(evaluator.compile("greet somebody"))
    assert task.ok and task.node is not None
    assert asyncio.run(evaluator.evaluate(task.node, {"who": "Ada"})).unwrap().content == "hello"
