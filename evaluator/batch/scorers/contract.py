"""What a scorer is, what it sees, and the one place where it is called: one that crashes is an error, never a zero.

What a scorer does to what it sees, nobody else sees: not the other scorers, not the other epochs and models that the
same sample is for, and not the results.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from types import NoneType
from typing import Any, Protocol, runtime_checkable

from evaluator.batch.records import Sample, Score
from evaluator.batch.scorers.values import copied, plain_scalar, type_name
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

    def apart(self) -> Scored:
        """The same, sharing no list and no mapping with this one."""
        return replace(self, sample=sample_apart(self.sample), outcome=outcome_apart(self.outcome))


def sample_apart(sample: Sample) -> Sample:
    """A sample that shares no list and no mapping with `sample`."""
    return replace(
        sample, inputs=copied(dict(sample.inputs)), target=copied(sample.target), metadata=copied(dict(sample.metadata))
    )


def outcome_apart(outcome: TaskResult) -> TaskResult:
    """A result that shares no list and no mapping with `outcome`."""
    return replace(outcome, parsed_content=copied(outcome.parsed_content), notes=copied(dict(outcome.notes)))


@runtime_checkable
class Scorer(Protocol):
    """Judges results. `name` is its key in `SampleResult.scores`, so it is unique in a batch.

    `describe` is JSON that says what determines the judgements: a change of it is a changed scorer. Names of templates
    that it calls stand under `templates`, the model that it asks in the role `grader` under `model` (None: the one that
    the role has). `score` may raise: see `judge`. What it is given is its own, to change as it likes: a copy, made for
    each call.
    """

    @property
    def name(self) -> str: ...

    def describe(self) -> dict[str, Any]: ...

    async def score(self, scored: Scored) -> Score: ...


class ReadsOnly:
    """A scorer that changes nothing of what it sees, or copies it first: it is given what all share, and no copy."""

    __slots__ = ()


async def judge(scorer: Scorer, scored: Scored) -> Score:
    """What `scorer` says of a result. Whatever it raises, or gives that is no valid Score, becomes `Score.error`: so
    does SystemExit, what ends a test (`pytest.fail`), and that something it waited for was cancelled. An answer is cut
    after 500 characters.

    Raises: nothing but KeyboardInterrupt, and asyncio.CancelledError where the task that calls this is cancelled.
    """
    try:
        score = await scorer.score(scored if isinstance(scorer, ReadsOnly) else scored.apart())
        if (problem := _problem(score)) is None:
            return _kept(score)
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        return Score(None, None, error="CancelledError: something that it waited for was cancelled")
    except BaseException as error:
        return Score(None, None, error=words(error))
    usage = score.usage if type(score) is Score and type(score.usage) is Usage else Usage()
    return Score(None, None, error=f"scorer {scorer.name!r} gave {problem}", usage=usage)


def _problem(score: object) -> str | None:
    """What is wrong with a score, None where nothing is."""
    if type(score) is not Score:
        return f"{type_name(score)}, expected a Score"
    # A function of somebody else's made it: nothing of it is sure.
    value: Any = plain_scalar(score.value)
    passed: Any = plain_scalar(score.passed)
    if value is not None and (
        isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value)
    ):
        return f"the value {str(score.value)[:40]!r} ({type_name(score.value)}), expected a finite number or None"
    if passed is not None and not isinstance(passed, bool):
        return f"passed={str(score.passed)[:40]!r} ({type_name(score.passed)}), expected True, False or None"
    texts: tuple[tuple[str, Any, bool], ...] = (
        ("answer", score.answer, True), ("explanation", score.explanation, False), ("error", score.error, True),
    )  # fmt: skip
    for name, text, may_be_none in texts:
        if not (isinstance(text, str) or (text is None and may_be_none)):
            return f"{name}={str(text)[:40]!r} ({type_name(text)}), expected text{' or None' if may_be_none else ''}"
    if score.error == "":
        return "an error that says nothing, expected text or None"
    if type(score.usage) is not Usage:
        return f"usage={str(score.usage)[:40]!r}, expected a Usage"
    if value is None and passed is not None:
        return f"passed={passed} without a value"
    if score.error is not None and value is not None:
        return f"a value beside the error {score.error[:MAX_ERROR_CHARS]!r}, expected None with an error"
    return _problem_of_metadata(score.metadata)


def _problem_of_metadata(metadata: Any) -> str | None:
    if not isinstance(metadata, Mapping):
        return f"metadata={str(metadata)[:40]!r} ({type_name(metadata)}), expected a mapping"
    if metadata:
        try:
            json.dumps(metadata, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            return f"metadata that is not JSON: {words(error)}"
    return None


def _kept(score: Score) -> Score:
    """A valid score as it is kept: plain numbers, a short answer."""
    if type(score.value) not in (float, int, NoneType) or type(score.passed) not in (bool, NoneType):
        score = replace(score, value=plain_scalar(score.value), passed=plain_scalar(score.passed))
    return score if score.answer is None or len(score.answer) <= MAX_ANSWER_CHARS else _cut(score)


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
