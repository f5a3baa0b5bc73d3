"""The operator sequential: steps in order; each sees the results of the earlier ones. A failure
keeps them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from evaluator.errors.results import Outcome, TaskError, TaskResult
from evaluator.interpreter.binding import BoundTask
from evaluator.interpreter.frame import ContextItem, Run, step_value
from evaluator.interpreter.notes import needs_notes, reads
from evaluator.interpreter.operators.outcomes import accumulated, completed, failed, partial
from evaluator.nodes import Sequential


async def run_sequential(run: Run, task: Sequential, bound: BoundTask) -> Outcome:
    steps: dict[str | int, Any] = {}
    done: list[tuple[str, TaskResult]] = []
    partials: list[dict[str, Any]] = []
    bound.details.update(total_steps=len(task.steps), partial_results=partials)
    if bound.prepared.policy.accumulation_format == "full_output":
        key = "content"
    else:
        key = "notes"
    earlier: list[tuple[int, ContextItem]] = []
    for number, step in enumerate(task.steps, 1):
        label = step.name or str(number)
        values: dict[str, Any] = {"steps": steps}
        if done:
            values["previous"] = steps[number - 2]
        bound.details["failed_step"] = {"index": number - 1, "name": label}
        frame = bound.inside(
            f"steps[{number}]",
            bound.scope.child(values),
            context=(
                *bound.context.items,
                *_carried(earlier, task, bound=bound, reader=number),
            ),
            wants_notes=_is_carried(run, task, bound=bound, number=number),
        )
        outcome = await run.services.evaluate(run, step, frame)
        if isinstance(outcome, TaskError):
            return failed(outcome, bound, what=f"step {number} of {len(task.steps)} ({label})")
        bound.use(outcome)
        done.append((label, outcome))
        partials.append({"step": label, key: partial(outcome, bound)})
        # A new mapping each time: a later step must not change the scope of an earlier one.
        steps = {**steps, number - 1: step_value(outcome)}
        if step.name:
            steps[label] = steps[number - 1]
        earlier += [(number, item) for item in accumulated(bound, f"step:{label}", result=outcome)]
    notes = bound.notes(
        steps=[{"step": label, "status": result.status.value} for label, result in done]
    )
    for label, result in done:
        notes["warnings"] += [f"{label}: {warning}" for warning in result.notes.get("warnings", ())]
    last: TaskResult | tuple[str, Any] = ("", None)
    if done:
        last = done[-1][1]
    return completed(run, bound, last, notes)


def _names(task: Sequential, number: int, reader: int) -> set[str | int]:
    """The names under which the step number `reader` reads the result of the step `number`."""
    names: set[str | int] = {number - 1}
    name = task.steps[number - 1].name
    if name:
        names.add(name)
    if reader == number + 1:
        names.add("previous")
    return names


def _is_carried(run: Run, task: Sequential, bound: BoundTask, number: int) -> bool:
    """Whether a later step sees the notes of the step `number`, and not its result in full."""
    if number == len(task.steps):
        return bound.frame.wants_notes
    return bound.carries_notes and any(
        needs_notes(later, run.services.library, read=_names(task, number, reader=reader))
        for reader, later in enumerate(task.steps[number:], number + 1)
    )


def _carried(
    earlier: Sequence[tuple[int, ContextItem]],
    task: Sequential,
    bound: BoundTask,
    reader: int,
) -> Iterator[ContextItem]:
    """The items of earlier steps that the step `reader` sees: notes only of those that it does not
    read in full.
    """
    for number, item in earlier:
        if not bound.carries_notes or not reads(
            task.steps[reader - 1], _names(task, number, reader=reader)
        ):
            yield item
