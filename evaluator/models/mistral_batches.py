"""Mistral's batch API: files of requests as those of OpenAI, and jobs of one model each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from evaluator.models.backend import ModelRequest
from evaluator.models.batch_api import BatchApi, list_of, mapping_of, text_of
from evaluator.models.chat_wire import encode_json, request_body
from evaluator.models.failures import error_in_body
from evaluator.models.openai_batches import OpenAIBatches
from evaluator.models.provider_batches import BatchAnswer, ProviderBatch

_OVER = ("SUCCESS", "FAILED", "TIMEOUT_EXCEEDED", "CANCELLED")
_HOURS = 24
_PREFIX = "mistral/"


class MistralBatches(OpenAIBatches):
    """See `ProviderBatches`. `api` reaches `…/v1`."""

    format = "mistral"
    _batches = "/batch/jobs"

    def __init__(self, api: BatchApi, model: str) -> None:
        super().__init__(api, "max_tokens")
        self._model = model.removeprefix(_PREFIX)

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
            "timeout_hours": _HOURS,
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
        created = data.get("created_at")
        total = data.get("total_requests")
        is_number = isinstance(created, int | float)
        return ProviderBatch(
            text_of(data, "id"),
            status,
            is_over=status in _OVER,
            tag=str(mapping_of(data.get("metadata")).get("evaluator", "")),
            created=created if is_number else None,
            expires=created + _HOURS * 3600 if is_number else None,
            requests=total if isinstance(total, int) else None,
            problem=problem,
            files=files,
        )
