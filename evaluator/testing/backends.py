"""The conformance suite of backends: named checks, each against a loopback server that misbehaves on demand.

    from evaluator.testing import CHECKS

    @pytest.mark.parametrize("check", CHECKS, ids=str)
    def test_conformance(check):
        asyncio.run(check.run(lambda base_url: MyBackend(base_url)))

or, all at once, `await check_backend(lambda base_url: MyBackend(base_url))`. The checks use `assert`, so they refuse to
run under `python -O`.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from email.utils import formatdate
from typing import Any, cast

from evaluator.errors import ProviderError, UsageError
from evaluator.models.attachments import Attachment
from evaluator.models.backend import Backend, Message, ModelRequest, ModelResponse, ToolCall, ToolSpec
from evaluator.testing.loopback import (
    Answer,
    HttpReply,
    LoopbackServer,
    chunk,
    error_reply,
    event,
    json_reply,
    stream_reply,
)

Factory = Callable[[str], Backend]


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """The outcome of one call: a response or an error, the streamed pieces, and what the server received."""

    response: ModelResponse | None
    error: ProviderError | None
    pieces: tuple[str, ...]
    posts: int
    body: Mapping[str, Any]

    def ok(self) -> ModelResponse:
        assert self.response is not None, f"expected a response, got {self.error!r}"
        return self.response

    def failed(self, *kinds: str) -> ProviderError:
        assert self.error is not None, f"expected a ProviderError, got {self.response}"
        assert self.error.kind in kinds, f"expected {' or '.join(kinds)}, got {self.error.kind}: {self.error}"
        assert self.posts <= 1, f"one call made {self.posts} POSTs"
        assert len(self.error.message) <= 600, "the message is too long to print"
        assert KEY not in str(self.error), "the message shows the API key"
        return self.error


KEY = "sk-loopback-0123456789"
MODEL = "loopback-1"
UNBOUNDED_S = 60.0
"""A call that lasts this much longer than its timeout is taken to have no end, on a busy machine too."""


def a_request(text: str = "Say ok.", **fields: Any) -> ModelRequest:
    """A small request; `fields` are those of ModelRequest."""
    values: dict[str, Any] = {
        "model": MODEL, "messages": (Message("user", text),), "timeout_s": 10.0, **fields
    }  # fmt: skip
    return ModelRequest(**values)


class BackendCase:
    """One backend and the server that it calls."""

    def __init__(self, backend: Backend, server: LoopbackServer, model: str) -> None:
        self.backend = backend
        self.server = server
        self.model = model

    async def ask(self, *replies: HttpReply | Answer, stream: bool = False, **fields: Any) -> CallOutcome:
        """Makes one call, answered by the first of `replies`. Exceptions other than ProviderError pass through."""
        self.server.enqueue(*replies)
        before = self.server.posts
        pieces: list[str] = []
        response: ModelResponse | None = None
        error: ProviderError | None = None
        try:
            request = a_request(**{"model": self.model, **fields})
            async with asyncio.timeout(request.timeout_s + UNBOUNDED_S):
                response = await self.backend.complete(request, on_text=pieces.append if stream else None)
        except ProviderError as exc:
            error = exc
        posts = self.server.posts - before
        body = self.server.bodies[-1] if posts else {}
        return CallOutcome(response, error, tuple(pieces), posts, body)


@dataclass(frozen=True, slots=True)
class Check:
    """One named requirement. Those of the `wire` need a backend that calls the given server."""

    name: str
    demand: Callable[[BackendCase], Awaitable[None]]
    wire: bool

    def __str__(self) -> str:
        return self.name

    async def run(self, factory: Factory, *, model: str = MODEL) -> None:
        """Makes a backend with `factory(base_url)`, checks it and closes it. Raises: AssertionError."""
        if not __debug__:
            raise UsageError("the checks of backends use assert: run Python without -O")
        with LoopbackServer() as server:
            backend = factory(server.base_url)
            try:
                await self.demand(BackendCase(backend, server, model))
            finally:
                await backend.aclose()


TOOL = ToolSpec(
    "look_up",
    "Looks a word up.",
    {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
)

_CHECKS: list[Check] = []
Demand = Callable[[BackendCase], Awaitable[None]]


def _check(*, wire: bool = True) -> Callable[[Demand], Demand]:
    def add(demand: Demand) -> Demand:
        _CHECKS.append(Check(demand.__name__.replace("_", " "), demand, wire))
        return demand

    return add


# Any backend.


@_check(wire=False)
async def it_is_a_backend_with_a_name(case: BackendCase) -> None:
    assert isinstance(case.backend, Backend)
    assert case.backend.name


@_check(wire=False)
async def a_response_is_whole_and_counts_as_one_turn(case: BackendCase) -> None:
    response = (await case.ask()).ok()
    assert response.content
    assert response.finish_reason == "stop"
    assert response.usage.turns == 1
    assert response.model


@_check(wire=False)
async def streamed_pieces_add_up_to_the_content(case: BackendCase) -> None:
    outcome = await case.ask(stream=True)
    assert outcome.pieces
    assert "".join(outcome.pieces) == outcome.ok().content


@_check(wire=False)
async def streaming_does_not_change_the_response(case: BackendCase) -> None:
    whole, streamed = await case.ask(), await case.ask(stream=True)
    assert whole.ok() == streamed.ok()


@_check(wire=False)
async def calls_may_run_side_by_side(case: BackendCase) -> None:
    outcomes = await asyncio.gather(*(case.ask() for _ in range(20)))
    assert all(outcome.response is not None for outcome in outcomes)


@_check(wire=False)
async def an_exception_of_on_text_is_the_callers_own(case: BackendCase) -> None:
    class Mine(OSError):
        pass

    def broken(_: str) -> None:
        raise Mine

    try:
        await case.backend.complete(a_request(model=case.model), on_text=broken)
    except Mine:
        return
    raise AssertionError("the exception did not pass through")


@_check(wire=False)
async def closing_twice_is_harmless(case: BackendCase) -> None:
    await case.ask()
    await case.backend.aclose()
    await case.backend.aclose()


# Requests.


@_check()
async def one_call_is_one_post_and_carries_the_request(case: BackendCase) -> None:
    outcome = await case.ask(
        Answer("fine"),
        messages=(Message("system", "Be brief."), Message("user", "{{ x }} <b> \u00fc \U0001f600")),
        temperature=0.5,
        max_output_tokens=99,
    )
    assert outcome.ok().content == "fine"
    assert outcome.posts == 1
    assert outcome.body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "{{ x }} <b> \u00fc \U0001f600"},
    ]
    assert outcome.body["temperature"] == 0.5
    assert 99 in (outcome.body.get("max_tokens"), outcome.body.get("max_completion_tokens"))
    assert "tools" not in outcome.body
    assert case.server.headers[-1]["authorization"] == f"Bearer {KEY}"


@_check()
async def hints_are_not_sent(case: BackendCase) -> None:
    from evaluator.models.backend import Hints

    outcome = await case.ask(hints=Hints(task="secret-task", target="secret-target"))
    assert "secret" not in json.dumps(outcome.body)


@_check()
async def tools_and_their_results_are_sent_as_functions(case: BackendCase) -> None:
    call = ToolCall("call_1", "look_up", '{"word": "x"}')
    messages = (
        Message("user", "Look x up."),
        Message("assistant", "", (call,)),
        Message("tool", "a letter", tool_call_id="call_1"),
    )
    outcome = await case.ask(messages=messages, tools=(TOOL,))
    outcome.ok()
    assert outcome.body["tools"][0]["function"]["name"] == "look_up"
    assert outcome.body["tools"][0]["function"]["parameters"] == TOOL.parameters
    sent = outcome.body["messages"][1]["tool_calls"][0]
    assert sent["id"] == "call_1"
    assert sent["function"] == {"name": "look_up", "arguments": '{"word": "x"}'}
    assert outcome.body["messages"][2]["tool_call_id"] == "call_1"


# Answers.


@_check()
async def usage_is_what_the_provider_counted(case: BackendCase) -> None:
    for stream in (False, True):
        usage = (await case.ask(Answer(), stream=stream)).ok().usage
        assert (usage.input_tokens, usage.output_tokens) == (11, 7)
        assert (usage.cached_tokens, usage.reasoning_tokens) == (3, 2)


@_check()
async def missing_usage_is_unknown_and_not_zero(case: BackendCase) -> None:
    usage = (await case.ask(Answer(usage=None))).ok().usage
    assert (usage.input_tokens, usage.output_tokens, usage.cached_tokens) == (None, None, None)


@_check()
async def tool_calls_keep_their_arguments_as_text(case: BackendCase) -> None:
    calls = [("call_a", "look_up", '{"word": "ä"}'), ("call_b", "look_up", '{"word": "b"}')]
    answer = Answer(None, "tool_calls", calls)
    for stream in (False, True):
        response = (await case.ask(answer, stream=stream, tools=(TOOL,))).ok()
        assert response.finish_reason == "tool_calls"
        assert response.content == ""
        assert response.tool_calls == tuple(ToolCall(*call) for call in calls)


@_check()
async def broken_arguments_and_unknown_tools_pass_through(case: BackendCase) -> None:
    answer = Answer(None, "tool_calls", [("call_a", "no_such_tool", '{"word": ')])
    response = (await case.ask(answer, tools=(TOOL,))).ok()
    assert response.tool_calls == (ToolCall("call_a", "no_such_tool", '{"word": '),)


@_check()
async def finish_reasons_are_the_providers(case: BackendCase) -> None:
    for reason, expected in (
        ("stop", "stop"), ("length", "length"), ("content_filter", "content_filter"),
        (None, "unknown"), ("tired", "unknown"),
    ):  # fmt: skip
        for stream in (False, True):
            response = (await case.ask(Answer("x", reason), stream=stream)).ok()
            assert response.finish_reason == expected, f"{reason} became {response.finish_reason}"


@_check()
async def null_content_is_empty_text(case: BackendCase) -> None:
    response = (await case.ask(Answer(None, "stop"))).ok()
    assert (response.content, response.finish_reason) == ("", "stop")


@_check()
async def a_refusal_is_a_finish_reason(case: BackendCase) -> None:
    for stream in (False, True):
        response = (await case.ask(Answer(None, "stop", extra={"refusal": "I will not."}), stream=stream)).ok()
        assert (response.content, response.finish_reason) == ("I will not.", "refusal")


@_check()
async def reasoning_is_separate_from_the_content(case: BackendCase) -> None:
    for stream in (False, True):
        answer = Answer("42", extra={"reasoning_content": "six times seven"})
        response = (await case.ask(answer, stream=stream)).ok()
        assert (response.content, response.reasoning) == ("42", "six times seven")


@_check()
async def a_response_without_choices_is_malformed(case: BackendCase) -> None:
    error = (await case.ask(json_reply({"id": "x", "model": "m", "choices": []}))).failed("malformed_response")
    assert error.retryable
    assert error.maybe_billed


@_check()
async def an_answer_of_odd_shape_is_read(case: BackendCase) -> None:
    """Invalid counts are unknown; a content in parts is their text; an answer may come whole instead of streamed."""
    for usage in ({"prompt_tokens": "many"}, {"prompt_tokens": 1e300}, ["many"]):
        for stream in (False, True):
            response = (await case.ask(Answer("fine", usage=cast("Any", usage)), stream=stream)).ok()
            assert (response.content, response.usage.input_tokens, response.usage.output_tokens) == ("fine", None, None)
    parts = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "fi"}, {"type": "text", "text": "ne"}]
    whole = Answer(parts).reply(stream=False)
    streamed = stream_reply([chunk({"content": parts}), chunk({}, finish_reason="stop")])
    for reply, stream in ((whole, False), (streamed, True), (Answer("fine").reply(stream=False), True)):
        outcome = await case.ask(reply, stream=stream)
        assert outcome.ok().content == "fine"
        assert "".join(outcome.pieces) == ("fine" if stream else "")


@_check()
async def attachments_are_parts_before_the_text(case: BackendCase) -> None:
    image, paper = Attachment("image/png", b"\x89PNG", "a/b.png"), Attachment("application/pdf", b"%PDF-", "c.pdf")
    outcome = await case.ask(messages=(Message("user", "Read these.", attachments=(image, paper)),))
    outcome.ok()
    assert outcome.body["messages"][0]["content"] == [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw=="}},
        {"type": "file", "file": {"filename": "c.pdf", "file_data": "data:application/pdf;base64,JVBERi0="}},
        {"type": "text", "text": "Read these."},
    ]


@_check()
async def a_schema_is_a_response_format_strict_where_it_may_be(case: BackendCase) -> None:
    loose = {"type": "object", "properties": {"a": {"type": "integer"}}}
    strict = {**loose, "required": ["a"], "additionalProperties": False}
    for schema in (loose, strict):
        sent = (await case.ask(schema=schema)).body["response_format"]
        assert sent["type"] == "json_schema"
        assert sent["json_schema"]["schema"] == schema
        assert sent["json_schema"].get("strict", False) is (schema is strict)
    assert "response_format" not in (await case.ask()).body


# What went wrong.


@_check()
async def statuses_become_kinds(case: BackendCase) -> None:
    for status, kind, retryable in (
        (400, "bad_request", False), (401, "authentication", False), (403, "authentication", False),
        (404, "not_found", False), (422, "bad_request", False), (429, "rate_limit", True),
        (500, "server", True), (502, "server", True), (503, "server", True), (529, "server", True),
    ):  # fmt: skip
        error = (await case.ask(error_reply(status, "told you so"))).failed(kind)
        assert error.status == status, f"{status} became {error.status}"
        assert error.retryable is retryable, f"{status}: retryable is {error.retryable}"
        assert "told you so" in error.message


@_check()
async def an_error_ends_a_streamed_call_too(case: BackendCase) -> None:
    error = (await case.ask(error_reply(429), stream=True)).failed("rate_limit")
    assert error.retryable


@_check()
async def retry_after_is_read_in_seconds_and_as_a_date(case: BackendCase) -> None:
    error = (await case.ask(error_reply(429, headers={"Retry-After": "7"}))).failed("rate_limit")
    assert error.retry_after_s == 7.0
    date = formatdate(time.time() + 60, usegmt=True)
    error = (await case.ask(error_reply(429, headers={"Retry-After": date}))).failed("rate_limit")
    assert error.retry_after_s is not None
    assert 50 < error.retry_after_s <= 61
    assert (await case.ask(error_reply(429))).failed("rate_limit").retry_after_s is None


@_check()
async def a_prompt_that_is_too_long_has_a_kind_of_its_own(case: BackendCase) -> None:
    message = "This model's maximum context length is 8192 tokens."
    error = (await case.ask(error_reply(400, message, code="context_length_exceeded"))).failed("context_length")
    assert not error.retryable


@_check()
async def the_key_and_endless_messages_are_not_repeated(case: BackendCase) -> None:
    (await case.ask(error_reply(401, f"Incorrect API key: {KEY}. " + "x" * 100_000))).failed("authentication")
    assert KEY not in repr(case.backend)


@_check()
async def a_connection_that_breaks_is_retryable_and_maybe_billed(case: BackendCase) -> None:
    body = json.dumps({"choices": []}).encode()
    for reply in (
        HttpReply(silent=True, end="reset"),
        HttpReply((body[:5],), length=1000, end="reset"),
        HttpReply((body[:5],), length=1000, end="close"),
    ):
        error = (await case.ask(reply)).failed("connection")
        assert error.retryable
        assert error.maybe_billed


@_check()
async def a_redirect_is_not_followed(case: BackendCase) -> None:
    """Key and prompt go only to the named server; another name of the same server is another server."""
    for status in (301, 302, 303, 307, 308):
        for host in ("127.0.0.1", "localhost"):
            for stream in (False, True):
                with LoopbackServer() as other:
                    target = f"http://{host}:{other.port}/v1/chat/completions"
                    outcome = await case.ask(json_reply({}, status=status, headers={"Location": target}), stream=stream)
                    assert not other.paths, f"{status}: the request went on to {target}"
                assert target in outcome.failed("other").message
                assert not outcome.failed("other").retryable


@_check()
async def an_error_in_place_of_an_answer_is_an_error(case: BackendCase) -> None:
    for stream in (False, True):
        reply = json_reply({"error": {"message": "overloaded", "code": 500}})
        assert "overloaded" in (await case.ask(reply, stream=stream)).failed("server").message


@_check()
async def a_call_to_a_server_that_does_not_exist_is_not_billed(case: BackendCase) -> None:
    case.server.stop()
    error = (await case.ask()).failed("connection")
    assert error.retryable
    assert not error.maybe_billed


@_check()
async def cut_json_is_malformed(case: BackendCase) -> None:
    for body in (b'{"choices": [{"mess', b"", b'{"choices": "\xff\xfe"}'):
        error = (await case.ask(HttpReply((body,)))).failed("malformed_response")
        assert error.maybe_billed


@_check()
async def two_hundred_megabytes_are_not_read(case: BackendCase) -> None:
    """Counted at the server, which sends at most what is read and what the network buffers."""
    await case.ask()
    for reply, stream in (
        (HttpReply((b" " * 65536,), length=200_000_000, repeat=True), False),
        (HttpReply((b" " * 65536,), length=-1, repeat=True), False),
        (HttpReply((event(chunk({"content": "la " * 9999})),), content_type="text/event-stream", repeat=True), True),
        (HttpReply((b"x" * 65536,), status=500, length=200_000_000, repeat=True), False),
    ):
        before = case.server.sent_bytes
        error = (await case.ask(reply, stream=stream, timeout_s=60.0)).failed("malformed_response", "server")
        assert error.kind == ("server" if reply.status == 500 else "malformed_response"), error.kind
        sent = case.server.sent_bytes - before
        assert sent < 50_000_000, f"{sent:,} bytes were read"


@_check()
async def a_web_page_is_not_an_answer(case: BackendCase) -> None:
    page = HttpReply((b"<!DOCTYPE html><p>Welcome",), content_type="text/html")
    for stream in (False, True):
        error = (await case.ask(page, stream=stream)).failed("malformed_response")
        assert "base URL" in error.message
        assert not error.retryable


@_check()
async def a_call_ends_in_time_whatever_the_server_does(case: BackendCase) -> None:
    await case.ask()
    for reply in (
        HttpReply(silent=True, end="hang"),
        HttpReply((), length=1000, end="hang"),
        HttpReply((b" ",), pause_s=0.02, repeat=True),
    ):
        error = (await case.ask(reply, timeout_s=0.3)).failed("timeout")
        assert error.retryable
        assert error.maybe_billed


@_check()
async def cancellation_passes_through(case: BackendCase) -> None:
    case.server.enqueue(HttpReply(silent=True, end="hang"))
    call = asyncio.create_task(case.backend.complete(a_request(model=case.model)))
    assert await asyncio.to_thread(case.server.asked.wait, 10), "the server received no request"
    call.cancel()
    try:
        await call
    except asyncio.CancelledError:
        return
    raise AssertionError("the call survived its cancellation")


# Streams that go wrong.


@_check()
async def a_stream_that_ends_early_is_not_an_answer(case: BackendCase) -> None:
    for end in ("complete", "close", "reset"):
        cut = stream_reply([chunk({"content": "half an "})], done=False, end=end)
        error = (await case.ask(cut, stream=True)).failed("malformed_response", "connection")
        assert error.partial == "half an "
        assert error.retryable
        assert error.maybe_billed


@_check()
async def a_stream_that_hangs_or_never_ends_is_bounded(case: BackendCase) -> None:
    await case.ask()
    hanging = stream_reply([chunk({"content": "half an "})], done=False, end="hang")
    endless = HttpReply(
        (event(chunk({"content": "la "})),), content_type="text/event-stream", pause_s=0.005, repeat=True
    )
    for reply in (hanging, endless):
        for timeout_s in (0.3, 1.0, 3.0, 10.0):  # On a busy machine the first chunk takes longer.
            error = (await case.ask(reply, stream=True, timeout_s=timeout_s)).failed("timeout")
            if error.partial:
                break
        else:
            raise AssertionError("the partial answer is lost")


@_check()
async def an_error_inside_a_stream_keeps_what_came_before(case: BackendCase) -> None:
    reply = stream_reply([chunk({"content": "half "}), {"error": {"message": "boom", "code": 500}}])
    error = (await case.ask(reply, stream=True)).failed("server", "other")
    assert error.partial == "half "
    assert "boom" in error.message


@_check()
async def an_invalid_event_in_a_stream_is_malformed(case: BackendCase) -> None:
    for invalid in (b"data: {oops\n\n", b'data: {"choices": "\xff"}\n\n'):
        pieces = (event(chunk({"content": "half "})), invalid, b"data: [DONE]\n\n")
        reply = HttpReply(pieces, content_type="text/event-stream")
        error = (await case.ask(reply, stream=True)).failed("malformed_response")
        assert error.partial == "half "


@_check()
async def events_may_be_cut_anywhere(case: BackendCase) -> None:
    reply = Answer("naïve 😀 text").reply(stream=True)
    whole = b": hello\r\n\r\n" + b"".join(reply.pieces).replace(b"\n", b"\r\n")
    torn = HttpReply(tuple(whole[at : at + 7] for at in range(0, len(whole), 7)), content_type="text/event-stream")
    response = (await case.ask(torn, stream=True)).ok()
    assert (response.content, response.finish_reason) == ("naïve 😀 text", "stop")


@_check()
async def late_and_repeated_chunks_do_no_harm(case: BackendCase) -> None:
    opening = {"tool_calls": [{"index": 0, "id": "call_a", "function": {"name": "look_up", "arguments": ""}}]}
    rest = {"tool_calls": [{"index": 0, "function": {"arguments": '{"word": "a"}'}}]}
    end = chunk({}, finish_reason="tool_calls")
    chunks = [chunk({"role": "assistant"}), chunk(opening), chunk(opening), chunk(rest), end, end]
    response = (await case.ask(stream_reply(chunks), stream=True, tools=(TOOL,))).ok()
    assert response.tool_calls == (ToolCall("call_a", "look_up", '{"word": "a"}'),)
    assert response.finish_reason == "tool_calls"


@_check()
async def chunks_out_of_order_are_put_in_order_where_that_is_possible(case: BackendCase) -> None:
    """Usage first, the finish reason before the last text, the second call before the first, a call in turns."""

    def part(index: int, arguments: str, **opening: str) -> dict[str, Any]:
        function = {"arguments": arguments, **({"name": "look_up"} if opening else {})}
        return chunk({"tool_calls": [{"index": index, **opening, "function": function}]})

    usage = {**chunk({}), "choices": [], "usage": {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}}
    texts = [chunk({"content": "all "}), chunk({}, finish_reason="stop"), chunk({"content": "of it"})]
    response = (await case.ask(stream_reply([chunk({"role": "assistant"}), *texts, usage]), stream=True)).ok()
    assert response.content.startswith("all ")
    assert response.finish_reason == "stop"
    calls = [part(1, "[", id="b"), part(0, "{", id="a"), part(1, "]"), part(0, "}")]
    end = chunk({}, finish_reason="tool_calls")
    reply = stream_reply([chunk({"role": "assistant"}), *calls, end])
    response = (await case.ask(reply, stream=True, tools=(TOOL,))).ok()
    assert response.tool_calls == (ToolCall("a", "look_up", "{}"), ToolCall("b", "look_up", "[]"))


CHECKS: tuple[Check, ...] = tuple(_CHECKS)


async def check_backend(factory: Factory, *, wire: bool = True, model: str = MODEL) -> None:
    """Runs every check; with `wire=False` only those that need no server.

    Raises: AssertionError, which lists every check that failed.
    """
    failures: list[str] = []
    for check in CHECKS:
        if check.wire and not wire:
            continue
        try:
            await check.run(factory, model=model)
        except AssertionError as exc:
            failures.append(f"{check.name}: {exc}")
    if failures:
        raise AssertionError("\n".join(failures))
