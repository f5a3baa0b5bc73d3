"""What an evaluation gives back: a TaskResult or a TaskError, both values with the same outer fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import inf
from typing import Any, Literal, NewType, NoReturn

from evaluator.errors import Diagnostic, EvaluatorError
from evaluator.nodes import Span

TaskId = NewType("TaskId", int)


class Status(StrEnum):
    COMPLETE = "COMPLETE"
    CONTINUATION = "CONTINUATION"
    FAILED = "FAILED"


ErrorType = Literal["RESOURCE_EXHAUSTION", "TASK_FAILURE", "INVALID_OUTPUT", "VALIDATION_ERROR", "XML_PARSE_ERROR"]

FailureReason = Literal[
    "template_resolution_failure",
    "input_validation_failure",
    "no_matching_template",
    "context_retrieval_failure",
    "context_matching_failure",
    "context_parsing_failure",
    "xml_validation_failure",
    "output_format_failure",
    "execution_timeout",
    "execution_halted",
    "subtask_failure",
    "tool_failure",
    "provider_failure",
    "unexpected_error",
]

ResourceName = Literal["turns", "context", "output", "time", "tokens", "cost", "depth"]


@dataclass(frozen=True, slots=True)
class Usage:
    """What was used. Tokens and cost are None where nobody said, never a guess of zero."""

    input_tokens: int | None = 0
    output_tokens: int | None = 0
    cached_tokens: int | None = 0
    reasoning_tokens: int | None = 0
    cost_usd: float | None = 0.0
    turns: int = 0
    tool_calls: int = 0

    def __add__(self, other: Usage) -> Usage:
        a, b = self, other
        return Usage(
            None if a.input_tokens is None or b.input_tokens is None else a.input_tokens + b.input_tokens,
            None if a.output_tokens is None or b.output_tokens is None else a.output_tokens + b.output_tokens,
            None if a.cached_tokens is None or b.cached_tokens is None else a.cached_tokens + b.cached_tokens,
            None
            if a.reasoning_tokens is None or b.reasoning_tokens is None
            else a.reasoning_tokens + b.reasoning_tokens,
            None if self.cost_usd is None or other.cost_usd is None else self.cost_usd + other.cost_usd,
            self.turns + other.turns,
            self.tool_calls + other.tool_calls,
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "cached_tokens": self.cached_tokens,
            "reasoning_tokens": self.reasoning_tokens,
            "cost_usd": self.cost_usd,
            "turns": self.turns,
            "tool_calls": self.tool_calls,
        }

    def sound(self) -> Usage:
        """Without numbers that nothing can have used (NaN, infinite, negative): they are unknown. Itself, if all are
        sound."""
        values = self.to_dict()
        wrong = {name: None for name, value in values.items() if value is not None and not 0 <= value < inf}
        if not wrong:
            return self
        # Turns and calls are counted here, and never unknown.
        return Usage.from_dict({**values, **wrong, "turns": max(0, self.turns), "tool_calls": max(0, self.tool_calls)})

    def said(self) -> dict[str, Any]:
        """Without what is 0; None, which nobody said, stays. `from_dict` reads it back."""
        return {name: value for name, value in self.to_dict().items() if value != 0}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Usage:
        known: dict[str, Any] = {name: data[name] for name in _USAGE_FIELDS if name in data}
        return cls(**known)


_USAGE_FIELDS = (
    "input_tokens",
    "output_tokens",
    "cached_tokens",
    "reasoning_tokens",
    "cost_usd",
    "turns",
    "tool_calls",
)


@dataclass(frozen=True, slots=True)
class Resource:
    """Which limit fired. `used` and `limit` are in the limit's unit: turns, tokens, seconds, US dollars, levels."""

    name: ResourceName
    used: float
    limit: float


@dataclass(frozen=True, slots=True)
class TaskResult:
    """A finished task.

    `content` is the text as the model or script gave it; `parsed_content` the value read from it where an
    output format was declared and reading it succeeded (None otherwise: see `notes["warnings"]`).
    `notes` holds `data_usage`, `warnings`, `template`, `context` and what the operator adds.
    """

    status: Status
    content: str
    parsed_content: Any = None
    notes: Mapping[str, Any] = field(default_factory=dict)
    usage: Usage = Usage()
    task_id: TaskId | None = None

    @property
    def ok(self) -> bool:
        return self.status is Status.COMPLETE

    def unwrap(self) -> TaskResult:
        """This result itself; `TaskError.unwrap` raises."""
        return self

    def to_dict(self) -> dict[str, Any]:
        return {
            "status": self.status.value,
            "content": self.content,
            "parsed_content": self.parsed_content,
            "notes": dict(self.notes),
            "usage": self.usage.to_dict(),
            "task_id": self.task_id,
        }


@dataclass(frozen=True, slots=True)
class TaskError:
    """A task that failed: a value, returned by `evaluate`; `unwrap()` raises it as TaskFailed.

    `content` is what there was before it failed. `violations` are findings about a template, an input or
    an output. `retryable`: the same evaluation may succeed later. `maybe_billed`: a call without an answer
    may have been charged. `details` holds what the operator adds (`failed_step`, `partial_results`, …).
    """

    type: ErrorType
    message: str
    reason: FailureReason | None = None
    resource: Resource | None = None
    location: Span | None = None
    violations: tuple[Diagnostic, ...] = ()
    content: str = ""
    notes: Mapping[str, Any] = field(default_factory=dict)
    usage: Usage = Usage()
    retryable: bool = False
    maybe_billed: bool = False
    details: Mapping[str, Any] = field(default_factory=dict)
    task_id: TaskId | None = None
    cause: BaseException | None = field(default=None, compare=False, repr=False)

    @property
    def status(self) -> Status:
        return Status.FAILED

    @property
    def ok(self) -> Literal[False]:
        return False

    @property
    def parsed_content(self) -> Any:
        return None

    def unwrap(self) -> NoReturn:
        """Raises: TaskFailed, always; the cause is the exception of the library below, if there was one."""
        raise TaskFailed(self) from self.cause

    def __str__(self) -> str:
        what = f"{self.type}({self.reason})" if self.reason else self.type
        where = f" at {self.location}" if self.location else ""
        return f"{what}{where}: {self.message}"

    def to_dict(self) -> dict[str, Any]:
        return {
            "status": "FAILED",
            "type": self.type,
            "reason": self.reason,
            "message": self.message,
            "resource": None
            if self.resource is None
            else {"name": self.resource.name, "used": self.resource.used, "limit": self.resource.limit},
            "location": None
            if self.location is None
            else {"file": self.location.file, "line": self.location.line, "column": self.location.column},
            "violations": [
                {
                    "severity": d.severity,
                    "code": d.code,
                    "message": d.message,
                    "hint": d.hint,
                    "file": d.span.file,
                    "line": d.span.line,
                    "column": d.span.column,
                }
                for d in self.violations
            ],
            "content": self.content,
            "notes": dict(self.notes),
            "usage": self.usage.to_dict(),
            "retryable": self.retryable,
            "maybe_billed": self.maybe_billed,
            "details": dict(self.details),
            "task_id": self.task_id,
            "cause": None if self.cause is None else f"{type(self.cause).__name__}: {self.cause}",
        }

    def with_task(self, task_id: TaskId | None, usage: Usage) -> TaskError:
        return replace(self, task_id=task_id, usage=usage)


def outcome_from_dict(data: Mapping[str, Any]) -> TaskResult | TaskError:
    """What `to_dict` made, as it was but for the cause of an error, which is in `details` as text.

    Raises: KeyError or ValueError, if it is not that.
    """
    shared: dict[str, Any] = {
        "content": data["content"],
        "notes": data["notes"],
        "usage": Usage.from_dict(data["usage"]),
        "task_id": None if data["task_id"] is None else TaskId(data["task_id"]),
    }
    if data["status"] != "FAILED":
        return TaskResult(Status(data["status"]), parsed_content=data["parsed_content"], **shared)
    resource, place, cause = data["resource"], data["location"], data["cause"]
    return TaskError(
        data["type"],
        data["message"],
        data["reason"],
        resource=None if resource is None else Resource(resource["name"], resource["used"], resource["limit"]),
        location=None if place is None else Span(place["file"], place["line"], place["column"]),
        violations=tuple(
            Diagnostic(d["severity"], d["code"], d["message"], Span(d["file"], d["line"], d["column"]), d["hint"])
            for d in data["violations"]
        ),
        retryable=data["retryable"],
        maybe_billed=data["maybe_billed"],
        details=data["details"] if cause is None else {**data["details"], "cause": cause},
        **shared,
    )


class TaskFailed(EvaluatorError):
    """Raised by `unwrap()`; `error` is the TaskError."""

    def __init__(self, error: TaskError) -> None:
        super().__init__(str(error))
        self.error = error

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.error,))
