"""Several turns of the user in one conversation: what is sent, recorded, resumed, counted, checked, written and scored."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from evaluator import (
    Evaluator,
    HandlerConfig,
    OpenAICompatibleBackend,
    TaskError,
    TaskResult,
    TaskStore,
    TemplateLibrary,
    run_batch_sync,
)
from evaluator.cli.main import cli
from evaluator.library import bound
from evaluator.record.conversation import conversations
from evaluator.testing import Answer, HttpReply, LoopbackServer
from evaluator.xml.write import to_xml

TALK = """<task name="talk" type="atomic"><description>Two questions</description><turns>
<turn role="user">{{ questions[0] }}</turn><turn>Now: {{ questions[1] }}</turn>
</turns><inputs><input name="questions" type="array"/></inputs></task>"""
GIVEN = {"questions": ["Name a fruit.", "spell it"]}


def library_of(xml: str) -> TemplateLibrary:
    library = TemplateLibrary()
    library.add(xml)
    return library


def talk(
    server: LoopbackServer, tasks: Path, xml: str = TALK, given: Any = GIVEN, **config: Any
) -> Any:
    async def run() -> Any:
        backend = OpenAICompatibleBackend(server.base_url)
        profile = HandlerConfig(name="p", model="m", backoff_s=(), **config)
        try:
            return await Evaluator(
                library_of(xml), profile, backend=backend, tasks_dir=tasks
            ).evaluate("talk", given)
        finally:
            await backend.aclose()

    return asyncio.run(run())


def test_each_turn_is_sent_with_the_answers_before_it(tmp_path: Path) -> None:
    with LoopbackServer(Answer("Pear"), Answer("P-e-a-r")) as server:
        outcome = talk(server, tmp_path)
        bodies = [body["messages"] for body in server.bodies]
    first = [{"role": "user", "content": "Name a fruit."}]
    whole = [
        *first,
        {"role": "assistant", "content": "Pear"},
        {"role": "user", "content": "Now: spell it"},
    ]
    assert bodies == [first, whole]
    assert isinstance(outcome, TaskResult)
    assert (outcome.content, outcome.usage.turns) == ("P-e-a-r", 2)
    answered = [*whole, {"role": "assistant", "content": "P-e-a-r"}]
    assert outcome.notes["turns"] == answered
    (recorded,) = conversations(TaskStore(tmp_path).read(1))
    assert recorded.messages == answered


def test_instructions_are_the_first_turn_and_the_format_belongs_to_the_last(tmp_path: Path) -> None:
    xml = """<task name="talk" type="atomic"><description>No part of the prompt</description>
    <instructions>Think about {{ n }}.</instructions><turns><turn role="user">Give it.</turn></turns>
    <output_format type="json" schema="number"/><inputs><input name="n"/><input name="extra"/></inputs></task>"""
    with LoopbackServer(Answer("Hm."), Answer("7")) as server:
        outcome = talk(server, tmp_path, xml, {"n": 7, "extra": "x"})
        prompts = [body["messages"][-1]["content"] for body in server.bodies]
    assert prompts == [
        'Think about 7.\n\n<input name="extra">\nx\n</input>',
        "Give it.\n\nAnswer with JSON only: a number.",
    ]
    assert outcome.parsed_content == 7


@pytest.mark.parametrize(
    ("replies", "reason", "posts"),
    [
        ([Answer("")], "output_format_failure", 1),
        ([Answer("No.", "content_filter")], "provider_failure", 1),
        ([Answer("cut", "length")], None, 1),
        ([Answer("a"), Answer("")], "output_format_failure", 2),
    ],
)
def test_a_turn_without_an_answer_ends_the_conversation(
    replies: Any, reason: Any, posts: int, tmp_path: Path
) -> None:
    with LoopbackServer(*replies) as server:
        outcome = talk(server, tmp_path)
        assert server.posts == posts
    assert isinstance(outcome, TaskError)
    assert outcome.reason == reason
    assert outcome.notes["turns"][0] == {"role": "user", "content": "Name a fruit."}


def test_an_empty_turn_is_an_error_before_the_first_call(tmp_path: Path) -> None:
    with LoopbackServer(Answer("a")) as server:
        outcome = talk(server, tmp_path, TALK.replace("Now: ", ""), {"questions": ["a", " "]})
        assert server.posts == 0
    assert isinstance(outcome, TaskError)
    assert outcome.violations[0].code == "empty-turn"


CHILD = """
import asyncio, sys
from evaluator import Evaluator
from evaluator.handler.config import HandlerConfig
from evaluator.models.openai_compatible import OpenAICompatibleBackend
from tests.interpreter.test_turns import GIVEN, TALK, library_of
url, tasks = sys.argv[1:]
evaluator = Evaluator(library_of(TALK), HandlerConfig(name="p", model="m"), backend=OpenAICompatibleBackend(url), tasks_dir=tasks)
asyncio.run(evaluator.evaluate("talk", GIVEN))
"""


def test_after_a_sigkill_in_the_second_turn_the_first_is_not_paid_again(tmp_path: Path) -> None:
    with LoopbackServer(Answer("Pear"), HttpReply(end="hang", silent=True)) as server:
        root = Path(__file__).parents[2]
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, server.base_url, str(tmp_path)], cwd=root
        )
        try:
            server.wait_for_posts(2, timeout_s=200)
        finally:
            os.kill(child.pid, signal.SIGKILL)
            child.wait()
        server.enqueue(Answer("P-e-a-r"))

        async def resume() -> Any:
            backend = OpenAICompatibleBackend(server.base_url)
            profile = HandlerConfig(name="p", model="m")
            try:
                return await Evaluator(
                    library_of(TALK), profile, backend=backend, tasks_dir=tmp_path
                ).resume(1)
            finally:
                await backend.aclose()

        outcome = asyncio.run(resume())
        assert server.posts == 3
        assert [len(body["messages"]) for body in server.bodies] == [1, 3, 3]
    assert outcome.content == "P-e-a-r"
    assert [turn["content"] for turn in outcome.notes["turns"]] == [
        "Name a fruit.",
        "Pear",
        "Now: spell it",
        "P-e-a-r",
    ]


def test_turns_count_in_bounds_and_limits(tmp_path: Path) -> None:
    node = library_of(TALK).get("talk").node
    assert (bound(node, {}).min_calls, bound(node, {}).max_calls) == (2, 2)
    assert "2 turns" in bound(node, {}).explanation
    granted = bound(node, {}, max_turns=5, tools_granted=True)
    assert (granted.min_calls, granted.max_calls) == (2, 5)
    with LoopbackServer(Answer("Pear")) as server:
        outcome = talk(server, tmp_path, max_turns=1)
        assert server.posts == 1
    assert isinstance(outcome, TaskError)
    assert outcome.resource is not None
    assert (outcome.resource.name, outcome.content) == ("turns", "Pear")


@pytest.mark.parametrize(
    ("inside", "code", "line", "column"),
    [
        ("<turns>\n<turn>a {{ nothing }}</turn></turns>", "undefined-variable", 3, 12),
        ("<turns>\n<turn role='system'>a</turn></turns>", "invalid-value", 3, 13),
        ("<turns>\n<turn> </turn></turns>", "missing-value", 3, 1),
        ("<turns>\n</turns>", "missing-element", 2, 1),
        (
            "<turns>\n<turn>a</turn><turn>b</turn></turns><handler max_turns='1'/>",
            "too-few-turns",
            3,
            37,
        ),
    ],
)
def test_lint_names_the_place(
    inside: str, code: str, line: int, column: int, tmp_path: Path
) -> None:
    text = f'<task name="a" type="atomic"><description>d</description>\n{inside}</task>'
    (tmp_path / "a.xml").write_text(text)
    found = [
        (one.code, one.span.line, one.span.column)
        for one in TemplateLibrary.load(tmp_path, shipped=False).errors
    ]
    assert (code, line, column) in found


def test_only_an_atomic_task_has_turns() -> None:
    with pytest.raises(Exception, match="turns"):
        library_of(
            '<task name="s" type="script"><description>d</description><command><arg>x</arg></command>'
            "<turns><turn>a</turn></turns></task>"
        )


def test_turns_are_written_back() -> None:
    node = library_of(TALK).get("talk").node
    again = library_of(to_xml(node)).get("talk").node
    assert [turn.text.value for turn in again.turns] == [
        "{{ questions[0] }}",
        "Now: {{ questions[1] }}",
    ]


def test_render_shows_every_turn(tmp_path: Path) -> None:
    (tmp_path / "a.xml").write_text(TALK)
    given = f"questions={json.dumps(GIVEN['questions'])}"
    shown = CliRunner().invoke(
        cli, ["render", "talk", "--library", str(tmp_path), "--input", given]
    )
    assert shown.exit_code == 0, shown.output
    assert "=== request 2: talk" in shown.output
    assert "--- user\nNow: spell it" in shown.output


def count_turns(turns: list[Any]) -> float:
    return len(turns) / 4


def test_a_judge_and_of_see_all_turns(tmp_path: Path) -> None:
    judge = """<task name="judge" type="atomic"><description>Judge</description>
    <instructions>First: {{ first }} Second: {{ second }}</instructions><output_format type="json" schema="object"/>
    <inputs><input name="first"/><input name="second"/></inputs></task>"""
    library = library_of(TALK)
    library.add(judge)
    scorers = [
        {
            "type": "graded",
            "template": "judge",
            "inputs": {"first": "turns[1].content", "second": "output"},
        },
        {"type": "includes", "ignore_case": True, "name": "first", "of": "turns[1].content"},
        count_turns,
    ]
    with LoopbackServer(Answer("Pear"), Answer("P-e-a-r"), Answer('{"score": 0.75}')) as server:
        profile = HandlerConfig(name="p", model="m", base_url=server.base_url)
        evaluator = Evaluator(library, profile, tasks_dir=tmp_path / "t")
        rows = [{"id": "r", **GIVEN, "target": "pear"}]
        result = run_batch_sync(
            "talk", rows, evaluator=evaluator, scorers=scorers, output=tmp_path / "b"
        )
        assert server.bodies[2]["messages"][0]["content"].startswith("First: Pear Second: P-e-a-r")
    (sample,) = result.results()
    assert {name: score.value for name, score in sample.scores.items()} == {
        "graded": 0.75,
        "first": 1.0,
        "count_turns": 1.0,
    }


PLAYED = """<task name="talk" type="atomic"><description>Help a customer</description>
<instructions>Greet {{ who }}.</instructions>
<turns><turn role="user" max="3"><call template="customer"><arg name="turns">turns</arg><arg name="mood">mood</arg></call></turn>
%s</turns><inputs><input name="who"/><input name="mood"/></inputs></task>"""
CUSTOMER = """<task name="customer" type="atomic"><description>Play a customer</description>
<instructions>You are {{ mood }}. {{ turns[-1].content }} ({{ turns|length }})</instructions>
<output_format type="json" schema="object"/>
<inputs><input name="turns" type="array"/><input name="mood"/></inputs></task>"""
WHO = {"who": "Ann", "mood": "calm"}


def play(server: LoopbackServer, tasks: Path, last: str = "", **config: Any) -> Any:
    async def run() -> Any:
        library = library_of(CUSTOMER)
        library.add(PLAYED % last)
        backend = OpenAICompatibleBackend(server.base_url)
        profile = HandlerConfig(name="p", model="m", backoff_s=(), **config)
        try:
            return await Evaluator(library, profile, backend=backend, tasks_dir=tasks).evaluate(
                "talk", WHO
            )
        finally:
            await backend.aclose()

    return asyncio.run(run())


def test_another_template_plays_the_user_until_it_says_nothing(tmp_path: Path) -> None:
    replies = ["Hello!", '{"message": "A pear?"}', "Yes.", '{"message": null}', "Bye!"]
    with LoopbackServer(*map(Answer, replies)) as server:
        outcome = play(server, tmp_path, "<turn>Say goodbye.</turn>")
        prompts = [[message["content"] for message in body["messages"]] for body in server.bodies]
    assert [each[0].splitlines()[0] for each in prompts] == [
        "Greet Ann.",
        "You are calm. Hello! (2)",
        "Greet Ann.",
        "You are calm. Yes. (4)",
        "Greet Ann.",
    ]
    assert prompts[4] == ["Greet Ann.", "Hello!", "A pear?", "Yes.", "Say goodbye."]
    assert outcome.content == "Bye!"
    assert [turn["content"] for turn in outcome.notes["turns"]] == [*prompts[4], "Bye!"]
    assert outcome.usage.turns == 5


def test_the_bound_ends_the_conversation(tmp_path: Path) -> None:
    with LoopbackServer(default=Answer('{"message": "more"}')) as server:
        outcome = play(server, tmp_path)
        assert server.posts == 7
    assert len(outcome.notes["turns"]) == 8
    library = library_of(CUSTOMER)
    library.add(PLAYED % "")
    node = library.get("talk").node
    assert (bound(node, library).min_calls, bound(node, library).max_calls) == (1, 7)


def test_an_error_of_the_template_that_plays_the_user_is_the_error_of_the_task(
    tmp_path: Path,
) -> None:
    with LoopbackServer(Answer("Hello!"), Answer("no json")) as server:
        outcome = play(server, tmp_path)
        assert server.posts == 2
    assert isinstance(outcome, TaskError)
    assert outcome.message.startswith("turn 2, which plays the user, failed:")
    assert outcome.usage.turns == 2
    assert [turn["content"] for turn in outcome.notes["turns"]] == ["Greet Ann.", "Hello!"]


def test_calls_of_the_template_that_plays_the_user_count_in_the_limits_of_the_task(
    tmp_path: Path,
) -> None:
    with LoopbackServer(default=Answer('{"message": "more"}')) as server:
        outcome = play(server, tmp_path, max_turns=4)
        assert server.posts == 4
    assert isinstance(outcome, TaskError)
    assert outcome.resource is not None
    assert outcome.resource.name == "turns"


@pytest.mark.parametrize(
    ("turn", "code"),
    [
        ('<turn max="2"><call template="nobody"/></turn>', "unknown-template"),
        ('<turn max="2"><call template="customer"/></turn>', "wrong-arity"),
        ('<turn max="0"><call template="customer"/></turn>', "invalid-value"),
        ('<turn max="2">a</turn>', "misplaced-attribute"),
        ('<turn max="2">a<call template="customer"/></turn>', "misplaced-text"),
    ],
)
def test_lint_checks_turns_that_a_template_writes(turn: str, code: str, tmp_path: Path) -> None:
    text = (PLAYED % turn).replace("{{ who }}", "{{ who }} {{ mood }}")
    (tmp_path / "a.xml").write_text(f"<library>{CUSTOMER}{text}</library>")
    assert code in [one.code for one in TemplateLibrary.load(tmp_path, shipped=False).errors]


@pytest.mark.parametrize(
    "change",
    [
        ("<instructions>Greet {{ who }}.</instructions>", ""),
        ("<inputs>", '<output_format type="json"/><inputs>'),
    ],
)
def test_a_played_turn_is_neither_the_first_nor_asked_for_a_format(
    change: tuple[str, str], tmp_path: Path
) -> None:
    (tmp_path / "a.xml").write_text(
        f"<library>{CUSTOMER}{(PLAYED % '').replace(*change)}</library>"
    )
    assert "played-turn" in [
        one.code for one in TemplateLibrary.load(tmp_path, shipped=False).errors
    ]


def test_a_played_turn_is_written_back() -> None:
    library = library_of(CUSTOMER)
    library.add(PLAYED % "<turn>Say goodbye.</turn>")
    again = library_of(CUSTOMER)
    again.add(to_xml(library.get("talk").node))
    (played, said) = again.get("talk").node.turns
    assert (played.most, played.node.template, said.text.value) == (3, "customer", "Say goodbye.")
