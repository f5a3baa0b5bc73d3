"""Conversations contain the messages in their order, whatever the attempts at their turns were."""

from __future__ import annotations

import asyncio
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluator import (
    EvaluatorError,
    Message,
    ModelRequest,
    ProviderError,
    Recording,
    ReplayBackend,
    TaskStore,
    ToolCall,
    UsageError,
)
from evaluator.record.conversation import (
    RecordedConversation,
    answered_steps,
    conversations,
    messages_of,
)
from evaluator.record.other_writers import read_other
from evaluator.record.steps import Step, StepEnd, StepKind, StepStart

CALL = {"id": "c1", "name": "look", "arguments": '{"at": 1}'}
HELLO = {"role": "user", "content": "hello"}
CALLED = {"content": "", "finish_reason": "tool_calls", "tool_calls": [CALL]}


def turn(
    path: str,
    messages: Any,
    output: Any = None,
    *,
    status: Any = "success",
    error: str | None = None,
    **start: Any,
) -> Step:
    """A model step; `output` None and status "running" for one in flight."""
    args = {"model": "m", "settings": {"seed": 1}, "messages": messages}
    end = None if status == "running" else StepEnd(status, output, 0.1, error)
    return Step(1, StepStart(path, "model", "m", args, start.pop("fingerprint", "f"), **start), end)


def used(path: str, output: Any, status: Any = "success") -> Step:
    return Step(1, StepStart(path, "tool", "look", {}, "t"), StepEnd(status, output, 0.1))


def said(text: str) -> dict[str, Any]:
    return {"content": text, "finish_reason": "stop"}


def read(*steps: Step) -> list[RecordedConversation]:
    return conversations(Recording(None, steps))


def reference(tool: str = "turn[1]/tool[1]") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": "c1", "content_of": tool}


ASKED = {"role": "assistant", "content": "", "tool_calls": [CALL]}
ANSWERED = {"role": "assistant", "content": "done"}


@pytest.mark.parametrize("session", ["", "steps[2]/inputs.data", "turn[1]/x", "a\nb"])
@pytest.mark.parametrize(
    "answer",
    [reference(), {"role": "tool", "content": "seen", "tool_call_id": "c1"}],
    ids=["by reference", "whole"],
)
def test_messages_are_in_the_order_in_which_they_were_sent_and_answered(
    session: str, answer: dict[str, Any]
) -> None:
    under = f"{session}/" if session else ""
    (found,) = read(
        turn(f"{under}turn[1]", [HELLO], CALLED),
        used(f"{under}turn[1]/tool[1]", "seen"),
        turn(f"{under}turn[2]", [answer], said("done")),
    )
    tool = {"role": "tool", "content": "seen", "tool_call_id": "c1"}
    assert (found.path, found.model, found.settings) == (session, "m", {"seed": 1})
    assert found.messages == [HELLO, ASKED, tool, ANSWERED]
    assert list(found.messages[2]) == list(tool)
    assert found.unanswered is None
    assert found.to_dict()["messages"] == found.messages


def test_a_tool_that_failed_has_answered_and_one_that_was_aborted_has_not() -> None:
    turns = (turn("turn[1]", [HELLO], CALLED), turn("turn[2]", [reference()], said("done")))
    for steps, content in (
        ([used("turn[1]/tool[1]", "error: no", "failed")], "error: no"),
        ([used("turn[1]/tool[1]", "", "aborted"), used("turn[1]/tool[1]", "second")], "second"),
        ([used("turn[1]/tool[1]", "first"), used("turn[1]/tool[1]", "", "aborted")], "first"),
    ):
        (found,) = read(turns[0], *steps, turns[1])
        assert found.messages[2]["content"] == content
    (found,) = read(
        turns[0],
        used("turn[1]/tool[1]", "", "aborted"),
        used("x/turn[1]/tool[1]", "other"),
        turns[1],
    )
    assert found.messages[2] == reference()


def test_the_messages_of_one_step_can_be_had_alone() -> None:
    steps = (
        turn("s/turn[1]", [HELLO], CALLED),
        used("s/turn[1]/tool[1]", "seen"),
        turn("s/turn[2]", [reference()]),
    )
    answers = answered_steps(steps)
    assert messages_of(steps[0], answers) == (HELLO,)
    assert messages_of(steps[2], answers) == (
        {"role": "tool", "content": "seen", "tool_call_id": "c1"},
    )


LOST = turn("turn[1]", [HELLO], "", status="failed", error="rate_limit: busy")


@pytest.mark.parametrize(
    ("steps", "messages", "status"),
    [
        ([LOST, turn("turn[1]", [HELLO], said("done"), attempt=2)], [HELLO, ANSWERED], None),
        (
            [
                turn("turn[1]", [HELLO], "do", status="aborted"),
                turn("turn[1]", [HELLO], said("done")),
            ],
            [HELLO, ANSWERED],
            None,
        ),
        ([LOST], [HELLO], "failed"),
        ([LOST, turn("turn[1]", [HELLO], status="running", attempt=2)], [HELLO], "running"),
        (
            [
                turn("turn[1]", [HELLO], said("done")),
                turn("turn[2]", [reference()], "", status="aborted"),
            ],
            [HELLO, ANSWERED, reference()],
            "aborted",
        ),
    ],
    ids=["retried", "resumed", "failed", "in flight", "second turn aborted"],
)
def test_the_attempt_that_was_answered_counts_else_the_last(
    steps: list[Step], messages: list[dict[str, Any]], status: str | None
) -> None:
    (found,) = read(*steps)
    assert found.messages == messages
    assert (None if found.unanswered is None else found.unanswered.status) == status


def test_how_a_turn_without_an_answer_ended_is_shown() -> None:
    (found,) = read(turn("turn[1]", [HELLO], "half an", status="aborted", error="CancelledError: "))
    assert found.to_dict()["unanswered"] == {
        "path": "turn[1]",
        "status": "aborted",
        "error": "CancelledError: ",
        "partial": "half an",
    }


def test_a_turn_with_other_inputs_starts_the_conversation_again() -> None:
    other = {"role": "user", "content": "changed"}
    (found,) = read(
        turn("turn[1]", [HELLO], CALLED),
        used("turn[1]/tool[1]", "seen"),
        turn("turn[2]", [reference()], said("done")),
        turn("turn[1]", [other], said("at once"), fingerprint="g"),
    )
    assert found.messages == [other, {"role": "assistant", "content": "at once"}]
    (found,) = read(
        turn("turn[1]", [HELLO], said("done")),
        turn("turn[1]", [other], status="running", fingerprint="g"),
    )
    assert found.messages == [other]
    assert found.unanswered is not None


def test_sessions_side_by_side_are_conversations_of_their_own() -> None:
    found = read(
        turn("a/turn[1]", [HELLO], CALLED),
        turn("b/turn[1]", [HELLO], said("b")),
        used("a/turn[1]/tool[1]", "seen by a"),
        turn("a/turn[2]", [reference()], said("a")),
    )
    assert [(c.path, c.messages[-1]["content"]) for c in found] == [("a", "a"), ("b", "b")]


def test_reasoning_is_kept_with_the_answer() -> None:
    (found,) = read(turn("turn[1]", [HELLO], {**said("done"), "reasoning": "because"}))
    assert found.messages[-1] == {"role": "assistant", "content": "done", "reasoning": "because"}


TEXT = st.text(st.characters(exclude_categories=()), max_size=12)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXT),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
PATHS = (
    st.sampled_from(
        ["turn[1]", "turn[2]", "a/turn[1]", "a/turn[2]", "turn[1]/tool[1]", "turn[x]", ""]
    )
    | TEXT
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "role": st.sampled_from(["user", "tool"]) | JSON,
            "content": JSON,
            "content_of": st.just("turn[1]/tool[1]") | JSON,
            "tool_calls": st.lists(st.just(CALL) | JSON) | JSON,
        },
    )
    | JSON,
    max_size=3,
)
ARGS = (
    st.fixed_dictionaries(
        {}, optional={"model": JSON, "settings": JSON, "messages": MESSAGES | JSON}
    )
    | JSON
)
OUTPUTS = (
    st.fixed_dictionaries(
        {}, optional={"content": JSON, "reasoning": JSON, "tool_calls": MESSAGES | JSON}
    )
    | JSON
)
ENDS = st.builds(
    StepEnd,
    st.sampled_from(["success", "failed", "aborted"]),
    OUTPUTS,
    st.just(0.1),
    st.none() | TEXT,
    st.none() | st.dictionaries(TEXT, JSON, max_size=2),
)
STARTS = st.builds(
    StepStart,
    PATHS,
    st.just("model") | st.sampled_from(get_args(StepKind)),
    TEXT,
    ARGS,
    st.sampled_from(["", "f", "g"]),
)
RECORDINGS = st.builds(
    lambda starts: Recording(
        None, tuple(Step(n, start, end) for n, (start, end) in enumerate(starts, 1))
    ),
    st.lists(st.tuples(STARTS, st.none() | ENDS), max_size=6),
)


@given(RECORDINGS)
@settings(max_examples=100, deadline=None)
def test_any_recording_has_conversations_and_each_model_step_is_in_one(
    recording: Recording,
) -> None:
    found = conversations(recording)
    assert bool(found) == any(step.start.kind == "model" for step in recording.steps)
    assert len({c.path for c in found}) == len(found)
    for conversation in found:
        assert conversation.turns
        assert isinstance(conversation.model, str)
        assert (conversation.unanswered is None) == (conversation.turns[-1].answer is not None)
        assert all(isinstance(message, dict) for message in conversation.to_dict()["messages"])


FRAGMENTS = st.sampled_from(
    [
        "## Step 1: turn[1]\n",
        "## Step 1 (retry): ask\n",
        "- **Args**: {}\n",
        "- Output:\n  ```json\n  [1]\n  ```\n",
        "- Status: ok\n",
        "- **Status**: failed\n",
        "- Kind: model\n",
        "## Summary\n- Final Status: completed\n",
        "words\n",
    ]
)


@given(st.lists(FRAGMENTS, max_size=10))
def test_files_of_other_writers_have_none(fragments: list[str]) -> None:
    try:
        recording = read_other(("# TASK-1\n\n" + "".join(fragments)).encode())
    except EvaluatorError:
        return
    assert conversations(recording) == []


def test_output_that_is_nested_too_deeply_is_not_an_error() -> None:
    deep: Any = "x"
    for _ in range(5000):
        deep = [deep]
    (found,) = read(turn("turn[1]", [HELLO, deep], {"content": deep}))
    assert found.messages == [
        HELLO,
        {"role": "assistant", "content": "[nested too deeply to show]"},
    ]


# -- replay ---------------------------------------------------------------------------------------------------


def ask(backend: ReplayBackend, *messages: Message) -> str:
    return asyncio.run(backend.complete(ModelRequest("m", messages))).content


USER, WISH = (
    Message("user", "hello"),
    Message("assistant", "", (ToolCall("c1", "look", '{"at": 1}'),)),
)


def test_a_conversation_with_references_is_replayed_to_its_end() -> None:
    backend = ReplayBackend(
        Recording(
            None,
            (
                LOST,
                turn("turn[1]", [HELLO], CALLED, attempt=2),
                used("turn[1]/tool[1]", "seen"),
                turn("turn[2]", [reference()], {**said("done"), "reasoning": "because"}),
            ),
        )
    )
    assert ask(backend, USER) == ""
    assert ask(backend, USER, WISH, Message("tool", "seen", tool_call_id="c1")) == "done"
    with pytest.raises(ProviderError, match="holds no answer"):
        ask(backend, USER, WISH, Message("tool", "changed", tool_call_id="c1"))


def test_equal_conversations_are_answered_in_the_order_of_the_record() -> None:
    steps = [turn("a/turn[1]", [HELLO], said("first")), turn("b/turn[1]", [HELLO], said("second"))]
    backend = ReplayBackend(
        Recording(None, tuple(Step(n, s.start, s.end) for n, s in enumerate(steps, 1)))
    )
    assert [ask(backend, USER) for _ in range(3)] == ["first", "second", "second"]


def test_a_recording_without_an_answer_has_nothing_to_replay() -> None:
    with pytest.raises(UsageError, match="no model response"):
        ReplayBackend(Recording(None, (LOST,)))


TASK = """<task name="t" type="atomic"><description>d</description><tools><tool name="list_files"/></tools>
<instructions>look around</instructions></task>"""


def test_what_a_run_recorded_is_what_its_model_saw(make_evaluator: Any, tmp_path: Any) -> None:
    seen: list[Any] = []

    def script(request: Any) -> Any:
        seen.append(request)
        told = any(message.role == "tool" for message in request.messages)
        return "done" if told else {"tool": "list_files", "arguments": {}}

    (tmp_path / "a.txt").write_text("x")
    result = asyncio.run(make_evaluator(TASK, script=script).evaluate("t")).unwrap()
    (found,) = conversations(TaskStore(tmp_path / "tasks").read(result.task_id))
    shown = [message.to_dict() for message in seen[-1].messages]
    assert found.messages[:-1] == shown
    assert found.messages[-1] == ANSWERED
    assert "a.txt" in shown[-1]["content"]
