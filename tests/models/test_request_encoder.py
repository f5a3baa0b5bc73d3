"""`RequestEncoder`: the JSON of a request whose fixed fields were encoded before."""

from __future__ import annotations

import json
import math
import pickle
from dataclasses import fields, replace
from typing import Any

import pytest

from evaluator import ProviderError
from evaluator.models.backend import Message, ModelRequest, ToolCall, ToolSpec
from evaluator.models.chat_wire import request_body
from evaluator.models.request_encoder import RequestEncoder
from evaluator.nodes.sampling import SAMPLING

PLAIN = ModelRequest("m", (Message("system", "Be short."), Message("user", "Grüße \U0001f600")))
SCHEMA = {"type": "object", "properties": {"a": {"enum": [None, 1]}}}
CHANGES: dict[str, list[Any]] = {
    "model": ["other"],
    "messages": [(Message("user", "other"),), (Message("user", "\ud800"),)],
    "tools": [(ToolSpec("t", "d", parameters=SCHEMA),), (ToolSpec("u", "d", parameters={}),)],
    "max_output_tokens": [7, 8],
    "temperature": [0.0, 0.5],
    "seed": [0, 2**70],
    "schema": [SCHEMA, {}],
    "top_p": [0.25, 0.75],
    "top_k": [3, 4],
    "stop": [("a", "b"), ("a",)],
    "logprobs": [0, 2],
    "extra_body": [{"min_p": 0.1}, {"min_p": None, "messages": 1, "tools": 2, "model": "x"}],
}
# What is not in the body of a chat.
NOT_SENT = {"timeout_s", "hints", "cache_marks", "call_mark", "echo"}


def test_each_change_of_a_request_is_in_its_json() -> None:
    encoder = RequestEncoder("max_tokens")
    assert CHANGES.keys() | NOT_SENT == {field.name for field in fields(ModelRequest)}
    for name, values in CHANGES.items():
        requests = [PLAIN, *(replace(PLAIN, **{name: value}) for value in values), PLAIN]
        for request in requests * 2:
            expected = json.loads(json.dumps(request_body(request)))
            assert json.loads(encoder.encode(request, stream=False)) == expected, name
    streamed = {"stream": True, "stream_options": {"include_usage": True}}
    for stream, more in ((True, streamed), (False, {})):
        sent = json.loads(encoder.encode(PLAIN, stream=stream))
        assert sent == request_body(PLAIN) | more


def test_the_last_fields_of_a_request_are_those_that_a_session_prepares() -> None:
    names = [field.name for field in fields(ModelRequest)]
    assert names[-len(SAMPLING) :] == list(SAMPLING)


def test_numbers_that_are_equal_are_sent_as_they_are() -> None:
    encoder = RequestEncoder("max_tokens")
    for number, text in ((1, b"1"), (1.0, b"1.0"), (True, b"true"), (0, b"0"), (0.0, b"0.0")) * 2:
        for name in ("temperature", "top_p", "top_k", "seed", "max_output_tokens"):
            field = name.replace("output_", "").encode()
            sent = encoder.encode(replace(PLAIN, **{name: number}), stream=False)
            assert b'"%b":%b,' % (field, text) in sent


def test_many_tools_and_copies_of_an_encoder_are_no_confusion() -> None:
    encoder = RequestEncoder("max_tokens")
    for number in range(200):
        tools = (ToolSpec(f"t{number}", "d", parameters={}),)
        sent = json.loads(encoder.encode(replace(PLAIN, tools=tools), stream=False))
        assert sent["tools"][0]["function"]["name"] == f"t{number}"
        del tools
    copy = pickle.loads(pickle.dumps(encoder))
    assert copy.encode(PLAIN, stream=False) == encoder.encode(PLAIN, stream=False)


def test_a_number_that_json_lacks_is_an_error_each_time() -> None:
    encoder = RequestEncoder("max_tokens")
    thinking = ({"signature": "s", "score": math.inf},)
    for request in (
        replace(PLAIN, temperature=math.nan),
        replace(PLAIN, tools=(ToolSpec("t", "d", parameters={"maximum": math.inf}),)),
        replace(PLAIN, messages=(Message("assistant", "a", thinking=thinking),)),
        replace(PLAIN, temperature=[0.5]),  # pyright: ignore[reportArgumentType]
    ):
        for _ in range(2):
            with pytest.raises(ProviderError, match="the request is not JSON"):
                encoder.encode(request, stream=False)


def test_an_empty_answer_with_tool_calls_is_null() -> None:
    call = Message("assistant", "", tool_calls=(ToolCall("c", "t", arguments="{}"),))
    request = replace(PLAIN, messages=(*PLAIN.messages, call))
    sent = json.loads(RequestEncoder("max_tokens").encode(request, stream=False))
    assert sent["messages"] == request_body(request)["messages"]
    assert sent["messages"][-1]["content"] is None
