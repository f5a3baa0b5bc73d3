"""A model's call is checked before anything runs, and every failure is an outcome for the model."""

import asyncio
import json
import threading
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from evaluator import ConfigurationError, Tool, ToolError, ToolSpec, tool
from evaluator.errors import LimitReached
from evaluator.tools import CallbackAsker, FileAccess, ToolContext, ToolRegistry
from evaluator.tools.arguments import validate_arguments

NOWHERE = ToolContext(roots=FileAccess([]))


@tool
def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


@tool
def greet(name: str) -> str:
    return f"hello {name}"


def make(run, name="made", policy="allow", parameters=None) -> Tool:
    async def call(arguments, context):
        return run(**arguments)

    return Tool(ToolSpec(name, "", parameters or {"type": "object"}), call, policy=policy)


def call(registry, name, arguments="{}", context=NOWHERE, **options):
    return asyncio.run(registry.call(name, arguments, context, **options))


def test_a_call_that_fits_runs_and_its_result_is_text():
    registry = ToolRegistry([add, greet])
    assert call(registry, "add", '{"a": 2, "b": 3}').content == "5"
    outcome = call(registry, "greet", '{"name": "Zoë"}')
    assert (outcome.ok, outcome.content, outcome.error, outcome.code) == (
        True,
        "hello Zoë",
        None,
        None,
    )


def test_an_unknown_tool_is_answered_with_the_nearest_one():
    outcome = call(ToolRegistry([add, greet]), "greets")
    assert (outcome.ok, outcome.code) == (False, "unknown_tool")
    assert "did you mean `greet`" in outcome.content
    assert "add, greet" in outcome.content
    assert "did you mean" not in call(ToolRegistry([add]), "zzzz").content
    assert "none" in call(ToolRegistry(), "add").content


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"a": 1', "the text ends there"),
        ('{"a": 1,\n "b" 2}', "line 2, column 6 (found '2}')"),
        ("{'a': 1}", "line 1, column 2"),
        ('{"a": 1} and more', "Extra data"),
        ("[1]", "found an array"),
        ('"a"', "found a string"),
        ("null", "found null"),
        ("true", "found a boolean"),
        ('{"a": 1, "a": 2}', "the name 'a' occurs twice"),
        ('{"a": NaN}', "NaN is not a JSON value"),
        ('{"a": ' + "9" * 5000 + "}", "not valid JSON"),
        ('{"a": ' + "[" * 100_000, "nested too deeply"),
        ("```json\n{}\n```", "line 1, column 1"),
    ],
)
def test_broken_arguments_are_refused_with_the_place(text, words):
    outcome = call(ToolRegistry([add]), "add", text)
    assert (outcome.ok, outcome.code) == (False, "bad_arguments")
    assert words in outcome.content
    assert outcome.cause is not None or "found" in words


@pytest.mark.parametrize("text", ["", "  \n"])
def test_an_empty_text_is_an_empty_object_of_arguments(text):
    assert call(ToolRegistry([make(lambda: "ran")]), "made", text).content == "ran"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{}", "'a' is a required property"),
        ('{"a": "1"}', "$.a: '1' is not of type 'integer'"),
        ('{"a": true}', "$.a: True is not of type 'integer'"),
        ('{"a": 1, "c": 2}', "'c' was unexpected"),
    ],
)
def test_arguments_that_break_the_schema_never_reach_the_tool(text, words):
    ran = []
    guarded = make(lambda **arguments: ran.append(arguments), parameters=add.spec.parameters)
    outcome = call(ToolRegistry([guarded]), "made", text)
    assert (outcome.ok, outcome.code) == (False, "bad_arguments")
    assert words in outcome.content
    assert ran == []


def test_the_number_of_reported_violations_is_limited():
    schema = {"type": "object", "additionalProperties": {"type": "string"}}
    outcome = call(
        ToolRegistry([make(dict, parameters=schema)]),
        "made",
        json.dumps(dict.fromkeys(map(str, range(900)), 1)),
    )
    assert outcome.content.count("is not of type") == 5


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"type": "wrong"}}},
        {"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:9/schema.json"}}},
        {"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}},
        {"type": "object", "properties": {"a": {"pattern": "("}}},
    ],
)
def test_an_unusable_schema_is_an_outcome_and_fetches_nothing(schema):
    outcome = call(ToolRegistry([make(dict, parameters=schema)]), "made", '{"a": "x"}')
    assert not outcome.ok
    assert "the tool's own schema" in outcome.content


def test_a_denied_tool_does_not_run():
    outcome = call(ToolRegistry([make(lambda: pytest.fail("ran"), policy="deny")]), "made")
    assert (outcome.ok, outcome.code) == (False, "denied")


@pytest.mark.parametrize(
    ("answer", "ran"),
    [("y", True), (" YES \n", True), ("", False), ("n", False), ("yes please", False)],
)
def test_a_tool_that_asks_runs_only_after_a_plain_yes(answer, ran):
    asked = []

    def reply(question):
        asked.append(question)
        return answer

    context = ToolContext(roots=FileAccess([]), asker=CallbackAsker(reply))
    registry = ToolRegistry([make(lambda text: "ran", policy="ask")])
    outcome = call(registry, "made", '{"text": "\\u001b[2Jé"}', context)
    assert outcome.ok is ran
    assert asked == ['Allow made with {"text": "\\u001b[2Jé"}? [y/N]']


def test_a_tool_that_asks_is_denied_without_an_asker():
    registry = ToolRegistry([make(lambda: "ran", policy="ask")])
    assert "nobody to ask" in call(registry, "made").content


def test_a_call_that_cannot_be_shown_is_denied_without_asking():
    context = ToolContext(roots=FileAccess([]), asker=CallbackAsker(lambda question: "y"))
    outcome = call(
        ToolRegistry([make(dict, policy="ask")]), "made", json.dumps({"a": "x" * 30_000}), context
    )
    assert (outcome.ok, outcome.code) == (False, "denied")


@pytest.mark.parametrize(
    ("error", "content"),
    [
        (ToolError("no such row"), "Error: no such row"),
        (
            ZeroDivisionError("division by zero"),
            "Error: made failed: ZeroDivisionError: division by zero",
        ),
        (TimeoutError(), "Error: made failed: TimeoutError"),
        (StopIteration(), "Error: made failed: RuntimeError: coroutine raised StopIteration"),
        (ToolError(""), "Error: made failed"),
        (SystemExit(2), "Error: made failed: SystemExit: 2"),
        (
            asyncio.CancelledError(),
            "Error: made failed: an operation that it waited for was cancelled",
        ),
    ],
)
def test_an_exception_of_a_tool_is_an_answer_with_its_cause(error, content):
    def fail():
        raise error

    outcome = call(ToolRegistry([make(fail)]), "made")
    assert (outcome.ok, outcome.content, outcome.code) == (False, content, "failed")
    assert outcome.cause is not None
    assert "Error: " + (outcome.error or "") == outcome.content


@pytest.mark.parametrize("error", [LimitReached("cost", 2, 1, "too dear"), KeyboardInterrupt()])
def test_limits_and_interruptions_pass_through(error):
    def fail():
        raise error

    with pytest.raises(type(error)):
        call(ToolRegistry([make(fail)]), "made")


def test_a_cancelled_call_raises_and_is_not_an_outcome():
    @tool
    async def hang() -> None:
        started.set()
        await asyncio.Event().wait()

    async def run():
        nonlocal started
        started = asyncio.Event()
        calling = asyncio.create_task(ToolRegistry([hang]).call("hang", "{}", NOWHERE))
        await started.wait()
        calling.cancel()
        await calling

    started = asyncio.Event()
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(run())


@pytest.mark.parametrize(
    "error", [SystemExit(2), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError()]
)
def test_an_exception_that_ends_a_program_only_fails_the_tool(error):
    @tool
    def leave() -> None:
        raise error

    outcome = call(ToolRegistry([leave]), "leave")
    assert (outcome.ok, outcome.code) == (False, "failed")
    assert type(error).__name__ in outcome.content


def test_a_call_ends_at_the_time_limit_of_its_task():
    @tool
    async def hang() -> None:
        await asyncio.Event().wait()

    @tool
    def block() -> None:
        threading.Event().wait(200)

    registry = ToolRegistry([hang, block])
    for name in registry.names():
        outcome = call(registry, name, context=ToolContext(roots=FileAccess([]), remaining_s=0.05))
        assert (outcome.ok, outcome.code) == (False, "timeout")


def test_a_call_without_time_left_does_not_run():
    late = ToolContext(roots=FileAccess([]), remaining_s=0)
    assert (
        call(ToolRegistry([make(lambda: pytest.fail("ran"))]), "made", context=late).code
        == "not_run"
    )


@dataclass
class Point:
    x: int


@pytest.mark.parametrize(
    ("value", "content"),
    [
        (None, "null"),
        ({"a": [1, "é"]}, '{"a": [1, "é"]}'),
        (Point(1), '{"x": 1}'),
        ([Path("a/b")], '["a/b"]'),
        ("{{ kept }}", "{{ kept }}"),
    ],
)
def test_a_result_that_is_not_text_is_returned_as_json(value, content):
    assert call(ToolRegistry([make(lambda: value)]), "made").content == content


@pytest.mark.parametrize("value", [object(), {1, 2}, float("nan"), b"bytes"])
def test_a_result_that_json_cannot_write_is_an_error(value):
    assert call(ToolRegistry([make(lambda: value)]), "made").code == "failed"


@pytest.mark.parametrize("size", [0, 99, 100, 101, 5000])
def test_a_long_result_is_cut_and_marked(size):
    outcome = call(ToolRegistry([make(lambda: "x" * size)]), "made", max_result_bytes=100)
    kept, _, note = outcome.content.partition("\n")
    assert kept == "x" * min(size, 100)
    assert (note == f"[cut: the first 100 of {size:,} bytes]") is (size > 100)
    assert outcome.truncated is (size > 100)


def test_a_cut_never_falls_within_a_character():
    outcome = call(ToolRegistry([make(lambda: "é" * 10)]), "made", max_result_bytes=5)
    assert outcome.content.startswith("éé\n[cut: the first 4 of 20")


def test_a_registry_never_changes():
    one = ToolRegistry([add])
    two = one.with_tools(greet)
    assert one.names() == ("add",)
    assert two.names() == ("add", "greet")
    assert [spec.name for spec in two.specs()] == ["add", "greet"]
    assert two.get("none") is None


def test_with_tools_replaces_a_tool_and_two_of_one_name_are_refused():
    other = make(lambda: "other", name="add")
    assert ToolRegistry([add]).with_tools(other).get("add") is other
    with pytest.raises(ConfigurationError, match="two tools"):
        ToolRegistry([add, other])


@pytest.mark.parametrize("name", ["", "a b", "é", "x" * 65, "a.b"])
def test_a_name_that_providers_refuse_is_a_configuration_error(name):
    with pytest.raises(ConfigurationError, match="not a tool name"):
        ToolRegistry([make(dict, name=name)])


def test_unknown_policies_and_parameters_that_are_not_an_object_are_errors():
    with pytest.raises(ConfigurationError, match="allow, ask or deny"):
        ToolRegistry([replace(greet, policy="sometimes")])
    with pytest.raises(ConfigurationError, match="type object"):
        ToolRegistry([make(dict, parameters={"type": "array"})])


def test_a_schema_pattern_that_takes_too_long_refuses_the_call() -> None:
    parameters = {
        "type": "object",
        "properties": {"word": {"type": "string", "pattern": "^(a|a)+$"}},
    }
    slow = Tool(ToolSpec("slow", "", parameters), lambda arguments, context: "")
    with pytest.raises(ToolError, match="took too long"):
        validate_arguments(slow, {"word": "a" * 60 + "b"})
