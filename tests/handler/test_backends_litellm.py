"""What LiteLLM would do by itself and must not: post twice, take long to import in the loop, chatter."""

from __future__ import annotations

import asyncio
import json

import pytest

from evaluator.errors import ProviderError
from evaluator.handler.litellm_backend import LiteLLMBackend
from evaluator.testing import KEY, LoopbackServer, Reply, a_request, error_reply, json_reply

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:pydantic", "ignore::DeprecationWarning")

CLAUDE = "anthropic/claude-sonnet-4-5"


def ask(server: LoopbackServer, model: str) -> object:
    async def run() -> object:
        backend = LiteLLMBackend(base_url=server.base_url.removesuffix("/v1"), api_key=KEY)
        try:
            return await backend.complete(a_request(model=model))
        except ProviderError as exc:
            return exc
        finally:
            await backend.aclose()

    return asyncio.run(run())


@pytest.mark.parametrize(
    "reply",
    [
        Reply(silent=True, end="reset"),
        Reply(silent=True, end="close"),
        Reply((b'{"id"',), length=1000, end="reset"),
        error_reply(500),
        error_reply(401),
    ],
    ids=["reset", "closed", "cut", "500", "401"],
)
def test_one_call_to_anthropic_is_one_post(reply: Reply) -> None:
    with LoopbackServer(reply) as server:
        error = ask(server, CLAUDE)
        assert isinstance(error, ProviderError)
        assert server.posts == 1
        assert error.kind in ("connection", "server", "authentication")
        assert KEY not in str(error)


def test_anthropics_own_shape_is_read() -> None:
    answer = {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-x",
        "content": [{"type": "text", "text": "hello"}], "stop_reason": "max_tokens",
        "usage": {"input_tokens": 5, "output_tokens": 2},
    }  # fmt: skip
    with LoopbackServer(json_reply(answer)) as server:
        response = ask(server, CLAUDE)
    assert getattr(response, "content", response) == "hello"
    assert response.finish_reason == "length"  # type: ignore[attr-defined]
    assert response.usage.input_tokens == 5  # type: ignore[attr-defined]


def test_the_key_is_not_shown() -> None:
    shown = repr(LiteLLMBackend(base_url="http://x", api_key=KEY))
    assert KEY not in shown
    assert json.dumps("http://x")[1:-1] in shown
