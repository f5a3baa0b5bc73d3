"""The operators map and reduce: the inner task for each item, one by one or concurrently.

The result of map is the list of the results, as JSON. Reduce runs a reduction with the accumulator
after each item, in strict order.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from evaluator.errors.results import Outcome, TaskError, TaskResult
from evaluator.interpreter.binding import BoundTask
from evaluator.interpreter.calls import functions_in_text
from evaluator.interpreter.frame import ContextItem, Run, value_of
from evaluator.interpreter.operators.outcomes import (
    accumulated,
    completed,
    failed,
    partial,
    within,
)
from evaluator.language.inputs import resolve_setting
from evaluator.language.sandbox import render
from evaluator.nodes import Iteration, Map, Reduce
from evaluator.processes.concurrency import cancel_all


async def run_map(run: Run, task: Map, bound: BoundTask) -> Outcome:
    items = task.items(bound.values)
    progress = _Progress(bound, items)
    async with aclosing(_inner_outcomes(run, task, bound=bound, items=items)) as outcomes:
        async for inner in outcomes:
            if isinstance(inner, TaskError):
                return progress.failed(inner, "inner_task")
            progress.add(inner)
    done = progress.done
    values = [value_of(result) for result in done]
    notes = bound.notes(processed_inputs=len(items))
    for index, result in enumerate(done):
        notes["warnings"] += [
            f"item {index}: {warning}" for warning in result.notes.get("warnings", ())
        ]
    return completed(
        run, bound, outcome=(json.dumps(values, ensure_ascii=False), values), notes=notes
    )


async def run_reduce(run: Run, task: Reduce, bound: BoundTask) -> Outcome:
    items = task.items(bound.values)
    accumulator: Any = ""
    if task.initial_value is not None:
        functions = functions_in_text(run, bound.frame, field="initial_value")
        accumulator = await render(task.initial_value, bound.scope, functions=functions)
    notes: list[ContextItem] = []
    progress = _Progress(bound, items)
    bound.details["accumulator"] = accumulator
    last: TaskResult | None = None
    async with aclosing(_inner_outcomes(run, task, bound=bound, items=items)) as outcomes:
        async for inner in outcomes:
            index = len(progress.done)
            if isinstance(inner, TaskError):
                return progress.failed(inner, "inner_task")
            scope = bound.scope.child(
                {
                    "current_input": items[index],
                    "current_result": value_of(inner),
                    "accumulator": accumulator,
                    "index": index,
                }
            )
            is_result = index == len(items) - 1
            frame = bound.inside(
                f"items[{index}]/reduce",
                scope,
                context=(*bound.context.items, *within(notes, bound)),
                wants_notes=is_result and bound.frame.wants_notes,
            )
            reduced = await run.services.evaluate(run, task.reduction_task, frame)
            if isinstance(reduced, TaskError):
                return progress.failed(reduced, "reduction_task")
            bound.use(reduced)
            accumulator = value_of(reduced)
            last = reduced
            progress.add(inner, accumulator=accumulator)
            notes += accumulated(bound, f"item:{index}", result=inner)
    return completed(
        run,
        bound,
        outcome=last or (str(accumulator), None),
        notes=bound.notes(processed_inputs=len(items)),
    )


async def _inner_outcomes(
    run: Run, task: Iteration, bound: BoundTask, items: list[Any]
) -> AsyncGenerator[Outcome, None]:
    """The outcome of the inner task for each item, in the order of the items.

    With `concurrency` above 1, at most that many inner tasks run at once, ahead of the requested
    outcome. Closing the generator cancels them.
    """

    async def one(index: int) -> Outcome:
        scope = bound.scope.child({"current_input": items[index], "index": index})
        frame = bound.inside(f"items[{index}]/inner", scope, wants_notes=False)
        return await run.services.evaluate(run, task.inner_task, frame)

    ahead: int = resolve_setting(task, "concurrency", scope=bound.scope)
    if ahead == 1:
        for index in range(len(items)):
            yield await one(index)
        return
    pending: deque[asyncio.Task[Outcome]] = deque()
    started = 0
    try:
        while started < len(items) or pending:
            while started < len(items) and len(pending) < ahead:
                pending.append(asyncio.ensure_future(one(started)))
                started += 1
            yield await pending.popleft()
    finally:
        await cancel_all(pending)


class _Progress:
    """What is done of an iteration. An error of the task has it in its details, however the task
    ends.
    """

    def __init__(self, bound: BoundTask, items: list[Any]) -> None:
        self.done: list[TaskResult] = []
        self._prepared = bound
        self._items = items
        self._partials: list[Any] = []
        self._processed: list[int] = []
        bound.details.update(
            total_steps=len(items), partial_results=self._partials, processed_inputs=self._processed
        )
        self._next()

    def add(self, result: TaskResult, **details: Any) -> None:
        """Adds the result of the next item's inner task, after everything about the item is
        done.
        """
        self._prepared.use(result)
        self._processed.append(len(self.done))
        self._partials.append(partial(result, self._prepared))
        self.done.append(result)
        self._prepared.details.update(details)
        self._next()

    def _next(self) -> None:
        index = len(self.done)
        if index < len(self._items):
            self._prepared.details["failed_input"] = {"index": index, "value": self._items[index]}

    def failed(self, error: TaskError, part: str) -> TaskError:
        """The error of the iteration, whose `part` failed with `error` for the next item."""
        what = f"{part} of item {len(self.done) + 1} of {len(self._items)}"
        return failed(error, self._prepared, what=what, failed_part=part)
