"""Asks the model for the inputs that a matched template needs and a request in words gives no value for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

from evaluator.handler.backend import Hints, Message
from evaluator.handler.limits import Budget
from evaluator.handler.session import Handler
from evaluator.interpreter.failures import failure
from evaluator.interpreter.frame import Run
from evaluator.interpreter.subtasks import inputs_schema
from evaluator.nodes import Atomic, Input, Task
from evaluator.output import parse_output
from evaluator.results import TaskError

SYSTEM = (
    "You read a request and take the values of named inputs from it, word for word where they are quoted. "
    "You never make a value up: an input that the request does not give is left out."
)


async def extract_inputs(run: Run, request: str, missing: Sequence[Input], node: Task) -> dict[str, Any] | TaskError:
    """Values for `missing` by name, as one recorded model call at the path `bind`; an error lists what it lacks."""
    schema = inputs_schema(Atomic(description=node.description, inputs=tuple(missing)))
    wanted = {**schema, "required": []}
    listed = "\n".join(f"- {i.name} ({i.type}): {i.description or 'no description'}" for i in missing)
    prompt = (
        f"Inputs of the task {node.name!r}:\n{listed}\n\nRequest:\n{request}\n\n"
        f"Answer with JSON only, valid against this JSON Schema:\n{json.dumps(wanted)}"
    )
    config = run.services.profile(run.profile)
    choice = run.services.chooser.choose(run.model, None, config)
    budget = Budget("bind", max_turns=2, timeout_s=config.timeout_s, max_cost_usd=config.max_cost_usd, parent=run.budget)
    # A simulated model has read nothing; for it, each text input is the request itself.
    simulated = {i.name: request for i in missing if i.type in ("string", "any")}
    hints = Hints(task="bind", output_type="json", schema=json.dumps(schema), target=json.dumps(simulated))
    handler = Handler(config, choice, steps=run.steps, path="bind", budget=budget, hints=hints)
    outcome = await handler.run([Message("system", SYSTEM), Message("user", prompt)])
    parsed = parse_output(outcome.content, "json", "object")
    found = cast("dict[str, Any]", parsed.value) if parsed.error is None else {}
    names = {i.name for i in missing}
    values = {key: value for key, value in found.items() if key in names and value is not None}
    lacking = [i.name for i in missing if i.name not in values]
    if lacking:
        return failure(
            "input_validation_failure",
            f"{node.name!r} needs {', '.join(lacking)}, which the request does not give",
            location=node.span, content=outcome.content,
        )  # fmt: skip
    return values
