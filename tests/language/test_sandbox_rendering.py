"""Texts and expressions give the documented results, and their errors are located."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator import Span, ToolError
from evaluator.errors import ExpressionError
from evaluator.language.sandbox import (
    evaluate_expression,
    evaluate_expression_sync,
    render,
    render_sync,
)
from evaluator.language.scopes import Scope
from evaluator.nodes import Expression, Mark, Text
from tests.tables import each_case

VALUES: dict[str, Any] = {
    "a": 3,
    "f": 1.5,
    "t": True,
    "n": None,
    "s": "hi {{ a }}",
    "xs": [3, 1, 2],
    "e": [],
    "words": ["b", "A", "c"],
    "d": {"k": "v", "m": {"l": [1, None, "é"]}, "items": "own"},
    "people": [{"n": "Bo", "age": 3}, {"n": "Al", "age": 5}, {"n": "Cy", "age": 3}],
}


def text(value: str) -> Text:
    return Text(value, Span("t.xml", 1, 1), (Mark(0, Span("t.xml", 1, 1)),))


def shown(value: str, **more: Any) -> str:
    return render_sync(text(value), Scope(VALUES).child(more))


RENDERED = [
    ("plain { x } }}\n", "plain { x } }}\n"),
    ("{{ a }} {{ f }} {{ t }} {{ s }}\n", "3 1.5 true hi {{ a }}\n"),
    ("{{ xs }} {{ d.m }}", '[3, 1, 2] {"l": [1, null, "é"]}'),
    ("{{ d.k }}{{ d['k'] }}{{ d.m.l[0] }}{{ xs[-1] }}{{ xs[1:] }}", "vv12[1, 2]"),
    ("{{ d.items }}|{{ d.items()[0] }}", 'own|["k", "v"]'),
    (
        "{{ nope | default('x') }}{{ nope.a.b | d(1) }}{{ n | default('y') }}{{ e | default('z', true) }}",
        "x1yz",
    ),
    ("{{ nope is defined }}{{ d.k is defined }}{{ d.q is undefined }}", "falsetruetrue"),
    ("{{ 'y' if a > 9 }}|{{ 'y' if a > 1 else 'n' }}", "|y"),
    (
        "{% for x in xs if x > 1 %}{{ loop.index }}/{{ loop.length }}:{{ x }};{% endfor %}",
        "1/2:3;2/2:2;",
    ),
    ("{% for x in e %}x{% else %}none{% endfor %}", "none"),
    ("{% for k, v in d.m.items() %}{{ k }}={{ v[0] }}{% endfor %}", "l=1"),
    ("{% for x in xs %}{{ loop.cycle('a', 'b') }}{{ ',' if not loop.last }}{% endfor %}", "a,b,a"),
    ("{% set y = 1 %}{% for x in xs %}{% set y = x %}{% endfor %}{{ y }}", "1"),
    (
        "{% set ns = namespace(t=0) %}{% for x in xs %}{% set ns.t = ns.t + x %}{% endfor %}{{ ns.t }}",
        "6",
    ),
    ("{% set q %}<{{ a }}>{% endset %}{{ q }}{{ q }}", "<3><3>"),
    ("{% set q | upper %}ab{% endset %}{{ q }}", "AB"),
    ("{% filter upper | replace('A', 'o') %}ab{{ s }}{% endfilter %}", "oBHI {{ o }}"),
    ("{% with a = 1, b = a %}{{ a }}{{ b }}{% endwith %}{{ a }}", "133"),
    (
        "{% macro m(x, y=2) %}<{{ x }}{{ y }}{{ a }}>{% endmacro %}{{ m(1) }}{{ m(1, y=5) }}",
        "<123><153>",
    ),
    (
        "{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}",
        "3210",
    ),
    ("{% if a == 1 %}1{% elif a == 3 %}3{% else %}x{% endif %}", "3"),
    ("a {%- if true -%} b {%- endif %} c", "ab c"),
    ("{% raw %}{{ a }}{% endraw %}{# no #}", "{{ a }}"),
    ("one\r\ntwo {{ a }}\r\n", "one\r\ntwo 3\r\n"),
    ("{{ a ~ '-' ~ t ~ xs }}", "3-true[3, 1, 2]"),
    (
        "{{ 7 // 2 }} {{ 7 % 4 }} {{ 2 ** 10 }} {{ 1 / 4 }} {{ -a }} {{ 'ab' * 2 }} {{ [1] + [2] }}",
        "3 3 1024 0.25 -3 abab [1, 2]",
    ),
    (
        "{{ 1 == true }} {{ 1 == 1.0 }} {{ 1 < 2 < 3 }} {{ 'a' in 'cat' }} {{ 4 not in xs }}",
        "false true true true true",
    ),
    (r"{{ 'a\nb\'cé' }}", "a\nb'cé"),
    (
        "{{ xs | sort }} {{ xs | sum }} {{ xs | max }} {{ xs | min }} {{ xs | join('-') }}",
        "[1, 2, 3] 6 3 1 3-1-2",
    ),
    ("{{ words | sort | join }} {{ words | map('upper') | join(',') }}", "Abc B,A,C"),
    (
        "{{ people | map(attribute='n') | join(' ') }} {{ people | sum(attribute='age') }}",
        "Bo Al Cy 11",
    ),
    ("{{ people | selectattr('age', 'gt', 3) | map(attribute='n') | first }}", "Al"),
    (
        "{% for g in people | groupby('age') %}{{ g.grouper }}:{{ g.list | length }} {% endfor %}",
        "3:2 5:1 ",
    ),
    (
        "{% for age, group in people | groupby('age') %}{{ age }}:{{ group | length }} {% endfor %}",
        "3:2 5:1 ",
    ),
    (
        "{{ people | groupby('age') | map(attribute='grouper') }} {{ (people | groupby('age'))[1] }}",
        '[3, 5] {"grouper": 5, "list": [{"n": "Al", "age": 5}]}',
    ),
    (
        "{{ xs | select('odd') | list }} {{ xs | reject('odd') | list }} {{ [1, 1, 2] | unique }}",
        "[3, 1] [2] [1, 2]",
    ),
    (
        "{{ range(5) | batch(2) }} {{ range(5) | slice(2) }}",
        "[[0, 1], [2, 3], [4]] [[0, 1, 2], [3, 4]]",
    ),
    (
        "{{ 'a.py'.endswith(('.py', '.js')) }} {{ 'abc'.startswith(['b', 'c']) }} "
        "{{ 'abc'.startswith('b', 1) }} {{ 'abc'.endswith('b', 0, 2) }} {{ 'a'.endswith([]) }}",
        "true false true true false",
    ),
    (
        "{{ 'well-known fact' | wordwrap(6, wrapstring='|') }} "
        "{{ 'well-known  fact' | wordwrap(6, break_on_hyphens=false, wrapstring='|') }} "
        "{{ 'a bcdefgh' | wordwrap(4, wrapstring='|') }} "
        "{{ 'a bcdefgh' | wordwrap(4, false, '|') }} {{ 'a  b\n\nc' | wordwrap(9, wrapstring='|') }}",
        "well-|known|fact well-k|nown|fact a bc|defg|h a|bcdefgh a  b||c",
    ),
    (
        "{{ 'a b c d' | wordwrap(3) }}|{{ 'abcdef' | truncate(5) }}|{{ 'ab' | center(4) }}|",
        "a b\nc d|ab...| ab |",
    ),
    (
        "{{ 'a\nb' | indent(2) }}|{{ ' x ' | trim }}|{{ 'a-b c' | title }}|{{ 'a b' | wordcount }}",
        "a\n  b|x|A-B C|2",
    ),
    (
        "{{ '<a&\"' | e }} {{ 'a b&' | urlencode }} {{ '%.2f %s' | format(f, 'x') }}",
        "&lt;a&amp;&#34; a%20b%26 1.50 x",
    ),
    (
        "{{ '12' | int + 1 }} {{ 'x' | int(7) }} {{ '1.5' | float }} {{ 2.567 | round(1) }} {{ -2 | abs }}",
        "13 7 1.5 2.6 2",
    ),
    (
        "{{ a | round }} {{ 10000000000000000000001 | round }} {{ 1250 | round(-2) }} {{ a | round(1, 'floor') }}",
        "3 10000000000000000000001 1200 3.0",
    ),
    (
        "{{ [n, 1, 0] | map('default', 'x') }} {{ [n, 1, 0] | map('d', 'x', true) }} {{ 'a\nb'.splitlines(true) }}",
        '["x", 1, 0] ["x", 1, "x"] ["a\\n", "b"]',
    ),
    (
        "{{ {'b': 1, 'a': 2} | dictsort }} {{ {'a': 1} | tojson(indent=1) }}",
        '[["a", 2], ["b", 1]] {\n "a": 1\n}',
    ),
    (
        "{{ s.upper() }} {{ 'a,b'.split(',') }} {{ d.get('zz', 4) }} {{ xs.index(2) }}",
        'HI {{ A }} ["a", "b"] 4 2',
    ),
]


@each_case(("value", "expected"), RENDERED)
def test_texts_render_as_documented(value: str, expected: str) -> None:
    assert shown(value) == expected


FAILING = [
    ("x {{ nam }}", 6, "undefined-variable", "'nam' is not defined"),
    ("{{ a }}{{ wrods }}", 11, "undefined-variable", "did you mean `words`"),
    ("{{ d.kk }}", 6, "undefined-attribute", "did you mean `k`"),
    ("{{ d.m.x }}", 8, "undefined-attribute", "has only: l"),
    ("{{ xs[7] }}", 7, "undefined-attribute", "it has 3 items"),
    ("{{ a.b }}", 6, "undefined-attribute", "is integer"),
    ("{{ xs.length }}", 7, "undefined-attribute", "| length"),
    ("{{ n }}", 4, "null-value", "'n' is null"),
    ("{{ 'a' ~ n }}", 10, "null-value", "'n' is null"),
    ("{{ [n] | join }}", 10, "null-value", "null"),
    ("{{ a + s }}", 4, "wrong-type", "join text with ~"),
    ("{{ 1 / 0 }}", 4, "division-by-zero", "division by zero"),
    ("{{ s < 1 }}", 4, "wrong-type", "cannot order string and integer"),
    ("{% for x in a %}{% endfor %}", 13, "wrong-type", "not a list"),
    ("{% for x, y in xs %}{% endfor %}", 8, "wrong-type", "2 names"),
    ("{{ f(1) }}", 4, "unknown-function", "'f'"),
    ("{{ s.uper() }}", 6, "unknown-method", "did you mean `upper`"),
    ("{{ s | join(1, 2, 3) }}", 8, "wrong-arity", "join"),
    ("{% macro m(x) %}{% endmacro %}{{ m() }}", 34, "wrong-arity", "needs 'x'"),
    ("{{ xs | map('nope') }}", 14, "unknown-filter", "nope"),
    (
        "{% for x in xs %}{{ loop.nextitem }}{% endfor %}{{ loop }}",
        26,
        "undefined-attribute",
        "nextitem",
    ),
    ("{{ e | first }}", 8, "undefined-attribute", "empty"),
    ("{{ {1: 2} }}", 5, "wrong-type", "a key is a string"),
]


@pytest.mark.parametrize(("value", "column", "code", "part"), FAILING)
def test_what_cannot_be_resolved_is_located_to_the_column(
    value: str, column: int, code: str, part: str
) -> None:
    with pytest.raises(ExpressionError) as caught:
        shown(value)
    assert (caught.value.code, caught.value.span.column) == (code, column)
    assert part in caught.value.message


@given(st.integers(0, 30), st.integers(1, 30))
def test_an_undefined_name_is_located_on_its_line_and_column(lines: int, indent: int) -> None:
    with pytest.raises(ExpressionError) as caught:
        shown("{{ a }}\n" * lines + " " * indent + "{{ a }}{{ nope }}{{ nope }}")
    assert (caught.value.span.line, caught.value.span.column) == (lines + 1, indent + 11)


@given(st.text())
def test_any_string_survives_rendering_exactly(value: str) -> None:
    assert (
        shown("<{{ v }}>{% if v or true %}{{ v ~ '' }}{% endif %}", v=value) == f"<{value}>{value}"
    )


@given(st.sampled_from(["{{ a }}", "{% if %}", "{# x", "{{ nope }}", "{{", "<<a>>"]), st.text())
def test_markup_in_a_value_is_never_rendered(markup: str, around: str) -> None:
    value = around + markup + around
    assert shown("{{ v }}", v=value) == value
    assert shown("{{ [v] | join }}{{ v | trim | default('') }}", v=value) == value + value.strip()


EVALUATED = [
    ("a === 3 && !e", True),
    ("!a == false", True),
    ("nope === undefined || a > 100", True),
    ("d.k !== undefined", True),
    ("n == null", True),
    ("xs", [3, 1, 2]),
    ("{{a}} > 2 and '{' != '}'", True),
    ("[a, d.m]", [3, {"l": [1, None, "é"]}]),
    ("e or 'none'", "none"),
    ("f * 2", 3.0),
    ("s", "hi {{ a }}"),
    ("xs | length > 2", True),
]


@pytest.mark.parametrize(("source", "expected"), EVALUATED)
def test_expressions_give_plain_values(source: str, expected: Any) -> None:
    value = evaluate_expression_sync(Expression(text(source)), Scope(VALUES))
    assert value == expected
    assert type(value) is type(expected)


def test_an_error_in_an_expression_is_located_in_the_authors_spelling() -> None:
    with pytest.raises(ExpressionError) as caught:
        evaluate_expression_sync(Expression(text("a && !e && nope > 1")), Scope(VALUES))
    assert (caught.value.code, caught.value.span.column) == ("undefined-variable", 12)


class Recorder:
    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    async def __call__(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], span: Span, index: int
    ) -> Any:
        await asyncio.sleep(0)
        self.calls.append((name, args, kwargs, span.column, index))
        return f"{name}{index}"


def test_function_templates_are_awaited_once_each_in_the_order_of_the_text() -> None:
    caller = Recorder()
    source = (
        "{{ f(a) }} {% for x in [1, 2] %}{{ g(x, y=f(x)) }} {% endfor %}{{ 'no' if a else h() }}"
    )
    result = asyncio.run(render(text(source), Scope(VALUES), functions=caller))
    assert result == "f0 g2 g4 no"
    assert caller.calls == [
        ("f", (3,), {}, 4, 0),
        ("f", (1,), {}, 43, 1),
        ("g", (1,), {"y": "f1"}, 36, 2),
        ("f", (2,), {}, 43, 3),
        ("g", (2,), {"y": "f3"}, 36, 4),
    ]


def test_a_result_of_a_function_is_a_value_and_never_rendered() -> None:
    async def caller(name: str, args: Any, kwargs: Any, span: Span, index: int) -> Any:
        return "{{ a }}{% for %}"

    assert (
        asyncio.run(render(text("{{ f() }}"), Scope(VALUES), functions=caller))
        == "{{ a }}{% for %}"
    )


def test_an_expression_awaits_functions_too() -> None:
    caller = Recorder()
    value = asyncio.run(
        evaluate_expression(Expression(text("f(1) == 'f0' && !e")), Scope(VALUES), functions=caller)
    )
    assert value is True


def test_what_a_function_raises_reaches_the_caller_unchanged() -> None:
    async def caller(name: str, args: Any, kwargs: Any, span: Span, index: int) -> Any:
        raise ToolError("no")

    with pytest.raises(ToolError, match=r"^no$"):
        asyncio.run(render(text("{{ f() }}"), Scope(VALUES), functions=caller))


def test_a_function_that_returns_an_object_is_an_error_at_the_call() -> None:
    async def caller(name: str, args: Any, kwargs: Any, span: Span, index: int) -> Any:
        return object()

    with pytest.raises(ExpressionError) as caught:
        asyncio.run(render(text("ab {{ f() }}"), Scope(VALUES), functions=caller))
    assert (caught.value.code, caught.value.span.column) == ("wrong-type", 7)
