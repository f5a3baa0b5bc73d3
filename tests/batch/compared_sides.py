"""Sides of comparisons that tests make."""

from __future__ import annotations

from typing import Any

from evaluator.batch import Declared, Failure, Results, SampleResult, Score, Verdict

VERDICTS = {"p": Verdict.PASSED, "f": Verdict.FAILED, "e": Verdict.ERROR, "u": Verdict.UNSCORED}


def a_result(sample: str, letter: str = "p", epoch: int = 1, **fields: Any) -> SampleResult:
    failure = Failure("T", "timeout", "late") if letter == "e" else None
    plain: dict[str, Any] = {
        "template": "quiz",
        "variant": "small",
        "inputs": {"q": sample},
        "failure": failure,
    }
    return SampleResult(
        f"hash of {sample}", sample, 0, epoch, verdict=VERDICTS[letter], **{**plain, **fields}
    )


def side(word: str, **fields: Any) -> list[SampleResult]:
    return [
        a_result(f"s{i:02d}", letter, **fields) for i, letter in enumerate(word) if letter != "-"
    ]


def scored(values: list[float], **fields: Any) -> list[SampleResult]:
    return [
        a_result(f"s{i:04d}", scores={"f1": Score(value, value > 0.5)}, **fields)
        for i, value in enumerate(values)
    ]


def passages(passing: int, cluster: str | None = "passage") -> Results:
    """100 questions on ten passages, of which the first `passing` are understood, in a batch clustered by `cluster`."""
    letters = ("p" if i // 10 < passing else "f" for i in range(100))
    results = (
        a_result(f"s{i:02d}", letter, metadata={"passage": i // 10})
        for i, letter in enumerate(letters)
    )
    return Results(results, Declared(100, cluster=cluster))


def declared(results: list[SampleResult], total: int | None = None, **said: Any) -> Results:
    return Results(iter(results), Declared(len(results) if total is None else total, **said))
