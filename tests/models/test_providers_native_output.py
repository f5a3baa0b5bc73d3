"""Native structured output: when the schema is sent, when it is strict, and what follows a refusal."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from evaluator import (
    Evaluator,
    HandlerConfig,
    OpenAICompatibleBackend,
    ProviderError,
    Span,
    TaskError,
    TaskResult,
    TaskStore,
    TemplateLibrary,
    load_profiles,
)
from evaluator.handler.model_choice import ModelChooser
from evaluator.models.structured import is_refusal, is_strict, native_schema, response_format
from evaluator.nodes import OutputFormat
from evaluator.testing import Answer, HttpReply, LoopbackServer, error_reply

N = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}


def test_short_forms_and_schemas_are_sent_and_nothing_else() -> None:
    def of(kind: Any, schema: str | None) -> Any:
        return native_schema(OutputFormat(kind, schema, Span()))

    assert of("json", json.dumps(N)) == N
    assert of("json", "object") == {"type": "object"}
    assert of("json", "string[]") == {"type": "array", "items": {"type": "string"}}
    assert of("json", "integer") == {"type": "integer"}
    for kind, schema in (
        ("json", "any"),
        ("json", None),
        ("xml", "object"),
        ("text", None),
        ("json", "no/such.json"),
    ):
        assert of(kind, schema) is None
    assert native_schema(None) is None


@pytest.mark.parametrize(
    ("schema", "strict"),
    [
        (N, True),
        ({**N, "title": "T", "description": "d"}, True),
        ({**N, "properties": {"n": {"enum": ["a", "b"]}}}, True),
        ({**N, "properties": {"n": {"anyOf": [{"type": "null"}, N]}}}, True),
        ({**N, "properties": {"n": {"type": "array", "items": N}}}, True),
        ({**N, "properties": {"n": {"$ref": "#/$defs/x"}}, "$defs": {"x": N}}, True),
        ({**N, "additionalProperties": True}, False),
        ({key: value for key, value in N.items() if key != "additionalProperties"}, False),
        ({**N, "required": []}, False),
        ({**N, "properties": {"n": {"type": "object"}}}, False),
        ({**N, "properties": {"n": {"type": ["object", "null"]}}}, False),
        ({**N, "properties": {"n": {"type": "array"}}}, False),
        ({**N, "properties": {"n": {"type": "integer", "multipleOf": 2}}}, False),
        (
            {**N, "properties": {"n": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"type": "object"}}},
            False,
        ),
        ({**N, "properties": {"n": {}}}, False),
        ({**N, "allOf": []}, False),
        ({"type": "array", "items": N}, False),
        ({"type": "object"}, False),
    ],
)
def test_a_schema_is_strict_if_it_follows_the_rules(schema: dict[str, Any], strict: bool) -> None:
    assert is_strict(schema) is strict
    assert response_format(schema)["json_schema"].get("strict", False) is strict


def test_a_schema_nested_without_end_is_not_strict() -> None:
    schema: dict[str, Any] = dict(N)
    for _ in range(5000):
        schema = {**N, "properties": {"n": schema}}
    assert not is_strict(schema)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("Unrecognized request argument supplied: response_format", True),
        ("Function calling with a response mime type: 'application/json' is unsupported", True),
        ("groq does not support parameters: ['response_format']", True),
        ("Invalid schema for response_format 'answer'", True),
        ("invalid temperature", False),
    ],
)
def test_a_refusal_names_the_field(message: str, expected: bool) -> None:
    assert is_refusal(ProviderError(message, kind="bad_request")) is expected
    assert not is_refusal(ProviderError(message, kind="server"))


def evaluate(
    folder: Path,
    *replies: HttpReply | Answer,
    schema: str = json.dumps(N),
    tasks: int = 1,
    **config: Any,
) -> tuple[list[TaskResult | TaskError], LoopbackServer, TaskStore]:
    """The same task several times, one after the other, with one Evaluator."""
    library = TemplateLibrary()
    library.add(
        '<task name="count" type="atomic"><description>Count</description>'
        f"<output_format type=\"json\" schema='{schema}'/></task>"
    )
    settings: dict[str, Any] = {
        "name": "test",
        "backoff_s": (),
        "native_output": True,
        "model": "m",
        **config,
    }

    async def run(url: str) -> list[TaskResult | TaskError]:
        backend = OpenAICompatibleBackend(url)
        evaluator = Evaluator(library, HandlerConfig(**settings), backend=backend, tasks_dir=folder)
        try:
            return [await evaluator.evaluate("count") for _ in range(tasks)]
        finally:
            await backend.aclose()

    with LoopbackServer(*replies, default=Answer('{"n": 1}')) as server:
        return asyncio.run(run(server.base_url)), server, TaskStore(folder)


def test_the_schema_is_sent_to_the_provider_and_the_answer_is_validated(tmp_path: Path) -> None:
    (result,), server, _ = evaluate(tmp_path)
    assert isinstance(result, TaskResult)
    assert result.parsed_content == {"n": 1}
    assert server.bodies[0]["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": N, "strict": True},
    }
    assert "JSON Schema" in server.bodies[0]["messages"][-1]["content"]
    (wrong,), _, _ = evaluate(tmp_path / "wrong", Answer('{"n": "many"}'))
    assert isinstance(wrong, TaskError)
    assert wrong.reason == "output_format_failure"


def test_without_the_setting_nothing_is_sent(tmp_path: Path) -> None:
    _, server, _ = evaluate(tmp_path, native_output=False)
    assert "response_format" not in server.bodies[0]


def test_a_refused_schema_is_left_out_once_and_remembered(tmp_path: Path) -> None:
    refused = error_reply(400, "response_format is not supported by this model")
    results, server, store = evaluate(tmp_path, refused, tasks=3)
    assert [isinstance(result, TaskResult) for result in results] == [True] * 3
    assert ["response_format" in body for body in server.bodies] == [True, False, False, False]
    for result in results:
        assert any("takes no such JSON schema" in warning for warning in result.notes["warnings"])
    first = [step for step in store.read(1).steps if step.start.kind == "model"]
    assert [(step.status, step.start.attempt) for step in first] == [("failed", 1), ("success", 2)]
    assert first[0].start.fingerprint == first[1].start.fingerprint


def test_the_request_without_the_schema_is_not_a_retry_and_is_made_once(tmp_path: Path) -> None:
    refused = error_reply(400, "response_format is not supported")
    (result,), server, _ = evaluate(tmp_path, refused, error_reply(500), backoff_s=(0.0,))
    assert isinstance(result, TaskResult)
    assert server.posts == 3
    (error,), server, _ = evaluate(tmp_path / "again", refused, refused)
    assert isinstance(error, TaskError)
    assert (server.posts, error.details["kind"]) == (2, "bad_request")


def test_a_refused_schema_is_remembered_for_the_model_in_every_profile() -> None:
    chooser = ModelChooser(probe_local=False)
    config = HandlerConfig(name="a", base_url="http://127.0.0.1:9/v1", model="m")
    choice = chooser.choose(None, None, config)
    choice.refused_schemas.add("other")
    assert chooser.choose(
        None, None, HandlerConfig(name="b", base_url=config.base_url, model="m")
    ).refused_schemas == {"other"}
    assert chooser.choose("n", None, config).refused_schemas == set()
    asyncio.run(chooser.aclose())


def test_a_model_without_schema_support_is_called_without_a_schema(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from evaluator.models import prices

    def supports(_model: str, _feature: str) -> bool:
        return False

    monkeypatch.setattr(prices, "supports", supports)
    (result,), server, _ = evaluate(tmp_path)
    assert isinstance(result, TaskResult)
    assert "response_format" not in server.bodies[0]
    assert any("takes no such JSON schema" in warning for warning in result.notes["warnings"])


def test_a_profile_enables_native_output(tmp_path: Path) -> None:
    (tmp_path / "p.xml").write_text(
        '<handler name="p" tool_calling="text"><output native="true"/><prompt_cache>on</prompt_cache></handler>'
    )
    (tmp_path / "q.xml").write_text('<handler name="q"><output native="false"/></handler>')
    (tmp_path / "r.xml").write_text('<handler name="r" tool_calling="loud"/>')
    profiles = load_profiles(tmp_path)
    said = profiles["p"]
    assert (said.native_output, said.prompt_cache, said.tool_calling) == (True, "on", "text")
    silent = profiles["q"]
    assert (silent.native_output, silent.prompt_cache, silent.tool_calling) == (
        False,
        "auto",
        "native",
    )
    assert "tool_calling" in profiles.broken["r"]
