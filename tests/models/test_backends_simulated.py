"""The simulated backend: where its answers come from, and that its faults are as set and reproducible."""

from __future__ import annotations

import asyncio
import json
import random

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluator import (
    ConfigurationError,
    Hints,
    Message,
    ModelResponse,
    ProviderError,
    SimulatedBackend,
    ToolCall,
)
from evaluator.models.backend import estimate_tokens
from evaluator.models.simulated import Script
from evaluator.models.synthesis import synthesise
from evaluator.testing import a_request

EXAMPLES = (({"text": "the cat sat"}, "feline"), ({"text": "stocks fell today"}, "finance"))


def answer(backend: SimulatedBackend, text: str = "Classify.", **fields: object) -> ModelResponse:
    return asyncio.run(backend.complete(a_request(text, **fields)))


def failure(backend: SimulatedBackend, **fields: object) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        answer(backend, **fields)
    return caught.value


@pytest.mark.parametrize(
    ("hints", "expected"),
    [
        (Hints(target="gold", examples=EXAMPLES, inputs={"text": "the cat sat"}), "gold"),
        (Hints(examples=EXAMPLES, inputs={"text": "stocks fell today "}), "finance"),
        (Hints(examples=EXAMPLES, inputs={"text": "today the stocks rose"}), "finance"),
        (Hints(examples=EXAMPLES, inputs={"text": "a cat"}), "feline"),
        (Hints(task="summarise"), "[simulated] an answer to: summarise"),
        (Hints(), "[simulated] an answer to: Classify."),
        (Hints(output_type="xml", task="a<b"), "<result>[simulated] a&lt;b</result>"),
    ],
)
def test_answers_come_from_target_then_examples_then_nothing(hints: Hints, expected: str) -> None:
    response = answer(SimulatedBackend(), hints=hints)
    assert response.content == expected
    assert response.model is not None
    assert response.model.startswith("simulated/")
    assert response.usage.cost_usd == 0.0


@pytest.mark.parametrize(
    ("target", "content", "calls"),
    [
        ('[{"name": "w.get", "arguments": {"days": 3}}]', "", [("w_get", {"days": 3})]),
        ('[{"name": "a", "arguments": {}}, {"name": "b"}]', "", [("a", {}), ("b", {})]),
        ("[]", "[]", []),
        ("none of these", "none of these", []),
        ('{"name": "a"}', '{"name": "a"}', []),
    ],
)
def test_where_calls_are_the_answer_the_target_gives_them(
    target: str, content: str, calls: list[object]
) -> None:
    response = answer(SimulatedBackend(), hints=Hints(output_type="calls", target=target))
    assert response.content == content
    assert [(call.name, json.loads(call.arguments)) for call in response.tool_calls] == calls
    assert answer(SimulatedBackend(), hints=Hints(target=target)).content == target


def test_a_script_answers_in_order_and_then_fails() -> None:
    script: Script = [
        "one",
        {"tool": "look_up", "arguments": {"word": "x"}},
        [{"tool": "a", "arguments": '{"broken": ', "text": "hm"}, {"tool": "b", "id": "mine"}],
    ]
    backend = SimulatedBackend(script=script)
    assert answer(backend).content == "one"
    called = answer(backend)
    assert called.finish_reason == "tool_calls"
    assert (called.tool_calls[0].name, called.tool_calls[0].arguments) == (
        "look_up",
        '{"word": "x"}',
    )
    both = answer(backend)
    assert both.content == "hm"
    assert both.tool_calls[0].arguments == '{"broken": '
    assert both.tool_calls[1] == ToolCall("mine", "b", "{}")
    assert "used up" in failure(backend).message


def test_an_item_of_a_script_of_another_type_is_an_error_that_says_what_it_may_be() -> None:
    with pytest.raises(ConfigurationError, match="the script gave an int, expected text, tool"):
        answer(SimulatedBackend(script=lambda request: 5))  # type: ignore[arg-type,return-value]


def test_a_script_may_raise_and_a_function_may_return_none() -> None:
    assert failure(SimulatedBackend(script=[ProviderError("no", kind="server")])).kind == "server"
    backend = SimulatedBackend(script=lambda request: "hi" if request.temperature else None)
    assert answer(backend, temperature=1.0).content == "hi"
    assert answer(backend).content.startswith("[simulated]")


def test_answers_do_not_depend_on_the_order_of_calls() -> None:
    async def ask(order: list[int]) -> dict[int, str]:
        backend = SimulatedBackend(7, wrong=0.5, malformed=0.5)
        hints = Hints(output_type="json", schema="object", target='{"a": 1, "b": ["x"]}')
        calls = [backend.complete(a_request(f"question {n}", hints=hints)) for n in order]
        return dict(zip(order, [r.content for r in await asyncio.gather(*calls)], strict=True))

    forward = asyncio.run(ask(list(range(40))))
    assert forward == asyncio.run(ask(list(reversed(range(40)))))
    assert len(set(forward.values())) > 3


def test_faults_vary_by_attempt_and_a_retry_gets_the_same_answer_in_the_end() -> None:
    async def attempts(seed: int) -> list[str]:
        backend = SimulatedBackend(seed, rate_limit=0.5)
        seen: list[str] = []
        for _ in range(20):
            try:
                seen.append((await backend.complete(a_request())).content)
            except ProviderError as exc:
                seen.append(f"{exc.kind} {exc.retryable}")
        return seen

    seen = asyncio.run(attempts(1))
    assert set(seen) == {"rate_limit True", "[simulated] an answer to: Say ok."}
    assert seen == asyncio.run(attempts(1))
    assert seen != asyncio.run(attempts(2))


def test_each_fault_is_what_it_says() -> None:
    assert failure(SimulatedBackend(rate_limit=1, retry_after_s=3)).retry_after_s == 3
    assert failure(SimulatedBackend(fail=1)).status == 500
    assert failure(SimulatedBackend(hang=1), timeout_s=0.02).kind == "timeout"
    assert failure(SimulatedBackend(latency_s=60), timeout_s=0.02).kind == "timeout"
    hints = Hints(target='{"n": 1}', output_type="json")
    assert json.loads(answer(SimulatedBackend(wrong=1), hints=hints).content) == {"n": 2}
    assert answer(SimulatedBackend(malformed=1), hints=hints).content != '{"n": 1}'


def test_a_wrong_label_is_another_label() -> None:
    hints = Hints(examples=EXAMPLES, inputs={"text": "the cat sat"})
    assert answer(SimulatedBackend(wrong=1), hints=hints).content == "finance"


@pytest.mark.parametrize(
    "settings",
    [
        {"wrong": 1.1},
        {"wrong": True},
        {"wrong": "often"},
        {"hang": -0.1},
        {"fail": float("nan")},
        {"latency_s": -1},
        {"latency_s": float("inf")},
        {"retry_after_s": -1},
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError):
        SimulatedBackend(**settings)


def test_an_answer_longer_than_allowed_ends_with_length() -> None:
    response = answer(SimulatedBackend(script=["word " * 200]), max_output_tokens=20)
    assert response.finish_reason == "length"
    assert 0 < estimate_tokens(response.content) <= 20


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("object", dict),
        ("array", list),
        ("[]", list),
        ("string[]", list),
        ("number[]", list),
        ("string", str),
        ("number", float),
        ("integer", int),
        ("boolean", bool),
        (None, dict),
        ("some.module:Model", dict),
        ("{broken", dict),
    ],
)
def test_schema_names_give_values_of_their_kind(name: str | None, kind: type) -> None:
    content = answer(SimulatedBackend(), hints=Hints(output_type="json", schema=name)).content
    assert type(json.loads(content)) is kind


NODE = {
    "type": "object",
    "properties": {"next": {"$ref": "#/$defs/node"}, "v": {"type": "integer"}},
}
SCHEMAS = [
    {"type": "object", "required": ["a", "free"], "properties": {"a": {"enum": ["x", "y"]}}},
    {"type": "array", "items": {"type": "number", "minimum": 3, "maximum": 3.5}, "minItems": 3},
    {"$defs": {"node": {**NODE, "required": ["v"]}}, "$ref": "#/$defs/node"},
    {
        "allOf": [
            {"required": ["p"]},
            {"properties": {"p": {"type": "boolean"}}, "required": ["p"]},
        ],
        "type": "object",
    },
    {"anyOf": [{"type": "null"}, {"type": "string", "minLength": 30}]},
    {"type": ["string", "null"], "maxLength": 4},
    {"type": "integer", "exclusiveMinimum": 4, "exclusiveMaximum": 6},
    {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 0.001},
    {"type": "integer", "multipleOf": 7, "minimum": 10, "maximum": 20},
    {
        "type": "array",
        "prefixItems": [{"const": 1}, {"type": "string", "format": "date"}],
        "items": False,
    },
    {"type": "array", "uniqueItems": True, "items": {"enum": [1, 2, 3]}, "minItems": 2},
    {"type": "object", "additionalProperties": False},
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=[str(n) for n in range(len(SCHEMAS))])
def test_made_up_values_fit_their_json_schema(schema: dict[str, object]) -> None:
    for seed in range(20):
        value = synthesise(json.dumps(schema), random.Random(seed))
        jsonschema.validate(value, schema)


def test_a_schema_that_only_refers_to_itself_ends() -> None:
    synthesise('{"$ref": "#"}', random.Random(0))
    schema = {"type": "object", "required": ["a"], "properties": {"a": {"$ref": "#"}}}
    assert synthesise(json.dumps(schema), random.Random(0))["a"]


@pytest.mark.parametrize("words", [{}, {"uniqueItems": True}])
def test_nested_lists_of_many_items_end(words: dict[str, object]) -> None:
    schema: dict[str, object] = {"type": "boolean"}
    for _ in range(8):
        schema = {"type": "array", "items": schema, "minItems": 300, **words}
    assert len(json.dumps(synthesise(json.dumps(schema), random.Random(0)))) < 200_000


def test_an_object_that_requires_itself_twice_ends() -> None:
    names = list("abcdefgh")
    schema = {"required": names, "properties": {name: {"$ref": "#"} for name in names}}
    value = synthesise(json.dumps(schema), random.Random(0))
    assert list(value) == names
    assert len(json.dumps(value)) < 1_000_000


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=300))
def test_token_estimates_are_positive_for_any_text_and_grow_with_it(text: str) -> None:
    assert (estimate_tokens(text) == 0) is (text == "")
    assert estimate_tokens(text + "x") >= estimate_tokens(text)


@pytest.mark.parametrize(
    ("text", "counted"),
    [
        ("The quick brown fox jumps over the lazy dog. " * 5, 51),
        ("评估语言模型任务的框架，在隔离的会话中运行。" * 5, 125),
        ("Оценка задач языковых моделей в изолированных сессиях. " * 5, 126),
        ("😀🎉🚀" * 20, 160),
        ("3141592653" * 20, 67),
        ("q83vASNFZ4nEx0IjRWeJq83v" * 10, 180),
    ],
    ids=["prose", "chinese", "russian", "emoji", "digits", "base64"],
)
def test_token_estimates_do_not_undercut_a_real_tokenizer_and_stay_in_reach(
    text: str, counted: int
) -> None:
    """`counted` is the count of cl100k_base, within a few per cent."""
    assert counted * 0.98 <= estimate_tokens(text) <= counted * 3


def test_streaming_gives_word_after_word() -> None:
    pieces: list[str] = []
    backend = SimulatedBackend(script=["  one two\nthree "])
    request = a_request(messages=(Message("user", "x"),))
    response = asyncio.run(backend.complete(request, on_text=pieces.append))
    assert len(pieces) == 4
    assert "".join(pieces) == response.content
