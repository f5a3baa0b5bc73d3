"""The seam to a tracer: what is timed and named while tasks run, for whoever looks at it from outside.

Nothing is traced unless an Evaluator is given a tracer. What there is without one costs less than a microsecond a
span. `otel` makes OpenTelemetry spans of it; nothing here knows any tracing library.

Spans nest as what they stand for: a batch, its samples, a sample's tasks and its judges', a task's attempts at model
calls and its tool calls, and below a tool call that is a subtask that task. A tracer finds the span above in the
context of the running asyncio task.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

if TYPE_CHECKING:
    from evaluator.errors import ProviderError
    from evaluator.handler.backend import ModelRequest, ModelResponse, ToolCall
    from evaluator.handler.tools import Tool
    from evaluator.handler.tools.registry import ToolOutcome
    from evaluator.results import TaskError, TaskResult

What = TypeVar("What", contravariant=True)


class Judged(Protocol):
    """What one scorer said; see `batch.records.Score`."""

    @property
    def value(self) -> float | None: ...
    @property
    def passed(self) -> bool | None: ...
    @property
    def explanation(self) -> str: ...
    @property
    def error(self) -> str | None: ...


class Failed(Protocol):
    """Why there is no answer; see `batch.records.Failure`."""

    @property
    def kind(self) -> str: ...
    @property
    def message(self) -> str: ...


class Evaluated(Protocol):
    """What came of a sample; see `batch.records.SampleResult`."""

    @property
    def verdict(self) -> str: ...
    @property
    def scores(self) -> Mapping[str, Judged]: ...
    @property
    def failure(self) -> Failed | None: ...


class BatchEnd(Protocol):
    """How a batch's session ended; see `batch.session.Ended`."""

    @property
    def state(self) -> str: ...
    @property
    def ran(self) -> int: ...
    @property
    def total(self) -> int | None: ...


class Span(Protocol[What]):
    """A span that is open. It ends with its context; an exception that leaves the context is its error."""

    def ended(self, what: What) -> None:
        """Says what came of it, an error included. Called at most once, inside the context; does not raise."""
        ...


class Tracer(Protocol):
    """Opens spans. Entering one makes it the span above those that are opened inside its context."""

    def batch(self, name: str, /) -> AbstractContextManager[Span[BatchEnd]]:
        """One session of a batch."""
        ...

    def sample(
        self, sample_id: str, epoch: int, template: str, variant: str, /
    ) -> AbstractContextManager[Span[Evaluated]]:
        """One sample, evaluated and judged."""
        ...

    def task(
        self, template: str | None, version: str | None, task_id: int | None, /
    ) -> AbstractContextManager[Span[TaskResult | TaskError]]:
        """One task or subtask: of a template, or without one of a request."""
        ...

    def model_call(
        self, backend: str, label: str, endpoint: str, request: ModelRequest, attempt: int, /
    ) -> AbstractContextManager[Span[ModelResponse | ProviderError]]:
        """One attempt, from 1, at a model call. `label` is the model as users name it, `endpoint` where it is."""
        ...

    def tool_call(self, call: ToolCall, tool: Tool | None, /) -> AbstractContextManager[Span[ToolOutcome]]:
        """One call of a tool; None where the model called one that there is not."""
        ...


class _Nothing:
    """Every span, and every way to open one, where nothing is traced."""

    __slots__ = ()

    def __enter__(self) -> _Nothing:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def ended(self, what: object) -> None:
        pass


_NOTHING = _Nothing()


class _Untraced:
    __slots__ = ()

    def _nothing(self, *_: Any) -> _Nothing:
        return _NOTHING

    batch = sample = task = model_call = tool_call = _nothing


UNTRACED: Final[Tracer] = _Untraced()
"""Traces nothing."""
