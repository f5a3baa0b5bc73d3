"""`choice` finds the option that an answer chooses, in any of the ways in which answers say it."""

from __future__ import annotations

from typing import Any

import pytest

from evaluator.batch.scorers.choice_scorer import choose
from tests.batch.scorers.scorer_inputs import score
from tests.tables import each_case

OPTIONS = {"A": "Paris", "B": "London", "C": "Rome", "D": "Guinea", "E": "Guinea-Bissau"}


@each_case(
    ("text", "chosen"),
    [
        *(
            (text, "B")
            for text in (
                "B",
                "b",
                "(B)",
                "B.",
                "B)",
                "**B**",
                "`B`",
                "Answer: B",
                "**Answer:** B",
                "The answer is (b).",
                "The answer is:\n\n**(B)**",
                "the best choice is B",
                "I choose B",
                "Option B",
                "Answer is option B",
                "\\boxed{B}",
                "$\\boxed{\\text{B}}$",
                "London",
                "london.",
                "It is London.",
                "B. London",
                "B - London",
                "B) London\n\nA is wrong",
                "(B) is right because (A) is wrong",
                "Answer: B because Paris is not",
                "The correct answer is **B) London**, not Paris.",
                "Answer: A\nNo. Final answer: B",
                "A capital of note is London",
                "I think (B)",
                "A good question. B",
                "I think A is wrong, so B",
                "A is tempting. Therefore, **(B)**.",
                "Is it A? B.",
                "A) is near.\n\nThus B",
                "Hard to say!\n\n**B**\n",
                "It must be B",
                "So it should be B.",
                "B is correct",
                "Option B is the correct answer.",
                "<answer>B</answer>",
                "The answer must be B.",
                "The answer is a city. B",
                "A is correct if it rains. So B",
                "Answer: B, London",
                "B, Paris is too far",
                "A is not correct. B is correct.",
                "Answer: B) London, in the UK",
            )
        ),
        ("Guinea", "D"),
        ("Guinea-Bissau", "E"),
        ("It is Guinea-Bissau, not somewhere else", "E"),
        *(
            (text, None)
            for text in (
                "",
                "Z",
                "Answer: Z",
                "A or B",
                "Answer: A or B",
                "Answer: (A) and (B)",
                "B. Paris",
                "Paris or London",
                "I think so",
                "Answer: Brown",
                "(A) or (B)",
                "A capital question",
                "x" * 100_000,
                "𝐁",
                "B, Paris",
                "Answer: B, Paris",
                "ANSWER: B A",
                "Answer: B (C)",
                "Answer: B (Paris)",
                "It must be a place",
                "Answer: I think so",
                "A\nB",
                "Paris. B",
                "so A or B",
                "A good question. B or C",
                "Vitamin B",
                "Written by J. B.",
                "so b",
            )
        ),
    ],
)
def test_the_chosen_option_is_found(text: str, chosen: str | None) -> None:
    letter, why = choose(text, OPTIONS)
    assert letter == chosen
    assert bool(why) is (chosen is None)


@pytest.mark.parametrize(
    ("target", "inputs", "spec", "passed"),
    [
        ("B", {}, "choice", True),
        ("London", {"options": ["Paris", "London"]}, "choice", True),
        (1, {"choices": ["Paris", "London"]}, "choice", True),
        (0, {"choices": ["Paris", "London"]}, "choice", False),
        ("(B)", {"choices": {"A": "Paris", "B": "London"}}, "choice", True),
        ("B", {}, 'choice:choices=["Paris","London"]', True),
    ],
)
def test_options_come_from_the_argument_or_the_row(
    target: object, inputs: dict[str, Any], spec: str, passed: bool
) -> None:
    given = score(spec, "Answer: B", target, inputs=inputs)
    assert given.error is None and given.passed is passed and given.answer == "B"


@pytest.mark.parametrize(
    ("options", "text", "target", "passed"),
    [
        (["x", "x", "y"], "B", "B", True),
        (["x", "x", "y"], "A", "x", True),
        (["x", "x", "y"], "B. x", "B", True),
        (["x", "x", "y"], "x", "A", False),
        (["us", "US"], "B) US", "B", True),
        (["us", "US"], "US", "US", True),
        (["us", "US"], "us", "US", False),
        (["Paris, France", "London"], "B) Paris, France", "B", False),
        (["Paris, France", "London"], "A) Paris, France", "A", True),
        (["B", "A"], "A", "A", True),
    ],
)
def test_the_letter_decides_and_options_may_be_equal(
    options: list[str], text: str, target: str, passed: bool
) -> None:
    given = score("choice", text, target, inputs={"choices": options})
    assert given.error is None and given.passed is passed


@pytest.mark.parametrize(
    ("text", "target", "exact", "partial"),
    [
        *(
            (text, ["A", "C"], 1.0, 1.0)
            for text in (
                "A, C",
                "AC",
                "A and C",
                "Answer: A, C",
                "Answer: AC.",
                "C\nA",
                "(A), (C)",
                "Paris and Rome",
                "Answer: A, C because of that",
                "\\boxed{A,C}",
                "So: A & C",
            )
        ),
        ("A", ["A", "C"], 0.0, 0.5),
        ("A, B, C", ["A", "C"], 0.0, 2 / 3),
        ("B", ["A", "C"], 0.0, 0.0),
        ("ANSWER: A, C, Z", ["A", "C"], 0.0, 0.0),
        ("A", ["A"], 1.0, 1.0),
        ("Answer: A", [0], 1.0, 1.0),
        ("no idea", ["A"], 0.0, 0.0),
    ],
)
def test_a_list_is_the_set_of_right_options(
    text: str, target: list[Any], exact: float, partial: float
) -> None:
    inputs = {"choices": ["Paris", "London", "Rome"]}
    assert score("choice", text, target, inputs=inputs).value == exact
    given = score("choice:credit=partial", text, target, inputs=inputs)
    assert given.value == pytest.approx(partial) and given.passed is (exact == 1.0)


def test_a_text_of_letters_is_a_set_unless_it_is_an_option() -> None:
    inputs = {"choices": ["Paris", "London", "Rome"]}
    assert score("choice", "ANSWER: C, A", "A, C, ", inputs=inputs).passed
    assert not score("choice", "ANSWER: A", "A, C", inputs=inputs).passed
    assert score("choice", "ANSWER: A", "A, ", inputs=inputs).passed
    assert "not one of the options" in str(
        score("choice", "ANSWER: A", "A, Z", inputs=inputs).error
    )
    assert score("choice", "ANSWER: B", "A, C", inputs={"choices": ["A, B", "A, C"]}).passed
    assert score("choice", "ANSWER: A, C", "AC", inputs=inputs).passed
    assert score("choice", "ANSWER: B", "AC", inputs={"choices": ["DC", "AC", "none"]}).passed
    for target in ("AD", "CA", "AA"):
        assert "not one of the options" in str(
            score("choice", "ANSWER: A", target, inputs=inputs).error
        )


@pytest.mark.parametrize(
    ("target", "text", "options", "passed"),
    [
        ([1, 0, 1], "A, C", 3, True),
        ([1, 0, 1], "A, B", 3, False),
        ([True, False, True], "A, C", 3, True),
        ([0, 1], "B", 2, True),
        ([0, 1], "A, B", 2, False),
        ([0, 1], "A, B", 3, True),
        ([0, 0, 0], "A", 3, False),
    ],
)
def test_a_list_with_a_flag_for_each_option_is_the_set_of_right_options(
    target: list[Any], text: str, options: int, passed: bool
) -> None:
    given = score(
        "choice",
        f"ANSWER: {text}",
        target,
        inputs={"choices": ["Paris", "London", "Rome"][:options]},
    )
    assert given.passed is passed and given.error is None


@pytest.mark.parametrize(
    ("text", "passed"),
    [("ANSWER: B", True), ("B", False), ("so\nAnswer: **B**", True), ("The answer is B", False)],
)
def test_the_strict_reading_is_that_of_inspect(text: str, passed: bool) -> None:
    assert (
        score("choice:strict=inspect", text, "B", inputs={"choices": ["x", "y"]}).passed is passed
    )


@pytest.mark.parametrize("target", ["Madrid", 7, -1, True, "BB", {"a": 1}], ids=repr)
def test_a_target_that_is_not_an_option_is_an_error(target: object) -> None:
    assert score("choice", "B", target, inputs={"choices": ["Paris", "London"]}).error


def test_an_ambiguous_choice_fails_and_names_the_options() -> None:
    given = score("choice", "A or B? Answer: A or B", "B")
    assert given.passed is False and given.explanation == "ambiguous: A, B"
