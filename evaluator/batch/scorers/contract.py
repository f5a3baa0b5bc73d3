"""What a scorer is, what it sees, and the one place where it is called: one that crashes is an error, never a zero."""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

from evaluator.batch.records import Sample, Score
from evaluator.errors import UsageError
from evaluator.record.steps import Recording
from evaluator.results import TaskError, TaskResult, Usage

MAX_ERROR_CHARS = 2_000
MAX_ANSWER_CHARS = 500
NO_TARGET = Score(None, None, explanation="no target")


class Evaluate(Protocol):
    """Evaluates a template for a scorer, recorded like any other task.

    `model`, where given, stands for the role `grader` in this call: a model's id, or another role that the profile or
    the batch maps to one. Calls that differ in `repeat` only are asked anew: a cache keeps them apart.
    Both are left out where they say nothing.
    """

    def __call__(
        self, template: str, inputs: Mapping[str, Any], **options: Any
    ) -> Awaitable[TaskResult | TaskError]: ...  # fmt: skip


@dataclass(frozen=True, slots=True)
class Scored:
    """What a scorer sees. `outcome` is the whole result; `recording` reads its task file, when it is asked for (None:
    there is none); `evaluate` is for scorers that ask a model."""

    sample: Sample
    outcome: TaskResult
    recording: Callable[[], Recording | None]
    evaluate: Evaluate


@runtime_checkable
class Scorer(Protocol):
    """Judges results. `name` is its key in `SampleResult.scores`, so it is unique in a batch.

    `describe` is JSON that says what determines the judgements: a change of it is a changed scorer. Names of templates
    that it calls stand under `templates`. `score` may raise: see `judge`.
    """

    @property
    def name(self) -> str: ...

    def describe(self) -> dict[str, Any]: ...

    async def score(self, scored: Scored) -> Score: ...


async def judge(scorer: Scorer, scored: Scored) -> Score:
    """What `scorer` says of a result. Whatever it raises, or gives that is no valid Score, becomes `Score.error`;
    an answer is cut after 500 characters.

    Raises: nothing but cancellation and KeyboardInterrupt.
    """
    try:
        score = await scorer.score(scored)
        if (problem := _problem(score)) is None:
            return score if score.answer is None or len(score.answer) <= MAX_ANSWER_CHARS else _cut(score)
    except (Exception, SystemExit) as error:
        return Score(None, None, error=words(error))
    usage = score.usage if type(score) is Score and type(score.usage) is Usage else Usage()
    return Score(None, None, error=f"scorer {scorer.name!r} gave {problem}", usage=usage)


def _problem(score: object) -> str | None:
    """What is wrong with a score, None where nothing is."""
    if type(score) is not Score:
        return f"{type(score).__name__}, expected a Score"
    # A function of somebody else's made it: nothing of it is sure.
    value: Any = score.value
    passed: Any = score.passed
    if value is not None and (
        isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value)
    ):
        return f"the value {str(value)[:40]!r}, expected a finite number or None"
    if passed is not None and not isinstance(passed, bool):
        return f"passed={str(passed)[:40]!r}, expected True, False or None"
    if not isinstance(score.answer, str | None) or not isinstance(score.explanation, str) or score.error == "":  # pyright: ignore[reportUnnecessaryIsInstance]
        return "an answer, an explanation or an error that is no text"
    if value is None and passed is not None:
        return f"passed={passed} without a value"
    if score.metadata:
        try:
            json.dumps(score.metadata, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            return f"metadata that is not JSON: {words(error)}"
    return None


def _cut(score: Score) -> Score:
    return replace(score, answer=f"{(score.answer or '')[: MAX_ANSWER_CHARS - 1]}…")


def words(error: BaseException) -> str:
    """An exception as one text: its class and what it says, cut after 2,000 characters."""
    try:
        said = str(error)
    except Exception:
        said = ""
    text = f"{type(error).__name__}: {said}" if said else type(error).__name__
    return text if len(text) <= MAX_ERROR_CHARS else f"{text[: MAX_ERROR_CHARS - 1]}…"


def yes_or_no(passed: bool, answer: str | None = None, explanation: str = "") -> Score:
    """The score of a scorer that knows right and wrong only: 1 or 0."""
    return Score(1.0 if passed else 0.0, passed, answer, explanation)


def on_scale(value: float, pass_at: float, **more: Any) -> Score:
    """A score in [0, 1] that passes from `pass_at` on. Raises: UsageError, for a value outside [0, 1]."""
    if not 0 <= value <= 1:
        raise UsageError(f"the value is {value!r}, expected one in [0, 1]")
    return replace(Score(float(value), bool(value >= pass_at)), **more)
