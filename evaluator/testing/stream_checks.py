"""Checks of backends: streams that are cut, invalid or out of order."""

from __future__ import annotations

from typing import Any

from evaluator.models.backend import ToolCall
from evaluator.testing.backend_case import TOOL, BackendCase, Checks
from evaluator.testing.loopback import (
    Answer,
    HttpReply,
    chunk,
    event,
    stream_reply,
)

CHECKS = Checks()


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
