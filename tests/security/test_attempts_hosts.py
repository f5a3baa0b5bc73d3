"""Attempts to reach a host, a key or a file that the person who runs the program did not allow.

Each attempt has a control: the nearest request that is allowed and has the effect, so that the check can fail.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from evaluator import (
    ConfigurationError,
    Evaluator,
    HandlerConfig,
    LiteLLMBackend,
    McpServer,
    OpenAICompatibleBackend,
    TaskError,
    TaskResult,
    TemplateLibrary,
)
from evaluator.handler.model_choice import ModelChooser
from evaluator.models.litellm_guard import CallGuard, ResponseRefused
from evaluator.testing import LoopbackServer
from evaluator.tools.mcp.servers import McpHeader


@pytest.fixture(scope="module")
def server() -> Iterator[LoopbackServer]:
    with LoopbackServer() as server:
        yield server


# Model ids. HOST is replaced by the address of a server that would notice a request.
ADDRESSES = [
    "oobabooga/http://HOST/path?x=",
    "oobabooga/HTTP://HOST/v1",
    "huggingface/https://HOST/models",
    "triton/http:/HOST",
    "oobabooga/http:HOST",
    "oobabooga///HOST/v1",
    "oobabooga//HOST/v1",
    "oobabooga/http:\\\\HOST\\v1",
    "oobabooga/http%3A%2F%2FHOST",
    "oobabooga/http%253A%252F%252FHOST",
    "oobabooga/ht\ttp://HOST",
    "oobabooga/h\u200bttp:\u200b/HOST",
    "oobabooga/http\uff1a\uff0f\uff0fHOST",
    "oobabooga/http:\u2215\u2215HOST",
    "oobabooga/\uff48\uff54\uff54\uff50://HOST",
    "oobabooga/HOST/v1",
    "oobabooga/user@evil.example.com",
    "oobabooga/localhost",
    "oobabooga/LocalHost:8000/v1",
    "oobabooga/evil.example.com:8443/v1",
    "oobabooga/[::1]:8000/v1",
    "baseten/x#HOST",
    "gemini/../../v1/other?key=",
    "openai/m&api_base=HOST",
    "openai/" + "m" * 600,
]
NAMES = [
    "openai/gpt-4o",
    "qwen3:8b",
    "anthropic/claude-sonnet-4-5",
    "@cf/meta/llama-3.1-8b",
    "/models/qwen2.5.Q4_K_M.gguf",
    "bedrock/anthropic.claude-3-5-sonnet-20240620-v1:0",
    "vertex_ai/claude-3-5-sonnet@20240620",
    "ft:gpt-4o:org::id",
    "bedrock/arn:aws:bedrock:us-east-1:123456789012:provisioned-model/abc",
    "openrouter/meta-llama/llama-3-8b:free",
]


def model_template(model: str) -> str:
    escaped = model.replace("&", "&amp;").replace("\t", "&#9;")
    return f'<task name="t" type="atomic"><description>d</description>\n <model>{escaped}</model></task>'


def evaluate(
    folder: Path, xml: str, server: LoopbackServer, inputs: object = None, **options: object
) -> object:
    (folder / "t").mkdir()
    (folder / "t" / "t.xml").write_text(xml, encoding="utf-8")
    library = TemplateLibrary.load(folder / "t", shipped=False)
    config = HandlerConfig(backend="openai_compatible", base_url=server.base_url, backoff_s=())
    with Evaluator(library, config, profiles={}, tasks_dir=None, roots=[folder]) as evaluator:
        return evaluator.evaluate_sync("t", inputs, **options)  # type: ignore[arg-type]


def at(address: str, server: LoopbackServer) -> str:
    return address.replace("HOST", f"127.0.0.1:{server.port}")


@pytest.mark.parametrize("address", ADDRESSES)
def test_a_template_names_no_host(address: str, server: LoopbackServer, tmp_path: Path) -> None:
    before = server.posts
    outcome = evaluate(tmp_path, model_template(at(address, server)), server)
    assert isinstance(outcome, TaskError)
    assert "a template names models, never hosts" in str(outcome)
    assert (outcome.location or outcome.violations[0].span).line == 2
    assert server.posts == before, "nothing is sent"


@pytest.mark.parametrize("address", ADDRESSES)
def test_a_value_in_a_template_names_no_host(
    address: str, server: LoopbackServer, tmp_path: Path
) -> None:
    before = server.posts
    xml = model_template("{{ m }}").replace(
        "</description>", '</description><inputs><input name="m"/></inputs>'
    )
    outcome = evaluate(tmp_path, xml, server, {"m": at(address, server)})
    assert isinstance(outcome, TaskError)
    assert "a template names models, never hosts" in str(outcome)
    assert outcome.violations[0].span.line == 2
    assert server.posts == before


@pytest.mark.parametrize("address", ADDRESSES)
def test_a_model_of_a_call_a_role_or_a_profile_names_no_host(
    address: str, server: LoopbackServer, tmp_path: Path
) -> None:
    before, model = server.posts, at(address, server)
    role = model_template("x").replace("<model>x</model>", '<model role="r"/>')
    for number, (xml, options) in enumerate(
        [(model_template("x"), {"model": model}), (role, {"model_roles": {"r": model}})]
    ):
        (tmp_path / str(number)).mkdir()
        outcome = evaluate(tmp_path / str(number), xml, server, **options)
        assert isinstance(outcome, TaskError)
        assert "names no host" in outcome.message
    with pytest.raises(ConfigurationError, match="names no host"):
        ModelChooser(environ={}).choose(
            None, None, HandlerConfig(model=model, base_url=server.base_url)
        )
    with pytest.raises(ConfigurationError, match="names no host"):
        ModelChooser(environ={"EVALUATOR_MODEL": model}).choose(
            None, None, HandlerConfig(base_url=server.base_url)
        )
    assert server.posts == before


@pytest.mark.parametrize("name", NAMES)
def test_control_names_of_models_are_sent_to_the_endpoint_of_the_profile(
    name: str, server: LoopbackServer, tmp_path: Path
) -> None:
    before = server.posts
    outcome = evaluate(tmp_path, model_template(name), server)
    assert isinstance(outcome, TaskResult), outcome
    assert server.posts == before + 1
    assert name.endswith(server.bodies[-1]["model"])


# Keys: the profile, the model that a template names, the environment; whether the profile's key is used.
OWN, OTHER = "profile-key-1", "environment-key"
KEYED = HandlerConfig(name="p", backend="litellm", model="anthropic/claude-x", api_key_env="MY_KEY")
AT_HOST = HandlerConfig(
    name="p", backend="litellm", base_url="https://api.example/v1", api_key_env="MY_KEY"
)
OPENAI = HandlerConfig(name="p", backend="openai_compatible", model="gpt-x", api_key_env="MY_KEY")


@pytest.mark.parametrize(
    ("config", "model", "environ", "used"),
    [
        (KEYED, "groq/openai/gpt-oss-20b", {"GROQ_API_KEY": OTHER}, None),
        (KEYED, "openai/gpt-4o", {"OPENAI_API_KEY": OTHER}, None),
        (KEYED, "claude-x", {}, None),
        (KEYED.override(model="claude-x"), "gpt-4o", {}, None),
        (KEYED.override(backend="auto"), "mistral/m", {"MISTRAL_API_KEY": OTHER}, None),
        (KEYED.override(backend="auto"), "openai/gpt-4o", {"OPENAI_API_KEY": OTHER}, OTHER),
        (
            OPENAI.override(backend="auto", model="mistral/m"),
            "openai/gpt-x",
            {"OPENAI_API_KEY": OTHER},
            OTHER,
        ),
        (OPENAI.override(model="mistral/m"), "gpt-x", {"OPENAI_API_KEY": OTHER}, OTHER),
        # Controls: the same provider, the same endpoint.
        (KEYED, "anthropic/claude-y", {}, OWN),
        (KEYED, None, {}, OWN),
        (AT_HOST, "groq/x", {"GROQ_API_KEY": OTHER}, OWN),
        (OPENAI, "gpt-y", {"OPENAI_API_KEY": OTHER}, OWN),
    ],
)
def test_the_key_of_a_profile_goes_to_its_own_endpoint(
    config: HandlerConfig, model: str | None, environ: dict[str, str], used: str | None
) -> None:
    choice = ModelChooser(environ={**environ, "MY_KEY": OWN}, probe_local=False).choose(
        None, model, config
    )
    backend = choice.backend
    if isinstance(backend, OpenAICompatibleBackend):
        assert backend._headers.get("Authorization") == (f"Bearer {used}" if used else None)
    else:
        assert isinstance(backend, LiteLLMBackend)
        assert backend._fixed.get("api_key") == used


def test_a_missing_key_of_another_provider_is_an_error_that_says_whose_key_is_missing() -> None:
    chooser = ModelChooser(environ={"MY_KEY": OWN}, probe_local=False)
    with pytest.raises(
        ConfigurationError, match=r"needs GROQ_API_KEY, which is not set \(MY_KEY, the key of"
    ):
        chooser.choose(None, "groq/x", KEYED)


def test_litellm_takes_no_key_from_the_environment_for_the_address_of_a_profile(
    monkeypatch: pytest.MonkeyPatch, server: LoopbackServer, tmp_path: Path
) -> None:
    monkeypatch.setenv("GROQ_API_KEY", OTHER)
    (tmp_path / "t.xml").write_text(model_template("groq/x"), encoding="utf-8")
    config = HandlerConfig(backend="litellm", base_url=server.base_url, backoff_s=())
    library = TemplateLibrary.load(tmp_path, shipped=False)
    with Evaluator(library, config, profiles={}, tasks_dir=None, roots=[tmp_path]) as evaluator:
        assert evaluator.evaluate_sync("t").ok
    assert OTHER not in str(server.headers[-1])
    assert "no-key" in str(server.headers[-1])


PLAIN = [
    "http://api.example/v1",
    "http://10.0.0.7:8000/v1",
    "http://127.0.0.1.example/v1",
    "http://localhost.example",
]


@pytest.mark.parametrize("url", PLAIN)
def test_a_key_is_not_sent_over_plain_http(url: str) -> None:
    with pytest.raises(ConfigurationError, match="plain http"):
        OpenAICompatibleBackend(url, "key")
    with pytest.raises(ConfigurationError, match="plain http"):
        OpenAICompatibleBackend(url, headers={"X-API-Key": "key"})
    with pytest.raises(ConfigurationError, match="plain http"):
        OpenAICompatibleBackend(url.replace("://", "://me:password@"))
    with pytest.raises(ConfigurationError, match="plain http"):
        LiteLLMBackend(base_url=url, api_key="key")
    with pytest.raises(ConfigurationError, match="plain http"):
        McpServer(name="m", url=url, headers=(McpHeader("Authorization", "MY_KEY"),))
    with pytest.raises(ConfigurationError, match="plain http"):
        ModelChooser(environ={"MY_KEY": OWN}).choose(
            None, None, HandlerConfig(base_url=url, api_key_env="MY_KEY")
        )


@pytest.mark.parametrize(
    "url", ["https://api.example/v1", "http://127.0.0.1:1/v1", "http://[::1]:1", "http://localhost"]
)
def test_control_a_key_is_sent_over_https_and_to_this_machine(url: str) -> None:
    OpenAICompatibleBackend(url, "key")
    LiteLLMBackend(base_url=url, api_key="key")
    McpServer(name="m", url=url, headers=(McpHeader("Authorization", "MY_KEY"),))
    OpenAICompatibleBackend(url.replace("https", "http"), headers={"X-Trace": "1"})


@pytest.mark.parametrize(
    ("options", "url", "headers", "refused"),
    [
        ({"base_url": "https://api.example/v1"}, "https://evil.example/v1", {}, "another host"),
        (
            {"model": "baseten/x.evil.example"},
            "https://model-x.evil.example/v1",
            {},
            "the model's id names the host",
        ),
        ({}, "http://api.example/v1", {"authorization": "Bearer key"}, "over plain http"),
        ({}, "http://api.example/v1", {"x-api-key": "key"}, "over plain http"),
        (
            {"base_url": "https://api.example/v1"},
            "https://api.example/v1/chat",
            {"authorization": "Bearer key"},
            None,
        ),
        (
            {"model": "openrouter/meta/llama"},
            "https://openrouter.ai/v1",
            {"authorization": "Bearer key"},
            None,
        ),
        ({}, "http://api.example/v1", {"authorization": "Bearer no-key"}, None),
    ],
)
def test_the_guard_of_litellm_refuses_hosts_and_keys(
    options: dict[str, str], url: str, headers: dict[str, str], refused: str | None
) -> None:
    sent: list[str] = []

    async def send(request: httpx.Request) -> httpx.Response:
        sent.append(str(request.url))
        return httpx.Response(200, content=b"{}", request=request)

    guard = CallGuard(**options)  # type: ignore[arg-type]
    call = guard.send(send, httpx.Request("POST", url, headers=headers))
    if refused is None:
        asyncio.run(call)
        assert sent == [url]
    else:
        with pytest.raises(ResponseRefused, match=refused):
            asyncio.run(call)
        assert sent == []
