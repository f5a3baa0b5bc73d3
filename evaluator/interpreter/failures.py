"""Maps exceptions to TaskErrors, so that no exception of a library reaches the caller of `evaluate`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from evaluator.errors import (
    ConfigurationError,
    ContextError,
    ExpressionError,
    InputError,
    LimitReached,
    MachineError,
    NotAllowed,
    ProviderError,
    ProviderErrorKind,
    RecordError,
    RepeatedCall,
    StepChanged,
    StepUnfinished,
    TemplateError,
    ToolError,
    UsageError,
)
from evaluator.errors.machine import machine_error
from evaluator.errors.results import ErrorType, FailureReason, Resource, ResourceName, TaskError, TaskFailed, Usage
from evaluator.nodes import Span


def failure(
    reason: FailureReason,
    message: str,
    *,
    location: Span | None = None,
    content: str = "",
    usage: Usage | None = None,
    details: Mapping[str, Any] | None = None,
    cause: BaseException | None = None,
) -> TaskError:
    """A TaskError of type TASK_FAILURE."""
    return TaskError(
        "TASK_FAILURE", message, reason, location=location, content=content, usage=usage or Usage(),
        details=details or {}, cause=cause,
    )  # fmt: skip


def to_task_error(error: Exception, usage: Usage | None = None, location: Span | None = None) -> TaskError:
    """The TaskError for `error`, which is its cause."""
    usage = usage or Usage()
    if not isinstance(error, TaskFailed):
        error = machine_error(error) or error
    match error:
        case TaskFailed():
            return error.error
        case LimitReached():
            return TaskError(
                "RESOURCE_EXHAUSTION", error.message,
                "execution_timeout" if error.resource == "time" else None,
                resource=Resource(cast("ResourceName", error.resource), error.used, error.limit),
                location=location, content=error.partial, usage=usage, cause=error,
            )  # fmt: skip
        case ProviderError():
            return TaskError(
                "TASK_FAILURE", _of_provider(error), "provider_failure", location=location,
                content=error.partial or "", usage=usage, retryable=error.retryable,
                maybe_billed=error.maybe_billed, details={"kind": error.kind, "http_status": error.status},
                cause=error,
            )  # fmt: skip
        case ExpressionError():
            return TaskError(
                "TASK_FAILURE", error.message, "template_resolution_failure", location=error.span,
                violations=(error.diagnostic(),), usage=usage, cause=error,
            )  # fmt: skip
        case TemplateError():
            return _of_template(error, usage, location)
        case ContextError():
            reason: FailureReason = "context_retrieval_failure"
        case ToolError():
            reason = "tool_failure"
        case UsageError():
            reason = "input_validation_failure"
        case StepChanged():
            details = {"path": error.path, "recorded": error.recorded, "now": error.now}
            return failure("execution_halted", str(error), usage=usage, details=details, cause=error)
        case StepUnfinished():
            details = {"path": error.path, "name": error.name, "can_tell": error.can_tell}
            return failure("execution_halted", str(error), usage=usage, details=details, cause=error)
        case RecordError() | MachineError() | ConfigurationError() | NotAllowed() | RepeatedCall():
            reason = "execution_halted"
        case _:
            return TaskError(
                "TASK_FAILURE", f"{type(error).__name__}: {error}", "unexpected_error", location=location,
                usage=usage, cause=error,
            )  # fmt: skip
    return TaskError("TASK_FAILURE", str(error), reason, location=location, usage=usage, cause=error)


# What to do about a failed model call, by its kind. Other kinds say it themselves.
_ADVICE: dict[ProviderErrorKind, str] = {
    "rate_limit": "lower the concurrency, or try again later",
    "server": "the provider has a fault; try again later",
    "timeout": "try again, or give the task a longer timeout",
    "connection": "check the address and the network; `evaluator doctor` tries what is configured",
    "authentication": "check the key; `evaluator doctor` says which one is used",
    "bad_request": "check the settings of the profile and the template for this model",
    "not_found": "check the model's name and the profile's base_url",
    "context_length": "shorten the prompt, or use a model with a larger window",
    "malformed_response": "try again; if it repeats, check the profile's base_url",
}


def _of_provider(error: ProviderError) -> str:
    """What failed, where and what to do."""
    advice = _ADVICE.get(error.kind)
    where = f" ({error.where})" if error.where and error.where not in error.message else ""
    return f"model call failed: {error.message}" + (f"{where}; {advice}" if advice else "")


_SYNTAX_CODES = frozenset({"not-well-formed", "empty", "encoding", "doctype", "unclosed-placeholder", "no-task"})


def _of_template(error: TemplateError, usage: Usage, location: Span | None) -> TaskError:
    found = error.diagnostics
    codes = {diagnostic.code for diagnostic in found}
    kind: ErrorType = "VALIDATION_ERROR"
    reason: FailureReason = "xml_validation_failure"
    if isinstance(error, InputError):
        kind, reason = "TASK_FAILURE", "input_validation_failure"
    elif codes & _SYNTAX_CODES:
        kind = "XML_PARSE_ERROR"
    return TaskError(
        kind, "; ".join(d.message for d in found), reason, location=found[0].span if found else location,
        violations=found, usage=usage, cause=error,
    )  # fmt: skip
