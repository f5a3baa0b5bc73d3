"""Numbers with units, multipliers and marks of answers; separators and prefixes of other notations; XML as models write it."""

from __future__ import annotations

from typing import Any

import pytest

from evaluator import parse_output

FIELD = {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]}

QUANTITIES = [
    ("−7 °C", -7),
    ("42.2 km", 42.2),
    ("61 years old", 61),
    ("87%", 87),
    ("12 m²", 12),
    ("9.81 m/s^2", 9.81),
    ("1e3 kg", 1000),
    ("5kg", 5),
    ("16GB", 16),
    ("5 mm", 5),
    ("5 m", 5),
    ("CHF 5", 5),
    ("€5 per month", 5),
    ("1.2 million", 1_200_000),
    ("$1.5 billion", 1_500_000_000),
    ("1,234.5 km", 1234.5),
    ("**61 years**", 61),
]


@pytest.mark.parametrize(("text", "number"), QUANTITIES)
def test_a_unit_is_left_out_where_the_schema_asks_for_a_number(text: str, number: float) -> None:
    assert parse_output(text, schema="number").value == number
    field = parse_output(f'{{"x": "{text}"}}', schema=FIELD)
    assert (field.value, field.error) == ({"x": number}, None)
    assert field.warnings


NOT_QUANTITIES = [
    "5k",
    "5 K",
    "3.5 M",
    "$3.5M",
    "$5 m",
    "5m",
    "3rd",
    "10+",
    "8/10",
    "5-10",
    "5 or 6",
    "5 dozen",
    "6 ft 2 in",
    "3 and a half",
    "1,5 km",
    "10:30",
    "5 MM",
    "300 K",
    "5 mio",
    "1 lakh",
    "5²",
    "1.2.3",
    "7 pm",
    "70.6° W",
    "5 below zero",
]


@pytest.mark.parametrize("text", NOT_QUANTITIES)
def test_what_may_change_a_number_is_not_a_unit(text: str) -> None:
    assert parse_output(text, schema="number").error is not None
    assert parse_output(f'{{"x": "{text}"}}', schema=FIELD).error is not None


def test_a_number_with_a_unit_stays_text_where_the_schema_allows_text() -> None:
    assert parse_output('{"x": "5 kg"}').value == {"x": "5 kg"}
    assert parse_output(
        '{"x": "5 kg"}', schema={"properties": {"x": {"type": ["string", "number"]}}}
    ).value == {"x": "5 kg"}


MARKED = [
    ("9 of 81 are lost.\n#### 72", 72),
    ("9 and 81, so there are **72** crates.", 72),
    ("81 - 9\n\n## Answer\n72", 72),
    ("9 + 63\n**Final answer:**\n\n72 crates", 72),
    ("Ans: 72. I took 81.", 72),
    ("81 - 9, Antwort: 72", 72),
    ("9 与 81，答案是72", 72),
    ("Ответ: 72 ящика, было 81", None),
    ("**9** of 81 leave 72", None),
    ("81\n### 1 First\n72", None),
]


@pytest.mark.parametrize(("text", "number"), MARKED)
def test_a_marked_number_is_the_answer(text: str, number: int | None) -> None:
    parsed = parse_output(text, schema="number")
    assert parsed.value == number
    assert (parsed.error is None) == (number is not None)


NOTATIONS: list[tuple[str, Any]] = [
    ("{u'a': u'x', b'b': 1}", {"a": "x", "b": 1}),
    ("[u\"x\", u'y']", ["x", "y"]),
    ("[{u'a': 1}, {u'a': 2}]", [{"a": 1}, {"a": 2}]),
    ('{"a": 1، "b": "x، y"، "c": [1، 2]}', {"a": 1, "b": "x، y", "c": [1, 2]}),
    ('{"a": "x"؛ "b": 2}', {"a": "x", "b": 2}),
    ('{"a"﹕ "x"﹐ "b": 2}', {"a": "x", "b": 2}),
    ("{『a』: 『x』, ‹b›: ‹y›}", {"a": "x", "b": "y"}),
    ("{b: 'x', u: 1}", {"b": "x", "u": 1}),
]


@pytest.mark.parametrize(("text", "value"), NOTATIONS)
def test_notations_of_other_languages_and_scripts_are_read(text: str, value: Any) -> None:
    parsed = parse_output(text)
    assert parsed.value == value
    assert parsed.warnings


XML: list[tuple[str, Any]] = [
    ("<книга год='1'><автор>Л</автор></книга>", {"книга": {"@год": "1", "автор": "Л"}}),
    ("<r><a>7</ a><b>x< / b></r>", {"r": {"a": "7", "b": "x"}}),
    ("```xml\n<a>1</a>\n```\nCorrected:\n```xml\n<a>2</a>\n```", {"a": "2"}),
    ("```xml\n<a>1</a>\n```\nnot <b>x</b>", {"a": "1"}),
    ("<doc>\n```xml\n<a>1</a>\n```\n</doc>", {"doc": {"#text": "```xml\n\n```", "a": "1"}}),
]


@pytest.mark.parametrize(("text", "value"), XML)
def test_xml_of_models_is_read(text: str, value: Any) -> None:
    assert parse_output(text, "xml").value == value


def test_of_two_blocks_of_xml_the_one_that_fits_is_taken() -> None:
    schema = {"type": "object", "required": ["a"]}
    parsed = parse_output(
        "```xml\n<a>1</a>\n```\nas in\n```xml\n<b>2</b>\n```", "xml", schema=schema
    )
    assert parsed.value == {"a": "1"}
    assert "of 2 blocks of XML the one that fits best was taken" in parsed.warnings
