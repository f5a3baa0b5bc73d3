"""OpenAI's batch API, and those of servers with its shape: a file of requests, then a batch of it.

Azure's differs: paths of requests have no version, an uploaded file is checked before it can be
used, and batches do not expire. Mistral's has the same files, and jobs of one model each.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from evaluator import clock
from evaluator.errors import ProviderError
from evaluator.models.backend import ModelRequest
from evaluator.models.batch_api import (
    BatchApi,
    list_of,
    mapping_of,
    moment_of,
    path_part,
    size_of,
    text_of,
)
from evaluator.models.chat_wire import encode_json, read_completion, request_body
from evaluator.models.failures import error_in_body, failure, malformed, message_of
from evaluator.models.provider_batches import BatchAnswer, ProviderBatch, unanswered

_OVER = ("completed", "failed", "expired", "cancelled")
_ENQUEUED = ("token_limit_exceeded", "enqueued")
_BOUNDARY = "evaluator-file-of-requests"
_CHECK_S = 2.0
_MAX_CHECKS = 300


class OpenAIBatches:
    """See `ProviderBatches`. `api` reaches `…/v1`."""

    format = "openai"
    max_requests = 50_000
    max_bytes = 200_000_000
    _batches = "/batches"

    def __init__(self, api: BatchApi, max_tokens_field: str) -> None:
        self._api = api
        self._max_tokens_field = max_tokens_field
        host = urlsplit(api.base_url).hostname or ""
        self._path = "/v1/chat/completions"
        if host.endswith(".azure.com"):
            self._path = "/chat/completions"

    def request_line(self, custom_id: str, request: ModelRequest) -> bytes:
        body = request_body(request, max_tokens_field=self._max_tokens_field)
        line = {"custom_id": custom_id, "method": "POST", "url": self._path, "body": body}
        return encode_json(line) + b"\n"

    async def upload(self, path: Path, tag: str, *, is_repeated: bool) -> str | None:
        name = f"{tag}.jsonl"
        if is_repeated:
            async for file in self._pages("/files?purpose=batch"):
                if file.get("filename") == name and file.get("bytes") == size_of(path):
                    return text_of(file, "id")
        head = (
            f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
            f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="file"; '
            f'filename="{name}"\r\nContent-Type: application/jsonl\r\n\r\n'
        ).encode()
        end = f"\r\n--{_BOUNDARY}--\r\n".encode()
        headers = {"Content-Type": f"multipart/form-data; boundary={_BOUNDARY}"}
        file = await self._api.send_file("/files", path, head=head, end=end, headers=headers)
        number = text_of(file, "id")
        for _ in range(_MAX_CHECKS):
            if file.get("status") not in ("pending", "running"):
                break
            await clock.sleep(_CHECK_S)
            file = await self._api.call("GET", f"/files/{path_part(number)}")
        if file.get("status") == "error":
            reason = self._api.shown(file.get("status_details") or "no reason given")
            raise ProviderError(f"the file of requests was refused: {reason}", kind="bad_request")
        return number

    async def create(self, path: Path, upload: str | None, tag: str) -> ProviderBatch:
        body = {
            "input_file_id": upload,
            "endpoint": self._path,
            "completion_window": "24h",
            "metadata": {"evaluator": tag},
        }
        return self._read(await self._api.call("POST", "/batches", body))

    async def listed(self) -> AsyncIterator[ProviderBatch]:
        async for entry in self._pages(f"{self._batches}?"):
            yield self._read(entry)

    async def _pages(self, path: str) -> AsyncIterator[Mapping[str, Any]]:
        """The entries of a list in pages."""
        after = ""
        while True:
            page = await self._api.call("GET", f"{path}&limit=100{after}")
            for entry in list_of(page.get("data")):
                yield entry
            if not page.get("has_more"):
                return
            after = f"&after={path_part(text_of(page, 'last_id'))}"

    async def look(self, batch: str) -> ProviderBatch:
        return self._read(await self._api.call("GET", f"{self._batches}/{path_part(batch)}"))

    async def answers(self, batch: ProviderBatch) -> AsyncIterator[BatchAnswer]:
        for file in batch.files:
            async for line in self._api.lines(f"/files/{path_part(file)}/content"):
                yield self._answer(line)

    def _answer(self, line: Mapping[str, Any]) -> BatchAnswer:
        custom_id = str(line.get("custom_id"))
        response = line.get("response")
        secrets = self._api.secrets
        if isinstance(response, dict):
            answer = mapping_of(response)
            status = answer.get("status_code")
            body = answer.get("body")
            try:
                if type(status) is not int or 200 <= status < 300:
                    return BatchAnswer(custom_id, read_completion(body, secrets))
            except ProviderError as error:
                return BatchAnswer(custom_id, error=error)
            message, code = message_of(encode_json(mapping_of(body)))
            error = failure(status, message, code=code, secrets=secrets)
            # Only answers are billed.
            error.maybe_billed = False
            return BatchAnswer(custom_id, error=error)
        error = mapping_of(line.get("error"))
        if not error:
            return BatchAnswer(custom_id, error=malformed("the line has no answer and no error"))
        code = self._api.shown(error.get("code") or "no reason given")
        return BatchAnswer(custom_id, error=unanswered(code))

    async def cancel(self, batch: str) -> None:
        await self._api.call("POST", f"{self._batches}/{path_part(batch)}/cancel")

    async def clean_up(self, batch: ProviderBatch, upload: str | None) -> None:
        for file in (upload, *batch.files):
            if file is not None:
                await self._api.delete(f"/files/{path_part(file)}")

    async def aclose(self) -> None:
        await self._api.aclose()

    def _read(self, data: Mapping[str, Any]) -> ProviderBatch:
        status = text_of(data, "status")
        counts = mapping_of(data.get("request_counts"))
        reasons = list_of(mapping_of(data.get("errors")).get("data"))
        problem = None
        if status == "failed":
            found = [f"{each.get('code')}: {each.get('message')}" for each in reasons[:3]]
            problem = self._api.shown("; ".join(found) or "no reason given")
        files = (data.get("output_file_id"), data.get("error_file_id"))
        codes = " ".join(str(each.get("code")) for each in reasons)
        total = counts.get("total")
        return ProviderBatch(
            text_of(data, "id"),
            status,
            is_over=status in _OVER,
            tag=_tag_of(data),
            upload=_text_or_none(data.get("input_file_id")),
            created=moment_of(data.get("created_at")),
            expires=moment_of(data.get("expires_at")),
            requests=total if isinstance(total, int) else None,
            problem=problem,
            is_refused_now=any(word in codes for word in _ENQUEUED),
            # An empty string stands for no file.
            files=tuple(file for file in files if isinstance(file, str) and file),
        )


_MISTRAL_OVER = ("SUCCESS", "FAILED", "TIMEOUT_EXCEEDED", "CANCELLED")
_MISTRAL_HOURS = 24
_MISTRAL_PREFIX = "mistral/"


def _tag_of(data: Mapping[str, Any]) -> str | None:
    """The tag of a batch; None where the server does not return what a batch was created with."""
    return _text_or_none(mapping_of(data.get("metadata")).get("evaluator"))


def _text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


class MistralBatches(OpenAIBatches):
    """See `ProviderBatches`. `api` reaches `…/v1`."""

    format = "mistral"
    _batches = "/batch/jobs"

    def __init__(self, api: BatchApi, model: str) -> None:
        super().__init__(api, "max_tokens")
        self._model = model.removeprefix(_MISTRAL_PREFIX)

    def request_line(self, custom_id: str, request: ModelRequest) -> bytes:
        body = request_body(request, max_tokens_field="max_tokens")
        body["model"] = self._model
        if "seed" in body:
            body["random_seed"] = body.pop("seed")
        return encode_json({"custom_id": custom_id, "body": body}) + b"\n"

    async def create(self, path: Path, upload: str | None, tag: str) -> ProviderBatch:
        body = {
            "input_files": [upload],
            "endpoint": self._path,
            "model": self._model,
            "metadata": {"evaluator": tag},
            "timeout_hours": _MISTRAL_HOURS,
        }
        return self._read(await self._api.call("POST", self._batches, body))

    async def _pages(self, path: str) -> AsyncIterator[Mapping[str, Any]]:
        number = 0
        seen = 0
        while True:
            page = await self._api.call("GET", f"{path}&page_size=100&page={number}")
            entries = list_of(page.get("data"))
            for entry in entries:
                yield entry
            number += 1
            seen += len(entries)
            total = page.get("total")
            if not entries or not isinstance(total, int) or seen >= total:
                return

    def _answer(self, line: Mapping[str, Any]) -> BatchAnswer:
        if not isinstance(line.get("response"), dict):
            error = error_in_body(line, secrets=self._api.secrets)
            if error is not None:
                error.maybe_billed = False
                return BatchAnswer(str(line.get("custom_id")), error=error)
        return super()._answer(line)

    def _read(self, data: Mapping[str, Any]) -> ProviderBatch:
        status = text_of(data, "status")
        files = tuple(
            file
            for file in (data.get("output_file"), data.get("error_file"))
            if isinstance(file, str) and file
        )
        problem = None
        if status == "FAILED" and not files and not data.get("succeeded_requests"):
            reasons = [str(each.get("message")) for each in list_of(data.get("errors"))[:3]]
            problem = self._api.shown("; ".join(reasons) or "no reason given")
        created = moment_of(data.get("created_at"))
        total = data.get("total_requests")
        inputs = data.get("input_files")
        return ProviderBatch(
            text_of(data, "id"),
            status,
            is_over=status in _MISTRAL_OVER,
            tag=_tag_of(data),
            upload=_text_or_none(inputs[0]) if isinstance(inputs, list) and inputs else None,
            created=created,
            expires=None if created is None else created + _MISTRAL_HOURS * 3600,
            requests=total if isinstance(total, int) else None,
            problem=problem,
            files=files,
        )
