"""What a sentence calls wrong, an example or a reference is not the answer."""

from __future__ import annotations

from typing import Any

import pytest

from evaluator import parse_output

WORDS = {"enum": ["positive", "negative"]}


@pytest.mark.parametrize(
    "text",
    [
        'Answer: {"n": 1}\nExample of a wrong answer: {"n": 9}',
        'Answer: {"n": 1}\nWrong answer:\n```json\n{"n": 9}\n```',
        '{"n": 1}\n\nFor reference, the input was {"n": 9}',
        '{"n": 1}. For example, {"n": 9} has another shape.',
        '{"n": 1}. With more rows it would be {"n": 9}',
        '{"n": 1}\n{"n": 9} would be wrong.',
    ],
)
@pytest.mark.parametrize("schema", [None, "object"])
def test_a_block_that_its_sentence_calls_no_answer_is_weak(text: str, schema: Any) -> None:
    assert parse_output(text, schema=schema).value == {"n": 1}


@pytest.mark.parametrize(
    "text",
    [
        'Draft: {"n": 9}\nAnswer: {"n": 1}',
        'Wrong: {"n": 9}. Correct: {"n": 1}',
        'Not the wrong one, {"n": 9}, but the right one: {"n": 1}',
        '{"n": 9}\nI was wrong. Answer: {"n": 1}',
        '{"n": 9} The correct answer would be {"n": 1}',
        'Example of a wrong answer: {"n": 1}',
    ],
)
@pytest.mark.parametrize("schema", [None, "object"])
def test_the_last_other_block_is_the_answer(text: str, schema: Any) -> None:
    assert parse_output(text, schema=schema).value == {"n": 1}


@pytest.mark.parametrize(
    ("text", "schema"),
    [
        ("It is far from positive", WORDS),
        ("the opposite of positive", WORDS),
        ("hardly positive", WORDS),
        ("anything but positive", WORDS),
        ("42 is not the answer", "number"),
        ("The answer is not 42", "number"),
        ("It isn't 42.", "integer"),
        ("**42** is wrong", "number"),
    ],
)
def test_a_denied_answer_is_refused(text: str, schema: Any) -> None:
    parsed = parse_output(text, schema=schema)
    assert parsed.value is None
    assert parsed.error is not None


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("It is clearly positive", WORDS, "positive"),
        ("42 is the answer", "number", 42),
        ("The sum is 42, which is not bad", "number", 42),
        ("I am not sure, but it is 42", "number", 42),
    ],
)
def test_a_negation_elsewhere_denies_nothing(text: str, schema: Any, value: Any) -> None:
    assert parse_output(text, schema=schema).value == value
