"""Valid escapes that nobody meant keep their backslash, with a warning; others are decoded."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator import parse_output
from evaluator.output.result import MESSAGES

UNMEANT = [
    r"\frac{1}{2}",
    r"\boxed{42}",
    r"2 \times 3",
    r"\theta",
    r"\beta + \nabla f",
    r"x \to \infty",
    r"a \ne b \cdot \tau",
    r"\text{if } x \neq \frac12",
    r"\bword\b",
    r"C:\temp\notes.txt",
    r"see D:\backup\file.bin, then go on",
    r"C:\Users\name\temp",
    r"..\tests\new_one.py",
    "\\rho\\u0020",
]
MEANT = [
    r"tab\there, line\nend, \r\n",
    r"x \to y",
    r"A:\nYes\nB:\nNo",
    r"case x:\n\treturn 1",
    r"else:\n\tto = 1\n\ttan = 2",
    r"a.\nb.\tc",
    r"\\frac{1}{2} and \\theta",
    r"C:\\temp\\notes.txt",
    r"\b\f \t",
    r"\u000crac",
    r".\u001f",
]


def _plain(raw: str) -> str:
    return raw.replace("\\u0020", " ")


@pytest.mark.parametrize("raw", UNMEANT)
def test_an_escape_that_nobody_meant_keeps_its_backslash(raw: str) -> None:
    for text, value in (
        (f'{{"a": "{raw}"}}', {"a": _plain(raw)}),
        (f'"{raw}"', _plain(raw)),
        (f'Here:\n```json\n[{{"{raw}": 1}}, "a\\tb"]\n```', [{_plain(raw): 1}, "a\tb"]),
        (f"{{'a': '{raw}',}}", {"a": _plain(raw)}),
    ):
        parsed = parse_output(text)
        assert parsed.value == value
        assert {MESSAGES["escape"], MESSAGES["literal_escape"]} & set(parsed.warnings)


@pytest.mark.parametrize("raw", MEANT)
def test_an_escape_that_may_be_meant_is_decoded_without_a_warning(raw: str) -> None:
    text = f'{{"a": "{raw}"}}'
    parsed = parse_output(text)
    assert parsed.value == json.loads(text)
    assert parsed.warnings == ()
    assert parse_output(f"{text[:-1]},}}").value == json.loads(text)


@pytest.mark.parametrize("raw", [*UNMEANT, *MEANT])
def test_strict_reads_valid_json_as_it_is(raw: str) -> None:
    text = f'{{"a": "{raw}"}}'
    parsed = parse_output(text, strict=True)
    try:
        assert parsed.value == json.loads(text)
    except json.JSONDecodeError:
        assert parsed.error is not None
        assert parsed.error.kind == "repaired"


def test_the_end_of_a_row_of_a_matrix_keeps_both_backslashes() -> None:
    raw = r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}"
    assert parse_output(f'{{"a": "{raw}"}}').value == {"a": raw}
    assert parse_output(r'{"a": "C:\\temp\\ is empty"}').value == {"a": "C:\\temp\\ is empty"}


def test_keys_that_are_equal_only_as_commands_have_a_warning() -> None:
    parsed = parse_output(r'{"\theta": 1, "\\theta": 2}')
    assert parsed.value == {r"\theta": 2}
    assert MESSAGES["duplicate"] in parsed.warnings


@given(st.lists(st.sampled_from([*UNMEANT, *MEANT, "\\", '\\"', " ", "a", "\\n", "\\\\"])))
def test_a_string_is_read_as_it_is_or_with_a_warning(parts: list[str]) -> None:
    text = f'["{"".join(parts)}"]'
    try:
        plain = json.loads(text)[0]
    except json.JSONDecodeError:
        return
    parsed = parse_output(text)
    assert (parsed.value == [plain]) == (parsed.warnings == ())
