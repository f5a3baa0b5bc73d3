"""The Tracer protocol, and a Tracer that writes to the log.

Nothing is traced unless an Evaluator is given a tracer; a span then costs less than a microsecond.
`otel` implements the protocol with OpenTelemetry; nothing here imports a tracing library.

Spans nest: a batch, its samples, the tasks of a sample and of its judges, the attempts at model
calls and the tool calls of a task, and below the tool call of a subtask that task. A tracer finds
the enclosing span in the context of the running asyncio task.

Writes the spans of a run to the log as well: each call with its duration, retries and failures.
A call is logged where it is traced, so that log and trace agree. While the level INFO is off, a
span costs one check and its name.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from logging import DEBUG, INFO
from typing import TYPE_CHECKING, Any, Final, Protocol

from evaluator import clock
from evaluator.errors import ProviderError
from evaluator.errors.messages import LOGGERS, Redacts, Subject, amount, log
from evaluator.errors.results import TaskError, Usage
from evaluator.models.backend import ModelResponse

if TYPE_CHECKING:
    from evaluator.models.backend import ModelRequest, ToolCall
    from evaluator.tools import Tool


class TraceSpan(Protocol):
    """An open span. It ends with its context; an exception that leaves the context is its error."""

    def set_result(self, result: Any, /) -> None:
        """Reports the result, an error included. Called at most once, inside the context; does not
        raise.
        """
        ...


class Tracer(Protocol):
    """Opens spans. Spans that are opened inside the context of another one are its children."""

    def batch(self, name: str, /) -> AbstractContextManager[TraceSpan]:
        """One session of a batch. Its result is a `batch.session.Ended`."""
        ...

    def sample(
        self, sample_id: str, epoch: int, template: str, variant: str, /
    ) -> AbstractContextManager[TraceSpan]:
        """One sample, evaluated and judged. Its result is a `batch.records.SampleResult`."""
        ...

    def task(
        self, template: str | None, version: str | None, task_id: int | None, /
    ) -> AbstractContextManager[TraceSpan]:
        """One task or subtask, of a template or of a request. Its result is a TaskResult or a
        TaskError.
        """
        ...

    def model_call(
        self, backend: str, label: str, endpoint: str, request: ModelRequest, attempt: int, /
    ) -> AbstractContextManager[TraceSpan]:
        """One attempt, from 1, at a model call. `label` is the model as users name it, `endpoint`
        where it is.

        Its result is a ModelResponse or a ProviderError.
        """
        ...

    def tool_call(self, call: ToolCall, tool: Tool | None, /) -> AbstractContextManager[TraceSpan]:
        """One call of a tool; None where the model called a tool that does not exist. Its result is
        a ToolOutcome.
        """
        ...


class _NoSpan:
    """The span that is used if nothing is traced."""

    __slots__ = ()

    def __enter__(self) -> _NoSpan:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        pass

    def set_result(self, result: object) -> None:
        pass


_NO_SPAN = _NoSpan()


class _NoTracer:
    __slots__ = ()

    def _open(self, *_: Any) -> _NoSpan:
        return _NO_SPAN

    batch = sample = task = model_call = tool_call = _open


UNTRACED: Final[Tracer] = _NoTracer()
"""Traces nothing."""


Describe = Callable[[Any], tuple[int, str]]
"""The level and the words for a result."""
_Span = AbstractContextManager[TraceSpan]


class LoggedTracer:
    """A Tracer that logs and passes everything on to `inner`."""

    def __init__(self, inner: Tracer, redactor: Redacts) -> None:
        self._inner = inner
        self._redactor = redactor

    def batch(self, name: str) -> _Span:
        inner = self._inner.batch(name)
        if not LOGGERS["tasks"].isEnabledFor(INFO):
            return inner
        return self._span("tasks", f"batch {name}", inner=inner, describe=_describe_batch)

    def sample(self, sample_id: str, epoch: int, template: str, variant: str) -> _Span:
        inner = self._inner.sample(sample_id, epoch, template, variant)
        if not LOGGERS["tasks"].isEnabledFor(INFO):
            return inner
        what = f"sample {sample_id} of {template} × {variant}, epoch {epoch}"
        return self._span("tasks", what, inner=inner, describe=_describe_sample)

    def task(self, template: str | None, version: str | None, task_id: int | None) -> _Span:
        inner = self._inner.task(template, version, task_id)
        if not LOGGERS["tasks"].isEnabledFor(INFO):
            return inner
        number = ""
        if task_id is not None:
            number = f" (TASK-{task_id})"
        what = f"task {template or 'of a request'}{number}"
        return self._span("tasks", what, inner=inner, describe=_describe_task)

    def model_call(
        self, backend: str, label: str, endpoint: str, request: ModelRequest, attempt: int
    ) -> _Span:
        inner = self._inner.model_call(backend, label, endpoint, request, attempt)
        if not LOGGERS["models"].isEnabledFor(INFO):
            return inner
        what = f"call of {label}"
        if attempt > 1:
            what += f", attempt {attempt}"
            log("models", INFO, self._redactor, "retry: %s", what)
        return self._span("models", what, inner=inner, describe=_describe_call)

    def tool_call(self, call: ToolCall, tool: Tool | None) -> _Span:
        inner = self._inner.tool_call(call, tool)
        if not LOGGERS["tools"].isEnabledFor(INFO):
            return inner
        return self._span("tools", f"tool {call.name}", inner=inner, describe=_describe_tool)

    def _span(self, subject: Subject, what: str, inner: _Span, describe: Describe) -> _Span:
        return _LoggedSpan(subject, what, inner=inner, describe=describe, redactor=self._redactor)


class _LoggedSpan(AbstractContextManager[TraceSpan]):
    __slots__ = ("_describe", "_inner", "_redactor", "_span", "_started", "_subject", "_what")

    def __init__(
        self, subject: Subject, what: str, inner: _Span, describe: Describe, redactor: Redacts
    ) -> None:
        self._subject: Subject = subject
        self._what = what
        self._inner = inner
        self._describe = describe
        self._redactor = redactor

    def __enter__(self) -> _LoggedSpan:
        self._span = self._inner.__enter__()
        self._started = clock.monotonic()
        log(self._subject, DEBUG, self._redactor, "begin: %s", self._what)
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> bool | None:
        if error is not None:
            self._log(INFO, f"ended by {type(error).__name__}: {error}")
        return self._inner.__exit__(kind, error, traceback)

    def set_result(self, result: Any) -> None:
        self._span.set_result(result)
        self._log(*self._describe(result))

    def _log(self, level: int, words: str) -> None:
        seconds = clock.monotonic() - self._started
        log(
            self._subject, level, self._redactor, "%s: %s, after %.3f s", self._what, words, seconds
        )


def _describe_call(result: ModelResponse | ProviderError) -> tuple[int, str]:
    if isinstance(result, ProviderError):
        return INFO, f"failed, {result.kind}: {result.message}"
    return DEBUG, f"{result.finish_reason}, {_tokens(result.usage)}"


def _describe_tool(outcome: Any) -> tuple[int, str]:
    if outcome.ok:
        return (DEBUG, "done")
    return (INFO, f"failed, {outcome.code or 'failed'}: {outcome.content}")


def _describe_task(outcome: Any) -> tuple[int, str]:
    if isinstance(outcome, TaskError):
        return INFO, f"failed, {outcome.reason or outcome.type}: {outcome.message}"
    return DEBUG, f"{outcome.status.value}, {_tokens(outcome.usage)}"


def _describe_sample(result: Any) -> tuple[int, str]:
    return DEBUG, result.verdict.value


def _describe_batch(ended: Any) -> tuple[int, str]:
    return DEBUG, f"{ended.state}, {amount(ended.ran, 'sample')} ran"


def _tokens(usage: Usage) -> str:
    counts = (
        "?" if count is None else str(count) for count in (usage.input_tokens, usage.output_tokens)
    )
    return "{} tokens in, {} out".format(*counts)
