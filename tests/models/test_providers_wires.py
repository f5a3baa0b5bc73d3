"""Anthropic's and Gemini's wire formats through LiteLLM, on loopback: requests, answers, what is sent back."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from evaluator import (
    Attachment,
    CacheMark,
    LiteLLMBackend,
    Message,
    ModelRequest,
    ModelResponse,
    ToolCall,
    Usage,
)
from evaluator.models import prices
from evaluator.models.anthropic_batches import message_request
from evaluator.testing import (
    KEY,
    TOOL,
    BackendCase,
    CallOutcome,
    HttpReply,
    LoopbackServer,
    error_reply,
    event,
    json_reply,
)

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

CLAUDE, GEMINI = "anthropic/claude-sonnet-4-5", "gemini/gemini-2.5-flash"
IMAGE = Attachment("image/png", b"\x89PNG", "a.png")
PAPER = Attachment("application/pdf", b"%PDF-", "b/c.pdf")
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
TALK = (
    Message("system", "Be brief."),
    Message("user", "An example."),
    Message("assistant", "Its answer."),
    Message("user", "Look x up.", attachments=(IMAGE, PAPER)),
)
MARKS = (CacheMark(0, len("Be brief.")),)

THOUGHT: dict[str, Any] = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}
HIDDEN: dict[str, Any] = {"type": "redacted_thinking", "data": "aGlkZGVu"}
CLAUDE_USAGE = {
    "input_tokens": 5,
    "cache_read_input_tokens": 100,
    "cache_creation_input_tokens": 50,
    "output_tokens": 20,
    "output_tokens_details": {"thinking_tokens": 4},
}
GEMINI_USAGE = {
    "promptTokenCount": 100,
    "candidatesTokenCount": 7,
    "thoughtsTokenCount": 3,
    "totalTokenCount": 110,
    "cachedContentTokenCount": 40,
}


def claude(
    *content: Mapping[str, Any], reason: str | None = "end_turn", usage: Any = CLAUDE_USAGE
) -> HttpReply:
    data: dict[str, Any] = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-x",
        "content": content or [{"type": "text", "text": "hello"}],
        "stop_reason": reason,
    }
    return json_reply(data if usage is None else {**data, "usage": usage})


def claude_stream(
    *events: Mapping[str, Any], reason: str | None = "end_turn", end: bool = True
) -> HttpReply:
    head = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-x",
        "content": [],
        "stop_reason": None,
        "usage": {**CLAUDE_USAGE, "output_tokens": 1},
    }
    sent = [{"type": "message_start", "message": head}, *events]
    if end:
        sent += [
            {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": CLAUDE_USAGE},
            {"type": "message_stop"},
        ]
    pieces = tuple(b"event: " + str(data["type"]).encode() + b"\n" + event(data) for data in sent)
    return HttpReply(pieces, content_type="text/event-stream")


def block(
    index: int, opening: Mapping[str, Any], *deltas: Mapping[str, Any]
) -> list[dict[str, Any]]:
    return [
        {"type": "content_block_start", "index": index, "content_block": opening},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def gemini(
    *parts: Mapping[str, Any], reason: str | None = "STOP", usage: Any = GEMINI_USAGE
) -> dict[str, Any]:
    candidate: dict[str, Any] = {
        "content": {"role": "model", "parts": parts or [{"text": "hello"}]},
        "index": 0,
    }
    if reason is not None:
        candidate["finishReason"] = reason
    data: dict[str, Any] = {"candidates": [candidate], "modelVersion": "gemini-x"}
    return data if usage is None else {**data, "usageMetadata": usage}


def gemini_stream(*chunks: Mapping[str, Any]) -> HttpReply:
    return HttpReply(tuple(event(data) for data in chunks), content_type="text/event-stream")


def ask(
    reply: HttpReply, model: str, *, stream: bool = False, **fields: Any
) -> tuple[CallOutcome, LoopbackServer]:
    async def run() -> CallOutcome:
        backend = LiteLLMBackend(base_url=server.base_url.removesuffix("/v1"), api_key=KEY)
        try:
            return await BackendCase(backend, server, model).ask(reply, stream=stream, **fields)
        finally:
            await backend.aclose()

    with LoopbackServer() as server:
        return asyncio.run(run()), server


def same_whole_and_streamed(model: str, whole: HttpReply, streamed: HttpReply) -> ModelResponse:
    first, second = ask(whole, model)[0].ok(), ask(streamed, model, stream=True)[0]
    assert "".join(second.pieces) == second.ok().content == first.content
    assert second.ok().finish_reason == first.finish_reason
    return first


def test_sampling_settings_on_other_wires() -> None:
    settings: dict[str, Any] = {"temperature": 0.5, "top_p": 0.9, "top_k": 5, "stop": ("X", "Y")}
    sent = {"temperature": 0.5, "top_p": 0.9, "top_k": 5, "stop_sequences": ["X", "Y"]}
    body = ask(claude(), CLAUDE, **settings)[0].body
    assert {name: body[name] for name in sent} == sent
    assert ask(json_reply(gemini()), GEMINI, **settings)[0].body["generationConfig"] == sent


def test_a_request_to_anthropic() -> None:
    outcome, server = ask(
        claude(), CLAUDE, messages=TALK, tools=(TOOL,), max_output_tokens=99, temperature=0.5
    )
    assert outcome.ok().content == "hello"
    assert (server.paths, server.posts) == (["/v1/messages"], 1)
    assert server.headers[0]["x-api-key"] == KEY
    body = outcome.body
    assert body["system"] == [{"type": "text", "text": "Be brief."}]
    assert (body["max_tokens"], body["temperature"]) == (99, 0.5)
    assert body["messages"][2]["content"] == [
        {
            "type": "image",
            "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw=="},
        },
        {
            "type": "document",
            "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="},
        },
        {"type": "text", "text": "Look x up."},
    ]
    assert body["tools"][0]["input_schema"] == TOOL.parameters
    assert "cache_control" not in str(body)


def test_a_request_to_gemini() -> None:
    outcome, server = ask(
        json_reply(gemini()),
        GEMINI,
        messages=TALK,
        tools=(TOOL,),
        max_output_tokens=99,
        cache_marks=MARKS,
    )
    assert outcome.ok().content == "hello"
    assert (server.paths, server.posts) == (["/models/gemini-2.5-flash:generateContent"], 1)
    assert server.headers[0]["x-goog-api-key"] == KEY
    body = outcome.body
    assert body["system_instruction"] == {"parts": [{"text": "Be brief."}]}
    assert [content["role"] for content in body["contents"]] == ["user", "model", "user"]
    assert body["contents"][2]["parts"] == [
        {"inline_data": {"data": "iVBORw==", "mime_type": "image/png"}},
        {"inline_data": {"data": "JVBERi0=", "mime_type": "application/pdf"}},
        {"text": "Look x up."},
    ]
    assert body["tools"][0]["function_declarations"][0]["name"] == "look_up"
    assert body["generationConfig"]["max_output_tokens"] == 99


def test_the_marked_beginning_is_a_block_of_its_own_for_anthropic() -> None:
    messages = (Message("system", "Be brief."), Message("user", "Rules:\nNone.\nAsk: x"))
    marks = (CacheMark(1, len("Rules:\nNone.\n")),)
    request = ModelRequest(CLAUDE, messages, cache_marks=marks)
    body = ask(claude(), CLAUDE, messages=messages, cache_marks=marks)[0].body
    mark = {"cache_control": {"type": "ephemeral"}}
    assert body["system"] == [{"type": "text", "text": "Be brief."}]
    assert body["messages"][0]["content"] == [
        {"type": "text", "text": "Rules:\nNone.\n", **mark},
        {"type": "text", "text": "Ask: x"},
    ]
    in_batch = message_request(request)
    assert (in_batch["system"], in_batch["messages"]) == (body["system"], body["messages"])


def test_a_tool_result_is_marked_for_anthropic() -> None:
    called = Message("assistant", "", (ToolCall("t1", "look_up", '{"word": "x"}'),))
    messages = (*TALK, called, Message("tool", "a letter", tool_call_id="t1"))
    marks = (CacheMark(0, len("Be brief.")), CacheMark(len(messages) - 1, len("a letter")))
    body = ask(claude(), CLAUDE, messages=messages, tools=(TOOL,), cache_marks=marks)[0].body
    assert body["messages"][-1]["content"][0]["cache_control"] == {"type": "ephemeral"}
    assert str(body).count("cache_control") == 2


def test_tokens_written_to_a_cache_cost_what_the_table_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entry = {
        "input_cost_per_token": 1.0,
        "output_cost_per_token": 0.0,
        "cache_creation_input_token_cost": 1.25,
        "cache_read_input_token_cost": 0.1,
    }
    monkeypatch.setattr(prices, "_entry", {"m": entry}.get)
    usage = Usage(100, 0, 40, 0, None, 1)
    assert prices.cost_usd("m", usage) == pytest.approx(64.0)
    written = replace(usage, cache_write_tokens=20)
    assert prices.cost_usd("m", written) == pytest.approx(69.0)
    assert prices.cost_usd("m", replace(usage, cache_write_tokens=900)) == pytest.approx(79.0)
    assert prices.priced("m", written).cache_saved_usd == pytest.approx(100 - 69)


def test_a_schema_reaches_both() -> None:
    body = ask(claude(), CLAUDE, schema=SCHEMA)[0].body
    assert body["output_format"] == {"type": "json_schema", "schema": SCHEMA}
    body = ask(json_reply(gemini()), GEMINI, schema=SCHEMA)[0].body
    assert body["generationConfig"]["response_mime_type"] == "application/json"
    assert body["generationConfig"]["response_json_schema"] == SCHEMA


CALLED: dict[str, Any] = {
    "type": "tool_use",
    "id": "toolu_1",
    "name": "look_up",
    "input": {"word": "x"},
}


@pytest.mark.parametrize("stream", [False, True])
def test_anthropics_thinking_is_separate_and_is_sent_back_signed(stream: bool) -> None:
    streamed = claude_stream(
        *block(
            0,
            {"type": "thinking", "thinking": "", "signature": ""},
            {"type": "thinking_delta", "thinking": "h"},
            {"type": "thinking_delta", "thinking": "m"},
            {"type": "signature_delta", "signature": "c2ln"},
        ),
        *block(1, HIDDEN),
        *block(
            2,
            {"type": "text", "text": ""},
            {"type": "text_delta", "text": "Loo"},
            {"type": "text_delta", "text": "king."},
        ),
        *block(
            3,
            {**CALLED, "input": {}},
            {"type": "input_json_delta", "partial_json": '{"word": '},
            {"type": "input_json_delta", "partial_json": '"x"}'},
        ),
        reason="tool_use",
    )
    whole = claude(THOUGHT, HIDDEN, {"type": "text", "text": "Looking."}, CALLED, reason="tool_use")
    outcome, _ = ask(
        streamed if stream else whole, CLAUDE, stream=stream, messages=TALK, tools=(TOOL,)
    )
    response = outcome.ok()
    assert (response.content, response.reasoning, response.finish_reason) == (
        "Looking.",
        "hm",
        "tool_calls",
    )
    assert response.tool_calls == (ToolCall("toolu_1", "look_up", '{"word": "x"}'),)
    assert response.thinking == (THOUGHT, HIDDEN)
    usage = response.usage
    assert (usage.input_tokens, usage.output_tokens) == (155, 20)
    assert (usage.cached_tokens, usage.reasoning_tokens, usage.cache_write_tokens) == (
        100,
        4,
        50,
    )
    if stream:
        assert outcome.pieces == ("Loo", "king.")
    messages = (*TALK, response.message(), Message("tool", "a letter", tool_call_id="toolu_1"))
    body = ask(claude(), CLAUDE, messages=messages, tools=(TOOL,))[0].body
    assert body["messages"][3]["content"] == [
        THOUGHT,
        HIDDEN,
        {"type": "text", "text": "Looking."},
        CALLED,
    ]
    assert body["messages"][4]["content"][0]["tool_use_id"] == "toolu_1"


@pytest.mark.parametrize("stream", [False, True])
def test_geminis_thoughts_are_separate_and_its_signature_is_sent_back(stream: bool) -> None:
    thought = {"text": "hm", "thought": True}
    called = {
        "functionCall": {"name": "look_up", "args": {"word": "x"}},
        "thoughtSignature": "c2ln",
    }
    streamed = gemini_stream(
        gemini(thought, reason=None, usage=None),
        gemini({"text": "Loo"}, reason=None, usage=None),
        gemini({"text": "king."}, reason=None, usage=None),
        gemini(called),
    )
    whole = json_reply(gemini(thought, {"text": "Looking."}, called))
    outcome, _ = ask(
        streamed if stream else whole, GEMINI, stream=stream, messages=TALK, tools=(TOOL,)
    )
    response = outcome.ok()
    assert (response.content, response.reasoning, response.finish_reason) == (
        "Looking.",
        "hm",
        "tool_calls",
    )
    (call,) = response.tool_calls
    assert (call.name, call.arguments) == ("look_up", '{"word": "x"}')
    usage = response.usage
    assert (usage.input_tokens, usage.output_tokens) == (100, 10)
    assert (usage.cached_tokens, usage.reasoning_tokens) == (40, 3)
    if stream:
        assert outcome.pieces == ("Loo", "king.")
    messages = (*TALK, response.message(), Message("tool", "a letter", tool_call_id=call.id))
    body = ask(json_reply(gemini()), GEMINI, messages=messages, tools=(TOOL,))[0].body
    sent = body["contents"][3]["parts"][1]
    assert sent["function_call"] == {"name": "look_up", "args": {"word": "x"}}
    assert sent["thoughtSignature"] == "c2ln"
    assert body["contents"][4]["parts"][0]["function_response"]["response"] == {
        "content": "a letter"
    }


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("end_turn", "stop"),
        ("max_tokens", "length"),
        ("refusal", "refusal"),
        ("tired", "unknown"),
        ("model_context_window_exceeded", "length"),
    ],
)
def test_anthropics_stop_reasons(reason: str, expected: str) -> None:
    text = block(0, {"type": "text", "text": ""}, {"type": "text_delta", "text": "hello"})
    response = same_whole_and_streamed(
        CLAUDE, claude(reason=reason), claude_stream(*text, reason=reason)
    )
    assert response.finish_reason == expected


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("STOP", "stop"),
        ("MAX_TOKENS", "length"),
        ("MALFORMED_FUNCTION_CALL", "unknown"),
        ("TIRED", "unknown"),
    ],
)
def test_geminis_finish_reasons(reason: str, expected: str) -> None:
    streamed = gemini_stream(
        gemini({"text": "hel"}, reason=None, usage=None), gemini({"text": "lo"}, reason=reason)
    )
    assert (
        same_whole_and_streamed(GEMINI, json_reply(gemini(reason=reason)), streamed).finish_reason
        == expected
    )


def test_an_answer_that_gemini_filters_has_that_finish_reason() -> None:
    assert (
        ask(json_reply(gemini(reason="SAFETY")), GEMINI)[0].ok().finish_reason == "content_filter"
    )
    blocked = {
        "promptFeedback": {"blockReason": "SAFETY"},
        "usageMetadata": {"promptTokenCount": 3},
    }
    assert ask(json_reply(blocked), GEMINI)[0].ok().finish_reason == "content_filter"


@pytest.mark.parametrize(
    ("model", "reply"),
    [
        (
            CLAUDE,
            claude_stream(
                *block(0, {"type": "text", "text": ""}, {"type": "text_delta", "text": "hel"}),
                end=False,
            ),
        ),
        (GEMINI, gemini_stream(gemini({"text": "hel"}, reason=None, usage=None))),
    ],
)
def test_a_cut_stream_is_not_an_answer(model: str, reply: HttpReply) -> None:
    error = ask(reply, model, stream=True)[0].failed("malformed_response")
    assert (error.partial, error.maybe_billed) == ("hel", True)


@pytest.mark.parametrize(
    ("model", "reply"), [(CLAUDE, claude(usage=None)), (GEMINI, json_reply(gemini(usage=None)))]
)
def test_an_answer_that_litellm_cannot_read_is_malformed_and_maybe_billed(
    model: str, reply: HttpReply
) -> None:
    error = ask(reply, model)[0].failed("malformed_response")
    assert error.maybe_billed
    assert "Traceback" not in error.message


def test_reasoning_without_a_count_is_unknown() -> None:
    usage = {key: value for key, value in CLAUDE_USAGE.items() if key != "output_tokens_details"}
    response = ask(claude(THOUGHT, {"type": "text", "text": "x"}, usage=usage), CLAUDE)[0].ok()
    assert (response.usage.output_tokens, response.usage.reasoning_tokens) == (20, None)


@pytest.mark.parametrize(
    "reply",
    [
        HttpReply(silent=True, end="reset"),
        HttpReply(silent=True, end="close"),
        HttpReply((b'{"id"',), length=1000, end="reset"),
        error_reply(500),
        error_reply(529),
        error_reply(401),
        HttpReply((b" " * 65536,), length=200_000_000, repeat=True),
    ],
    ids=["reset", "closed", "cut", "500", "529", "401", "200 MB"],
)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", [CLAUDE, GEMINI, "openai/x", "mistral/x", "ollama_chat/x"])
def test_one_call_is_one_post_whatever_happens(model: str, stream: bool, reply: HttpReply) -> None:
    outcome, server = ask(reply, model, stream=stream)
    error = outcome.failed("connection", "server", "authentication", "malformed_response")
    assert server.posts == 1
    assert (error.kind == "authentication") == (reply.status == 401)
    assert server.sent_bytes < 50_000_000
