"""A task that is ready to run: its inputs bound, its texts resolved, with context and limits.

limits.

Binds a task's declared inputs to values: from the caller, a nested task, `from`, the scope, or
the default.

Nested input tasks run first and in parallel. The result is a scope in which the task's texts are
resolved.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from evaluator.errors import ExpressionError, UsageError
from evaluator.errors.results import Outcome, TaskError
from evaluator.handler.config import HandlerConfig
from evaluator.interpreter.calls import functions_in_text
from evaluator.interpreter.context import Assembled, ContextPolicy
from evaluator.interpreter.frame import ContextItem, Frame, Run, value_of
from evaluator.language.inputs import bind_inputs
from evaluator.language.sandbox import as_text, evaluate_expression, render
from evaluator.language.scopes import Scope
from evaluator.language.types import read_typed
from evaluator.limits.budget import Budget
from evaluator.nodes import Input, Node, Task
from evaluator.processes.concurrency import run_together

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
            wants_notes = self.frame.wants_notes
        return self.frame.at(
            segment,
            scope=scope or self.scope,
            context=items,
            budget=self.budget,
            wants_notes=wants_notes,
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


@dataclass(frozen=True, slots=True)
class Bound:
    scope: Scope
    values: Mapping[str, Any]


async def bind_task(run: Run, task: Task, frame: Frame) -> Bound | TaskError:
    """The scope of `task`, or the error of a nested input task that failed.

    Raises: InputError, with one finding for each input that is missing, excess or of the wrong
    type.
    """
    arguments: dict[str, Any] = dict(frame.arguments or {})
    if not task.inputs and not arguments:
        return Bound(frame.scope, arguments)
    for declared in task.inputs:
        if declared.name not in arguments and declared.task is None and declared.source is None:
            await _from_scope(run, declared, arguments=arguments, frame=frame)
    if all(declared.task is None and declared.source is None for declared in task.inputs):
        values = bind_inputs(task.inputs, arguments, location=task.span)
        return Bound(frame.scope.child(values), values)
    # Nested tasks and `from` see the task's plain inputs.
    frame = replace(frame, scope=frame.scope.child(dict(arguments)))
    nested = [(i, i.task) for i in task.inputs if i.task is not None and i.name not in arguments]
    for (declared, _), outcome in zip(
        nested, await _run_nested(run, nested, frame=frame), strict=True
    ):
        if isinstance(outcome, TaskError):
            details = {**outcome.details, "failed_input": declared.name}
            return replace(outcome, details=details, location=outcome.location or declared.span)
        arguments[declared.name] = _as_declared(value_of(outcome), declared)
    for declared in task.inputs:
        if declared.name not in arguments and declared.source is not None:
            functions = functions_in_text(run, frame, field=f"inputs.{declared.name}.from")
            value = await evaluate_expression(declared.source, frame.scope, functions=functions)
            arguments[declared.name] = _as_declared(value, declared)
    values = bind_inputs(task.inputs, arguments, location=task.span)
    return Bound(frame.scope.child(values), values)


async def _run_nested(run: Run, nested: list[tuple[Input, Node]], frame: Frame) -> list[Outcome]:
    """The outcomes of nested input tasks, which run in parallel."""
    return await run_together(
        *(
            run.services.evaluate(run, node, frame.at(f"inputs.{declared.name}"))
            for declared, node in nested
        )
    )


async def _from_scope(run: Run, declared: Input, arguments: dict[str, Any], frame: Frame) -> None:
    """Binds the variable of the same name in the enclosing scope, else the default."""
    scope = frame.scope
    if frame.arguments is None and declared.name in scope:
        arguments[declared.name] = scope.lookup(declared.name)
    elif declared.default is not None:
        functions = functions_in_text(run, frame, field=f"inputs.{declared.name}.default")
        text = await render(declared.default, scope.child(dict(arguments)), functions=functions)
        try:
            arguments[declared.name] = read_typed(text, declared.type)
        except UsageError as error:
            raise ExpressionError(
                f"the default of input {declared.name!r}: {error}",
                declared.default.span,
                code="wrong-type",
            ) from error


def _as_declared(value: Any, declared: Input) -> Any:
    """The value for an input; for type string, the text that `{{ … }}` would show."""
    if declared.type == "string" and not isinstance(value, str) and value is not None:
        return as_text(value)
    return value
