"""Extracts from a request in words the inputs that the matched template needs, by asking the model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from evaluator.errors.results import TaskError
from evaluator.interpreter.failures import failure
from evaluator.interpreter.frame import Frame, Run
from evaluator.interpreter.internal import internal_template
from evaluator.nodes import Input, Task


async def extract_inputs(
    run: Run, frame: Frame, request: str, missing: Sequence[Input], node: Task
) -> dict[str, Any] | TaskError:
    """Values for `missing` by name, from one task at the path `bind`; an error lists the inputs not found."""
    arguments: dict[str, Any] = {
        "request": request,
        "template": node.description.value,
        "declared": "\n".join(f"{i.name} ({i.type}): {i.description}" for i in missing),
    }
    # A simulated model does not read; its value for each text input is the request itself.
    simulated = json.dumps({i.name: request for i in missing if i.type in ("string", "any")})
    outcome = await run.services.evaluate(
        replace(run, options=run.options.inner(simulated)),
        internal_template(run.services, "extract_inputs"),
        frame.at("bind", arguments=arguments),
    )
    if isinstance(outcome, TaskError):
        return outcome
    found = outcome.parsed_data
    values = cast("Mapping[str, Any]", found) if isinstance(found, Mapping) else {}
    names = {i.name for i in missing}
    kept = {key: value for key, value in values.items() if key in names and value is not None}
    lacking = [i.name for i in missing if i.name not in kept]
    if lacking:
        return failure(
            "input_validation_failure",
            f"{node.name!r} needs {', '.join(lacking)}, which the request does not give",
            location=node.span, content=outcome.content,
        )  # fmt: skip
    return kept
