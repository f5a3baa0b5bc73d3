"""Checks of backends: statuses, broken connections, redirects, answers without an end, and streams
that are cut, invalid or out of order.
"""

from __future__ import annotations

import asyncio
import json
from email.utils import formatdate
from typing import Any

from evaluator import clock
from evaluator.models.backend import ToolCall
from evaluator.testing.backend_case import KEY, TOOL, BackendCase, Checks, a_request
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

CHECKS = Checks()


@CHECKS.add()
async def statuses_become_kinds(case: BackendCase) -> None:
    for status, kind, retryable in (
        (400, "bad_request", False),
        (401, "authentication", False),
        (403, "authentication", False),
        (404, "not_found", False),
        (422, "bad_request", False),
        (429, "rate_limit", True),
        (500, "server", True),
        (502, "server", True),
        (503, "server", True),
        (529, "server", True),
    ):
        error = (await case.ask(error_reply(status, "told you so"))).failed(kind)
        assert error.status == status, f"{status} became {error.status}"
        assert error.retryable is retryable, f"{status}: retryable is {error.retryable}"
        assert "told you so" in error.message


@CHECKS.add()
async def an_error_ends_a_streamed_call_too(case: BackendCase) -> None:
    error = (await case.ask(error_reply(429), stream=True)).failed("rate_limit")
    assert error.retryable


@CHECKS.add()
async def retry_after_is_read_in_seconds_and_as_a_date(case: BackendCase) -> None:
    error = (await case.ask(error_reply(429, headers={"Retry-After": "7"}))).failed("rate_limit")
    assert error.retry_after_s == 7.0
    date = formatdate(clock.wall() + 60, usegmt=True)
    error = (await case.ask(error_reply(429, headers={"Retry-After": date}))).failed("rate_limit")
    assert error.retry_after_s is not None
    assert 50 < error.retry_after_s <= 61
    assert (await case.ask(error_reply(429))).failed("rate_limit").retry_after_s is None


@CHECKS.add()
async def a_prompt_that_is_too_long_has_a_kind_of_its_own(case: BackendCase) -> None:
    message = "This model's maximum context length is 8192 tokens."
    error = (await case.ask(error_reply(400, message, code="context_length_exceeded"))).failed(
        "context_length"
    )
    assert not error.retryable


@CHECKS.add()
async def the_key_and_endless_messages_are_not_repeated(case: BackendCase) -> None:
    (await case.ask(error_reply(401, f"Incorrect API key: {KEY}. " + "x" * 100_000))).failed(
        "authentication"
    )
    assert KEY not in repr(case.backend)


@CHECKS.add()
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


@CHECKS.add()
async def a_redirect_is_not_followed(case: BackendCase) -> None:
    """Key and prompt go only to the named server; another name of the same server is another
    server.
    """
    for status in (301, 302, 303, 307, 308):
        for host in ("127.0.0.1", "localhost"):
            for stream in (False, True):
                with LoopbackServer() as other:
                    target = f"http://{host}:{other.port}/v1/chat/completions"
                    outcome = await case.ask(
                        json_reply({}, status=status, headers={"Location": target}), stream=stream
                    )
                    assert not other.paths, f"{status}: the request went on to {target}"
                assert target in outcome.failed("other").message
                assert not outcome.failed("other").retryable


@CHECKS.add()
async def an_error_in_place_of_an_answer_is_an_error(case: BackendCase) -> None:
    for stream in (False, True):
        reply = json_reply({"error": {"message": "overloaded", "code": 500}})
        assert "overloaded" in (await case.ask(reply, stream=stream)).failed("server").message


@CHECKS.add()
async def a_call_to_a_server_that_does_not_exist_is_not_billed(case: BackendCase) -> None:
    case.server.stop()
    error = (await case.ask()).failed("connection")
    assert error.retryable
    assert not error.maybe_billed


@CHECKS.add()
async def cut_json_is_malformed(case: BackendCase) -> None:
    for body in (b'{"choices": [{"mess', b"", b'{"choices": "\xff\xfe"}'):
        error = (await case.ask(HttpReply((body,)))).failed("malformed_response")
        assert error.maybe_billed


@CHECKS.add()
async def two_hundred_megabytes_are_not_read(case: BackendCase) -> None:
    """Counted at the server, which sends at most what is read and what the network buffers."""
    await case.ask()
    for reply, stream in (
        (HttpReply((b" " * 65536,), length=200_000_000, repeat=True), False),
        (HttpReply((b" " * 65536,), length=-1, repeat=True), False),
        (
            HttpReply(
                (event(chunk({"content": "la " * 9999})),),
                content_type="text/event-stream",
                repeat=True,
            ),
            True,
        ),
        (HttpReply((b"x" * 65536,), status=500, length=200_000_000, repeat=True), False),
    ):
        before = case.server.sent_bytes
        error = (await case.ask(reply, stream=stream, timeout_s=60.0)).failed(
            "malformed_response", "server"
        )
        assert error.kind == ("server" if reply.status == 500 else "malformed_response"), error.kind
        sent = case.server.sent_bytes - before
        assert sent < 50_000_000, f"{sent:,} bytes were read"


@CHECKS.add()
async def a_web_page_is_not_an_answer(case: BackendCase) -> None:
    page = HttpReply((b"<!DOCTYPE html><p>Welcome",), content_type="text/html")
    for stream in (False, True):
        error = (await case.ask(page, stream=stream)).failed("malformed_response")
        assert "base URL" in error.message
        assert not error.retryable


@CHECKS.add()
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


@CHECKS.add()
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


# Streams


@CHECKS.add()
async def a_stream_that_ends_early_is_not_an_answer(case: BackendCase) -> None:
    for end in ("complete", "close", "reset"):
        cut = stream_reply([chunk({"content": "half an "})], done=False, end=end)
        error = (await case.ask(cut, stream=True)).failed("malformed_response", "connection")
        assert error.partial == "half an "
        assert error.retryable
        assert error.maybe_billed


@CHECKS.add()
async def a_stream_that_hangs_or_never_ends_is_bounded(case: BackendCase) -> None:
    await case.ask()
    hanging = stream_reply([chunk({"content": "half an "})], done=False, end="hang")
    endless = HttpReply(
        (event(chunk({"content": "la "})),),
        content_type="text/event-stream",
        pause_s=0.005,
        repeat=True,
    )
    for reply in (hanging, endless):
        for timeout_s in (0.3, 1.0, 3.0, 10.0):  # On a busy machine the first chunk takes longer.
            error = (await case.ask(reply, stream=True, timeout_s=timeout_s)).failed("timeout")
            if error.partial:
                break
        else:
            raise AssertionError("the partial answer is lost")


@CHECKS.add()
async def an_error_inside_a_stream_keeps_what_came_before(case: BackendCase) -> None:
    reply = stream_reply([chunk({"content": "half "}), {"error": {"message": "boom", "code": 500}}])
    error = (await case.ask(reply, stream=True)).failed("server", "other")
    assert error.partial == "half "
    assert "boom" in error.message


@CHECKS.add()
async def an_invalid_event_in_a_stream_is_malformed(case: BackendCase) -> None:
    for invalid in (b"data: {oops\n\n", b'data: {"choices": "\xff"}\n\n'):
        pieces = (event(chunk({"content": "half "})), invalid, b"data: [DONE]\n\n")
        reply = HttpReply(pieces, content_type="text/event-stream")
        error = (await case.ask(reply, stream=True)).failed("malformed_response")
        assert error.partial == "half "


@CHECKS.add()
async def events_may_be_cut_anywhere(case: BackendCase) -> None:
    reply = Answer("naïve 😀 text").reply(stream=True)
    whole = b": hello\r\n\r\n" + b"".join(reply.pieces).replace(b"\n", b"\r\n")
    torn = HttpReply(
        tuple(whole[at : at + 7] for at in range(0, len(whole), 7)),
        content_type="text/event-stream",
    )
    response = (await case.ask(torn, stream=True)).ok()
    assert (response.content, response.finish_reason) == ("naïve 😀 text", "stop")


@CHECKS.add()
async def late_and_repeated_chunks_do_no_harm(case: BackendCase) -> None:
    opening = {
        "tool_calls": [
            {"index": 0, "id": "call_a", "function": {"name": "look_up", "arguments": ""}}
        ]
    }
    rest = {"tool_calls": [{"index": 0, "function": {"arguments": '{"word": "a"}'}}]}
    end = chunk({}, finish_reason="tool_calls")
    chunks = [chunk({"role": "assistant"}), chunk(opening), chunk(opening), chunk(rest), end, end]
    response = (await case.ask(stream_reply(chunks), stream=True, tools=(TOOL,))).ok()
    assert response.tool_calls == (ToolCall("call_a", "look_up", arguments='{"word": "a"}'),)
    assert response.finish_reason == "tool_calls"


@CHECKS.add()
async def chunks_out_of_order_are_put_in_order_where_that_is_possible(case: BackendCase) -> None:
    """Usage first, the finish reason before the last text, the second call before the first, a call
    in turns.
    """

    def part(index: int, arguments: str, **opening: str) -> dict[str, Any]:
        function = {"arguments": arguments, **({"name": "look_up"} if opening else {})}
        return chunk({"tool_calls": [{"index": index, **opening, "function": function}]})

    usage = {
        **chunk({}),
        "choices": [],
        "usage": {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18},
    }
    texts = [
        chunk({"content": "all "}),
        chunk({}, finish_reason="stop"),
        chunk({"content": "of it"}),
    ]
    response = (
        await case.ask(stream_reply([chunk({"role": "assistant"}), *texts, usage]), stream=True)
    ).ok()
    assert response.content.startswith("all ")
    assert response.finish_reason == "stop"
    calls = [part(1, "[", id="b"), part(0, "{", id="a"), part(1, "]"), part(0, "}")]
    end = chunk({}, finish_reason="tool_calls")
    reply = stream_reply([chunk({"role": "assistant"}), *calls, end])
    response = (await case.ask(reply, stream=True, tools=(TOOL,))).ok()
    assert response.tool_calls == (
        ToolCall("a", "look_up", arguments="{}"),
        ToolCall("b", "look_up", arguments="[]"),
    )
