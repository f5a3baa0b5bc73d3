"""The results of an evaluation: TaskResult or TaskError, two values with the same outer fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, field, fields
from enum import StrEnum
from typing import Any, Literal, NewType, NoReturn, TypeAlias

from evaluator.errors import Diagnostic, EvaluatorError, messages
from evaluator.lazy_dataclass import frozen
from evaluator.nodes import Span

TaskId = NewType("TaskId", int)
CONDITION_MET = "condition_met"
"""The note `termination_reason` of a task whose condition held; any other reason says why it ended
before that.
"""


class Status(StrEnum):
    """The status of a result; a TaskError always has FAILED."""

    COMPLETE = "COMPLETE"
    CONTINUATION = "CONTINUATION"
    FAILED = "FAILED"


ErrorType = Literal[
    "RESOURCE_EXHAUSTION", "TASK_FAILURE", "INVALID_OUTPUT", "VALIDATION_ERROR", "XML_PARSE_ERROR"
]

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


MAX_CALL_TOKENS = 100_000_000
"""More tokens than any model takes or gives in one call."""
MAX_CALL_COST_USD = 100_000.0


@frozen
class Usage:
    """Tokens, cost and calls that were used. Tokens and cost are None where they are unknown, never
    a guess of zero.

    Input tokens include `cached_tokens`, which the provider read from its prompt cache, and
    `cache_write_tokens`, which it reports as written there. `cache_saved_usd` is what both saved of
    the cost; it is negative where writing cost more than reading saved.
    """

    input_tokens: int | None = 0
    output_tokens: int | None = 0
    cached_tokens: int | None = 0
    reasoning_tokens: int | None = 0
    cost_usd: float | None = 0.0
    turns: int = 0
    tool_calls: int = 0
    cache_write_tokens: int | None = 0
    cache_saved_usd: float | None = 0.0

    def __add__(self, other: Usage) -> Usage:
        """The sum; a figure that is unknown on one side is unknown in the sum."""
        # In full, here and below: a loop over the names takes several times as long.
        return Usage(
            _sum(self.input_tokens, other.input_tokens),
            _sum(self.output_tokens, other.output_tokens),
            cached_tokens=_sum(self.cached_tokens, other.cached_tokens),
            reasoning_tokens=_sum(self.reasoning_tokens, other.reasoning_tokens),
            cost_usd=_sum(self.cost_usd, other.cost_usd),
            turns=_sum(self.turns, other.turns),
            tool_calls=_sum(self.tool_calls, other.tool_calls),
            cache_write_tokens=_sum(self.cache_write_tokens, other.cache_write_tokens),
            cache_saved_usd=_sum(self.cache_saved_usd, other.cache_saved_usd),
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
            "cache_write_tokens": self.cache_write_tokens,
            "cache_saved_usd": self.cache_saved_usd,
        }

    def without_invalid(self) -> Usage:
        """The same usage with impossible figures as None; itself if there are none, see
        `invalid`.
        """
        names = self.invalid()
        if not names:
            return self
        wrong: dict[str, Any] = dict.fromkeys(names)
        # Turns and tool calls are counted here and never unknown.
        wrong |= {name: least for name, least in (("turns", 1), ("tool_calls", 0)) if name in wrong}
        return Usage.from_dict({**self.to_dict(), **wrong})

    def invalid(self) -> tuple[str, ...]:
        """The names of the figures that no single call can have: negative, NaN, not a number, a
        count that is not an integer, above MAX_CALL_TOKENS and MAX_CALL_COST_USD, or more tokens
        read from and written to the prompt cache than there are input tokens.
        """
        wrong: list[str] = []
        for name, value in self.to_dict().items():
            if value is None:
                continue
            numbers, least, most = _FIGURES[name]
            if type(value) in numbers and least <= value <= most:
                continue
            # A subclass of a number, but no bool.
            is_number = isinstance(value, numbers) and not isinstance(value, bool)
            if not is_number or not least <= value <= most:
                wrong.append(name)
        if self.cached_tokens or self.cache_write_tokens:
            wrong += self._above_input(wrong)
        return tuple(wrong)

    def _above_input(self, wrong: Sequence[str]) -> list[str]:
        """The names of the counts of the prompt cache, if these are more than the input tokens that
        they are a part of. A count in `wrong`, or an unknown one, proves nothing.
        """
        if self.input_tokens is None or "input_tokens" in wrong:
            return []
        known: dict[str, int] = {}
        for name in ("cached_tokens", "cache_write_tokens"):
            count = getattr(self, name)
            if count and name not in wrong:
                known[name] = count
        if sum(known.values()) <= self.input_tokens:
            return []
        return list(known)

    def non_zero(self) -> dict[str, Any]:
        """The figures that are not 0, None (unknown) included. `from_dict` reads them."""
        figures: dict[str, Any] = {}
        if self.input_tokens != 0:
            figures["input_tokens"] = self.input_tokens
        if self.output_tokens != 0:
            figures["output_tokens"] = self.output_tokens
        if self.cached_tokens != 0:
            figures["cached_tokens"] = self.cached_tokens
        if self.reasoning_tokens != 0:
            figures["reasoning_tokens"] = self.reasoning_tokens
        if self.cost_usd != 0:
            figures["cost_usd"] = self.cost_usd
        if self.turns != 0:
            figures["turns"] = self.turns
        if self.tool_calls != 0:
            figures["tool_calls"] = self.tool_calls
        if self.cache_write_tokens != 0:
            figures["cache_write_tokens"] = self.cache_write_tokens
        if self.cache_saved_usd != 0:
            figures["cache_saved_usd"] = self.cache_saved_usd
        return figures

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Usage:
        return cls(**{name: data[name] for name in _USAGE_FIELDS if name in data})


def _sum(one: Any, other: Any) -> Any:
    if one is None or other is None:
        return None
    return one + other


_USAGE_FIELDS = tuple(each.name for each in fields(Usage))
_Bounds = tuple[tuple[type, ...], float, float]
_COUNT: _Bounds = ((int,), 0, MAX_CALL_TOKENS)
_DOLLARS: dict[str, _Bounds] = {
    "cost_usd": ((int, float), 0, MAX_CALL_COST_USD),
    "cache_saved_usd": ((int, float), -MAX_CALL_COST_USD, MAX_CALL_COST_USD),
}
_FIGURES = {name: _DOLLARS.get(name, _COUNT) for name in _USAGE_FIELDS}
"""The figures of a call: their types, the least and the most."""


@frozen
class Resource:
    """The limit that fired. `used` and `limit` are in the limit's unit: turns, tokens, seconds, US
    dollars, levels.
    """

    name: ResourceName
    used: float
    limit: float


def _shown(outcome: Outcome) -> dict[str, object]:
    """What a notebook shows of a result besides its text."""
    usage = outcome.usage
    notes = outcome.notes
    if usage.cost_usd is None:
        cost = None
    else:
        cost = f"${usage.cost_usd:.4f}"
        if notes.get("interrupted_calls"):
            cost = f"at least {cost}"
    return {
        "template": notes.get("template"),
        "models": ", ".join(notes.get("models", ())),
        "warnings": "\n".join(map(str, notes.get("warnings", ()))),
        "cost": cost,
        "task": outcome.task_id,
    }


_DATA = frozenset({dict, list, str, int, float, bool, type(None)})


def data_of(value: Any) -> Any:
    """`value` itself if it is JSON data, else the JSON data of an instance of a Pydantic model or a
    dataclass.
    """
    if type(value) in _DATA:
        return value
    import pydantic

    return pydantic.TypeAdapter(type(value)).dump_python(value, mode="json", by_alias=True)


@frozen
class TaskResult:
    """A finished task.

    `content` is the text that the model or script returned. `parsed_content` is the value read from
    it, if an output format was declared and the text fits it, an instance where the schema is a
    class; otherwise None, see `notes["warnings"]`. `notes` has `data_usage`,
    `warnings`, `template`, `context` and what the operator adds.
    """

    status: Status
    content: str
    parsed_content: Any = None
    notes: Mapping[str, Any] = field(default_factory=dict)
    usage: Usage = Usage()
    task_id: TaskId | None = None

    @property
    def ok(self) -> Literal[True]:
        """Whether it is a TaskResult: tells the two classes of `Outcome` apart, for type checkers
        too.
        """
        return True

    def _repr_html_(self) -> str:
        return messages.fields(
            f"TaskResult: {self.status.value}", {"content": self.content} | _shown(self)
        )

    @property
    def parsed_data(self) -> Any:
        """`parsed_content` as JSON data; an instance of a class that `module:Model` names is
        written as its fields.
        """
        return data_of(self.parsed_content)

    def unwrap(self) -> TaskResult:
        """This result itself; `TaskError.unwrap` raises."""
        return self

    def to_dict(self) -> dict[str, Any]:
        return {
            # The value of the status; `value` is a property that is written in Python.
            "status": str(self.status),
            "content": self.content,
            "parsed_content": self.parsed_data,
            "notes": dict(self.notes),
            "usage": self.usage.to_dict(),
            "task_id": self.task_id,
        }


@frozen
class TaskError:
    """A failed task: a value that `evaluate` returns. `unwrap()` raises it as TaskFailed.

    `content` is the partial answer. `violations` are findings about a template, an input or an
    output. `retryable`: the same evaluation may succeed later. `maybe_billed`: a call without an
    answer may have been charged. `details` has what the operator adds (`failed_step`,
    `partial_results`, …).
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
        """Whether it is a TaskResult: tells the two classes of `Outcome` apart, for type checkers
        too.
        """
        return False

    def _repr_html_(self) -> str:
        title = f"TaskError: {self.type}{f' ({self.reason})' if self.reason else ''}"
        shown = {"message": self.message, "location": self.location, "content": self.content}
        return messages.fields(title, shown | _shown(self))

    @property
    def parsed_content(self) -> Any:
        return None

    def unwrap(self) -> NoReturn:
        """Raises: TaskFailed, always. Its cause is the exception behind the failure, if there was
        one.
        """
        raise TaskFailed(self) from self.cause

    def __str__(self) -> str:
        if self.reason:
            what = f"{self.type}({self.reason})"
        else:
            what = self.type
        if self.location:
            where = f" at {self.location}"
        else:
            where = ""
        return f"{what}{where}: {self.message}"

    def to_dict(self) -> dict[str, Any]:
        return {
            "status": "FAILED",
            **{each.name: getattr(self, each.name) for each in fields(self)},
            "resource": None if self.resource is None else asdict(self.resource),
            "location": None if self.location is None else asdict(self.location),
            "violations": [violation.to_dict() for violation in self.violations],
            "notes": dict(self.notes),
            "usage": self.usage.to_dict(),
            "details": dict(self.details),
            "cause": None if self.cause is None else f"{type(self.cause).__name__}: {self.cause}",
        }


Outcome: TypeAlias = TaskResult | TaskError
"""What an evaluation returns. `outcome.ok` says which of the two it is."""


def outcome_from_dict(data: Mapping[str, Any]) -> Outcome:
    """The result that `to_dict` turned into `data`. The cause of an error is only a text, in
    `details`.

    Raises: KeyError, TypeError or ValueError, if `data` is something else.
    """
    shared: dict[str, Any] = {
        "content": data["content"],
        "notes": data["notes"],
        "usage": Usage.from_dict(data["usage"]),
        "task_id": None if data["task_id"] is None else TaskId(data["task_id"]),
    }
    if data["status"] != "FAILED":
        return TaskResult(Status(data["status"]), parsed_content=data["parsed_content"], **shared)
    resource = data["resource"]
    place = data["location"]
    cause = data["cause"]
    return TaskError(
        data["type"],
        data["message"],
        reason=data["reason"],
        resource=None if resource is None else Resource(**resource),
        location=None if place is None else Span(**place),
        violations=tuple(map(Diagnostic.from_dict, data["violations"])),
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
