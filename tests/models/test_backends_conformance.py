"""Every backend passes the conformance suite."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from importlib import import_module
from pkgutil import iter_modules

import pytest

import evaluator
from evaluator import models
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


def test_every_backend_is_checked_here_and_exported() -> None:
    modules = [import_module(f"{models.__name__}.{module.name}") for module in iter_modules(models.__path__)]
    found = {
        name
        for module in modules
        for name, each in vars(module).items()
        if isinstance(each, type) and all(hasattr(each, part) for part in ("name", "complete", "aclose"))
    }
    # `Backend` is the protocol. A replay has only the answers of its record.
    assert found - {"Backend", "ReplayBackend"} <= globals().keys(), (
        "run CHECKS on it in tests/models/test_backends_conformance.py"
    )
    assert found - {"TextToolsBackend"} <= set(evaluator.__all__), "export it in evaluator/__init__.py, at both places"


def test_the_checks_refuse_to_run_where_assertions_are_off() -> None:
    source = "import asyncio; from evaluator.testing import CHECKS; asyncio.run(CHECKS[0].run(lambda _: None))"
    ended = subprocess.run([sys.executable, "-O", "-c", source], capture_output=True, text=True, timeout=200)
    assert ended.returncode == 1
    assert "UsageError: the checks of backends use assert" in ended.stderr
