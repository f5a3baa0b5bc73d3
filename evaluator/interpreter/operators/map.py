"""The operator map: the inner task for each item; the result is the list of the results, as
JSON.
"""

from __future__ import annotations

import json
from contextlib import aclosing

from evaluator.errors.results import Outcome, TaskError
from evaluator.interpreter.binding import BoundTask
from evaluator.interpreter.frame import Run, value_of
from evaluator.interpreter.operators.iteration import IterationProgress, inner_outcomes
from evaluator.interpreter.operators.outcomes import completed
from evaluator.nodes import Map


async def run_map(run: Run, task: Map, bound: BoundTask) -> Outcome:
    items = task.items(bound.values)
    progress = IterationProgress(bound, items)
    async with aclosing(inner_outcomes(run, task, bound=bound, items=items)) as outcomes:
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
