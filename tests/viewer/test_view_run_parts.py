"""One run in the viewer: where the parts of a prompt come from, and what changed between attempts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from evaluator import Evaluator, SimulatedBackend, TaskStore, TemplateLibrary
from evaluator.record.steps import StepEnd, StepStart, Summary
from evaluator.viewer.server.sources import PromptSource, line_numbers, spans
from tests.batch.export.results import HOSTILE
from tests.viewer.site import assert_harmless, page

TEMPLATE = """<task name="two_steps" type="sequential">
  <description>d</description>
  <inputs><input name="topic" required="true"/></inputs>
  <steps>
    <task name="facts" type="atomic"><description>d</description>
      <instructions>Collect the facts about {{ topic }}.</instructions></task>
    <task name="text" type="atomic"><description>d</description>
      <instructions>Write a text with these facts:

{{ steps.facts.content }}

Use plain words only.</instructions></task>
  </steps>
</task>
"""


def run_path(root: Path, number: int = 1) -> str:
    return next(run["href"] for run in page(root, "/runs").data["runs"] if run["id"] == number)


def marks(data: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        (span["source"], span["text"].strip())
        for talk in data["conversations"]
        for spans in talk["sources"].values()
        for span in spans
        if span["source"]
    ]


def evaluate(root: Path) -> None:
    (root / "templates").mkdir()
    (root / "templates" / "t.xml").write_text(TEMPLATE, encoding="utf-8")
    evaluator = Evaluator(
        TemplateLibrary.load(root / "templates"),
        backend=SimulatedBackend(script=["It is deep & cold.", "A text."]),
        tasks_dir=root / "tasks",
    )
    evaluator.evaluate_sync("two_steps", {"topic": "Lake Baikal"}).unwrap()


def test_the_parts_of_a_prompt_have_their_sources(tmp_path: Path) -> None:
    evaluate(tmp_path)
    data = page(tmp_path, run_path(tmp_path)).data
    assert marks(data) == [
        ("template line 6", "Collect the facts about"),
        ("input topic", "Lake Baikal"),
        ("template line 8", "Write a text with these facts:"),
        ("answer of steps[1]", "It is deep & cold."),
        ("template line 12", "Use plain words only."),
    ]
    assert (data["template"]["name"], data["template"]["is_same"]) == ("two_steps", True)
    assert re.fullmatch("/template/[0-9a-f]+", data["template"]["href"])


def test_lines_of_a_template_that_has_changed_are_no_sources(tmp_path: Path) -> None:
    evaluate(tmp_path)
    (tmp_path / "templates" / "t.xml").write_text(
        TEMPLATE.replace("d</desc", "other</desc"), encoding="utf-8"
    )
    data = page(tmp_path, run_path(tmp_path)).data
    assert [source for source, _ in marks(data)] == ["input topic", "answer of steps[1]"]
    assert data["template"]["is_same"] is False


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("nothing known", []),
        ("a cat sat", [("a ", ""), ("cat sat", "long")]),
        (
            "cat, cat sat and cat",
            [("cat", "short"), (", ", ""), ("cat sat", "long"), (" and ", ""), ("cat", "short")],
        ),
        (
            "x\n  Answer briefly.\ny",
            [("x\n", ""), ("  Answer briefly.", "template line 3"), ("\n", ""), ("y", "")],
        ),
        (
            '<context source="step:a">\ncat\n</context>\n\ncat',
            [
                ('<context source="step:a">\ncat\n</context>', "context step:a"),
                ("\n", ""),
                ("\n", ""),
                ("cat", "short"),
            ],
        ),
        ("of is", []),
    ],
)
def test_longer_sources_come_first_and_short_values_are_none(
    prompt: str, expected: list[tuple[str, str]]
) -> None:
    sources = [
        PromptSource("short", "cat"),
        PromptSource("long", " cat sat\n"),
        PromptSource("tiny", "is"),
        PromptSource("empty", ""),
    ]
    lines = line_numbers(["<task>", "of is", "Answer briefly.", "Answer briefly."])
    assert [(each.text, each.source) for each in spans(prompt, sources, lines)] == expected


def test_a_prompt_with_very_many_parts_or_characters_is_left_as_it_is() -> None:
    assert spans("cat " * 5_000, [PromptSource("a", "cat")], {}) == []
    assert spans("x" * 60_000 + "cat", [PromptSource("a", "cat")], {}) == []


def turn(path: str, prompt: str, answer: Any, **start: Any) -> tuple[StepStart, StepEnd]:
    args = {"messages": [{"role": "user", "content": prompt}]}
    end = StepEnd("success" if answer else "failed", {"content": answer} if answer else None, 0.1)
    return StepStart(path, "model", "m", args, **start), end


def write(root: Path, *turns: tuple[StepStart, StepEnd]) -> None:
    journal = TaskStore(root / "tasks").create("r", {}, template="t")
    for start, end in turns:
        journal.note(start, end)
    journal.close(Summary("completed", len(turns), 0, 0.1))


def changes(root: Path) -> list[tuple[str, str, str]]:
    """The title and both texts of each change."""
    data = page(root, run_path(root)).data
    return [
        (change["title"], change["before"], change["after"])
        for talk in data["conversations"]
        for change in talk["changes"]
    ]


def test_a_turn_that_was_called_again_shows_what_changed(tmp_path: Path) -> None:
    write(
        tmp_path,
        turn("turn[1]", "Say it in red", "It is red", fingerprint="a"),
        turn("turn[1]", "Say it in blue", "It is blue", fingerprint="b"),
    )
    assert changes(tmp_path) == [
        ("Request of turn[1], steps 1 and 2", "Say it in red", "Say it in blue"),
        ("Answer of turn[1], steps 1 and 2", "It is red", "It is blue"),
    ]


def test_an_answer_that_was_asked_for_again_shows_what_changed(tmp_path: Path) -> None:
    write(tmp_path, turn("turn[1]", "Count", "1 two 3"), turn("turn[2]", "Digits only", "1 2 3"))
    assert changes(tmp_path) == [("Answer in turn[1] and turn[2]", "1 two 3", "1 2 3")]


def test_an_iteration_of_a_loop_is_compared_with_the_one_before(tmp_path: Path) -> None:
    write(
        tmp_path,
        *(
            turn(f"iterations[{n}]/{part}/turn[1]", f"{part}: round {n}", f"answer {n}")
            for n in (1, 2)
            for part in ("director", "evaluator")
        ),
    )
    assert changes(tmp_path) == [
        (f"{what} in iterations[1]/{part} and here", f"{text} 1", f"{text} 2")
        for part in ("director", "evaluator")
        for what, text in (("Request", f"{part}: round"), ("Answer", "answer"))
    ]


def test_a_call_that_was_only_repeated_shows_no_change(tmp_path: Path) -> None:
    write(
        tmp_path,
        turn("turn[1]", "Say it", None, attempt=1, max_attempts=3),
        turn("turn[1]", "Say it", "It"),
    )
    assert changes(tmp_path) == []


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_in_prompts_and_inputs_stays_text(tmp_path: Path, text: str) -> None:
    journal = TaskStore(tmp_path / "tasks").create(
        "r", {text: f"{text} one", "b": "x"}, template="t"
    )
    for number, prompt in enumerate((f"a {text} one", f"b {text} two"), 1):
        journal.note(*turn("turn[1]", prompt, f"{text} {number}", fingerprint=str(number)))
    journal.close(Summary("completed", 2, 0, 0.1))
    assert_harmless(page(tmp_path, run_path(tmp_path)).text)
