"""A text that is being typed is read as far as it can be told, with the places of the author's text."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from evaluator import TemplateError
from evaluator.xml.source import read_source
from evaluator.xml.tolerant import complete, read_tree

SHIPPED = sorted((Path(__file__).parents[2] / "templates").rglob("*.xml"))
PIECES = ["<", ">", '"', "&", "</", "<input na", "<!--", "<![CDATA[", "{{", "<<", "/>", "=", "\x01"]


def is_well_formed(text: str) -> bool:
    try:
        read_source(text)
    except TemplateError:
        return False
    return True


@pytest.mark.parametrize(
    ("text", "completed"),
    [
        ("<task><steps>", "<task><steps></steps></task>"),
        ("<task><steps></task>", "<task><steps></steps></task>"),
        ("<task><input na\n</task>", "<task>         \n</task>"),
        ("<task>a & b</task>", "<task>a   b</task>"),
        ("<task a='1' a='2' b/>", "<task a='1'        />"),
        ("<task>{{ <<x>> <</task>", "<task>{{ {{x}}  </task>"),
        (
            "<task><instructions>x<steps/></task>",
            "<task><instructions>x</instructions><steps/></task>",
        ),
        ("<task/><task/>", "<task/>       "),
        ("<task><!-- x</task>", "<task>     x</task>"),
        ("<x:task><task/></x:task>", "        <task/>         "),
        ("nothing", None),
    ],
)
def test_what_is_broken_becomes_blank_and_what_is_open_is_closed(
    text: str, completed: str | None
) -> None:
    assert complete(text) == completed


def test_an_element_ends_where_one_begins_that_it_cannot_hold() -> None:
    text = "<task><instructions>x\n<steps><task>"
    (task,) = read_tree(text).children
    assert [child.name for child in task.children] == ["instructions", "steps"]
    assert task.children[0].end == text.index("<steps>")
    assert read_tree(text).at(len(text)).name == "task"
    assert [each.name for each in read_tree(text).at(len(text)).around()] == [
        "task",
        "steps",
        "task",
        "",
    ]


@pytest.mark.parametrize("path", SHIPPED[::4], ids=lambda path: path.stem)
def test_a_completed_text_keeps_lines_and_is_well_formed(path: Path) -> None:
    generator = random.Random(path.name)
    text = path.read_text(encoding="utf-8")
    assert read_source(complete(text) or "").root.tag == read_source(text).root.tag
    failed = 0
    for _ in range(60):
        broken = text
        for _ in range(generator.randint(1, 3)):
            at = generator.randrange(len(broken))
            broken = (
                broken[:at]
                + generator.choice(["", *PIECES])
                + broken[at + generator.randint(0, 9) :]
            )
        done = complete(broken)
        if done is None:
            continue
        assert done.count("\n") == broken.count("\n")
        failed += not is_well_formed(done)
        for element in read_tree(broken).walk():
            assert element.start <= element.inside <= element.close <= element.end <= len(broken)
    assert failed <= 1


@pytest.mark.parametrize(
    "text",
    ["<" * 3000, "<!--" * 2000, "<![CDATA[" * 2000, "<a " * 3000, "<a>" * 3000, '<a b="' * 2000],
    ids=lambda text: text[:9],
)
def test_a_hostile_text_is_read_in_linear_time(text: str) -> None:
    assert read_tree(text) is not None
    complete(text)
