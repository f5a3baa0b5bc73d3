"""Maps exceptions to TaskErrors, so that no exception of a library reaches the caller of
`evaluate`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
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
    machine_error,
)
from evaluator.errors.results import (
    ErrorType,
    FailureReason,
    Resource,
    ResourceName,
    TaskError,
    TaskFailed,
    Usage,
)
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
        "TASK_FAILURE",
        message,
        reason=reason,
        location=location,
        content=content,
        usage=usage or Usage(),
        details=details or {},
        cause=cause,
    )


# The reason for each exception; the first class that fits decides.
_REASONS: tuple[tuple[type[Exception] | tuple[type[Exception], ...], FailureReason], ...] = (
    (ProviderError, "provider_failure"),
    (ExpressionError, "template_resolution_failure"),
    (InputError, "input_validation_failure"),
    (TemplateError, "xml_validation_failure"),
    (ContextError, "context_retrieval_failure"),
    (ToolError, "tool_failure"),
    (UsageError, "input_validation_failure"),
    ((RecordError, MachineError, ConfigurationError, NotAllowed, RepeatedCall), "execution_halted"),
    (Exception, "unexpected_error"),
)


def to_task_error(
    error: Exception, usage: Usage | None = None, location: Span | None = None
) -> TaskError:
    """The TaskError for `error`, which is its cause."""
    if isinstance(error, TaskFailed):
        return error.error
    error = machine_error(error) or error
    reason: FailureReason = next(
        reason_of_classes for classes, reason_of_classes in _REASONS if isinstance(error, classes)
    )
    message = str(error)
    if reason == "unexpected_error":
        message = ", ".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])
    failed = TaskError(
        "TASK_FAILURE",
        message,
        reason=reason,
        location=location,
        usage=usage or Usage(),
        cause=error,
    )
    match error:
        case LimitReached():
            return replace(
                failed,
                type="RESOURCE_EXHAUSTION",
                message=error.message,
                reason="execution_timeout" if error.resource == "time" else None,
                resource=Resource(
                    cast("ResourceName", error.resource), error.used, limit=error.limit
                ),
                content=error.partial,
            )
        case ProviderError():
            return replace(
                failed,
                message=_of_provider(error),
                content=error.partial or "",
                retryable=error.retryable,
                maybe_billed=error.maybe_billed,
                details={"kind": error.kind, "http_status": error.status},
            )
        case ExpressionError():
            return replace(
                failed, message=error.message, location=error.span, violations=(error.diagnostic(),)
            )
        case TemplateError():
            return _of_template(error, failed)
        case StepChanged():
            return replace(
                failed, details={"path": error.path, "recorded": error.recorded, "now": error.now}
            )
        case StepUnfinished():
            return replace(
                failed, details={"path": error.path, "name": error.name, "can_tell": error.can_tell}
            )
        case _:
            return failed


def redacted(error: TaskError, redact: Callable[[str], str]) -> TaskError:
    """`error` without secrets in what it says about the failure: a server may repeat a key there,
    and a message reaches terminals and logs. The content, which is an answer, stays as it came.
    """
    cause = error.cause
    causes: list[BaseException] = []
    while cause is not None and cause not in causes:  # a traceback shows them all
        if redact(str(cause)) != str(cause):
            _redact_exception(cause, redact)
        causes.append(cause)
        cause = cause.__cause__
    return replace(
        error,
        message=redact(error.message),
        violations=tuple(
            replace(finding, message=redact(finding.message)) for finding in error.violations
        ),
    )


def _redact_exception(error: BaseException, redact: Callable[[str], str]) -> None:
    """The same exception, whose type and traceback say what happened, with other texts."""
    error.args = tuple(redact(part) if isinstance(part, str) else part for part in error.args)
    for name in _TEXTS_OF_EXCEPTIONS:
        text = getattr(error, name, None)
        if isinstance(text, str):
            setattr(error, name, redact(text))


# `message` is that of our own exceptions; an OSError and a UnicodeError show the others, and not
# their arguments.
_TEXTS_OF_EXCEPTIONS = ("message", "strerror", "filename", "filename2", "reason")

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
    message = f"model call failed: {error.message}"
    if not advice:
        return message
    if error.where and error.where not in error.message:
        message += f" ({error.where})"
    return f"{message}; {advice}"


_SYNTAX_CODES = frozenset(
    {"not-well-formed", "empty", "encoding", "doctype", "unclosed-placeholder", "no-task"}
)


def _of_template(error: TemplateError, failed: TaskError) -> TaskError:
    violations = error.diagnostics
    kind: ErrorType
    if isinstance(error, InputError):
        kind = "TASK_FAILURE"
    else:
        kind = "VALIDATION_ERROR"
    if kind == "VALIDATION_ERROR" and any(
        violation.code in _SYNTAX_CODES for violation in violations
    ):
        kind = "XML_PARSE_ERROR"
    return replace(
        failed,
        type=kind,
        message="; ".join(violation.message for violation in violations),
        violations=violations,
        location=violations[0].span if violations else failed.location,
    )
