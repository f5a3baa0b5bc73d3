"""The inputs, the few-shot examples and the target of a sample, as a template takes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, cast

from evaluator.batch.records import Sample
from evaluator.batch.rows.fewshot import FEWSHOT, shot_values
from evaluator.batch.scorers.calls_scorer import calls_of
from evaluator.errors import UsageError
from evaluator.language.scopes import read_typed
from evaluator.nodes import Atomic, Function, TopLevel


def read_inputs(node: TopLevel, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The `inputs` that `node` declares, with strings read as the declared type: a CSV file has
    only strings.

    Raises: UsageError, for a string that is not a value of the type.
    """
    found: dict[str, Any] = {}
    for declared in node.params if isinstance(node, Function) else node.inputs:
        name = declared.name
        if name not in inputs:
            continue
        value = found[name] = inputs[name]
        if isinstance(value, str) and declared.type not in ("any", "string"):
            try:
                found[name] = read_typed(value, declared.type)
            except UsageError as error:
                raise UsageError(f"input {name!r}: {error}") from error
    return found


def arguments_of(
    sample: Sample, node: TopLevel
) -> tuple[dict[str, Any], list[tuple[dict[str, Any], str]]]:
    """The inputs of `node` for a sample, and the examples that are turns of its conversation.

    Raises: UsageError, as `read_inputs`.
    """
    inputs = read_inputs(node, sample.inputs)
    if not sample.shots:
        return inputs, []
    if takes_shots(node):
        inputs[FEWSHOT] = shot_values(sample.shots)
        return inputs, []
    return inputs, [(read_inputs(node, shot.inputs), shot.answer) for shot in sample.shots]


def takes_shots(node: TopLevel) -> bool:
    """Whether `node` has an input for few-shot examples; without it, they are turns of its
    conversation.
    """
    return any(
        declared.name == FEWSHOT
        for declared in (node.params if isinstance(node, Function) else node.inputs)
    )


def target_text(target: Any, node: TopLevel) -> str | None:
    """A target as a model would write it: of several right texts the first that is not empty;
    calls, if these are the answer.
    """
    if isinstance(node, Atomic) and node.tools_from is not None:
        with suppress(UsageError):  # a target of another scorer
            target = calls_of(target)
    elif isinstance(node, Atomic) and (node.output is None or node.output.type == "text"):
        while isinstance(target, list):
            items = cast("list[Any]", target)
            target = next((each for each in items if each not in ([], "")), "")
    if target is None or isinstance(target, str):
        return target
    return json.dumps(target, ensure_ascii=False)
