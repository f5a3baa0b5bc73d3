"""Evaluations: an evaluator's answer, and the tool `evaluation_request`.

With the tool a director requests an evaluation by criteria of its choice. It is a subtask like any
other, in its own Handler with its own task file. It is matched to a template of the subtype
`evaluator` that takes `criteria` and `target`; without one, a standard prompt is used.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

from evaluator.errors.results import Outcome, TaskResult
from evaluator.interpreter.spawning import Spawner
from evaluator.interpreter.subtasks import SubtaskRequest, spawning_tool
from evaluator.models.backend import ToolSpec
from evaluator.nodes import OutputFormat, Span, Text
from evaluator.tools import Tool
from evaluator.tools.tool import object_schema

EVALUATION_REQUEST = "evaluation_request"
SUBTYPE = "evaluator"

PARAMETERS = object_schema(
    {
        "type": {
            "type": "string",
            "minLength": 1,
            "description": "What kind of evaluation, e.g. correctness.",
        },
        "criteria": {
            "anyOf": [
                {"type": "string", "minLength": 1},
                {"type": "array", "items": {"type": "string"}, "minItems": 1},
            ],
            "description": "What has to hold.",
        },
        "target": {"description": "What is evaluated: a text, or any value."},
    },
    ["type", "criteria", "target"],
)
_OUTPUT = OutputFormat("json", "object", span=Span("<evaluation>", 1, column=1))
_INSTRUCTIONS = (
    "Evaluate the target below by these criteria, strictly, and by nothing else.\n\nKind of "
    "evaluation:\n{{ type }}\n\n"
    "Criteria:\n{{ criteria }}\n\nTarget:\n{{ target }}\n\nAnswer with a JSON object: `success` "
    "(true only if all "
    "criteria hold), `feedback` (what to change, in words), `details` (what was found for each "
    "criterion)."
)


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
        from evaluator.output import parse_output

        value = parse_output(outcome.content, "json").value
    if not isinstance(value, Mapping):
        return {"success": False, "feedback": outcome.content, "details": None}, False
    answer = cast("Mapping[str, Any]", value)
    evaluation = {
        **answer,
        "success": answer.get("success") is True,
        "feedback": str(answer.get("feedback", "")),
        "details": answer.get("details"),
    }
    return evaluation, isinstance(answer.get("success"), bool)


def evaluation_tool(spawner: Spawner) -> Tool:
    """The tool for one task. Its answer always has `success`, `feedback` and `details`."""
    text = (
        "Asks a fresh session to evaluate something by your criteria; returns success, "
        "feedback and details."
    )
    return spawning_tool(
        spawner,
        ToolSpec(EVALUATION_REQUEST, text, parameters=PARAMETERS),
        _request_in,
        answer_of=lambda outcome: json.dumps(evaluation_of(outcome)[0], ensure_ascii=False),
        accepted=("INVALID_OUTPUT",),
    )


def _request_in(arguments: Mapping[str, Any]) -> SubtaskRequest:
    criteria = arguments["criteria"]
    if isinstance(criteria, str):
        listed = criteria
    else:
        listed = "\n".join(f"- {one}" for one in cast("list[str]", criteria))
    inputs = {"type": arguments["type"], "criteria": listed, "target": arguments["target"]}
    return SubtaskRequest(
        f"Evaluate the {arguments['type']} of a result by given criteria",
        inputs,
        subtype=SUBTYPE,
        instructions=Text(_INSTRUCTIONS, Span("<evaluation>", 1, column=1)),
        output=_OUTPUT,
    )
