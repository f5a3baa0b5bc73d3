"""Answers that name one of the words that a schema allows, and answers that name two or none."""

from __future__ import annotations

from typing import Any

import pytest

from evaluator import parse_output
from tests.tables import each_case

LETTER: dict[str, Any] = {"type": "string", "enum": ["A", "B", "C", "D"]}
MOOD: dict[str, Any] = {"type": "string", "enum": ["positive", "negative", "neutral"]}
NUMBER: dict[str, Any] = {"type": "string", "enum": ["1", "2", "3"]}
KIND: dict[str, Any] = {"enum": ["billing", "technical", "sales lead"]}
FEEDBACK: dict[str, Any] = {"type": "object", "properties": {"mood": MOOD}, "required": ["mood"]}


def field(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {"v": schema}, "required": ["v"]}


SEVERAL = [
    ("ANSWER: A, B", LETTER),
    ("Answer: A,B", LETTER),
    ("Answer: A; B", LETTER),
    ("Answer: A/B", LETTER),
    ("Answer: A / B", LETTER),
    ("Answer: A & C", LETTER),
    ("Answer: A + C", LETTER),
    ("Answer: A | C", LETTER),
    ("Answer: A-C", LETTER),
    ("Answer: A B", LETTER),
    ("Answer: A or B", LETTER),
    ("Answer: A and B", LETTER),
    ("Answer: A, or B", LETTER),
    ("Answer: A (or B)", LETTER),
    ("Answer: A or possibly B", LETTER),
    ("Answer: A, but also B", LETTER),
    ("Answer: A as well as B", LETTER),
    ("Answer: A, B and C", LETTER),
    ("Answer: A, B, C", LETTER),
    ("Answer: both A and B", LETTER),
    ("Answer: either A or B", LETTER),
    ("Answer: **A** and **B**", LETTER),
    ("Answer: (A), (B)", LETTER),
    ("Answer: A) and B)", LETTER),
    ("Answer: A for the first part and B for the second", LETTER),
    ("Answer:\nA\nB", LETTER),
    ("Answer: A\nB", LETTER),
    ("Answer: A or E", LETTER),
    ("Answer: A, E", LETTER),
    ("Answer: A. B.", LETTER),
    ("Answer: A. Also B is right.", LETTER),
    ("Answer: B, possibly C is right too", LETTER),
    ("Both A and E", LETTER),
    ("Answer: A... no, B", LETTER),
    ("Answer: A, no wait, B", LETTER),
    ("Answer: A. Actually, B.", LETTER),
    ("Answer: A\n\nWait, actually B.", LETTER),
    ("Answer: A\nAnswer: B", LETTER),
    ("<answer>A</answer>\n<answer>B</answer>", LETTER),
    ("Answer: A first, B second", LETTER),
    ("1. positive\n2. negative", MOOD),
    ("Answer: 2, 4", NUMBER),
    ("Answer: 2 or 4", NUMBER),
    ("Answer: 1 and 3", NUMBER),
    ("2-4", NUMBER),
    ("Answer: 3\nAnswer: 5", "integer"),
    ("A, B", LETTER),
    ("A or B", LETTER),
    ("A/B", LETTER),
    ("both A and B", LETTER),
    ("A; B", LETTER),
    ("A\nB", LETTER),
    ("The answer is A or B.", LETTER),
    ("The answer is A, B.", LETTER),
    ("The answer is E or A.", LETTER),
    (r"\boxed{A} and \boxed{B}", LETTER),
    (r"\boxed{A, B}", LETTER),
    ("Antwort: A oder B", LETTER),
    ("<answer>A, B</answer>", LETTER),
    ("Sentiment: positive, negative", MOOD),
    ("Sentiment: positive/neutral", MOOD),
    ("Result: neutral to negative", MOOD),
    ("Result: positive, mixed or neutral", MOOD),
    ("positive or mixed", MOOD),
    ("Mixed or positive.", MOOD),
    ("Positive: negative", MOOD),
    ("Not fitting: positive", MOOD),
    ("Result: billing; technical", KIND),
    ("Result: billing, sales lead", KIND),
    ('{"v": "A, B"}', field(LETTER)),
    ('{"v": "Answer: A, B"}', field(LETTER)),
    ('{"v": "Not: A"}', field(LETTER)),
    ('{"v": "A: B"}', field(LETTER)),
    (r"$x = \boxed{3}$ or $x = \boxed{5}$", "integer"),
    ("Answer: 3, 4", "integer"),
    ("Answer: 3 or 4", "integer"),
    ("Answer: yes, no", "boolean"),
    ("Yes and no.", "boolean"),
    ("Yes, and no.", "boolean"),
    ("Answer: yes / no", "boolean"),
]


@each_case(("text", "schema"), SEVERAL)
def test_an_answer_that_names_several_values_is_refused(text: str, schema: Any) -> None:
    parsed = parse_output(text, schema=schema)
    assert parsed.error is not None, parsed.value


ONE = [
    ("Answer: A", LETTER, "A"),
    ("Answer: A.", LETTER, "A"),
    ("Answer: A) Paris and London", LETTER, "A"),
    ("Answer: A, because B is wrong", LETTER, "A"),
    ("Answer: C (B is wrong)", LETTER, "C"),
    ("Answer: A. B and C are wrong.", LETTER, "A"),
    ("Answer: A, not B", LETTER, "A"),
    ("Answer: A, since B and C are wrong", LETTER, "A"),
    ("Answer: D rather than B or C", LETTER, "D"),
    ("Answer: B, a river", LETTER, "B"),
    ("Answer: B. I think so.", LETTER, "B"),
    ("Answer: C - the third one", LETTER, "C"),
    ("Options:\nA\nB\nC\nAnswer: B", LETTER, "B"),
    ("Answer: A\n\nReason: A is the only prime.", LETTER, "A"),
    ("Answer: B\nB", LETTER, "B"),
    ("The answer is A, I think.", LETTER, "A"),
    (r"\boxed{A} so \boxed{A}", LETTER, "A"),
    (r"$\boxed{B}$, $\boxed{B}$", LETTER, "B"),
    ("The review is positive and warm.", MOOD, "positive"),
    ("Sentiment: **Positive**.", MOOD, "positive"),
    ('{"mood": "Mood: Positive."}', FEEDBACK, {"mood": "positive"}),
    ('{"mood": "Label: **neutral**"}', FEEDBACK, {"mood": "neutral"}),
    (r"\boxed{3}", "integer", 3),
    ("Answer: 2", NUMBER, "2"),
    ("Answer: 2 (5 people agree)", NUMBER, "2"),
    ("Answer: A\n\nOption B is actually a city.", LETTER, "A"),
    ("Answer: A\n\nI checked it again.\n\nFinal answer: B", LETTER, "B"),
    ("<answer>A</answer> That forgets the tax. <answer>B</answer>", LETTER, "B"),
    ("Answer: 3\nThat is 3 + 2 more.\nAnswer: 5", "integer", 5),
    ("Total: 3 + 2\nTotal: 5", "integer", 5),
    ("Yes. No further step is needed.", "boolean", True),
    ("No, no, that is wrong.", "boolean", False),
]
UNIONS = [
    {"anyOf": [{"enum": ["open", "closed"]}, {"enum": ["missing"]}]},
    {"oneOf": [{"const": "open"}, {"const": "closed"}, {"type": "null"}]},
    {
        "anyOf": [
            {"anyOf": [{"const": "open"}, {"const": "missing"}]},
            {"type": "string", "enum": ["closed"]},
        ]
    },
    {"type": ["string", "null"], "enum": ["open", "closed", None]},
    {"anyOf": [{"enum": ["closed"]}, {"type": "null"}]},
    {"anyOf": [{"$ref": "#/properties/w"}, {"const": "open"}]},
]


@pytest.mark.parametrize(("text", "schema", "value"), ONE)
def test_an_answer_that_names_one_value_is_read(text: str, schema: Any, value: Any) -> None:
    parsed = parse_output(text, schema=schema)
    assert (parsed.value, parsed.error) == (value, None)


@pytest.mark.parametrize("union", UNIONS)
def test_words_of_all_alternatives_are_found(union: dict[str, Any]) -> None:
    schema = {
        "type": "object",
        "properties": {"v": union, "w": {"enum": ["closed", "shut"]}},
        "required": ["v"],
    }
    assert parse_output('{"v": "Closed."}', schema=schema).value == {"v": "closed"}
    assert parse_output('{"v": "Ajar"}', schema=schema).error is not None


def test_a_word_is_not_looked_for_where_an_alternative_allows_any_text() -> None:
    short = {"anyOf": [{"enum": ["open", "closed"]}, {"type": "string", "maxLength": 3}]}
    assert parse_output('{"v": "Closed"}', schema=field(short)).error is not None


def test_a_union_that_contains_itself_has_no_words() -> None:
    node = {"anyOf": [{"$ref": "#/$defs/n"}, {"enum": ["a"]}, {"enum": ["b"]}]}
    assert parse_output('"A"', schema={"$defs": {"n": node}, "$ref": "#/$defs/n"}).error is not None
