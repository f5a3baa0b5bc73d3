"""Results that tests of summaries make, and the one group of their summary."""

from __future__ import annotations

from typing import Any

from evaluator.batch import BatchSummary, Failure, SampleResult, Verdict
from evaluator.batch.summary import GroupSummary

TIMEOUT = Failure("RESOURCE_EXHAUSTION", "execution_timeout", "30 s were not enough")


def a_result(
    sample: str, verdict: Verdict | str = "passed", epoch: int = 1, **fields: Any
) -> SampleResult:
    verdict = Verdict(verdict)
    if verdict is Verdict.ERROR:
        fields.setdefault("failure", TIMEOUT)
    plain: dict[str, Any] = {
        "template": "quiz",
        "variant": "small",
        "inputs": {},
        "started": "2026-01-01T00:00:00Z",
    }
    return SampleResult(
        f"hash of {sample}", sample, 0, epoch, verdict=verdict, **{**plain, **fields}
    )


def results_of(word: str, **fields: Any) -> list[SampleResult]:
    """A result a letter: p passed, f failed, e error, u unscored."""
    verdicts = {"p": "passed", "f": "failed", "e": "error", "u": "unscored"}
    return [a_result(f"s{i}", verdicts[letter], **fields) for i, letter in enumerate(word)]


def only(summary: BatchSummary) -> GroupSummary:
    assert len(summary.groups) == 1
    return summary.groups[0]
