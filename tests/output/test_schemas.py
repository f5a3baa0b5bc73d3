"""What a declared schema changes: the choice of the block, the reading of scalars, and the errors."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pydantic
import pytest

from evaluator import parse_output
from evaluator.output.schema import schema_imports
from tests.tables import each_case

ITEMS = {
    "type": "object",
    "required": ["items"],
    "properties": {
        "items": {"type": "array", "items": {"$ref": "#/$defs/item"}},
        "ok": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
        "note": {"type": ["string", "number"]},
    },
    "$defs": {
        "item": {
            "type": "object",
            "properties": {"price": {"type": "number"}, "count": {"type": "integer"}},
        }
    },
}
CHOICE = {"enum": ["good", "bad"]}

READ: list[tuple[str, Any, Any, tuple[str, ...]]] = [
    ("$1,299.99", "number", 1299.99, ("read as a number",)),
    ("The price is $1,299.99.", "number", 1299.99, ("number",)),
    ("\\boxed{42}", "integer", 42, ("boxed",)),
    ("So we get $x = \\boxed{-1{,}000}$ or \\boxed{\\text{7}}.", "integer", 7, ("boxed",)),
    ("First 3, then 4.\nAnswer: 42", "integer", 42, ("a label",)),
    ("**Final answer:** **42**", "number", 42, ("a label",)),
    ("The answer is 42.", "integer", 42, ("a label",)),
    ("I count 7 of them", "integer", 7, ("only number",)),
    ("－４２", "integer", -42, ("read as a integer",)),
    ("−3.5", "number", -3.5, ("read as a number",)),
    ("3 + 4 = 7", "integer", 7, ("a label",)),
    ("<think>maybe 9</think>42", "integer", 42, ("reasoning",)),
    ("```\n$5\n```", "number", 5, ("number", "fence")),
    ('"42"', "number", 42, ("text was read as a number",)),
    ("Answer: no", "boolean", False, ("a label",)),
    ("Yes.", "boolean", True, ("boolean",)),
    ("No, because it is late.", "boolean", False, ("first word",)),
    ("The answer is yes, clearly", "boolean", True, ("a label",)),
    ("False", "boolean", False, ("literals",)),
    ('"yes"', "boolean", True, ("text was read as a boolean",)),
    ("Paris", "string", "Paris", ("unchanged",)),
    ('"Paris"', "string", "Paris", ()),
    ("'Paris'", "string", "Paris", ("single",)),
    ("Answer: good", CHOICE, "good", ("a label",)),
    ("**bad**.", CHOICE, "bad", ("its words",)),
    ("[1, 2]", "array", [1, 2], ()),
    ("[1, 2]", "[]", [1, 2], ()),
    ("[1, 2.0]", "integer[]", [1, 2.0], ()),
    ('["a"]', "string[]", ["a"], ()),
    ('["1,000", "$2"]', "number[]", [1000, 2], ("text was read as a number",)),
    ('[["1"]]', "integer[][]", [[1]], ("text was read",)),
    ("[yes, no]", "boolean[]", [True, False], ("unquoted", "boolean")),
    ('[{"a": 1}] or {"b": 1}', "object", {"b": 1}, ("around", "fits best")),
    ('{"b": 1} or [{"a": 1}]', "object[]", [{"a": 1}], ("around",)),
    ('{"items": []} {"other": 1}', ITEMS, {"items": []}, ("around", "fits best")),
    (
        '{"items": [{"price": "$5", "count": "3"}], "ok": "yes", "note": "7"}',
        ITEMS,
        {"items": [{"price": 5, "count": 3}], "ok": True, "note": "7"},
        ("as a number", "as a boolean"),
    ),
    (
        '{"items": [{"price": $5}]}',
        ITEMS,
        {"items": [{"price": 5}]},
        ("unquoted text", "as a number"),
    ),
    ("5", "any", 5, ()),
    ("3.0", "integer", 3.0, ()),
]


@each_case(("text", "schema", "value", "fragments"), READ)
def test_the_schema_guides_the_reading(
    text: str, schema: Any, value: Any, fragments: tuple[str, ...]
) -> None:
    for declared in (schema, json.dumps(schema)) if isinstance(schema, dict) else (schema,):
        parsed = parse_output(text, schema=declared)
        assert parsed.error is None, parsed.error
        assert parsed.value == value
        assert type(parsed.value) is type(value)
        assert bool(parsed.warnings) == bool(fragments), parsed.warnings
        for fragment in fragments:
            assert any(fragment in warning for warning in parsed.warnings), (
                fragment,
                parsed.warnings,
            )


REFUSED: list[tuple[str, Any, str, str | None, str | None, str | None]] = [
    ("{}", "array", "type_mismatch", "$", "array", "object"),
    ("{}", "string[]", "type_mismatch", "$", "string[]", "object"),
    ('"a"', "string[]", "type_mismatch", "$", "string[]", "string"),
    ('["a", 2]', "string[]", "type_mismatch", "$[1]", "string", "integer"),
    ("[1, true]", "number[]", "type_mismatch", "$[1]", "number", "boolean"),
    ('["x", "2"]', "number[]", "type_mismatch", "$[0]", "number", "string"),
    ("42", "string", "type_mismatch", "$", "string", "integer"),
    ("3.7", "integer", "type_mismatch", "$", "integer", "number"),
    ("Answer: 3.7", "integer", "type_mismatch", "$", "integer", "number"),
    ('"3.7"', "integer", "type_mismatch", "$", "integer", "string"),
    ("1", "boolean", "type_mismatch", "$", "boolean", "integer"),
    ("0", "boolean", "type_mismatch", "$", "boolean", "integer"),
    ('"1"', "boolean", "type_mismatch", "$", "boolean", "string"),
    ("true", "number", "type_mismatch", "$", "number", "boolean"),
    ("null", "object", "type_mismatch", "$", "object", "null"),
    ("[1]", "object", "type_mismatch", "$", "object", "array"),
    ('{"answer": 42}', "number", "type_mismatch", "$", "number", "object"),
    ("NaN", "number", "type_mismatch", "$", "number", "null"),
    ("42/100", "number", "no_json", "$", "number", "text"),
    ("1,5", "number", "no_json", "$", "number", "text"),
    ("3/4", "number", "no_json", "$", "number", "text"),
    ("between 3 and 4", "number", "no_json", "$", "number", "text"),
    ("no one knows", "boolean", "no_json", "$", "boolean", "text"),
    ("hello", "object", "no_json", "$", "object", "text"),
    ("", "string", "no_json", "$", "string", "text"),
    ('<think>{"a": 1}</think> done', "object", "no_json", "$", "object", "text"),
    (
        '{"items": [{}, {}, {"price": null}]}',
        ITEMS,
        "type_mismatch",
        "$.items[2].price",
        "number",
        "null",
    ),
    (
        '{"items": [{"count": 3.7}]}',
        ITEMS,
        "type_mismatch",
        "$.items[0].count",
        "integer",
        "number",
    ),
    ('{"items": {"price": 1}}', ITEMS, "type_mismatch", "$.items", "array", "object"),
    ('{"items": [], "ok": 1}', ITEMS, "type_mismatch", "$.ok", None, "integer"),
    ("{}", ITEMS, "schema_violation", "$", "property 'items'", "missing"),
    ('"ugly"', CHOICE, "schema_violation", "$", 'enum: ["good", "bad"]', '"ugly"'),
    (
        '{"a b": {"c": 1}}',
        {"properties": {"a b": {"properties": {"c": {"type": "string"}}}}},
        "type_mismatch",
        "$['a b'].c",
        "string",
        "integer",
    ),
    ("1", "strnig", "bad_schema", None, None, None),
    ("1", "no_such.json", "bad_schema", None, None, None),
    ("1", "{nope", "bad_schema", None, None, None),
    ("1", '{"type": "strnig"}', "bad_schema", None, None, None),
    ("1", {"$ref": "http://127.0.0.1:9/x"}, "bad_schema", None, None, None),
    ("1", {"$ref": "#/$defs/none"}, "bad_schema", None, None, None),
    ("1", "no_such_module:Model", "bad_schema", None, None, None),
    ("1", "json:nothing", "bad_schema", None, None, None),
    ("1", "json:loads", "bad_schema", None, None, None),
    ("1", 7, "bad_schema", None, None, None),
]


@each_case(("text", "schema", "kind", "path", "expected", "actual"), REFUSED)
def test_nothing_is_invented_to_make_a_value_fit(
    text: str, schema: Any, kind: str, path: str | None, expected: str | None, actual: str | None
) -> None:
    parsed = parse_output(text, schema=schema)
    assert parsed.value is None
    assert parsed.error is not None
    assert (parsed.error.kind, parsed.error.path) == (kind, path), parsed.error
    if expected is not None:
        assert parsed.error.expected == expected
    assert parsed.error.actual == actual
    assert parsed.text == text
    assert parsed.error.message


class Line(pydantic.BaseModel):
    name: str
    price: float
    count: int = 1
    flag: bool | None = None


@dataclass
class Point:
    x: int
    y: int = 0


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "shop_models_for_test.py").write_text(
        "import pydantic\nfrom dataclasses import dataclass\n"
        "class Line(pydantic.BaseModel):\n    name: str\n    price: float\n    count: int = 1\n"
        "@dataclass\nclass Point:\n    x: int\n    y: int = 0\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return "shop_models_for_test"


def test_a_class_gives_an_instance() -> None:
    assert parse_output('{"name": "a", "price": "$2"}', schema=Line).value == Line(
        name="a", price=2.0
    )
    assert parse_output("{'x': 3}", schema=Point).value == Point(3)
    assert parse_output('[{"x": 1}]', schema=list[Point]).value == [Point(1)]
    assert parse_output("Answer: 4", schema=int).value == 4
    assert parse_output("{}", schema=dict).value == {}


def test_a_model_named_by_text_gives_an_instance_with_the_defaults_of_the_model(
    models: str,
) -> None:
    line = parse_output('{"name": "a", "price": "2"}', schema=f"{models}:Line").value
    assert type(line).__name__ == "Line"
    assert line.model_dump() == {"name": "a", "price": 2, "count": 1}
    point = parse_output('{"x": "3"}', schema=f"{models}:Point").value
    assert (type(point).__name__, point.x, point.y) == ("Point", 3, 0)


@pytest.mark.parametrize("place", ["shop_here_for_test", "shop_here_for_test.py"])
def test_a_model_is_found_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    (tmp_path / "shop_here_for_test.py").write_text(
        "import pydantic\nclass Line(pydantic.BaseModel):\n    name: str\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [path for path in sys.path if path])
    before = list(sys.path)
    value = parse_output('{"name": "a"}', schema=f"{place}:Line").value
    sys.modules.pop("shop_here_for_test", None)
    assert value.name == "a"
    assert sys.path == before


def test_no_module_is_imported_where_imports_are_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shop_off_for_test.py").write_text("raise RuntimeError('imported')\n")
    monkeypatch.chdir(tmp_path)
    with schema_imports("none") as named:
        assert parse_output('{"name": 1}', schema="shop_off_for_test:Line").value == {"name": 1}
    assert named == ["shop_off_for_test:Line"]
    assert parse_output("{}", schema="shop_off_for_test:Line").error.kind == "bad_schema"


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ('{"name": 1, "price": 2}', "$.name"),
        ('{"name": "a"}', "$"),
        ('{"name": "a", "price": 2, "count": 1.5}', "$.count"),
        ('{"name": "a", "price": true}', "$.price"),
        ('{"name": "a", "price": 1, "flag": 1}', "$.flag"),
    ],
)
def test_a_model_is_as_strict_as_its_types_say(text: str, path: str) -> None:
    error = parse_output(text, schema=Line).error
    assert error is not None
    assert error.path == path


def test_a_models_own_validators_count_and_their_exceptions_become_errors() -> None:
    class Even(pydantic.BaseModel):
        n: int

        @pydantic.field_validator("n")
        @classmethod
        def even(cls, n: int) -> int:
            if n % 2:
                raise ValueError("odd")
            return 10 // n

    odd = parse_output('{"n": 3}', schema=Even).error
    zero = parse_output('{"n": 0}', schema=Even).error
    assert odd is not None
    assert odd.path == "$.n"
    assert "odd" in odd.message
    assert zero is not None
    assert "ZeroDivisionError" in zero.message


def test_a_schema_file_is_read_again_only_when_it_changed(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text('{"type": "integer"}')
    assert parse_output("1", schema=str(path)).error is None
    path.write_text('{"type": "string"}')
    os.utime(path, ns=(1, 1))
    error = parse_output("1", schema=str(path)).error
    assert error is not None
    assert error.expected == "string"
    path.write_text("{")
    error = parse_output("1", schema=str(path)).error
    assert error is not None
    assert error.kind == "bad_schema"


def test_a_recursive_schema_and_a_deep_value_end_in_an_answer() -> None:
    schema = {
        "$ref": "#/$defs/n",
        "$defs": {"n": {"type": "object", "properties": {"c": {"$ref": "#/$defs/n"}}}},
    }
    deep = '{"c":' * 190 + "{}" + "}" * 190
    parsed = parse_output(deep, schema=schema)
    assert parsed.error is None or "deep" in parsed.error.message
    assert parse_output('{"c": {"c": 1}}', schema=schema).error is not None


@pytest.mark.parametrize("keyword", ["anyOf", "oneOf"])
def test_an_alternative_may_be_true_or_false(keyword: str) -> None:
    typed = {"type": "object", "properties": {"b": {"type": "integer"}}}
    for text in ('{"b": "1"}', "{'b': '1'}", "b: 1"):
        never = parse_output(text, schema={"type": "object", keyword: [False, typed]})
        assert never.value == {"b": 1}
        always = parse_output(text, schema={"type": "object", keyword: [True, typed]})
        assert always.value is None or always.error is None
