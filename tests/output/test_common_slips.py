"""Common slips of models in lists and numbers: each is read, with the warning that names it."""

from __future__ import annotations

from typing import Any

import pytest

from evaluator import parse_output
from evaluator.output.result import MESSAGES

ROW = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
}
ROWS = {"type": "array", "items": ROW}
NULLABLE = {"type": ["number", "null"]}


@pytest.mark.parametrize(
    ("text", "schema", "value", "kind"),
    [
        ('[{"a": 1, "b": 2}, {"a": 1', ROWS, [{"a": 1, "b": 2}], "cut_item"),
        (
            '{"rows": [{"a": 1, "b": 2}, {"a": 3, "b"',
            {"type": "object", "properties": {"rows": ROWS}},
            {"rows": [{"a": 1, "b": 2}]},
            "cut_item",
        ),
        ("(1, 2)", None, [1, 2], "tuple"),
        ("(1, 2.5)", "number[]", [1, 2.5], "tuple"),
        ("[1, 2)", "number[]", [1, 2], "mismatched"),
        (
            '["a", https://x.org/a?b=1, "c"]',
            None,
            ["a", "https://x.org/a?b=1", "c"],
            "unquoted_text",
        ),
        (
            "[https://x.org, http://y.org/z]",
            "string[]",
            ["https://x.org", "http://y.org/z"],
            "unquoted_text",
        ),
        ("[\nred\nlight green\n]", None, ["red", "light green"], "missing_comma"),
        (
            "[\n  red,\n  it's blue\n  green\n]",
            "string[]",
            ["red", "it's blue", "green"],
            "unquoted_text",
        ),
        ('{"a": 1, "b": [\nred\nblue\n]}', None, {"a": 1, "b": ["red", "blue"]}, "missing_comma"),
        ("red, green, blue", "string[]", ["red", "green", "blue"], "list"),
        ("2.5 million", "number", 2_500_000, "multiplier"),
    ],
)
def test_a_slip_is_read_with_its_warning(text: str, schema: Any, value: Any, kind: str) -> None:
    parsed = parse_output(text, schema=schema)
    assert parsed.error is None
    assert parsed.value == value
    assert MESSAGES[kind] in parsed.warnings


@pytest.mark.parametrize("written", ["N/A", "n/a", "-", "–", "null", "None."])
def test_a_text_without_a_value_is_null_where_the_schema_allows_it(written: str) -> None:
    parsed = parse_output(written, schema=NULLABLE)
    assert parsed.error is None
    assert parsed.value is None
    inside = parse_output(
        f'{{"a": "{written}"}}', schema={"type": "object", "properties": {"a": NULLABLE}}
    )
    assert inside.value == {"a": None}
    assert len(inside.warnings) == 1
    assert parse_output(written, schema="number").error is not None


@pytest.mark.parametrize(
    ("text", "schema"),
    [
        ('[{"a": 1', ROWS),
        ('[{"a": 1, "b": 2}, {"a": 1}]', ROWS),
        ("See (1, 2) there", None),
        ("Sorry, no, I cannot", "string[]"),
        ("I like red, green, blue", "string[]"),
        ("red, green", "string[]"),
        ("[0, 1) is the range", "number[]"),
        ("[note\nsee below]", None),
        ("[\nThis is the first.\nThis is the second\n]", "string[]"),
        ("[\n- red\n- blue\n]", "string[]"),
    ],
)
def test_what_may_mean_something_else_is_refused(text: str, schema: Any) -> None:
    parsed = parse_output(text, schema=schema)
    assert parsed.value is None
    assert parsed.error is not None or "no JSON" in parsed.warnings[-1]
