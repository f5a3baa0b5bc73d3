"""Images in tools' answers: on each wire, against the limits, in the record, and sent again after a resume."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from evaluator import (
    Attachment,
    Backend,
    CacheMark,
    Evaluator,
    HandlerConfig,
    LiteLLMBackend,
    Message,
    OpenAICompatibleBackend,
    ReplayBackend,
    TaskError,
    TaskResult,
    TaskStore,
    TemplateLibrary,
    Tool,
    ToolCall,
    tool,
)
from evaluator.models import attachments, prices
from evaluator.models.chat_wire import message_bodies
from evaluator.record.conversation import conversations
from evaluator.record.render import render_messages
from evaluator.testing import KEY, Answer, HttpReply, LoopbackServer, error_reply, json_reply
from evaluator.tools import FileAccess, ToolAnswer, ToolContext, ToolOutcome, ToolRegistry
from evaluator.tools.computer import computer_tool
from evaluator.tools.x_display import XDisplay

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

CLAUDE, GEMINI = "anthropic/claude-sonnet-4-5", "gemini/gemini-2.5-flash"


def png(number: int, size: int = 60) -> bytes:
    return (b"\x89PNG\r\n\x1a\n" + bytes([number]) * size)[:size]


def url(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()


class Camera:
    """A tool that returns a different image at each call, and counts them."""

    def __init__(self, size: int = 60) -> None:
        self.taken = 0
        self.size = size

    @property
    def tool(self) -> Tool:
        @tool(name="look")
        def look() -> ToolAnswer:
            """Take a picture."""
            self.taken += 1
            data = png(self.taken, self.size)
            return ToolAnswer(
                f"picture {self.taken}", (Attachment("image/png", data, f"camera {self.taken}"),)
            )

        return look


def looks(*ids: str) -> Answer:
    return Answer(None, "tool_calls", tool_calls=[(call, "look", "{}") for call in ids])


class Setting:
    """One profile, one folder of task files, and a tool that takes pictures."""

    def __init__(self, folder: Path, size: int = 60, **config: Any) -> None:
        self.tasks = folder / "tasks"
        self.camera = Camera(size)
        settings: dict[str, Any] = {"name": "test", "model": "m", "backoff_s": (), **config}
        self.config = HandlerConfig(**settings)

    def evaluator(self, backend: Backend) -> Evaluator:
        library = TemplateLibrary()
        library.add(
            '<task name="see" type="atomic"><description>See</description><tools><tool name="look"/></tools></task>'
        )
        return Evaluator(
            library, self.config, backend=backend, tasks_dir=self.tasks, tools=[self.camera.tool]
        )

    def run(
        self, server: LoopbackServer, *replies: HttpReply | Answer, resume: int | None = None
    ) -> TaskResult | TaskError:
        server.enqueue(*replies)

        async def go() -> TaskResult | TaskError:
            backend = OpenAICompatibleBackend(server.base_url)
            evaluator = self.evaluator(backend)
            try:
                return await (
                    evaluator.evaluate("see") if resume is None else evaluator.resume(resume)
                )
            finally:
                await backend.aclose()

        return asyncio.run(go())


# -- what a tool may give -----------------------------------------------------------------------------------------


def answer(*images: Attachment) -> ToolOutcome:
    @tool
    def show() -> ToolAnswer:
        """Show."""
        return ToolAnswer({"n": 1}, images)

    return asyncio.run(ToolRegistry([show]).call("show", "{}", ToolContext(FileAccess([]))))


def test_an_answer_has_a_value_and_images() -> None:
    image = Attachment("image/png", png(1), "a")
    assert answer(image) == ToolOutcome(True, '{"n": 1}', images=(image,))


def test_an_invalid_or_too_large_image_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (
        answer(Attachment("image/png", b"GIF89a", "x")).error == "x is not a valid image/png image"
    )
    assert answer(Attachment("application/pdf", b"%PDF-", "x")).code == "failed"
    monkeypatch.setattr(attachments, "MAX_IMAGE_BYTES", 59)
    assert "60 bytes, at most 59" in (answer(Attachment("image/png", png(1), "x")).error or "")
    monkeypatch.setattr(attachments, "MAX_IMAGE_BYTES", 60)
    monkeypatch.setattr(sys.modules["evaluator.tools.tool"], "MAX_BYTES_TOGETHER", 119)
    image = Attachment("image/png", png(1), "x")
    assert answer(image).ok
    assert (
        answer(image, image).error == "the images of one result may have at most 119 bytes in total"
    )


# -- on the wire --------------------------------------------------------------------------------------------------


def test_chat_completions_get_the_images_of_a_turn_after_its_answers(tmp_path: Path) -> None:
    setting = Setting(tmp_path)
    with LoopbackServer() as server:
        outcome = setting.run(server, looks("c1", "c2"), looks("c3"), Answer("seen"))
        first, second = (body["messages"] for body in server.bodies[1:])
    assert isinstance(outcome, TaskResult)
    assert [message["role"] for message in first[-4:]] == ["assistant", "tool", "tool", "user"]
    assert [message["content"] for message in first[-3:-1]] == ["picture 1", "picture 2"]
    assert first[-1]["content"] == [
        {"type": "text", "text": "The answer to the tool call c1:"},
        {"type": "image_url", "image_url": {"url": url(png(1))}},
        {"type": "text", "text": "The answer to the tool call c2:"},
        {"type": "image_url", "image_url": {"url": url(png(2))}},
    ]
    assert second[: len(first)] == first
    assert [message["role"] for message in second[len(first) :]] == ["assistant", "tool", "user"]


def test_a_model_with_text_tools_receives_the_images_with_the_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evaluator.models.text_tools.new_mark", lambda: "test")
    setting = Setting(tmp_path, tool_calling="text", model="mistral-small")
    call = '<tool_call_test>\n{"name": "look", "arguments": {}}\n</tool_call_test>'
    with LoopbackServer() as server:
        outcome = setting.run(server, Answer(call), Answer("seen"))
        last = server.bodies[1]["messages"][-1]
    assert isinstance(outcome, TaskResult)
    assert last["role"] == "user"
    assert last["content"] == [
        {"type": "image_url", "image_url": {"url": url(png(1))}},
        {"type": "text", "text": '<tool_result name="look">\npicture 1\n</tool_result>'},
    ]


CALLED = Message("assistant", "", (ToolCall("t1", "look", "{}"), ToolCall("t2", "look", "{}")))
TALK = (
    Message("user", "Look."),
    CALLED,
    Message("tool", "one", tool_call_id="t1", attachments=(Attachment("image/png", png(1), "a"),)),
    Message("tool", "two", tool_call_id="t2"),
)


def ask_litellm(
    model: str, reply: HttpReply, messages: tuple[Message, ...], **fields: Any
) -> tuple[dict[str, Any], dict[str, str]]:
    from evaluator import ModelRequest

    async def go(address: str) -> None:
        backend = LiteLLMBackend(base_url=address, api_key=KEY)
        try:
            response = await backend.complete(ModelRequest(model, messages, **fields))
            assert response.content == "hello"
        finally:
            await backend.aclose()

    with LoopbackServer(reply) as server:
        asyncio.run(go(server.base_url.removesuffix("/v1")))
        return server.bodies[0], server.headers[0]


def claude() -> HttpReply:
    return json_reply(
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "claude-x",
            "stop_reason": "end_turn",
            "content": [{"type": "text", "text": "hello"}],
            "usage": {"input_tokens": 5, "output_tokens": 2},
        }
    )


def test_anthropic_gets_the_image_inside_the_tool_result() -> None:
    body, _ = ask_litellm(CLAUDE, claude(), TALK)
    assert body["messages"][-1]["role"] == "user"
    first, second = body["messages"][-1]["content"]
    assert (first["type"], first["tool_use_id"], second["tool_use_id"]) == (
        "tool_result",
        "t1",
        "t2",
    )
    assert first["content"] == [
        {"type": "text", "text": "one"},
        {
            "type": "image",
            "source": {
                "type": "base64",
                "media_type": "image/png",
                "data": base64.b64encode(png(1)).decode(),
            },
        },
    ]
    assert second["content"] == "two"


def test_anthropic_models_receive_the_type_of_the_computer_tool_and_other_models_a_schema() -> None:
    spec = computer_tool(XDisplay(":3", 1024, 768)).spec
    body, headers = ask_litellm(
        CLAUDE, claude(), TALK, tools=(spec,), cache_marks=(CacheMark(0, 1),)
    )
    assert body["tools"] == [
        {
            "type": "computer_20250124",
            "name": "computer",
            "display_width_px": 1024,
            "display_height_px": 768,
            "display_number": 3,
        }
    ]
    assert headers["anthropic-beta"] == "computer-use-2025-01-24"
    (offered,) = ask_litellm("openai/m", json_reply(completion()), TALK, tools=(spec,))[0]["tools"]
    assert offered["function"]["name"] == "computer"
    assert "triple_click" in offered["function"]["parameters"]["properties"]["action"]["enum"]
    assert "1024x768" in offered["function"]["description"]


def completion() -> dict[str, Any]:
    return {
        "id": "1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "hello"},
                "finish_reason": "stop",
            }
        ],
    }


def test_gemini_gets_the_image_after_the_results() -> None:
    said = {
        "candidates": [
            {
                "content": {"role": "model", "parts": [{"text": "hello"}]},
                "index": 0,
                "finishReason": "STOP",
            }
        ],
        "usageMetadata": {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2},
    }
    body, _ = ask_litellm(GEMINI, json_reply(said), TALK)
    parts = [part for content in body["contents"][2:] for part in content["parts"]]
    kinds = [next(iter(part)) for part in parts]
    assert [kind for kind in kinds if kind != "text"] == [
        "function_response",
        "function_response",
        "inline_data",
    ]
    assert (
        parts[kinds.index("inline_data")]["inline_data"]["data"]
        == base64.b64encode(png(1)).decode()
    )


def test_litellm_speaks_to_openai_as_the_other_backend_does() -> None:
    body, _ = ask_litellm("openai/m", json_reply(completion()), TALK)
    assert body["messages"][2:] == message_bodies(TALK)[2:]


# -- what the model does not take, and what is too much -----------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "sees", "why"),
    [
        ("m", False, "m takes no images"),
        (
            "mistral/pixtral-large-latest",
            None,
            "mistral/pixtral-large-latest takes no images after a tool's answer",
        ),
        ("Ministral-3-8B", True, "Ministral-3-8B takes no images after a tool's answer"),
    ],
)
def test_a_model_without_image_support_receives_a_text_and_the_user_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, sees: bool | None, why: str
) -> None:
    def supports(_: str, __: str) -> bool | None:
        return sees

    monkeypatch.setattr(prices, "supports", supports)
    setting = Setting(tmp_path, model=model)
    with LoopbackServer() as server:
        outcome = setting.run(server, looks("c1"), Answer("blind"))
        last = server.bodies[1]["messages"][-1]
    assert last == {
        "role": "tool",
        "tool_call_id": "c1",
        "content": "picture 1\n[camera 1: image/png of 60 bytes, not sent]",
    }
    assert outcome.notes["warnings"] == [f"camera 1 was not sent: {why}"]
    assert kept(setting) == [png(1)]


def test_the_oldest_images_give_way_to_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evaluator.models.attachment_rules.MAX_BYTES_TOGETHER", 130)
    setting = Setting(tmp_path)
    with LoopbackServer() as server:
        outcome = setting.run(server, looks("c1"), looks("c2"), looks("c3"), Answer("seen"))
        texts = [json.dumps(body["messages"]) for body in server.bodies]
    sent = [[n for n in (1, 2, 3) if url(png(n)) in text] for text in texts]
    assert sent == [[], [1], [1, 2], [2, 3]]
    assert "picture 1\\n[camera 1: image/png of 60 bytes, not sent]" in texts[3]
    assert outcome.notes["warnings"] == [
        "the oldest images of tools' answers are not sent any more: the files of one request may hold 130 bytes together"
    ]
    replayed = setting.evaluator(OpenAICompatibleBackend("http://127.0.0.1:9/v1")).replay_sync(1)
    assert replayed.ok, replayed.divergence


def test_an_image_counts_against_the_context(tmp_path: Path) -> None:
    setting = Setting(tmp_path, context_window=1_500)
    with LoopbackServer() as server:
        outcome = setting.run(server, looks("c1"), Answer("seen"))
        assert server.posts == 1
    assert isinstance(outcome, TaskError)
    assert outcome.resource is not None
    assert outcome.resource.name == "context"
    assert outcome.resource.used > 1_600


# -- the record ---------------------------------------------------------------------------------------------------


def kept(setting: Setting) -> list[bytes]:
    folder = setting.tasks / "attachments"
    return [path.read_bytes() for path in sorted(folder.iterdir())] if folder.exists() else []


def test_the_bytes_lie_beside_the_task_files_and_the_record_names_them(tmp_path: Path) -> None:
    setting = Setting(tmp_path)
    with LoopbackServer() as server:
        setting.run(server, looks("c1"), Answer("seen"))
    digest = hashlib.sha256(png(1)).hexdigest()
    path = setting.tasks / "attachments" / digest
    assert path.read_bytes() == png(1)
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    recording = TaskStore(setting.tasks).read(1)
    (step,) = (step for step in recording.steps if step.start.kind == "tool")
    named = {"source": "camera 1", "media_type": "image/png", "size": 60, "sha256": digest}
    assert step.end is not None
    assert (step.end.output, step.end.extra) == ("picture 1", {"attachments": [named]})
    (talk,) = conversations(recording)
    assert {
        "role": "tool",
        "content": "picture 1",
        "tool_call_id": "c1",
        "attachments": [named],
    } in talk.messages
    assert digest in render_messages(recording)


def test_a_run_without_a_record_stores_no_image(tmp_path: Path) -> None:
    setting = Setting(tmp_path)
    setting.tasks = None  # type: ignore[assignment]
    with LoopbackServer() as server:
        assert isinstance(setting.run(server, looks("c1"), Answer("seen")), TaskResult)
        assert url(png(1)) in json.dumps(server.bodies[1])
    assert list(tmp_path.iterdir()) == []


def test_a_resumed_run_sends_the_same_image_again(tmp_path: Path) -> None:
    setting = Setting(tmp_path)
    with LoopbackServer() as server:
        assert isinstance(
            setting.run(server, looks("c1"), looks("c2"), error_reply(500)), TaskError
        )
        outcome = setting.run(server, Answer("seen"), resume=1)
        failed, again = server.bodies[2:]
    assert isinstance(outcome, TaskResult)
    assert setting.camera.taken == 2
    assert again == failed
    assert url(png(1)) in json.dumps(again)
    assert outcome.notes["warnings"] == []
    assert setting.evaluator(OpenAICompatibleBackend("http://127.0.0.1:9/v1")).replay_sync(1).ok


@pytest.mark.parametrize("change", ["gone", "other bytes", "a link"])
def test_a_resumed_run_names_an_image_that_it_cannot_send_again(
    tmp_path: Path, change: str
) -> None:
    setting = Setting(tmp_path)
    with LoopbackServer() as server:
        assert isinstance(setting.run(server, looks("c1"), error_reply(500)), TaskError)
        (path,) = (setting.tasks / "attachments").iterdir()
        path.unlink()
        if change == "other bytes":
            path.write_bytes(png(2))
        elif change == "a link":
            (tmp_path / "elsewhere").write_bytes(png(1))
            path.symlink_to(tmp_path / "elsewhere")
        outcome = setting.run(server, Answer("blind"), resume=1)
        last = server.bodies[-1]["messages"][-1]
    assert isinstance(outcome, TaskResult)
    assert last["content"] == "picture 1\n[camera 1: image/png of 60 bytes, not sent]"
    assert outcome.notes["warnings"] == [
        "turn[1]/tool[1]: camera 1 is not sent again: its bytes are not beside the task files"
    ]
    assert setting.camera.taken == 1


def test_a_replay_needs_no_bytes_and_notices_another_image_in_the_record(tmp_path: Path) -> None:
    setting = Setting(tmp_path)
    with LoopbackServer() as server:
        setting.run(server, looks("c1"), Answer("seen"))
    for path in (setting.tasks / "attachments").iterdir():
        path.unlink()
    evaluator = setting.evaluator(OpenAICompatibleBackend("http://127.0.0.1:9/v1"))
    assert evaluator.replay_sync(1).ok
    assert setting.camera.taken == 1


def test_the_replay_backend_knows_a_request_by_its_images(tmp_path: Path) -> None:
    setting = Setting(tmp_path)
    with LoopbackServer() as server:
        setting.run(server, looks("c1"), Answer("seen"))
    recording = TaskStore(setting.tasks).read(1)

    def again() -> TaskResult | TaskError:
        return setting.evaluator(ReplayBackend(recording)).evaluate_sync("see")

    setting.camera.taken = 0
    assert isinstance(again(), TaskResult)
    other = again()
    assert isinstance(other, TaskError)
    assert "the record holds no answer to this request" in other.message


def test_each_step_has_its_image_before_its_end_is_recorded(tmp_path: Path) -> None:
    setting = Setting(tmp_path)
    (tmp_path / "tasks").mkdir(mode=0o700)
    (tmp_path / "tasks" / "attachments").write_text("no folder")
    with LoopbackServer() as server:
        outcome = setting.run(server, looks("c1"), Answer("seen"))
        assert server.posts == 1
    assert isinstance(outcome, TaskError)
    (path,) = (tmp_path / "tasks").glob("*/TASK-1.md")
    (step,) = (
        step for step in TaskStore(tmp_path / "tasks").read(path).steps if step.start.kind == "tool"
    )
    assert step.status == "running"
