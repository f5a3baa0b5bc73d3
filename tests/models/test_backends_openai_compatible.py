"""`openai_compatible`: size caps, idle time, event loops, redirects, secrets, unusual answers."""

from __future__ import annotations

import asyncio
import json
import pickle
import resource
from datetime import datetime
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from evaluator import (
    ConfigurationError,
    Message,
    OpenAICompatibleBackend,
    ProviderError,
    ToolCall,
    ToolSpec,
    Usage,
)
from evaluator.models.chat_wire import decode_json, encode_json, message_body, read_completion
from evaluator.models.failures import failure, message_of, retry_after
from evaluator.models.prices import priced
from evaluator.models.stream import Assembly, EventParser
from evaluator.testing import (
    KEY,
    Answer,
    BackendCase,
    CallOutcome,
    HttpReply,
    LoopbackServer,
    a_request,
    chunk,
    error_reply,
    event,
    stream_reply,
)
from tests.patience import with_enough_time


def ask(
    *replies: HttpReply | Answer, settings: dict[str, Any] | None = None, **how: Any
) -> CallOutcome:
    async def run() -> CallOutcome:
        with LoopbackServer() as server:
            backend = OpenAICompatibleBackend(server.base_url, KEY, **(settings or {}))
            try:
                return await BackendCase(backend, server, "m").ask(*replies, **how)
            finally:
                await backend.aclose()

    return asyncio.run(run())


@pytest.mark.parametrize("length", [200_000_000, -1])
@pytest.mark.parametrize("stream", [False, True])
def test_a_body_past_the_cap_is_refused_with_and_without_its_length(
    length: int, stream: bool
) -> None:
    huge = HttpReply((b" " * 65536,), length=length, repeat=True)
    error = ask(huge, stream=stream, settings={"max_response_bytes": 1_000_000}).failed(
        "malformed_response"
    )
    assert "1000000 bytes" in error.message
    assert not error.retryable


def test_an_endless_stream_ends_at_the_cap_with_its_partial_text() -> None:
    endless = HttpReply(
        (event(chunk({"content": "la " * 100})),), content_type="text/event-stream", repeat=True
    )
    error = ask(endless, stream=True, settings={"max_response_bytes": 50_000}).failed(
        "malformed_response"
    )
    assert error.partial is not None
    assert error.partial.startswith("la la ")


def test_an_endless_line_ends_at_the_cap() -> None:
    endless = HttpReply((b"data: " + b"x" * 60_000,), content_type="text/event-stream", repeat=True)
    ask(endless, stream=True, settings={"max_response_bytes": 5_000_000}).failed(
        "malformed_response"
    )


def test_silence_in_a_stream_ends_it_before_the_call_would_end() -> None:
    silent = stream_reply([chunk({"content": "half"})], done=False, end="hang")
    limits: list[float] = []

    def attempt(limit_s: float) -> Any:
        limits.append(limit_s)
        return ask(silent, stream=True, timeout_s=300, settings={"idle_timeout_s": limit_s}).failed(
            "timeout"
        )

    error = with_enough_time(attempt, lambda error: error.partial, 0.1)
    assert f"silent for {limits[-1]:g} s" in error.message
    assert error.partial == "half"


def test_a_redirect_is_not_followed() -> None:
    outcome = ask(HttpReply(status=307, headers={"Location": "http://elsewhere.example/"}))
    assert "elsewhere.example" in outcome.failed("other").message
    assert outcome.posts == 1


def test_a_server_that_does_not_stream_is_understood() -> None:
    outcome = ask(Answer("whole").reply(stream=False), stream=True)
    assert outcome.pieces == ("whole",)
    assert outcome.ok().content == "whole"


def test_a_stream_whose_end_is_lost_after_the_finish_reason_is_whole() -> None:
    chunks = [chunk({"content": "all"}), chunk({}, finish_reason="stop")]
    assert ask(stream_reply(chunks, done=False, end="reset"), stream=True).ok().content == "all"


def test_one_backend_serves_loop_after_loop() -> None:
    with LoopbackServer() as server:
        backend = OpenAICompatibleBackend(server.base_url)

        async def call(close: bool) -> str:
            response = await backend.complete(a_request())
            if close:
                await backend.aclose()
            return response.content

        assert [asyncio.run(call(close=True)) for _ in range(2)] == ["ok", "ok"]
        assert server.posts == 2
        assert "authorization" not in server.headers[-1]


def test_connections_follow_the_limit_on_open_files_of_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    open_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]

    def of(backend: OpenAICompatibleBackend, *, is_used: bool = False) -> int | None:
        async def ask_for_limit() -> int | None:
            if is_used:
                await backend.complete(a_request("m"))
            found = backend.connections
            await backend.aclose()
            return found

        return asyncio.run(ask_for_limit())

    with LoopbackServer() as server:
        backend = OpenAICompatibleBackend(server.base_url)
        assert of(backend) == open_files // 2
        assert of(OpenAICompatibleBackend(server.base_url, connections=3)) == 3
        for raised, connections in ((10_000, 5_000), (resource.RLIM_INFINITY, None)):
            monkeypatch.setattr(resource, "getrlimit", lambda _, soft=raised: (soft, soft))
            assert of(backend) == connections
            assert of(backend, is_used=True) == connections


def test_a_backend_that_was_used_goes_to_another_process_without_its_connections() -> None:
    async def main() -> None:
        backend = OpenAICompatibleBackend(server.base_url, KEY)
        await backend.complete(a_request())
        taken = pickle.loads(pickle.dumps(backend))
        assert repr(taken) == repr(backend)
        assert (await taken.complete(a_request())).content == "ok"
        await backend.complete(a_request())
        await taken.aclose()
        assert (await backend.complete(a_request())).content == "ok"
        await backend.aclose()

    with LoopbackServer() as server:
        asyncio.run(main())
        assert server.posts == 4 and server.headers[-1]["authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "api.example.com/v1",
        "ftp://x/v1",
        "http://",
        "http://x:port/v1",
        "http://x/v1?a=b",
        "http://[x",
    ],
)
def test_a_base_url_that_cannot_work_is_refused_at_once(url: str) -> None:
    with pytest.raises(ConfigurationError):
        OpenAICompatibleBackend(url)


def test_a_key_with_a_line_break_is_refused_without_being_shown() -> None:
    with pytest.raises(ConfigurationError) as caught:
        OpenAICompatibleBackend("http://x/v1", "sk-1234\r\nX: y")
    assert "sk-1234" not in str(caught.value)


def test_secrets_of_headers_and_urls_are_masked() -> None:
    backend = OpenAICompatibleBackend(
        "https://me:hunter22@x/v1", KEY, headers={"X-Key": "topsecret1"}
    )
    assert "hunter22" not in repr(backend)
    assert KEY not in repr(backend)
    error = ask(error_reply(400, "bad topsecret1"), settings={"headers": {"X-Key": "topsecret1"}})
    assert "topsecret1" not in error.failed("bad_request").message


def test_tool_schemas_may_be_any_mapping_and_values_that_are_not_json_are_refused_unsent() -> None:
    from types import MappingProxyType

    good = ToolSpec(
        "t", "d", MappingProxyType({"type": "object", "properties": MappingProxyType({})})
    )
    assert ask(tools=(good,)).body["tools"][0]["function"]["parameters"]["properties"] == {}
    outcome = ask(tools=(ToolSpec("t", "d", {"x": object()}),))
    assert not outcome.failed("bad_request").maybe_billed
    assert outcome.posts == 0


def test_arguments_that_are_not_a_json_object_are_wrapped_when_sent_back() -> None:
    for written in ('{"a": ', "[1]", ""):
        body = message_body(Message("assistant", "", (ToolCall("c", "t", written),)))
        sent = json.loads(body["tool_calls"][0]["function"]["arguments"])
        assert sent == {"invalid_arguments": written}


@pytest.mark.parametrize(
    ("message", "finish", "content", "reasoning"),
    [
        (
            {"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            "stop",
            "ab",
            None,
        ),
        ({"content": [{"type": "thinking", "thinking": "hm"}, "b", 7]}, "stop", "b", "hm"),
        ({"content": "x", "reasoning": "why"}, "stop", "x", "why"),
        ({"content": None}, "stop", "", None),
        ({}, "stop", "", None),
        ({"content": "\ud800"}, "stop", "\ud800", None),
    ],
)
def test_odd_messages_are_read(
    message: dict[str, Any], finish: str, content: str, reasoning: str | None
) -> None:
    response = read_completion({"choices": [{"message": message, "finish_reason": finish}]})
    assert (response.content, response.reasoning) == (content, reasoning)


@pytest.mark.parametrize("count", [-4, 10**30])
def test_a_count_that_no_call_can_have_is_invalid_and_not_silently_unknown(count: int) -> None:
    details = {"cached_tokens": count, "cache_creation_tokens": -4}
    usage = {"prompt_tokens": 3, "completion_tokens": count, "prompt_tokens_details": details}
    response = read_completion(
        {"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}], "usage": usage}
    )
    assert response.usage.invalid() == ("output_tokens", "cached_tokens")
    assert (response.usage.input_tokens, response.usage.cache_write_tokens) == (3, 0)


@pytest.mark.parametrize(
    ("cached", "written", "invalid"),
    [
        (10, 0, ()),
        (4, 6, ()),
        (11, 0, ("cached_tokens",)),
        (0, 11, ("cache_write_tokens",)),
        (6, 6, ("cached_tokens", "cache_write_tokens")),
    ],
)
def test_more_tokens_of_the_prompt_cache_than_input_tokens_are_invalid_and_lower_no_cost(
    cached: int, written: int, invalid: tuple[str, ...]
) -> None:
    details = {"cached_tokens": cached, "cache_creation_tokens": written}
    usage = {"prompt_tokens": 10, "completion_tokens": 1, "prompt_tokens_details": details}
    response = read_completion(
        {"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}], "usage": usage}
    )
    assert response.usage.invalid() == invalid
    paid = priced("gpt-4o-mini", response.usage.without_invalid())
    if invalid:
        assert paid.cost_usd == priced("gpt-4o-mini", Usage(10, 1, turns=1)).cost_usd
        assert paid.cache_saved_usd == 0.0


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        7,
        {},
        {"choices": None},
        {"choices": [None]},
        {"choices": [{}]},
        {"choices": [{"message": {"content": 7}}]},
        {"choices": [{"message": {"tool_calls": 7}}]},
        {"choices": [{"message": {"tool_calls": [{"function": {"name": ""}}]}}]},
    ],
)
def test_data_that_is_not_a_completion_is_malformed(data: Any) -> None:
    with pytest.raises(ProviderError) as caught:
        read_completion(data)
    assert caught.value.kind == "malformed_response"


@pytest.mark.parametrize("body", [b"[" * 200_000, b'{"a": \xff}', b"", b"nul", b"9" * 10_000])
def test_hostile_json_is_malformed_and_nothing_else(body: bytes) -> None:
    with pytest.raises(ProviderError):
        decode_json(body)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(exclude_categories=[])),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=[])), inner)
    ),
    max_leaves=8,
)


@given(JSON)
@example(float("nan"))
@example(2**64)
@example("\ud800")
@example({"\ud800": [1e-05, 1e16, -0.0]})
def test_a_request_has_the_values_that_json_gives_it(value: Any) -> None:
    try:
        expected = json.dumps({"x": value}, allow_nan=False)
    except ValueError:
        with pytest.raises(ProviderError, match="not JSON"):
            encode_json({"x": value})
        return
    # repr tells -0.0 from 0.0 and 1 from 1.0.
    assert repr(json.loads(encode_json({"x": value}))) == repr(json.loads(expected))


def test_a_request_may_have_keys_that_are_numbers_and_no_dates() -> None:
    assert json.loads(encode_json({"x": {1: 2}})) == {"x": {"1": 2}}
    with pytest.raises(ProviderError, match="not JSON"):
        encode_json({"x": datetime(2026, 1, 1)})


@given(JSON)
@example("\ud800")
@example([[]] * 3)
def test_an_answer_is_read_as_json_reads_it_except_for_huge_integers(value: Any) -> None:
    body = json.dumps({"x": value}).encode()

    def shorten(each: Any) -> Any:
        if isinstance(each, int) and not -(2**63) <= each < 2**64:
            return float(each)
        if isinstance(each, list):
            return [shorten(inner) for inner in each]
        if isinstance(each, dict):
            return {name: shorten(inner) for name, inner in each.items()}
        return each

    expected = json.loads(body)
    assert repr(decode_json(body)) in (repr(expected), repr(shorten(expected)))
    # Arguments of a tool call are exact.
    body = json.dumps({"tool_calls": value}).encode()
    assert repr(decode_json(body)) == repr(json.loads(body))


def test_a_count_past_64_bits_stays_a_count_that_no_call_can_have() -> None:
    message = b'{"choices": [{"message": {"content": "x"}}], "usage": {"prompt_tokens": 1%s}}'
    response = read_completion(decode_json(message % (b"0" * 30)))
    assert response.usage.invalid() == ("input_tokens",)


def test_an_error_inside_a_200_is_an_error() -> None:
    with pytest.raises(ProviderError) as caught:
        read_completion({"error": {"message": "slow down", "code": 429}})
    assert (caught.value.kind, caught.value.retryable) == ("rate_limit", True)


@pytest.mark.parametrize(
    ("status", "message", "code", "kind", "retryable"),
    [
        (400, "prompt is too long: 9 > 8", "", "context_length", False),
        (413, "Please reduce the length of the messages", "", "context_length", False),
        *(
            (400, message, code, "context_length", False)
            for message, code in (
                (
                    "the request exceeds the available context size, try increasing it",
                    "400 exceed_context_size_error",
                ),
                ("The decoder prompt (length 9) is longer than the maximum model length of 8.", ""),
                ("This model's maximum context length is 8 tokens. However, you requested 9", ""),
                ("The input (9 tokens) is longer than the model's context length (8 tokens).", ""),
                ("Your input exceeds the context window of this model.", ""),
                ("too long", "context_length_exceeded"),
                ("input length and `max_tokens` exceed context limit: 9 + 2 > 8", ""),
                ("The input token count (9) exceeds the maximum number of tokens allowed (8).", ""),
                ("Input is too long for requested model.", ""),
                ("This model's maximum prompt length is 8 but the request contains 9 tokens.", ""),
                ("litellm.ContextWindowExceededError: no", ""),
                ("too many tokens: total number of tokens in the prompt cannot exceed 8", ""),
            )
        ),
        (422, "`inputs` must have less than 8 tokens. Given: 9", "", "context_length", False),
        (400, "max_tokens must be a number", "", "bad_request", False),
        (400, "the context is not a list", "invalid_request", "bad_request", False),
        (429, "The input token count exceeds the tokens per minute", "", "rate_limit", True),
        (400, "filtered", "content_filter", "content_filter", False),
        (429, "You exceeded your current quota", "insufficient_quota", "rate_limit", False),
        (429, "slow down", "", "rate_limit", True),
        (408, "", "", "timeout", True),
        (418, "", "", "bad_request", False),
        (599, "", "", "server", True),
    ],
)
def test_error_statuses_have_different_kinds(
    status: int, message: str, code: str, kind: str, retryable: bool
) -> None:
    error = failure(status, message, code=code)
    assert (error.kind, error.retryable, error.status) == (kind, retryable, status)
    assert pickle.loads(pickle.dumps(error)).kind == kind


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"error": {"message": "m", "code": "c"}}', "m"),
        (b'{"error": "m"}', "m"),
        (b'{"message": "m"}', "m"),
        (b'{"detail": "m"}', "m"),
        (b'[{"error": {"message": "m"}}]', "m"),
        (b"plain \xff", "plain \ufffd"),
        (b"", ""),
    ],
)
def test_messages_are_found_in_bodies_of_any_shape(body: bytes, expected: str) -> None:
    assert message_of(body)[0] == expected


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, None),
        ({"Retry-After": "1.5"}, 1.5),
        ({"retry-after-ms": "250"}, 0.25),
        ({"Retry-After": "nan"}, None),
        ({"Retry-After": "inf"}, None),
        ({"Retry-After": "-1"}, None),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
    ],
)
def test_retry_after_is_a_wait_or_nothing(headers: dict[str, str], expected: float | None) -> None:
    assert retry_after(headers) == expected


@given(st.binary(max_size=200), st.integers(min_value=1, max_value=7))
def test_events_do_not_depend_on_how_the_bytes_were_cut(data: bytes, size: int) -> None:
    def read(pieces: list[bytes]) -> list[bytes]:
        lines = EventParser()
        return [payload for piece in pieces for payload in lines.feed(piece)] + [lines.rest()]

    data = b"data: a\n" + data.replace(b"\x00", b"\ndata:")
    assert read([data]) == read([data[at : at + size] for at in range(0, len(data), size)])


def assembled(*deltas: dict[str, Any]) -> tuple[ToolCall, ...]:
    assembly = Assembly(lambda _: None)
    for delta in deltas:
        assembly.add_chunk(chunk({"tool_calls": [delta]}))
    assembly.add_chunk(chunk({}, finish_reason="tool_calls"))
    return assembly.response().tool_calls


def part(arguments: str, **fields: Any) -> dict[str, Any]:
    name = {"name": fields.pop("name")} if "name" in fields else {}
    return {"function": {"arguments": arguments, **name}, **fields}


A, B = ToolCall("a", "f", "{}"), ToolCall("b", "g", "[]")


@pytest.mark.parametrize(
    ("deltas", "expected"),
    [
        (
            [
                part("{", index=0, id="a", name="f"),
                part("[", index=1, id="b", name="g"),
                part("]", index=1),
                part("}", index=0),
            ],
            (A, B),
        ),
        ([part("[]", index=1, id="b", name="g"), part("{}", index=0, id="a", name="f")], (A, B)),
        ([part("{}", id="a", name="f"), part("[]", id="b", name="g")], (A, B)),
        ([part("{}", index=0, id="a", name="f"), part("[]", index=0, id="b", name="g")], (A, B)),
        ([part("{}", index=0, id="a", name="f"), part("{}", index=0, id="a", name="f")], (A,)),
        ([part("{", index=0), part("}", index=0, id="a", name="f")], (A,)),
        ([part("{}", index=0, id="a", name="f"), part("", index=0, id="a", name="f")], (A,)),
    ],
    ids=["interleaved", "backwards", "no index", "one index", "twice", "name late", "empty tail"],
)
def test_tool_calls_are_assembled_from_deltas(
    deltas: list[dict[str, Any]], expected: tuple[ToolCall, ...]
) -> None:
    assert assembled(*deltas) == expected
