"""The batch APIs: the test server behaves as the official SDKs expect, and requests are what the APIs take."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evaluator import (
    Attachment,
    CacheMark,
    ConfigurationError,
    LiteLLMBackend,
    Message,
    ModelRequest,
    OpenAICompatibleBackend,
    ProviderError,
    ToolCall,
    ToolSpec,
)
from evaluator.models.anthropic_batches import message_request, read_message
from evaluator.models.batch_api import BatchApi
from evaluator.models.gemini_batches import content_request, read_content
from evaluator.models.openai_batches import OpenAIBatches
from evaluator.models.provider_batches import (
    ProviderBatch,
    ProviderBatches,
    batches_of,
    is_certainly_absent,
)
from evaluator.testing import HttpReply, LoopbackServer, json_reply
from tests.provider_jobs import DAY_S
from tests.provider_server import ProviderServer

KEY = "sk-secret-of-the-test"
ASK = ModelRequest("gpt-4o-mini", (Message("user", "Say x"),), max_output_tokens=9)


@pytest.fixture
def server() -> Iterator[ProviderServer]:
    with ProviderServer() as server:
        yield server


def test_the_server_is_what_the_sdk_of_openai_expects(
    server: ProviderServer, tmp_path: Path
) -> None:
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=server.url, api_key=KEY, max_retries=0) as client:
        line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions"}
        body = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "xyz"}]}
        path = tmp_path / "requests.jsonl"
        path.write_text(json.dumps({**line, "body": body}) + "\n")
        file = client.files.create(file=path, purpose="batch")
        endpoint = "/v1/chat/completions"
        made = client.batches.create(
            input_file_id=file.id,
            endpoint=endpoint,
            completion_window="24h",
            metadata={"evaluator": "t"},
        )
        assert [(each.id, each.metadata) for each in client.batches.list()] == [
            (made.id, {"evaluator": "t"})
        ]
        server.now += DAY_S
        done = client.batches.retrieve(made.id)
        assert (done.status, done.request_counts.completed) == ("completed", 1)
        output = json.loads(client.files.content(done.output_file_id).text)
        assert output["custom_id"] == "a"
        assert output["response"]["body"]["choices"][0]["message"]["content"] == "3"
        other = client.batches.create(
            input_file_id=file.id, endpoint=endpoint, completion_window="24h"
        )
        assert client.batches.cancel(other.id).status == "cancelling"
        assert client.files.delete(file.id).deleted
        with pytest.raises(openai.NotFoundError):
            client.batches.retrieve("batch_none")


def test_the_server_is_what_the_sdk_of_anthropic_expects(server: ProviderServer) -> None:
    anthropic = pytest.importorskip("anthropic")
    with anthropic.Anthropic(
        base_url=server.url.removesuffix("/v1"), api_key=KEY, max_retries=0
    ) as client:
        params = {
            "model": "claude-haiku-4-5",
            "max_tokens": 9,
            "messages": [{"role": "user", "content": "xyz"}],
        }
        made = client.messages.batches.create(requests=[{"custom_id": "a", "params": params}])
        assert (made.processing_status, made.request_counts.processing) == ("in_progress", 1)
        assert [each.id for each in client.messages.batches.list()] == [made.id]
        server.now += DAY_S
        done = client.messages.batches.retrieve(made.id)
        assert (done.processing_status, done.request_counts.succeeded) == ("ended", 1)
        [result] = client.messages.batches.results(made.id)
        assert (result.custom_id, result.result.message.content[0].text) == ("a", "3")
        other = client.messages.batches.create(requests=[{"custom_id": "b", "params": params}])
        assert client.messages.batches.cancel(other.id).processing_status == "canceling"
        client.messages.batches.retrieve(other.id)
        assert client.messages.batches.delete(made.id).id == made.id
        with pytest.raises(anthropic.NotFoundError):
            client.messages.batches.retrieve(made.id)


def anthropic_batches(url: str) -> ProviderBatches:
    backend = LiteLLMBackend(base_url=url.removesuffix("/v1"), api_key=KEY)
    found = batches_of(backend, "anthropic/claude-haiku-4-5")
    assert found is not None
    return found


def openai_batches(url: str) -> ProviderBatches:
    found = batches_of(OpenAICompatibleBackend(url, KEY), "gpt-4o-mini")
    assert found is not None
    return found


def create(
    batches: ProviderBatches, path: Path, request: ModelRequest = ASK, count: int = 2
) -> Any:
    """Creates a batch of `count` requests and reads its answers."""

    path.write_bytes(b"".join(batches.request_line(f"c{n}", request) for n in range(count)))

    async def work() -> Any:
        try:
            upload = await batches.upload(path, "tag", is_repeated=False)
            made = await batches.create(path, upload, "tag")
            while not made.is_over:
                made = await batches.look(made.id)
            return {each.custom_id: each async for each in batches.answers(made)}
        finally:
            await batches.aclose()

    return asyncio.run(work())


def test_both_formats_answer_and_send_the_key_in_their_own_header(
    server: ProviderServer, tmp_path: Path
) -> None:
    answers = create(openai_batches(server.url), tmp_path / "r")
    assert {name: each.response.content for name, each in answers.items()} == {"c0": "5", "c1": "5"}
    claude = ModelRequest("anthropic/claude-haiku-4-5", ASK.messages, max_output_tokens=9)
    answers = create(anthropic_batches(server.url), tmp_path / "s", claude)
    assert {name: each.response.content for name, each in answers.items()} == {"c0": "5", "c1": "5"}
    assert answers["c0"].response.usage.input_tokens == 16
    assert server.keys == {f"Bearer {KEY}", KEY}


def test_azure_has_other_paths_and_checks_a_file_before_it_can_be_used(
    server: ProviderServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evaluator.models.openai_batches._CHECK_S", 0.0)
    server.is_azure = True
    answers = create(openai_batches(server.url), tmp_path / "r")
    assert len(answers) == 2 and server.operations[:3] == ["upload", "get", "get"]
    azure = OpenAIBatches(
        BatchApi("https://x.openai.azure.com/openai/v1", {}, (), None), "max_tokens"
    )
    assert json.loads(azure.request_line("c", ASK))["url"] == "/chat/completions"


def test_a_backend_without_a_batch_api_says_so() -> None:
    assert batches_of(LiteLLMBackend(), "groq/x") is None


def test_a_key_is_not_sent_over_plain_http() -> None:
    with pytest.raises(ConfigurationError, match="plain http"):
        LiteLLMBackend(base_url="http://example.org", api_key=KEY)


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (json_reply({}, status=307, headers={"Location": "http://127.0.0.1:1/"}), "other"),
        (json_reply({"error": {"message": f"wrong key {KEY}"}}, status=401), "authentication"),
        (HttpReply((b"x" * 1000,) * 20_000, length=-1), "malformed_response"),
        (HttpReply((b"{}",), end="close", length=50), "connection"),
    ],
)
def test_a_redirect_a_large_answer_and_a_broken_one_are_errors_without_the_key(
    reply: HttpReply, kind: str
) -> None:
    with LoopbackServer(default=reply) as server:

        async def look() -> None:
            batches = openai_batches(server.base_url)
            try:
                await batches.look("batch_1")
            finally:
                await batches.aclose()

        with pytest.raises(ProviderError) as caught:
            asyncio.run(look())
        assert caught.value.kind == kind and KEY not in str(caught.value)
        assert server.paths == ["/v1/batches/batch_1"]


@pytest.mark.parametrize(
    ("model", "made"),
    [
        ("gpt-4o-mini", {"status": "validating"}),
        ("mistral/mistral-small", {"status": "QUEUED"}),
        ("gemini/gemini-2.5-flash", {"metadata": {"state": "BATCH_STATE_PENDING"}}),
        ("anthropic/claude-haiku-4-5", {"processing_status": "in_progress"}),
    ],
)
def test_a_created_batch_without_an_id_may_exist(
    model: str, made: dict[str, Any], tmp_path: Path
) -> None:
    """Else it would be created again, and billed twice."""
    file = tmp_path / "requests"
    with LoopbackServer(default=json_reply(made)) as server:
        if "/" in model:
            url = server.base_url.removesuffix("/v1")
            batches = batches_of(LiteLLMBackend(base_url=url, api_key=KEY), model)
        else:
            batches = openai_batches(server.base_url)
        assert batches is not None
        file.write_bytes(batches.request_line("c1", ASK))

        async def work() -> None:
            try:
                await batches.create(file, "file-1", "tag")
            finally:
                await batches.aclose()

        with pytest.raises(ProviderError) as caught:
            asyncio.run(work())
        assert caught.value.kind == "malformed_response"
        assert not is_certainly_absent(caught.value)


PNG = b"\x89PNG\r\n\x1a\n" + bytes(8)
CALL = ToolCall("t1", "look", arguments='{"at": "x"}')
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "s"}


def test_a_conversation_with_tools_is_in_the_shape_of_anthropic() -> None:
    messages = (
        Message("system", "Be brief"),
        Message("user", "See", attachments=(Attachment("image/png", PNG, "a.png"),)),
        Message("assistant", "I look", tool_calls=(CALL,), thinking=(THOUGHT,)),
        Message("tool", "seen", tool_call_id="t1"),
        Message("user", "And?"),
    )
    tool = ToolSpec("look", "Looks", {"type": "object"})
    request = ModelRequest(
        "anthropic/claude-haiku-4-5",
        messages,
        (tool,),
        50,
        temperature=0.5,
        stop=("END",),
        cache_marks=(CacheMark(0, len("Be brief")), CacheMark(4, len("And?"))),
    )
    body = message_request(request)
    image = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgoAAAAAAAAAAA=="}
    mark = {"cache_control": {"type": "ephemeral"}}
    assert body == {
        "model": "claude-haiku-4-5",
        "max_tokens": 50,
        "system": [{"type": "text", "text": "Be brief", **mark}],
        "messages": [
            {
                "role": "user",
                "content": [{"type": "image", "source": image}, {"type": "text", "text": "See"}],
            },
            {
                "role": "assistant",
                "content": [
                    THOUGHT,
                    {"type": "text", "text": "I look"},
                    {"type": "tool_use", "id": "t1", "name": "look", "input": {"at": "x"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "t1",
                        "content": [{"type": "text", "text": "seen"}],
                    },
                    {"type": "text", "text": "And?", **mark},
                ],
            },
        ],
        "temperature": 0.5,
        "stop_sequences": ["END"],
        "tools": [{"name": "look", "description": "Looks", "input_schema": {"type": "object"}}],
    }


def test_a_conversation_with_tools_is_in_the_shape_of_gemini() -> None:
    signed = {"type": "thinking", "thinking": "", "signature": "s"}
    messages = (
        Message("system", "Be brief"),
        Message("user", "See", attachments=(Attachment("image/png", PNG, "a.png"),)),
        Message("assistant", "I look", tool_calls=(CALL,), thinking=(signed,)),
        Message("tool", "seen", tool_call_id="t1"),
        Message("user", "And?"),
    )
    tool = ToolSpec("look", "Looks", {"type": "object"})
    request = ModelRequest(
        "gemini/gemini-2.5-flash", messages, (tool,), 50, temperature=0.5, stop=("END",), seed=3
    )
    image = {"mimeType": "image/png", "data": "iVBORw0KGgoAAAAAAAAAAA=="}
    call = {"functionCall": {"name": "look", "args": {"at": "x"}}, "thoughtSignature": "s"}
    answer = {"functionResponse": {"name": "look", "response": {"output": "seen"}}}
    function = {
        "name": "look",
        "description": "Looks",
        "parametersJsonSchema": {"type": "object"},
    }
    assert content_request(request) == {
        "contents": [
            {"role": "user", "parts": [{"inlineData": image}, {"text": "See"}]},
            {"role": "model", "parts": [{"text": "I look"}, call]},
            {"role": "user", "parts": [answer, {"text": "And?"}]},
        ],
        "generationConfig": {
            "maxOutputTokens": 50,
            "temperature": 0.5,
            "seed": 3,
            "stopSequences": ["END"],
        },
        "systemInstruction": {"parts": [{"text": "Be brief"}]},
        "tools": [{"functionDeclarations": [function]}],
    }


def test_answers_of_gemini_have_thoughts_and_reasons() -> None:
    parts = [{"text": "hm", "thought": True}, {"text": "x"}]
    usage = {
        "promptTokenCount": 9,
        "candidatesTokenCount": 2,
        "thoughtsTokenCount": 5,
        "cachedContentTokenCount": 4,
    }
    candidate = {"content": {"parts": parts}, "finishReason": "MAX_TOKENS"}
    answer = read_content({"candidates": [candidate], "usageMetadata": usage})
    assert (answer.content, answer.reasoning, answer.finish_reason) == ("x", "hm", "length")
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (9, 7)
    assert (answer.usage.cached_tokens, answer.usage.reasoning_tokens) == (4, 5)
    blocked = read_content({"promptFeedback": {"blockReason": "SAFETY"}})
    assert blocked.finish_reason == "content_filter"
    with pytest.raises(ProviderError, match="no candidates"):
        read_content({})


def test_mistral_has_its_own_name_for_a_seed() -> None:
    batches = batches_of(LiteLLMBackend(api_key=KEY), "mistral/mistral-small")
    assert batches is not None
    request = ModelRequest("mistral/mistral-small", ASK.messages, seed=7)
    body = json.loads(batches.request_line("c", request))["body"]
    assert (body["model"], body["random_seed"], "seed" in body) == ("mistral-small", 7, False)


@pytest.mark.parametrize("field", [{"extra_body": {"x": 1}}, {"schema": {"type": "object"}}])
def test_what_gemini_does_not_take_is_refused(field: dict[str, Any]) -> None:
    with pytest.raises(ProviderError) as caught:
        content_request(ModelRequest("gemini-2.5-flash", ASK.messages, **field))
    assert caught.value.kind == "bad_request"


@pytest.mark.parametrize(
    "field", [{"seed": 1}, {"extra_body": {"x": 1}}, {"schema": {"type": "object"}}]
)
def test_what_anthropic_does_not_take_is_refused(field: dict[str, Any]) -> None:
    with pytest.raises(ProviderError) as caught:
        message_request(ModelRequest("claude-haiku-4-5", ASK.messages, **field))
    assert caught.value.kind == "bad_request"


def test_cached_tokens_of_anthropic_are_part_of_the_input() -> None:
    usage = {
        "input_tokens": 5,
        "output_tokens": 2,
        "cache_read_input_tokens": 70,
        "cache_creation_input_tokens": 20,
    }
    content = [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "text", "text": "x"},
    ]
    answer = read_message({"content": content, "stop_reason": "max_tokens", "usage": usage})
    assert (answer.content, answer.finish_reason, answer.reasoning) == ("x", "length", "hm")
    usage = answer.usage
    assert (usage.input_tokens, usage.cached_tokens, usage.cache_write_tokens) == (
        95,
        70,
        20,
    )


def read_answer(format: str, line: Any) -> Any:
    """The answer in one line of the results of a batch."""
    reply = HttpReply((json.dumps(line).encode() + b"\n",))
    with LoopbackServer(default=reply) as server:
        batches = {"openai": openai_batches, "anthropic": anthropic_batches}[format](
            server.base_url
        )

        async def read() -> Any:
            try:
                batch = ProviderBatch("b/\ud800", "ended", is_over=True, files=("f/\ud800",))
                [answer] = [each async for each in batches.answers(batch)]
                return answer
            finally:
                await batches.aclose()

        return asyncio.run(read())


@pytest.mark.parametrize(
    ("format", "line", "maybe_billed"),
    [
        ("openai", {"response": None, "error": {"code": "batch_expired"}}, False),
        ("openai", {"response": None, "error": None}, True),
        ("openai", {}, True),
        ("openai", {"response": "x", "error": "x"}, True),
        ("anthropic", {"result": {"type": "expired"}}, False),
        ("anthropic", {"result": {"type": "canceled"}}, False),
        ("anthropic", {"result": {"type": "unheard of"}}, True),
        ("anthropic", {"result": "x"}, True),
        ("anthropic", {}, True),
    ],
)
def test_a_result_of_no_known_form_may_have_been_billed(
    format: str, line: dict[str, Any], maybe_billed: bool
) -> None:
    answer = read_answer(format, {"custom_id": "c", **line})
    assert (answer.custom_id, answer.response) == ("c", None)
    assert (answer.error.maybe_billed, answer.error.retryable) == (maybe_billed, True)


@pytest.mark.parametrize("count", ["x", [], {}, True, -1, 1.5])
def test_a_count_of_no_known_form_leaves_the_usage_unknown(count: Any) -> None:
    usage = {"input_tokens": 5, "output_tokens": 2, "cache_read_input_tokens": count or "x"}
    message = {"content": [{"type": "text", "text": "x"}], "usage": usage}
    assert read_message(message).usage.input_tokens is None
    counts = {"promptTokenCount": 5, "candidatesTokenCount": 2, "thoughtsTokenCount": count or "x"}
    candidate = {"content": {"parts": [{"text": "x"}]}, "finishReason": "STOP"}
    answer = read_content({"candidates": [candidate], "usageMetadata": counts})
    assert answer.usage.output_tokens is None


@pytest.mark.parametrize("moment", [pytest.param(10**400, id="long"), -1, 1e300, "x", None])
def test_a_moment_outside_of_the_calendar_is_unknown(moment: Any) -> None:
    about = {"id": "b", "status": "in_progress", "created_at": moment, "expires_at": moment}
    with LoopbackServer(default=json_reply(about)) as server:

        async def look() -> ProviderBatch:
            batches = openai_batches(server.base_url)
            try:
                return await batches.look("b")
            finally:
                await batches.aclose()

        batch = asyncio.run(look())
    assert (batch.created, batch.expires) == (None, None)
