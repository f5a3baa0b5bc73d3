"""Question answering is scored as the scripts of SQuAD, DROP and GAIA score it."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator import UsageError
from evaluator.batch.scorers.benchmark_scorers import best_alignment, drop_scores
from tests.batch.scorers.scorer_inputs import score


@pytest.mark.parametrize(
    ("text", "target", "exact", "f1"),
    [
        ("The Denver Broncos!", "denver broncos", 1.0, 1.0),
        ("New_York", "newyork", 1.0, 1.0),
        ("a «cat»", "cat", 0.0, 0.0),
        ("in 1999", ["1999", "the year 1999"], 0.0, 2 / 3),
        ("unanswerable", [], 1.0, 1.0),
        ("Unanswerable.", "", 1.0, 1.0),
        ("Paris", [], 0.0, 0.0),
        ("unanswerable", "Paris", 0.0, 0.0),
        ("the", "a", 1.0, 1.0),
    ],
)
def test_squads_normalisation(text: str, target: Any, exact: float, f1: float) -> None:
    rules = {"normalise": "squad", "unanswerable": "unanswerable"}
    assert score({"type": "exact", **rules}, text, target).value == exact
    assert score({"type": "f1", **rules}, text, target).value == pytest.approx(f1)


def test_without_unanswerable_an_empty_list_is_no_target() -> None:
    assert score("f1:normalise=squad", "unanswerable", []).passed is None


@pytest.mark.parametrize("spec", ["exact:unanswerable=no", "f1:normalise=squad,unanswerable=the"])
def test_unanswerable_needs_words_and_the_normalisation(spec: str) -> None:
    with pytest.raises(UsageError, match='needs normalise="squad"'):
        score(spec, "x", "x")


@pytest.mark.parametrize(
    ("found", "expected", "exact", "f1"),
    [
        (["5"], ["5.0"], 1.0, 1.0),
        (["5 yards"], ["5"], 0.0, 0.67),
        (["6 yards"], ["5 yards"], 0.0, 0.0),
        (["John Smith"], ["Smith"], 0.0, 0.67),
        (["b", "c"], ["c", "b"], 1.0, 1.0),
        (["red"], ["red", "blue"], 0.0, 0.5),
        (["red blue", "red"], ["red", "blue"], 0.0, 0.83),
        (["the 10-yard line"], ["10 yard line"], 1.0, 1.0),
        (["$1,000"], ["1000"], 1.0, 1.0),
        ([""], ["x"], 0.0, 0.0),
    ],
)
def test_drops_aligned_spans(
    found: list[str], expected: list[str], exact: float, f1: float
) -> None:
    assert drop_scores(found, expected) == (exact, f1)


@pytest.mark.parametrize(
    ("spec", "text", "parsed", "target", "value"),
    [
        ("drop", "He ran.\nAnswer: 5", None, "5", 1.0),
        ("drop", "x", ["blue", "red"], [["red", "blue"], "green"], 1.0),
        ("drop:separator=;", "red;blue", None, [["blue", "red"]], 1.0),
        ("drop", "green", None, [["red", "blue"], "green"], 1.0),
        ("drop", "green", None, [" "], 0.0),
    ],
)
def test_drops_answers_and_alternatives(
    spec: str, text: str, parsed: Any, target: Any, value: float
) -> None:
    given_score = score(spec, text, target, parsed=parsed)
    assert (
        given_score.error is None
        and given_score.value == value
        and given_score.passed is (value == 1.0)
    )


@given(st.lists(st.lists(st.integers(0, 9), min_size=4, max_size=4), min_size=1, max_size=4))
def test_the_alignment_is_the_best_of_all(scores: list[list[int]]) -> None:
    best = max(
        sum(scores[row][column] for row, column in enumerate(order))
        for order in permutations(range(4), len(scores))
    )
    assert best_alignment([[float(each) for each in row] for row in scores]) == best


def test_many_spans_are_an_error() -> None:
    assert "the limit is 50" in (score("drop", "x", "x", parsed=["x"] * 51).error or "")


@pytest.mark.parametrize(
    ("text", "target", "passed"),
    [
        ("$1,234", "1234", True),
        ("50%", "50", True),
        ("about 50", "50", False),
        ("apples, 3", "Apples, 3.0", True),
        ("apples; 4", "apples, 3", False),
        ("apples", "apples, pears", False),
        ("sea gull", "Seagull.", True),
        ("St. Paul", "st paul", True),
        ("a.b, c", "ab, c", False),
        ("inf", "nothing", False),
    ],
)
def test_gaias_quasi_exact_match(text: str, target: str, passed: bool) -> None:
    assert score("quasi_exact", text, target).passed is passed
