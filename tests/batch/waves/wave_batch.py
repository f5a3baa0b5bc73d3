"""A batch with provider batches in a folder, and what is read of its results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from evaluator import BatchResult
from evaluator.batch.wave_log import WaveLog
from tests.batch.wave_driver import run_session, write_project
from tests.provider_replies import last_prompt
from tests.provider_server import ProviderServer

FORMATS = ["openai", "anthropic"]
ALL_FORMATS = [*FORMATS, "gemini", "mistral"]


class Batch:
    """A batch in `folder`."""

    def __init__(
        self, folder: Path, server: ProviderServer, format: str, rows: int = 4, template: Any = None
    ) -> None:
        self.folder = folder
        write_project(folder, server.url, format, rows, *([] if template is None else [template]))

    def run(self, **options: Any) -> BatchResult:
        return run_session(self.folder, **options)

    def log(self) -> WaveLog:
        manifest = json.loads((self.folder / "batch" / "manifest.json").read_text())
        log = WaveLog(self.folder / "batch", manifest["created"])
        log.read()
        return log

    def counts(self) -> list[dict[str, int]]:
        return [dict(each.counts) for each in self.log().submissions.values()]


def answers(result: BatchResult) -> dict[str, str]:
    return {sample.sample_id: sample.content for sample in result.results()}


def cost(result: BatchResult) -> float | None:
    costs = [sample.usage.cost_usd for sample in result.results()]
    if None in costs:
        return None
    return sum(each for each in costs if each is not None)


def asks(body: Any, prompt: str) -> bool:
    return last_prompt(body) == prompt


def once(server: ProviderServer, fate: str) -> Any:
    """The fate of the question xx in the first batch."""
    first: list[str] = []

    def of(custom_id: str, body: Any) -> str:
        if not asks(body, "xx"):
            return "succeeded"
        if not first:
            first.append(custom_id)
        return fate if custom_id == first[0] else "succeeded"

    return of
