"""Binds a task's declared inputs to values: from the caller, a nested task, `from`, the scope, or
the default.

Nested input tasks run first and in parallel. The result is a scope in which the task's texts are
resolved.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from evaluator.errors import ExpressionError, UsageError
from evaluator.errors.results import Outcome, TaskError
from evaluator.interpreter.calls import functions_in_text
from evaluator.interpreter.frame import Frame, Run, value_of
from evaluator.language.inputs import bind_inputs
from evaluator.language.sandbox import as_text, evaluate_expression, render
from evaluator.language.scopes import Scope
from evaluator.language.types import read_typed
from evaluator.nodes import Input, Node, Task
from evaluator.processes.tasks import run_together


@dataclass(frozen=True, slots=True)
class Bound:
    scope: Scope
    values: Mapping[str, Any]


async def bind_task(run: Run, task: Task, frame: Frame) -> Bound | TaskError:
    """The scope of `task`, or the error of a nested input task that failed.

    Raises: InputError, with one finding for each input that is missing, excess or of the wrong
    type.
    """
    given: dict[str, Any] = dict(frame.arguments or {})
    if not task.inputs and not given:
        return Bound(frame.scope, given)
    for declared in task.inputs:
        if declared.name not in given and declared.task is None and declared.source is None:
            await _from_scope(run, declared, given=given, frame=frame)
    if all(declared.task is None and declared.source is None for declared in task.inputs):
        values = bind_inputs(task.inputs, given, location=task.span)
        return Bound(frame.scope.child(values), values)
    # Nested tasks and `from` see the task's plain inputs.
    frame = replace(frame, scope=frame.scope.child(dict(given)))
    nested = [(i, i.task) for i in task.inputs if i.task is not None and i.name not in given]
    for (declared, _), outcome in zip(
        nested, await _run_nested(run, nested, frame=frame), strict=True
    ):
        if isinstance(outcome, TaskError):
            details = {**outcome.details, "failed_input": declared.name}
            return replace(outcome, details=details, location=outcome.location or declared.span)
        given[declared.name] = _as_declared(value_of(outcome), declared)
    for declared in task.inputs:
        if declared.name not in given and declared.source is not None:
            functions = functions_in_text(run, frame, field=f"inputs.{declared.name}.from")
            value = await evaluate_expression(declared.source, frame.scope, functions=functions)
            given[declared.name] = _as_declared(value, declared)
    values = bind_inputs(task.inputs, given, location=task.span)
    return Bound(frame.scope.child(values), values)


async def _run_nested(run: Run, nested: list[tuple[Input, Node]], frame: Frame) -> list[Outcome]:
    """The outcomes of nested input tasks, which run in parallel."""
    return await run_together(
        *(
            run.services.evaluate(run, node, frame.at(f"inputs.{declared.name}"))
            for declared, node in nested
        )
    )


async def _from_scope(run: Run, declared: Input, given: dict[str, Any], frame: Frame) -> None:
    """Binds the variable of the same name in the enclosing scope, else the default."""
    scope = frame.scope
    if frame.arguments is None and declared.name in scope:
        given[declared.name] = scope.lookup(declared.name)
    elif declared.default is not None:
        functions = functions_in_text(run, frame, field=f"inputs.{declared.name}.default")
        text = await render(declared.default, scope.child(dict(given)), functions=functions)
        try:
            given[declared.name] = read_typed(text, declared.type)
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
