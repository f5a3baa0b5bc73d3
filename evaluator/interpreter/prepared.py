"""A task that is ready to run: its inputs bound, its texts resolved, with its context and
limits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from evaluator.errors.results import Outcome
from evaluator.handler.config import HandlerConfig
from evaluator.interpreter.context import Assembled, ContextPolicy
from evaluator.interpreter.frame import ContextItem, Frame
from evaluator.language.scopes import Scope
from evaluator.limits.budget import Budget
from evaluator.nodes import Task

# Data that a task hands to its parts.
_OF_THE_TASK = ("input:", "step:", "item:", "iteration:")


@dataclass(frozen=True, slots=True)
class PreparedTask:
    """`warnings`, `more` (further notes) and `details` are filled while the task runs; an error has
    them too.
    """

    task: Task
    scope: Scope
    description: str
    policy: ContextPolicy
    context: Assembled
    config: HandlerConfig
    budget: Budget
    frame: Frame
    values: Mapping[str, Any]
    warnings: list[str] = field(default_factory=list[str])
    more: dict[str, Any] = field(default_factory=dict[str, Any])
    details: dict[str, Any] = field(default_factory=dict[str, Any])
    used: dict[str, None] = field(default_factory=dict[str, None])
    """The data that the parts of the task used, besides their inputs."""

    def use(self, outcome: Outcome) -> None:
        """Notes the data that a part of the task used, other than its inputs and earlier parts."""
        for source in outcome.notes.get("data_usage", ()):
            if not str(source).startswith(_OF_THE_TASK):
                self.used[str(source)] = None

    def inside(
        self,
        segment: str,
        scope: Scope | None = None,
        *,
        context: tuple[ContextItem, ...] | None = None,
        wants_notes: bool | None = None,
    ) -> Frame:
        """The frame of a node inside this task, one segment down, with this task's scope, context
        and budget.

        `wants_notes`: whether a later step sees only the notes of the node's result; None: as of
        this task's result.
        """
        items = self.context.items if context is None else context
        if wants_notes is None:
            wanted = self.frame.wants_notes
        else:
            wanted = wants_notes
        return self.frame.at(
            segment,
            scope=scope or self.scope,
            context=items,
            budget=self.budget,
            wants_notes=wanted,
        )

    @property
    def carries_notes(self) -> bool:
        """Whether later parts of this task see the notes of earlier ones, and not their text."""
        return self.policy.accumulate_data and self.policy.accumulation_format == "notes_only"

    def notes(self, **more: Any) -> dict[str, Any]:
        """The notes that every result has; `more` is the operator's own."""
        sources = [item.source for item in self.context.items]
        return {
            "template": self.task.name,
            "data_usage": [
                *(f"input:{name}" for name in self.values),
                *dict.fromkeys((*sources, *self.used)),
            ],
            "context": sources,
            "models": list(self.budget.models),
            "warnings": [*self.context.warnings, *self.warnings],
            **self.more,
            **more,
        }
