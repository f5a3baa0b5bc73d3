"""What rows, models and servers name reaches an exporter of traces short, redacted and without control characters."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from evaluator import ModelResponse, ToolCall, run_batch
from evaluator.errors.messages import visible
from evaluator.handler.otel import CAPTURE
from tests.conftest import MakeEvaluator
from tests.test_otel import Traced

SECRET = "sk-live-4f9a8b7c6d5e4f3a2b1c"
HOSTILE = f"\x1b]0;owned\x07\u202e\ud800{SECRET}" + "x" * 1_000_000


@pytest.mark.parametrize("captures", [False, True])
def test_names_and_ids_from_outside_are_short_redacted_and_legible(
    make_evaluator: MakeEvaluator,
    monkeypatch: pytest.MonkeyPatch,
    captures: bool,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("SERVICE_API_KEY", SECRET)
    if captures:
        monkeypatch.setenv(CAPTURE, "true")

    def script(request: Any) -> ModelResponse:
        if any(message.role == "tool" for message in request.messages):
            return ModelResponse(HOSTILE, "stop", model=HOSTILE)
        call = ToolCall(f"id{HOSTILE}", "look_up", json.dumps({"word": "salt"}))
        return ModelResponse("", "tool_calls", (call,), model=HOSTILE)

    traced = Traced(make_evaluator, script)
    rows = [{"id": f"r{HOSTILE[:5_000]}", "about": "y"}]
    asyncio.run(run_batch("boss", rows, evaluator=traced.evaluator, output=tmp_path / "b"))
    assert {span.name.split()[0] for span in traced.spans} >= {"batch", "sample", "chat"}
    found = 0
    for span in traced.spans:
        for name, value in (span.attributes or {}).items():
            text = value if isinstance(value, str) else str(value)
            text.encode()
            assert SECRET not in text, name
            is_content = name.startswith(("gen_ai.input", "gen_ai.output", "gen_ai.tool.call.re"))
            assert not is_content or captures, name
            if not is_content:
                assert len(text) <= 1_100 and text == visible(text, one_line=True), name
            found += "owned" in text
        assert len(span.name) <= 1_000
    # The control: the values were exported.
    assert found >= 3
