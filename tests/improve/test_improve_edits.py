"""Edits change what they name and leave every other character of a file as it is."""

from __future__ import annotations

import re
from difflib import ndiff
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluator import TemplateLibrary
from evaluator.improve.edits import (
    EditError,
    apply_edits,
    edit_to_dict,
    read_edit,
    with_certificate,
)
from evaluator.nodes import Atomic

FILE = """\
<?xml version="1.0" encoding="UTF-8"?>
<library>
  <!-- first -->
  <task name="other" type="atomic"><description>Other</description></task>

  <task  type="atomic" name="sort"
         version="2.9">
    <description>Sort a ticket</description>
    <inputs><input name="ticket" type="string" required="true">it</input></inputs>
    <instructions><![CDATA[
Which queue? <<ticket>> & {{ ticket }}
]]></instructions>
    <output_format type="json">{"type": "object", "properties": {"queue": {"type": "string"}}}</output_format>
    <examples>
      <example><input name="ticket">a</input><output>{"queue": "A"}</output></example>
      <!-- b -->
      <example><input name="ticket">b</input><output>{"queue": "B"}</output></example>
    </examples>
  </task>
</library>
"""


def edited(*tables: dict[str, Any], text: str = FILE) -> str:
    return apply_edits(text, "sort", [read_edit(table, is_proposed=False) for table in tables])


def node_of(text: str) -> Atomic:
    library = TemplateLibrary()
    library.add(text)
    node = library.get("sort").node
    assert isinstance(node, Atomic)
    return node


def changed(text: str) -> list[str]:
    lines = ndiff(FILE.split("\n"), text.split("\n"))
    return [line.strip() for line in lines if line[0] in "+-"]


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        (
            {"op": "set", "element": "description", "text": "Sort <it> & go"},
            [
                "-     <description>Sort a ticket</description>",
                "+     <description>Sort &lt;it&gt; &amp; go</description>",
            ],
        ),
        (
            {"op": "set", "element": "system", "text": "Be brief"},
            ["+     <system>Be brief</system>"],
        ),
        (
            {
                "op": "replace",
                "element": "instructions",
                "find": "Which queue?",
                "text": "The queue of <<ticket>>?",
            },
            [
                "- Which queue? <<ticket>> & {{ ticket }}",
                "+ The queue of {{ ticket }}? {{ticket}} & {{ ticket }}",
            ],
        ),
        (
            {"op": "reword_example", "index": 2, "input": "ticket", "text": "c"},
            [
                '-       <example><input name="ticket">b</input><output>{"queue": "B"}</output></example>',
                '+       <example><input name="ticket">c</input><output>{"queue": "B"}</output></example>',
            ],
        ),
    ],
)
def test_an_edit_changes_only_its_lines(table: dict[str, Any], expected: list[str]) -> None:
    assert changed(edited(table)) == expected


def test_examples_are_added_as_few_shot_turns_and_reordered() -> None:
    row = {
        "op": "add_example",
        "row": "7",
        "inputs": {"ticket": 'x "<y>"'},
        "output": '{"queue": "C"}',
    }
    node = node_of(edited(row, {"op": "order_examples", "order": [3, 1]}))
    assert [(each.inputs["ticket"], each.output) for each in node.examples] == [
        ('x "<y>"', '{"queue": "C"}'),
        ("a", '{"queue": "A"}'),
    ]
    assert node.shots


def test_the_description_of_an_output_member_is_set() -> None:
    node = node_of(edited({"op": "describe_output", "path": "queue", "text": "Its letter"}))
    assert node.output is not None
    assert '"description": "Its letter"' in (node.output.schema or "")


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ({"op": "remove"}, "op is 'remove'"),
        ({"op": "set", "element": "tools", "text": "bash"}, "element is 'tools'"),
        ({"op": "set", "element": "system", "text": "a\x00b"}, "U+0000"),
        ({"op": "set", "element": "system", "text": 3}, "text is 3"),
        (
            {"op": "replace", "element": "instructions", "find": "ticket", "text": ""},
            "occurs 2 times",
        ),
        ({"op": "order_examples", "order": [1, 1]}, "not different numbers"),
        ({"op": "order_examples", "order": [3]}, "not different numbers"),
        ({"op": "reword_example", "index": 3, "text": ""}, "there are 2 examples"),
        ({"op": "describe_output", "path": "nothing", "text": "x"}, "no member"),
        ("set", "JSON object"),
    ],
)
def test_an_edit_that_does_not_fit_is_refused(table: Any, why: str) -> None:
    with pytest.raises(EditError, match=re.escape(why)):
        edited(table)


def test_a_proposal_names_rows_and_does_not_write_them() -> None:
    with pytest.raises(EditError, match="name the row"):
        read_edit({"op": "add_example", "row": "1", "output": "mine"})


@settings(max_examples=15)
@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=60))
def test_any_text_is_read_back_as_it_was_written(value: str) -> None:
    text = " ".join(value.replace("<<", "").replace("{", "(").split())
    for element in ("system", "instructions"):
        edit = read_edit({"op": "set", "element": element, "text": text or "x"}, is_proposed=False)
        assert read_edit(edit_to_dict(edit), is_proposed=False) == edit
        node = node_of(apply_edits(FILE, "sort", [edit]))
        assert getattr(node, element).value == (text or "x")


def test_a_written_template_has_a_higher_version_and_a_comment() -> None:
    text = with_certificate(FILE, "sort", "certificate 12 -- ok")
    assert changed(text) == [
        "+   <!-- certificate 12 - - ok -->",
        '-          version="2.9">',
        '+          version="2.10">',
    ]
    assert node_of(text).version == "2.10"
