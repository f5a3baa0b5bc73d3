"""What a node is evaluated in: the services of one run, and the frame of one node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from evaluator.binding.scopes import Scope
from evaluator.handler.limits import Budget
from evaluator.record.steplog import StepLog
from evaluator.results import TaskError, TaskResult

if TYPE_CHECKING:
    from evaluator.interpreter.services import Services

Outcome = TaskResult | TaskError


@dataclass(frozen=True, slots=True)
class ContextItem:
    """Something that a task may see besides its prompt. `source` identifies it: it is never sent twice."""

    source: str
    content: str


@dataclass(slots=True)
class Run:
    """One evaluation: what its nodes share. A subtask is a run of its own, with its own task file."""

    services: Services
    steps: StepLog
    budget: Budget
    model: str | None = None
    on_text: Callable[[str], None] | None = None
    on_event: Callable[[str, str], None] | None = None
    target: str | None = None
    epoch: int = 1
    depth: int = 0
    max_depth: int = 5
    ancestors: tuple[str, ...] = ()
    profile: str | None = None
    roles: Mapping[str, str] = field(default_factory=dict[str, str])
    unmapped: set[str] = field(default_factory=set[str], compare=False)
    """Roles that no model was mapped to, and of which a task has told."""

    def event(self, path: str, what: str) -> None:
        if self.on_event is not None:
            self.on_event(path, what)


@dataclass(frozen=True, slots=True)
class Frame:
    """Where a node stands: its scope, the context its parent offers, its stable path, the budget above it.

    `arguments` are values that a caller gives to the node's declared inputs; None means that the node
    stands inside another and takes its inputs from the scope. `is_subtask` selects the context defaults,
    `is_reparsed` says that the node is part of a decomposition, `calls` are the templates being called.
    """

    scope: Scope
    path: str = ""
    context: tuple[ContextItem, ...] = ()
    arguments: Mapping[str, Any] | None = None
    is_subtask: bool = False
    budget: Budget | None = None
    calls: tuple[str, ...] = field(default=())
    is_reparsed: bool = False

    def at(
        self,
        segment: str,
        *,
        scope: Scope | None = None,
        context: tuple[ContextItem, ...] | None = None,
        arguments: Mapping[str, Any] | None = None,
        budget: Budget | None = None,
    ) -> Frame:
        """A frame one segment further down, with what is given in place of its own; by default without arguments."""
        return Frame(
            self.scope if scope is None else scope,
            f"{self.path}/{segment}" if self.path else segment,
            self.context if context is None else context,
            arguments,
            False,
            self.budget if budget is None else budget,
            self.calls,
            self.is_reparsed,
        )


def join(path: str, segment: str) -> str:
    return f"{path}/{segment}" if path else segment


def value_of(outcome: TaskResult) -> Any:
    """What later texts see of a result: the parsed value where there is one, else the text."""
    return outcome.content if outcome.parsed_content is None else outcome.parsed_content


def step_value(outcome: TaskResult) -> dict[str, Any]:
    """The shape under which a step's result is bound: `content`, `parsed`, `notes`."""
    return {"content": outcome.content, "parsed": outcome.parsed_content, "notes": dict(outcome.notes)}
