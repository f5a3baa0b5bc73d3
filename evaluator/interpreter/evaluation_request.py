"""The tool `evaluation_request`: a director requests an evaluation by criteria of its choice.

The evaluation is a subtask like any other, in its own Handler with its own task file. It is matched
to a template of the subtype `evaluator` that takes `criteria` and `target`; without one, a standard
prompt is used. The answer always has `success`, `feedback` and `details`; an answer without
`success` counts as not successful.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

from evaluator.errors import ToolError
from evaluator.errors.results import TaskError
from evaluator.interpreter.evaluation import evaluation_of
from evaluator.interpreter.subtasks import Spawner, SubtaskRequest, subtask_failure
from evaluator.models.backend import ToolSpec
from evaluator.nodes import OutputFormat, Span, Text
from evaluator.tools import Tool, ToolContext

EVALUATION_REQUEST = "evaluation_request"
SUBTYPE = "evaluator"

PARAMETERS: Mapping[str, Any] = {
    "type": "object",
    "properties": {
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
    "required": ["type", "criteria", "target"],
    "additionalProperties": False,
}
_OUTPUT = OutputFormat("json", "object", span=Span("<evaluation>", 1, column=1))
_INSTRUCTIONS = (
    "Evaluate the target below by these criteria, strictly, and by nothing else.\n\nKind of "
    "evaluation:\n{{ type }}\n\n"
    "Criteria:\n{{ criteria }}\n\nTarget:\n{{ target }}\n\nAnswer with a JSON object: `success` "
    "(true only if all "
    "criteria hold), `feedback` (what to change, in words), `details` (what was found for each "
    "criterion)."
)


def evaluation_tool(spawner: Spawner) -> Tool:
    """The tool for one task."""

    async def ask(arguments: dict[str, Any], context: ToolContext) -> str:
        request = _request(arguments)
        outcome = await spawner.spawn(request, context)
        if isinstance(outcome, TaskError) and outcome.type != "INVALID_OUTPUT":
            raise ToolError(
                json.dumps(
                    subtask_failure(outcome, request, depth=spawner.run.depth + 1),
                    ensure_ascii=False,
                )
            )
        evaluation, _ = evaluation_of(outcome)
        return json.dumps(evaluation, ensure_ascii=False)

    text = (
        "Asks a fresh session to evaluate something by your criteria; returns success, "
        "feedback and details."
    )
    return Tool(ToolSpec(EVALUATION_REQUEST, text, parameters=PARAMETERS), ask, kind="subtask")


def _request(arguments: Mapping[str, Any]) -> SubtaskRequest:
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
