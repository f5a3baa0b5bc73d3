"""XML as a value, type names, and what importing and reading load."""

from __future__ import annotations

import subprocess
import sys

import pytest

from evaluator import UsageError, parse_output
from evaluator.language.scopes import describe, matches, read_typed


def test_xml_is_read_as_elements() -> None:
    parsed = parse_output("<r><a>1</a><b/><b>x</b></r>", type="xml")
    assert (parsed.value, parsed.error) == ({"r": {"a": "1", "b": [None, "x"]}}, None)


def test_xml_that_cannot_be_read_is_one_string_and_an_error_only_with_a_schema() -> None:
    parsed = parse_output("no elements here", type="xml")
    assert parsed.value == "no elements here"
    assert parsed.error is None
    assert any("one string" in warning for warning in parsed.warnings)
    declared = parse_output("no elements here", type="xml", schema="object")
    assert declared.error is not None
    assert declared.error.kind == "xml"


@pytest.mark.parametrize(
    "text",
    [
        "<think><r>no</r></think><r>yes</r>",
        "<r>no</r></thinking>\n<r>yes</r>",
        "<r>yes</r><think>or <r>no</r>",
        "<reasoning>so</reasoning><r>yes</r>",
    ],
)
def test_reasoning_is_not_an_answer_in_xml_either(text: str) -> None:
    parsed = parse_output(text, type="xml")
    assert parsed.value == {"r": "yes"}
    assert any("reasoning" in warning for warning in parsed.warnings)


def test_an_element_called_reasoning_inside_the_answer_is_part_of_it() -> None:
    text = "<r><reasoning>so</reasoning><grade>4</grade></r>"
    schema = {"properties": {"r": {"properties": {"grade": {"type": "integer"}}}}}
    parsed = parse_output(text, type="xml", schema=schema)
    assert parsed.value == {"r": {"reasoning": "so", "grade": 4}}


def test_type_names_mean_the_same_here_as_for_inputs() -> None:
    assert matches(["a"], "string[]")
    assert not matches(True, "number")
    assert describe(None) == "null"
    assert read_typed("4", "integer") == 4
    with pytest.raises(UsageError):
        read_typed("four", "integer")


def test_reading_without_a_schema_loads_no_validator() -> None:
    code = (
        "import sys\nfrom evaluator.output import parse_output\nparse_output(\"{'a': 1}\", schema='object')\n"
        "print([m for m in ('jsonschema', 'pydantic', 'xmlschema', 'litellm', 'aiohttp') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
