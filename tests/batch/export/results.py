"""Results to export: one of each verdict, hostile ones, and many."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from evaluator import Usage
from evaluator.batch import Failure, SampleResult, Score
from evaluator.batch.records import verdict_of

HOSTILE = (
    "</script><script>document.title='owned'</script>",
    "<img src=x onerror=\"document.title='owned'\">",
    "]]><!-- & &amp; --> \"'`|*_#[x](javascript:alert(1))",
    '=HYPERLINK("http://example.invalid","x")',
    "\x00\x01\x08\x1b[31mred\x7f\u202eabc\u2028\ufffe",
    "half \ud83d of a pair",
    "line\r\nbreak\ttab\rend",
    "@everyone ../../etc/passwd {{ inputs }} ${HOME}",
)


def result(sample_id: str = "lead", **changes: Any) -> SampleResult:
    """An answer that passed; `scores` and `failure` decide the verdict."""
    given: dict[str, Any] = {
        "identity": f"id-{sample_id}",
        "place": 3,
        "epoch": 1,
        "template": "answer",
        "variant": "small",
        "inputs": {"question": "Which element has the symbol Pb?"},
        "target": "lead",
        "metadata": {"group": "metals"},
        "model": "m-1",
        "content": "It is lead.",
        "scores": {"includes": Score(1.0, True, answer="lead", explanation="found 'lead'")},
        "usage": Usage(12, 4, 0, 0, 0.0005, 1),
        "duration_s": 0.25,
        "started": "2026-03-04T05:06:07.000008+00:00",
        "task_id": 7,
        "task_file": "tasks/TASK-000007.md",
    } | changes
    verdict = verdict_of(given.get("failure"), given["scores"].values())
    return SampleResult(sample_id=sample_id, verdict=verdict, **given)


FAILURE = Failure("TASK_FAILURE", "provider_failure", "503 from the model\nafter 4 attempts", True)
PASSED = result()
FAILED = result(
    "tin",
    content="It is zinc.",
    scores={"includes": Score(0.0, False, explanation="no 'tin' in it")},
)
ERROR = result(
    "iron",
    content="",
    scores={},
    failure=FAILURE,
    usage=Usage(None, None, None, None, None, 1),
    task_file=None,
)
SCORER_ERROR = result(
    "zinc", scores={"includes": Score(None, None, error="ZeroDivisionError: division by zero")}
)
UNSCORED = result(
    "gold", target=None, scores={"includes": Score(None, None, explanation="there is no target")}
)
EACH = (PASSED, FAILED, ERROR, SCORER_ERROR, UNSCORED)


def hostile() -> Iterator[SampleResult]:
    """Each hostile text in every field that can hold one, as an answer, a failed one, an error and an unscored one."""
    for place, text in enumerate(HOSTILE):
        fields: dict[str, Any] = {
            "place": place,
            "template": text,
            "variant": text,
            "model": text,
            "inputs": {text: text, "nested": {text: [text]}},
            "target": text,
            "metadata": {text: text},
            "content": text,
            "parsed": {text: text},
            "task_file": f"tasks/{text}",
            "warnings": (text,),
            "identity": text,
        }
        passed = result(text, **fields)
        yield replace(passed, scores={text: Score(1.0, True, text, text, metadata={text: text})})
        failed = {text: Score(0.0, False, text, text)}
        yield result(text, **fields | {"epoch": 2, "scores": failed})
        yield result(
            text, **fields | {"epoch": 3, "scores": {}, "failure": Failure(text, text, text)}
        )
        yield result(text, **fields | {"epoch": 4, "scores": {text: Score(None, None, text, text)}})
        yield result(text, **fields | {"epoch": 5, "scores": {text: Score(None, None, error=text)}})


def many(count: int) -> Iterator[SampleResult]:
    """`count` results of two templates with two variants, of every verdict."""
    for number in range(count):
        sample = EACH[number % len(EACH)]
        yield replace(
            sample,
            sample_id=f"{sample.sample_id}-{number // 4}",
            place=number // 4,
            template=("answer", "explain")[number % 2],
            variant=("small", "large")[number // 2 % 2],
            duration_s=0.1 + number % 17 / 10,
        )
