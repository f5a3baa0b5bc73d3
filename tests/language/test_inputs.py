"""Declared inputs, parameters, settings and types."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator import Span, TemplateError, UsageError
from evaluator.errors import ExpressionError
from evaluator.language.inputs import (
    bind_arguments,
    bind_inputs,
    resolve_setting,
    single_expression,
)
from evaluator.language.scopes import Scope, is_type_name, matches, read_typed
from evaluator.nodes import Atomic, Expression, HandlerSpec, Input, Mark, Param, Text

HERE = Span("call.xml", 9, 9)


def text(value: str, line: int = 1) -> Text:
    span = Span("t.xml", line, 5)
    return Text(value, span, (Mark(0, span),))


def declare(
    name: str, type: str = "any", *, required: bool = True, default: str | None = None, **more: Any
) -> Input:
    return Input(
        name,
        type,
        required,
        None if default is None else text(default),
        more.get("source"),
        more.get("task"),
        more.get("description", ""),
        Span("t.xml", 2, 3),
    )


def codes(error: TemplateError) -> list[str]:
    return [diagnostic.code for diagnostic in error.diagnostics]


def test_given_values_are_bound_in_the_order_of_declaration() -> None:
    declared = [declare("a", "string"), declare("b", "integer[]"), declare("c", required=False)]
    bound = bind_inputs(declared, {"b": (1, 2), "a": "x"}, location=HERE)
    assert list(bound.items()) == [("a", "x"), ("b", [1, 2]), ("c", None)]


def test_every_problem_is_reported_at_once() -> None:
    declared = [
        declare("doc", "string", description="the text"),
        declare("n", "integer"),
        declare("xs", "string[]"),
    ]
    with pytest.raises(TemplateError) as caught:
        bind_inputs(declared, {"dco": "x", "n": "3", "xs": ["a", 1]}, location=HERE)
    assert codes(caught.value) == ["excess-input", "missing-input", "wrong-type", "wrong-type"]
    excess, missing, number, items = caught.value.diagnostics
    assert "did you mean `doc`" in excess.message
    assert missing.message.endswith("the text")
    assert "expected integer, got string" in number.message
    assert "item 1 is integer" in items.message
    assert {diagnostic.span for diagnostic in caught.value.diagnostics} == {HERE}


def test_inputs_that_come_from_elsewhere_are_left_to_the_caller() -> None:
    declared = [
        declare("a", source=Expression(text("x"))),
        declare("b", task=Atomic(description=text("t"))),
        declare("c", default="x"),
    ]
    assert bind_inputs(declared, {}, location=HERE) == {}
    assert bind_inputs(declared, {"a": 1}, location=HERE) == {"a": 1}


def test_null_is_taken_only_where_an_input_is_not_required() -> None:
    assert bind_inputs([declare("a", "string", required=False)], {"a": None}, location=HERE) == {
        "a": None
    }
    with pytest.raises(TemplateError, match="got null"):
        bind_inputs([declare("a", "string")], {"a": None}, location=HERE)


def test_an_object_that_is_not_plain_data_is_a_wrong_type() -> None:
    with pytest.raises(TemplateError, match=r"input 'a'\.k: object is not plain data") as caught:
        bind_inputs([declare("a")], {"a": {"k": object()}}, location=HERE)
    assert codes(caught.value) == ["wrong-type"]


PARAMS = (Param("doc"), Param("n", "2", "integer"), Param("style", None, "string"))


def test_arguments_bind_by_position_and_by_name_with_typed_defaults() -> None:
    bound = bind_arguments(PARAMS, ["d"], {"style": "s"}, name="f", span=HERE)
    assert list(bound.items()) == [("doc", "d"), ("n", 2), ("style", "s")]


@pytest.mark.parametrize(
    ("args", "kwargs", "code", "part"),
    [
        (
            [1, 2, "s", 4],
            {},
            "wrong-arity",
            "takes 3 arguments, got 4: f(doc, n: integer = '2', style: string)",
        ),
        ([], {}, "wrong-arity", "needs 'doc', 'style'"),
        ([1], {"stile": "x"}, "unknown-argument", "did you mean `style`"),
        ([1], {"doc": 2, "style": "s"}, "duplicate-argument", "'doc' twice"),
        ([1, "3", "s"], {}, "wrong-type", "parameter 'n': expected integer, got string"),
        ([1, True, "s"], {}, "wrong-type", "got boolean"),
        ([object(), 1, "s"], {}, "wrong-type", "not plain data"),
    ],
)
def test_arguments_that_do_not_fit_are_errors_at_the_call(
    args: Any, kwargs: Any, code: str, part: str
) -> None:
    with pytest.raises(ExpressionError) as caught:
        bind_arguments(PARAMS, args, kwargs, name="f", span=HERE)
    assert (caught.value.code, caught.value.span) == (code, HERE)
    assert part in caught.value.message


def setting(name: str, value: Any) -> Any:
    """A handler with one setting, or a task where it is one of a task's own."""
    if name == "manual_xml":
        return Atomic(description=text("d"), manual_xml=value, span=HERE)
    return HandlerSpec(**{name: value}, span=HERE)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("max_turns", None, None),
        ("max_turns", 3, 3),
        ("timeout_s", 3, 3.0),
        ("manual_xml", True, True),
        ("max_turns", text("{{ n }}"), 7),
        ("timeout_s", text(" {{ n }}.5 "), 7.5),
        ("manual_xml", text("{{ n > 3 }}"), True),
        ("max_turns", text("7.0"), 7),
        ("max_cost_usd", text("0"), 0.0),
    ],
)
def test_a_setting_is_typed_after_substitution(name: str, value: Any, expected: Any) -> None:
    result = resolve_setting(setting(name, value), name, Scope({"n": 7}))
    assert result == expected
    assert type(result) is type(expected)


@pytest.mark.parametrize(
    ("name", "value", "code", "part"),
    [
        ("max_turns", text("{{ s }}"), "wrong-type", "max_turns: expected integer, got 'x'"),
        ("max_turns", text("{{ n }}.5"), "wrong-type", "expected integer"),
        ("manual_xml", text("{{ n }}"), "wrong-type", "true or false"),
        (
            "max_context_fraction",
            text("{{ n }}00"),
            "out-of-range",
            "above 0 and at most 1, not 700",
        ),
        ("timeout_s", text("-{{ n }}"), "out-of-range", "timeout must be a number above 0, not -7"),
        ("timeout_s", text("{{ n - 7 }}"), "out-of-range", "above 0"),
        ("max_turns", text("{{ nope }}"), "undefined-variable", "nope"),
        ("max_turns", True, "wrong-type", "got boolean"),
        ("timeout_s", float("nan"), "out-of-range", "nan"),
        ("max_turns", 0, "out-of-range", "of at least 1 and at most 1,000,000,000,000,000, not 0"),
        (
            "max_turns",
            10**18,
            "out-of-range",
            "at most 1,000,000,000,000,000, not 1000000000000000000",
        ),
    ],
)
def test_a_setting_that_does_not_fit_is_a_located_error(
    name: str, value: Any, code: str, part: str
) -> None:
    scope = Scope({"n": 7, "s": "x"})
    with pytest.raises(ExpressionError) as caught:
        resolve_setting(setting(name, value), name, scope)
    assert caught.value.code == code
    assert caught.value.span.file == ("t.xml" if isinstance(value, Text) else "call.xml")
    assert part in caught.value.message


MATCHES = [
    (1, "any number integer"),
    (1.5, "any number"),
    (3.0, "any number integer"),
    (True, "any boolean"),
    ("x", "any string"),
    (None, "any"),
    ({}, "any object"),
    ([], "any array [] string[] number[][] any[] array[] integer[][] any[][]"),
    (["a"], "any array [] string[] any[]"),
    ([[1], [2.0]], "any array [] any[] array[] number[][] integer[][] any[][]"),
    ([1, "a"], "any array [] any[]"),
]
NAMES = [
    "any",
    "string",
    "number",
    "integer",
    "boolean",
    "object",
    "array",
    "[]",
    "string[]",
    "any[]",
    "number[][]",
    "array[]",
    "integer[][]",
    "any[][]",
]


@pytest.mark.parametrize(("value", "fitting"), MATCHES)
def test_types_match_as_in_json_schema(value: Any, fitting: str) -> None:
    assert [name for name in NAMES if matches(value, name)] == [
        name for name in NAMES if name in fitting.split()
    ]


@pytest.mark.parametrize(
    ("source", "type_name"),
    [
        ("3.5", "integer"),
        ("three", "integer"),
        ("", "integer"),
        ("1_0", "integer"),
        ("٣", "integer"),
        ("nan", "number"),
        ("1e999", "number"),
        ("9" * 1001, "integer"),
        ("yes", "boolean"),
        ("1", "boolean"),
        ("{", "object"),
        ("[]", "object"),
        ("[1]", "string[]"),
        ("[NaN]", "array"),
        ("[" * 100_000, "array"),
        ("x", "strng"),
        ("x", "["),
    ],
)
def test_text_that_is_not_of_its_type_is_refused(source: str, type_name: str) -> None:
    with pytest.raises(UsageError):
        read_typed(source, type_name)


def test_only_the_documented_names_are_types() -> None:
    assert all(map(is_type_name, NAMES))
    assert not any(map(is_type_name, ["str", "", "x[]", "string[", "[]string"]))


@given(st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.lists(st.text()))
def test_what_is_written_is_read_back(whole: int, fraction: float, items: list[str]) -> None:
    assert read_typed(str(whole), "integer") == whole
    assert read_typed(repr(fraction), "number") == fraction
    assert read_typed(json.dumps(items), "string[]") == items


@pytest.mark.parametrize(
    ("value", "expression", "column"),
    [
        ("{{ n }}", " n ", 7),
        (" {{ n }} ", " n ", 8),
        ("{{- n -}}", " n ", 8),
        ("{{-n}}", "n", 8),
        ("{{ -n }}", " -n ", 7),
        ("{{ n }} of {{ n }}", None, None),
        ("{{ n }}.", None, None),
        ("n", None, None),
    ],
)
def test_a_text_of_one_placeholder_is_an_expression(value, expression, column):
    found = single_expression(text(value))
    if found is None:
        assert expression is None
    else:
        assert (found.value, found.locate(0).column) == (expression, column)
