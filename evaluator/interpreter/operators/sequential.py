"""sequential: steps in order; each sees what the earlier ones gave. A failed step keeps what was done."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from evaluator.handler.session import MAYBE_BILLED
from evaluator.interpreter.frame import ContextItem, Outcome, Run, step_value
from evaluator.interpreter.operators.atomic import read_output
from evaluator.interpreter.operators.prepared import Prepared
from evaluator.nodes import AccumulationFormat, Sequential
from evaluator.results import Status, TaskError, TaskResult


async def run(run: Run, task: Sequential, prepared: Prepared) -> Outcome:
    steps: dict[str | int, Any] = {}
    done: list[tuple[str, TaskResult]] = []
    context = prepared.context.items
    last: TaskResult | None = None
    for number, step in enumerate(task.steps, 1):
        label = step.name or str(number)
        values: dict[str, Any] = {"steps": steps}
        if last is not None:
            values["previous"] = step_value(last)
        frame = prepared.inside(f"steps[{number}]", prepared.scope.child(values), context=context)
        outcome = await run.services.evaluate(run, step, frame)
        if isinstance(outcome, TaskError):
            return _failed(outcome, task, prepared, number, label, done)
        last = outcome
        done.append((label, outcome))
        # A new mapping each time: a later step must not change what an earlier scope holds.
        steps = {**steps, number - 1: step_value(outcome)}
        if step.name:
            steps[label] = steps[number - 1]
        if prepared.policy.accumulate_data:
            text = accumulated(outcome, prepared.policy.accumulation_format)
            if text:
                context = (*context, ContextItem(f"step:{label}", text))
    notes = prepared.notes(steps=[{"step": label, "status": r.status.value} for label, r in done])
    for label, result in done:
        notes["warnings"] += [f"{label}: {warning}" for warning in result.notes.get("warnings", ())]
    content, parsed = ("", None) if last is None else (last.content, last.parsed_content)
    result = TaskResult(Status.COMPLETE, content, parsed, notes, prepared.budget.usage)
    return result if task.output is None else read_output(run, result, task.output, prepared.frame.path)


def accumulated(result: TaskResult, form: AccumulationFormat) -> str:
    """What a later step sees of `result` in its context: its notes in words, or its whole text."""
    if form == "full_output":
        return result.content
    # The inputs of a step are its own affair; what it read besides is worth telling.
    sources = (str(name) for name in result.notes.get("data_usage", ()))
    used = ", ".join(name for name in sources if not name.startswith("input:"))
    # What happened on the way is no model's affair, and not the same when a run is gone on with.
    warnings = (str(warning) for warning in result.notes.get("warnings", ()))
    warned = "; ".join(warning for warning in warnings if not warning.endswith(MAYBE_BILLED))
    parts = [f"data used: {used}" if used else "", f"warnings: {warned}" if warned else ""]
    return "\n".join(part for part in parts if part)


def partial(result: TaskResult, form: AccumulationFormat) -> Any:
    return result.content if form == "full_output" else dict(result.notes)


def _failed(
    error: TaskError,
    task: Sequential,
    prepared: Prepared,
    number: int,
    label: str,
    done: list[tuple[str, TaskResult]],
) -> TaskError:
    form = prepared.policy.accumulation_format
    details = {
        **error.details,
        "failed_step": {"index": number - 1, "name": label},
        "total_steps": len(task.steps),
        "partial_results": [
            {"step": name, "content" if form == "full_output" else "notes": partial(result, form)}
            for name, result in done
        ],
    }
    return replace(
        error, message=f"step {number} of {len(task.steps)} ({label}) failed: {error.message}",
        details=details, usage=prepared.budget.usage, notes={**prepared.notes(), **error.notes},
    )  # fmt: skip
