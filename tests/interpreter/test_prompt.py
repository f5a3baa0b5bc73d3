"""What the model sees of a declared output format, and of few-shot examples."""

from __future__ import annotations

import asyncio
import json

import pytest

from evaluator.interpreter.prompt import format_instruction
from evaluator.nodes import OutputFormat, Span


@pytest.mark.parametrize(
    ("kind", "schema", "shown"),
    [
        ("text", None, ""),
        ("json", None, "Answer with JSON only."),
        ("json", "string[]", "Answer with JSON only: an array of strings."),
        ("json", '{"type": "object"}', 'valid against this JSON Schema:\n{"type": "object"}'),
        ("json", "no.such:Model", "Answer with JSON only."),
        ("xml", None, "Answer with XML only."),
    ],
)
def test_the_declared_format_is_said_in_one_line(kind, schema, shown):
    assert format_instruction(OutputFormat(kind, schema, Span())).endswith(shown)


def test_a_schema_file_is_shown_to_the_model(tmp_path):
    path = tmp_path / "s.json"
    path.write_text('{"type": "object", "required": ["capital"]}')
    assert '"capital"' in format_instruction(OutputFormat("json", str(path), Span()))


def test_shots_are_turns_whose_inputs_have_their_declared_types(make_evaluator, scripted):
    xml = """<task name="t" type="atomic"><description>d</description>
      <inputs><input name="xs" type="string[]" required="true"/></inputs>
      <instructions>{% for x in xs %}[{{ x }}]{% endfor %}</instructions>
      <examples shots="true"><example><input name="xs">["a", "b"]</input><output>ab</output></example></examples></task>"""
    script = scripted()
    asyncio.run(make_evaluator(xml, script=script).evaluate("t", {"xs": ["c"]})).unwrap()
    messages = [(m.role, m.content) for m in script.seen[0].messages if m.role != "system"]
    assert messages == [("user", "[a][b]"), ("assistant", "ab"), ("user", "[c]")]


def test_a_task_that_ends_in_its_only_turn_warns_of_nothing(make_evaluator, scripted):
    xml = '<task name="t" type="atomic"><description>d</description><handler max_turns="1"/></task>'
    result = asyncio.run(make_evaluator(xml, script=scripted()).evaluate("t")).unwrap()
    assert result.notes["warnings"] == []


def test_lint_names_tools_and_profiles_that_nobody_has(tmp_path):
    from click.testing import CliRunner

    from evaluator.cli.main import cli

    (tmp_path / "t.xml").write_text(
        '<task name="t" type="atomic"><description>d</description><handler ref="offlin"/>'
        '<tools><tool name="read_fil"/></tools></task>'
    )
    done = CliRunner().invoke(cli, ["lint", str(tmp_path), "--json"])
    found = {d["code"]: d["hint"] for d in json.loads(done.stdout)["diagnostics"]}
    assert done.exit_code == 1
    assert "offline" in found["unknown-handler"]
    assert "read_file" in found["unknown-tool"]


def test_a_memory_that_fails_is_a_context_failure_with_its_cause(make_evaluator, scripted):
    class Broken:
        async def get_relevant_context_for(self, request, limit=10):
            raise OSError("the index is gone")

    xml = """<task name="t" type="atomic"><description>d</description>
      <context_management><fresh_context>enabled</fresh_context></context_management></task>"""
    error = asyncio.run(make_evaluator(xml, script=scripted(), memory=Broken()).evaluate("t"))
    assert error.reason == "context_retrieval_failure"
    assert "the index is gone" in error.message


def test_lint_checks_schemas_and_the_outputs_of_examples(tmp_path):
    from click.testing import CliRunner

    from evaluator.cli.main import cli

    (tmp_path / "a.xml").write_text(
        '<task name="a" type="atomic"><description>d</description><output_format type="json">{"type": "sting"}</output_format></task>'
    )
    (tmp_path / "b.xml").write_text(
        '<task name="b" type="atomic"><description>d</description><output_format type="json" schema="object"/>'
        "<examples><example><output>not json</output></example></examples></task>"
    )
    done = CliRunner().invoke(cli, ["lint", str(tmp_path), "--json"])
    found = {(d["code"], d["severity"]) for d in json.loads(done.stdout)["diagnostics"]}
    assert {("bad-schema", "error"), ("example-output", "warning")} <= found
