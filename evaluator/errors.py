"""Every error of this package.

EvaluatorError                  base of all that is raised here
├── UsageError                  you: a call with arguments that do not fit
│   └── RowError (in `batch.rows`)  you: a row, or where rows come from; says file, line and column
├── ConfigurationError          you: a profile, a key or a setting
│   └── MissingExtra            an optional package; names the extra that installs it
├── TemplateError               you: a template; carries diagnostics with line and column
├── ExpressionError             you: an expression or a text that cannot be resolved
│   └── SandboxError            an expression that did what the sandbox forbids, or passed its bounds
├── ClusterLost (in `batch.engines.pool`)  the world: no node of a cluster is left
├── RecordError                 the world: a task file or its folder
│   ├── CorruptRecord           a task file whose bytes are not what was written
│   ├── RecordEnds              a replay that comes to where the record ends
│   ├── TaskNotBegun            a task file that ends inside its header
│   ├── TaskBusy                a task that another process runs
│   ├── StepChanged             you: a step that is not the one that was recorded
│   └── StepUnfinished          the world: nobody knows whether a side effect took place
├── ProviderError               the world: a model backend's answer or the way to it
├── ContextError                the world: memory failed when it was asked for context
├── ToolError                   the world: a tool could not do what it was asked
├── SessionClosed               you: a Handler used after its task has ended
├── LimitReached                a limit fired; becomes RESOURCE_EXHAUSTION
└── TaskFailed (in `results`)    carries a TaskError; raised by `TaskError.unwrap()` only

`Diagnostic` and `TaskError` (in `results`) are values: they are returned, printed and recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from evaluator.nodes import Span

Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One finding about a source. `code` is a stable word (`undefined-variable`), `hint` what to do."""

    severity: Severity
    code: str
    message: str
    span: Span
    hint: str | None = None

    def __str__(self) -> str:
        text = f"{self.span}: {self.severity}: {self.message} [{self.code}]"
        return f"{text}\n  hint: {self.hint}" if self.hint else text


class EvaluatorError(Exception):
    """Base of every exception that this package raises on purpose."""


class UsageError(EvaluatorError):
    """A call whose arguments do not fit what was declared."""


class ConfigurationError(EvaluatorError):
    """A profile, key or setting is missing or wrong."""


class MissingExtra(ConfigurationError):
    """An optional package is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed; install it with: pip install 'evaluator[{extra}]'")
        self.package = package
        self.extra = extra

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.package, self.extra))


class TemplateError(EvaluatorError):
    """A template cannot be used; `diagnostics` say where and why."""

    def __init__(self, diagnostics: Sequence[Diagnostic]) -> None:
        super().__init__("\n".join(str(d) for d in diagnostics))
        self.diagnostics = tuple(diagnostics)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.diagnostics,))


class ExpressionError(EvaluatorError):
    """A text or an expression cannot be resolved. `code` is `undefined-variable`, `wrong-arity`, …"""

    def __init__(self, message: str, span: Span, code: str = "expression") -> None:
        super().__init__(message)
        self.message = message
        self.span = span
        self.code = code

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.message, self.span, self.code))

    def diagnostic(self) -> Diagnostic:
        return Diagnostic("error", self.code, self.message, self.span)


class SandboxError(ExpressionError):
    """An expression tried what the sandbox forbids, or passed its bound on time or size."""


class RecordError(EvaluatorError):
    """A task file or its folder cannot be read or written."""


class CorruptRecord(RecordError):
    """A task file's bytes are not what was written. `line` is 1-based, `offset` in bytes."""

    def __init__(self, path: str, line: int, offset: int, message: str) -> None:
        super().__init__(f"{path}:{line}: {message} (byte {offset})")
        self.path, self.line, self.offset, self.message = path, line, offset, message

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.path, self.line, self.offset, self.message))


class TaskNotBegun(RecordError):
    """A task file ends inside its header, so that nothing was done: there is nothing to go on with."""


class TaskBusy(RecordError):
    """A task cannot be taken over: a process runs it."""


class StepChanged(RecordError):
    """A step that is evaluated again is not the one that was recorded. `path` is the step's; `recorded` and `now`
    are the two sides of the first difference, None where there is none to show."""

    def __init__(self, path: str, message: str, recorded: str | None = None, now: str | None = None) -> None:
        has_sides = recorded is not None or now is not None
        sides = f": recorded {recorded or 'nothing'}, now {now or 'nothing'}" if has_sides else ""
        super().__init__(f"{path}: {message}{sides}")
        self.path, self.message, self.recorded, self.now = path, message, recorded, now

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.path, self.message, self.recorded, self.now))


class RecordEnds(RecordError):
    """A run that is replayed comes to a step of which the record holds no end: it was interrupted there."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path}: the record ends here")
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.path,))


class StepUnfinished(RecordError):
    """A step with a side effect was begun in an earlier run, and nobody knows how it ended.

    `can_tell`: instead of being repeated, it may be told to the model: a tool call, and not a script.
    """

    def __init__(self, path: str, name: str, how: str, can_tell: bool = True) -> None:
        super().__init__(f"{path}: {name} {how}; see what it did, then say whether to repeat it")
        self.path, self.name, self.how, self.can_tell = path, name, how, can_tell

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.path, self.name, self.how, self.can_tell))


ProviderErrorKind = Literal[
    "rate_limit",
    "server",
    "timeout",
    "connection",
    "authentication",
    "bad_request",
    "not_found",
    "context_length",
    "content_filter",
    "malformed_response",
    "other",
]


class ProviderError(EvaluatorError):
    """A model call failed. `retryable`: the same call may succeed later. `maybe_billed`: it may have cost."""

    def __init__(
        self,
        message: str,
        *,
        kind: ProviderErrorKind = "other",
        status: int | None = None,
        retryable: bool = False,
        retry_after_s: float | None = None,
        maybe_billed: bool = False,
        partial: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.kind: ProviderErrorKind = kind
        self.status = status
        self.retryable = retryable
        self.retry_after_s = retry_after_s
        self.maybe_billed = maybe_billed
        self.partial = partial

    def __reduce__(self) -> tuple[Any, ...]:
        return (_provider_error, (self.message, {k: v for k, v in vars(self).items() if k != "message"}))


def _provider_error(message: str, fields: dict[str, Any]) -> ProviderError:
    return ProviderError(message, **fields)


class ContextError(EvaluatorError):
    """Memory failed when it was asked for context."""


class ToolError(EvaluatorError):
    """A tool could not do what it was asked; the text goes back to the model."""


class SessionClosed(EvaluatorError):
    """A Handler was used after the task that owned it had ended."""


class LimitReached(EvaluatorError):
    """A limit fired. `resource` is one of turns, context, output, time, tokens, cost, depth; both numbers have its
    unit."""

    def __init__(self, resource: str, used: float, limit: float, message: str, partial: str = "") -> None:
        super().__init__(message)
        self.resource = resource
        self.used = used
        self.limit = limit
        self.message = message
        self.partial = partial

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.resource, self.used, self.limit, self.message, self.partial))


class NotLetIn(LimitReached):
    """A call whose turn will not come: the batch was asked to stop, or its budget is spent. Nothing was sent.

    It ends the whole run that wanted it, which no task or model in it is told of: the run goes on from there later.
    """
