"""Requests and answers in the wire forms of providers, and what they cost."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

START = 1_790_000_000
PRICES = {
    "gpt-4o-mini": (1.5e-7, 6e-7),
    "gpt-4.1-mini": (4e-7, 1.6e-6),
    "claude-haiku-4-5": (1e-6, 5e-6),
    "gemini-2.5-flash": (3e-7, 2.5e-6),
    "mistral-small": (1e-7, 3e-7),
}
"""Dollars for a token in and out; a batch pays half."""
SIGNATURE = "signature of a call"


def reply_to(body: Mapping[str, Any], answer: Callable[[str], str]) -> dict[str, Any]:
    """The answer to a request: the call of its first tool, or the text that `answer` makes of the
    last prompt.
    """
    prompt = last_prompt(body)
    tools = body.get("tools")
    asks_tool = bool(tools) and not _has_tool_answer(body)
    tokens = len(json.dumps(body.get("messages") or body["contents"])) // 4
    if "contents" in body:
        part: dict[str, Any] = {"text": answer(prompt)}
        if asks_tool:
            name = tools[0]["functionDeclarations"][0]["name"]
            part = {"functionCall": {"name": name, "args": {}}, "thoughtSignature": SIGNATURE}
        content = {"role": "model", "parts": [part]}
        usage = {"promptTokenCount": tokens, "candidatesTokenCount": 1, "thoughtsTokenCount": 2}
        return {
            "candidates": [{"content": content, "finishReason": "STOP", "index": 0}],
            "usageMetadata": usage,
            "modelVersion": body["model"],
        }
    if "max_completion_tokens" in body or not _is_anthropic(body):
        message: dict[str, Any] = {"role": "assistant", "content": answer(prompt)}
        if asks_tool:
            function = {"name": tools[0]["function"]["name"], "arguments": "{}"}
            call = {"id": "call_1", "type": "function", "function": function}
            message = {"role": "assistant", "content": None, "tool_calls": [call]}
        reason = "tool_calls" if asks_tool else "stop"
        choice = {"index": 0, "message": message, "finish_reason": reason, "logprobs": None}
        usage = {"prompt_tokens": tokens, "completion_tokens": 3, "total_tokens": tokens + 3}
        head = {"id": "chatcmpl-1", "object": "chat.completion", "created": START}
        return {**head, "model": body["model"], "choices": [choice], "usage": usage}
    content: list[dict[str, Any]] = [{"type": "text", "text": answer(prompt)}]
    if asks_tool:
        content = [{"type": "tool_use", "id": "call_1", "name": tools[0]["name"], "input": {}}]
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": body["model"],
        "content": content,
        "stop_reason": "tool_use" if asks_tool else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": tokens, "output_tokens": 3},
    }


def _is_anthropic(body: Mapping[str, Any]) -> bool:
    return str(body["model"]).startswith("claude")


def _has_tool_answer(body: Mapping[str, Any]) -> bool:
    text = json.dumps(body)
    return any(name in text for name in ('"tool_call_id"', '"tool_result"', '"functionResponse"'))


def last_prompt(body: Mapping[str, Any]) -> str:
    if "contents" in body:
        return "".join(part.get("text", "") for part in body["contents"][-1]["parts"])
    content = body["messages"][-1]["content"]
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text", "")) for part in content)


def price_of(body: Mapping[str, Any], answer: Mapping[str, Any]) -> float:
    """The interactive price of an answer, in dollars."""
    price_in, price_out = PRICES.get(str(body["model"]), (0.0, 0.0))
    usage = answer.get("usage") or answer["usageMetadata"]
    sent = usage.get("prompt_tokens", usage.get("input_tokens", usage.get("promptTokenCount")))
    # All answers have three tokens.
    made = 3
    return sent * price_in + made * price_out
