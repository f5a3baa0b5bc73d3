"""Assembles one response from the chunks of a streamed chat completion."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from evaluator.errors import ProviderError
from evaluator.models.backend import ModelResponse
from evaluator.models.chat_wire import (
    decode_json,
    join_parts,
    reasoning_of,
    respond,
    thinking_of,
    tool_call,
)
from evaluator.models.failures import error_in_body, malformed
from evaluator.models.logprobs import TokenLogprob, read_chat


class EventParser:
    """Takes the bytes of server-sent events, cut anywhere, and gives the payloads of complete
    `data:` lines.
    """

    __slots__ = ("_tail",)

    def __init__(self) -> None:
        self._tail: list[bytes] = []

    def feed(self, piece: bytes) -> Iterator[bytes]:
        if b"\n" not in piece:
            # Joined only at the end of a line: an endless line then takes linear time.
            self._tail.append(piece)
            return
        lines = (b"".join(self._tail) + piece).split(b"\n")
        self._tail = [lines.pop()]
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()

    def rest(self) -> bytes:
        """The payload of a last line without a line feed."""
        line = b"".join(self._tail)
        if line.startswith(b"data:"):
            return line[5:].strip()
        return b""


class _PartialCall:
    """A tool call that may be continued."""

    __slots__ = ("arguments", "id", "name")

    def __init__(self) -> None:
        self.id: str | None = None
        self.name: str | None = None
        self.arguments: list[str] = []


class Assembly:
    """The response so far. `on_text` gets each piece of text as it arrives.

    Chunks that are empty, repeated or late do no harm where that can be recognised: a finish reason
    before the last text, usage before or after it, a tool call's name after its first arguments,
    its whole text twice. Repeated text cannot be told from a model that repeats itself, and is
    kept.
    """

    def __init__(self, on_text: Callable[[str], None], secrets: tuple[str, ...] = ()) -> None:
        self._on_text = on_text
        self._secrets = secrets
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._refusals: list[str] = []
        self._signed: list[dict[str, Any]] = []
        self._calls: dict[int, _PartialCall] = {}
        self._reason: str | None = None
        self._usage: Any = None
        self._model: str | None = None
        self._logprobs: list[TokenLogprob] = []
        self._has_choices = False
        self.done = False

    @property
    def partial(self) -> str:
        """The text so far."""
        return "".join(self._texts)

    @property
    def finished(self) -> bool:
        """Whether the model gave a finish reason, or the server ended the stream."""
        return self.done or self._reason is not None

    def add_event(self, payload: bytes) -> None:
        """Adds one event. Raises: ProviderError, for an error event or one that is not a chunk."""
        if self.done or not payload:
            return
        if payload == b"[DONE]":
            self.done = True
            return
        try:
            data = decode_json(payload, "a stream chunk")
        except ProviderError as exc:
            exc.partial = self.partial
            raise
        self.add_chunk(data)

    def add_chunk(self, data: Any) -> None:
        """Adds one decoded chunk. Raises: as `add_event`."""
        if not isinstance(data, dict):
            raise malformed("a stream chunk is not a JSON object", partial=self.partial)
        # The text so far is joined for an error only: for every chunk it would take quadratic time.
        if data.get("error") and (
            error := error_in_body(data, partial=self.partial, secrets=self._secrets)
        ):
            raise error
        if isinstance(data.get("usage"), dict):
            self._usage = data["usage"]
        if self._model is None and isinstance(data.get("model"), str):
            self._model = data["model"]
        choices = data.get("choices")
        if not isinstance(choices, list):
            return
        for choice in choices:
            if isinstance(choice, dict) and choice.get("index", 0) in (0, None):
                self._add_choice(choice)

    def _add_choice(self, choice: dict[str, Any]) -> None:
        self._has_choices = True
        reason = choice.get("finish_reason")
        if isinstance(reason, str) and reason:
            self._reason = reason
        self._logprobs += read_chat(choice.get("logprobs"))
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            return
        thought = reasoning_of(delta)
        if thought:
            self._thoughts.append(thought)
        if isinstance(delta.get("refusal"), str):
            self._refusals.append(delta["refusal"])
        for block in thinking_of(delta):
            self._add_thinking(block)
        calls = delta.get("tool_calls")
        if isinstance(calls, list):
            for call in calls:
                if isinstance(call, dict):
                    self._add_call(call)
        text = delta.get("content")
        if isinstance(text, list):
            text, thought = join_parts(text)
            if thought:
                self._thoughts.append(thought)
        if isinstance(text, str) and text:
            self.add_text(text)

    def add_text(self, text: str) -> None:
        """Adds a piece of the answer."""
        self._texts.append(text)
        self._on_text(text)

    def _add_thinking(self, block: Mapping[str, Any]) -> None:
        """Adds a piece of a thinking block: its text continues until its signature comes."""
        last = self._signed[-1] if self._signed else None
        if (
            block.get("type") != "thinking"
            or last is None
            or last.get("type") != "thinking"
            or last.get("signature")
        ):
            self._signed.append(dict(block))
            return
        last["thinking"] = (last.get("thinking") or "") + (block.get("thinking") or "")
        if block.get("signature"):
            last["signature"] = block["signature"]

    def _add_call(self, delta: dict[str, Any]) -> None:
        call_id = delta.get("id") or None
        call = self._call_of(delta.get("index"), call_id)
        function = delta.get("function")
        if not isinstance(function, dict):
            function = {}
        text = function.get("arguments")
        if text is not None and not isinstance(text, str):
            text = json.dumps(text)
        again = (
            bool(call_id)
            and call.id == call_id
            and bool(call.name)
            and call.name == function.get("name")
        )
        if isinstance(call_id, str) and call.id is None:
            call.id = call_id
        if call.name is None and isinstance(function.get("name"), str):
            call.name = function["name"] or None
        # The opening chunk of a call, sent twice, would double its arguments.
        if text and not (again and "".join(call.arguments) == text):
            call.arguments.append(text)

    def _call_of(self, index: Any, call_id: Any) -> _PartialCall:
        """The call that a delta continues: by index, or by id where indices are missing or all
        equal.
        """
        if not isinstance(index, int):
            known = next((c for c in self._calls.values() if call_id and c.id == call_id), None)
            if known is not None:
                return known
            last = max(self._calls, default=-1)
            if call_id is None and last >= 0:
                return self._calls[last]
            index = last + 1
        call = self._calls.get(index)
        if call is not None and call_id and call.id and call.id != call_id:
            same = next((c for c in self._calls.values() if c.id == call_id), None)
            if same is not None:
                return same
            index = max(self._calls) + 1
            call = None
        if call is None:
            call = self._calls[index] = _PartialCall()
        return call

    def set_reason(self, reason: Any) -> None:
        """Sets a finish reason that came outside the chunks."""
        if isinstance(reason, str) and reason:
            self._reason = reason

    def drop_usage(self, *, reasoning_only: bool = False) -> None:
        """Removes the usage, or its reasoning tokens: they were not the provider's."""
        if not reasoning_only:
            self._usage = None
        elif isinstance(self._usage, dict):
            self._usage = {**self._usage, "completion_tokens_details": None}

    def response(self) -> ModelResponse:
        """The whole response. Raises: ProviderError, when the stream ended before the model had."""
        if not self.finished or not self._has_choices:
            raise malformed("the stream ended before the answer did", partial=self.partial)
        calls = sorted(self._calls.items())
        try:
            return respond(
                self.partial,
                reason=self._reason,
                calls=tuple(
                    tool_call(i, call.id, name=call.name, arguments="".join(call.arguments))
                    for i, call in calls
                ),
                reasoning="".join(self._thoughts),
                refusal="".join(self._refusals),
                usage=self._usage,
                model=self._model,
                thinking=self._signed,
                logprobs=tuple(self._logprobs),
            )
        except ProviderError as exc:
            exc.partial = self.partial
            raise
