"""The records of a batch: samples, results, scores, and which failures count as failed answers.

Each result has exactly one of four verdicts:

- passed: every scorer passed it.
- failed: at least one scorer failed it.
- error: the task or a scorer ended with an error, other than one that counts as a failed answer.
  Errors are counted separately. They are never scored as zero and never dropped.
- unscored: no scorer failed the answer, but one could not judge it (no target), or there is no
  scorer.

Answers that a limit cut off, and errors that count as failed answers.
The references score whatever text a model returned: lm-eval and inspect_evals count a cut-off,
empty or unreadable answer as a wrong one. So does a batch with scorers, by default. See "Answers
that are cut off" in `docs/howto/run-a-batch.md` for the stricter readings.
"""

from __future__ import annotations

import marshal
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, field, fields, replace
from enum import StrEnum
from hashlib import blake2b
from operator import attrgetter, itemgetter
from typing import Any, Literal, cast, get_args

from evaluator.errors.messages import cut
from evaluator.errors.results import (
    ErrorType,
    FailureReason,
    Outcome,
    Resource,
    ResourceName,
    Status,
    TaskError,
    TaskResult,
    Usage,
)
from evaluator.lazy_dataclass import frozen
from evaluator.nodes import OutputFormat
from evaluator.output import parse_output
from evaluator.patterns import Pattern

NOTHING = Usage()
"""The usage of a scorer that calls no model."""


class Verdict(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    ERROR = "error"
    UNSCORED = "unscored"


@frozen
class Shot:
    """A few-shot example: the inputs of another row, and the answer that it shows."""

    inputs: Mapping[str, Any]
    answer: str


@frozen
class Sample:
    """One row, ready for a template. `id` is unique in its batch; `place` counts rows from 0 in
    their source.

    `target` is the right answer, any JSON value; None: no target. `metadata` are the other fields
    of the row, by which a report may group. `answer` is an existing answer, which is scored instead
    of asking a model; None: there is none. `shots` are examples that the model sees before the row.
    """

    id: str
    inputs: Mapping[str, Any]
    target: Any = None
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    place: int = 0
    answer: str | None = None
    shots: tuple[Shot, ...] = ()

    def to_values(self) -> tuple[Any, ...]:
        """The fields in their order, as data."""
        values = _sample_values(self)
        if self.shots:
            return (*values[:-1], [(shot.inputs, shot.answer) for shot in self.shots])
        return values

    @classmethod
    def from_values(cls, values: tuple[Any, ...]) -> Sample:
        """The sample that `to_values` made `values` from."""
        if not values[-1]:
            return cls(*values)
        *fields, shots = values
        return cls(*fields, shots=tuple(Shot(*shot) for shot in shots))

    def pack(self) -> bytes:
        """The sample as `unpack` reads it, which may be in another process with the same version of
        Python. Raises: ValueError, if it has other values than data.
        """
        return marshal.dumps(self.to_values())

    @classmethod
    def unpack(cls, packed: bytes) -> Sample:
        """The sample that `pack` made `packed` from."""
        return cls.from_values(marshal.loads(packed))


_sample_values = attrgetter("id", "inputs", "target", "metadata", "place", "answer", "shots")


@frozen
class Score:
    """The judgement of one scorer on one result. `value` is in [0, 1] unless the scorer says
    otherwise.

    `passed` is None if the scorer could not judge (`value` is None too), or for a tie (`value` is
    0.5). `error` is set if the scorer itself failed; `value` and `passed` are None then. `answer`
    is what the scorer read from the result, `explanation` why it decided so, `usage` what judging
    used. With `decides` False the verdict does not depend on it. In a batch, `version` is the hash
    of everything that determines the scorer's judgements, and `at` when it judged, an ISO time;
    equal scores may differ in these two.
    """

    value: float | None
    passed: bool | None
    answer: str | None = None
    explanation: str = ""
    error: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    usage: Usage = NOTHING
    decides: bool = True
    version: str = field(default="", compare=False)
    at: str = field(default="", compare=False)

    def judged(self, version: str, at: str) -> Score:
        """This score with its origin."""
        return Score(
            self.value,
            self.passed,
            answer=self.answer,
            explanation=self.explanation,
            error=self.error,
            metadata=self.metadata,
            usage=self.usage,
            decides=self.decides,
            version=version,
            at=at,
        )

    def to_dict(self) -> dict[str, Any]:
        data: dict[str, Any] = {"value": self.value, "passed": self.passed}
        if self.answer:
            data["answer"] = self.answer
        if self.explanation:
            data["explanation"] = self.explanation
        if self.error:
            data["error"] = self.error
        if self.version:
            data["version"] = self.version
        if self.at:
            data["at"] = self.at
        if self.metadata:
            data["metadata"] = dict(self.metadata)
        if self.usage is not NOTHING and (used := self.usage.non_zero()):
            data["usage"] = used
        if not self.decides:
            data["decides"] = False
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Score:
        return cls(
            data["value"],
            data["passed"],
            answer=data.get("answer"),
            explanation=data.get("explanation", ""),
            error=data.get("error"),
            metadata=data.get("metadata", {}),
            usage=Usage.from_dict(data["usage"]) if "usage" in data else NOTHING,
            decides=data.get("decides", True),
            version=data.get("version", ""),
            at=data.get("at", ""),
        )


@frozen
class Failure:
    """The reason why there is no complete answer. `kind` is the TaskError's reason, or its type if
    it has no reason; `resource` is the limit that ended the task, such as `output`. The verdict may
    be passed or failed anyway, see `evaluator.batch.records`.
    """

    type: str
    kind: str
    message: str
    retryable: bool = False
    resource: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Failure:
        return cls(
            data["type"], data["kind"], data["message"], data["retryable"], data.get("resource")
        )


def failure_of(outcome: TaskError) -> Failure:
    """Why there is no answer."""
    if outcome.resource is None:
        resource = None
    else:
        resource = outcome.resource.name
    return Failure(
        outcome.type,
        outcome.reason or outcome.type,
        message=outcome.message,
        retryable=outcome.retryable,
        resource=resource,
    )


def error_of(failure: Failure, usage: Usage) -> TaskError:
    """The error that `failure` was made from, without its details."""
    if failure.kind == failure.type:
        reason = None
    else:
        reason = cast("FailureReason", failure.kind)
    # The line of a result has the limit's name, but not its figures.
    if failure.resource is None:
        resource = None
    else:
        resource = Resource(cast("ResourceName", failure.resource), 0, limit=0)
    return TaskError(
        cast("ErrorType", failure.type),
        failure.message,
        reason=reason,
        resource=resource,
        usage=usage,
        retryable=failure.retryable,
    )


_COMPUTED_ID = Pattern(r"[0-9a-f]{16}(-[0-9]+)?")
_LABEL_CHARS = 60


@frozen
class SampleResult:
    """One sample evaluated once: a line of `results.jsonl`.

    `identity` is the hash of everything that determines the answer (template, inputs, handler and
    model, epoch). `epoch` counts from 1. `variant` names the handler or model among those that the
    batch compares. `duration_s` is seconds from the start of the task to its end, without scoring
    and without waiting for the rate limiter; `started` is an ISO time, UTC. `usage` is the task's
    own, without its scorers'. `cached_calls` were answered by the cache and cost nothing.
    `interrupted_calls` were in flight when an earlier process ended: they may be billed, and
    `usage` does not have them.
    `task_file` is relative to the batch's folder. `parts` are the hashes that `identity` was made
    of, `scored_by` is the hash of the scorers; with them a later session finds out what has
    changed. `judge_tasks` are the tasks of judges whose calls this result counts.
    """

    identity: str
    sample_id: str
    place: int
    epoch: int
    template: str
    variant: str
    verdict: Verdict
    inputs: Mapping[str, Any]
    target: Any = None
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    model: str | None = None
    content: str = ""
    parsed: Any = None
    scores: Mapping[str, Score] = field(default_factory=dict[str, Score])
    failure: Failure | None = None
    usage: Usage = Usage()
    duration_s: float = 0.0
    started: str = ""
    task_id: int | None = None
    task_file: str | None = None
    cached_calls: int = 0
    interrupted_calls: int = 0
    warnings: tuple[str, ...] = ()
    parts: Mapping[str, str] = field(default_factory=dict[str, str])
    scored_by: str = ""
    judge_tasks: tuple[int, ...] = ()

    @property
    def title(self) -> str:
        """The sample for a person: its id; for a row without an id its number, from 1, and its
        first words.
        """
        if not _COMPUTED_ID.fullmatch(self.sample_id):
            return self.sample_id
        words = next(
            (" ".join(text.split()) for text in self.inputs.values() if isinstance(text, str)), ""
        )
        if words:
            title = f"row {self.place + 1}: {words}"
        else:
            title = f"row {self.place + 1}"
        return cut(title, _LABEL_CHARS)

    @property
    def label(self) -> str:
        """The title, and the computed id of a row without an id: unique in its batch."""
        title = self.title
        if title == self.sample_id:
            return title
        return f"{title} [{self.sample_id}]"

    @property
    def key(self) -> str:
        """The cell of the batch that this fills; of several results with one key the last one
        counts.
        """
        return key_of(self.sample_id, self.epoch, template=self.template, variant=self.variant)

    @property
    def scoring_usage(self) -> Usage:
        used = [score.usage for score in self.scores.values() if score.usage is not NOTHING]
        if used:
            return sum(used, NOTHING)
        return NOTHING

    def to_dict(self) -> dict[str, Any]:
        """A JSON object. Its first five members are short: an index reads only those."""
        failure = self.failure
        data = _NO_MEMBERS.copy()
        data["key"] = key_of(
            self.sample_id, self.epoch, template=self.template, variant=self.variant
        )
        data["identity"] = self.identity
        data["scored_by"] = self.scored_by
        data["verdict"] = str(self.verdict)
        data["retryable"] = failure is not None and failure.retryable
        data["sample_id"] = self.sample_id
        data["place"] = self.place
        data["epoch"] = self.epoch
        data["template"] = self.template
        data["variant"] = self.variant
        data["inputs"] = dict(self.inputs)
        data["target"] = self.target
        data["metadata"] = dict(self.metadata)
        data["model"] = self.model
        data["content"] = self.content
        data["parsed"] = self.parsed
        data["scores"] = scores = {}
        for name, score in self.scores.items():
            scores[name] = score.to_dict()
        data["failure"] = None if failure is None else failure.to_dict()
        data["usage"] = self.usage.non_zero()
        data["duration_s"] = round(self.duration_s, 6)
        data["started"] = self.started
        data["task_id"] = self.task_id
        data["task_file"] = self.task_file
        data["cached_calls"] = self.cached_calls
        data["interrupted_calls"] = self.interrupted_calls
        data["warnings"] = list(self.warnings)
        data["parts"] = dict(self.parts)
        if self.judge_tasks:
            data["judge_tasks"] = list(self.judge_tasks)
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> SampleResult:
        """The result that `to_dict` made `data` from.

        Raises: KeyError, TypeError or ValueError, for anything else.
        """
        values = list(_members(data))
        place = data["place"]
        if type(place) is not int or not 0 <= place < _MAX_PLACE:
            raise TypeError(f"the place of a row is {place!r:.50}, expected a number from 0")
        values[_VERDICT] = _VERDICTS[data["verdict"]]
        values[_SCORES] = {name: Score.from_dict(score) for name, score in data["scores"].items()}
        if data["failure"] is not None:
            values[_FAILURE] = Failure.from_dict(data["failure"])
        values[_USAGE] = Usage.from_dict(data["usage"])
        values[_WARNINGS] = tuple(data["warnings"])
        return cls(*values, judge_tasks=judge_tasks_of(data))


def judge_tasks_of(result: Mapping[str, Any]) -> tuple[int, ...]:
    """`judge_tasks` of a result as JSON. Raises: TypeError, for anything but numbers of tasks."""
    tasks: Any = tuple(result.get("judge_tasks", ()))
    for task in tasks:
        if type(task) is not int or task < 0:
            raise TypeError(f"the task of a judge is {task!r:.50}, expected a number from 0")
    return tasks


_MAX_PLACE = 2**53
_VERDICTS = {verdict.value: verdict for verdict in Verdict}
_FIELDS = tuple(each.name for each in fields(SampleResult) if each.name != "judge_tasks")
_VERDICT, _SCORES, _FAILURE, _USAGE, _WARNINGS = map(
    _FIELDS.index, ("verdict", "scores", "failure", "usage", "warnings")
)
_members = itemgetter(*_FIELDS)
# The members of a result as JSON, in their order. Those that are True may hold other values; the
# others are texts and whole numbers.
_MEMBERS = {
    "key": False,
    "identity": False,
    "scored_by": False,
    "verdict": False,
    "retryable": False,
    "sample_id": False,
    "place": False,
    "epoch": False,
    "template": False,
    "variant": False,
    "inputs": True,
    "target": True,
    "metadata": True,
    "model": False,
    "content": False,
    "parsed": True,
    "scores": True,
    "failure": True,
    "usage": True,
    "duration_s": True,
    "started": False,
    "task_id": False,
    "task_file": False,
    "cached_calls": False,
    "interrupted_calls": False,
    "warnings": True,
    "parts": True,
}
# To copy them and set each takes half the time of a display, which CPython makes of several dicts
# where it is so long.
_NO_MEMBERS: dict[str, Any] = dict.fromkeys(_MEMBERS)
scalars_of = itemgetter(*(name for name, is_nested in _MEMBERS.items() if not is_nested))
"""The members of a result that are texts and whole numbers, which are looked at together."""
nested_of = itemgetter(*(name for name, is_nested in _MEMBERS.items() if is_nested))


def key_of(sample_id: str, epoch: int, template: str, variant: str) -> str:
    """16 hexadecimal digits: the cell of a batch that a result fills."""
    hashed = _key_hash()
    text = f"{sample_id}\0{epoch}\0{template}\0{variant}"
    hashed.update(text.encode(errors="surrogatepass"))
    return hashed.hexdigest()


# To copy an empty hash is cheaper than to make one.
_key_hash = blake2b(digest_size=8).copy


def verdict_of(failure: Failure | None, scores: Iterable[Score]) -> Verdict:
    """The verdict of a result with this failure and these scores."""
    if failure is not None:
        return Verdict.ERROR
    verdict = None
    for score in scores:
        if not score.decides:
            continue
        if score.error is not None:
            return Verdict.ERROR
        if score.passed is False:
            verdict = Verdict.FAILED
        elif verdict is not Verdict.FAILED:
            if score.passed is None:
                verdict = Verdict.UNSCORED
            else:
                verdict = verdict or Verdict.PASSED
    return verdict or Verdict.UNSCORED


Limited = Literal["scored", "failed", "error"]
COUNTED = ("output_format_failure",)
"""The default of `count_as_failed`: empty answers, and those that do not have the declared output
format.
"""
COUNTABLE = (*get_args(ErrorType), *get_args(FailureReason))
_OWN_LIMITS = ("output", "turns")
"""Limits that the model itself reaches. Any other may be reached because a server was slow or a
prompt long.
"""


def is_limited(error: TaskError) -> bool:
    """Whether a limit of the task ended its answer. Without any text, only the limits of output and
    turns count: a server that never answered is not the model's failure.
    """
    return error.resource is not None and (
        error.resource.name in _OWN_LIMITS or bool(error.content.strip())
    )


def limited_answer(error: TaskError, read: Outcome) -> TaskResult | str:
    """The answer up to the limit as a result to score, or why it cannot be read as the output
    format of its task. `read` is what `existing_answer` made of it.
    """
    if isinstance(read, TaskError):
        return read.message
    return replace(read, notes=error.notes, usage=error.usage, task_id=error.task_id)


def existing_answer(text: str, wanted: OutputFormat | None) -> Outcome:
    """A text as the result of a task with the output format `wanted`; an error if it is empty or
    unreadable.
    """
    if not text.strip():
        return TaskError(
            "INVALID_OUTPUT", "the answer is empty", reason="output_format_failure", content=text
        )
    if wanted is None or (wanted.type == "text" and wanted.schema is None):
        return TaskResult(Status.COMPLETE, text)
    parsed = parse_output(text, wanted.type, schema=wanted.schema)
    if parsed.error is not None:
        return TaskError(
            "INVALID_OUTPUT", parsed.error.message, reason="output_format_failure", content=text
        )
    return TaskResult(
        Status.COMPLETE,
        text,
        parsed_content=parsed.value,
        notes={"warnings": list(parsed.warnings)},
    )


def counts_as_failed(failure: Failure, counted: Collection[str]) -> bool:
    """Whether `counted` names the error's type or reason."""
    return failure.kind in counted or failure.type in counted


_NUMBERS = Pattern(r"0x[0-9a-f]+|[0-9]+(?:\.[0-9]+)?")


def kind_of_error(result: SampleResult) -> str:
    """An error without its numbers, so that two errors of one kind are equal."""
    if result.failure is not None:
        return _NUMBERS.sub("#", f"{result.failure.kind}: {result.failure.message}")[:300]
    found = [f"{name}: {score.error}" for name, score in result.scores.items() if score.error]
    return _NUMBERS.sub("#", "; ".join(found))[:300]
