"""Bounds on the model calls of a template, computed without making a call.

The upper bound multiplies what the template declares: turns of an atomic task, steps, items,
iterations, nested input tasks and functions called in texts. Subtasks that a model asks for count
against the turns of the task that asks, so they do not add to it; the one decomposition that may
follow exhausted resources does. Transport attempts are not calls of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from evaluator.lazy_dataclass import frozen
from evaluator.library.calls import calls_in, calls_of, components, reachable
from evaluator.library.structure import truth
from evaluator.nodes import Atomic, Call, Expression, Function, Node, Task, Text, TopLevel
from evaluator.nodes.walk import operands, texts
from evaluator.patterns import Pattern

if TYPE_CHECKING:
    from evaluator.library.loader import TemplateLibrary

DEFAULT_MAX_TURNS = 12
MAX_COUNT = 10**15
"""Larger numbers of calls are not distinguished."""
MAX_LINES = 200


@frozen
class CallBound:
    """The smallest and the largest number of model calls. `max_calls` is None if no bound is known,
    or above 10^15.

    `min_calls` is that of a run that succeeds, whatever fails in it that it tolerates. `lines`
    explain the numbers.
    """

    min_calls: int
    max_calls: int | None
    lines: Iterable[str] = field(repr=False, compare=False)

    @property
    def explanation(self) -> str:
        """One line for each part, indented by nesting; the parts of a template once, and at most
        200 lines.
        """
        lines = [*islice(self.lines, MAX_LINES + 1)]
        return "\n".join(lines if len(lines) <= MAX_LINES else [*lines[:MAX_LINES], "…"])

    def __str__(self) -> str:
        return _words(self.min_calls, self.max_calls)

    def of_model_calls(self) -> str:
        """The bound as a phrase; the lower one where the upper one is not known."""
        if self.max_calls is None:
            return f"at least {_model_calls(self.min_calls)}, no upper bound"
        return f"at most {_model_calls(self.max_calls)}"


class ModelUse(NamedTuple):
    """How a task uses its model: the limits of its profile, and what is counted.

    `per_turn` is the most that one turn counts, None where that is unknown: 1 counts calls, other
    numbers count tokens or cost. `at_most` bounds the whole task, None if nothing does. `note` is
    added to the task's line of the explanation.
    """

    max_turns: int
    offers_tools: bool
    per_turn: int | None = 1
    at_most: int | None = None
    note: str = ""


def bound(
    node: TopLevel | Node,
    library: TemplateLibrary | Mapping[str, TopLevel],
    inputs: Mapping[str, Any] | None = None,
    *,
    max_turns: int = DEFAULT_MAX_TURNS,
    tools_granted: bool = False,
) -> CallBound:
    """The bound of one run of `node`, see `CallCounter`."""
    return CallCounter(library, max_turns=max_turns, tools_granted=tools_granted).bound(
        node, inputs
    )


def call_bound(library: TemplateLibrary, name: str, use: Callable[[Task], ModelUse]) -> CallBound:
    """The bound of one run of the template `name`, see `CallCounter`. The library stores it for
    each `use`; what is equal has to say the same.

    Raises: UsageError or TemplateError, for a template that cannot be used.
    """
    bounds = library.bounds
    key = (name, use)
    if key not in bounds:
        bounds[key] = CallCounter(library, use=use).bound(library.get(name).node)
    return bounds[key]


_Range = tuple[int, int | None]
_NONE: _Range = (0, 0)


@frozen
class _ExplainedLine:
    """A line of an explanation; `template` is the name of the template whose lines are in its
    place.
    """

    level: int
    text: str
    template: str | None = None


class CallCounter:
    """Counts the calls of runs, with one profile. Each template is counted once, however often
    others call it.

    `max_turns` is the profile's, for tasks that state none; `tools_granted`: the profile offers
    tools to every task. `use` says both, and what is counted, of each task. A task that is offered
    no tool takes one turn. `unbounded` has one line for each part that nothing bounds.
    """

    def __init__(
        self,
        library: TemplateLibrary | Mapping[str, TopLevel],
        *,
        max_turns: int = DEFAULT_MAX_TURNS,
        tools_granted: bool = False,
        use: Callable[[Task], ModelUse] | None = None,
    ) -> None:
        is_mapping = isinstance(library, Mapping)
        if is_mapping:
            self._templates = library
        else:
            self._templates = {n: t.node for n, t in library.templates.items()}
        profile = ModelUse(max_turns, tools_granted)

        def use_of_profile(task: Task) -> ModelUse:
            return profile

        self._use = use or use_of_profile
        self.unbounded: dict[str, None] = {}
        self._ranges: dict[str, _Range] = {}
        self._parts_of: dict[str, list[_ExplainedLine]] = {}
        self._parts: list[_ExplainedLine] = []
        self.counted = 0
        """The number of nodes that were counted."""

    def bound(self, node: TopLevel | Node, inputs: Mapping[str, Any] | None = None) -> CallBound:
        """The bound of one run of `node`. `inputs` make the items of an outermost task that
        iterates known.

        Never raises for a template that has errors: what is unknown is unbounded.
        """
        self._count_called(calls_of(node))
        self._parts = parts = []
        low, high = self._count(node, dict(inputs or {}), level=0)
        return CallBound(low, high, lines=_Explanation(parts, self._parts_of))

    def _count_called(self, names: Iterable[str]) -> None:
        """Counts the templates that `names` lead to, each after those that it calls.

        A call inside a cycle is counted as unbounded.
        """

        def calls(name: str) -> Collection[str] | None:
            if name in self._templates and name not in self._ranges:
                return calls_of(self._templates[name])
            return None

        for component in components(reachable(names, calls)):
            found: dict[str, _Range] = {}
            for name in component:
                self._parts = self._parts_of[name] = []
                found[name] = self._count(self._templates[name], {}, level=0)
            self._ranges |= found

    def _count(self, node: TopLevel | Node, inputs: Mapping[str, Any], level: int) -> _Range:
        self.counted += 1
        parts = self._parts
        at = len(parts)
        parts.append(_ExplainedLine(level, ""))
        total = self._in_texts(node, level)
        if isinstance(node, Task):
            own, what = self._task(node, inputs, level=level + 1)
        elif isinstance(node, Call):
            own = self._called(node.template, level + 1)
            what = f"call of {node.template}"
        else:
            own = self._operands(node, {}, level=level + 1)
            what = "cond, one of its branches"
            if isinstance(node, Function):
                what = f"function {node.name}"
        total = _add(total, own)
        parts[at] = _ExplainedLine(level, f"{what}: {_words(*total)}")
        return total

    def _task(self, node: Task, inputs: Mapping[str, Any], level: int) -> tuple[_Range, str]:
        """The calls of a task, those of its child nodes as often as it runs them, and those of
        nested input tasks.
        """
        total = _NONE
        if node.asks_model:
            total, why = self._turns(node)
        else:
            why = node.repeats(inputs).why
        total = _add(total, self._operands(node, inputs, level=level))
        for turn in node.turns if isinstance(node, Atomic) else ():
            if turn.node is not None:
                if isinstance(turn.most, Text):
                    most = None
                else:
                    most = turn.most
                played = self._count(turn.node, {}, level=level)
                total = _add(total, self._times(played, 0, most=most, what="a turn's max"))
        for declared in node.inputs:
            if declared.task is not None and declared.name not in inputs:
                total = _add(total, self._count(declared.task, {}, level=level))
        name = f"{node.type} {node.name or node.ref or ''}".rstrip()
        return total, f"{name}, {why}" if why else name

    def _turns(self, node: Task) -> tuple[_Range, str]:
        """What the conversation of the task counts, and its turns in words."""
        use = self._use(node)
        queries = node.queries()
        most = queries.most
        why = queries.why
        offers_only = isinstance(node, Atomic) and node.tools_from is not None
        if not offers_only and (node.tools or use.offers_tools):
            turns = None
            if node.handler is not None:
                turns = node.handler.max_turns
            if turns is None:
                turns = use.max_turns
            if isinstance(turns, Text):
                most = None
                why = "turns set by a variable"
            else:
                most = max(queries.least, turns)
                why = f"at most {turns} turn{'' if turns == 1 else 's'}"
        what = f"{node.name or node.type}: the number of turns"
        if use.at_most is None:
            total = self._times((1, use.per_turn), queries.least, most=most, what=what)
        else:
            total = _times((1, use.per_turn), queries.least, most=most)
            total = (total[0], use.at_most if total[1] is None else min(total[1], use.at_most))
        return total, ", ".join(part for part in (why, use.note) if part)

    def _times(self, each: _Range, least: int, most: int | None, what: str) -> _Range:
        """As `_times`; notes in `unbounded` that `what` has no bound."""
        if most is None and each[1] != 0:
            self.unbounded[f"{what} is not known"] = None
        return _times(each, least, most=most)

    def _operands(self, node: TopLevel | Node, inputs: Mapping[str, Any], level: int) -> _Range:
        """The calls of the children that a node runs: of each as often as it says, and of one of
        the alternatives.
        """
        total = _NONE
        one_of = list[_Range]()
        is_certain = False
        is_chosen = False
        for each in operands(node, inputs):
            holds = None
            if each.guard is not None:
                holds = truth(each.guard)
            if each.one_of and (is_chosen or holds is False):
                continue
            once = self._count(each.node, {}, level=level)
            if each.may_fail:
                once = (min(once[0], self._least_of_failure(each.node)), once[1])
            found = self._times(
                once,
                each.repeats.least,
                most=each.repeats.most,
                what=f"{_name(node)}: {each.repeats.why}, whose number",
            )
            if not each.one_of:
                total = _add(total, found)
                continue
            one_of.append(found)
            is_chosen = holds is True
            is_certain = is_certain or is_chosen or each.guard is None
        return _add(total, _any_of(one_of if is_certain else [*one_of, _NONE]))

    def _least_of_failure(self, node: TopLevel | Node) -> int:
        """The fewest calls of a run of `node` that fails, with which a task around it goes on: 1
        where nothing but the answer of its own model can fail.
        """
        seen: set[str] = set()
        while not isinstance(node, Task):
            if any(map(_calls_in, texts(node))):
                return 0
            if isinstance(node, Function):
                node = node.body
            elif isinstance(node, Call) and node.template in self._templates:
                if node.template in seen:
                    return 0
                seen.add(node.template)
                node = self._templates[node.template]
            else:
                return 0
        is_first = not any(map(_calls_in, texts(node)))
        is_first = is_first and all(declared.task is None for declared in node.inputs)
        if isinstance(node, Atomic):
            is_first = is_first and all(turn.node is None for turn in node.turns)
        return int(node.asks_model and is_first)

    def _called(self, name: str, level: int) -> _Range:
        if name in self._ranges:
            self._parts.append(_ExplainedLine(level, "", template=name))
            return self._ranges[name]
        why = "is not loaded"
        if name in self._templates:
            why = "calls itself, so nothing bounds it"
        self.unbounded[f"{name} {why}"] = None
        self._parts.append(_ExplainedLine(level, f"{name} {why}"))
        return 0, None

    def _in_texts(self, node: TopLevel | Node, level: int) -> _Range:
        total = _NONE
        for text in texts(node):
            for name, certain, looped in _calls_in(text):
                low, high = self._called(name, level + 1)
                if looped and high != 0:
                    high = None
                    why = f"a loop in a text calls {name}, as often as its items"
                    self.unbounded[f"{_name(node)}: {why}"] = None
                total = _add(total, (low if certain else 0, high))
        return total


@frozen
class _Explanation:
    """The lines of an explanation. The lines of a template are given once, and after that its first
    line.
    """

    parts: Sequence[_ExplainedLine]
    parts_of: Mapping[str, Sequence[_ExplainedLine]]

    def __iter__(self) -> Iterator[str]:
        shown: set[str] = set()
        ways = [(0, iter(self.parts))]
        while ways:
            level, parts = ways[-1]
            part = next(parts, None)
            if part is None:
                ways.pop()
            elif part.template is None:
                yield f"{'  ' * (level + part.level)}{part.text}"
            elif part.template not in shown:
                shown.add(part.template)
                ways.append((level + part.level, iter(self.parts_of[part.template])))
            else:
                first = self.parts_of[part.template][0].text
                yield f"{'  ' * (level + part.level)}{first}, as above"


_BLOCK = Pattern(r"\{%[-+]?\s*(for|macro|if)\b")


def _calls_in(text: Text | Expression) -> list[tuple[str, bool, bool]]:
    """The templates that a text calls: name, whether the call is certain, and whether a loop may
    repeat it.
    """
    calls = calls_in(text)
    if not calls:
        return []
    if isinstance(text, Expression):
        # `and`, `or` and `if` may skip a call.
        return [(call.name, False, False) for call in calls]
    blocks = {match[1] for match in _BLOCK.finditer(text.value)}
    plain = not blocks and not any(word in text.value for word in (" if ", " or ", " and "))
    return [(call.name, plain, bool(blocks & {"for", "macro"})) for call in calls]


def _add(a: _Range, b: _Range) -> _Range:
    return _capped(a[0] + b[0], None if a[1] is None or b[1] is None else a[1] + b[1])


def _any_of(ranges: Sequence[_Range]) -> _Range:
    """The range of one of several alternatives."""
    highs = [high for _, high in ranges]
    return min((low for low, _ in ranges), default=0), None if None in highs else max(
        filter(None, highs), default=0
    )


def _times(each: _Range, least: int, most: int | None) -> _Range:
    if each[1] == 0:
        return _NONE
    return _capped(each[0] * least, None if most is None or each[1] is None else each[1] * most)


def _capped(low: int, high: int | None) -> _Range:
    return min(low, MAX_COUNT), None if high is None or high > MAX_COUNT else high


def _name(node: TopLevel | Node) -> str:
    """A node for a message."""
    return getattr(node, "name", None) or type(node).__name__.lower()


def _words(low: int, high: int | None) -> str:
    if low == MAX_COUNT and high is None:
        return f"{low:,} or more calls"
    if high is None:
        return f"{low} or more calls, no upper bound"
    if low == high:
        return f"{low} call{'' if low == 1 else 's'}"
    return f"{low} to {high} calls"


def _model_calls(number: int) -> str:
    return f"{number:,} model call{'' if number == 1 else 's'}"
