"""`json_match` and `schema` compare values, and name the first difference."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.batch.scorers.json_scorers import ComparisonRules, canonical, json_difference
from tests.batch.scorers.scorer_inputs import score

EQUAL = [
    ({"a": 1, "b": [1, 2]}, {"b": [1.0, 2], "a": 1.0}, {}, None),
    (1, True, {}, "$"),
    (0, False, {}, "$"),
    ("1", 1, {}, "$"),
    (None, None, {}, None),
    (float("nan"), float("nan"), {}, None),
    (
        {"a": {"b": [1, {"c": 2}]}},
        {"a": {"b": [1, {"c": 3}]}},
        {},
        "$.a.b[1].c: expected 2, found 3",
    ),
    ({"a": 1}, {}, {}, "$.a: missing"),
    ({"a": 1}, {"a": 1, "z": 2}, {}, "$.z: not expected"),
    ({"a": 1}, {"a": 1, "z": 2}, {"subset": True}, None),
    ({"a": {"x": 1}}, {"a": {"x": 1, "y": 2}, "b": 3}, {"subset": True}, None),
    ([1, 2], [1, 2, 3], {}, "$: expected 2 items, found 3"),
    ([1, 2], [1, 2, 3], {"subset": True}, "$: expected 2 items, found 3"),
    ([2, 1], [1, 2], {}, "$[0]: expected 2, found 1"),
    ([2, 1], [1, 2.0], {"ignore_order": True}, None),
    ([1, 1, 2], [1, 2, 2], {"ignore_order": True}, "$[1]: 1 is not in the answer"),
    ([{"a": [1, 2]}], [{"a": [2, 1]}], {"ignore_order": True}, None),
    ([3, 1], [1, 2, 3], {"ignore_order": True, "subset": True}, None),
    ([{"a": 1}, {}], [{"a": 1}, {"a": 1, "b": 2}], {"ignore_order": True, "subset": True}, None),
    ([1.0, 1.1], [1.1, 1.2], {"ignore_order": True, "abs_tol": 0.1}, None),
    (
        [1.0, 1.0],
        [1.0, 1.2],
        {"ignore_order": True, "abs_tol": 0.1},
        "$[1]: 1.0 is not in the answer",
    ),
    (1.0, 1.05, {"rel_tol": 0.05}, None),
    (0.1, 0.10000000000000001, {}, None),
    ({}, [], {}, "$"),
    ("a\nb", "a\nc", {}, '$, line 2: expected "b", found "c"'),
]


@pytest.mark.parametrize(("expected", "found", "rules", "said"), EQUAL)
def test_json_is_compared_and_the_first_difference_named(
    expected: Any, found: Any, rules: dict[str, Any], said: str | None
) -> None:
    difference_ = json_difference(expected, found, ComparisonRules(**rules))
    assert (difference_ is None) is (said is None)
    assert said is None or (difference_ or "").startswith(said)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=15,
)


RULES = st.builds(
    ComparisonRules,
    st.booleans(),
    st.sampled_from([0.0, 0.5]),
    st.sampled_from([0.0, 0.1]),
    st.booleans(),
)


@given(JSON, RULES)
def test_every_value_equals_itself_under_all_rules(value: Any, rules: ComparisonRules) -> None:
    assert json_difference(value, value, rules) is None


@given(JSON, JSON)
def test_equality_is_symmetric_and_agrees_with_the_canonical_text(a: Any, b: Any) -> None:
    rules = ComparisonRules(ignore_order=True)
    assert (
        (json_difference(a, b, rules) is None)
        == (json_difference(b, a, rules) is None)
        == (canonical(a) == canonical(b))
    )


@given(st.lists(JSON, max_size=5), st.randoms())
def test_the_order_of_arrays_can_be_ignored(items: list[Any], random: Any) -> None:
    shuffled = [*items]
    random.shuffle(shuffled)
    assert json_difference(items, shuffled, ComparisonRules(ignore_order=True)) is None
    assert json_difference(items, shuffled, ComparisonRules(ignore_order=True, abs_tol=0.1)) is None


@given(
    st.dictionaries(st.text(max_size=3), JSON, max_size=4),
    st.dictionaries(st.text(max_size=3), JSON, max_size=4),
)
def test_an_object_is_a_subset_of_itself_with_more(
    small: dict[str, Any], more: dict[str, Any]
) -> None:
    assert json_difference(small, {**more, **small}, ComparisonRules(subset=True)) is None


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def test_deeply_nested_json_is_an_error() -> None:
    assert score("json_equal", "", nested(100), parsed=nested(100)).passed is True
    given = score("json_equal", "", nested(100_000), parsed=nested(100_000))
    assert given.error is not None and given.value is None


def test_long_arrays_without_order() -> None:
    rows = [{"id": n} for n in range(5_000)]
    assert score("json_equal:ignore_order=true", "", rows, parsed=rows[::-1]).passed is True
    error = score("json_equal:ignore_order=true,abs_tol=0.1", "", rows, parsed=rows[::-1]).error
    assert error and "limit is 300" in error


@pytest.mark.parametrize(
    ("content", "parsed", "passed"),
    [
        ('Here: ```json\n{"a": 1}\n```', None, True),
        ('{"a": 2}', None, False),
        ("no JSON here", None, False),
        ("", None, False),
        ("ignored", {"a": 1.0}, True),
    ],
)
def test_the_value_is_the_parsed_one_or_read_from_the_text(
    content: str, parsed: Any, passed: bool
) -> None:
    given = score("json_equal", content, {"a": 1}, parsed=parsed)
    assert given.error is None and given.passed is passed
    assert passed or given.explanation


@pytest.mark.parametrize(
    ("spec", "target", "found", "passed"),
    [
        ("json_equal", ' {"a": [1.0]}\n', {"a": [1]}, True),
        ("json_equal", "[1, 2]", [1, 2], True),
        ("json_equal:ignore_order=true", "[2, 1]", [1, 2], True),
        ("json_equal", '{"a": 1}', {"a": 2}, False),
        ("json_subset", '{"a": 1}', {"a": 1, "b": 2}, True),
        # Texts stay texts: where the answer is one, and within a value.
        ("json_equal", '{"a": 1}', '{"a": 1}', True),
        ("json_equal", '{"a": 1}', '{"a":1}', False),
        ("json_equal", {"a": "[1]"}, {"a": [1]}, False),
        ("json_equal", '{"a": "[1]"}', {"a": "[1]"}, True),
        # What is neither object nor array may be meant as it stands.
        ("json_equal", "5", 5, False),
        ("json_equal", "true", True, False),
        ("json_equal", '"x"', "x", False),
        ("json_equal", "{x}", {"x": 1}, False),
        ("json_equal", "[" * 100_000, [1], False),
    ],
    ids=lambda given: f"{given}"[:30],
)
def test_a_target_that_is_json_text_of_an_object_or_array_is_read(
    spec: str, target: Any, found: Any, passed: bool
) -> None:
    given = score(spec, "", target, parsed=found)
    assert given.error is None and given.passed is passed


@given(st.text(), st.text())
def test_two_texts_are_compared_as_texts(target: str, found: str) -> None:
    for text in (target, found):
        given = score("json_equal", "", target, parsed=text)
        assert given.error is None and given.passed is (text == target)


SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 1}},
    "required": ["n"],
}


@pytest.mark.parametrize(
    ("schema", "content", "said"),
    [
        (SCHEMA, '{"n": 1}', None),
        (SCHEMA, '{"n": 0}', "$.n"),
        (SCHEMA, "{}", "required property 'n' is missing"),
        ("string[]", '["a"]', None),
        ("string[]", '["a", 1]', "$[1]"),
        (SCHEMA, "sorry", "no JSON"),
    ],
)
def test_the_first_violation_of_a_schema_is_named(
    schema: Any, content: str, said: str | None
) -> None:
    given = score({"type": "json_schema", "schema": schema}, content)
    assert given.error is None and given.passed is (said is None)
    assert (said or "") in given.explanation


def test_a_slow_pattern_of_a_schema_is_an_error() -> None:
    given = score(
        "json_schema", f'{{"a": "{"a" * 60}b"}}', {"properties": {"a": {"pattern": "^(a|a)+$"}}}
    )
    assert given.passed is None and given.value is None
    assert given.error is not None and "$.a: the pattern '^(a|a)+$' took too long" in given.error


def test_a_schema_may_be_the_target_or_a_file(tmp_path: Any) -> None:
    assert score("json_schema", '{"n": 1}', SCHEMA).passed is True
    assert score("json_schema", "1", "string").error
    path = tmp_path / "s.json"
    path.write_text(json.dumps(SCHEMA), encoding="utf-8")
    assert score({"type": "json_schema", "schema": str(path)}, '{"n": 0}').passed is False
