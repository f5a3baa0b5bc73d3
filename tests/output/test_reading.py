"""Tables of model outputs and the values that are read from them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from evaluator import parse_output
from tests.tables import each_case

SOUND: list[tuple[str, Any]] = [
    ("null", None),
    ("true", True),
    ("42", 42),
    ("-0.5e3", -500.0),
    ('"x"', "x"),
    ("[]", []),
    ("{}", {}),
    ("3.0", 3.0),
    (' \n{"a": [1, {"b": null}]}\t', {"a": [1, {"b": None}]}),
    (
        '{"a": "// no comment # none, ``` {x} None, <think>y</think> \\u00e9 \\ud83d\\ude00"}',
        {"a": "// no comment # none, ``` {x} None, <think>y</think> é 😀"},
    ),
    ('"<think>a</think>"', "<think>a</think>"),
    ('{"a": "“quoted” and \'single\'", "b,": "x,]"}', {"a": "“quoted” and 'single'", "b,": "x,]"}),
    ('"\\ud800"', "\ud800"),
    ('["$5", "no", "42"]', ["$5", "no", "42"]),
    ("12345678901234567890123", 12345678901234567890123),
]


@pytest.mark.parametrize(("text", "value"), SOUND)
def test_valid_json_is_read_unchanged_and_without_a_warning(text: str, value: Any) -> None:
    parsed = parse_output(text)
    assert (parsed.value, parsed.warnings, parsed.error, parsed.text) == (value, (), None, text)
    assert type(parsed.value) is type(value)


REPAIRED: list[tuple[str, Any, tuple[str, ...]]] = [
    # What stands around
    ('Sure! Here it is: {"a": 1}. Bye.', {"a": 1}, ("around",)),
    ('```json\n{"a": 1}\n```', {"a": 1}, ("fence",)),
    ("Here:\n```\n[1, 2]\n```\nDone.", [1, 2], ("fence", "around")),
    ("```\n42\n```", 42, ("fence",)),
    ('\ufeff{"a": 1}', {"a": 1}, ("byte order mark",)),
    ('{"a": 1}\n\nHope {this} helps [1]!', {"a": 1}, ("around", "fits best")),
    ('As in [1], it is {"a": 2}.', {"a": 2}, ("around", "fits best")),
    ('- [ ] todo\n- [x] done\n{"a": 1}', {"a": 1}, ("around",)),
    ('{{"a": 1}}', {"a": 1}, ("around",)),
    ('{"a": 1} and then {"a": 2}', {"a": 2}, ("around", "last one")),
    (
        '```json\n{"a": 1}\n```\nbetter:\n```json\n{"a": 2}\n```',
        {"a": 2},
        ("fence", "around", "last one"),
    ),
    (
        '```json\n{"a": 1}\n```\n```python\nx = {"b": 2}\n```',
        {"a": 1},
        ("fence", "around", "fits best"),
    ),
    # Reasoning
    ('<think>{"a": 0}</think>{"a": 1}', {"a": 1}, ("reasoning",)),
    ('<thinking>\nhm {"a": 0}\n</thinking>\n\n{"a": 1}', {"a": 1}, ("reasoning",)),
    ('<Reasoning>x</Reasoning> {"a": 1}', {"a": 1}, ("reasoning",)),
    ('well {"a": 0} </think> {"a": 1}', {"a": 1}, ("no opening",)),
    ('{"a": 1} <think> or {"a": 2}?', {"a": 1}, ("never closed",)),
    ("<think>x</think>\n42", 42, ("reasoning",)),
    ('<think>a</think>```json\n{"a": 1}\n```', {"a": 1}, ("reasoning", "fence")),
    ('{"a": "<think>x</think>",}', {"a": "<think>x</think>"}, ("trailing comma",)),
    # Quotes and strings
    ("{'a': 'b'}", {"a": "b"}, ("single quotes",)),
    ("{'a': 'it\\'s'}", {"a": "it's"}, ("single quotes",)),
    ("{'a': 'don't'}", {"a": "don't"}, ("single quotes", "unescaped quotes")),
    ("{“a”: “b”}", {"a": "b"}, ("typographic",)),
    ('{"a": "he said "hi" to me"}', {"a": 'he said "hi" to me'}, ("unescaped quotes",)),
    (
        '{"a": "\\alpha C:\\Program Files \\n"}',
        {"a": "\\alpha C:\\Program Files \n"},
        ("backslash",),
    ),
    ('{"a": "\\users \\u12"}', {"a": "\\users \\u12"}, ("backslash",)),
    ('{"a": "one\ntwo\tthree"}', {"a": "one\ntwo\tthree"}, ("line breaks",)),
    ('{"a": "x,\n"b": 1}', {"a": "x", "b": 1}, ("closing quote",)),
    (
        '{"a": "// kept # kept, None ``` {",}',
        {"a": "// kept # kept, None ``` {"},
        ("trailing comma",),
    ),
    # Commas, colons, brackets
    ('{"a": 1,}', {"a": 1}, ("trailing comma",)),
    ("[1, 2,]", [1, 2], ("trailing comma",)),
    ("[1,, 2]", [1, 2], ("extra commas",)),
    ('{"a": 1 "b": 2}', {"a": 1, "b": 2}, ("missing comma",)),
    ('{"a": "x"\n"b": "y"}', {"a": "x", "b": "y"}, ("missing comma",)),
    ('["a" "b"]', ["a", "b"], ("missing comma",)),
    ('[{"a": 1} {"a": 2}]', [{"a": 1}, {"a": 2}], ("missing comma",)),
    ('{"a": [1, 2}', {"a": [1, 2]}, ("mismatched",)),
    ('{"a": 1\n\nHope this helps', {"a": 1}, ("closing brackets", "around")),
    ('```json\n{"a": "x"\n```', {"a": "x"}, ("closing brackets", "fence")),
    ('{"a" => 1; "b" = 2}', {"a": 1, "b": 2}, ("separators",)),
    # Literals, keys, comments
    (
        "{'a': True, 'b': False, 'c': None}",
        {"a": True, "b": False, "c": None},
        ("single quotes", "literals"),
    ),
    ("True", True, ("literals",)),
    ('{"a": undefined}', {"a": None}, ("literals",)),
    ('{"a": NaN, "b": -Infinity}', {"a": None, "b": None}, ("NaN",)),
    ("{a: 1, b_c: [2]}", {"a": 1, "b_c": [2]}, ("unquoted keys",)),
    ("{1: 'a'}", {"1": "a"}, ("unquoted keys", "single quotes")),
    ('{"a": yes, "b": in part}', {"a": "yes", "b": "in part"}, ("unquoted text",)),
    ('{"a": 1, // one\n /* two */ "b": 2 # three\n}', {"a": 1, "b": 2}, ("comments",)),
    ('{"a": 1, "a": 2}', {"a": 2}, ("more than once",)),
    ("[1, 2, ...]", [1, 2], ("ellipsis",)),
    # Numbers
    (
        '{"a": +1, "b": .5, "c": 1_000, "d": ４２, "e": −3}',
        {"a": 1, "b": 0.5, "c": 1000, "d": 42, "e": -3},
        ("notations",),
    ),
    ('{"a": 1,299.99, "b": 1}', {"a": 1299.99, "b": 1}, ("notations",)),
    ('{"a": 007}', {"a": "007"}, ("unquoted text",)),
    # Cut off
    ('{"a": 1, "b": "hel', {"a": 1, "b": "hel"}, ("cut off",)),
    ('{"a": 1, "b', {"a": 1}, ("cut off",)),
    ('{"a": 1, "b": ', {"a": 1}, ("cut off",)),
    ('{"a": 1, "b": tr', {"a": 1}, ("cut off",)),
    ('{"a": [1, 2, 13', {"a": [1, 2]}, ("may be incomplete",)),
    ('{"a": [1, 2, 13 ', {"a": [1, 2, 13]}, ("cut off",)),
    ('{"a": [{"b": "c\\', {"a": [{"b": "c"}]}, ("cut off",)),
    ('{"a": "\\u00', {"a": ""}, ("cut off",)),
    ('```json\n{"a": [1, 2], "b": {"c": "d', {"a": [1, 2], "b": {"c": "d"}}, ("cut off", "fence")),
    ('["one", "two", "thr', ["one", "two", "thr"], ("cut off",)),
]


@each_case(("text", "value", "fragments"), REPAIRED)
def test_each_kind_of_repair_is_read_and_named(
    text: str, value: Any, fragments: tuple[str, ...]
) -> None:
    parsed = parse_output(text)
    assert parsed.error is None
    assert parsed.value == value
    assert type(parsed.value) is type(value)
    for fragment in fragments:
        assert sum(fragment in warning for warning in parsed.warnings) >= 1, (
            fragment,
            parsed.warnings,
        )
    assert len(parsed.warnings) == len(set(parsed.warnings)) == len(fragments), parsed.warnings
    assert parsed.text == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  ",
        "hello",
        "see [below] and {here}",
        "{x | x > 0}",
        "\\boxed{42}",
        '<think>{"a": 1}',
        "[see the note",
        "{",
        "[",
        "a [b](http://c) d",
        "{name} is {age}",
        '"One" and "two"',
        '"Yes" is the word.',
        "'tis so",
        "NaN, sadly",
        '<think>{"a": 1}</think>',
        '{"a": ? ? "x" {"b": 1}}',
    ],
)
def test_text_without_json_is_kept_with_the_reason_and_is_an_error_only_with_a_schema(
    text: str,
) -> None:
    parsed = parse_output(text)
    assert parsed.value is None
    assert parsed.error is None
    assert any("JSON" in warning or "empty" in warning for warning in parsed.warnings)
    assert parsed.text == text
    declared = parse_output(text, schema="object")
    assert declared.value is None
    assert declared.error is not None
    assert declared.error.kind == "no_json"
    assert declared.text == text


def test_numbers_that_are_too_large_stay_text_and_never_count_as_numbers() -> None:
    for digits in ("1" * 5000, "1e999", "-1e400"):
        parsed = parse_output(f'{{"a": {digits}}}')
        assert parsed.value == {"a": digits}
        assert any("too large" in warning for warning in parsed.warnings)
        assert parse_output(digits, schema="number").error is not None
        assert json.dumps(parsed.value, allow_nan=False)


def test_text_output_is_the_text_whatever_it_contains() -> None:
    text = '<think>x</think>{"a": 1}'
    parsed = parse_output(text, type="text")
    assert (parsed.value, parsed.warnings, parsed.error) == (text, (), None)
    assert parse_output(text, type="text", schema="string").warnings == ()
    assert "no effect" in parse_output(text, type="text", schema="number").warnings[0]
