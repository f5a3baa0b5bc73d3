"""A check by a JSON Schema gives the verdict of `jsonschema`, in bounded steps."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from evaluator import ParsedOutput, parse_output
from evaluator.output import fast_check as fast_module
from evaluator.output import validator as validator_module
from evaluator.output.fast_check import fast_check, identity_of
from evaluator.output.schema import NotChecked, compile_schema
from evaluator.output.validator import MAX_STEPS, BoundedValidator, Watch

JSON = st.recursive(
    st.sampled_from([None, True, False, 0, 1, -1, 1.0, 2.5, "", "a", "bb", "ccc"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "b", "c"]), inner, max_size=3)
    ),
    max_leaves=6,
)
TYPES = st.sampled_from(["object", "array", "string", "number", "integer", "boolean", "null"])
NUMBERS = st.sampled_from([0, 1, 1.5, 2])
KEYS = st.sampled_from(["a", "b", "c"])
LEAVES = st.fixed_dictionaries(
    {},
    optional={
        "type": TYPES | st.lists(TYPES, min_size=1, max_size=3, unique=True),
        "enum": st.lists(JSON, min_size=1, max_size=3),
        "const": JSON,
        "minimum": NUMBERS,
        "maximum": NUMBERS,
        "exclusiveMinimum": NUMBERS,
        "exclusiveMaximum": NUMBERS,
        "minLength": st.integers(0, 2),
        "maxLength": st.integers(0, 2),
        "minItems": st.integers(0, 2),
        "maxItems": st.integers(0, 2),
        "minProperties": st.integers(0, 2),
        "maxProperties": st.integers(0, 2),
        "required": st.lists(KEYS, max_size=2, unique=True),
        "uniqueItems": st.booleans(),
        "format": st.just("email"),
        "title": st.just("t"),
    },
)
SCHEMAS = st.recursive(
    st.booleans() | LEAVES | st.sampled_from([{"$ref": "#"}, {"$ref": "#/$defs/x"}]),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "properties": st.dictionaries(KEYS, inner, max_size=2),
            "additionalProperties": inner,
            "items": inner,
            "prefixItems": st.lists(inner, min_size=1, max_size=2),
            "allOf": st.lists(inner, min_size=1, max_size=2),
            "anyOf": st.lists(inner, min_size=1, max_size=3),
            "oneOf": st.lists(inner, min_size=1, max_size=3),
            "not": inner,
            "if": inner,
            "then": inner,
            "else": inner,
        },
    ),
    max_leaves=5,
)


@given(SCHEMAS.filter(lambda schema: isinstance(schema, dict)), LEAVES, JSON)
@example({"uniqueItems": True}, {}, [1, True, 1.0])
@example({"enum": [[1], {"a": False}]}, {}, [True])
@example({"oneOf": [{"$ref": "#/$defs/x"}, {"items": {"$ref": "#"}}]}, {"type": "string"}, [["a"]])
def test_the_fast_verdict_is_that_of_jsonschema(
    schema: dict[str, Any], more: dict[str, Any], value: Any
) -> None:
    document = {**schema, "$defs": {"x": more}}
    fast = fast_check(document, Draft202012Validator.VALIDATORS)
    assert fast is not None
    try:
        expected = Draft202012Validator(document).is_valid(value)
    except BaseException as error:  # `{"$ref": "#"}`, at which a library in Rust may panic
        if not isinstance(error, RecursionError) and type(error).__name__ != "PanicException":
            raise
        expected = None
    if expected is None:
        assert fast(value) is None
        return
    assert fast(value) in (expected, None)
    assert (
        BoundedValidator(document, Draft202012Validator).errors(value, 1, Watch()) == []
    ) is expected


def test_a_schema_without_an_end_is_an_error_at_every_depth_of_the_stack() -> None:
    def parse(frames: int) -> ParsedOutput:
        if frames:
            return parse(frames - 1)
        return parse_output("[1]", schema={"contains": {"x": 1}, "not": {"$ref": "#"}})

    for frames in range(12):
        error = parse(frames).error
        assert error is not None
        assert "nested too deeply" in error.message


@pytest.mark.parametrize(
    "schema",
    [
        {"pattern": "a"},
        {"properties": {"a": {"patternProperties": {"a": {}}}}},
        {"contains": {}},
        {"unevaluatedItems": False},
        {"$ref": "#/items", "items": {"$id": "https://example.com/x"}},
        {"$ref": "#there"},
        {"enum": [float("nan")]},
    ],
)
def test_a_schema_with_other_keywords_is_left_to_jsonschema(schema: dict[str, Any]) -> None:
    assert fast_check(schema, Draft202012Validator.VALIDATORS) is None


def test_a_verdict_on_a_record_depends_on_its_own_values() -> None:
    integers = {"type": "array", "items": {"type": "integer"}}
    properties = {"a": {"type": "integer"}, "b": integers}
    document = {
        "type": "object",
        "properties": properties,
        "required": ["a"],
        "additionalProperties": False,
    }
    verdict = fast_check(document, Draft202012Validator.VALIDATORS)
    assert verdict is not None
    cases = [
        ({"a": 1, "b": [1]}, True),
        ({"a": 1, "b": ["x"]}, False),
        ({"a": 1, "b": [1.0]}, True),
        ({"a": 1, "b": [1.5]}, False),
        ({"a": True, "b": [1]}, False),
        ({"a": 2.0, "b": []}, True),
        ({"a": 2.5, "b": []}, False),
        ({"b": [1]}, False),
        ({"a": 1, "c": [1]}, False),
        ({"a": 1, "b": {}}, False),
    ]
    for value, fits in cases * 2:
        assert verdict(value) is fits, value
    many = fast_check({"type": "object", "properties": properties}, Draft202012Validator.VALIDATORS)
    assert many is not None
    for number in range(200):
        assert many({"a": number, f"x{number}": "y"}) is True
        assert many({"a": "y", f"x{number}": "y"}) is False


def test_values_that_python_takes_for_equal_are_distinguished_as_in_json() -> None:
    assert identity_of(1) == identity_of(1.0) != identity_of(True)
    assert (
        identity_of([1, {"a": []}])
        == identity_of([1.0, {"a": []}])
        != identity_of([True, {"a": []}])
    )
    assert identity_of([]) != identity_of({})
    assert identity_of({"a": 1, "b": 2}) == identity_of({"b": 2, "a": 1})


RECURSIVE = {
    "oneOf": [
        {"type": "string"},
        {"type": "array", "items": {"$ref": "#"}},
        {"type": "array", "minItems": 9},
    ]
}
TWICE = {
    "$ref": "#/$defs/0",
    "$defs": {
        **{
            str(n): {"anyOf": [{"$ref": f"#/$defs/{n + 1}"}, {"$ref": f"#/$defs/{n + 1}"}]}
            for n in range(40)
        },
        "40": {"type": "object"},
    },
}
ROWS = [{"id": number, "tags": ["a", number]} for number in range(2000)]
NESTED: Any = "a"
for _ in range(50):
    NESTED = [NESTED]

# name: (schema, value that fits, value that does not, or None)
HOSTILE: dict[str, tuple[dict[str, Any], Any, Any]] = {
    "a recursive union": (RECURSIVE, NESTED, [[[[[[[[[1]]]]]]]]]),
    "references that double": (TWICE, {"a": 1}, None),
    "unique objects": ({"type": "array", "uniqueItems": True}, ROWS, [*ROWS, ROWS[0]]),
    "unique numbers and objects": (
        {"uniqueItems": True},
        [*range(5000), *ROWS],
        [{"a": 1}, {"a": 1.0}],
    ),
    "a megabyte of numbers": ({"items": {"type": "number"}}, [1] * 400_000, ["x", *[1] * 400_000]),
    "an enumeration of objects": ({"items": {"enum": ROWS}}, ROWS[:500], [*ROWS[:10], {"id": 0}]),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_value_that_fits_a_hostile_schema_is_accepted(name: str) -> None:
    document, good, _ = HOSTILE[name]
    schema = compile_schema(document)
    assert schema is not None and schema.check(good) is None
    assert parse_output(json.dumps(good), schema=document).error is None


@pytest.mark.parametrize("name", [name for name, (_, _, bad) in HOSTILE.items() if bad is not None])
def test_a_value_that_does_not_fit_is_refused(name: str) -> None:
    document, _, bad = HOSTILE[name]
    schema = compile_schema(document)
    assert schema is not None
    error = schema.check(bad)
    assert error is not None and error.kind in ("schema_violation", "type_mismatch")


SLOW: dict[str, tuple[dict[str, Any], Any]] = {
    "a recursive union with a pattern": (
        {
            "oneOf": [
                {"type": "string", "pattern": "a"},
                {"items": {"$ref": "#"}},
                {"items": {"$ref": "#"}},
            ]
        },
        NESTED,
    ),
    "references that double, of draft 7": (
        {"$schema": "http://json-schema.org/draft-07/schema#", **TWICE},
        1,
    ),
    "keys that are not evaluated": (
        {"unevaluatedProperties": False, "allOf": [{"$ref": "#/$defs/0"}], "$defs": TWICE["$defs"]},
        {"a": 1},
    ),
    "an enumeration under contains": ({"items": {"contains": {"enum": ROWS}}}, [ROWS] * 20),
    "names of properties": (
        {"items": {"propertyNames": {"enum": [str(n) for n in range(5000)]}}},
        [{"1": 1}] * 100,
    ),
}


@pytest.mark.parametrize("name", SLOW)
def test_a_check_beyond_the_bound_is_an_error_that_says_so(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A tenth of the steps, which each of them takes too; the next test has all of them.
    monkeypatch.setattr(validator_module, "Watch", partial(Watch, left_steps=MAX_STEPS // 10))
    document, value = SLOW[name]
    schema = compile_schema(document)
    assert schema is not None
    error = schema.check(value)
    assert isinstance(error, NotChecked) and error.kind == "schema_violation"
    assert f"{MAX_STEPS:,} steps" in error.message and "simplify the schema" in error.message


@pytest.mark.parametrize("keyword", ["anyOf", "allOf"])
def test_an_answer_is_repaired_by_a_schema_whose_references_multiply(keyword: str) -> None:
    levels: dict[str, Any] = {
        str(level): {keyword: [{"$ref": f"#/$defs/{level + 1}"}] * 4} for level in range(12)
    }
    levels["12"] = {"type": "object", "properties": {"a": {"type": "integer"}}}
    schema = {"$ref": "#/$defs/0", "$defs": levels}
    parsed = parse_output("{'a': '1'}", schema=schema)
    if keyword == "allOf":
        assert parsed.value == {"a": 1}
    else:
        # Among several alternatives that fit, none says what is meant.
        assert parsed.error is not None


def test_an_exponential_violation_is_refused_without_its_place() -> None:
    value: Any = 1
    for _ in range(40):
        value = [value]
    schema = {
        "oneOf": [
            {"type": "string"},
            {"items": {"$ref": "#"}, "type": "array"},
            {"items": {"$ref": "#"}, "maxItems": 1, "type": "array"},
        ]
    }
    parsed = parse_output(json.dumps(value), schema=schema)
    assert parsed.value is None and parsed.error is not None
    assert "does not match its schema; the place was not found" in parsed.error.message


def test_the_steps_of_a_fast_check_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = fast_check(
        {"items": {"anyOf": [{"type": "string"}, {"type": "number"}]}},
        Draft202012Validator.VALIDATORS,
    )
    assert fast is not None and fast([1] * 1000) is True
    monkeypatch.setattr(fast_module, "MAX_STEPS", 100)
    assert fast([1] * 1000) is None


def test_a_schema_with_too_many_parts_is_refused() -> None:
    document = {"anyOf": [{"type": "string"}] * 6000}
    parsed = parse_output('"a"', schema=document)
    assert (
        parsed.error is not None
        and parsed.error.kind == "bad_schema"
        and "more than 5,000 parts" in parsed.error.message
    )
    assert parse_output('"a"', schema={"enum": [*map(str, range(6000)), "a"]}).error is None
