"""What fails a run after its first call is found before the first call, in every way to run."""

from __future__ import annotations

import asyncio
import sys

import pytest

from evaluator import Evaluator, SimulatedBackend, TemplateError, TemplateLibrary, tool
from evaluator.batch import run_batch_sync
from evaluator.errors.results import TaskError
from evaluator.handler.config import HandlerConfig
from evaluator.tools.mcp import McpServer

STEPS = """<task type="sequential" name="steps"><description>Do two things.</description><steps>
<task type="atomic"><description>one</description></task>
<task type="atomic"><description>two</description>{}</task>
</steps></task>"""
UNKNOWN_TOOL = '<tools><tool name="populaton"/></tools>'
BAD_SCHEMA = '<output_format type="json">{"type": "strin"}</output_format>'
FAULTS = pytest.mark.parametrize(
    ("part", "code"), [(UNKNOWN_TOOL, "unknown-tool"), (BAD_SCHEMA, "bad-schema")]
)


@tool
def population(city: str) -> int:
    """How many people live in a city."""
    return len(city)


def evaluator_of(*texts: str, calls: list[object], **options: object) -> Evaluator:
    def answer(request: object) -> str:
        calls.append(request)
        return "3"

    library = TemplateLibrary()
    for text in texts:
        library.add(text)
    settings = {"handler": "offline", "tasks_dir": None, "tools": [population], **options}
    return Evaluator(library, backend=SimulatedBackend(script=answer), **settings)


def refusal(outcome: object, code: str) -> TaskError:
    assert isinstance(outcome, TaskError)
    assert [finding.code for finding in outcome.violations] == [code]
    return outcome


@FAULTS
def test_a_template_is_refused_before_its_first_call(part, code):
    calls: list[object] = []
    evaluator = evaluator_of(STEPS.format(part), calls=calls)
    failed = refusal(evaluator.evaluate_sync("steps"), code)
    assert (failed.violations[0].span.line, calls) == (3, [])


@FAULTS
def test_so_is_a_template_that_calls_it_in_a_step_or_in_a_text(part, code):
    steps = STEPS.format(part)
    by_step = (
        '<task type="sequential" name="outer"><description>d</description><steps>'
        '<task type="atomic"><description>zero</description></task><call template="steps"/>'
        "</steps></task>"
    )
    by_text = (
        '<task type="sequential" name="outer"><description>d</description><steps>'
        '<task type="atomic"><description>zero</description></task>'
        '<task type="atomic"><description>{{ steps() }}</description></task></steps></task>'
    )
    for outer in (by_step, by_text):
        calls: list[object] = []
        evaluator = evaluator_of(f"<library>{steps}{outer}</library>", calls=calls)
        refusal(evaluator.evaluate_sync("outer"), code)
        assert calls == []


@FAULTS
def test_a_task_as_xml_and_a_node_are_refused_too(part, code):
    calls: list[object] = []
    xml = STEPS.format(part)
    evaluator = evaluator_of(xml, calls=calls)
    refusal(evaluator.evaluate_sync(xml.replace(' name="steps"', "")), code)
    refusal(evaluator.evaluate_sync(evaluator.library.get("steps").node), code)
    assert calls == []


def test_each_row_of_evaluate_batch_is_refused():
    calls: list[object] = []
    evaluator = evaluator_of(STEPS.format(UNKNOWN_TOOL), calls=calls)

    async def outcomes():
        return [each async for each in evaluator.evaluate_batch("steps", [{}, {}])]

    for outcome in asyncio.run(outcomes()):
        refusal(outcome, "unknown-tool")
    assert calls == []


def test_the_record_of_a_refused_run_is_resumed_once_the_tool_is_there(tmp_path):
    calls: list[object] = []
    evaluator = evaluator_of(
        STEPS.format('<tools><tool name="population"/></tools>'),
        calls=calls,
        tasks_dir=tmp_path,
        tools=[],
    )
    failed = refusal(evaluator.evaluate_sync("steps"), "unknown-tool")
    assert failed.task_id is not None
    refusal(evaluator.resume_sync(failed.task_id), "unknown-tool")
    assert calls == []
    fixed = evaluator_of(
        STEPS.format('<tools><tool name="population"/></tools>'), calls=calls, tasks_dir=tmp_path
    )
    assert fixed.resume_sync(failed.task_id).unwrap().content == "3"
    assert len(calls) == 2


def test_a_run_that_has_begun_is_resumed_whatever_a_later_step_names(tmp_path):
    """Its record may have passed the step, and the step may be in a branch that is not taken."""
    branch = (
        f'<cond><case test="false"><task type="atomic"><description>two</description>'
        f"{UNKNOWN_TOOL}</task></case></cond>"
    )
    xml = STEPS.replace("<description>two</description>{}", "<description>two</description>")
    calls: list[object] = []

    def interrupt(request: object) -> str:
        if calls:
            raise KeyboardInterrupt
        calls.append(request)
        return "3"

    library = TemplateLibrary()
    library.add(xml.replace("</steps>", f"{branch}</steps>"))
    registered = tool(name="populaton", effect=False)(lambda: "1")
    settings = {"handler": "offline", "tasks_dir": tmp_path}
    first = Evaluator(
        library, backend=SimulatedBackend(script=interrupt), tools=[registered], **settings
    )
    with pytest.raises(KeyboardInterrupt):
        first.evaluate_sync("steps")
    (task,) = first.services.store.list()
    second = Evaluator(library, backend=SimulatedBackend(script=lambda _: "4"), **settings)
    assert second.resume_sync(task.id).unwrap().notes["resumed"]["steps_from_record"] == 1


def test_what_may_succeed_is_not_refused():
    named = ["population", "subtask", "read_file", "start_script", "docs__search", "chosen"]
    tools = "".join(f'<tool name="{name}"/>' for name in named)
    chosen = STEPS.format(UNKNOWN_TOOL).replace('name="steps"', 'name="chosen"')
    library = TemplateLibrary()
    library.add(f"<library>{STEPS.format(f'<tools>{tools}</tools>')}{chosen}</library>")
    profile = HandlerConfig(name="mine", mcp=(McpServer(name="docs", command="serve"),))
    evaluator = Evaluator(library, profile, tools=[population], tasks_dir=None)
    evaluator.check_reached([("steps", None)])
    with pytest.raises(TemplateError, match="docs__search"):
        evaluator.check_reached([("steps", "offline")])


@FAULTS
def test_a_fault_of_a_template_that_a_model_may_choose_is_a_notice_before_the_first_call(
    part, code
):
    chosen = f'<task type="atomic" name="chosen"><description>d</description>{part}</task>'
    boss = STEPS.format('<tools><tool name="chosen"/></tools>')
    events: list[object] = []
    evaluator = evaluator_of(
        f"<library>{boss}{chosen}</library>", calls=events, notice=events.append
    )
    evaluator.evaluate_sync("steps").unwrap()
    evaluator.evaluate_sync("steps").unwrap()
    message = {"unknown-tool": "populaton", "bad-schema": "strin"}[code]
    assert "a model may choose the template 'chosen'" in str(events[0])
    assert message in str(events[0])
    assert len(events) == 5


def test_tools_that_no_model_is_offered_are_not_checked():
    """A sequence offers its tools to nobody."""
    calls: list[object] = []
    xml = STEPS.format("").replace("<steps>", UNKNOWN_TOOL + "<steps>", 1)
    evaluator = evaluator_of(xml, calls=calls)
    assert evaluator.evaluate_sync("steps").unwrap().content == "3"
    assert len(calls) == 2


MODELS = "import pathlib\npathlib.Path('IMPORTED').touch()\nclass Yes(int): pass\n"


@pytest.fixture
def project(tmp_path, monkeypatch):
    """The current folder, with a module `answers_here` whose import leaves a file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVALUATOR_CONFIG_DIR", str(tmp_path / "user"))
    (tmp_path / "answers_here.py").write_text(MODELS)
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("answers_here")]:
        del sys.modules[name]


def declared(schema: str) -> str:
    return STEPS.format(f'<output_format type="json" schema="{schema}"/>')


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("answers_her:Yes", "No module named 'answers_her'"),
        ("answers_here:No", "has no attribute 'No'"),
        ("answers_here.py:No", "has no attribute 'No'"),
    ],
)
def test_the_class_of_a_later_step_is_imported_before_the_first_call(schema, message, project):
    calls: list[object] = []
    evaluator = evaluator_of(declared(schema), calls=calls, trust=True)
    failed = refusal(evaluator.evaluate_sync("steps"), "bad-schema")
    assert message in failed.message and calls == []


def test_a_class_that_the_user_has_not_allowed_is_refused_before_the_first_call(project):
    calls: list[object] = []
    evaluator = evaluator_of(declared("answers_here.py:Yes"), calls=calls)
    failed = refusal(evaluator.evaluate_sync("steps"), "bad-schema")
    assert "You have not allowed this" in failed.message and calls == []
    assert not (project / "IMPORTED").exists()


def test_a_plan_and_a_preview_import_nothing(project):
    calls: list[object] = []
    evaluator = evaluator_of(declared("answers_her:Yes"), calls=calls, trust=True)
    evaluator.check_reached([("steps", None)])
    preview = evaluator.previewing(SimulatedBackend())
    preview.evaluate_sync("steps")
    assert not (project / "IMPORTED").exists()
    with pytest.raises(TemplateError, match="answers_her"):
        evaluator.check_reached([("steps", None)], imports=True)


def test_a_batch_is_refused_before_its_first_row(project):
    calls: list[object] = []
    evaluator = evaluator_of(declared("answers_her:Yes"), calls=calls, trust=True)
    with pytest.raises(TemplateError, match="answers_her"):
        run_batch_sync("steps", [{}, {}], evaluator=evaluator, output=project / "b")
    assert calls == [] and not (project / "b").exists()


@pytest.mark.parametrize("returns", ['{"type": "strin"}', "answers_her:Yes"])
def test_what_a_function_returns_is_checked_before_the_first_call(returns, project):
    function = (
        f"<template name='count' returns='{returns}'>"
        "<task type='atomic'><description>Count</description></task></template>"
    )
    caller = STEPS.format("").replace("two", "{{ count() }}")
    calls: list[object] = []
    evaluator = evaluator_of(f"<library>{function}{caller}</library>", calls=calls, trust=True)
    refusal(evaluator.evaluate_sync("steps"), "bad-schema")
    assert calls == []


def test_a_template_that_was_edited_is_checked_again_with_its_caller(tmp_path):
    (tmp_path / "outer.xml").write_text(
        '<task type="sequential" name="outer"><description>d</description><steps>'
        '<task type="atomic"><description>zero</description></task><call template="steps"/>'
        "</steps></task>"
    )
    (tmp_path / "steps.xml").write_text(STEPS.format(""))
    library = TemplateLibrary.load(tmp_path, shipped=False)
    calls: list[object] = []
    backend = SimulatedBackend(script=lambda request: calls.append(request) or "3")
    evaluator = Evaluator(library, "offline", backend=backend, tasks_dir=None)
    prepared = evaluator.prepare("outer")
    asyncio.run(prepared.evaluate({})).unwrap()
    assert len(calls) == 3
    (tmp_path / "steps.xml").write_text(STEPS.format(UNKNOWN_TOOL))
    assert library.reload() == {"steps"}
    refusal(evaluator.evaluate_sync("outer"), "unknown-tool")
    refusal(asyncio.run(prepared.evaluate({})), "unknown-tool")
    assert len(calls) == 3
