"""Anthropic's batch API over its own wire: one POST creates a batch with all its requests.

The API has no tags, and names the requests of a batch only in its results.
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from evaluator.errors import ProviderError
from evaluator.models import prices
from evaluator.models.attachments import Attachment, with_unsent
from evaluator.models.backend import Message, ModelRequest, ModelResponse
from evaluator.models.batch_api import (
    BatchApi,
    arguments_of,
    list_of,
    mapping_of,
    path_part,
    refused,
    seconds_of,
    size_of,
    sum_of,
    text_of,
)
from evaluator.models.chat_wire import encode_json, respond, tool_call
from evaluator.models.failures import error_in_body, malformed
from evaluator.models.prompt_cache import MARK, marked_places, text_blocks
from evaluator.models.provider_batches import BatchAnswer, ProviderBatch, unanswered

VERSION = "2023-06-01"
_PREFIX = "anthropic/"
_MAX_TOKENS = 4096
"""The longest answer where neither the profile nor the price table says one: the API needs it."""
_START = b'{"requests":['
_END = b"]}"


class AnthropicBatches:
    """See `ProviderBatches`. `api` reaches `…/v1` with the headers of the API."""

    format = "anthropic"
    max_requests = 100_000
    max_bytes = 256_000_000

    def __init__(self, api: BatchApi) -> None:
        self._api = api

    def request_line(self, custom_id: str, request: ModelRequest) -> bytes:
        return encode_json({"custom_id": custom_id, "params": message_request(request)}) + b"\n"

    async def upload(self, path: Path, tag: str, *, is_repeated: bool) -> str | None:
        return None

    async def create(self, path: Path, upload: str | None, tag: str) -> ProviderBatch:
        # A comma takes the place of each line end but the last.
        size = size_of(path) - 1

        def pieces() -> Iterable[bytes]:
            yield _START
            left = size
            with open(path, "rb") as file:
                for line in file:
                    yield line.replace(b"\n", b",")[:left]
                    left -= len(line)
            yield _END

        length = len(_START) + size + len(_END)
        return self._read(
            await self._api.send("POST", "/messages/batches", pieces=pieces(), length=length)
        )

    async def listed(self) -> AsyncIterator[ProviderBatch]:
        after = ""
        while True:
            page = await self._api.call("GET", f"/messages/batches?limit=100{after}")
            for entry in page.get("data") or ():
                yield self._read(entry)
            if not page.get("has_more"):
                return
            after = f"&after_id={path_part(str(page.get('last_id')))}"

    async def look(self, batch: str) -> ProviderBatch:
        return self._read(await self._api.call("GET", _path_of(batch)))

    async def answers(self, batch: ProviderBatch) -> AsyncIterator[BatchAnswer]:
        async for line in self._api.lines(f"{_path_of(batch.id)}/results"):
            yield self._answer(line)

    def _answer(self, line: Mapping[str, Any]) -> BatchAnswer:
        custom_id = str(line.get("custom_id"))
        result = mapping_of(line.get("result"))
        kind = result.get("type")
        try:
            if kind == "succeeded":
                return BatchAnswer(custom_id, read_message(result.get("message")))
        except ProviderError as error:
            return BatchAnswer(custom_id, error=error)
        if kind == "errored":
            # The error of a request stands inside the error of its result.
            error = error_in_body(result.get("error"), secrets=self._api.secrets)
            if error is None:
                error = malformed("the provider reported an error without a reason")
            error.maybe_billed = False
            return BatchAnswer(custom_id, error=error)
        if kind not in _UNANSWERED:
            return BatchAnswer(custom_id, error=malformed("the result is of no known type"))
        return BatchAnswer(custom_id, error=unanswered(self._api.shown(kind)))

    async def cancel(self, batch: str) -> None:
        await self._api.call("POST", f"{_path_of(batch)}/cancel")

    async def clean_up(self, batch: ProviderBatch, upload: str | None) -> None:
        await self._api.delete(_path_of(batch.id))

    async def aclose(self) -> None:
        await self._api.aclose()

    def _read(self, data: Mapping[str, Any]) -> ProviderBatch:
        counts = mapping_of(data.get("request_counts")).values()
        status = str(data.get("processing_status"))
        return ProviderBatch(
            text_of(data, "id"),
            status,
            is_over=status == "ended",
            created=seconds_of(data.get("created_at")),
            expires=seconds_of(data.get("expires_at")),
            requests=sum_of(*counts) if counts else None,
        )


_UNANSWERED = ("canceled", "expired")


def _path_of(batch: str) -> str:
    return f"/messages/batches/{path_part(batch)}"


# -- the wire --------------------------------------------------------------------------------------


def message_request(request: ModelRequest) -> dict[str, Any]:
    """The body of a request. Raises: ProviderError, for a field that the API cannot take."""
    if request.schema is not None:
        raise refused("no JSON schema is sent with a provider batch of Anthropic")
    for name, value in (("extra_body", request.extra_body or None), ("seed", request.seed)):
        if value is not None:
            raise refused(f"Anthropic takes no {name}; remove it from the profile")
    most = request.max_output_tokens or prices.max_output_tokens(request.model) or _MAX_TOKENS
    places = marked_places(request)
    blocks = [_blocks(m, places.get(at, ())) for at, m in enumerate(request.messages)]
    pairs = [*zip(request.messages, blocks, strict=True)]
    system = [block for m, found in pairs if m.role == "system" for block in found]
    turns: list[dict[str, Any]] = []
    others = (pair for pair in pairs if pair[0].role != "system")
    for is_answer, group in groupby(others, key=lambda pair: pair[0].role == "assistant"):
        role = "assistant" if is_answer else "user"
        turns.append({"role": role, "content": [block for _, found in group for block in found]})
    body: dict[str, Any] = {
        "model": request.model.removeprefix(_PREFIX),
        "max_tokens": most,
        "messages": turns,
    }
    if system:
        body["system"] = system
    for name in ("temperature", "top_p", "top_k"):
        value = getattr(request, name)
        if value is not None:
            body[name] = value
    if request.stop:
        body["stop_sequences"] = list(request.stop)
    if request.tools:
        body["tools"] = [
            dict(tool.native)
            if tool.native is not None
            else {
                "name": tool.name,
                "description": tool.description,
                "input_schema": dict(tool.parameters),
            }
            for tool in request.tools
        ]
    return body


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _blocks(message: Message, places: Sequence[int] = ()) -> list[dict[str, Any]]:
    """The content of a message, with marks for the cache. The API refuses empty texts."""
    if message.role in ("system", "user"):
        blocks = [_part(each) for each in message.attachments if each.data]
        return blocks + text_blocks(message.content, places)
    blocks = _answer_blocks(message)
    if places and blocks:
        blocks[-1] = {**blocks[-1], **MARK}
    return blocks


def _answer_blocks(message: Message) -> list[dict[str, Any]]:
    """The content of an answer of the model, or of a tool."""
    if message.role == "tool":
        text = with_unsent(message.content, message.attachments)
        content = [_text(text)] if text else []
        content += [_part(each) for each in message.attachments if each.data]
        result = {"type": "tool_result", "tool_use_id": message.tool_call_id}
        return [{**result, "content": content}]
    blocks = [dict(block) for block in message.thinking]
    if message.content:
        blocks.append(_text(message.content))
    for call in message.tool_calls:
        block = {"type": "tool_use", "id": call.id, "name": call.name}
        blocks.append({**block, "input": arguments_of(call.arguments)})
    return blocks


def _part(attachment: Attachment) -> dict[str, Any]:
    data = base64.b64encode(attachment.data).decode("ascii")
    source = {"type": "base64", "media_type": attachment.media_type, "data": data}
    return {"type": "image" if attachment.is_image else "document", "source": source}


def read_message(data: Any) -> ModelResponse:
    """The answer in a message. Raises: ProviderError, for a shape that is not an answer."""
    message = mapping_of(data)
    content = message.get("content")
    if not isinstance(content, list):
        raise malformed("the message has no content")
    blocks = list_of(content)
    texts = [str(block.get("text", "")) for block in blocks if block.get("type") == "text"]
    thoughts = [block for block in blocks if block.get("type") in _THINKING]
    calls = [block for block in blocks if block.get("type") == "tool_use"]
    model = message.get("model")
    return respond(
        "".join(texts),
        reason=message.get("stop_reason"),
        calls=tuple(
            tool_call(
                index,
                call.get("id"),
                name=call.get("name"),
                arguments=json.dumps(call.get("input") or {}),
            )
            for index, call in enumerate(calls)
        ),
        reasoning="".join(str(block.get("thinking", "")) for block in thoughts) or None,
        refusal=None,
        usage=_usage(message.get("usage")),
        model=model if isinstance(model, str) else None,
        thinking=thoughts,
    )


_THINKING = ("thinking", "redacted_thinking")


def _usage(usage: Any) -> Any:
    """The usage under the names of chat completions, where cached tokens are part of the prompt."""
    counts = mapping_of(usage)
    if not counts:
        return None
    cached = counts.get("cache_read_input_tokens") or 0
    written = counts.get("cache_creation_input_tokens") or 0
    sent = counts.get("input_tokens")
    return {
        "prompt_tokens": sum_of(sent, cached, written),
        "completion_tokens": counts.get("output_tokens"),
        "prompt_tokens_details": {"cached_tokens": cached, "cache_creation_tokens": written},
    }
