"""Function calls are compared as BFCL's AST evaluation compares those of Python functions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from evaluator import UsageError
from evaluator.batch.scorers.calls_scorer import calls_of
from tests.batch.scorers.scorer_inputs import score

FUNCTIONS = [
    {
        "name": "w.get",
        "parameters": {
            "type": "dict",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "size": {"type": "float"},
                "ok": {"type": "boolean"},
                "tags": {"type": "array", "items": {"type": "string"}},
                "of": {"type": "dict"},
                "xs": {"type": "array", "items": {"type": "float"}},
            },
            "required": ["city"],
        },
    },
    {
        "type": "function",
        "function": {
            "name": "go",
            "parameters": {
                "type": "object",
                "properties": {
                    "to": {"type": "string"},
                },
            },
        },
    },
]
EXPECTED = [
    {
        "w.get": {
            "city": ["New York", "NYC"],
            "days": ["", 3],
            "size": ["", 1.5, 2],
            "ok": ["", True],
            "tags": ["", ["a-b", "C"]],
            "of": ["", {"x": [1, 2], "y": ["", "z"]}],
            "xs": ["", [1.0, 2.0]],
        }
    }
]


def calls(*found: tuple[str, Any]) -> list[dict[str, Any]]:
    return [{"name": name, "arguments": arguments} for name, arguments in found]


def value(found: Any, target: Any = EXPECTED, **more: Any) -> float | None:
    return score(
        "calls", json.dumps(found), target, **({"inputs": {"functions": FUNCTIONS}} | more)
    ).value


@pytest.mark.parametrize(
    ("arguments", "passes"),
    [
        ({"city": "New York"}, True),
        ({"city": "newyork"}, True),
        ({"city": "N.Y.C"}, True),
        ({"city": "Boston"}, False),
        ({"city": ["NYC"]}, False),
        ({}, False),
        ({"days": 3}, False),
        ({"city": "NYC", "days": 3}, True),
        ({"city": "NYC", "days": 3.0}, False),
        ({"city": "NYC", "days": "3"}, False),
        ({"city": "NYC", "days": 4}, False),
        ({"city": "NYC", "size": 2}, True),
        ({"city": "NYC", "size": 2.0}, True),
        ({"city": "NYC", "size": "2"}, False),
        ({"city": "NYC", "ok": True}, True),
        ({"city": "NYC", "ok": 1}, False),
        ({"city": "NYC", "tags": ["ab", "c"]}, True),
        ({"city": "NYC", "tags": ["c", "ab"]}, False),
        ({"city": "NYC", "of": {"x": 2}}, True),
        ({"city": "NYC", "of": {"x": 2, "y": "Z"}}, True),
        ({"city": "NYC", "of": {"y": "z"}}, False),
        ({"city": "NYC", "of": {"x": 1, "w": 1}}, False),
        ({"city": "NYC", "xs": [1.0, 2.0]}, True),
        ({"city": "NYC", "xs": [1, 2]}, False),
        ({"city": "NYC", "wind": 1}, False),
        ("{", False),
    ],
)
def test_arguments(arguments: Any, passes: bool) -> None:
    assert value(calls(("w.get", arguments))) == float(passes)


@pytest.mark.parametrize(
    ("found", "passes"),
    [
        ([("go", {"to": "a"}), ("go", {"to": "b"})], True),
        ([("go", {"to": "b"}), ("go", {"to": "a"})], True),
        ([("go", {"to": "b"}), ("go", {"to": "c"})], True),
        ([("go", {"to": "c"}), ("go", {"to": "b"})], True),
        ([("go", {"to": "a"}), ("go", {"to": "a"})], False),
        ([("go", {"to": "c"}), ("go", {"to": "c"})], False),
        ([("go", {"to": "a"})], False),
        ([("go", {"to": "a"}), ("go", {"to": "b"}), ("go", {"to": "b"})], False),
    ],
)
def test_every_expected_call_has_a_call_of_its_own_in_any_order(found: Any, passes: bool) -> None:
    assert value(calls(*found), [{"go": {"to": ["a", "b", "c"]}}, {"go": {"to": ["b"]}}]) == float(
        passes
    )


@pytest.mark.parametrize(
    ("name", "passes"), [("w_get", True), ("w.get", True), ("wget", False), ("go", False)]
)
def test_dots_and_underscores_in_names_are_equal(name: str, passes: bool) -> None:
    assert value(calls((name, {"city": "NYC"}))) == float(passes)


def test_a_target_may_be_calls_with_one_value_each() -> None:
    target = calls(("w.get", {"city": "NYC", "of": {"x": [1, 2], "y": {"k": "v"}}}))
    assert value(target, target) == 1.0
    assert (
        value(calls(("w.get", {"city": "NYC", "of": {"x": [1], "y": {"k": "v"}}})), target) == 0.0
    )
    assert value(target, json.dumps(target)) == 1.0


def test_no_call_is_right_for_an_empty_target_only() -> None:
    assert (
        score("calls", "There is no such function.", [], inputs={"functions": FUNCTIONS}).value
        == 1.0
    )
    assert (
        score(
            "calls", "There is no such function.", EXPECTED, inputs={"functions": FUNCTIONS}
        ).value
        == 0.0
    )
    assert score("calls", "", None).value is None


def test_schemas_are_found_where_the_expression_says_and_not_needed() -> None:
    found = calls(("w.get", {"city": "NYC", "days": 3}))
    assert value(found, inputs={"question": "?"}) == 1.0
    assert value(found, inputs={"tools": "hammer, saw"}) == 1.0
    assert value(found, inputs={"tools": json.dumps(FUNCTIONS)}) == 1.0
    spec = {"type": "calls", "functions": "metadata.schemas"}
    narrow = [{"name": "w.get", "parameters": {"properties": {"city": {"type": "string"}}}}]
    assert score(spec, json.dumps(found), EXPECTED, metadata={"schemas": narrow}).value == 0.0
    assert (
        "days is not expected"
        in score(spec, json.dumps(found), EXPECTED, metadata={"schemas": narrow}).explanation
    )
    assert "expected a list of schemas" in (
        score(spec, "[]", EXPECTED, metadata={"schemas": "x"}).error or ""
    )


@pytest.mark.parametrize(
    "target", ["x", 3, [{"a": 1}], [{"a": {"b": 1}}], [{"name": "a", "arguments": []}]]
)
def test_a_target_that_is_no_list_of_calls_is_an_error_before_the_first_call(target: Any) -> None:
    from evaluator.batch.scorers import make_scorer

    with pytest.raises(UsageError, match=r"expected \{name"):
        make_scorer("calls").check_target(target)  # type: ignore[attr-defined]


def test_the_first_values_of_a_target_are_calls_that_pass() -> None:
    (call,) = calls_of(EXPECTED)
    assert call == {
        "name": "w.get",
        "arguments": {
            "city": "New York",
            "days": 3,
            "size": 1.5,
            "ok": True,
            "tags": ["a-b", "C"],
            "of": {"x": 1, "y": "z"},
            "xs": [1.0, 2.0],
        },
    }
    assert value([call]) == 1.0
    assert calls_of([{"go": {"to": [""], "of": [{"x": 0.5}]}}]) == [
        {"name": "go", "arguments": {"of": {"x": 0.5}}}
    ]
    assert calls_of([]) == []
