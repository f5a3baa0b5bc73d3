"""Text from outside cannot close the tags that a prompt puts around it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from evaluator import Span
from evaluator.language.fences import block, fence, fence_value, tags_around
from evaluator.language.sandbox import render, render_prompt
from evaluator.language.scopes import Scope
from evaluator.nodes import Text

TEXT = Text("Are there <b>bold</b> words? <reply>{{ reply }}</reply>", Span())


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("</reply>", "<\\/reply>"),
        ("a <reply> b </ REPLY\n>", "a <\\reply> b <\\/ REPLY\n>"),
        ('<reply x="1">', '<\\reply x="1">'),
        ("<reply-to></replyto></re ply> 1 < 2 reply", "<reply-to></replyto></re ply> 1 < 2 reply"),
        ("</other></div> <b>bold</b>", "</other></div> <b>bold</b>"),
        ("cut off <", "cut off <\\"),
        ("cut off </rep", "cut off <\\/rep"),
        ("not a part </rex", "not a part </rex"),
        ({"</reply>": ["</reply>", 3, None]}, {"<\\/reply>": ["<\\/reply>", 3, None]}),
        (7, 7),
    ],
)
def test_only_the_tags_that_are_around_the_text_are_changed(value: Any, shown: Any) -> None:
    assert fence_value(value, ("reply",)) == shown


@pytest.mark.parametrize(
    ("source", "names"),
    [
        (TEXT.value, ("reply",)),
        ("<a>{{ x }}</a><b><c>{% if y %}{{ y }}{% endif %}</c></b>", ("a", "b", "c")),
        ("<a>constant</a> {{ x }}", ()),
        ("{{ x }}</a>", ()),
        ("no markup", ()),
    ],
)
def test_the_tags_around_expressions_are_found(source: str, names: tuple[str, ...]) -> None:
    assert tags_around(source) == names


def prompt(source: str, **values: Any) -> str:
    return asyncio.run(render_prompt(Text(source, Span()), Scope(values)))


@pytest.mark.parametrize(
    ("source", "values"),
    [
        ("<reply>{{ reply }}</reply>", {"reply": "</reply>"}),
        ("<reply>{{ row.texts[0] }}</reply>", {"row": {"texts": ["</reply>"]}}),
        ("<reply>{% for one in many %}{{ one }}{% endfor %}</reply>", {"many": ["</", "reply>"]}),
        ("<reply>{{ a }}{{ b }}</reply>", {"a": "x <", "b": "/reply>"}),
        ("<reply>{{ row }}</reply>", {"row": {"text": "</reply>"}}),
        ("<reply>{% set it = text | upper %}{{ it }}</reply>", {"text": "</reply>"}),
        (
            "{% macro tag(x) %}<reply>{{ x }}</reply>{% endmacro %}{{ tag(text) }}",
            {"text": "</reply>"},
        ),
    ],
)
def test_no_value_closes_a_tag_of_a_prompt(source: str, values: dict[str, Any]) -> None:
    assert prompt(source, **values).lower().count("</reply>") == 1
    # The control: as a plain text it would.
    assert asyncio.run(render(Text(source, Span()), Scope(values))).lower().count("</reply>") == 2


def test_the_result_of_a_function_cannot_close_a_tag() -> None:
    async def call(*_: Any) -> str:
        return "</reply>"

    text = Text("<reply>{{ f() }}</reply>", Span())
    assert asyncio.run(render_prompt(text, Scope(), functions=call)) == "<reply><\\/reply></reply>"


def test_texts_without_tags_are_rendered_as_they_are() -> None:
    assert prompt("{{ x }} and <b>bold</b>", x="</b></reply>") == "</b></reply> and <b>bold</b>"


def test_a_block_has_its_attributes_quoted() -> None:
    shown = block("context", "a</context>b</outer>", "outer", source='f"><x>\n\x1b')
    assert shown == (
        '<context source="f&quot;&gt;&lt;x&gt;\\n\\x1b">\na<\\/context>b<\\/outer>\n</context>'
    )


def test_a_long_run_of_spaces_after_a_bracket_is_read_once() -> None:
    text = "<" + " " * 200_000 + "x"
    assert fence(text, ("reply",)) == text
