"""Every backend passes the conformance suite."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import socket
import subprocess
import sys
from importlib import import_module
from pkgutil import iter_modules
from typing import Any
from urllib.request import Request, urlopen

import pytest

import evaluator
from evaluator import (
    LiteLLMBackend,
    ModelRequest,
    ModelResponse,
    OpenAICompatibleBackend,
    ProviderError,
    SimulatedBackend,
    models,
)
from evaluator.models.text_tools import TextToolsBackend
from evaluator.testing import CHECKS, KEY, MODEL, Check, LoopbackServer, check_backend


@pytest.mark.parametrize("check", CHECKS, ids=str)
def test_openai_compatible(check: Check) -> None:
    asyncio.run(check.run(lambda base_url: OpenAICompatibleBackend(base_url, KEY)))


# Pydantic warns about LiteLLM's own models, which we cannot fix.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("check", CHECKS, ids=str)
def test_litellm(check: Check) -> None:
    asyncio.run(
        check.run(
            lambda base_url: LiteLLMBackend(base_url=base_url, api_key=KEY), model=f"openai/{MODEL}"
        )
    )


# A provider without tool calling gets other requests; answers and errors are the same.
@pytest.mark.parametrize(
    "check",
    [c for c in CHECKS if c.name != "tools and their results are sent as functions"],
    ids=str,
)
def test_tools_in_text(check: Check) -> None:
    asyncio.run(
        check.run(lambda base_url: TextToolsBackend(OpenAICompatibleBackend(base_url, KEY)))
    )


@pytest.mark.parametrize("check", [check for check in CHECKS if not check.wire], ids=str)
def test_simulated(check: Check) -> None:
    asyncio.run(check.run(lambda _: SimulatedBackend()))


class WithoutSchema(SimulatedBackend):
    says = ""

    async def complete(self, request: ModelRequest, **options: Any) -> ModelResponse:
        if request.schema is not None:
            raise ProviderError(self.says, kind="bad_request")
        return await super().complete(request, **options)


class WithSocket(SimulatedBackend):
    """A socket stands for a session: it cannot be pickled."""

    def __init__(self) -> None:
        super().__init__()
        self.session = socket.socket()

    async def aclose(self) -> None:
        self.session.close()


def test_a_refusal_of_a_schema_has_to_be_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WithoutSchema, "says", "acme takes no JSON schema")
    asyncio.run(check_backend(lambda _: WithoutSchema(), wire=False))
    monkeypatch.setattr(WithoutSchema, "says", "acme takes no schema")
    with pytest.raises(AssertionError, match="only a bad_request that says 'JSON schema'"):
        asyncio.run(check_backend(lambda _: WithoutSchema(), wire=False))


def test_a_backend_that_cannot_be_pickled_does_not_conform() -> None:
    with pytest.raises(
        AssertionError,
        match=r"cannot be sent to another process.*leave out sessions in __getstate__",
    ):
        asyncio.run(check_backend(lambda _: WithSocket(), wire=False))


@pytest.mark.parametrize(
    ("path", "body", "type_"),
    [
        ("models/m:generateContent", {}, "application/json"),
        ("models/m:streamGenerateContent", {}, "text/event-stream"),
        ("chat/completions", {"stream": True}, "text/event-stream"),
    ],
)
def test_a_stream_is_asked_for_in_the_body_or_in_the_path(
    path: str, body: dict[str, Any], type_: str
) -> None:
    with LoopbackServer() as server:
        request = Request(f"{server.base_url}/{path}", json.dumps(body).encode())
        with urlopen(request, timeout=60) as reply:
            assert reply.headers["Content-Type"] == type_


def test_every_backend_is_checked_here_and_exported() -> None:
    modules = [
        import_module(f"{models.__name__}.{module.name}")
        for module in iter_modules(models.__path__)
    ]
    found = {
        name
        for module in modules
        for name, each in vars(module).items()
        if isinstance(each, type)
        and all(hasattr(each, part) for part in ("name", "complete", "aclose"))
    }
    # `Backend` is the protocol. A replay has only the answers of its record.
    tests = [each for name, each in globals().items() if name.startswith("test_")]
    checked = "".join(
        inspect.getsource(each) for each in tests if "check" in inspect.signature(each).parameters
    )
    called = set(re.findall(r"(\w+)\(", checked))
    assert found - {"Backend", "ReplayBackend"} <= called, (
        "run CHECKS on it in tests/models/test_backends_conformance.py"
    )
    assert found - {"TextToolsBackend"} <= set(evaluator.__all__), (
        "export it in evaluator/__init__.py, at both places"
    )


def test_the_checks_refuse_to_run_where_assertions_are_off() -> None:
    source = "import asyncio; from evaluator.testing import CHECKS; asyncio.run(CHECKS[0].run(lambda _: None))"
    ended = subprocess.run(
        [sys.executable, "-O", "-c", source], capture_output=True, text=True, timeout=200
    )
    assert ended.returncode == 1
    assert "UsageError: the checks of backends use assert" in ended.stderr
