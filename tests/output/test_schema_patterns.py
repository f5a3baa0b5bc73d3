"""Patterns in schemas match what Python's `re` matches, and none blocks the process."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import warnings
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from jsonschema import Draft7Validator, Draft201909Validator, Draft202012Validator

from evaluator import parse_output
from evaluator.output.schema import NotChecked, compile_schema
from evaluator.output.validator import Watch, bounded, first_errors, undrafted
from evaluator.patterns import BadPattern, compile_as_re

SLOW = "^(a|a)+$"
HOSTILE = "a" * 60 + "b"
KEY = {HOSTILE: 1}


def checked(document: dict[str, Any], value: Any) -> Any:
    schema = compile_schema(document)
    assert schema is not None
    return schema.check(value)


@pytest.mark.parametrize(
    ("schema", "value", "path"),
    [
        ({"pattern": SLOW}, HOSTILE, "$"),
        ({"properties": {"a": {"items": {"pattern": SLOW}}}}, {"a": ["aa", HOSTILE]}, "$.a[1]"),
        (
            {"properties": {"a": {"anyOf": [{"pattern": SLOW}, {"type": "null"}]}}},
            {"a": HOSTILE},
            "$.a",
        ),
        ({"properties": {"a": {"anyOf": [{"pattern": SLOW}, True]}}}, {"a": HOSTILE}, "$"),
        ({"not": {"pattern": SLOW}}, HOSTILE, "$"),
        ({"if": {"pattern": SLOW}, "then": True}, HOSTILE, "$"),
        ({"propertyNames": {"pattern": SLOW}}, KEY, "$"),
        ({"patternProperties": {SLOW: {}}}, KEY, "$"),
        ({"additionalProperties": False, "patternProperties": {SLOW: {}}}, KEY, "$"),
        ({"unevaluatedProperties": False, "patternProperties": {SLOW: {}}}, KEY, "$"),
        (
            {
                "unevaluatedProperties": False,
                "allOf": [{"$ref": "#/$defs/k"}],
                "$defs": {"k": {"patternProperties": {SLOW: {}}}},
            },
            KEY,
            "$",
        ),
        (
            {
                "$schema": "https://json-schema.org/draft/2020-12/schema",
                "items": {"$ref": "#"},
                "pattern": SLOW,
            },
            [HOSTILE],
            "$[0]",
        ),
        (
            {"$schema": "http://json-schema.org/draft-04/schema#", "items": {"pattern": SLOW}},
            [HOSTILE],
            "$[0]",
        ),
    ],
)
def test_a_pattern_that_takes_too_long_is_a_violation_that_says_so(
    schema: dict[str, Any], value: Any, path: str
) -> None:
    error = checked(schema, value)
    assert isinstance(error, NotChecked)
    assert (error.kind, error.path) == ("schema_violation", path)
    assert "took too long on a text of 61 characters" in error.message
    assert len(error.message) <= 300


def test_the_output_of_a_task_is_refused_with_the_place() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": SLOW}}}
    parsed = parse_output(json.dumps({"a": HOSTILE}), schema=schema)
    assert parsed.value is None and parsed.error is not None
    assert parsed.error.path == "$.a" and "took too long" in parsed.error.message
    assert parse_output('{"a": "aaa"}', schema=schema).error is None


def test_many_texts_share_one_bound_and_long_valid_values_pass() -> None:
    assert isinstance(
        checked({"type": "array", "not": {"contains": {"pattern": SLOW}}}, [HOSTILE] * 10_000),
        NotChecked,
    )
    assert checked({"items": {"pattern": "^[a-z]+$"}}, ["word"] * 50_000) is None


@pytest.mark.parametrize("pattern", ["(?:a{100}){1000}", "a{20000}"])
def test_a_pattern_too_large_to_compile_is_a_bad_schema(pattern: str) -> None:
    error = checked({"pattern": pattern}, "a")
    assert error.kind == "bad_schema" and "parts" in error.message
    with pytest.raises(BadPattern):
        compile_as_re(pattern)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("^a{e}$", "a{e}"),
        ("^a{e}$", "b"),
        ("x{i}", "x"),
        ("^{a}{2}$", "{a}}"),
        ("a{s<=1}", "b"),
        ("^a{,2}$", "aa"),
        ("^a{,2}$", "aaa"),
        ("a{", "a{"),
        ("a{2", "a{2"),
        ("^a{}$", "a{}"),
        ("^[[:alpha:]]$", ":]"),
        ("^[[:alpha:]]$", "b"),
        ("^[]a]$", "]"),
        ("^[^]a]$", "b"),
        (r"^[\]\[]$", "["),
        (r"^\[{e}\]$", "[{e}]"),
        ("^a$", "a\n"),
        (r"^\d+\Z", "1\n"),
        ("(?i)^É$", "é"),
        ("^[a||b]$", "|"),
        ("^a(?#[x)[b[]$", "a["),
    ],
)
def test_syntax_that_regex_reads_differently_has_the_meaning_of_re(pattern: str, text: str) -> None:
    assert bool(compile_as_re(pattern).search(text)) is bool(_re(pattern).search(text))


def _re(pattern: str) -> re.Pattern[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return re.compile(pattern)


PIECES = [
    "a",
    "b",
    "{e}",
    "{1}",
    "{,2}",
    "{",
    "}",
    "[",
    "[[",
    "]",
    "[a",
    "^",
    ":",
    r"\[",
    r"\{",
    r"\d",
    "(",
    ")",
    "|",
    "+",
    "?",
    "$",
    "-",
    "1",
    "é",
]


@given(
    st.lists(st.sampled_from(PIECES), max_size=8).map("".join), st.text("ab{}[]:1e-é", max_size=6)
)
@example("[[a]{e}", "a{e}")
def test_every_pattern_of_re_finds_the_same(pattern: str, text: str) -> None:
    try:
        expected = bool(_re(pattern).search(text))
    except re.error:
        return
    assert bool(compile_as_re(pattern).search(text, timeout=5)) is expected


KEYS = st.sampled_from(["a", "ab", "b", "x1", "y"])
LEAF = st.sampled_from(
    [True, False, {}, {"type": "integer"}, {"type": "string"}, {"pattern": "^a"}]
)
OBJECT = st.fixed_dictionaries(
    {},
    optional={
        "properties": st.dictionaries(KEYS, LEAF, max_size=2),
        "patternProperties": st.dictionaries(
            st.sampled_from(["^a", r"\d", "b$"]), LEAF, max_size=2
        ),
        "additionalProperties": LEAF,
        "unevaluatedProperties": LEAF,
        "$ref": st.just("#/$defs/more"),
    },
)
NESTED = st.recursive(
    OBJECT,
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "allOf": st.lists(inner, min_size=1, max_size=2),
            "anyOf": st.lists(inner, min_size=1, max_size=2),
            "if": inner,
            "then": inner,
            "else": inner,
            "dependentSchemas": st.dictionaries(KEYS, inner, max_size=1),
            "not": inner,
            "unevaluatedProperties": LEAF,
            "patternProperties": st.dictionaries(st.sampled_from(["^a", r"\d"]), LEAF, max_size=1),
        },
    ),
    max_leaves=4,
)
MORE = st.fixed_dictionaries(
    {"patternProperties": st.dictionaries(st.sampled_from(["^x", "y"]), LEAF, max_size=2)}
)
VALUES = st.dictionaries(KEYS, st.sampled_from([1, "a", "z", None]), max_size=4)


@given(
    NESTED,
    MORE,
    VALUES,
    st.sampled_from([Draft7Validator, Draft201909Validator, Draft202012Validator]),
)
def test_the_verdict_is_that_of_jsonschema_itself(
    document: Any, more: Any, value: Any, kind: Any
) -> None:
    document = {**document, "$defs": {"more": more}}
    watch = Watch()
    errors = first_errors(bounded(kind)(undrafted(document)), value, watch, 1)
    assert watch.late is None
    assert (not errors) is kind(document).is_valid(value)


def test_values_that_look_like_a_draft_are_left_alone() -> None:
    schema = {"properties": {"$schema": {"const": {"$schema": "x"}}}, "required": ["$schema"]}
    assert undrafted(schema) == schema
    assert undrafted({"$schema": "x", "items": {"$schema": "y"}}) == {"items": {}}


def test_the_library_is_loaded_at_the_first_pattern() -> None:
    code = (
        "import sys\nfrom evaluator.output import parse_output\n"
        "parse_output('1', schema={'type': 'integer'})\nassert 'regex' not in sys.modules\n"
        "assert parse_output('a', schema={'type': 'string', 'pattern': 'b'}).error\nassert 'regex' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
