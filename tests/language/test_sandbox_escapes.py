"""Nothing in a text reaches Python, and nothing in it takes more than the bounds allow."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluator import Span
from evaluator.errors import ExpressionError, SandboxError
from evaluator.language import values
from evaluator.language.sandbox import evaluate_expression_sync, render, render_sync
from evaluator.language.scopes import Scope
from evaluator.language.values import Bounds
from evaluator.nodes import Expression, Mark, Text
from tests.tables import each_case


class Leak:
    secret = "reached"

    def __str__(self) -> str:
        return self.secret


SCOPE = Scope(
    {"s": "text", "xs": [1, 2], "d": {"k": 1}, "n": 1, "leak": Leak(), "big": "a" * 1_000_000}
)


def text(value: str) -> Text:
    return Text(value, Span("t.xml", 1, 1), (Mark(0, Span("t.xml", 1, 1)),))


ESCAPES = [
    "{{ ''.__class__ }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ s.__class__() }}",
    "{{ ''['__class__'] }}",
    "{{ s['__class__'] }}",
    "{{ s | attr('__class__') }}",
    "{{ [s] | map(attribute='__class__') | list }}",
    "{{ [s] | map('attr', '__class__') | list }}",
    "{{ xs | sort(attribute='__class__') }}",
    "{{ xs | groupby('__class__') }}",
    "{{ xs | sum(attribute='real.__class__') }}",
    "{{ xs | selectattr('__class__') | list }}",
    "{{ '{0.__class__}'.format(s) }}",
    "{{ '{0.__class__}'.format_map({'0': s}) }}",
    "{{ s.format }}",
    "{{ 'x'.format.__self__ }}",
    "{{ '%(a)s' % d }}",
    "{{ '%c' | format(1) }}",
    "{{ self }}",
    "{{ self.__init__.__globals__ }}",
    "{{ self._TemplateReference__context }}",
    "{{ lipsum() }}",
    "{{ lipsum.__globals__['os'] }}",
    "{{ cycler.__init__.__globals__ }}",
    "{{ joiner() }}",
    "{{ config }}",
    "{{ request }}",
    "{{ range.__class__ }}",
    "{{ range(1).__class__ }}",
    "{{ dict.__base__ }}",
    "{{ namespace().__class__ }}",
    "{% set ns = namespace() %}{{ ns.__class__ }}",
    "{% set ns = namespace() %}{{ ns }}",
    "{% set ns = namespace() %}{{ [ns] }}",
    "{% macro m() %}{% endmacro %}{{ m }}",
    "{% macro m() %}{% endmacro %}{{ m.__globals__ }}",
    "{% macro m() %}{{ caller }}{% endmacro %}{{ m() }}",
    "{% macro m() %}{{ varargs }}{% endmacro %}{{ m() }}",
    "{% for x in xs %}{{ loop }}{% endfor %}",
    "{% for x in xs %}{{ loop._iterator }}{% endfor %}",
    "{% for x in xs %}{{ loop.__class__ }}{% endfor %}",
    "{{ leak }}",
    "{{ leak.secret }}",
    "{{ leak ~ '' }}",
    "{{ leak | string }}",
    "{{ [leak] | join }}",
    "{{ {'a': leak} }}",
    "{{ leak | tojson }}",
    "{{ '%s' | format(leak) }}",
    "{{ xs.append(3) }}",
    "{{ xs.pop() }}",
    "{{ xs.__setitem__(0, 1) }}",
    "{{ d.update({'a': 1}) }}",
    "{{ d.clear() }}",
    "{{ d.setdefault('z', 1) }}",
    "{{ d.pop('k') }}",
    "{% set d.k = 2 %}",
    "{{ s.encode() }}",
    "{{ s.translate({}) }}",
    "{{ n.to_bytes(1) }}",
    "{{ n.real }}",
    "{{ (1).__class__ }}",
    "{{ ().__class__ }}",
    "{{ {}.__class__ }}",
    "{{ open('/etc/passwd') }}",
    "{{ __import__('os') }}",
    "{{ eval('1') }}",
    "{{ xs | random }}",
    "{{ d | xmlattr }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}",
    "{{ undefined.__class__ }}",
    "{{ (-8) ** 0.5 }}",
    "{{ f.__globals__() }}",
    "{{ 'a'() }}",
    "{{ xs[0]() }}",
]


@each_case("value", ESCAPES)
def test_an_escape_is_an_error(value: str) -> None:
    with pytest.raises(ExpressionError):
        render_sync(text(value), SCOPE)


def test_a_text_changes_no_value() -> None:
    values: dict[str, Any] = {"xs": [2, 1], "d": {"k": 1}}
    source = (
        "{% set xs = xs + [3] %}{{ xs | sort }}{{ xs | reverse }}{% set d = dict(d, k=2) %}{{ d }}"
    )
    assert render_sync(text(source), Scope(values)) == '[1, 2, 3][3, 1, 2]{"k": 2}'
    assert values == {"xs": [2, 1], "d": {"k": 1}}


BOMBS = [
    "{% for i in range(10**9) %}x{% endfor %}",
    "{{ range(100001) }}",
    "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
    "{% for i in range(99999) %}{% set x = range(99999) | list %}{% endfor %}",
    "{{ 'x' * 10**9 }}",
    "{{ 10**9 * 'x' }}",
    "{{ [1] * 10**9 }}",
    "{{ 9 ** (9 ** 9) }}",
    "{{ 9 ** 9 ** 9 ** 9 ** 9 ** 9 }}",
    "{{ 2.0 ** 100000 }}",
    "{{ 1e308 * 10 ** 400 }}",
    "{% set ns = namespace(x=2) %}{% for i in range(99999) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "{% set ns = namespace(x=2) %}{% for i in range(99999) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "{% set a = namespace(x=[1]) %}{% for i in range(60) %}{% set a.x = [a.x, a.x] %}{% endfor %}{{ a.x }}",
    "{% set a = namespace(x=[1]) %}{% set b = namespace(x=[1]) %}{% for i in range(60) %}"
    "{% set a.x = [a.x, a.x] %}{% set b.x = [b.x, b.x] %}{% endfor %}{{ a.x == b.x }}",
    "{% set a = namespace(x=[1]) %}{% for i in range(60) %}{% set a.x = [a.x, a.x] %}{% endfor %}{{ [a.x] | unique }}",
    "{% set a = namespace(x=1) %}{% for i in range(999) %}{% set a.x = [a.x] %}{% endfor %}{{ a.x }}",
    "{% set ns = namespace(l=[]) %}{% for i in range(9999) %}{% set ns.l = ns.l + [big ~ i] %}{% endfor %}",
    "{% for i in range(99) %}{{ big }}{% endfor %}",
    "{% set x %}{% for i in range(99) %}{{ big }}{% endfor %}{% endset %}",
    "{{ big | replace('a', big) }}",
    "{{ big.replace('', 'abcdefghijklmnop') }}",
    "{{ [big] * 100 | int | abs }}{{ ([big] * 100) | join }}",
    "{{ big.join(range(100)) }}",
    "{{ ([big] * 100) | tojson }}",
    "{{ [big] * 100 }}",
    "{{ 'x'.ljust(10**9) }}",
    "{{ 'x'.zfill(10**9) }}",
    "{{ 'x' | center(10**9) }}",
    "{{ ('a\n' * 1000) | indent(99999) }}",
    "{{ 'x' | indent(10**9, true) }}",
    "{{ 'a b' | wordwrap(10**9) }}",
    "{{ big | wordwrap(1, wrapstring='xxxxxxxxxxxxxxxx') }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '%1000000000d' | format(1) }}",
    "{{ '%.1000000000f' | format(1.0) }}",
    "{{ '%*d' | format(1000000000, 1) }}",
    "{{ '{:>1000000000}'.format(1) }}",
    "{{ xs | batch(10**9, 'x') }}",
    "{{ xs | slice(10**9) }}",
    "{{ [[[1]]] | tojson(indent=10**6) }}",
    "{{ big.strip('b' * 100000 ~ 'a') }}",
    "{{ ('ab ' * 1000000).split() }}",
    "{{ ('a,' * 3000000).split(',') }}",
    "{{ ('a\n' * 3000000).splitlines() }}",
    "{{ ('a' * 9000000) | list }}",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(39) }}",
    "{% macro m(n) %}x{{ n() }}{% endmacro %}{{ m(m) }}",
    "{{ range(99999) | map('string') | map('center', 99999) | list }}",
    "{% for i in range(9999) %}{{ range(99999) | sort(reverse=true) | first }}{% endfor %}",
    "{{ " + " ~ ".join(["big"] * 50) + " }}",
    "{{ " + "9" * 5000 + " }}",
    "{{ xs[10**30] }}",
    "{{ 'x' * 10**30 }}",
    "{{ xs | round(10**9) }}",
    "{{ 1.5 | round(10**9) }}",
]


@pytest.mark.parametrize("value", BOMBS)
def test_a_bomb_is_an_error(value: str) -> None:
    with pytest.raises(ExpressionError):
        render_sync(text(value), SCOPE)


@pytest.mark.parametrize(
    "source", ["9 ** (9 ** 9)", "'x' * 10**9", "[range(99999)] * 1000", "range(10**9)"]
)
def test_an_expression_has_the_same_bounds(source: str) -> None:
    with pytest.raises(SandboxError):
        evaluate_expression_sync(Expression(text(source)), SCOPE)


def test_time_is_bounded_where_steps_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "BOUNDS", Bounds(seconds=0.05, steps=10**12))
    source = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    with pytest.raises(SandboxError, match=r"0\.05 s"):
        render_sync(text(source), SCOPE)


def test_output_up_to_the_bound_is_rendered_and_one_more_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(values, "BOUNDS", Bounds(output_chars=10))
    assert render_sync(text("{{ s }}{{ s }}ab"), SCOPE) == "texttextab"
    with pytest.raises(SandboxError) as caught:
        render_sync(text("{{ s }}{{ s }}abc{{ s }}"), SCOPE)
    assert caught.value.code == "too-large"


@pytest.mark.parametrize(
    "filters",
    [
        "list",
        "sort",
        "reverse",
        "unique",
        "batch(7)",
        "slice(3)",
        "map('string')",
        "select('odd')",
        "reject('odd')",
        "groupby('k')",
        "map(attribute='k')",
        "selectattr('k')",
    ],
)
def test_a_filter_that_makes_a_list_pays_for_its_items(
    filters: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    items: list[Any] = [{"k": n} if "'k'" in filters else n for n in range(200)]
    source = text("{{ items | " + filters + " | length }}")
    assert int(render_sync(source, Scope({"items": items}))) > 2
    monkeypatch.setattr(values, "BOUNDS", Bounds(output_chars=1000))
    with pytest.raises(SandboxError, match=r"makes values of more than 1,000 characters"):
        render_sync(source, Scope({"items": items}))


def test_calls_of_templates_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "BOUNDS", Bounds(calls=5))

    async def caller(name: str, args: Any, kwargs: Any, span: Span, index: int) -> Any:
        return "x"

    source = "{% for i in range(100) %}{{ f() }}{% endfor %}"
    with pytest.raises(SandboxError, match="more than 5 templates"):
        asyncio.run(render(text(source), SCOPE, functions=caller))


ATOMS = st.sampled_from(
    [
        "s",
        "xs",
        "d",
        "n",
        "leak",
        "nope",
        "1",
        "'a'",
        "none",
        "true",
        "range(3)",
        "[1, 'a']",
        "{'k': n}",
        "-1",
        "0.5",
    ]
)
SHAPES = [
    "(%s + %s)",
    "(%s * %s)",
    "(%s ** %s)",
    "(%s == %s)",
    "(%s < %s)",
    "(%s in %s)",
    "(%s ~ %s)",
    "%s[%s]",
    "(%s if %s)",
    "(%s | default(%s))",
    "(%s | join(%s))",
    "(%s | replace(%s, 'x'))",
    "(%s | center(%s))",
    "(%s | map(%s))",
    "(%s | select(%s))",
    "(%s | sort(%s))",
    "(%s | batch(%s))",
    "(%s | round(%s))",
    "(%s | indent(%s))",
    "(%s | format(%s))",
    "(%s is divisibleby(%s))",
    "%s.split(%s)",
    "%s.get(%s)",
    "(%s | int(%s))",
    "(%s | truncate(%s))",
    "(%s | unique(%s))",
    "(%s | groupby(%s))",
    "(%s | sum(%s))",
    "(%s | dictsort(%s))",
    "(%s | tojson(%s))",
    "(%s | wordwrap(%s))",
    "(%s | slice(%s))",
    "range(%s, %s)",
    "dict(%s, a=%s)",
    "(%s | max(%s))",
    "(%s | trim(%s))",
    "%s.count(%s)",
    "(%s - %s)",
    "(%s %% %s)",
]
EXPRESSIONS = st.recursive(
    ATOMS,
    lambda inner: st.tuples(st.sampled_from(SHAPES), inner, inner).map(lambda t: t[0] % t[1:]),
    max_leaves=6,
)


@settings(max_examples=400)
@given(EXPRESSIONS)
def test_any_expression_gives_text_or_a_located_error(source: str) -> None:
    try:
        result = render_sync(text("{{ " + source + " }}"), SCOPE)
    except ExpressionError as error:
        result = str(error.span)
    assert "reached" not in result


@pytest.mark.parametrize(
    "expression",
    [
        "xs | list",
        "xs | reverse",
        "xs | map('upper')",
        "xs | select",
        "xs | reject('none')",
        "range(1000) | unique",
        "xs | sort",
        "xs | batch(3)",
        "xs | slice(3)",
        "d | items",
        "d | dictsort",
        "s | list",
        "xs | groupby(0)",
    ],
)
def test_a_filter_that_builds_a_list_pays_for_its_items(
    expression: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scope = Scope({"xs": ["ab"] * 1_000, "d": {f"k{n}": n for n in range(1_000)}, "s": "ab" * 500})
    evaluate_expression_sync(Expression(text(expression)), scope)
    monkeypatch.setattr(values, "BOUNDS", Bounds(output_chars=100))
    with pytest.raises(SandboxError):
        evaluate_expression_sync(Expression(text(expression)), scope)
