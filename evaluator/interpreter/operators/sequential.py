"""The operator sequential: steps in order; each sees the results of the earlier ones. A failure keeps them."""

from __future__ import annotations

from typing import Any

from evaluator.errors.results import TaskError, TaskResult
from evaluator.interpreter.frame import Outcome, Run, step_value
from evaluator.interpreter.operators.outcomes import accumulate, completed, failed, partial
from evaluator.interpreter.prepared import Prepared
from evaluator.nodes import Sequential


async def run_sequential(run: Run, task: Sequential, prepared: Prepared) -> Outcome:
    steps: dict[str | int, Any] = {}
    done: list[tuple[str, TaskResult]] = []
    context = prepared.context.items
    for number, step in enumerate(task.steps, 1):
        label = step.name or str(number)
        values: dict[str, Any] = {"steps": steps}
        if done:
            values["previous"] = steps[number - 2]
        frame = prepared.inside(f"steps[{number}]", prepared.scope.child(values), context=context)
        outcome = await run.services.evaluate(run, step, frame)
        if isinstance(outcome, TaskError):
            key = "content" if prepared.policy.accumulation_format == "full_output" else "notes"
            return failed(
                outcome, prepared, f"step {number} of {len(task.steps)} ({label})",
                failed_step={"index": number - 1, "name": label}, total_steps=len(task.steps),
                partial_results=[{"step": name, key: partial(result, prepared)} for name, result in done],
            )  # fmt: skip
        done.append((label, outcome))
        # A new mapping each time: a later step must not change the scope of an earlier one.
        steps = {**steps, number - 1: step_value(outcome)}
        if step.name:
            steps[label] = steps[number - 1]
        context = accumulate(context, prepared, f"step:{label}", outcome)
    notes = prepared.notes(steps=[{"step": label, "status": result.status.value} for label, result in done])
    for label, result in done:
        notes["warnings"] += [f"{label}: {warning}" for warning in result.notes.get("warnings", ())]
    last = done[-1][1] if done else None
    content, parsed = ("", None) if last is None else (last.content, last.parsed_content)
    return completed(run, prepared, content, parsed, notes)
