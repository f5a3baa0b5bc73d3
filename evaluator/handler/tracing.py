"""The Tracer protocol: reports the names and times of running tasks to an external observer.

Nothing is traced unless an Evaluator is given a tracer; a span then costs less than a microsecond.
`otel` implements the protocol with OpenTelemetry; nothing here imports a tracing library.

Spans nest: a batch, its samples, the tasks of a sample and of its judges, the attempts at model
calls and the tool calls of a task, and below the tool call of a subtask that task. A tracer finds
the enclosing span in the context of the running asyncio task.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final, Protocol

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

    def __exit__(self, *_: object) -> None:
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
