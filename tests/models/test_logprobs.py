"""Log probabilities of tokens: asked for, read, recorded; a server without them is an error."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

import pytest

from evaluator import (
    Backend,
    LiteLLMBackend,
    Message,
    ModelRequest,
    ModelResponse,
    OpenAICompatibleBackend,
    ProviderError,
    SimulatedBackend,
    TokenLogprob,
)
from evaluator.testing import LoopbackServer, chunk, json_reply, stream_reply
from tests.models.table_model import likelihood, table_server

_CONTENT = [
    {
        "token": "B",
        "logprob": -0.25,
        "top_logprobs": [{"token": "B", "logprob": -0.25}, {"token": "A", "logprob": -1.5}],
    },
    {"token": "!", "logprob": -0.5, "top_logprobs": []},
]
TOKENS = (TokenLogprob("B", -0.25, {"B": -0.25, "A": -1.5}), TokenLogprob("!", -0.5))


def _completion(logprobs: Any) -> Any:
    choice = {
        "message": {"role": "assistant", "content": "B!"},
        "finish_reason": "stop",
        "logprobs": logprobs,
    }
    return json_reply(
        {
            "object": "chat.completion",
            "id": "c",
            "created": 1,
            "model": "m",
            "choices": [{"index": 0, **choice}],
        }
    )


def _request(**more: Any) -> ModelRequest:
    return ModelRequest("m", (Message("user", "apple banana cherry"),), **more)


async def _ask(backend: Backend, request: ModelRequest, on_text: Any = None) -> ModelResponse:
    try:
        return await backend.complete(request, on_text=on_text)
    finally:
        await backend.aclose()


BACKENDS: list[tuple[str, Callable[[str], Backend], str]] = [
    ("openai_compatible", lambda url: OpenAICompatibleBackend(url, "k"), "m"),
    ("litellm", lambda url: LiteLLMBackend(base_url=url, api_key="k"), "openai/m"),
]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("name", "make", "model"), BACKENDS, ids=[each[0] for each in BACKENDS])
def test_they_are_asked_for_and_read(name: str, make: Callable[[str], Backend], model: str) -> None:
    request = ModelRequest(model, (Message("user", "hi"),), logprobs=2)
    with LoopbackServer(_completion({"content": _CONTENT}), _completion(None)) as server:
        response = asyncio.run(_ask(make(server.base_url), request))
        assert (server.bodies[0]["logprobs"], server.bodies[0]["top_logprobs"]) == (True, 2)
        assert response.logprobs == TOKENS
        assert ModelResponse.from_dict(response.to_dict(), None).logprobs == TOKENS
        with pytest.raises(ProviderError, match="returned no logprobs") as caught:
            asyncio.run(_ask(make(server.base_url), request))
        assert caught.value.kind == "bad_request" and not caught.value.retryable


def test_a_stream_has_them_too() -> None:
    chunks = [
        {
            **chunk({"content": entry["token"]}),
            "choices": [
                {"index": 0, "delta": {"content": entry["token"]}, "logprobs": {"content": [entry]}}
            ],
        }
        for entry in _CONTENT
    ]
    with LoopbackServer(stream_reply([*chunks, chunk({}, finish_reason="stop")])) as server:
        backend = OpenAICompatibleBackend(server.base_url)
        response = asyncio.run(_ask(backend, _request(logprobs=0), on_text=lambda text: None))
        assert response.logprobs == TOKENS and "top_logprobs" not in server.bodies[0]


def test_a_prompt_is_scored_with_echo() -> None:
    with table_server() as server:
        backend = OpenAICompatibleBackend(server.base_url)
        response = asyncio.run(_ask(backend, _request(logprobs=1, echo=True)))
        assert server.paths == ["/v1/completions"] and response.content == "apple banana cherry"
        assert server.bodies[0]["echo"] is True and response.finish_reason == "stop"
        assert [token.logprob for token in response.logprobs] == [
            None,
            pytest.approx(math.log(0.5)),
            pytest.approx(math.log(0.5)),
        ]
        total = sum(token.logprob or 0 for token in response.logprobs)
        assert total == pytest.approx(likelihood("apple", " banana cherry"), abs=1e-6)


def test_the_simulated_model_makes_them_up() -> None:
    answer = asyncio.run(_ask(SimulatedBackend(), _request(logprobs=1)))
    assert "".join(token.token for token in answer.logprobs) == answer.content
    assert all(token.logprob is not None and token.is_most_likely for token in answer.logprobs)
    prompt = asyncio.run(_ask(SimulatedBackend(), _request(echo=True)))
    assert prompt.content == "apple banana cherry" and prompt.logprobs[0].logprob is None


def test_a_server_without_echo_is_an_error_that_says_so() -> None:
    answer = json_reply({"choices": [{"text": "apple pie", "logprobs": None}]})
    with LoopbackServer(answer) as server:
        backend = OpenAICompatibleBackend(server.base_url)
        with pytest.raises(ProviderError, match="no completions with echo"):
            asyncio.run(_ask(backend, _request(logprobs=1, echo=True)))
    litellm = LiteLLMBackend(api_key="k")
    with pytest.raises(ProviderError, match="LiteLLM has no echo"):
        asyncio.run(_ask(litellm, _request(echo=True)))
    two = (Message("system", "s"), Message("user", "u"))
    with pytest.raises(ProviderError, match="one message"):
        asyncio.run(
            _ask(OpenAICompatibleBackend("http://127.0.0.1:1"), ModelRequest("m", two, echo=True))
        )
