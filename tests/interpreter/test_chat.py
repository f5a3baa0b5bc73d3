"""An interactive session is one conversation, with limits for each query, and continues after a crash."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from evaluator import HandlerConfig, InMemoryIndex, ProviderError, SimulatedBackend, TaskError
from evaluator.record.conversation import conversations
from tests.interpreter.crashes import cut, reading


class Person:
    """Somebody who says these lines, and keeps what comes back."""

    def __init__(self, *lines: str) -> None:
        self.lines: Iterator[str] = iter(lines)
        self.replies: list[tuple[str, str, bool]] = []

    async def ask(self) -> str | None:
        return next(self.lines, None)

    def show(self, reply) -> None:
        text = reply.outcome.content if reply.outcome.ok else f"error: {reply.outcome.message}"
        self.replies.append((reply.query, text, reply.from_record))


def counting(request):
    """A model that answers with how much it was told before."""
    return (
        f"{len([m for m in request.messages if m.role == 'user'])}: {request.messages[-1].content}"
    )


def test_each_query_sees_the_ones_before(make_evaluator, tmp_path):
    person = Person("one", "two")
    outcome = asyncio.run(make_evaluator(script=counting).chat(person.ask, person.show))
    assert person.replies == [("one", "1: one", False), ("two", "2: two", False)]
    assert outcome.unwrap().content == "2: two"
    read = reading(tmp_path)
    assert read.status == "completed"
    (conversation,) = conversations(read)
    assert [m["content"] for m in conversation.messages if m["role"] != "system"] == [
        "one",
        "1: one",
        "two",
        "2: two",
    ]


def test_a_killed_session_continues_and_nothing_is_asked_again(make_evaluator, tmp_path):
    first = Person("one", "two", "three")
    asyncio.run(make_evaluator(script=counting).chat(first.ask, first.show))
    cut(tmp_path, "query[3]")
    calls = []

    def watching(request):
        calls.append(request)
        return counting(request)

    again = Person("four")
    outcome = asyncio.run(make_evaluator(script=watching).chat(again.ask, again.show, resume=1))
    assert outcome.ok and len(calls) == 1
    assert again.replies == [
        ("one", "1: one", True),
        ("two", "2: two", True),
        ("four", "3: four", False),
    ]


def test_a_query_that_was_in_flight_is_answered_on_resume(make_evaluator, tmp_path):
    first = Person("one", "two")
    asyncio.run(make_evaluator(script=counting).chat(first.ask, first.show))
    cut(tmp_path, "turn[2]", begun=True)
    again = Person()
    asyncio.run(make_evaluator(script=counting).chat(again.ask, again.show, resume=1)).unwrap()
    assert again.replies == [("one", "1: one", True), ("two", "2: two", False)]


REFUSED = "model call failed: refused (simulated); check the settings of the profile and the template for this model"


def test_a_query_that_fails_is_forgotten_and_the_session_continues(make_evaluator, tmp_path):
    def script(request):
        if request.messages[-1].content == "bad":
            return ProviderError("refused", kind="bad_request")
        return counting(request)

    person = Person("one", "bad", "two")
    asyncio.run(make_evaluator(script=script).chat(person.ask, person.show)).unwrap()
    assert [text for _, text, _ in person.replies] == ["1: one", f"error: {REFUSED}", "2: two"]
    cut(tmp_path, "query[3]")
    again = Person("three")
    asyncio.run(make_evaluator(script=counting).chat(again.ask, again.show, resume=1)).unwrap()
    assert [text for _, text, _ in again.replies] == ["1: one", f"error: {REFUSED}", "2: three"]


def test_an_answer_is_cancelled_and_the_session_continues(make_evaluator):
    class Slow(SimulatedBackend):
        async def complete(self, request, *, on_text=None):
            if request.messages[-1].content == "slow":
                assert sessions[0].cancel_answer()
                await asyncio.Event().wait()
            return await super().complete(request, on_text=on_text)

    sessions = []
    person = Person("slow", "quick")
    evaluator = make_evaluator(backend=Slow(script=counting))
    asyncio.run(evaluator.chat(person.ask, person.show, on_start=sessions.append)).unwrap()
    assert [text for _, text, _ in person.replies] == [
        "error: the answer was cancelled",
        "1: quick",
    ]
    assert sessions[0].cancel_answer() is False


def test_limits_hold_for_each_query_and_not_for_the_session(make_evaluator):
    profile = HandlerConfig(name="short", backend="simulated", max_turns=1)
    person = Person("one", "two", "three")
    evaluator = make_evaluator(script=counting, handler=profile, profiles={"short": profile})
    asyncio.run(evaluator.chat(person.ask, person.show)).unwrap()
    assert [text for _, text, _ in person.replies] == ["1: one", "2: two", "3: three"]


def test_memory_is_asked_for_each_query_and_a_file_is_shown_once(make_evaluator, tmp_path):
    (tmp_path / "lakes.md").write_text("Lake Baikal is deep")
    person = Person("tell me about lakes", "more about lakes")
    memory = InMemoryIndex({"lakes.md": "facts about lakes"})
    asyncio.run(
        make_evaluator(script=counting, memory=memory).chat(person.ask, person.show)
    ).unwrap()
    assert "Lake Baikal is deep" in person.replies[0][1]
    assert "Lake Baikal is deep" not in person.replies[1][1]


def test_what_is_not_a_chat_is_refused(make_evaluator, tmp_path):
    xml = '<task name="t" type="atomic"><description>t</description><instructions>T</instructions></task>'
    evaluator = make_evaluator(xml, script=counting)
    asyncio.run(evaluator.evaluate("t"))
    person = Person("one")
    error = asyncio.run(evaluator.chat(person.ask, person.show, resume=1))
    assert isinstance(error, TaskError) and "is not a chat" in error.message
    assert f"tasks resume 1 --tasks {evaluator.services.store.root}" in error.message
    asyncio.run(evaluator.chat(person.ask, person.show))
    cut(tmp_path, "query[1]/end", task_id=2)
    error = asyncio.run(evaluator.resume(2))
    assert isinstance(error, TaskError) and "evaluator chat --resume 2" in error.message
    with pytest.raises(Exception, match="evaluator chat --resume 2"):
        evaluator.replay_sync(2)
