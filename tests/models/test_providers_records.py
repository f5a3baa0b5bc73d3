"""What a task file records of a provider's answers and errors: complete, in time, and equal for both wire backends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from evaluator import (
    Backend,
    Evaluator,
    HandlerConfig,
    LiteLLMBackend,
    OpenAICompatibleBackend,
    ProviderError,
    Recording,
    ReplayBackend,
    TaskError,
    TaskResult,
    TaskStore,
    TemplateLibrary,
)
from evaluator.models.litellm_guard import load_litellm
from evaluator.record.json_difference import first_difference
from evaluator.testing import (
    KEY,
    Answer,
    HttpReply,
    LoopbackServer,
    chunk,
    error_reply,
    event,
    json_reply,
    stream_reply,
)

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

BACKENDS: dict[str, tuple[str, Callable[[str], Backend]]] = {
    "openai_compatible": ("some-model", lambda url: OpenAICompatibleBackend(url, KEY)),
    "litellm": ("openai/some-model", lambda url: LiteLLMBackend(base_url=url, api_key=KEY)),
}
SCHEMA = '{"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}'
LIBRARY = (
    '<task name="plain" type="atomic"><description>Say ok</description></task>',
    f'<task name="data" type="atomic"><description>Count</description><output_format type="json" schema=\'{SCHEMA}\'/></task>',
    '<task name="look" type="atomic"><description>Look</description><tools><tool name="read_file"/></tools></task>',
)


class Setting:
    """One backend with its server and a folder for its task files."""

    def __init__(self, name: str, server: LoopbackServer, folder: Path) -> None:
        self.model, make = BACKENDS[name]
        self.server = server
        self.folder = folder
        self.make = make

    def evaluate(
        self, task: str, *replies: HttpReply | Answer, stream: bool = False, **config: Any
    ) -> tuple[TaskResult | TaskError, Recording]:
        library = TemplateLibrary()
        for text in LIBRARY:
            library.add(text)
        settings: dict[str, Any] = {
            "backoff_s": (),
            "timeout_s": 100.0,
            "roots": (str(self.folder),),
            **config,
        }
        self.server.enqueue(*replies)

        async def run() -> TaskResult | TaskError:
            backend = self.make(self.server.base_url)
            evaluator = Evaluator(
                library,
                HandlerConfig(name="test", **settings),
                model=self.model,
                backend=backend,
                tasks_dir=self.folder / "tasks",
            )
            try:
                return await evaluator.evaluate(task, on_text=(lambda _: None) if stream else None)
            finally:
                await backend.aclose()

        outcome = asyncio.run(run())
        assert outcome.task_id is not None
        return outcome, TaskStore(self.folder / "tasks").read(outcome.task_id)


@pytest.fixture(autouse=True, scope="module")
def _litellm_is_there() -> None:
    """LiteLLM is imported before the tests: that takes seconds."""
    load_litellm()


@pytest.fixture(params=list(BACKENDS))
def setting(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Setting]:
    with LoopbackServer() as server:
        yield Setting(request.param, server, tmp_path)


def half(end: Any) -> HttpReply:
    return stream_reply([chunk({"content": "half "})], done=False, end=end)


CUT = HttpReply((b'{"id"',), length=1000, end="reset")
DRIP = HttpReply((b" ",) * 1000, length=1000, pause_s=0.02, end="hang")
BIG = HttpReply((b" " * 65536,), length=200_000_000, repeat=True)
CALL = ("call_a", "read_file", '{"path": "a.txt"}')
NO_RETRY: dict[str, Any] = {}
AT_ONCE: dict[str, Any] = {"backoff_s": (0.0,)}
SOON: dict[str, Any] = {"timeout_s": 0.4}

# name, replies, streamed, profile, and what the last model step's error begins with; "" for an answer.
FAULTS: list[tuple[str, list[HttpReply | Answer], bool, dict[str, Any], str]] = [
    ("429", [error_reply(429)], False, NO_RETRY, "rate_limit"),
    ("429 then an answer", [error_reply(429)], False, AT_ONCE, ""),
    ("429 with Retry-After", [error_reply(429, headers={"Retry-After": "0"})], False, AT_ONCE, ""),
    (
        "429 with a long Retry-After",
        [error_reply(429, headers={"Retry-After": "900"})],
        False,
        AT_ONCE,
        "rate_limit",
    ),
    ("500", [error_reply(500)], False, NO_RETRY, "server"),
    ("500 twice", [error_reply(500)] * 2, False, AT_ONCE, "server"),
    ("502", [error_reply(502)], False, NO_RETRY, "server"),
    ("503", [error_reply(503)], False, NO_RETRY, "server"),
    ("529", [error_reply(529)], False, NO_RETRY, "server"),
    ("401", [error_reply(401, f"bad key {KEY}")], False, AT_ONCE, "authentication"),
    ("reset in mid-body", [CUT], False, NO_RETRY, "connection"),
    ("reset in mid-stream", [half("reset")], True, NO_RETRY, "connection"),
    ("a stream that ends early", [half("complete")], True, NO_RETRY, "malformed_response"),
    ("hang after headers", [HttpReply((), length=1000, end="hang")], False, SOON, "timeout"),
    ("hang in mid-stream", [half("hang")], True, SOON, "timeout"),
    ("slow drip", [DRIP], False, SOON, "timeout"),
    (
        "truncated JSON",
        [HttpReply((b'{"choices": [{"mess',))],
        False,
        NO_RETRY,
        "malformed_response",
    ),
    (
        "empty choices",
        [json_reply({"id": "x", "model": "m", "choices": []})],
        False,
        NO_RETRY,
        "malformed_response",
    ),
    ("null content", [Answer(None, "stop")], False, NO_RETRY, ""),
    (
        "invalid tool arguments",
        [Answer(None, "tool_calls", [("c", "read_file", '{"path": ')])],
        False,
        NO_RETRY,
        "",
    ),
    (
        "unknown tool",
        [Answer(None, "tool_calls", [("c", "no_such_tool", "{}")])],
        False,
        NO_RETRY,
        "",
    ),
    ("refusal", [Answer(None, "stop", extra={"refusal": "I will not."})], False, NO_RETRY, ""),
    ("length", [Answer("cut of", "length")], False, NO_RETRY, ""),
    ("content_filter", [Answer("", "content_filter")], False, NO_RETRY, ""),
    (
        "wrong content type",
        [HttpReply((b"<!DOCTYPE html>",), content_type="text/html")],
        False,
        NO_RETRY,
        "malformed_response",
    ),
    ("200 MB", [BIG], False, NO_RETRY, "malformed_response"),
    (
        "invalid UTF-8",
        [HttpReply((b'{"choices": "\xff"}',))],
        False,
        NO_RETRY,
        "malformed_response",
    ),
    (
        "rubbish in a stream",
        [
            HttpReply(
                (event(chunk({"content": "half "})), b"data: {oops\n\n"),
                content_type="text/event-stream",
            )
        ],
        True,
        NO_RETRY,
        "malformed_response",
    ),
    (
        "repeated chunks",
        [stream_reply([chunk({"content": "ok"}), *[chunk({}, finish_reason="stop")] * 2])],
        True,
        NO_RETRY,
        "",
    ),
]
ENDS = {
    "null content": ("INVALID_OUTPUT", "returned nothing"),
    "refusal": ("TASK_FAILURE", "is a refusal"),
    "length": ("RESOURCE_EXHAUSTION", "cut off"),
    "content_filter": ("TASK_FAILURE", "content filter"),
}


@pytest.mark.parametrize("fault", FAULTS, ids=[fault[0] for fault in FAULTS])
def test_every_fault_ends_in_time_and_its_result_and_record_say_what_happened(
    setting: Setting, fault: tuple[str, list[HttpReply | Answer], bool, dict[str, Any], str]
) -> None:
    name, replies, stream, config, kind = fault
    (setting.folder / "a.txt").write_text("x")
    outcome, recording = setting.evaluate("look", *replies, stream=stream, **config)
    steps = [step for step in recording.steps if step.start.kind == "model"]
    last = steps[-1]
    assert last.end is not None
    assert recording.summary is not None
    assert KEY not in str(recording.to_dict())
    if kind == "timeout" and last.status == "aborted":
        # The provider's time, with its message, or that of the task, which may run out just after.
        assert isinstance(outcome, TaskError)
        assert last.end.reason_word == "timeout"
        reasons = {"execution_timeout"}
        if last.end.error != "timeout":
            reasons.add("provider_failure")
        assert outcome.reason in reasons
    elif kind:
        assert isinstance(outcome, TaskError)
        assert last.status == "failed"
        assert (last.end.error or "").startswith(f"{kind}: "), last.end.error
        if "Retry-After" not in name:
            assert outcome.reason == "provider_failure"
            assert outcome.details["kind"] == kind
            assert isinstance(outcome.cause, ProviderError)
            assert outcome.message.startswith(f"model call failed: {outcome.cause.message}")
            assert outcome.cause.message in (last.end.error or "")
    elif name in ENDS:
        assert isinstance(outcome, TaskError)
        assert (outcome.type, ENDS[name][1] in outcome.message) == (ENDS[name][0], True), outcome
        assert last.status == "success"
    else:
        assert isinstance(outcome, TaskResult)
        assert outcome.content == "ok"
    if "stream" in name and kind and kind != "timeout":
        assert outcome.content == last.end.output == "half "
    if name in ("invalid tool arguments", "unknown tool"):
        (tool,) = (step for step in recording.steps if step.start.kind == "tool")
        assert tool.status == "failed"
        assert len(steps) == 2


def test_a_wait_longer_than_the_time_limit_is_not_begun(setting: Setting) -> None:
    outcome, _ = setting.evaluate(
        "plain", error_reply(429, headers={"Retry-After": "900"}), backoff_s=(0.0,)
    )
    assert isinstance(outcome, TaskError)
    assert (outcome.type, outcome.reason) == ("RESOURCE_EXHAUSTION", "execution_timeout")
    assert "waiting 900 s" in outcome.message


@pytest.mark.parametrize("how", ["native", "text"])
def test_a_replay_answers_the_recorded_requests(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With thinking that is sent back, calls as text and an attached image."""
    monkeypatch.setattr("evaluator.models.text_tools.new_mark", lambda: "test")
    (tmp_path / "a.txt").write_text("forty-two")
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    library = TemplateLibrary()
    library.add(
        '<task name="look" type="atomic"><description>Look</description><file_paths><path>a.png</path></file_paths>'
        '<tools><tool name="read_file"/></tools></task>'
    )
    thinking = {"thinking_blocks": [{"type": "thinking", "thinking": "hm", "signature": "c2ln"}]}
    spoken = (
        '<tool_call_test>{"name": "read_file", "arguments": {"path": "a.txt"}}</tool_call_test>'
    )
    called = (
        Answer(None, "tool_calls", [CALL], extra=thinking)
        if how == "native"
        else Answer(spoken, extra=thinking)
    )
    profile = HandlerConfig(name="test", model="m", tool_calling=how, roots=(str(tmp_path),))  # type: ignore[arg-type]

    async def run(backend: Backend, tasks: str) -> TaskResult | TaskError:
        try:
            return await Evaluator(
                library, profile, backend=backend, tasks_dir=tmp_path / tasks
            ).evaluate("look")
        finally:
            await backend.aclose()

    with LoopbackServer(called) as server:
        first = asyncio.run(run(OpenAICompatibleBackend(server.base_url), "first"))
        assert server.bodies[1]["messages"][-2]["thinking_blocks"] == thinking["thinking_blocks"]
    recording = TaskStore(tmp_path / "first").read(1)
    assert [step.start.kind for step in recording.steps].count("tool") == 1
    again = asyncio.run(run(ReplayBackend(recording), "again"))
    assert isinstance(again, TaskResult)
    assert again.content == first.content
    assert again.usage.turns == first.usage.turns == 2


# -- the same tasks, the same records --------------------------------------------------------------------------------

THOUGHT = {"reasoning_content": "six times seven"}
SAME: dict[str, tuple[str, list[HttpReply | Answer], bool, dict[str, Any]]] = {
    "text": ("plain", [], False, {}),
    "streamed text": ("plain", [], True, {}),
    "settings": (
        "plain",
        [],
        False,
        {"temperature": 0.5, "seed": 7, "max_output_tokens": 99, "system": "Be brief."},
    ),
    "no usage": ("plain", [Answer(usage=None)], False, {}),
    "reasoning": ("plain", [Answer("42", extra=THOUGHT)], False, {}),
    "streamed reasoning": ("plain", [Answer("42", extra=THOUGHT)], True, {}),
    "data": ("data", [Answer('{"n": 1}')], False, {"native_output": True}),
    "data in a fence": ("data", [Answer('```json\n{"n": 1,}\n```')], False, {}),
    "no data": ("data", [Answer("none")], False, {}),
    "a tool": ("look", [Answer("Let me see.", "tool_calls", [CALL])], False, {}),
    "a streamed tool": ("look", [Answer("Let me see.", "tool_calls", [CALL])], True, {}),
    "a tool in text": (
        "look",
        [
            Answer(
                '<tool_call_test>{"name": "read_file", "arguments": {"path": "a.txt"}}</tool_call_test>'
            )
        ],
        True,
        {"tool_calling": "text"},
    ),
    "two tools": (
        "look",
        [Answer(None, "tool_calls", [CALL, ("call_b", "no_such_tool", "{}")])],
        False,
        {},
    ),
    "429 once": (
        "plain",
        [error_reply(429, "slow down", headers={"Retry-After": "0"})],
        False,
        {"backoff_s": (0.0,)},
    ),
    "500 twice": ("plain", [error_reply(500, "broken")] * 2, False, {"backoff_s": (0.0,)}),
    "401": ("plain", [error_reply(401, "who are you?")], False, {}),
    "schema refused": (
        "data",
        [error_reply(400, "unknown field response_format"), Answer('{"n": 1}')],
        False,
        {"native_output": True},
    ),
    "too long": (
        "plain",
        [error_reply(400, "maximum context length is 8", code="context_length_exceeded")],
        False,
        {},
    ),
    "refusal": ("plain", [Answer(None, "stop", extra={"refusal": "I will not."})], False, {}),
    "length": ("plain", [Answer("cut of", "length")], False, {}),
    "unknown ending": ("plain", [Answer("x", "tired")], False, {}),
    "empty choices": ("plain", [json_reply({"id": "x", "model": "m", "choices": []})], False, {}),
}
_MASKED = frozenset(
    {
        "signature",
        "task_id",
        "created",
        "started",
        "owner",
        "ended",
        "at",
        "duration_s",
        "elapsed_s",
        "waited_s",
        "fingerprint",
        "task_file",
    }
)


def said(body: Any) -> Any:
    """A request without null values: an absent content equals a null one."""
    if isinstance(body, list):
        return [said(item) for item in body]
    if isinstance(body, dict):
        return {key: said(item) for key, item in body.items() if item is not None}
    return body


def masked(value: Any, label: str) -> Any:
    """A recording without its times, ids, signature and the model's label."""
    if isinstance(value, Mapping):
        known: dict[str, Any] = dict(value)
        return {key: masked(item, label) for key, item in known.items() if key not in _MASKED}
    if isinstance(value, list | tuple):
        return [masked(item, label) for item in value]
    return value.replace(label, "<model>") if isinstance(value, str) else value


@pytest.mark.parametrize("case", list(SAME))
def test_the_same_task_leaves_the_same_record_through_both(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evaluator.models.text_tools.new_mark", lambda: "test")
    task, replies, stream, config = SAME[case]
    records: list[Any] = []
    asked: list[Any] = []
    folder = tmp_path / "roots"
    folder.mkdir()
    (folder / "a.txt").write_text("forty-two")
    for name in BACKENDS:
        with LoopbackServer() as server:
            setting = Setting(name, server, tmp_path / name)
            _, recording = setting.evaluate(
                task, *replies, stream=stream, **{**config, "roots": (str(folder),)}
            )
            url = server.base_url.removesuffix("/v1")
            records.append(
                json.loads(
                    json.dumps(masked(recording.to_dict(), setting.model))
                    .replace(url, "")
                    .replace(url.removeprefix("http://"), "")
                )
            )
            asked.append([said(body) for body in server.bodies])
    assert records[0] == records[1], first_difference(*records)
    assert len(asked[0]) == len(asked[1])
    for one, other in zip(*asked, strict=True):
        assert one == other
