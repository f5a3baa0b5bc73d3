"""The operator reduce: the inner task for each item, then the reduction with the accumulator, in
strict order.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

from evaluator.errors.results import Outcome, TaskError, TaskResult
from evaluator.interpreter.calls import functions_in_text
from evaluator.interpreter.frame import ContextItem, Run, value_of
from evaluator.interpreter.operators.iteration import IterationProgress, inner_outcomes
from evaluator.interpreter.operators.outcomes import accumulated, completed, within
from evaluator.interpreter.prepared import PreparedTask
from evaluator.language.sandbox import render
from evaluator.nodes import Reduce


async def run_reduce(run: Run, task: Reduce, prepared: PreparedTask) -> Outcome:
    items = task.items(prepared.values)
    accumulator: Any = ""
    if task.initial_value is not None:
        functions = functions_in_text(run, prepared.frame, field="initial_value")
        accumulator = await render(task.initial_value, prepared.scope, functions=functions)
    notes: list[ContextItem] = []
    progress = IterationProgress(prepared, items)
    prepared.details["accumulator"] = accumulator
    last: TaskResult | None = None
    async with aclosing(inner_outcomes(run, task, prepared=prepared, items=items)) as outcomes:
        async for inner in outcomes:
            index = len(progress.done)
            if isinstance(inner, TaskError):
                return progress.failed(inner, "inner_task")
            scope = prepared.scope.child(
                {
                    "current_input": items[index],
                    "current_result": value_of(inner),
                    "accumulator": accumulator,
                    "index": index,
                }
            )
            is_result = index == len(items) - 1
            frame = prepared.inside(
                f"items[{index}]/reduce",
                scope,
                context=(*prepared.context.items, *within(notes)),
                wants_notes=is_result and prepared.frame.wants_notes,
            )
            reduced = await run.services.evaluate(run, task.reduction_task, frame)
            if isinstance(reduced, TaskError):
                return progress.failed(reduced, "reduction_task")
            prepared.use(reduced)
            accumulator = value_of(reduced)
            last = reduced
            progress.add(inner, accumulator=accumulator)
            notes += accumulated(prepared, f"item:{index}", result=inner)
    return completed(
        run,
        prepared,
        outcome=last or (str(accumulator), None),
        notes=prepared.notes(processed_inputs=len(items)),
    )
