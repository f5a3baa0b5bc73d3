"""reduce: the inner task for each item, then the reduction with the accumulator, in strict order.

With `concurrency` above 1 inner tasks run ahead of the reduction, at most that many at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import replace
from typing import Any

from evaluator.binding.inputs import resolve_setting
from evaluator.binding.sandbox import render
from evaluator.interpreter.frame import ContextItem, Outcome, Run, value_of
from evaluator.interpreter.operators.atomic import read_output
from evaluator.interpreter.operators.call import functions_in_text
from evaluator.interpreter.operators.prepared import Prepared
from evaluator.interpreter.operators.sequential import accumulated, partial
from evaluator.nodes import Reduce
from evaluator.results import Status, TaskError, TaskResult


async def run(run: Run, task: Reduce, prepared: Prepared) -> Outcome:
    items = items_of(task, prepared.values)
    accumulator: Any = ""
    if task.initial_value is not None:
        functions = functions_in_text(run, prepared.frame, "initial_value")
        accumulator = await render(task.initial_value, prepared.scope, functions=functions)
    ahead: int = resolve_setting(task.concurrency, "int", prepared.scope, name="concurrency", minimum=1) or 1
    context = prepared.context.items
    processed: list[TaskResult] = []
    pending: deque[asyncio.Task[Outcome]] = deque()
    started = 0
    last: TaskResult | None = None
    try:
        for index in range(len(items)):
            if ahead == 1:
                inner = await _inner(run, task, prepared, items, index)
            else:
                while started < len(items) and len(pending) < ahead:
                    pending.append(asyncio.ensure_future(_inner(run, task, prepared, items, started)))
                    started += 1
                inner = await pending.popleft()
            if isinstance(inner, TaskError):
                return _failed(inner, prepared, items, index, "inner_task", accumulator, processed)
            scope = prepared.scope.child(
                {
                    "current_input": items[index], "current_result": value_of(inner),
                    "accumulator": accumulator, "index": index,
                }
            )  # fmt: skip
            frame = prepared.inside(f"items[{index}]/reduce", scope, context=context)
            reduced = await run.services.evaluate(run, task.reduction_task, frame)
            if isinstance(reduced, TaskError):
                return _failed(reduced, prepared, items, index, "reduction_task", accumulator, processed)
            accumulator, last = value_of(reduced), reduced
            processed.append(inner)
            if prepared.policy.accumulate_data:
                text = accumulated(inner, prepared.policy.accumulation_format)
                if text:
                    context = (*context, ContextItem(f"item:{index}", text))
    finally:
        await _cancel(pending)
    notes = prepared.notes(processed_inputs=len(items))
    content = str(accumulator) if last is None else last.content
    parsed = None if last is None else last.parsed_content
    result = TaskResult(Status.COMPLETE, content, parsed, notes, prepared.budget.usage)
    return result if task.output is None else read_output(run, result, task.output, prepared.frame.path)


def items_of(task: Reduce, values: Any) -> list[Any]:
    """What is iterated: the inputs that `over` names, else all; an input that holds a list gives one item each."""
    names = task.over or [declared.name for declared in task.inputs]
    items: list[Any] = []
    for name in names:
        value = values.get(name)
        if isinstance(value, (list, tuple)):
            items.extend(value)
        else:
            items.append(value)
    return items


async def _inner(run: Run, task: Reduce, prepared: Prepared, items: list[Any], index: int) -> Outcome:
    scope = prepared.scope.child({"current_input": items[index], "index": index})
    return await run.services.evaluate(run, task.inner_task, prepared.inside(f"items[{index}]/inner", scope))


async def _cancel(pending: deque[asyncio.Task[Outcome]]) -> None:
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)


def _failed(
    error: TaskError,
    prepared: Prepared,
    items: list[Any],
    index: int,
    part: str,
    accumulator: Any,
    processed: list[TaskResult],
) -> TaskError:
    form = prepared.policy.accumulation_format
    details = {
        **error.details,
        "failed_input": {"index": index, "value": items[index]},
        "failed_part": part,
        "processed_inputs": list(range(len(processed))),
        "total_steps": len(items),
        "accumulator": accumulator,
        "partial_results": [partial(result, form) for result in processed],
    }
    return replace(
        error, message=f"{part} of item {index + 1} of {len(items)} failed: {error.message}",
        details=details, usage=prepared.budget.usage, notes={**prepared.notes(), **error.notes},
    )  # fmt: skip
