"""Gives a task's declared inputs their values: from the caller, a nested task, `from`, the scope, or the default.

Nested input tasks run first and in parallel. The outcome is a scope in which the task's texts are resolved.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from evaluator.binding.inputs import bind_inputs
from evaluator.binding.sandbox import evaluate_expression, render, render_sync
from evaluator.binding.scopes import Scope
from evaluator.binding.types import read_typed
from evaluator.errors import ExpressionError, UsageError
from evaluator.interpreter.frame import Frame, Outcome, Run, value_of
from evaluator.interpreter.operators.call import functions_in_text
from evaluator.nodes import Input, Span, Task, Text
from evaluator.results import TaskError


@dataclass(frozen=True, slots=True)
class Bound:
    scope: Scope
    values: Mapping[str, Any]


async def bind_task(run: Run, task: Task, frame: Frame) -> Bound | TaskError:
    """The scope of `task`, or the error of a nested input task that failed.

    Raises: TemplateError, with one finding for each input that is missing, excess or of the wrong type.
    """
    given: dict[str, Any] = dict(frame.arguments or {})
    if not task.inputs and not given:
        return Bound(frame.scope, given)
    for declared in task.inputs:
        if declared.name not in given and declared.task is None and declared.source is None:
            await _from_scope(run, declared, given, frame)
    if all(declared.task is None and declared.source is None for declared in task.inputs):
        values = bind_inputs(task.inputs, given, location=task.span)
        return Bound(frame.scope.child(values), values)
    # Nested tasks and `from` see the plain inputs beside them.
    frame = replace(frame, scope=frame.scope.child(dict(given)))
    nested = [i for i in task.inputs if i.task is not None and i.name not in given]
    for declared, outcome in zip(nested, await _run_nested(run, nested, frame), strict=True):
        if isinstance(outcome, TaskError):
            details = {**outcome.details, "failed_input": declared.name}
            return replace(outcome, details=details, location=outcome.location or declared.span)
        given[declared.name] = _as_declared(value_of(outcome), declared)
    for declared in task.inputs:
        if declared.name not in given and declared.source is not None:
            functions = functions_in_text(run, frame, f"inputs.{declared.name}.from")
            value = await evaluate_expression(declared.source, frame.scope, functions=functions)
            given[declared.name] = _as_declared(value, declared)
    values = bind_inputs(task.inputs, given, location=task.span)
    return Bound(frame.scope.child(values), values)


async def _run_nested(run: Run, nested: list[Input], frame: Frame) -> list[Outcome]:
    if not nested:
        return []

    async def one(declared: Input) -> Outcome:
        assert declared.task is not None
        return await run.services.evaluate(run, declared.task, frame.at(f"inputs.{declared.name}"))

    if len(nested) == 1:
        return [await one(nested[0])]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(declared)) for declared in nested]
    return [task.result() for task in tasks]


async def _from_scope(run: Run, declared: Input, given: dict[str, Any], frame: Frame) -> None:
    """The variable of the same name that the task stands in, else the default."""
    scope = frame.scope
    if frame.arguments is None and declared.name in scope:
        given[declared.name] = scope.lookup(declared.name)
    elif declared.default is not None:
        functions = functions_in_text(run, frame, f"inputs.{declared.name}.default")
        text = await render(declared.default, scope.child(dict(given)), functions=functions)
        try:
            given[declared.name] = read_typed(text, declared.type)
        except UsageError as error:
            raise ExpressionError(
                f"the default of input {declared.name!r}: {error}", declared.default.span, "wrong-type"
            ) from error


def _as_declared(value: Any, declared: Input) -> Any:
    """A result that is bound to an input of type string is its text: what `{{ … }}` would show of it."""
    if declared.type == "string" and not isinstance(value, str) and value is not None:
        return render_sync(_VALUE, Scope({"value": value}))
    return value


_VALUE = Text("{{ value }}", Span())
