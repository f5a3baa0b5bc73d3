"""Every backend passes the conformance suite."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from evaluator.models.litellm_backend import LiteLLMBackend
from evaluator.models.openai_compatible import OpenAICompatibleBackend
from evaluator.models.simulated import SimulatedBackend
from evaluator.models.text_tools import TextToolsBackend
from evaluator.testing import CHECKS, KEY, MODEL, Check


@pytest.mark.parametrize("check", CHECKS, ids=str)
def test_openai_compatible(check: Check) -> None:
    asyncio.run(check.run(lambda base_url: OpenAICompatibleBackend(base_url, KEY)))


# Pydantic warns about LiteLLM's own models, which we cannot fix.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("check", CHECKS, ids=str)
def test_litellm(check: Check) -> None:
    asyncio.run(check.run(lambda base_url: LiteLLMBackend(base_url=base_url, api_key=KEY), model=f"openai/{MODEL}"))


# A provider without tool calling gets other requests; answers and errors are the same.
@pytest.mark.parametrize(
    "check", [c for c in CHECKS if c.name != "tools and their results are sent as functions"], ids=str
)
def test_tools_in_text(check: Check) -> None:
    asyncio.run(check.run(lambda base_url: TextToolsBackend(OpenAICompatibleBackend(base_url, KEY))))


@pytest.mark.parametrize("check", [check for check in CHECKS if not check.wire], ids=str)
def test_simulated(check: Check) -> None:
    asyncio.run(check.run(lambda _: SimulatedBackend()))


def test_the_checks_refuse_to_run_where_assertions_are_off() -> None:
    source = "import asyncio; from evaluator.testing import CHECKS; asyncio.run(CHECKS[0].run(lambda _: None))"
    ended = subprocess.run([sys.executable, "-O", "-c", source], capture_output=True, text=True, timeout=200)
    assert ended.returncode == 1
    assert "UsageError: the checks of backends use assert" in ended.stderr
