"""How many steps a run has that goes through: what stands beside the steps of one that did not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evaluator.library import TemplateLibrary
from evaluator.nodes import (
    Atomic,
    Call,
    Cond,
    DirectorEvaluatorLoop,
    Function,
    Node,
    Reduce,
    Script,
    Sequential,
    Task,
    Text,
    TopLevel,
)


def planned_steps(
    node: TopLevel | Node, library: TemplateLibrary, inputs: Mapping[str, Any], depth: int = 0
) -> int | None:
    """The steps of a task file, with one turn for each atomic task, all iterations of each loop and the longest
    branch of each condition; None where that depends on values that only the run knows."""
    if depth > 50:
        return None

    def inside(child: TopLevel | Node) -> int | None:
        return planned_steps(child, library, {}, depth + 1)

    match node:
        case Function():
            return inside(node.body)
        case Call():
            return inside(library.get(node.template).node) if node.template in library else None
        case Cond():
            branches = [inside(case.body) for case in node.cases]
            branches += [] if node.default is None else [inside(node.default)]
            return None if None in branches else max(filter(None, branches), default=0)
        case Atomic():
            own: int | None = 2
        case Script():
            own = 1
        case Sequential():
            own = _total([inside(step) for step in node.steps])
        case Reduce():
            own = _times(_total([inside(node.inner_task), inside(node.reduction_task)]), _items(node, inputs))
        case DirectorEvaluatorLoop():
            parts = [node.director, node.evaluator, *([node.script_execution] if node.script_execution else [])]
            most = node.max_iterations
            own = _times(_total([inside(part) for part in parts]), None if isinstance(most, Text) else most or 1)
        case _:
            return None
    nested = [inside(i.task) for i in node.inputs if i.task is not None and i.name not in inputs]
    return _total([own, 1 if _is_read(node) else 0, *nested])


def _is_read(task: Task) -> bool:
    return task.output is not None and (task.output.type != "text" or task.output.schema is not None)


def _items(node: Reduce, inputs: Mapping[str, Any]) -> int | None:
    total = 0
    for name in node.over or [declared.name for declared in node.inputs]:
        if name not in inputs:
            return None
        value = inputs[name]
        total += len(value) if isinstance(value, list) else 1  # pyright: ignore[reportUnknownArgumentType]
    return total


def _total(parts: list[int | None]) -> int | None:
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


def _times(each: int | None, count: int | None) -> int | None:
    return None if each is None or count is None else each * count
