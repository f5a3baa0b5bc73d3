"""Analysis finds the names and calls of a text with their places; operators of other languages are understood."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator import Span, TemplateLibrary
from evaluator.errors import ExpressionError, SandboxError
from evaluator.language import parsing
from evaluator.language.analysis import analyse
from evaluator.language.parsing import parse_expression
from evaluator.language.syntax import Reference
from evaluator.nodes import Expression, Mark, Text


def text(value: str) -> Text:
    return Text(value, Span("t.xml", 1, 1), (Mark(0, Span("t.xml", 1, 1)),))


def names(value: str) -> list[tuple[str, bool]]:
    return [(reference.name, reference.optional) for reference in analyse(text(value)).references]


FREE = [
    ("plain { } }} text", []),
    ("{{ a }}{{ a }}", [("a", False), ("a", False)]),
    ("{{ a | default(b) }}", [("a", True), ("b", False)]),
    ("{{ a.b.c | d('') }}", [("a", True)]),
    (
        "{% if a is defined %}{{ a }}{% else %}{{ a }}{% endif %}",
        [("a", True), ("a", True), ("a", False)],
    ),
    (
        "{% if a is not defined %}{{ a }}{% else %}{{ a }}{% endif %}",
        [("a", True), ("a", False), ("a", True)],
    ),
    ("{{ a is defined and a > 1 }}", [("a", True), ("a", True)]),
    ("{{ a is undefined or a > 1 }}", [("a", True), ("a", True)]),
    ("{{ a if a is defined else b }}", [("a", True), ("a", True), ("b", False)]),
    ("{% set a = b %}{{ a }}", [("b", False)]),
    ("{{ a }}{% set a = 1 %}", [("a", False)]),
    ("{% set a = a %}{{ a }}", [("a", False)]),
    (
        "{% for x in xs if x > k %}{{ x }}{{ loop.index }}{% endfor %}{{ x }}",
        [("xs", False), ("k", False), ("x", False)],
    ),
    ("{% for k, v in d.items() %}{{ k }}{{ v }}{% endfor %}", [("d", False)]),
    ("{% for x in x %}{{ x }}{% else %}{{ x }}{% endfor %}", [("x", False), ("x", False)]),
    ("{% for x in xs %}{% set y = x %}{% endfor %}{{ y }}", [("xs", False), ("y", False)]),
    (
        "{% macro m(a, b=c) %}{{ a }}{{ b }}{{ d }}{% endmacro %}{{ m(e) }}",
        [("c", False), ("d", False), ("e", False)],
    ),
    (
        "{% macro m() %}{{ a }}{{ b }}{% endmacro %}{% set a = 1 %}{{ m() }}{% for b in a %}{% endfor %}",
        [("b", False)],
    ),
    (
        "{% for x in xs %}{% macro m() %}{{ a }}{% endmacro %}{% endfor %}{% set a = 1 %}",
        [("xs", False), ("a", False)],
    ),
    (
        "{% for x in xs if a is defined %}{{ a }}{% endfor %}",
        [("xs", False), ("a", True), ("a", True)],
    ),
    ("{{ a.b if a is mapping else a }}", [("a", True), ("a", False), ("a", True)]),
    (
        "{{ a is string and b and a or a.c }}",
        [("a", False), ("b", False), ("a", True), ("a", True)],
    ),
    ("{{ a.b if a.b is not none else a }}", [("a", False), ("a", False), ("a", False)]),
    ("{% with a = b %}{{ a }}{% endwith %}{{ a }}", [("b", False), ("a", False)]),
    ("{% set a %}{{ b }}{% endset %}{{ a }}", [("b", False)]),
    ("{% filter upper %}{{ a }}{% endfilter %}", [("a", False)]),
    ("{% raw %}{{ a }}{% endraw %}{# {{ b }} #}", []),
    ("{{ s.upper() }}{{ s[i] }}", [("s", False), ("s", False), ("i", False)]),
    ("{{ range(n) }}{{ dict(a=b) }}", [("n", False), ("b", False)]),
    ("{{ a == undefined }}{{ b == null }}", [("a", True), ("b", False)]),
]


@pytest.mark.parametrize(("value", "expected"), FREE)
def test_free_names_follow_jinjas_scoping(value: str, expected: list[tuple[str, bool]]) -> None:
    assert names(value) == expected


def test_a_path_holds_the_constant_dots_and_indexes() -> None:
    (reference,) = analyse(text("{{ steps.one[0]['k'].x }}")).references
    assert reference == Reference("steps", ("one", 0, "k", "x"), 3, False)


def test_a_method_is_not_part_of_the_path() -> None:
    (reference,) = analyse(text("{{ steps.one.upper() }}")).references
    assert reference.path == ("one",)


def test_calls_of_free_names_are_function_templates() -> None:
    analysis = analyse(text("{{ title_of(doc, style='short') }} {{ f(*xs, **kw) }} {{ range(3) }}"))
    first, second = analysis.calls
    assert (first.name, first.positional, first.keywords, first.star, first.offset) == (
        "title_of",
        1,
        ("style",),
        False,
        3,
    )
    assert (second.name, second.star) == ("f", True)
    assert [reference.name for reference in analysis.references] == ["doc", "xs", "kw"]


def test_only_text_without_markup_is_constant() -> None:
    assert analyse(text("a { b } }} {x}")).constant
    assert not analyse(text("{# note #}")).constant
    assert analyse(Expression(text("1 + 2 == 3"))).constant
    assert not analyse(Expression(text("x"))).constant


IDENTIFIERS = st.sampled_from(["a", "bb", "name", "été", "x_1"])
FILLERS = st.text("ab {}\r\n\t%#é", max_size=12).filter(
    lambda value: (
        not any(mark in value + "{" for mark in ("{{", "{%", "{#")) and not value.endswith("{")
    )
)


@given(
    st.lists(
        st.tuples(
            FILLERS,
            IDENTIFIERS,
            st.sampled_from(["{{%s}}", "{{ %s }}", "{{-  %s -}}", "{{\r\n%s+1}}"]),
        )
    )
)
def test_every_offset_is_the_place_of_the_name(parts: list[tuple[str, str, str]]) -> None:
    value = "".join(filler + form % name for filler, name, form in parts)
    references = analyse(text(value)).references
    assert [reference.name for reference in references] == [name for _, name, _ in parts]
    for reference in references:
        assert value[reference.offset :].startswith(reference.name)
    assert len({reference.offset for reference in references}) == len(parts)


ERRORS = [
    ("ab {{ x | uper }}", 11, "unknown-filter", "did you mean `upper`"),
    ("{{ x is odd }}{{ x is evn }}", 20, "unknown-test", "did you mean `even`"),
    ("{{ x", 4, "syntax", "end of"),
    ("a {# b", 5, "syntax", "comment"),
    ("{{ a }} {{ b ! }}", 14, "syntax", "write 'not'"),
    ("{{ a = 1 }}", 6, "syntax", "compare with '=='"),
    ('{{ "a": 1 }}', 7, "syntax", "raw"),
    ("{% if a %}", 4, "syntax", "{% endif %} is missing"),
    ("{% if a %}{% for b in a %}{% endif %}", 30, "syntax", "endfor"),
    ("{% if a %}{% for b in a %}{{ b }}", 14, "syntax", "{% for … %} is not closed"),
    ("{% do x %}", 4, "syntax", "unknown tag"),
    ("x{% include 'a' %}", 5, "forbidden-statement", "<include>"),
    ("{% import 'a' as b %}", 4, "forbidden-statement", "function template"),
    ("{% from 'a' import b %}", 4, "forbidden-statement", "function template"),
    ("{% extends 'a' %}", 4, "forbidden-statement", "function template"),
    ("{% block a %}{% endblock %}", 4, "forbidden-statement", "function template"),
    (
        "{% macro m() %}{% endmacro %}{% call m() %}{% endcall %}",
        33,
        "forbidden-statement",
        "argument",
    ),
    ("{% autoescape true %}{% endautoescape %}", 4, "forbidden-statement", "escape"),
    ("{% for x in xs recursive %}{% endfor %}", 4, "forbidden-statement", "macro"),
    ("{{ a or and }}", 9, "syntax", "'and'"),
    ("{% set ns.x = 1 %}", 8, "undefined-variable", "namespace()"),
]


@pytest.mark.parametrize(("value", "column", "code", "part"), ERRORS)
def test_what_cannot_be_read_is_located_to_the_column(
    value: str, column: int, code: str, part: str
) -> None:
    with pytest.raises(ExpressionError) as caught:
        analyse(text(value))
    assert (caught.value.code, caught.value.span.column) == (code, column)
    assert part in caught.value.message


def test_an_error_on_a_later_line_has_that_line() -> None:
    with pytest.raises(ExpressionError) as caught:
        analyse(text("one\n{{ a }}\n  {{ b | nope }}"))
    assert (caught.value.span.line, caught.value.span.column) == (3, 10)


@pytest.mark.parametrize(
    "value",
    [
        "{{ " + "(" * 5000 + "x" + ")" * 5000 + " }}",
        "{{ " + "[" * 41 + "]" * 41 + " }}",
        "{{ a" + " + a" * 5000 + " }}",
        "{{ " + "not " * 5000 + "a }}",
        "{{ " + "-" * 5000 + "1 }}",
        "{{ a" + ".b" * 5000 + " }}",
        "{{ a" + "|upper" * 5000 + " }}",
        "{{ " + "a if b else " * 5000 + "c }}",
        "{% if a %}" * 2000 + "{% endif %}" * 2000,
    ],
)
def test_deep_nesting_is_an_error_rather_than_an_overflow(value: str) -> None:
    with pytest.raises(SandboxError) as caught:
        analyse(text(value))
    assert caught.value.code == "too-deep"


TRANSLATIONS = [
    ("a === b", "a == b"),
    ("a !== b", "a != b"),
    ("a&&b", "a and b"),
    ("a || b", "a  or  b"),
    ("!a", "(not a)"),
    ("!!a", "(not (not a))"),
    ("!a.b[0](c) == d", "(not a.b[0](c)) == d"),
    ("!(a && b)", "(not (a  and  b))"),
    ("a != b", "a != b"),
    ("x === null", "x == none"),
    ("x.null", "x.null"),
    ("'a && b' == \"!x\"", "'a && b' == \"!x\""),
    (r"'it\'s && x' && y", r"'it\'s && x'  and  y"),
    ("{{a.b}} > 1", "( a.b ) > 1"),
    ("{'a': {'b': 1}}", "{'a': {'b': 1}}"),
    ("true && None", "true  and  None"),
]


@pytest.mark.parametrize(("source", "expected"), TRANSLATIONS)
def test_other_languages_operators_are_read_as_meant(source: str, expected: str) -> None:
    assert parse_expression(source) == parse_expression(expected)


def test_an_expression_is_located_in_the_authors_spelling() -> None:
    source = "aa && !bb || cc !== {{dd}}"
    for reference in analyse(Expression(text(source))).references:
        assert source[reference.offset :].startswith(reference.name)


@pytest.mark.parametrize(
    ("source", "column", "part"),
    [
        ("", 1, "missing"),
        ("a && b |", 8, "end"),
        ("a && && b", 9, "unexpected"),
        ("a ? b : c", 3, "if test else"),
        ("a = 1", 3, "=="),
        ("'{{x}}' == 'y'", 1, "without braces"),
        ("a b", 3, "after the expression"),
    ],
)
def test_a_wrong_expression_is_located_to_the_column(source: str, column: int, part: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        analyse(Expression(text(source)))
    assert (caught.value.code, caught.value.span.column) == ("syntax", column)
    assert part in caught.value.message


@given(st.text("ab&|!=(){}[]'\". <>+-?:,%#0\\\n", max_size=40))
def test_any_source_is_parsed_or_raises_an_expression_error(source: str) -> None:
    for read in (
        lambda: analyse(text("{{" + source)),
        lambda: analyse(Expression(text(source))),
    ):
        try:
            places = [reference.offset for reference in read().references]
        except ExpressionError as error:
            places = [error.span.line]
        assert all(place >= 0 for place in places)


def test_a_text_with_too_much_markup_is_read_once_until_it_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    reads: list[str] = []
    text_pieces = parsing._text_pieces

    def counted(source: str) -> Iterator[tuple[str, str, int]]:
        reads.append(source)
        return text_pieces(source)

    monkeypatch.setattr(parsing, "_text_pieces", counted)
    monkeypatch.setattr(parsing, "MAX_TOKENS", 1_000)
    places = "{{ topic | upper }} " * 500
    (tmp_path / "much.xml").write_text(
        f"<task name='much'><description>Much.</description><instructions>{places}</instructions>"
        "<inputs><input name='topic'/></inputs></task>"
    )
    library = TemplateLibrary.load(tmp_path, shipped=False)
    assert [each.message for each in library.errors] == ["the text holds too much markup"]
    assert [source for source in reads if source.startswith("{{ topic")] == [places.strip()]
