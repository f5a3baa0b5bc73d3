"""How many model calls a template can make, before one is made.

The upper bound multiplies out what the template says: turns of an atomic task, steps, items, iterations,
nested input tasks and functions called in texts. Subtasks that a model asks for count against the turns of the
task that asks, so they do not add to it; the one decomposition that may follow exhausted resources does.
Transport attempts are not calls of their own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from evaluator.errors import ExpressionError
from evaluator.library.calls import texts_of
from evaluator.library.structure import truth
from evaluator.library.syntax import analyse, analyse_expression, has_markup
from evaluator.nodes import (
    Atomic,
    Call,
    Cond,
    DirectorEvaluatorLoop,
    Expression,
    Function,
    IntSetting,
    Node,
    Reduce,
    Sequential,
    Task,
    Text,
    TopLevel,
)

DEFAULT_MAX_TURNS = 10


class _Templates(Protocol):
    """What a bound needs of a library."""

    @property
    def templates(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True, slots=True)
class CallBound:
    """At least and at most so many model calls; `max_calls` None: no bound is known.

    `min_calls` is that of a run that succeeds. `explanation` has one line for each part, indented as nested.
    """

    min_calls: int
    max_calls: int | None
    explanation: str

    def __str__(self) -> str:
        return _said(self.min_calls, self.max_calls)


def bound(
    node: TopLevel | Node,
    library: _Templates | Mapping[str, TopLevel],
    inputs: Mapping[str, Any] | None = None,
    *,
    max_turns: int = DEFAULT_MAX_TURNS,
    tools_granted: bool = False,
) -> CallBound:
    """The bound of one run of `node`.

    `inputs` make the number of items of an outermost reduce known; `max_turns` is the profile's, for tasks
    that state none; `tools_granted`: the profile offers tools to every task. A task that is offered no tool
    takes one turn. Never raises for a template that has errors: what is unknown is unbounded.
    """
    templates = library if isinstance(library, Mapping) else {n: t.node for n, t in library.templates.items()}
    counter = _Counter(templates, max_turns, tools_granted)
    low, high = counter.count(node, dict(inputs or {}), 0, ())
    return CallBound(low, high, "\n".join(counter.lines))


_Range = tuple[int, int | None]
_NONE: _Range = (0, 0)


class _Counter:
    def __init__(self, templates: Mapping[str, TopLevel], max_turns: int, tools_granted: bool) -> None:
        self._templates = templates
        self._tools_granted = tools_granted
        self._max_turns = max_turns
        self.lines: list[str] = []

    def count(self, node: TopLevel | Node, inputs: Mapping[str, Any], level: int, stack: tuple[str, ...]) -> _Range:
        at = len(self.lines)
        self.lines.append("")
        texts = self._in_texts(node, level, stack)
        own, what = self._own(node, inputs, level, stack)
        total = _add(texts, own)
        if isinstance(node, Task):
            for declared in node.inputs:
                if declared.task is not None and declared.name not in inputs:
                    total = _add(total, self.count(declared.task, {}, level + 1, stack))
        self.lines[at] = f"{'  ' * level}{what}: {_said(*total)}"
        return total

    def _own(
        self, node: TopLevel | Node, inputs: Mapping[str, Any], level: int, stack: tuple[str, ...]
    ) -> tuple[_Range, str]:
        deeper = level + 1
        match node:
            case Function():
                return self.count(node.body, {}, deeper, (*stack, node.name)), f"function {node.name}"
            case Call():
                return self._called(node.template, deeper, stack), f"call of {node.template}"
            case Cond():
                return self._branches(node, deeper, stack), "cond, one of its branches"
            case Atomic():
                return self._atomic(node)
            case Sequential():
                total = _NONE
                for step in node.steps:
                    total = _add(total, self.count(step, {}, deeper, stack))
                return total, f"{_name(node)}, {len(node.steps)} steps"
            case Reduce():
                items = _items(node, inputs)
                each = _add(
                    self.count(node.inner_task, {}, deeper, stack),
                    self.count(node.reduction_task, {}, deeper, stack),
                )
                said = "as many items as its inputs hold" if items is None else f"{items} items"
                return _times(each, items or 0, items), f"{_name(node)}, {said}"
            case DirectorEvaluatorLoop():
                return self._loop(node, deeper, stack)
            case _:
                return _NONE, f"{_name(node)}, a process"

    def _atomic(self, node: Atomic) -> tuple[_Range, str]:
        if not node.tools and not self._tools_granted:
            return (1, 1), _name(node)
        stated = None if node.handler is None else node.handler.max_turns
        turns = self._max_turns if stated is None else _fixed(stated)
        said = "turns set by a variable" if turns is None else f"at most {turns} turn{'' if turns == 1 else 's'}"
        return (1, turns), f"{_name(node)}, {said}"

    def _loop(self, node: DirectorEvaluatorLoop, level: int, stack: tuple[str, ...]) -> tuple[_Range, str]:
        each = self.count(node.director, {}, level, stack)
        if node.script_execution is not None:
            each = _add(each, self.count(node.script_execution, {}, level, stack))
        each = _add(each, self.count(node.evaluator, {}, level, stack))
        most = _fixed(node.max_iterations)
        said = "iterations set by a variable" if most is None else f"1 to {most} iterations"
        return _times(each, 1, most), f"{_name(node)}, {said}"

    def _branches(self, node: Cond, level: int, stack: tuple[str, ...]) -> _Range:
        found: list[_Range] = []
        for case in node.cases:
            holds = truth(case.test)
            if holds is False:
                continue
            found.append(self.count(case.body, {}, level, stack))
            if holds is True:
                break
        else:
            found.append(_NONE if node.default is None else self.count(node.default, {}, level, stack))
        highs = [high for _, high in found]
        return min(low for low, _ in found), None if None in highs else max(h for h in highs if h is not None)

    def _called(self, name: str, level: int, stack: tuple[str, ...]) -> _Range:
        target = self._templates.get(name)
        if target is None or name in stack:
            why = "calls itself, so nothing bounds it" if target is not None else "is not loaded"
            self.lines.append(f"{'  ' * level}{name} {why}")
            return 0, None
        return self.count(target, {}, level, (*stack, name) if not isinstance(target, Function) else stack)

    def _in_texts(self, node: TopLevel | Node, level: int, stack: tuple[str, ...]) -> _Range:
        total = _NONE
        for text in texts_of(node):
            for name, certain, looped in _calls_in(text):
                low, high = self._called(name, level + 1, stack)
                total = _add(total, (low if certain else 0, None if looped and high != 0 else high))
        return total


_BLOCK = re.compile(r"\{%[-+]?\s*(for|macro|if)\b")


def _calls_in(text: Text | Expression) -> list[tuple[str, bool, bool]]:
    """The templates that a text calls: name, whether it surely does, and whether a loop may repeat it."""
    try:
        if isinstance(text, Expression):
            # `and`, `or` and `if` may skip a call.
            return [(call.name, False, False) for call in analyse_expression(text).calls]
        if "(" not in text.value or not has_markup(text.value):
            return []
        blocks = {match[1] for match in _BLOCK.finditer(text.value)}
        plain = not blocks and " if " not in text.value and " or " not in text.value and " and " not in text.value
        return [(call.name, plain, bool(blocks & {"for", "macro"})) for call in analyse(text).calls]
    except ExpressionError:
        return []


def _items(node: Reduce, inputs: Mapping[str, Any]) -> int | None:
    names = node.over or tuple(declared.name for declared in node.inputs)
    total = 0
    for name in names:
        declared = next((i for i in node.inputs if i.name == name), None)
        if name in inputs:
            value = inputs[name]
            total += len(value) if isinstance(value, (list, tuple)) else 1  # pyright: ignore
        elif declared is not None and declared.type in ("string", "number", "integer", "boolean", "object"):
            total += 1
        else:
            return None
    return total


def _fixed(setting: IntSetting) -> int | None:
    return None if isinstance(setting, Text) else setting


def _name(node: Task) -> str:
    return f"{node.type} {node.name or node.ref or ''}".rstrip()


def _add(a: _Range, b: _Range) -> _Range:
    return a[0] + b[0], None if a[1] is None or b[1] is None else a[1] + b[1]


def _times(each: _Range, least: int, most: int | None) -> _Range:
    if each[1] == 0:
        return _NONE
    return each[0] * least, None if most is None or each[1] is None else each[1] * most


def _said(low: int, high: int | None) -> str:
    if high is None:
        return f"{low} or more calls, no upper bound"
    return f"{low} call{'' if low == 1 else 's'}" if low == high else f"{low} to {high} calls"
