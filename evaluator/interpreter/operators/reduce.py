"""The operator reduce: the inner task for each item, then the reduction with the accumulator, in
strict order.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

from evaluator.errors.results import Outcome, TaskError, TaskResult
from evaluator.interpreter.binding import BoundTask
from evaluator.interpreter.calls import functions_in_text
from evaluator.interpreter.frame import ContextItem, Run, value_of
from evaluator.interpreter.operators.iteration import IterationProgress, inner_outcomes
from evaluator.interpreter.operators.outcomes import accumulated, completed, within
from evaluator.language.sandbox import render
from evaluator.nodes import Reduce


async def run_reduce(run: Run, task: Reduce, bound: BoundTask) -> Outcome:
    items = task.items(bound.values)
    accumulator: Any = ""
    if task.initial_value is not None:
        functions = functions_in_text(run, bound.frame, field="initial_value")
        accumulator = await render(task.initial_value, bound.scope, functions=functions)
    notes: list[ContextItem] = []
    progress = IterationProgress(bound, items)
    bound.details["accumulator"] = accumulator
    last: TaskResult | None = None
    async with aclosing(inner_outcomes(run, task, bound=bound, items=items)) as outcomes:
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
