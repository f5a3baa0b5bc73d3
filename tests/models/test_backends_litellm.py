"""What LiteLLM must not do: post twice, follow redirects, block the event loop with its import, print."""

from __future__ import annotations

import asyncio
import json
import pickle
import warnings

import httpx
import pytest

from evaluator import LiteLLMBackend, ProviderError
from evaluator.models.litellm_guard import CallGuard, ResponseRefused, load_litellm
from evaluator.testing import KEY, HttpReply, LoopbackServer, a_request, error_reply, json_reply

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

CLAUDE = "anthropic/claude-sonnet-4-5"


def ask(server: LoopbackServer, model: str, *, stream: bool = False) -> object:
    async def run() -> object:
        backend = LiteLLMBackend(base_url=server.base_url.removesuffix("/v1"), api_key=KEY)
        try:
            return await backend.complete(
                a_request(model=model), on_text=[].append if stream else None
            )
        except ProviderError as exc:
            return exc
        finally:
            await backend.aclose()

    return asyncio.run(run())


@pytest.mark.parametrize(
    "reply",
    [
        HttpReply(silent=True, end="reset"),
        HttpReply(silent=True, end="close"),
        HttpReply((b'{"id"',), length=1000, end="reset"),
        error_reply(500),
        error_reply(401),
    ],
    ids=["reset", "closed", "cut", "500", "401"],
)
def test_one_call_to_anthropic_is_one_post(reply: HttpReply) -> None:
    with LoopbackServer(reply) as server:
        error = ask(server, CLAUDE)
        assert isinstance(error, ProviderError)
        assert server.posts == 1
        assert error.kind in ("connection", "server", "authentication")
        assert KEY not in str(error)


def test_a_used_backend_can_be_pickled() -> None:
    async def main() -> None:
        backend = LiteLLMBackend(base_url=server.base_url, api_key=KEY)
        await backend.complete(a_request(model="openai/m"))
        taken = pickle.loads(pickle.dumps(backend))
        assert (await taken.complete(a_request(model="openai/m"))).content == "ok"
        await taken.aclose()
        await backend.aclose()

    with LoopbackServer() as server:
        asyncio.run(main())


def test_anthropics_own_shape_is_read() -> None:
    answer = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-x",
        "content": [{"type": "text", "text": "hello"}],
        "stop_reason": "max_tokens",
        "usage": {"input_tokens": 5, "output_tokens": 2},
    }
    with LoopbackServer(json_reply(answer)) as server:
        response = ask(server, CLAUDE)
    assert getattr(response, "content", response) == "hello"
    assert response.finish_reason == "length"  # type: ignore[attr-defined]
    assert response.usage.input_tokens == 5  # type: ignore[attr-defined]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("status", [301, 307, 308])
@pytest.mark.parametrize("model", [CLAUDE, "gemini/gemini-2.5-flash"])
def test_key_and_prompt_are_not_sent_to_a_redirect(model: str, status: int, stream: bool) -> None:
    with LoopbackServer() as other, LoopbackServer() as server:
        for host in ("127.0.0.1", "localhost"):
            target = f"http://{host}:{other.port}/elsewhere"
            server.enqueue(
                json_reply({}, status=status, headers={"Location": f"{target}?key={KEY}"})
            )
            error = ask(server, model, stream=stream)
            assert isinstance(error, ProviderError)
            assert (error.kind, error.maybe_billed) == ("other", False)
            assert f"redirected to {target}; set the base URL to that" in error.message
            assert KEY not in str(error)
        assert KEY in server.headers[0].values() or KEY in server.paths[0]
        assert other.paths == []
        assert server.posts == 2


@pytest.mark.parametrize("model", [CLAUDE, "openai/loopback-1"])
def test_a_redirect_is_not_followed_by_httpx_transports_either(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISABLE_AIOHTTP_TRANSPORT", "True")
    with LoopbackServer() as other, LoopbackServer() as server:
        server.enqueue(
            json_reply(
                {}, status=307, headers={"Location": f"http://127.0.0.1:{other.port}/elsewhere"}
            )
        )
        error = ask(server, model)
        assert "redirected to" in str(error)
        assert (server.posts, other.paths) == (1, [])


def test_a_call_that_continues_at_another_host_is_refused() -> None:
    sent: list[str] = []

    async def send(request: httpx.Request) -> httpx.Response:
        sent.append(str(request.url))
        return httpx.Response(200, content=b"{}")

    async def run(guard: CallGuard) -> None:
        await guard.send(send, httpx.Request("POST", "https://a.example/v1"))
        await guard.send(send, httpx.Request("GET", "https://a.example/v2"))
        await guard.send(send, httpx.Request("GET", "https://b.example/v1"))

    guard = CallGuard()
    with pytest.raises(ResponseRefused, match="another host"):
        asyncio.run(run(guard))
    assert sent == ["https://a.example/v1", "https://a.example/v2"]
    assert guard.refused is not None


def test_the_key_is_not_shown() -> None:
    shown = repr(LiteLLMBackend(base_url="https://x", api_key=KEY))
    assert KEY not in shown
    assert json.dumps("https://x")[1:-1] in shown


def test_httpx_itself_is_not_changed_and_other_clients_are_not_guarded() -> None:
    async def run(server: LoopbackServer) -> CallGuard:
        load_litellm()
        with CallGuard() as guard:
            async with httpx.AsyncClient() as client:
                for _ in range(2):
                    await client.post(f"{server.base_url}/chat/completions", json={})
        return guard

    with LoopbackServer() as server:
        guard = asyncio.run(run(server))
        assert (server.posts, guard.answered) == (2, False)
    assert httpx.AsyncHTTPTransport.handle_async_request.__module__.startswith("httpx")


def test_pydantic_warnings_about_models_of_litellm_are_hidden_in_each_call() -> None:
    def warn() -> None:
        warnings.warn_explicit(
            "made late", UserWarning, "schema.py", 1, module="pydantic._internal._generate_schema"
        )

    for _ in range(2):
        # pytest does the same around each test.
        with warnings.catch_warnings():
            warnings.resetwarnings()
            warnings.simplefilter("error")
            with CallGuard():
                warn()
                with pytest.raises(UserWarning, match="ours"):
                    warnings.warn("ours", UserWarning, stacklevel=1)
