"""`math` decides equality as the references of MATH do, in a child process with bounded time."""

from __future__ import annotations

import asyncio
import importlib.util
from typing import Any

import pytest

from evaluator import MissingExtra
from evaluator.batch.scorers import make_scorer, math_scorer, run_scorer
from evaluator.batch.scorers.math_scorer import boxed, final_answer, normal
from tests.batch.scorers.scorer_inputs import score, seen

needs_extra = pytest.mark.skipif(
    importlib.util.find_spec("math_verify") is None, reason="needs math-verify"
)

CASES = [
    (r"\frac{3}{4}", "0.75", True),
    (r"\frac{3}{4}", r"\boxed{3/4}", True),
    (r"(-\infty, 2]", r"so $(-\infty,2]$.", True),
    (r"6\pi", r"Thus \boxed{x = 6 \pi}", True),
    (r"6\pi", "18.85", False),
    (r"90^\circ", "The answer is $90$.", True),
    (r"\text{even}", "Even", True),
    ("(1,2)", r"\left( 1, 2 \right)", True),
    ("(1,2)", "(2,1)", False),
    ("[2,5)", "(2,5)", False),
    (r"5\text{ cm}", "5", True),
    (r"\{1,2\}", r"\{2,1\}", True),
    (r"10\%", "10", True),
    (r"\$18.90", "18.90", True),
    (r"\sqrt{18}", r"3\sqrt{2}", True),
    ("x^2+2x+1", "$(x+1)^2$", True),
    ("1000", "Answer: 1,000", True),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"$\begin{pmatrix} 1 \\ 2 \end{pmatrix}$", True),
    ("2516_8", "2516", False),
    ("2516_8", "2516_{8}", True),
    ("11", "70 or 11", False),
    ("3", "Answer: $3$ or $4$", False),
    ("3", "", False),
    ("3", r"\boxed{}", False),
    (["3", r"\frac{6}{2}"], "3.0", True),
]


def scores(cases: list[tuple[Any, str]]) -> list[Any]:
    async def all_of_them() -> list[Any]:
        scorer = make_scorer("math")
        return await asyncio.gather(
            *(run_scorer(scorer, seen(text, target)) for target, text in cases)
        )

    return asyncio.run(all_of_them())


@needs_extra
def test_expressions_are_equal_or_not() -> None:
    given = scores([(target, text) for target, text, _ in CASES])
    assert [each.error for each in given] == [None] * len(CASES)
    assert [
        case for case, each in zip(CASES, given, strict=True) if each.passed is not case[2]
    ] == []


@needs_extra
def test_a_comparison_without_an_end_fails_and_the_others_are_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(math_scorer, "CPU_S", 1.0)
    given = scores(
        [("1", "9^{9^{9^9}}"), ("0.5", r"\frac{2}{4}"), ("2", "9^{9^{9^8}}"), ("x+1", "1+x")]
    )
    assert [each.passed for each in given] == [False, True, False, True]
    assert "not shown to be equal in 1 s of processor time" in given[0].explanation


@needs_extra
def test_a_process_that_cannot_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(math_scorer, "CPU_S", "no number")
    assert "math-verify cannot be started" in (score("math", "x+1", "1+x").error or "")


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(math_scorer, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"evaluator\[math\]"):
        make_scorer("math")


@needs_extra
def test_a_target_that_is_empty_or_very_long_is_an_error() -> None:
    assert [score("math", "1", target).error is None for target in (" ", "1" * 3_000, "1")] == [
        False,
        False,
        True,
    ]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (r"\boxed{1} then \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\fbox{3}", "3"),
        (r"\boxed{1", None),
        ("x" * 100_000, None),
    ],
)
def test_the_last_box_counts(text: str, found: str | None) -> None:
    assert boxed(text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Final Answer: The final answer is $3$. I hope it is correct.", "3"),
        ("**Answer:** 42", "42"),
        ("First $1$, then $2$.", "2"),
        ("some words\n17", "17"),
        ("", ""),
    ],
)
def test_where_the_answer_stands(text: str, found: str) -> None:
    assert final_answer(text) == found


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (r"\dfrac12", r"\frac{1}{2}"),
        ("1/2", r"\frac{1}{2}"),
        (".5", "0.5"),
        ("10{,}000", "10,000"),
        ("x=5", "5"),
        (r"5\text{ cm}^2", "5"),
        (r"\sqrt3", r"\sqrt{3}"),
    ],
)
def test_spellings_of_one_expression(a: str, b: str) -> None:
    assert normal(a) == normal(b)
