"""Checks of backends: what is sent, and how answers are read."""

from __future__ import annotations

import asyncio
import json
import pickle
from typing import Any, cast

from evaluator.batch.engines.host import pack
from evaluator.errors import UsageError
from evaluator.models.attachments import Attachment
from evaluator.models.backend import Backend, Hints, Message, ToolCall
from evaluator.models.structured import is_refusal
from evaluator.testing.backend_case import KEY, TOOL, BackendCase, Checks, a_request
from evaluator.testing.loopback import Answer, chunk, json_reply, stream_reply

CHECKS = Checks()


# Any backend.


@CHECKS.add(wire=False)
async def it_is_a_backend_with_a_name(case: BackendCase) -> None:
    assert isinstance(case.backend, Backend)
    assert case.backend.name


@CHECKS.add(wire=False)
async def a_response_is_whole_and_counts_as_one_turn(case: BackendCase) -> None:
    response = (await case.ask()).ok()
    assert response.content
    assert response.finish_reason == "stop"
    assert response.usage.turns == 1
    assert response.model


@CHECKS.add(wire=False)
async def streamed_pieces_add_up_to_the_content(case: BackendCase) -> None:
    outcome = await case.ask(stream=True)
    assert outcome.pieces
    assert "".join(outcome.pieces) == outcome.ok().content


@CHECKS.add(wire=False)
async def streaming_does_not_change_the_response(case: BackendCase) -> None:
    whole = await case.ask()
    streamed = await case.ask(stream=True)
    assert whole.ok() == streamed.ok()


@CHECKS.add(wire=False)
async def calls_may_run_side_by_side(case: BackendCase) -> None:
    outcomes = await asyncio.gather(*(case.ask() for _ in range(20)))
    assert all(outcome.response is not None for outcome in outcomes)


@CHECKS.add(wire=False)
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


@CHECKS.add(wire=False)
async def closing_twice_is_harmless(case: BackendCase) -> None:
    await case.ask()
    await case.backend.aclose()
    await case.backend.aclose()


@CHECKS.add(wire=False)
async def a_pickled_copy_answers(case: BackendCase) -> None:
    """Worker processes receive copies."""
    await case.ask()
    try:
        copy = pickle.loads(pack(case.backend, "the backend"))
    except UsageError as exc:
        raise AssertionError(f"{exc}; leave out sessions in __getstate__") from exc
    try:
        (await BackendCase(copy, case.server, model=case.model).ask()).ok()
    finally:
        await copy.aclose()


@CHECKS.add(wire=False)
async def a_schema_is_taken_or_its_refusal_is_recognised(case: BackendCase) -> None:
    error = (await case.ask(schema={"type": "object"})).error
    assert error is None or is_refusal(error), (
        f"{error!r}: only a bad_request that says 'JSON schema' is repeated without it, see "
        "models/structured.py"
    )


# Requests.


@CHECKS.add()
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


@CHECKS.add()
async def hints_are_not_sent(case: BackendCase) -> None:
    outcome = await case.ask(hints=Hints(task="secret-task", target="secret-target"))
    assert "secret" not in json.dumps(outcome.body)


@CHECKS.add()
async def tools_and_their_results_are_sent_as_functions(case: BackendCase) -> None:
    call = ToolCall("call_1", "look_up", arguments='{"word": "x"}')
    messages = (
        Message("user", "Look x up."),
        Message("assistant", "", tool_calls=(call,)),
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


@CHECKS.add()
async def usage_is_what_the_provider_counted(case: BackendCase) -> None:
    for stream in (False, True):
        usage = (await case.ask(Answer(), stream=stream)).ok().usage
        assert (usage.input_tokens, usage.output_tokens) == (11, 7)
        assert (usage.cached_tokens, usage.reasoning_tokens) == (3, 2)


@CHECKS.add()
async def missing_usage_is_unknown_and_not_zero(case: BackendCase) -> None:
    usage = (await case.ask(Answer(usage=None))).ok().usage
    assert (usage.input_tokens, usage.output_tokens, usage.cached_tokens) == (None, None, None)


@CHECKS.add()
async def tool_calls_keep_their_arguments_as_text(case: BackendCase) -> None:
    calls = [("call_a", "look_up", '{"word": "ä"}'), ("call_b", "look_up", '{"word": "b"}')]
    answer = Answer(None, "tool_calls", tool_calls=calls)
    for stream in (False, True):
        response = (await case.ask(answer, stream=stream, tools=(TOOL,))).ok()
        assert response.finish_reason == "tool_calls"
        assert response.content == ""
        assert response.tool_calls == tuple(ToolCall(*call) for call in calls)


@CHECKS.add()
async def broken_arguments_and_unknown_tools_pass_through(case: BackendCase) -> None:
    answer = Answer(None, "tool_calls", tool_calls=[("call_a", "no_such_tool", '{"word": ')])
    response = (await case.ask(answer, tools=(TOOL,))).ok()
    assert response.tool_calls == (ToolCall("call_a", "no_such_tool", arguments='{"word": '),)


@CHECKS.add()
async def finish_reasons_are_the_providers(case: BackendCase) -> None:
    for reason, expected in (
        ("stop", "stop"),
        ("length", "length"),
        ("content_filter", "content_filter"),
        (None, "unknown"),
        ("tired", "unknown"),
    ):
        for stream in (False, True):
            response = (await case.ask(Answer("x", reason), stream=stream)).ok()
            assert response.finish_reason == expected, f"{reason} became {response.finish_reason}"


@CHECKS.add()
async def null_content_is_empty_text(case: BackendCase) -> None:
    response = (await case.ask(Answer(None, "stop"))).ok()
    assert (response.content, response.finish_reason) == ("", "stop")


@CHECKS.add()
async def a_refusal_is_a_finish_reason(case: BackendCase) -> None:
    for stream in (False, True):
        response = (
            await case.ask(Answer(None, "stop", extra={"refusal": "I will not."}), stream=stream)
        ).ok()
        assert (response.content, response.finish_reason) == ("I will not.", "refusal")


@CHECKS.add()
async def reasoning_is_separate_from_the_content(case: BackendCase) -> None:
    for stream in (False, True):
        answer = Answer("42", extra={"reasoning_content": "six times seven"})
        response = (await case.ask(answer, stream=stream)).ok()
        assert (response.content, response.reasoning) == ("42", "six times seven")


@CHECKS.add()
async def a_response_without_choices_is_malformed(case: BackendCase) -> None:
    error = (await case.ask(json_reply({"id": "x", "model": "m", "choices": []}))).failed(
        "malformed_response"
    )
    assert error.retryable
    assert error.maybe_billed


@CHECKS.add()
async def an_answer_of_odd_shape_is_read(case: BackendCase) -> None:
    """Invalid counts are unknown; a content in parts is their text; an answer may come whole
    instead of streamed.
    """
    for usage in ({"prompt_tokens": "many"}, {"prompt_tokens": 1e300}, ["many"]):
        for stream in (False, True):
            response = (
                await case.ask(Answer("fine", usage=cast("Any", usage)), stream=stream)
            ).ok()
            assert (
                response.content,
                response.usage.input_tokens,
                response.usage.output_tokens,
            ) == ("fine", None, None)
    parts = [
        {"type": "thinking", "thinking": "hm"},
        {"type": "text", "text": "fi"},
        {"type": "text", "text": "ne"},
    ]
    whole = Answer(parts).reply(stream=False)
    streamed = stream_reply([chunk({"content": parts}), chunk({}, finish_reason="stop")])
    for reply, stream in (
        (whole, False),
        (streamed, True),
        (Answer("fine").reply(stream=False), True),
    ):
        outcome = await case.ask(reply, stream=stream)
        assert outcome.ok().content == "fine"
        assert "".join(outcome.pieces) == ("fine" if stream else "")


@CHECKS.add()
async def attachments_are_parts_before_the_text(case: BackendCase) -> None:
    image = Attachment("image/png", b"\x89PNG", source="a/b.png")
    paper = Attachment("application/pdf", b"%PDF-", source="c.pdf")
    outcome = await case.ask(messages=(Message("user", "Read these.", attachments=(image, paper)),))
    outcome.ok()
    assert outcome.body["messages"][0]["content"] == [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw=="}},
        {
            "type": "file",
            "file": {"filename": "c.pdf", "file_data": "data:application/pdf;base64,JVBERi0="},
        },
        {"type": "text", "text": "Read these."},
    ]


@CHECKS.add()
async def a_schema_is_a_response_format_strict_where_it_may_be(case: BackendCase) -> None:
    loose = {"type": "object", "properties": {"a": {"type": "integer"}}}
    strict = {**loose, "required": ["a"], "additionalProperties": False}
    for schema in (loose, strict):
        sent = (await case.ask(schema=schema)).body["response_format"]
        assert sent["type"] == "json_schema"
        assert sent["json_schema"]["schema"] == schema
        assert sent["json_schema"].get("strict", False) is (schema is strict)
    assert "response_format" not in (await case.ask()).body
