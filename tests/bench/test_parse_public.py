"""The measure on other parsers' tests extracts pairs from each form of test file, and prints no case."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[2] / "bench"

PYTHON = """
def check(raw, expected):
    assert repair_json(raw, return_objects=True) == expected

def test_plain():
    assert repair_json("{'a': 1") == '{"a": 1}'
    assert (repair_json("hello", ) == "")
    check("[1", [1])
    raw = "[" + "2," * 2
    assert repair_json(raw, skip_json_loads=True, return_objects=True) == [2, 2]
    value, log = repair_json("{b: 1}", logging=True)
    assert value == {"b": 1}

@pytest.mark.parametrize("raw, expected", [("{c", {"c": 1}), ("{d", {"d": 1})])
def test_table(raw, expected):
    check(raw, expected)

def test_items():
    parsed = json.loads(extract_json_from_codeblock("```{e: {f: 5}}```"))
    assert parsed["e"]["f"] == 5
    assert len(parsed) == 1

def test_parts():
    assert fix('["g') == fix_fast('["g') == ('["g', '"]')

def test_schema():
    schema = {"type": "object"}
    assert repair_json("{h: 1}", schema=schema, return_objects=True) == {"h": 1}

def test_left_out():
    with pytest.raises(ValueError):
        repair_json("{", strict=True)
    assert repair_json("[3", stream_stable=True) == "[3]"
    assert repair_json(unknown()) == "[4]"
    assert repair_json("[5") == "[5"
"""
PYTHON_PAIRS = [
    ("{'a': 1", None, {(): {"a": 1}}),
    ("hello", None, {(): "<no value>"}),
    ("[1", None, {(): [1]}),
    ("[2,2,", None, {(): [2, 2]}),
    ("{b: 1}", None, {(): {"b": 1}}),
    ("{c", None, {(): {"c": 1}}),
    ("{d", None, {(): {"d": 1}}),
    ("```{e: {f: 5}}```", None, {("e", "f"): 5}),
    ('["g', None, {(): ["g"]}),
    ("{h: 1}", {"type": "object"}, {(): {"h": 1}}),
]
TYPESCRIPT = r"""
describe.each(all)('all', ({ jsonrepair }) => {
  test('a', () => {
    expect(jsonrepair('{a:\'x\'}')).toBe('{"a":"x"}') // expect(jsonrepair('no')).toBe('no')
    expect(jsonrepair("[\u0041" + ',2'), 'why').toEqual(`["A",2]`)
    const text = '(' + '1)'
    const expected = '1'
    expect(jsonrepair(text)).toBe(expected)
    assertRepair('{"b":2}')
    expect(() => { console.log({ output: jsonrepair('{') }) }).toThrow(new JSONRepairError('end', 1))
    expect(jsonrepair(`[${text}`)).toBe('[1]')
    expect(jsonrepair('[7')).toBe('[7')
  })
})
function assertRepair(text: string) {
  expect(jsonrepair(text)).toEqual(text)
}
"""
TYPESCRIPT_PAIRS = [
    ("{a:'x'}", None, {(): {"a": "x"}}),
    ("[A,2", None, {(): ["A", 2]}),
    ("(1)", None, {(): 1}),
    ('{"b":2}', None, {(): {"b": 2}}),
]
RUST = r"""
const FILE: &str = r#"
class Item {
  name string @description("{the} name")
  kinds (Kind | "other")[]  // a comment
  count int?
  sums map<string, int>
}
enum Kind { ONE TWO }
"#;
const RENAMED: &str = r#"class Item { name string @alias("title") }"#;
test_deserializer!(a, FILE, r#"{name: "x""#, FieldType::class("Item").as_list(), [{"name": "x", "count": null},]);
test_deserializer!(b, "", " 1. ".trim(), baml_types::FieldType::Union(vec![FieldType::Literal(LiteralValue::Int(-1)),
    FieldType::map(FieldType::string(), FieldType::Primitive(TypeValue::Int).into())]), json!({"k": 1.}));
test_deserializer!(c, RENAMED, "{", FieldType::Class("Item".to_string()), {"name": "x"});
test_deserializer!(d, FILE, "{", made(), 1);
test_failing_deserializer!(e, FILE, "{", FieldType::int());
"""
ITEM = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "kinds": {
            "type": "array",
            "items": {"anyOf": [{"$ref": "#/$defs/Kind"}, {"const": "other"}]},
        },
        "count": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "sums": {"type": "object", "additionalProperties": {"type": "integer"}},
    },
    "required": ["name", "kinds", "sums"],
}
RUST_PAIRS = [
    (
        '{name: "x"',
        {
            "type": "array",
            "items": {"$ref": "#/$defs/Item"},
            "$defs": {"Item": ITEM, "Kind": {"enum": ["ONE", "TWO"]}},
        },
        {(): [{"name": "x", "count": None}]},
    ),
    (
        "1.",
        {"anyOf": [{"const": -1}, {"type": "object", "additionalProperties": {"type": "integer"}}]},
        {(): {"k": 1.0}},
    ),
]
LEFT_OUT = {
    ".py": {
        "expects an error": 1,
        "option changes what is read": 1,
        "not extracted": 1,
        "expected value is not JSON": 1,
    },
    ".ts": {"expects an error": 1, "not extracted": 1, "expected value is not JSON": 1},
    ".rs": {"expects an error": 1, "type that JSON Schema cannot say": 1, "not extracted": 1},
}


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    return import_module


@pytest.mark.parametrize(
    ("suffix", "source", "pairs"),
    [
        (".py", PYTHON, PYTHON_PAIRS),
        (".ts", TYPESCRIPT, TYPESCRIPT_PAIRS),
        (".rs", RUST, RUST_PAIRS),
    ],
)
def test_pairs_are_extracted_and_the_rest_is_counted(
    bench: Any, suffix: str, source: str, pairs: list[Any]
) -> None:
    extract = bench("parse_sets").extract_of({Path("tests" + suffix): source})
    assert [(pair.text, pair.schema, pair.checks) for pair in extract.pairs.values()] == pairs
    assert {
        what: count for what, count in extract.calls.items() if what != "extracted"
    } == LEFT_OUT[suffix]


@pytest.mark.parametrize(
    ("checks", "partial", "found", "right"),
    [
        ({(): 1}, False, (True, 1.0), True),
        ({(): 1}, False, (True, True), False),
        ({(): [1]}, False, (False, None), False),
        ({("a", 0): 1}, False, (True, {"a": [1], "b": 2}), True),
        ({("a", 0): 1}, False, (True, {"a": []}), False),
        ({(): "<no value>"}, False, (False, None), True),
        ({(): "<no value>"}, False, (True, ""), True),
        ({(): "<no value>"}, False, (True, []), False),
        ({(): "{x"}, False, (False, None), True),
        ({(): {"a": None}}, True, (True, {"b": 2}), True),
        ({(): {"a": None}}, False, (True, {}), False),
        ({(): [{"a": 1}]}, True, (True, [{"a": 1, "b": 2}]), True),
        ({(): [{"a": 1}]}, True, (True, [{"a": 1}, {}]), False),
    ],
)
def test_what_counts_as_right(
    bench: Any, checks: Any, partial: bool, found: Any, right: bool
) -> None:
    pair = bench("parse_pairs").Pair("{x", None, checks, partial)
    assert bench("parse_public").right(pair, found) is right


def test_only_counts_are_printed(
    bench: Any, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "jsonrepair" / "src" / "index.test.ts"
    file.parent.mkdir(parents=True)
    file.write_text("""
        expect(jsonrepair('{zebra: 1,}')).toBe('{"zebra":1}')
        expect(jsonrepair('[zebra: 1,')).toBe('["never"]')
        assertRepair('{"zebra":2}')
    """)
    monkeypatch.setattr(sys, "argv", ["parse_public.py", "--data", str(tmp_path), "--types"])
    bench("parse_public").main()
    out = capsys.readouterr().out
    assert (
        "| jsonrepair, broken | 2 | 1 (50.0%) |" in out
        and "| jsonrepair, valid | 1 | 1 (100.0%) |" in out
    )
    assert "1 jsonrepair, broken: " in out
    assert "zebra" not in out and "never" not in out
