"""A model's response as a record and a cache keep it: JSON, without what is the usual."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evaluator.handler.backend import FinishReason, ModelResponse, ToolCall
from evaluator.results import Usage


def response_to_dict(response: ModelResponse) -> dict[str, Any]:
    """The recorded form of a response, without its usage; `response_from_dict` reads it back."""
    data: dict[str, Any] = {"content": response.content}
    if response.finish_reason != _usual_reason(response.tool_calls):
        data["finish_reason"] = response.finish_reason
    if response.tool_calls:
        data["tool_calls"] = [call.to_dict() for call in response.tool_calls]
    if response.reasoning is not None:
        data["reasoning"] = response.reasoning
    if response.model is not None:
        data["model"] = response.model
    if response.thinking:
        data["thinking"] = [dict(block) for block in response.thinking]
    if response.cache_write_tokens is not None:
        data["cache_write_tokens"] = response.cache_write_tokens
    if response.warnings:
        data["warnings"] = list(response.warnings)
    return data


def _usual_reason(calls: object) -> FinishReason:
    return "tool_calls" if calls else "stop"


def response_from_dict(data: Mapping[str, Any], usage: Mapping[str, Any] | None) -> ModelResponse:
    return ModelResponse(
        content=data["content"],
        finish_reason=data.get("finish_reason") or _usual_reason(data.get("tool_calls")),
        tool_calls=tuple(ToolCall(c["id"], c["name"], c["arguments"]) for c in data.get("tool_calls", ())),
        reasoning=data.get("reasoning"),
        usage=Usage(None, None, None, None, None, 1) if usage is None else Usage.from_dict(usage),
        model=data.get("model"),
        thinking=tuple(data.get("thinking", ())),
        cache_write_tokens=data.get("cache_write_tokens"),
        warnings=tuple(data.get("warnings", ())),
    )
