"""A model or its server that misbehaves, over the wire: an error that says what happened, nothing lost."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from evaluator import (
    Evaluator,
    HandlerConfig,
    OpenAICompatibleBackend,
    TaskError,
    TaskResult,
    TaskStore,
    TemplateLibrary,
)
from evaluator.testing import (
    Answer,
    HttpReply,
    LoopbackServer,
    chunk,
    error_reply,
    event,
    json_reply,
)
from tests.patience import with_enough_time
from tests.ports import silent_port

XML = """<library>
<task name="plain" type="atomic"><description>d</description><instructions>Q</instructions></task>
<task name="json" type="atomic"><description>d</description><instructions>Q</instructions>
<output_format type="json" schema="object"/></task>
<task name="tools" type="atomic"><description>d</description><tools><tool name="list_files"/></tools>
<instructions>Q</instructions></task>
</library>"""
Outcome = TaskResult | TaskError


def ask(
    tmp_path: Path,
    *replies: HttpReply | Answer,
    name: str = "plain",
    stream: bool = False,
    timeout_s: float = 100.0,
) -> tuple[Outcome, LoopbackServer, Any]:
    """The outcome of one evaluation against a server that gives `replies`, the server and the recording."""
    folder = tmp_path / "templates"
    folder.mkdir(parents=True)
    (folder / "t.xml").write_text(XML)
    config = HandlerConfig(
        name="wire",
        backend="openai_compatible",
        model="m",
        backoff_s=(0.0, 0.0),
        timeout_s=timeout_s,
    )
    pieces: list[str] = []

    async def evaluate(base_url: str) -> Outcome:
        backend = OpenAICompatibleBackend(base_url, "key")
        library = TemplateLibrary.load(folder, shipped=False)
        evaluator = Evaluator(
            library,
            config,
            backend=backend,
            tasks_dir=tmp_path / "tasks",
            roots=[tmp_path / "templates"],
        )
        try:
            return await evaluator.evaluate(name, on_text=pieces.append if stream else None)
        finally:
            await backend.aclose()

    with LoopbackServer(*replies, default=Answer("default")) as server:
        outcome = asyncio.run(evaluate(server.base_url))
    recording = TaskStore(tmp_path / "tasks").read(1)
    assert recording.tail == "clean"
    assert recording.status == ("completed" if outcome.ok else "failed")
    assert outcome.task_id == 1
    return outcome, server, recording


def steps_of(recording: Any, *kinds: str) -> list[Any]:
    return [step for step in recording.steps if step.start.kind in kinds]


def attempts(recording: Any) -> list[tuple[int, str]]:
    return [(s.start.attempt, s.status) for s in steps_of(recording, "model")]


FAULTS: list[tuple[str, HttpReply, bool, str]] = [
    ("429", error_reply(429, "slow down"), True, "slow down"),
    ("500", error_reply(500, "oops"), True, "oops"),
    (
        "503 with a page",
        HttpReply((b"<h1>gone",), status=503, content_type="text/html"),
        True,
        "503",
    ),
    ("reset", HttpReply(silent=True, end="reset"), True, ""),
    ("cut off", HttpReply((b'{"choi',), length=1000, end="close"), True, ""),
    ("no JSON", HttpReply((b"hello",)), True, ""),
    ("nothing", HttpReply((b"",)), True, ""),
    (
        "invalid UTF-8",
        HttpReply((b'{"choices": [{"message": {"content": "\xff\xfe"}}]}',)),
        True,
        "",
    ),
    ("no choices", json_reply({"choices": []}), True, ""),
    ("wrong shape", json_reply({"choices": [{"message": 5}]}), True, ""),
    ("a list", json_reply([1, 2]), True, ""),
    ("401", error_reply(401, "who are you"), False, "who are you"),
    ("400", error_reply(400, "bad parameter"), False, "bad parameter"),
    ("404", error_reply(404, "no such model"), False, "no such model"),
]


@pytest.mark.parametrize(
    ("reply", "retried", "says"), [f[1:] for f in FAULTS], ids=[f[0] for f in FAULTS]
)
def test_a_fault_that_stays_ends_in_an_error_after_finite_attempts(
    reply: HttpReply, retried: bool, says: str, tmp_path: Path
) -> None:
    outcome, server, recording = ask(tmp_path, *[reply] * 3)
    assert isinstance(outcome, TaskError), outcome
    assert (outcome.type, outcome.reason) == ("TASK_FAILURE", "provider_failure")
    assert says in outcome.message
    assert len(outcome.message) > len("model call failed: ")
    assert server.posts == (3 if retried else 1)
    assert outcome.retryable is retried
    assert attempts(recording) == [(n, "failed") for n in range(1, server.posts + 1)]
    assert outcome.cause is not None


@pytest.mark.parametrize(
    "reply", [f[1] for f in FAULTS if f[2]], ids=[f[0] for f in FAULTS if f[2]]
)
def test_a_fault_that_passes_is_retried_and_recorded(reply: HttpReply, tmp_path: Path) -> None:
    outcome, server, recording = ask(tmp_path, reply, Answer("fine"))
    assert outcome.unwrap().content == "fine"
    assert server.posts == 2
    assert attempts(recording) == [(1, "failed"), (2, "success")]


def test_a_server_that_hangs_ends_at_the_time_limit(tmp_path: Path) -> None:
    limits: list[float] = []

    def attempt(limit_s: float) -> tuple[Outcome, LoopbackServer, Any]:
        limits.append(limit_s)
        return ask(tmp_path / str(limit_s), HttpReply(silent=True, end="hang"), timeout_s=limit_s)

    outcome, server, recording = with_enough_time(attempt, lambda tried: tried[1].posts > 0)
    assert isinstance(outcome, TaskError)
    assert (outcome.type, outcome.reason) == ("RESOURCE_EXHAUSTION", "execution_timeout")
    assert outcome.resource is not None
    assert outcome.resource.name == "time"
    assert f"{limits[-1]:g}" in outcome.message
    assert len(attempts(recording)) == server.posts == 1


def test_a_server_that_is_not_there_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "templates"
    folder.mkdir()
    (folder / "t.xml").write_text(XML)
    with silent_port() as port:
        config = HandlerConfig(
            name="wire",
            backend="openai_compatible",
            model="m",
            base_url=f"http://127.0.0.1:{port}/v1",
            backoff_s=(0.0,),
            timeout_s=100,
        )
        evaluator = Evaluator(TemplateLibrary.load(folder, shipped=False), config, tasks_dir=None)
        error = evaluator.evaluate_sync("plain")
        evaluator.close()
    assert isinstance(error, TaskError)
    assert str(port) in error.message
    assert error.retryable
    assert not error.maybe_billed


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_an_endless_answer_is_stopped_and_what_came_is_kept(stream: bool, tmp_path: Path) -> None:
    if stream:
        reply = HttpReply(
            (event(chunk({"content": "word "})),),
            content_type="text/event-stream",
            repeat=True,
            pause_s=0.001,
        )
    else:
        reply = HttpReply((b" " * 65536,), length=-1, repeat=True)

    def attempt(limit_s: float) -> tuple[Outcome, LoopbackServer, Any]:
        return ask(tmp_path / str(limit_s), *[reply] * 3, stream=stream, timeout_s=limit_s)

    outcome, server, recording = with_enough_time(
        attempt, lambda tried: tried[0].content or not stream
    )
    assert isinstance(outcome, TaskError)
    assert outcome.reason in ("execution_timeout", "provider_failure")
    assert server.posts <= 3
    assert recording.steps
    if stream:
        assert outcome.content.startswith("word word"), outcome


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_an_answer_without_bound_is_refused_at_a_size_that_is_named(
    stream: bool, tmp_path: Path
) -> None:
    piece = event(chunk({"content": "w" * 60_000})) if stream else b" " * 65536
    kind = "text/event-stream" if stream else "application/json"
    reply = HttpReply((piece,), content_type=kind, length=None if stream else -1, repeat=True)
    outcome, server, _ = ask(tmp_path, reply, stream=stream, timeout_s=100)
    assert isinstance(outcome, TaskError)
    assert "16777216" in outcome.message
    assert (server.posts, outcome.retryable, outcome.maybe_billed) == (1, False, True)
    assert outcome.content.startswith("www") is stream


@pytest.mark.parametrize("text", ["", None, " \n"], ids=["empty", "null", "blank"])
def test_an_empty_answer_is_an_error_that_says_so(text: str | None, tmp_path: Path) -> None:
    outcome, server, _ = ask(tmp_path, Answer(text, "stop"))
    assert isinstance(outcome, TaskError)
    assert (outcome.type, outcome.reason) == ("INVALID_OUTPUT", "output_format_failure")
    assert "nothing" in outcome.message
    assert server.posts == 1


RUBBISH = ["", "I would rather not.", "[1, 2", "null", "}{", "\ufffd\ufffd", "{" * 5000, "3"]


@pytest.mark.parametrize("text", RUBBISH, ids=[ascii(r[:12]) for r in RUBBISH])
def test_rubbish_where_an_object_was_declared_is_an_error_that_keeps_the_text(
    text: str, tmp_path: Path
) -> None:
    outcome, server, recording = ask(tmp_path, Answer(text), name="json")
    assert isinstance(outcome, TaskError), outcome
    assert (outcome.type, outcome.reason) in (
        ("TASK_FAILURE", "output_format_failure"),
        ("INVALID_OUTPUT", None),
        ("INVALID_OUTPUT", "output_format_failure"),
    )
    assert outcome.content == text
    assert "object" in outcome.message or "nothing" in outcome.message
    assert server.posts == 1
    assert steps_of(recording, "model")[0].end.output["content"] == text


def test_lone_surrogates_of_a_model_are_kept_and_recorded(tmp_path: Path) -> None:
    body = b'{"choices": [{"message": {"content": "a\\ud800b"}, "finish_reason": "stop"}]}'
    outcome, _, recording = ask(tmp_path, HttpReply((body,)))
    assert outcome.unwrap().content in ("a\ud800b", "a\ufffdb")
    assert steps_of(recording, "model")[0].end.output["content"] == outcome.content


BROKEN_CALLS = [
    ("broken arguments", "list_files", '{"path": '),
    ("arguments that are no object", "list_files", "[1]"),
    ("an unknown argument", "list_files", '{"colour": "red"}'),
    ("a wrong type", "list_files", '{"path": 5}'),
    ("an unknown tool", "launch_missiles", "{}"),
]


@pytest.mark.parametrize(
    ("tool", "arguments"), [b[1:] for b in BROKEN_CALLS], ids=[b[0] for b in BROKEN_CALLS]
)
def test_a_broken_tool_call_is_answered_with_what_is_wrong(
    tool: str, arguments: str, tmp_path: Path
) -> None:
    call = Answer(None, "tool_calls", [("c1", tool, arguments)])
    outcome, server, recording = ask(tmp_path, call, Answer("sorry"), name="tools")
    assert outcome.unwrap().content == "sorry"
    told = server.bodies[1]["messages"][-1]
    assert (told["role"], told["tool_call_id"]) == ("tool", "c1")
    assert told["content"].startswith("error: ")
    assert (
        "list_files" in told["content"] or "path" in told["content"] or "JSON" in told["content"]
    ), told
    assert [(s.start.kind, s.status) for s in steps_of(recording, "model", "tool")] == [
        ("model", "success"),
        ("tool", "failed"),
        ("model", "success"),
    ]


def test_a_tool_call_where_none_was_offered_is_named(tmp_path: Path) -> None:
    call = Answer(None, "tool_calls", [("c1", "list_files", "{}")])
    outcome, server, _ = ask(tmp_path, *[call] * 12)
    assert isinstance(outcome, TaskError)
    assert "list_files" in f"{outcome.message} {outcome.notes['warnings']}"
    assert server.posts <= 10


def test_a_model_that_only_ever_calls_tools_ends_at_its_turns(tmp_path: Path) -> None:
    calls = [
        Answer(None, "tool_calls", [("c1", "list_files", f'{{"pattern": "*.{n}"}}')])
        for n in range(30)
    ]
    outcome, server, _ = ask(tmp_path, *calls, name="tools")
    assert isinstance(outcome, TaskError)
    assert outcome.resource is not None
    assert (outcome.resource.name, server.posts) == ("turns", 12)


ESCAPES = [
    "../../etc/passwd",
    "/etc/passwd",
    "link",
    "folder-link/passwd",
    "../templates-evil/x",
    "a\x00b",
    "~/.bashrc",
]


@pytest.mark.parametrize("path", ESCAPES, ids=[ascii(e) for e in ESCAPES])
def test_a_path_of_a_model_that_leaves_the_root_is_refused(path: str, tmp_path: Path) -> None:
    (tmp_path / "templates-evil").mkdir()
    (tmp_path / "templates-evil" / "x").write_text("root: secret")
    xml = XML.replace("list_files", "read_file")
    globals_xml = xml
    folder = tmp_path / "templates"
    folder.mkdir()
    (folder / "link").symlink_to("/etc/passwd")
    (folder / "folder-link").symlink_to("/etc")
    (folder / "t.xml").write_text(globals_xml)
    seen: list[Any] = []

    def script(request: Any) -> Any:
        seen.append(request)
        return (
            {"tool": "read_file", "arguments": json.dumps({"path": path})}
            if len(seen) == 1
            else "done"
        )

    from evaluator import SimulatedBackend

    evaluator = Evaluator(
        TemplateLibrary.load(folder, shipped=False),
        "offline",
        backend=SimulatedBackend(script=script),
        tasks_dir=tmp_path / "tasks",
        roots=[folder],
    )
    evaluator.evaluate_sync("tools").unwrap()
    answer = seen[1].messages[-1].content
    assert answer.startswith("error: ")
    assert "root:" not in answer
    assert any(word in answer for word in ("root", "outside", "link", "not exist", "path")), answer


def test_a_context_file_outside_the_root_is_a_warning_and_is_not_sent(
    make_evaluator: Any, scripted: Any, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to("/etc/passwd")
    model = scripted()
    xml = """<task name="f" type="atomic"><description>d</description><instructions>Q</instructions>
    <file_paths source="literal"><path>/etc/passwd</path><path>link</path><path>../../etc/passwd</path>
    <path>missing.txt</path></file_paths></task>"""
    result = make_evaluator(xml, script=model).evaluate_sync("f").unwrap()
    assert model.prompts == ["Q"]
    warnings = result.notes["warnings"]
    assert len(warnings) == 4
    for path, warning in zip(
        ["/etc/passwd", "link", "../../etc/passwd", "missing.txt"], warnings, strict=True
    ):
        assert path in warning
