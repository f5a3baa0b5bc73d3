"""The agreement of judges who vote, and of binary scorers, in a summary."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from evaluator.batch import SampleResult, Score
from evaluator.batch.statistics import (
    cohen_kappa,
    krippendorff_alpha,
)
from evaluator.batch.summary import summarise
from tests.batch.summary_results import a_result, only


def voted(sample: str, *votes: bool | None, scorer: str = "jury", **fields: Any) -> SampleResult:
    given = [vote for vote in votes if vote is not None]
    score = Score(
        1.0 if sum(given) > len(given) / 2 else 0.0,
        sum(given) > len(given) / 2,
        metadata={"votes": dict(zip("abc", votes, strict=False))},
    )
    return a_result(sample, scores={scorer: score}, **fields)


BALLOTS = [
    (True, True, True),
    (True, False, None),
    (False, False, False),
    (True, True, False),
    (None, None, True),
]


def test_judges_who_vote_have_their_agreement_counted() -> None:
    results = [voted(f"s{i}", *votes) for i, votes in enumerate(BALLOTS * 3)]
    retried = [voted("s0", False, True, False), *results]
    group = only(summarise([*retried, a_result("e", "error")]))
    columns = list(zip(*BALLOTS * 3, strict=True))
    everyone, *pairs = group.agreement
    assert (everyone.judges, everyone.votes_of, everyone.measure) == (
        ("a", "b", "c"),
        "jury",
        "krippendorff_alpha",
    )
    expected = krippendorff_alpha(columns)
    assert (
        everyone.agreement.value == pytest.approx(expected.value)
        and everyone.agreement.n == expected.n == 12
    )
    assert everyone.same == 0.5
    for found, (i, j) in zip(pairs, [(0, 1), (0, 2), (1, 2)], strict=True):
        kappa = cohen_kappa(columns[i], columns[j])
        assert found.agreement.value == pytest.approx(kappa.value)
        assert (found.agreement.n, found.measure) == (kappa.n, "cohen_kappa")
    summary = summarise(results)
    assert (
        "Agreement: quiz × small" in summary.to_text()
        and "Krippendorff's α" in summary.to_markdown()
    )
    assert "jury: a and b" in summary.to_text() and "jury: all 3" in summary.to_text()
    assert summary.to_dict()["groups"][0]["agreement"][0]["judges"] == ["a", "b", "c"]


def test_only_binary_scorers_have_their_agreement_counted() -> None:
    words = ["yy", "yn", "nn", "ny", "yy", "nn", "y-"]
    results = [
        a_result(
            f"s{i}",
            scores={
                "graded": Score(0.7, True),
                **{
                    name: Score(float(one == "y"), one == "y")
                    for name, one in zip("pq", word, strict=True)
                    if one != "-"
                },
            },
        )
        for i, word in enumerate(words)
    ]
    (found,) = only(summarise(results)).agreement
    assert (found.judges, found.votes_of, found.same) == (("p", "q"), None, pytest.approx(4 / 6))
    assert (found.agreement.n, found.agreement.of) == (6, 7)
    assert found.agreement.value == cohen_kappa("yynnyn", "ynnyyn").value


@pytest.mark.parametrize(
    "votes",
    [None, "yes", [True], {"a": True}, {"a": 1, "b": "x"}, {str(i): True for i in range(99)}],
)
def test_metadata_that_are_not_votes_are_ignored(votes: Any) -> None:
    score = Score(1.0, True, metadata={"votes": votes})
    assert only(summarise([a_result("x", scores={"s": score})])).agreement == ()


def test_votes_take_a_few_bytes_for_each_result() -> None:
    tracemalloc.start()
    try:
        summarise(
            voted(f"sample-{i:08d}", i % 2 == 0, i % 3 == 0, i % 5 == 0) for i in range(8_000)
        )
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak / 8_000 < 300
