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


class Arguments:
    """Reads what one template takes of a sample: inputs, few-shot examples and the target.

    `takes_shots`: whether the template has an input for few-shot examples; without it, they are
    turns of its conversation.
    """

    __slots__ = ("_names", "_node", "_types", "takes_shots")

    def __init__(self, node: TopLevel) -> None:
        if isinstance(node, Function):
            declared = node.params
        else:
            declared = node.inputs
        self._node = node
        self._names = [each.name for each in declared]
        # Values of these inputs are read, the others are taken as they are.
        self._types = {
            each.name: each.type for each in declared if each.type not in ("any", "string")
        }
        self.takes_shots = FEWSHOT in self._names

    def read(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The `inputs` that the template declares, with strings read as the declared type: a CSV
        file has only strings.

        Raises: UsageError, for a string that is not a value of the type.
        """
        found: dict[str, Any] = {}
        for name in self._names:
            if name in inputs:
                found[name] = inputs[name]
        for name, kind in self._types.items():
            value = found.get(name)
            if isinstance(value, str):
                try:
                    found[name] = read_typed(value, kind)
                except UsageError as error:
                    raise UsageError(f"input {name!r}: {error}") from error
        return found

    def of(self, sample: Sample) -> tuple[dict[str, Any], list[tuple[dict[str, Any], str]]]:
        """The inputs of the template for a sample, and the examples that are turns of its
        conversation.

        Raises: UsageError, as `read`.
        """
        inputs = self.read(sample.inputs)
        if not sample.shots:
            return inputs, []
        if self.takes_shots:
            inputs[FEWSHOT] = shot_values(sample.shots)
            return inputs, []
        return inputs, [(self.read(shot.inputs), shot.answer) for shot in sample.shots]

    def target_text(self, target: Any) -> str | None:
        """A target as a model would write it: of several right texts the first that is not empty;
        calls, if these are the answer.
        """
        node = self._node
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
