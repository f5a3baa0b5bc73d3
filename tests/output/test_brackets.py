"""One bracket that was left out, doubled or mistaken: which reading is taken, and where none is."""

from __future__ import annotations

from typing import Any

import pytest

from evaluator import parse_output
from tests.tables import each_case

Case = tuple[str, Any, str]

SURPLUS, SURPLUS_OPENING, MISSING = "surplus closing", "surplus opening", "missing opening"
WRONG, WRONG_OPENING = "mismatched closing", "opening brackets of the wrong kind"

DOUBLED: list[Case] = [
    (
        '{"city": "Bern", "pos": {{"lat": 1, "lon": 2}, "note": null}',
        {"city": "Bern", "pos": {"lat": 1, "lon": 2}, "note": None},
        SURPLUS_OPENING,
    ),
    ("{'pos': {{'lat': 1}, 'note': 2}", {"pos": {"lat": 1}, "note": 2}, SURPLUS_OPENING),
    ("{“pos”: { {“lat”: 1}, “note”: 2}", {"pos": {"lat": 1}, "note": 2}, SURPLUS_OPENING),
    ('{größe: {{länge: "1"}, "note": 2}', {"größe": {"länge": "1"}, "note": 2}, SURPLUS_OPENING),
    (
        '{"pos": {\n{"la\\"t": 1}, /* x */ "note": 2}',
        {"pos": {'la"t': 1}, "note": 2},
        SURPLUS_OPENING,
    ),
    (
        '{"a": "use {{name}} and ]", "b": {{"c": 1}, "d": 2}',
        {"a": "use {{name}} and ]", "b": {"c": 1}, "d": 2},
        SURPLUS_OPENING,
    ),
    ('{"n": 1, "last": {{"c": 1}}', {"n": 1, "last": {"c": 1}}, SURPLUS_OPENING),
    ('[\n  {"id": 1},\n  {{"id": 2}\n]', [{"id": 1}, {"id": 2}], SURPLUS_OPENING),
    ('{{"a": {"b": 1}}', {"a": {"b": 1}}, SURPLUS_OPENING),
    ('```json\n{"a": {{"b": 1}, "c": 2}\n```', {"a": {"b": 1}, "c": 2}, SURPLUS_OPENING),
    ('{"a": {{"b": 1}, "c": 2}. Done.', {"a": {"b": 1}, "c": 2}, SURPLUS_OPENING),
    (
        '{"matrix": [[1, 2]], [3, 4]], "label": "m"}',
        {"matrix": [[1, 2], [3, 4]], "label": "m"},
        SURPLUS,
    ),
    ('{"rows": [["a", "b"]], ["c"]], "n": 1}', {"rows": [["a", "b"], ["c"]], "n": 1}, SURPLUS),
    ("[[1, 2]], [3, 4]]", [[1, 2], [3, 4]], SURPLUS),
    ('[{"a": 1}], {"a": 2}]', [{"a": 1}, {"a": 2}], SURPLUS),
    ('{"a": [1, 2], 3], "b": 4}', {"a": [1, 2, 3], "b": 4}, SURPLUS),
    (
        '{"steps": [["in", "out"], "count": 3}',
        {"steps": ["in", "out"], "count": 3},
        SURPLUS_OPENING,
    ),
    ('{"a": [], "roles": [[]}', {"a": [], "roles": []}, SURPLUS_OPENING),
    (
        '{"matrix": [[1, 2], [[3, 4]], "label": "m"}',
        {"matrix": [[1, 2], [3, 4]], "label": "m"},
        SURPLUS_OPENING,
    ),
    ('{\n  "c": [[\n    1,\n    2\n  ],\n  "d": 3\n}', {"c": [1, 2], "d": 3}, SURPLUS_OPENING),
    (
        '{"p": {"x": [[[0, 1]], [2, 3]]]}, "n": {}}',
        {"p": {"x": [[[0, 1], [2, 3]]]}, "n": {}},
        SURPLUS,
    ),
    ('{"a": ["x", "y"]], "b": 3}', {"a": ["x", "y"], "b": 3}, SURPLUS),
    # Lists of numbers are often nested, and closing brackets are forgotten.
    (
        '{"coordinates": [[[0, 0], [1, 1]], "type": "Polygon"}',
        {"coordinates": [[[0, 0], [1, 1]]], "type": "Polygon"},
        WRONG,
    ),
    # The end may be cut off.
    ('[["a", "b"]', [["a", "b"]], "cut off"),
]

LEFT_OUT: list[Case] = [
    (
        '{"tags": "math", "code"], "alive": false}',
        {"tags": ["math", "code"], "alive": False},
        MISSING,
    ),
    ("{'tags': 'math', 'code'], 'alive': 1}", {"tags": ["math", "code"], "alive": 1}, MISSING),
    ('{"n": 1, "tags": "x", "y"]}', {"n": 1, "tags": ["x", "y"]}, MISSING),
    ('{"n": 1, "tags":\n  1,\n  2\n]}', {"n": 1, "tags": [1, 2]}, MISSING),
    ('{"a": "x", "d": ]}', {"a": "x", "d": []}, MISSING),
    ('{"items": {"a": 1}, {"a": 2}], "n": 1}', {"items": [{"a": 1}, {"a": 2}], "n": 1}, MISSING),
    ('{"id": 1}, {"id": 2}]', [{"id": 1}, {"id": 2}], MISSING),
    ('Here: {"id": 1}, {"id": 2}]', [{"id": 1}, {"id": 2}], MISSING),
    (
        '{"matrix": [[1, 2], 3, 4]], "label": "m"}',
        {"matrix": [[1, 2], [3, 4]], "label": "m"},
        MISSING,
    ),
    ('[["a", "b"], ["c", "d"], "e", "f"]]', [["a", "b"], ["c", "d"], ["e", "f"]], MISSING),
    ('{\n  "tags":\n    "a"\n  ],\n  "n": 1\n}', {"tags": ["a"], "n": 1}, MISSING),
    (
        '{"html": "<a href=\\"x\\">{y}</a>", n": [1]}',
        {"html": '<a href="x">{y}</a>', "n": [1]},
        "opening quote",
    ),
    ('{"a": ["x", ["y", "z"], "b": 1}', {"a": ["x", ["y", "z"]], "b": 1}, WRONG),
    (
        '{"tool": "x", "input": {"q": "y"}\n\nsteps: [1, 2]',
        {"tool": "x", "input": {"q": "y"}, "steps": [1, 2]},
        "missing comma",
    ),
    ('{"html": "x</b>", n": [1]}', {"html": "x</b>", "n": [1]}, "opening quote"),
    ('<think>{x}</think>\n"a": {"b": 1}}', {"a": {"b": 1}}, "missing opening"),
    (
        '{"k": {"l": {"m": ["deep"]}, "t": true}\n\nNote: {x} and [1].',
        {"k": {"l": {"m": ["deep"]}, "t": True}},
        "missing closing",
    ),
    ('{"tags": "a"], "n": 1}', {"tags": "a", "n": 1}, SURPLUS),
    ('{"a": "b": {"c": [1, 2]}}, "d": []}', {"a": {"b": {"c": [1, 2]}}, "d": []}, MISSING),
    ('{"pos":\n"lat": 1, "lon": 2}, "age": 3}', {"pos": {"lat": 1, "lon": 2}, "age": 3}, MISSING),
    ('{"pos": lat: 1, lon: 2}, "age": 3}', {"pos": {"lat": 1, "lon": 2}, "age": 3}, MISSING),
    (
        '["id": 1, "t": "x"}, {"id": 2, "t": "y"}]',
        [{"id": 1, "t": "x"}, {"id": 2, "t": "y"}],
        MISSING,
    ),
    (
        '{"matrix": [[1, 2, [3, 4]], "label": "m"}',
        {"matrix": [[1, 2], [3, 4]], "label": "m"},
        WRONG,
    ),
    # The lines tell where the bracket is missing, or the objects beside it.
    ('{\n  "pos": {\n    "lat": 1\n  ,\n  "note": 2\n}', {"pos": {"lat": 1}, "note": 2}, WRONG),
    (
        '{\n  "a": {\n    "b": 1,\n  "c": {\n    "d": 1\n  }\n}',
        {"a": {"b": 1}, "c": {"d": 1}},
        WRONG,
    ),
    (
        '{"q": [{"p": {"x": 1, "y": 2}, "n": 1}, {"p": {"x": 1, "y": 2, "n": 2}]}',
        {"q": [{"p": {"x": 1, "y": 2}, "n": 1}, {"p": {"x": 1, "y": 2}, "n": 2}]},
        WRONG,
    ),
    # On one line nothing does: it may be cut off.
    (
        '{"pos": {"lat": 1, "lon": 2, "note": null}',
        {"pos": {"lat": 1, "lon": 2, "note": None}},
        "cut off",
    ),
    # A comma is missing, and no bracket.
    ('{"a": {"b": 1} c: 2}', {"a": {"b": 1}, "c": 2}, "missing comma"),
]

MISTAKEN: list[Case] = [
    (
        '["city": "Bern", "pos": {"lat": 1}, "note": null}',
        {"city": "Bern", "pos": {"lat": 1}, "note": None},
        WRONG_OPENING,
    ),
    ("['größe': 1, 'b': 'x'}", {"größe": 1, "b": "x"}, WRONG_OPENING),
    (
        '["summary": "He said \\"no\\".", "score": 7}',
        {"summary": 'He said "no".', "score": 7},
        WRONG_OPENING,
    ),
    (
        '{"items": [["a": 1}, {"a": 2}], "n": 1}',
        {"items": [{"a": 1}, {"a": 2}], "n": 1},
        WRONG_OPENING,
    ),
    ('{"a": ["b": {"c": [1]}}, "d": []}', {"a": {"b": {"c": [1]}}, "d": []}, WRONG_OPENING),
    ('["a": 1, "b": 2]', {"a": 1, "b": 2}, WRONG_OPENING),
    ('{"x": ["a": 1, "b": 2], "c": 3}', {"x": {"a": 1, "b": 2}, "c": 3}, WRONG_OPENING),
    (
        '{"items": {{"a": 1}, {"a": 2}], "n": 1}',
        {"items": [{"a": 1}, {"a": 2}], "n": 1},
        WRONG_OPENING,
    ),
    ('{{"a": 1}, {"a": 2}]', [{"a": 1}, {"a": 2}], WRONG_OPENING),
    (
        '{"sources": {"https://x.example/a", "b"], "n": 1}',
        {"sources": ["https://x.example/a", "b"], "n": 1},
        WRONG_OPENING,
    ),
    (
        '{"matrix": [{1, 2], [3, 4]], "label": "m"}',
        {"matrix": [[1, 2], [3, 4]], "label": "m"},
        WRONG_OPENING,
    ),
    ('{"x": {"a", "b"}, "n": 1}', {"x": ["a", "b"], "n": 1}, "sets"),
    # A colon in a string, in a time and in prose makes no object.
    ('["a: 1", "b",]', ["a: 1", "b"], "trailing comma"),
    ('{"a": 12:30, "b": [1],}', {"a": "12:30", "b": [1]}, "unquoted text"),
    ('{{"a": 1}}', {"a": 1}, "around"),
]

IN_STRINGS: list[Case] = [
    (
        '{"a": "he said "x", "y"] and left", "b": 1}',
        {"a": 'he said "x", "y"] and left', "b": 1},
        "unescaped quotes",
    ),
    ('{"a": "list: "x", "y"]", "b": 1}', {"a": 'list: "x", "y"]', "b": 1}, "unescaped quotes"),
    (
        '{"code": "a = ["x", "y"]", "b": {"c": 1}}',
        {"code": 'a = ["x", "y"]', "b": {"c": 1}},
        "unescaped quotes",
    ),
    ('{"a": \'he said "b", ["c"\', "d": 1}', {"a": 'he said "b", ["c"', "d": 1}, "single quotes"),
    (
        '{"code": "if (x == "}") return", "n": 1}',
        {"code": 'if (x == "}") return', "n": 1},
        "unescaped quotes",
    ),
    (
        '{"a": "{{", "b": "]], [", "c": [1, 2],}',
        {"a": "{{", "b": "]], [", "c": [1, 2]},
        "trailing comma",
    ),
]

DOTS: list[Case] = [
    ('{..."items": [1, 2], "total": 3}', {"items": [1, 2], "total": 3}, "ellipsis"),
    ('{...\n  "a": {"b": 1}\n}', {"a": {"b": 1}}, "ellipsis"),
    ('{…, "größe": 1}', {"größe": 1}, "ellipsis"),
    ('{"a": "...", "b": {... "c": 1}}', {"a": "...", "b": {"c": 1}}, "ellipsis"),
]

CASES = [*DOUBLED, *LEFT_OUT, *MISTAKEN, *IN_STRINGS, *DOTS]


@each_case(("text", "value", "warning"), CASES)
def test_the_reading_that_one_bracket_makes_is_taken_and_named(
    text: str, value: Any, warning: str
) -> None:
    parsed = parse_output(text)
    assert (parsed.value, parsed.error) == (value, None), parsed.warnings
    assert any(warning in one for one in parsed.warnings), parsed.warnings
    strict = parse_output(text, strict=True)
    assert strict.error is not None
    assert strict.error.kind == "repaired"


@pytest.mark.parametrize(
    "text", ["see [1], [2]] for x", "{name}, {{age}", "f(x) = {x, y], [z]", "[note: see below}"]
)
def test_brackets_in_prose_are_not_repaired(text: str) -> None:
    value = parse_output(text).value
    assert value is None or value in ([1], [2])


POSITION = {
    "type": "object",
    "properties": {
        "pos": {
            "type": "object",
            "additionalProperties": False,
            "properties": {"lat": {}, "lon": {}},
            "required": ["lat", "lon"],
        }
    },
    "required": ["pos", "note"],
}


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        (
            '{"pos": {"lat": 1, "lon": 2, "note": null}',
            POSITION,
            {"pos": {"lat": 1, "lon": 2}, "note": None},
        ),
        ('[["a", "b"]', "string[]", ["a", "b"]),
        (
            '{"n": 1, "tags": "x"]}',
            {"type": "object", "properties": {"tags": {"type": "array"}}},
            {"n": 1, "tags": ["x"]},
        ),
        (
            '{"n": 1, "roles": {]}',
            {"type": "object", "properties": {"roles": {"type": "array"}}},
            {"n": 1, "roles": []},
        ),
        (
            '{"r": [["a"], "n": 1}',
            {"properties": {"r": {"items": {"type": "array"}}}},
            {"r": [["a"]], "n": 1},
        ),
    ],
)
def test_of_several_readings_with_one_bracket_the_schema_takes_the_one_that_fits(
    text: str, schema: Any, value: Any
) -> None:
    parsed = parse_output(text, schema=schema)
    assert (parsed.value, parsed.error) == (value, None), parsed.warnings
    assert parsed.warnings


def test_a_number_that_may_be_cut_off_is_not_completed_by_a_bracket() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    assert parse_output('{"a": "x", "n": 12', schema=schema).error is not None
    assert parse_output('{"a": {"b": "x", "n": 12', schema=schema).error is not None
    assert parse_output('{"a": "x", "n": 12\n', schema=schema).value == {"a": "x", "n": 12}


def test_no_reading_is_taken_where_none_fits_the_schema() -> None:
    schema = {"type": "object", "properties": {"pos": {"type": "number"}}, "required": ["pos"]}
    error = parse_output('{"pos": {"lat": 1, "lon": 2, "note": null}', schema=schema).error
    assert error is not None
    assert error.kind == "type_mismatch"
