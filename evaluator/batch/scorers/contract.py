"""The protocol of scorers, and the only functions that call them.

A scorer that fails is an error, never a zero. Changes that a scorer makes to its input are
invisible to other scorers, epochs and models, and to the results.

Scorers that compute are called in a thread, one after the other. Containers are copied for user
code; numbers of other libraries become plain ones.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from decimal import Decimal
from numbers import Real
from types import NoneType
from typing import Any, Protocol, cast, runtime_checkable
from weakref import WeakKeyDictionary

from evaluator.batch.records import Sample, Score
from evaluator.errors import UsageError, machine_error
from evaluator.errors.messages import cut
from evaluator.errors.results import Outcome, TaskResult, Usage
from evaluator.lazy_dataclass import frozen
from evaluator.processes.concurrency import in_thread
from evaluator.record.steps import Recording

MAX_ERROR_CHARS = 2_000
MAX_ANSWER_CHARS = 500
_NUMBERS = (float, int, NoneType)
NO_TARGET = Score(None, None, explanation="no target")
_FIELD_TYPES: tuple[tuple[str, tuple[type, ...], str], ...] = (
    ("answer", (str, NoneType), "text or None"),
    ("explanation", (str,), "text"),
    ("error", (str, NoneType), "text or None"),
    ("usage", (Usage,), "a Usage"),
    ("metadata", (dict, Mapping), "a mapping"),
)


class EvaluateTemplate(Protocol):
    """Evaluates a template for a scorer, recorded like any other task.

    `model`, if given, takes the role `grader` in this call: a model's id, or another role that the
    profile or the batch maps to one. Calls that differ only in `repeat` are made separately and
    cached separately. Both options are omitted at their defaults.
    """

    def __call__(
        self, template: str, inputs: Mapping[str, Any], **options: Any
    ) -> Awaitable[Outcome]: ...


@frozen
class ScorerInput:
    """The input of a scorer. `outcome` is the whole task result; `recording` reads its task file
    when called (None without one); `evaluate` is for scorers that ask a model.
    """

    sample: Sample
    outcome: TaskResult
    recording: Callable[[], Recording | None]
    evaluate: EvaluateTemplate

    def copy(self) -> ScorerInput:
        """A copy that shares no list and no mapping with this one."""
        sample = replace(
            self.sample,
            inputs=copied(dict(self.sample.inputs)),
            target=copied(self.sample.target),
            metadata=copied(dict(self.sample.metadata)),
        )
        return replace(self, sample=sample, outcome=copy_outcome(self.outcome))


def copy_outcome(outcome: TaskResult) -> TaskResult:
    """A result that shares no list and no mapping with `outcome`."""
    return replace(
        outcome, parsed_content=copied(outcome.parsed_content), notes=copied(dict(outcome.notes))
    )


@runtime_checkable
class Scorer(Protocol):
    """Scores results. `name` is its key in `SampleResult.scores`, so it is unique in a batch.

    `describe` returns JSON that determines the scores: when it changes, the scorer has changed.
    Templates that it calls are listed under `templates`, the model that it asks in the role
    `grader` under `model` (None: the role's own). `score` may raise: see `run_scorer`. It gets a
    copy of its input for each call and may change it.

    A scorer with an attribute `values`, a tuple of names, returns a mapping of these names to a
    Score each. In results they are NAME.VALUE.
    """

    @property
    def name(self) -> str: ...

    def describe(self) -> dict[str, Any]: ...

    async def score(self, scored: ScorerInput) -> Any: ...


class LeavesInputUnchanged:
    """A scorer that changes nothing in its input, or copies it first, so that it gets the shared
    one and no copy.
    """

    __slots__ = ()


async def run_scorer(scorer: Scorer, scored: ScorerInput) -> Score:
    """The score that `scorer` gives a result. An exception or an invalid Score becomes
    `Score.error`.

    So do SystemExit, exceptions that end a test (`pytest.fail`), and the cancellation of something
    it waits for. An answer is cut after 500 characters.

    Raises: only KeyboardInterrupt, MachineError, and asyncio.CancelledError where the calling task
    is cancelled.
    """
    return _checked(scorer, await _called(scorer, scored))


def score_names(scorer: Scorer) -> list[str]:
    """The keys of a scorer's scores: its name; for a scorer with several values NAME.VALUE for
    each.
    """
    return [f"{scorer.name}.{value}" for value in getattr(scorer, "values", ())] or [scorer.name]


async def run_scores(scorer: Scorer, scored: ScorerInput) -> dict[str, Score]:
    """The scores that `scorer` gives a result, by `score_names`; see `run_scorer`.

    A declared value that it does not return is an error of that value; one that it does not
    declare, of all of them.
    """
    given = await _called(scorer, scored)
    values: tuple[str, ...] = getattr(scorer, "values", ())
    if not values:
        return {scorer.name: _checked(scorer, given)}
    values = tuple(values)
    problem = ""
    if not isinstance(given, Mapping):
        if type(given) is Score and given.error is not None:
            return dict.fromkeys(score_names(scorer), given)
        problem = f"returned {type_name(given)}, expected a mapping of {', '.join(values)}"
    elif unknown := [name for name in cast("Mapping[Any, Any]", given) if name not in values]:
        problem = (
            f"returned {str(unknown[0])[:40]!r}, which is not one of its values {', '.join(values)}"
        )
    if problem:
        return dict.fromkeys(
            score_names(scorer), Score(None, None, error=f"scorer {scorer.name!r} {problem}")
        )
    missing = Score(None, None, error=f"scorer {scorer.name!r} did not return this value")
    found = cast("Mapping[str, Any]", given)
    return {
        f"{scorer.name}.{value}": _checked(scorer, found[value]) if value in found else missing
        for value in values
    }


def _checked(scorer: Scorer, score: Any) -> Score:
    """A valid score, with plain numbers and a short answer; an error in place of an invalid
    one.
    """
    try:
        problem = _problem(score)
    except Exception as error:
        return Score(None, None, error=exception_text(error))
    if problem is None:
        if type(score.value) not in _NUMBERS or type(score.passed) not in (bool, NoneType):
            value = plain_scalar(score.value)
            score = replace(score, value=value, passed=plain_scalar(score.passed))
        if score.answer is not None and len(score.answer) > MAX_ANSWER_CHARS:
            score = replace(score, answer=f"{score.answer[: MAX_ANSWER_CHARS - 1]}…")
        return score
    if type(score) is Score and type(score.usage) is Usage:
        usage = score.usage
    else:
        usage = Usage()
    return Score(None, None, error=f"scorer {scorer.name!r} returned {problem}", usage=usage)


async def _called(scorer: Scorer, scored: ScorerInput) -> Any:
    """What the scorer returns; an error in place of an exception."""
    try:
        return await scorer.score(
            scored if isinstance(scorer, LeavesInputUnchanged) else scored.copy()
        )
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        return Score(
            None, None, error="CancelledError: something that the scorer waited for was cancelled"
        )
    except BaseException as error:
        if (trouble := machine_error(error)) is not None:
            raise trouble from error
        return Score(None, None, error=exception_text(error))


def _problem(score: object) -> str | None:
    """The problem with a score; None if it is valid. User code made it, so everything about it is
    checked.
    """
    if type(score) is not Score:
        return f"{type_name(score)}, expected a Score"
    value: Any = score.value
    if type(value) not in _NUMBERS:
        value = plain_scalar(value)
    if value is not None and (type(value) not in _NUMBERS or not math.isfinite(value)):
        return _wrong_field(score, "value", expected="a finite number or None")
    passed: Any = score.passed
    if passed is not None and not isinstance(passed, bool):
        passed = plain_scalar(passed)
    if passed is not None and not isinstance(passed, bool):
        return _wrong_field(score, "passed", expected="True, False or None")
    for name, types, expected in _FIELD_TYPES:
        field = getattr(score, name)
        # The exact types first: a check against an abstract class takes long.
        if field.__class__ not in types and not isinstance(field, types):
            return _wrong_field(score, name, expected=expected)
    if score.error == "":
        return "an empty error, expected text or None"
    if value is None and passed is not None:
        return f"passed={passed} without a value"
    if score.error is not None and value is not None:
        return (
            f"a value with the error {score.error[:MAX_ERROR_CHARS]!r}, expected None with an error"
        )
    if score.metadata:
        try:
            json.dumps(score.metadata, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            return f"metadata that is not JSON: {exception_text(error)}"
    return None


def _wrong_field(score: Score, name: str, expected: str) -> str:
    value = getattr(score, name)
    return f"{name}={str(value)[:40]!r} ({type_name(value)}), expected {expected}"


def exception_text(error: BaseException) -> str:
    """An exception's class and message, cut after 2,000 characters."""
    try:
        message = str(error)
    except Exception:
        message = ""
    if message:
        text = f"{type(error).__name__}: {message}"
    else:
        text = type(error).__name__
    return cut(text, MAX_ERROR_CHARS)


def binary_score(passed: bool, answer: str | None = None, explanation: str = "") -> Score:
    """The score 1 if `passed`, else 0."""
    return Score(1.0 if passed else 0.0, passed, answer=answer, explanation=explanation)


def graded_score(value: float, pass_at: float, **fields: Any) -> Score:
    """A score in [0, 1] that passes from `pass_at`. Raises: UsageError, for a value outside [0,
    1].
    """
    if not 0 <= value <= 1:
        raise UsageError(f"the value is {value!r}, expected one in [0, 1]")
    return Score(float(value), bool(value >= pass_at), **fields)


class ComputeQueue:
    """Calls functions in a thread, one after the other, in the order in which they arrive."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def call(self, function: Callable[[], Any]) -> Any:
        """The result of `function`; raises whatever it raises. When cancelled, a function that runs
        already continues and its result is discarded.
        """
        async with self._turn:
            value, error = await in_thread(lambda: _outcome(function))
        if error is not None:
            raise error
        return value


def _outcome(function: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    try:
        return function(), None
    except BaseException as error:
        return None, error


_QUEUES: WeakKeyDictionary[asyncio.AbstractEventLoop, ComputeQueue] = WeakKeyDictionary()


def compute_queue() -> ComputeQueue:
    """The queue of the running event loop."""
    return _QUEUES.setdefault(asyncio.get_running_loop(), ComputeQueue())


def copied(value: Any) -> Any:
    """A copy of the lists and dicts in `value`, at any depth; other values are shared."""
    if not isinstance(value, dict | list):
        return value
    whole = cast("dict[Any, Any] | list[Any]", value).copy()
    filled: list[Any] = [whole]
    while filled:
        inner = filled.pop()
        for key, item in inner.items() if isinstance(inner, dict) else enumerate(inner):
            if isinstance(item, dict | list):
                inner[key] = cast("dict[Any, Any] | list[Any]", item).copy()
                filled.append(inner[key])
    return whole


def plain_scalar(value: Any) -> Any:
    """A number or boolean of NumPy, PyTorch, `decimal`, `fractions` and others as a bool, int or
    float.

    Any other value is returned unchanged.

    Raises: ValueError or OverflowError, for a number outside the range of floats.
    """
    if value is None or type(value) in (bool, int, float):
        return value
    if isinstance(value, Real | Decimal):
        return float(value)
    item = getattr(value, "item", None)
    if not callable(item):
        return value
    try:
        found = item()
    except Exception:
        # For example an array of several numbers: the caller reports it.
        return value
    if type(found) in (bool, int, float):
        return found
    return value


def type_name(value: object) -> str:
    """The type of a value with its module, except for built-in types: `numpy.ndarray`, `list`."""
    kind = type(value)
    if kind.__module__ == "builtins":
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"
