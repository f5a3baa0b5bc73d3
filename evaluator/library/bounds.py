"""Bounds on the model calls of a template, computed without making a call.

The upper bound multiplies what the template declares: turns of an atomic task, steps, items, iterations,
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
from evaluator.language.analysis import analyse, analyse_expression
from evaluator.language.syntax import has_markup
from evaluator.library.structure import truth
from evaluator.nodes import Call, Cond, Expression, Function, Node, Task, Text, TopLevel
from evaluator.nodes.walk import operands, texts

DEFAULT_MAX_TURNS = 12


class _Templates(Protocol):
    """The part of a library that a bound needs."""

    @property
    def templates(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True, slots=True)
class CallBound:
    """The smallest and the largest number of model calls. `max_calls` is None if no bound is known.

    `min_calls` is that of a run that succeeds. `explanation` has one line for each part, indented by nesting.
    """

    min_calls: int
    max_calls: int | None
    explanation: str

    def __str__(self) -> str:
        return _words(self.min_calls, self.max_calls)


def bound(
    node: TopLevel | Node,
    library: _Templates | Mapping[str, TopLevel],
    inputs: Mapping[str, Any] | None = None,
    *,
    max_turns: int = DEFAULT_MAX_TURNS,
    tools_granted: bool = False,
) -> CallBound:
    """The bound of one run of `node`.

    `inputs` make the number of items of an outermost task that iterates known; `max_turns` is the profile's, for
    tasks that state none; `tools_granted`: the profile offers tools to every task. A task that is offered no tool
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
        total = self._in_texts(node, level, stack)
        if isinstance(node, Function):
            own, what = self.count(node.body, {}, level + 1, (*stack, node.name)), f"function {node.name}"
        elif isinstance(node, Call):
            own, what = self._called(node.template, level + 1, stack), f"call of {node.template}"
        elif isinstance(node, Cond):
            own, what = self._branches(node, level + 1, stack), "cond, one of its branches"
        else:
            own, what = self._task(node, inputs, level + 1, stack)
        total = _add(total, own)
        self.lines[at] = f"{'  ' * level}{what}: {_words(*total)}"
        return total

    def _task(self, node: Task, inputs: Mapping[str, Any], level: int, stack: tuple[str, ...]) -> tuple[_Range, str]:
        """The calls of a task, those of its child nodes as often as it runs them, and those of nested input tasks."""
        repeats = node.repeats(inputs)
        total, why = self._turns(node) if node.asks_model else (_NONE, repeats.why)
        each = _NONE
        for child in operands(node):
            each = _add(each, self.count(child, {}, level, stack))
        total = _add(total, _times(each, repeats.least, repeats.most))
        for declared in node.inputs:
            if declared.task is not None and declared.name not in inputs:
                total = _add(total, self.count(declared.task, {}, level, stack))
        name = f"{node.type} {node.name or node.ref or ''}".rstrip()
        return total, f"{name}, {why}" if why else name

    def _turns(self, node: Task) -> tuple[_Range, str]:
        if not node.tools and not self._tools_granted:
            return (1, 1), ""
        stated = None if node.handler is None else node.handler.max_turns
        turns = self._max_turns if stated is None else stated
        if isinstance(turns, Text):
            return (1, None), "turns set by a variable"
        return (1, turns), f"at most {turns} turn{'' if turns == 1 else 's'}"

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
        for text in texts(node):
            for name, certain, looped in _calls_in(text):
                low, high = self._called(name, level + 1, stack)
                total = _add(total, (low if certain else 0, None if looped and high != 0 else high))
        return total


_BLOCK = re.compile(r"\{%[-+]?\s*(for|macro|if)\b")


def _calls_in(text: Text | Expression) -> list[tuple[str, bool, bool]]:
    """The templates that a text calls: name, whether the call is certain, and whether a loop may repeat it."""
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


def _add(a: _Range, b: _Range) -> _Range:
    return a[0] + b[0], None if a[1] is None or b[1] is None else a[1] + b[1]


def _times(each: _Range, least: int, most: int | None) -> _Range:
    if each[1] == 0:
        return _NONE
    return each[0] * least, None if most is None or each[1] is None else each[1] * most


def _words(low: int, high: int | None) -> str:
    if high is None:
        return f"{low} or more calls, no upper bound"
    return f"{low} call{'' if low == 1 else 's'}" if low == high else f"{low} to {high} calls"
