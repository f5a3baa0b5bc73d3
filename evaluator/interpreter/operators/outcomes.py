"""The outcomes of operators: a result read as declared, or an error that keeps the results so
far.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from logging import INFO
from typing import Any

from evaluator.errors.messages import log
from evaluator.errors.results import Outcome, Status, TaskError, TaskResult
from evaluator.handler.session import MAYBE_BILLED
from evaluator.interpreter.binding import BoundTask
from evaluator.interpreter.frame import ContextItem, Run, join
from evaluator.interpreter.notes import summary_of
from evaluator.nodes import AccumulationFormat, OutputFormat

# The details in which an operator describes its progress.
_PROGRESS = (
    "total_steps",
    "failed_step",
    "failed_input",
    "failed_part",
    "partial_results",
    "processed_inputs",
    "accumulator",
    "director_result",
    "inner",
)
MAX_CARRIED: Mapping[AccumulationFormat, int] = {"notes_only": 8_000, "full_output": 40_000}
"""Characters of the accumulated items of a reduction or a loop that its later steps see; the oldest
are left out.

A step has the accumulator or the director's last result too, which are made of the earlier ones.
8,000 characters are the notes of the last 20 steps or more. The whole prompt of each step is
recorded, so with this bound a task file grows by the same amount with each item.
"""


def completed(
    run: Run, bound: BoundTask, outcome: TaskResult | tuple[str, Any], notes: dict[str, Any]
) -> Outcome:
    """The COMPLETE result of a task, read as its output format declares.

    `outcome`: the result of a child, whose text, value and summary are those of the task; otherwise
    text and value.
    """
    if isinstance(outcome, TaskResult):
        content = outcome.content
        parsed = outcome.parsed_content
        notes["summary"] = outcome.notes.get("summary", "")
        if "output" in outcome.notes:
            notes["output"] = outcome.notes["output"]
    else:
        content, parsed = outcome
        notes["summary"] = summary_of(content)
    result = TaskResult(
        Status.COMPLETE, content, parsed_content=parsed, notes=notes, usage=bound.budget.usage
    )
    return read_output(run, result, declared=bound.task.output, path=bound.frame.path)


def read_output(run: Run, result: TaskResult, declared: OutputFormat | None, path: str) -> Outcome:
    """`result` with its text read as `declared`; a value that does not fit is an error that keeps
    the text.
    """
    if declared is None or (declared.type == "text" and declared.schema is None):
        return result
    from evaluator.output import parse_output

    parsed = parse_output(result.content, declared.type, schema=declared.schema)
    warnings = list(parsed.warnings)
    error = parsed.error
    for warning in warnings:
        log("output", INFO, run.services.redactor, "%s: %s", path or "task", warning)
    run.steps.note(
        join(path, "parse"),
        "parse",
        declared.type,
        {"type": declared.type, "schema": declared.schema},
        {"warnings": warnings},
        error=error.message if error else None,
    )
    notes = {
        **result.notes,
        "output": declared.type,
        "warnings": [*result.notes["warnings"], *warnings],
    }
    if error is None:
        return replace(result, parsed_content=parsed.value, notes=notes)
    message = error.message
    if error.expected and error.expected not in message:
        message += f": expected {error.expected}, got {error.actual}"
    return TaskError(
        "XML_PARSE_ERROR" if error.kind == "xml" else "INVALID_OUTPUT",
        message,
        reason="output_format_failure",
        location=declared.span,
        content=result.content,
        notes=notes,
        usage=result.usage,
        retryable=True,
        details={"path": error.path, "expected": error.expected, "actual": error.actual},
    )


def failed(error: TaskError, bound: BoundTask, what: str, **details: Any) -> TaskError:
    """The error of a task whose part `what` failed with `error`; `details` describe the task's
    progress. What the part itself had done stays under `inner`.
    """
    bound.use(error)
    inner = {name: error.details[name] for name in _PROGRESS if name in error.details}
    if inner:
        details["inner"] = inner
    notes = bound.notes()
    notes["warnings"] += [
        one for one in error.notes.get("warnings", ()) if one not in notes["warnings"]
    ]
    return replace(
        error,
        message=f"{what} failed: {error.message}",
        details={
            **{name: value for name, value in error.details.items() if name not in _PROGRESS},
            **bound.details,
            **details,
        },
        usage=bound.budget.usage,
        notes={**error.notes, **notes},
    )


def accumulated(bound: BoundTask, source: str, result: TaskResult) -> tuple[ContextItem, ...]:
    """The context item with the parts of `result` that the task's policy passes on to later steps,
    if there is one.
    """
    policy = bound.prepared.policy
    if policy.accumulation_format == "notes_only":
        text = _passed_on(result)
    else:
        text = result.content
    if policy.accumulate_data and text:
        return (ContextItem(source, text),)
    return ()


def within(items: Sequence[ContextItem], bound: BoundTask) -> tuple[ContextItem, ...]:
    """The last of the accumulated `items` that together have at most MAX_CARRIED characters."""
    most = MAX_CARRIED[bound.prepared.policy.accumulation_format]
    total = 0
    start = len(items)
    while start and (total := total + len(items[start - 1].content)) <= most:
        start -= 1
    return tuple(items[start:])


def _passed_on(result: TaskResult) -> str:
    """The notes of a result in words."""
    summary = str(result.notes.get("summary") or "")
    # The inputs of a step concern that step only; the files and other sources that it read concern
    # later ones.
    sources = (str(name) for name in result.notes.get("data_usage", ()))
    used = ", ".join(name for name in sources if not name.startswith("input:"))
    # A warning about billing does not concern a model, and differs between a run and its
    # resumption.
    warnings = (str(warning) for warning in result.notes.get("warnings", ()))
    warned = "; ".join(warning for warning in warnings if not warning.endswith(MAYBE_BILLED))
    parts = [summary]
    if used:
        parts.append(f"data used: {used}")
    if warned:
        parts.append(f"warnings: {warned}")
    return "\n".join(part for part in parts if part)


def partial(result: TaskResult, bound: BoundTask) -> Any:
    """A result as an entry of `partial_results`: its whole text or its notes, according to the
    policy.
    """
    if bound.prepared.policy.accumulation_format == "full_output":
        return result.content
    return dict(result.notes)
