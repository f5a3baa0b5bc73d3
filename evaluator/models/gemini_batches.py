"""The batch API of Gemini with an API key: a file of requests, then a batch of it.

Its display name is the only tag of a batch. An expired batch has no results.
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from evaluator.errors import ProviderError
from evaluator.models.attachments import with_unsent
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
from evaluator.models.provider_batches import BatchAnswer, ProviderBatch

_PREFIX = "gemini/"
_BOUNDARY = "evaluator-file-of-requests"
_EXPIRES_S = 48 * 3600.0
_OVER = ("SUCCEEDED", "PARTIALLY_SUCCEEDED", "FAILED", "CANCELLED", "EXPIRED")
_SETTINGS = {
    "max_output_tokens": "maxOutputTokens",
    "temperature": "temperature",
    "top_p": "topP",
    "top_k": "topK",
    "seed": "seed",
}
_BLOCKED = ("SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII")


class GeminiBatches:
    """See `ProviderBatches`. `api` reaches the host of the API."""

    format = "gemini"
    max_requests = 50_000
    max_bytes = 1_000_000_000

    def __init__(self, api: BatchApi, model: str) -> None:
        self._api = api
        self._model = model.removeprefix(_PREFIX)

    def request_line(self, custom_id: str, request: ModelRequest) -> bytes:
        return encode_json({"key": custom_id, "request": content_request(request)}) + b"\n"

    async def upload(self, path: Path, tag: str, *, is_repeated: bool) -> str | None:
        if is_repeated:
            async for file in self._pages("/v1beta/files", "files"):
                if file.get("displayName") == tag and file.get("sizeBytes") == str(size_of(path)):
                    return text_of(file, "name")
        about = {"file": {"displayName": tag, "mimeType": "application/jsonl"}}
        head = (
            f"--{_BOUNDARY}\r\nContent-Type: application/json; charset=utf-8\r\n\r\n"
            f"{json.dumps(about)}\r\n--{_BOUNDARY}\r\nContent-Type: application/jsonl\r\n\r\n"
        )
        headers = {
            "Content-Type": f"multipart/related; boundary={_BOUNDARY}",
            "X-Goog-Upload-Protocol": "multipart",
        }
        answer = await self._api.send_file(
            "/upload/v1beta/files",
            path,
            head=head.encode(),
            end=f"\r\n--{_BOUNDARY}--\r\n".encode(),
            headers=headers,
        )
        return text_of(mapping_of(answer.get("file")), "name")

    async def create(self, path: Path, upload: str | None, tag: str) -> ProviderBatch:
        body = {"batch": {"displayName": tag, "inputConfig": {"fileName": upload}}}
        model = path_part(self._model)
        return self._read(
            await self._api.call("POST", f"/v1beta/models/{model}:batchGenerateContent", body)
        )

    async def listed(self) -> AsyncIterator[ProviderBatch]:
        async for entry in self._pages("/v1beta/batches", "operations"):
            yield self._read(entry)

    async def _pages(self, path: str, entries: str) -> AsyncIterator[Mapping[str, Any]]:
        token = ""
        while True:
            page = await self._api.call("GET", f"{path}?pageSize=100{token}")
            for entry in list_of(page.get(entries)):
                yield entry
            if not page.get("nextPageToken"):
                return
            token = f"&pageToken={path_part(text_of(page, 'nextPageToken'))}"

    async def look(self, batch: str) -> ProviderBatch:
        return self._read(await self._api.call("GET", _path_of(batch)))

    async def answers(self, batch: ProviderBatch) -> AsyncIterator[BatchAnswer]:
        for file in batch.files:
            path = f"/download/v1beta/{path_part(file, '/')}:download?alt=media"
            async for line in self._api.lines(path):
                yield self._answer(line)

    def _answer(self, line: Mapping[str, Any]) -> BatchAnswer:
        custom_id = str(line.get("key"))
        error = error_in_body(line, secrets=self._api.secrets)
        try:
            if error is None:
                return BatchAnswer(custom_id, read_content(line.get("response")))
        except ProviderError as unreadable:
            return BatchAnswer(custom_id, error=unreadable)
        error.maybe_billed = False
        return BatchAnswer(custom_id, error=error)

    async def cancel(self, batch: str) -> None:
        await self._api.call("POST", f"{_path_of(batch)}:cancel", {})

    async def clean_up(self, batch: ProviderBatch, upload: str | None) -> None:
        # The file of results goes with its batch.
        paths = [_path_of(batch.id)]
        if upload is not None:
            paths.append(f"/v1beta/{path_part(upload, '/')}")
        for path in paths:
            await self._api.delete(path)

    async def aclose(self) -> None:
        await self._api.aclose()

    def _read(self, data: Mapping[str, Any]) -> ProviderBatch:
        about = mapping_of(data.get("metadata"))
        state = text_of(about, "state")
        status = state.removeprefix("BATCH_STATE_").removeprefix("JOB_STATE_")
        output = mapping_of(about.get("output")) or mapping_of(data.get("response"))
        file = output.get("responsesFile")
        created = seconds_of(about.get("createTime"))
        stats = mapping_of(about.get("batchStats"))
        total = stats.get("requestCount")
        problem = None
        if status == "FAILED" and not file and not _count(stats.get("successfulRequestCount")):
            reason = mapping_of(data.get("error")).get("message")
            problem = self._api.shown(reason or "no reason given")
        tag = about.get("displayName")
        return ProviderBatch(
            text_of(data, "name"),
            status,
            is_over=status in _OVER,
            tag=tag if isinstance(tag, str) and tag else None,
            created=created,
            expires=None if created is None else created + _EXPIRES_S,
            requests=_count(total),
            problem=problem,
            files=(file,) if isinstance(file, str) and file else (),
        )


def _path_of(batch: str) -> str:
    return f"/v1beta/{path_part(batch, '/')}"


def _count(value: Any) -> int | None:
    if isinstance(value, str | int) and str(value).isdecimal():
        return int(value)
    return None


# -- the wire --------------------------------------------------------------------------------------


def content_request(request: ModelRequest) -> dict[str, Any]:
    """The body of a request. Raises: ProviderError, for a field that the API cannot take."""
    if request.schema is not None:
        raise refused("no JSON schema is sent with a provider batch of Gemini")
    if request.extra_body:
        raise refused("a provider batch of Gemini takes no extra_body; remove it from the profile")
    names: dict[str, str] = {}
    contents: list[dict[str, Any]] = []
    messages = [message for message in request.messages if message.role != "system"]
    for is_answer, group in groupby(messages, key=lambda message: message.role == "assistant"):
        parts = [part for message in group for part in _parts(message, names)]
        contents.append({"role": "model" if is_answer else "user", "parts": parts})
    settings: dict[str, Any] = {
        name: getattr(request, field)
        for field, name in _SETTINGS.items()
        if getattr(request, field) is not None
    }
    if request.stop:
        settings["stopSequences"] = list(request.stop)
    body: dict[str, Any] = {"contents": contents, "generationConfig": settings}
    system = [{"text": m.content} for m in request.messages if m.role == "system" and m.content]
    if system:
        body["systemInstruction"] = {"parts": system}
    if request.tools:
        if any(tool.native is not None for tool in request.tools):
            raise refused("a provider batch of Gemini takes no tools of other providers")
        functions = [
            {
                "name": tool.name,
                "description": tool.description,
                "parametersJsonSchema": dict(tool.parameters),
            }
            for tool in request.tools
        ]
        body["tools"] = [{"functionDeclarations": functions}]
    return body


def _parts(message: Message, names: dict[str, str]) -> list[dict[str, Any]]:
    """The parts of a message. `names` are the functions that earlier messages called, by the ids of
    the calls.
    """
    if message.role == "tool":
        text = with_unsent(message.content, message.attachments)
        name = names.get(message.tool_call_id or "", "unknown")
        return [{"functionResponse": {"name": name, "response": {"output": text}}}]
    parts: list[dict[str, Any]] = [
        {
            "inlineData": {
                "mimeType": each.media_type,
                "data": base64.b64encode(each.data).decode("ascii"),
            }
        }
        for each in message.attachments
        if each.data
    ]
    if message.content:
        parts.append({"text": message.content})
    signatures = [block["signature"] for block in message.thinking if "signature" in block]
    for call in message.tool_calls:
        names[call.id] = call.name
        part: dict[str, Any] = {
            "functionCall": {"name": call.name, "args": arguments_of(call.arguments)}
        }
        if signatures:
            part["thoughtSignature"] = signatures.pop(0)
        parts.append(part)
    return parts


def read_content(data: Any) -> ModelResponse:
    """The answer in a response. Raises: ProviderError, for a shape that is not an answer."""
    response = mapping_of(data)
    blocked = mapping_of(response.get("promptFeedback")).get("blockReason")
    candidates = list_of(response.get("candidates"))
    if not candidates and not blocked:
        raise malformed("the response has no candidates")
    if candidates:
        candidate = candidates[0]
    else:
        candidate = {"finishReason": "SAFETY"}
    parts = list_of(mapping_of(candidate.get("content")).get("parts"))
    texts = [str(part["text"]) for part in parts if "text" in part and not part.get("thought")]
    thoughts = [str(part["text"]) for part in parts if "text" in part and part.get("thought")]
    calls = [part for part in parts if isinstance(part.get("functionCall"), dict)]
    reason = str(candidate.get("finishReason"))
    if reason == "MAX_TOKENS":
        reason = "length"
    elif reason in _BLOCKED:
        reason = "content_filter"
    model = response.get("modelVersion")
    return respond(
        "".join(texts),
        reason=reason,
        calls=tuple(
            tool_call(
                index,
                mapping_of(part["functionCall"]).get("id"),
                name=mapping_of(part["functionCall"]).get("name"),
                arguments=json.dumps(mapping_of(part["functionCall"]).get("args") or {}),
            )
            for index, part in enumerate(calls)
        ),
        reasoning="".join(thoughts) or None,
        refusal=None,
        usage=_usage(mapping_of(response.get("usageMetadata"))),
        model=model if isinstance(model, str) else None,
        thinking=[
            {"type": "thinking", "thinking": "", "signature": part["thoughtSignature"]}
            for part in calls
            if isinstance(part.get("thoughtSignature"), str)
        ],
    )


def _usage(counts: Mapping[str, Any]) -> dict[str, Any] | None:
    """The usage under the names of chat completions, where thoughts are part of the answer."""
    if not counts:
        return None
    made = counts.get("candidatesTokenCount") or 0
    thought = counts.get("thoughtsTokenCount") or 0
    return {
        "prompt_tokens": counts.get("promptTokenCount"),
        "completion_tokens": sum_of(made, thought),
        "prompt_tokens_details": {"cached_tokens": counts.get("cachedContentTokenCount") or 0},
        "completion_tokens_details": {"reasoning_tokens": thought},
    }
