"""XML text as a request: read leniently, or taken as it is."""

from __future__ import annotations

import asyncio
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evaluator.interpreter.requests import is_xml
from tests.conftest import MakeEvaluator, Scripted

TASK = '<task type="atomic" name="t"><description>d</description><instructions>Say {{ x }}</instructions></task>'
SUM = """<task name="sum" type="atomic"><description>Add two numbers</description>
  <inputs><input name="a" required="false"/></inputs><instructions>SUM</instructions></task>"""


def evaluate(
    make_evaluator: MakeEvaluator,
    text: str,
    script: Any = None,
    inputs: dict[str, Any] | None = None,
    xml: str = "",
) -> Any:
    return asyncio.run(make_evaluator(xml, script=script).evaluate(text, inputs or {}))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<task/>", True),
        ("\n <?xml version='1.0'?><task/>", True),
        ("<!-- c --><library/>", True),
        ("<template name='f'/>", True),
        ("<b>bold</b> words", False),
        ("translate <task/>", False),
        ("<tasks/>", False),
    ],
)
def test_xml_is_told_from_words(text: str, expected: bool) -> None:
    assert is_xml(text) is expected


def test_xml_text_is_evaluated_and_repairs_are_in_the_notes(
    make_evaluator: MakeEvaluator, scripted: type[Scripted]
) -> None:
    script = scripted()
    exact = evaluate(make_evaluator, TASK, script, {"x": "hello"}).unwrap()
    assert (script.prompts, exact.notes["warnings"]) == (["Say hello"], [])
    broken = TASK.replace("<instructions>Say", "<instruction>Say <b> &").replace(
        "</instructions>", "</instruction>"
    )
    repaired = evaluate(make_evaluator, broken, script, {"x": "hello"}).unwrap()
    assert "hello" in script.prompts[-1]
    assert any(
        "<instruction> read as <instructions>" in warning for warning in repaired.notes["warnings"]
    )


def test_the_run_of_an_xml_request_is_replayed_with_its_warnings(
    make_evaluator: MakeEvaluator, scripted: type[Scripted]
) -> None:
    evaluator = make_evaluator(script=scripted())
    text = TASK.replace("<description>d</description>", "<desciption>d</desciption>")
    result = asyncio.run(evaluator.evaluate(text, {"x": "y"})).unwrap()
    assert result.task_id is not None
    replay = evaluator.replay_sync(result.task_id)
    assert replay.ok
    assert replay.outcome.notes["warnings"] == result.notes["warnings"] != []


def test_a_task_that_has_nothing_but_a_description_is_a_request(
    make_evaluator: MakeEvaluator, scripted: type[Scripted]
) -> None:
    script = scripted()
    text = '<task type="atomic"><description>Add two numbers</description></task>'
    assert evaluate(make_evaluator, text, script, xml=SUM).notes["matched"]["template"] == "sum"
    assert script.prompts == ["SUM"]


@pytest.mark.parametrize(
    "more",
    [
        '<inputs><input name="a"/></inputs>',
        '<output_format type="json" schema="string[]"/>',
        "<system>Be brief</system>",
        "<model>simulated/x</model>",
        "<criteria>sum</criteria>",
        '<examples><example><input name="a">1</input><output>2</output></example></examples>',
    ],
)
def test_a_task_with_more_than_a_description_is_evaluated_as_it_is_written(
    make_evaluator: MakeEvaluator, scripted: type[Scripted], more: str
) -> None:
    script = scripted(default='["1"]')
    text = f'<task type="atomic"><description>Add two numbers</description>{more}</task>'
    outcome = evaluate(make_evaluator, text, script, {"a": "1"}, xml=SUM)
    assert "matched" not in outcome.notes
    assert outcome.notes["template"] is None
    assert script.prompts[0].startswith("Add two numbers")
    assert ("output_format" in more) == (outcome.parsed_content == ["1"])


def test_a_description_with_a_variable_is_evaluated_as_it_is_written(
    make_evaluator: MakeEvaluator, scripted: type[Scripted]
) -> None:
    script = scripted()
    text = "<task><description>Add two numbers: {{ a }}</description></task>"
    assert "matched" not in evaluate(make_evaluator, text, script, {"a": "1"}, xml=SUM).notes
    assert script.prompts == ["Add two numbers: 1"]


def test_a_node_is_evaluated_as_the_same_task_in_xml(
    make_evaluator: MakeEvaluator, scripted: type[Scripted]
) -> None:
    from evaluator import Span
    from evaluator.nodes import Atomic, OutputFormat, Text

    script = scripted(default='["1"]')
    node = Atomic(description=Text("Add two numbers", Span()))
    evaluator = make_evaluator(SUM, script=script)
    assert evaluator.evaluate_sync(node).notes["matched"]["template"] == "sum"
    listed = replace(node, output=OutputFormat("json", "string[]", Span()))
    outcome = evaluator.evaluate_sync(listed)
    assert "matched" not in outcome.notes
    assert outcome.parsed_content == ["1"]


def test_manual_xml_is_taken_as_it_is(
    make_evaluator: MakeEvaluator, scripted: type[Scripted]
) -> None:
    script = scripted()
    manual = "<task><description>Add two numbers</description><manual_xml>true</manual_xml></task>"
    result = evaluate(make_evaluator, manual, script, xml=SUM)
    assert script.prompts == ["Add two numbers"]
    assert "matched" not in result.notes
    error = evaluate(make_evaluator, manual.replace("description>", "desciption>"), script)
    assert (error.type, error.content[:6]) == ("VALIDATION_ERROR", "<task>")


@pytest.mark.parametrize(
    ("text", "kind", "line"),
    [
        ("<task>\n<description>d</task>", "XML_PARSE_ERROR", 2),
        ('<task type="nothing">\n<description>d</description></task>', "VALIDATION_ERROR", 1),
        ("<library>" + TASK + TASK.replace('"t"', '"u"') + "</library>", "VALIDATION_ERROR", 1),
    ],
)
def test_xml_that_cannot_be_used_is_an_error_with_violations_and_places(
    make_evaluator: MakeEvaluator, scripted: type[Scripted], text: str, kind: str, line: int
) -> None:
    text = text.replace("</description>", "</description><manual_xml>true</manual_xml>", 1)
    text = (
        text
        if "manual_xml" in text
        else text.replace("<desc", "<manual_xml>1</manual_xml><desc", 1)
    )
    script = scripted()
    error = evaluate(make_evaluator, text, script)
    assert (error.type, error.location.line, error.content) == (kind, line, text)
    assert error.violations
    assert script.seen == []


@pytest.mark.parametrize("how", ["-", "@task.xml", "text"])
def test_the_command_line_takes_xml_from_a_file_and_from_standard_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    from click.testing import CliRunner

    from evaluator.cli.main import cli

    monkeypatch.chdir(tmp_path)
    (tmp_path / "task.xml").write_text(TASK)
    request = TASK if how == "text" else how
    done = CliRunner().invoke(
        cli,
        ["run", request, "--handler", "offline", "-i", "x=y"],
        input=io.BytesIO(TASK.encode()) if how == "-" else None,
    )
    assert done.exit_code == 0, done.output
    assert "an answer to: t" in done.stdout
