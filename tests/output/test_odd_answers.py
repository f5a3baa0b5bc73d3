"""The tables of answers that models could write, and the few that it does not read."""

from __future__ import annotations

from typing import Any

import answers_blind_1 as first
import answers_blind_2 as second
import answers_blind_3 as third
import answers_blind_4 as fourth
import answers_blind_5 as fifth
import answers_blind_6 as sixth

from evaluator import parse_output
from tests.tables import each_case

NOT_READ = (
    '{**"a"**: 1, **"b"**: 2}',
    '{"color": <Color.RED: \'red\'>, "n": 1}',
    '{"a" : 1 , "b" ; 2}',
)
"""Texts of the tables that are not read as a person does."""
UNCHANGED = "12.0"
"""Valid JSON, which stays as it is: a float that is equal to the integer of the table."""

TABLES = (first, second, third, fourth, fifth, sixth)
PLAIN = [(text, None, value) for table in TABLES for text, value in table.PLAIN]
TYPED = [case for table in TABLES for case in table.TYPED]


@each_case(
    ("text", "schema", "value"), [case for case in (*PLAIN, *TYPED) if case[0] not in NOT_READ]
)
def test_an_answer_is_read_as_a_person_reads_it(text: str, schema: Any, value: Any) -> None:
    parsed = parse_output(text, schema=schema)
    assert (parsed.value, parsed.error) == (value, None), parsed.warnings
    assert type(parsed.value) is (float if text == UNCHANGED else type(value))


@each_case(("text", "value"), [case for table in TABLES for case in table.XML])
def test_elements_are_read_as_a_person_reads_them(text: str, value: Any) -> None:
    parsed = parse_output(text, "xml")
    assert (parsed.value, parsed.error) == (value, None), parsed.warnings


@each_case(("text", "schema"), [case for table in TABLES for case in table.REFUSED])
def test_an_answer_without_a_reading_is_refused(text: str, schema: Any) -> None:
    parsed = parse_output(text, schema=schema)
    assert parsed.error is not None, parsed.value


MARKED = [
    ('{"a": ("x" "y")}', "parentheses around a value"),
    ('[\n- "a"\n- "b"\n]', "marks of list items"),
    ('{"a": ("x", "y")}', "tuples and sets"),
    ('{"a": "x"\n "y"}', "one after the other"),
    ('[{"a": 1}, "a": 2}]', "missing opening bracket"),
    ('{{"a": {{"b": 1}}}}', "escaped once too often"),
    ('{"a": ［1］}', "full-width brackets"),
    ('{"c": #fff}', "unquoted text"),
    ("007", "unquoted text"),
    ("9" * 5000, "too large"),
]


@each_case(("text", "warning"), MARKED)
def test_each_repair_has_a_warning(text: str, warning: str) -> None:
    assert any(warning in one for one in parse_output(text).warnings)


def test_text_with_dots_or_powers_stays_text_without_a_schema() -> None:
    parsed = parse_output('{"ip": 192.168.100.200, "n": 1.000.000, "p": 3*10^4}')
    assert parsed.value == {"ip": "192.168.100.200", "n": "1.000.000", "p": "3*10^4"}


def test_a_string_with_quotes_over_several_lines_is_not_two_strings() -> None:
    parsed = parse_output('{"md": "- "one"\n "two", and more", "n": 1}')
    assert parsed.value == {"md": '- "one"\n "two", and more', "n": 1}


def test_a_path_that_ends_with_a_backslash_has_no_escapes() -> None:
    parsed = parse_output('{"t": "C:\\temp\\new\\", "u": "a"}')
    assert parsed.value == {"t": "C:\\temp\\new\\", "u": "a"}
    assert parsed.warnings == ("invalid escapes were kept with their backslash",)


def test_an_address_is_not_a_number_with_groups() -> None:
    assert parse_output("192.168.100.200", schema="integer").error is not None
    assert parse_output("1.000.000.000", schema="integer").value == 1_000_000_000


def test_attributes_with_quotes_inside_are_reported() -> None:
    parsed = parse_output('<a b="say "hi"" c="d"/>', "xml")
    assert parsed.value == {"a": {"@b": 'say "hi"', "@c": "d"}}
    assert any("quotes inside its quotes" in warning for warning in parsed.warnings)
