"""A text whose placeholders are all paths is read without Jinja's parser, with the same result."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from evaluator import Span
from evaluator.errors import ExpressionError
from evaluator.language import analysis, sandbox
from evaluator.language.sandbox import evaluate_expression_sync, render_sync
from evaluator.language.scopes import Scope
from evaluator.language.syntax import plain_path, plain_pieces
from evaluator.nodes import Expression, Text

SCOPE = {"a": "one", "b": {"c": 2, "d": [1, {"e": None}], "if": True}, "data": None}
PIECES = st.sampled_from(
    [
        *("{{ a }}", "{{b.c}}", "{{ b.d }}", "{{\n b.c\n}}", "{{ b.if }}", "{{ data }}", "{{ é }}"),
        *("{{ a.x }}", "{{ b.x.y }}", "{{ unknown }}", "{{ null }}", "{{ true }}", "{{ in }}"),
        *("{{ 1a }}", "{{ a. }}", "{{ a b }}", "{{- a -}}", "{{ a | upper }}", "{{ a\r}}", "{{}}"),
        "{{ or }}",
        *(
            "{% if a %}x{% endif %}",
            "{# c #}",
            "{{",
            "}}",
            "{",
            "}",
            "\n",
            "\r\n",
            " ",
            "text",
            "ä",
        ),
    ]
)


def both_ways(monkeypatch: pytest.MonkeyPatch, work) -> tuple[object, object]:
    """What `work` returns or raises without the parser where it can do without, and with it."""
    found: list[object] = []
    for is_plain in (True, False):
        for cached in (
            *(analysis._text_result, analysis._expression_result),
            *(sandbox.compiled_text, sandbox.compiled_expression),
        ):
            cached.cache_clear()
        with monkeypatch.context() as patch:
            if not is_plain:
                for module, name in (
                    *((analysis, "plain_pieces"), (analysis, "plain_path")),
                    *((sandbox, "plain_text"), (sandbox, "plain_expression")),
                ):
                    patch.setattr(module, name, lambda _: None)
            try:
                found.append(work())
            except ExpressionError as error:
                found.append((type(error), str(error), error.code, error.span))
    return found[0], found[1]


@given(st.lists(PIECES, max_size=6).map("".join))
@example("a {{ a }} b {{ b.d }}\n{{ b.c }}\r\n")
@example("{{ b.x.y }}")
@example("{{ a.x }}")
def test_a_text_is_the_same_with_and_without_the_parser(value: str) -> None:
    text = Text(value, Span("t", 1, 1))
    with pytest.MonkeyPatch.context() as patch:
        for work in (
            lambda: analysis.analyse(text),
            lambda: repr(analysis.read_all(text)),
            lambda: render_sync(text, Scope(SCOPE)),
        ):
            plain, parsed = both_ways(patch, work)
            assert plain == parsed


@pytest.mark.parametrize(
    "value",
    [
        *("a", " b.c\n", "b.d.e", "b.x", "b.c.y", "data.x", "none", "not", "undefined", "null.a"),
        *("a.", ".a", "a..b", "a.1", "True", "b.if", "if", "x\u00e4", "b[0]", "a\r"),
        *("or", "or.x"),
    ],
)
def test_an_expression_is_the_same_with_and_without_the_parser(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    expression = Expression(Text(value, Span("t", 1, 1)))
    for work in (
        lambda: analysis.analyse(expression),
        lambda: evaluate_expression_sync(expression, Scope(SCOPE)),
    ):
        plain, parsed = both_ways(monkeypatch, work)
        assert plain == parsed


def test_only_paths_are_read_without_the_parser() -> None:
    assert plain_pieces("x {{ a }}{{ b.c }}") is not None
    assert plain_path("steps.draft.content") is not None
    others = ("{{ a }}{% set b = 1 %}", "{{ f() }}", "{{ true }}", "{{ a or b }}", "{{ a")
    assert [plain_pieces(other) for other in others] == [None] * len(others)
    assert [plain_path(other) for other in ("null", "a[0]", "a and b", "", "é")] == [None] * 5
