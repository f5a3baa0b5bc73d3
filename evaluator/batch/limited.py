"""Answers that a limit cut off, and errors that count as failed answers.

The references score whatever text a model returned: lm-eval and inspect_evals count a cut-off,
empty or unreadable answer as a wrong one. So does a batch with scorers, by default. See "Answers
that are cut off" in `docs/howto/run-a-batch.md` for the stricter readings.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Literal, get_args

from evaluator.batch.records import Failure
from evaluator.errors.results import (
    ErrorType,
    FailureReason,
    Outcome,
    Status,
    TaskError,
    TaskResult,
)
from evaluator.nodes import OutputFormat
from evaluator.output import parse_output

Limited = Literal["scored", "failed", "error"]
COUNTED = ("output_format_failure",)
"""The default of `count_as_failed`: empty answers, and those that do not have the declared output
format.
"""
COUNTABLE = (*get_args(ErrorType), *get_args(FailureReason))
_OWN_LIMITS = ("output", "turns")
"""Limits that the model itself reaches. Any other may be reached because a server was slow or a
prompt long.
"""


def is_limited(error: TaskError) -> bool:
    """Whether a limit of the task ended its answer. Without any text, only the limits of output and
    turns count: a server that never answered is not the model's failure.
    """
    return error.resource is not None and (
        error.resource.name in _OWN_LIMITS or bool(error.content.strip())
    )


def limited_answer(error: TaskError, wanted: OutputFormat | None) -> TaskResult | str:
    """The answer up to the limit as a result to score, or why it cannot be read as the output
    format `wanted`.
    """
    read = existing_answer(error.content, wanted)
    if isinstance(read, TaskError):
        return read.message
    return replace(read, notes=error.notes, usage=error.usage, task_id=error.task_id)


def existing_answer(text: str, wanted: OutputFormat | None) -> Outcome:
    """A text as the result of a task with the output format `wanted`; an error if it is empty or
    unreadable.
    """
    if not text.strip():
        return TaskError(
            "INVALID_OUTPUT", "the answer is empty", reason="output_format_failure", content=text
        )
    if wanted is None or (wanted.type == "text" and wanted.schema is None):
        return TaskResult(Status.COMPLETE, text)
    parsed = parse_output(text, wanted.type, schema=wanted.schema)
    if parsed.error is not None:
        return TaskError(
            "INVALID_OUTPUT", parsed.error.message, reason="output_format_failure", content=text
        )
    return TaskResult(
        Status.COMPLETE,
        text,
        parsed_content=parsed.value,
        notes={"warnings": list(parsed.warnings)},
    )


def counts_as_failed(failure: Failure, counted: Collection[str]) -> bool:
    """Whether `counted` names the error's type or reason."""
    return failure.kind in counted or failure.type in counted
