"""Every backend meets the same demands."""

from __future__ import annotations

import asyncio

import pytest

from evaluator.handler.litellm_backend import LiteLLMBackend
from evaluator.handler.openai_compatible import OpenAICompatibleBackend
from evaluator.handler.simulated import SimulatedBackend
from evaluator.handler.text_tools import TextToolsBackend
from evaluator.testing import CHECKS, KEY, MODEL, Check


@pytest.mark.parametrize("check", CHECKS, ids=str)
def test_openai_compatible(check: Check) -> None:
    asyncio.run(check.run(lambda base_url: OpenAICompatibleBackend(base_url, KEY)))


# LiteLLM's own dealings with Pydantic warn; they are not ours to mend.
@pytest.mark.filterwarnings("ignore::UserWarning:pydantic", "ignore::DeprecationWarning")
@pytest.mark.parametrize("check", CHECKS, ids=str)
def test_litellm(check: Check) -> None:
    asyncio.run(check.run(lambda base_url: LiteLLMBackend(base_url=base_url, api_key=KEY), model=f"openai/{MODEL}"))


# What a provider without tool calling is asked is another thing; what comes back and goes wrong is not.
@pytest.mark.parametrize(
    "check", [c for c in CHECKS if c.name != "tools and their results are sent as functions"], ids=str
)
def test_tools_in_text(check: Check) -> None:
    asyncio.run(check.run(lambda base_url: TextToolsBackend(OpenAICompatibleBackend(base_url, KEY))))


@pytest.mark.parametrize("check", [check for check in CHECKS if not check.wire], ids=str)
def test_simulated(check: Check) -> None:
    asyncio.run(check.run(lambda _: SimulatedBackend()))
