"""Reads an evaluator's answer as `success`, `feedback` and `details`, whatever its form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from evaluator.errors.results import Outcome, TaskResult
from evaluator.output import parse_output


def evaluation_of(outcome: Outcome) -> tuple[dict[str, Any], bool]:
    """`success`, `feedback`, `details` of an evaluator's answer, and whether it says `success` at
    all.

    Only a true `success` is success.
    """
    if isinstance(outcome, TaskResult):
        value = outcome.parsed_data
    else:
        value = None
    if not isinstance(value, Mapping):
        value = parse_output(outcome.content, "json").value
    if not isinstance(value, Mapping):
        return {"success": False, "feedback": outcome.content, "details": None}, False
    answer = cast("Mapping[str, Any]", value)
    feedback = answer.get("feedback", "")
    evaluation = {
        **answer,
        "success": answer.get("success") is True,
        "feedback": feedback if isinstance(feedback, str) else str(feedback),
        "details": answer.get("details"),
    }
    return evaluation, isinstance(answer.get("success"), bool)
