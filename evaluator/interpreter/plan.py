"""The number of steps of a run that succeeds, for comparison with the steps of one that stopped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from evaluator.library import TemplateLibrary
from evaluator.nodes import Atomic, Call, Node, Task, Text, TopLevel
from evaluator.nodes.walk import operands

_MAX_DEPTH = 50


def planned_steps(
    node: TopLevel | Node, library: TemplateLibrary, inputs: Mapping[str, Any]
) -> int | None:
    """The number of steps of a task file; None if it depends on values that only the run knows.

    It counts one turn for each atomic task, all iterations of each loop and the longest branch of
    each condition.
    """
    return _Planner(library).steps(node, inputs, 0)


class _Planner:
    """Counts steps. Each template is counted once, however often others call it."""

    def __init__(self, library: TemplateLibrary) -> None:
        self._library = library
        self._known: dict[str, int | None] = {}

    def steps(self, node: TopLevel | Node, inputs: Mapping[str, Any], depth: int) -> int | None:
        if depth > _MAX_DEPTH:
            return None

        def inside(child: TopLevel | Node) -> int | None:
            return self.steps(child, {}, depth=depth + 1)

        if isinstance(node, Call):
            return self._called(node.template, depth + 1)
        run = [
            (operand.one_of, _times(inside(operand.node), operand.repeats.most))
            for operand in operands(node, inputs)
        ]
        child_steps = [
            *(steps for one_of, steps in run if not one_of),
            _largest(steps for one_of, steps in run if one_of),
        ]
        if not isinstance(node, Task):
            return _total(child_steps)
        nested = [
            inside(i.task) for i in node.inputs if i.task is not None and i.name not in inputs
        ]
        turns = ()
        if isinstance(node, Atomic):
            turns = node.turns
        played = [
            _times(inside(turn.node), None if isinstance(turn.most, Text) else turn.most)
            for turn in turns
            if turn.node is not None
        ]
        return _total([_own_steps(node), *played, *child_steps, *nested])

    def _called(self, name: str, depth: int) -> int | None:
        if name not in self._known:
            self._known[name] = None  # the answer to a call inside a cycle
            if name in self._library:
                self._known[name] = self.steps(self._library.get(name).node, {}, depth=depth)
        return self._known[name]


def _own_steps(task: Task) -> int | None:
    """The task's own steps: a resolve step and the turns of a conversation, one for a process, one
    to read output.
    """
    is_read = task.output is not None and (
        task.output.type != "text" or task.output.schema is not None
    )
    turns = task.queries().most
    if turns is None:
        return None
    return (1 + turns) * task.asks_model + task.runs_process + is_read


def _largest(parts: Iterable[int | None]) -> int | None:
    counts = list(parts)
    if None in counts:
        return None
    return max(filter(None, counts), default=0)


def _total(parts: Iterable[int | None]) -> int | None:
    counts = list(parts)
    if None in counts:
        return None
    return sum(filter(None, counts))


def _times(steps: int | None, count: int | None) -> int | None:
    if steps == 0:
        return 0
    if steps is None or count is None:
        return None
    return steps * count
