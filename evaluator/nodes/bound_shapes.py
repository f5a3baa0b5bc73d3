"""The shapes of the names that operators bind for their child nodes, see `declare.Binding`.

A binding that is a function takes the node, the position of the child in its field, and what is
known.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from evaluator.nodes.declare import Binding, Known
from evaluator.nodes.values import ANY, BOOLEAN, INTEGER, STRING, Shape, record, value_shape

CONVERSATION = Shape("array", item=record("a turn", role=STRING, content=STRING))


@dataclass(frozen=True, slots=True, eq=False)
class _EarlierSteps(Mapping[str | int, Shape]):
    """The results of the steps before `position`, by index and by name. Each is found when it is
    asked for.
    """

    node: Any
    position: int
    known: Known

    def __getitem__(self, key: str | int) -> Shape:
        index = key
        if isinstance(index, str):
            places = self.known.step_places(self.node).get(index, ())
            at = bisect_left(places, self.position)
            index = places[at - 1] if at else -1
        if not 0 <= index < self.position:
            raise KeyError(key)
        return _step_result(self.node, index, known=self.known)

    def __iter__(self) -> Iterator[str | int]:
        yield from range(self.position)
        places = self.known.step_places(self.node)
        yield from (name for name, indexes in places.items() if indexes[0] < self.position)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def earlier_steps(node: Any, position: int, known: Known) -> Shape:
    """`steps`: the results of the steps before the one at `position`, by index and by name."""

    def why_absent(key: str | int) -> str | None:
        if isinstance(key, int):
            if position <= key < len(node.steps):
                return "it has not run yet"
            return None
        if key == node.steps[position].name:
            return "that is this step itself"
        places = known.step_places(node).get(key, ())
        at = bisect_left(places, position)
        if at < len(places):
            return f"that step runs later, as step {places[at] + 1}"
        return None

    return Shape(
        kind="object",
        fields=_EarlierSteps(node, position, known=known),
        open=False,
        absent=why_absent,
    )


def _step_result(node: Any, index: int, known: Known) -> Shape:
    step = node.steps[index]
    if step.name:
        what = f"step `{step.name}`"
    else:
        what = f"step {index + 1}"
    return record(what, content=STRING, parsed=known.result(step), notes=Shape("object"))


def previous_step(node: Any, position: int, known: Known) -> Shape | None:
    """`previous`: the result of the step before the one at `position`; the first step has none."""
    if position:
        return _step_result(node, position - 1, known=known)
    return None


def _item(node: Any, position: int, known: Known) -> Shape:
    """`current_input`: an item of the iterated input, where only one is iterated and its items are
    known.
    """
    shapes = [known.variable(name) for name in node.iterated]
    return (shapes[0].item if len(shapes) == 1 else None) or ANY


def inner_result(node: Any, position: int, known: Known) -> Shape:
    """`current_result`: the result of `inner_task` for the item."""
    return value_shape(known.result(node.inner_task))


ITEM: Mapping[str, Binding] = {"current_input": _item, "index": INTEGER}


def _script_output(node: Any, position: int, known: Known) -> Shape:
    output = record("script_output", stdout=STRING, stderr=STRING, exit_code=INTEGER)
    if node.script_execution is None:
        return replace(output, empty="the loop has no script_execution")
    return output


def _directed(node: Any, position: int, known: Known) -> Shape:
    return value_shape(known.result(node.director))


ITERATION: Mapping[str, Binding] = {
    "current_iteration": INTEGER,
    "director_result": ANY,
    "script_output": _script_output,
    "evaluation": record("evaluation", True, success=BOOLEAN, feedback=STRING, details=ANY),
    "evaluation_feedback": STRING,
}
AFTER_DIRECTOR: Mapping[str, Binding] = {**ITERATION, "director_result": _directed}
