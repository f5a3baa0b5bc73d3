"""Reads the provider's own finish reason from a raw stream, because LiteLLM ends every stream with
`stop`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from evaluator.models.stream import EventParser

_KEYS = (b'"finish_reason"', b'"finishReason"', b'"stop_reason"')
_SHAPES = ("choices", "candidates", "stop_reason", "type")


class RawStream:
    """Takes the bytes of a stream of events. `payloads` are its events so far, unread.

    `is_known`: the events have a shape that is read here. Then `reason` is the provider's finish
    reason, None while it gave none, `usage` came with it, and `model` is the model that answered.
    `is_done`: `[DONE]` came.
    """

    def __init__(self) -> None:
        self.is_known = False
        self.is_done = False
        self.reason: str | None = None
        self.usage: Mapping[str, Any] = {}
        self.model: str | None = None
        self.payloads: list[bytes] = []
        self._lines = EventParser()

    def feed(self, piece: bytes) -> None:
        for payload in self._lines.feed(piece):
            self._event(payload)

    def end(self) -> None:
        self._event(self._lines.rest())

    def _event(self, payload: bytes) -> None:
        self.payloads.append(payload)
        if payload == b"[DONE]":
            self.is_done = True
        elif not self.is_known or any(key in payload for key in _KEYS):
            try:
                data = json.loads(payload)
            except (ValueError, RecursionError):
                return
            if isinstance(data, dict) and any(shape in data for shape in _SHAPES):
                self.is_known = True
                self.model = self.model or _model_of(data)
                self.reason = reason_of(data) or self.reason
                if isinstance(data.get("usage"), dict):
                    self.usage = data["usage"]


def reason_of(data: Mapping[str, Any]) -> str | None:
    """The provider's finish reason in an answer or event of chat completions', Anthropic's or
    Gemini's shape.
    """
    for group, name in (("choices", "finish_reason"), ("candidates", "finishReason")):
        items = data.get(group)
        if isinstance(items, list):
            if items and isinstance(items[0], dict):
                first = items[0]
            else:
                first = {}
            return _text(first.get(name))
    delta = data.get("delta")
    return _text(data.get("stop_reason")) or _text(
        delta.get("stop_reason") if isinstance(delta, dict) else None
    )


def _model_of(data: Mapping[str, Any]) -> str | None:
    message = data.get("message")
    return (
        _text(data.get("model"))
        or _text(data.get("modelVersion"))
        or _text(message.get("model") if isinstance(message, dict) else None)
    )


def _text(value: Any) -> str | None:
    if isinstance(value, str) and value:
        return value
    return None
