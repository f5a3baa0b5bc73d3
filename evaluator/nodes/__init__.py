"""The syntax tree of a template: frozen data with positions, without I/O. Each operator is declared
once, here.

Every node has the `Span` of the place in the author's file that it was read from. Texts that may
hold variables are stored as `Text`, unrendered. A setting that holds a placeholder is stored as
`Text` too and is checked after substitution.

**An operator** is a subclass of `Task` with the decorator `@operator("its type")`. Its fields are
declared with the functions of `declare`: each says what walks do with the value (a text, a setting,
a child node, a part, data), in which element or attribute XML has it, its range, and for a child
the names that its scope gains (`binds`), with their shapes (those that are computed are in
`declare`); `BOUND_NAMES` says what they mean. What is not a field is a class variable
(`default_context`, `asks_model`, `runs_process`) or a short method: `repeats` says how often the
child nodes run (`repeats_of`, where they differ; `one_of` declares children that are alternatives,
`may_fail` those whose failure does not end the task), `result` which shape the result has, `doubts`
what is probably a mistake. What every operator has (`Task`), and the nodes that are not operators,
are in `tree`.

Everything else is generic over these declarations: reading and writing XML (`xml.build_task`,
`xml.write`), variables in scope (`library.scoping`), call bounds (`library.bounds`), `ref`
(`library.resolve`), settings with placeholders (`language.inputs`), planned steps
(`interpreter.plan`), and the walks of `walk`.

`docs/explanation/architecture.md` lists the steps to add an operator.
`tests/nodes/test_new_operator.py` adds one of its own, as an example.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, ClassVar

from evaluator.nodes.declare import (
    AFTER_DIRECTOR,
    CONVERSATION,
    FIELDS,
    ITEM,
    ITERATION,
    OPERATORS,
    Known,
    child,
    condition,
    declared,
    declared_by_name,
    earlier_steps,
    expression,
    flag,
    inner,
    inner_result,
    names,
    operator,
    part,
    previous_step,
    setting,
    text,
)
from evaluator.nodes.tree import AccumulationFormat as AccumulationFormat
from evaluator.nodes.tree import Argument as Argument
from evaluator.nodes.tree import BoolSetting as BoolSetting
from evaluator.nodes.tree import Call as Call
from evaluator.nodes.tree import Case as Case
from evaluator.nodes.tree import Cond as Cond
from evaluator.nodes.tree import (
    ContextSettings,
    Doubt,
    Expression,
    FloatSetting,
    IntSetting,
    Node,
    Repeats,
    Span,
    Task,
    Text,
)
from evaluator.nodes.tree import Example as Example
from evaluator.nodes.tree import FilePaths as FilePaths
from evaluator.nodes.tree import FreshContext as FreshContext
from evaluator.nodes.tree import Function as Function
from evaluator.nodes.tree import HandlerSpec as HandlerSpec
from evaluator.nodes.tree import InheritContext as InheritContext
from evaluator.nodes.tree import Input as Input
from evaluator.nodes.tree import Mark as Mark
from evaluator.nodes.tree import OutputFormat as OutputFormat
from evaluator.nodes.tree import Param as Param
from evaluator.nodes.tree import TopLevel as TopLevel
from evaluator.nodes.values import ANY, NULL, STRING, TYPE_NAMES, Shape, record, value_shape


@declared
class Turn:
    """A message of the user in the conversation of an atomic task: `text`, or the result of `node`,
    which plays the user up to `most` times and sees the conversation so far.
    """

    text: Text | None = inner("text", default=None)
    node: Node | None = inner("node", default=None, binds={"turns": CONVERSATION})
    most: IntSetting = setting("integer", default=1, attribute="max", least=1)
    span: Span = Span()


@operator("atomic")
class Atomic(Task):
    """Asks a model. With `turns` the conversation continues: each is sent after the answer to the
    message before.

    `tools_from` gives schemas of functions that are offered and not run: the calls are the answer.
    """

    asks_model: ClassVar[bool] = True

    turns: tuple[Turn, ...] = part(Turn, "turns", default=())
    tools_from: Expression | None = expression(of="tools", name="from", default=None)

    def queries(self) -> Repeats:
        later = self.later_turns()
        least = 1
        most = 1
        for turn in later:
            least += turn.node is None
            bound = 1 if turn.node is None else turn.most
            if most is None or isinstance(bound, Text):
                most = None
            else:
                most = most + bound
        return Repeats(least, most, why=f"{1 + len(later)} turns" if later else "")

    def opening(self) -> Text:
        """The text of the first message: the instructions, else the first turn, else the
        description.
        """
        if self.turns:
            first = self.turns[0].text
        else:
            first = None
        return self.instructions or first or self.description

    def later_turns(self) -> tuple[Turn, ...]:
        """The turns after the first message."""
        if self.instructions is None:
            return self.turns[1:]
        return self.turns

    def doubts(self) -> Iterator[Doubt]:
        least = self.queries().least
        handler = self.handler
        if handler is not None and isinstance(handler.max_turns, int) and handler.max_turns < least:
            message = (
                f"max_turns is {handler.max_turns}, and the conversation has "
                f"{least} message{'' if least == 1 else 's'}, each with an answer"
            )
            yield Doubt(
                "error",
                "too-few-turns",
                message=message,
                hint="raise max_turns, or leave it out",
                span=handler.span,
            )
        if self.turns and self.instructions is None and self.turns[0].node is not None:
            message = "the first message of a conversation is a text"
            yield Doubt(
                "error",
                "played-turn",
                message=message,
                hint="write <instructions>, or a <turn> with a text before this one",
            )
        if (
            self.turns
            and self.turns[-1].node is not None
            and self.output is not None
            and self.output.type != "text"
        ):
            message = "the format belongs to the last message, which another task writes here"
            yield Doubt(
                "error",
                "played-turn",
                message=message,
                hint="end with a <turn> that asks for the format",
            )
        if self.tools_from is None:
            return
        for what, stands in (
            ("<tool>", self.tools),
            ("<turns>", self.turns),
            ("<output_format>", self.output),
        ):
            if stands:
                message = (
                    "the calls of the functions in <tools from> are the answer, so there "
                    f"is no {what}"
                )
                yield Doubt(
                    "error", "calls-are-the-answer", message=message, hint=f"remove {what} or from"
                )

    def result(self, known: Known) -> Shape:
        if self.tools_from is None:
            return NULL
        return Shape("array", item=record("a call", name=STRING, arguments=ANY))


@operator("sequential")
class Sequential(Task):
    """Runs its steps in order; the last one gives the result."""

    default_context: ClassVar[ContextSettings] = ContextSettings(
        "full", True, "notes_only", "disabled"
    )

    steps: tuple[Node, ...] = child(
        form="steps", binds={"steps": earlier_steps, "previous": previous_step}
    )

    def repeats(self, given: Mapping[str, Any]) -> Repeats:
        return Repeats(1, 1, why=_amount(len(self.steps), "step"))

    def result(self, known: Known) -> Shape:
        if self.steps:
            return known.result(self.steps[-1])
        return ANY

    def doubts(self) -> Iterator[Doubt]:
        if not self.steps:
            yield Doubt("warning", "no-steps", message="the sequence has no steps")


@declared_by_name
class Iteration(Task):
    """Runs `inner_task` for each item of its inputs.

    `over` names the inputs that are iterated (all of them when empty); a list value gives one item
    each.
    """

    concurrency: IntSetting = setting("integer", default=1, attribute="concurrency", least=1)
    over: tuple[str, ...] = names(default=(), of="inputs")
    inner_task: Node = child(binds=ITEM)

    @property
    def iterated(self) -> tuple[str, ...]:
        """The names of the inputs that are iterated."""
        return self.over or tuple(declared.name for declared in self.inputs)

    def items(self, values: Mapping[str, Any]) -> list[Any]:
        """The items in the values of the inputs; an input without a list is one item."""
        found: list[Any] = []
        for name in self.iterated:
            value = values.get(name)
            found += value if isinstance(value, (list, tuple)) else [value]
        return found

    def repeats(self, given: Mapping[str, Any]) -> Repeats:
        types = {declared.name: declared.type for declared in self.inputs}
        known = {name: given[name] for name in self.iterated if name in given}
        # An input of a scalar type is always one item.
        unknown = [
            name for name in self.iterated if name not in given and types.get(name) not in _SCALARS
        ]
        if unknown:
            return Repeats(0, None, why="as many items as its inputs hold")
        count = len(self.items({**dict.fromkeys(self.iterated), **known}))
        return Repeats(count, count, why=_amount(count, "item"))

    def doubts(self) -> Iterator[Doubt]:
        if not self.inputs:
            yield Doubt(
                "warning",
                f"nothing-to-{self.type}",
                message=f"{self.type} has no inputs, so there are no items",
            )


_SCALARS = frozenset(TYPE_NAMES) - {"any", "array", "[]"}


@operator("reduce")
class Reduce(Iteration):
    """Runs `inner_task` for each item, then `reduction_task` to combine each result with the
    accumulator.
    """

    default_context: ClassVar[ContextSettings] = ContextSettings(
        "none", True, "notes_only", "enabled"
    )

    initial_value: Text | None = text(default=None)
    reduction_task: Node = child(binds={**ITEM, "current_result": inner_result, "accumulator": ANY})

    def result(self, known: Known) -> Shape:
        # A reduction over no items gives the initial value, which is text.
        if known.result(self.reduction_task) == NULL:
            return NULL
        return ANY


@operator("map")
class Map(Iteration):
    """Runs `inner_task` for each item; the result is the list of the results."""

    default_context: ClassVar[ContextSettings] = ContextSettings(
        "none", False, "notes_only", "enabled"
    )

    def result(self, known: Known) -> Shape:
        return Shape("array", item=value_shape(known.result(self.inner_task)))


@operator("script")
class Script(Task):
    """Runs a process. `command` is argv, one Text an argument; with `shell` it is one Text for
    `/bin/sh -c`.
    """

    runs_process: ClassVar[bool] = True

    command: tuple[Text, ...] = text(form="command")
    shell: bool = flag(default=False, of="command")
    timeout_s: FloatSetting | None = setting("decimal", default=None, element="timeout", above=0)

    def repeats(self, given: Mapping[str, Any]) -> Repeats:
        return Repeats(0, 0, why="a process")

    def result(self, known: Known) -> Shape:
        return NULL


@operator("director_evaluator_loop")
class DirectorEvaluatorLoop(Task):
    """Runs director, optional script and evaluator until the condition holds or the iterations
    end.
    """

    default_context: ClassVar[ContextSettings] = ContextSettings(
        "none", True, "notes_only", "enabled"
    )

    max_iterations: IntSetting = setting("integer", default=5, element="max_iterations", least=1)
    director: Node = child(
        binds=ITERATION,
        expects=(
            (
                ("evaluation_feedback", "evaluation", "script_output"),
                "the feedback has no effect: no text of the director names it",
            ),
        ),
    )
    script_execution: Script | None = child(
        default=None, form="script", binds=AFTER_DIRECTOR, may_fail=True
    )
    evaluator: Node = child(
        binds=AFTER_DIRECTOR,
        may_fail=True,
        expects=(
            (
                ("director_result", "script_output"),
                "the director's result has no effect: no text of the evaluator names it",
            ),
        ),
    )
    termination_condition: Expression | None = condition(default=None, binds=AFTER_DIRECTOR)

    def repeats(self, given: Mapping[str, Any]) -> Repeats:
        most = self.max_iterations
        if isinstance(most, Text):
            return Repeats(1, None, why="iterations set by a variable")
        if most == 1:
            return Repeats(1, 1, why="1 iteration")
        return Repeats(1, most, why=f"1 to {most} iterations")

    def result(self, known: Known) -> Shape:
        return known.result(self.director)

    def doubts(self) -> Iterator[Doubt]:
        most = self.max_iterations
        if isinstance(most, int) and most < 1:
            yield Doubt(
                "error", "no-iterations", message=f"max_iterations is {most}; it must be at least 1"
            )
        # A stated 5 is the default too, and reads the same from the tree.
        if self.termination_condition is None and most == 5:
            yield Doubt(
                "warning",
                "loop-by-default",
                message="the loop has no termination_condition: it ends when the evaluator reports "
                "success, or after 5",
                hint="add <termination_condition> or <max_iterations>",
            )


BOUND_NAMES: Mapping[str, str] = {
    "steps": (
        "the earlier steps, by name and by index (`steps.NAME`, `steps[0]`): `content` (text), "
        "`parsed` (value or null), `notes`"
    ),
    "previous": "the step before, with the same fields; from the second step on",
    "current_input": "the item",
    "index": "the number of the item, from 0",
    "current_result": "the result of `inner_task` for the item",
    "accumulator": "the result of the reductions so far",
    "current_iteration": "the number of the iteration, from 1",
    "director_result": (
        "the value or text of the director's last result; empty text before the first one"
    ),
    "script_output": "`stdout`, `stderr`, `exit_code` (null if it was stopped or has not run)",
    "evaluation": "`success`, `feedback`, `details`, and other fields of the evaluator's answer",
    "evaluation_feedback": "the same as `evaluation.feedback`",
}
"""What the names that operators bind for their children mean, for the reference of templates."""


def operators_with(element: str | None, attribute: str | None = None) -> tuple[str, ...]:
    """The types of the tasks that have this child element, or this attribute of it (None: of their
    own element).
    """
    return _owners(tuple(OPERATORS.values())).get((element, attribute), ())


def _amount(count: int, noun: str) -> str:
    if count == 1:
        return f"1 {noun}"
    return f"{count} {noun}s"


@lru_cache(maxsize=4)
def _owners(
    operators: tuple[type[Task], ...],
) -> Mapping[tuple[str | None, str | None], tuple[str, ...]]:
    found: dict[tuple[str | None, str | None], tuple[str, ...]] = {}
    for cls in operators:
        for place in dict.fromkeys((one.element, one.attribute) for one in FIELDS[cls]):
            found[place] = (*found.get(place, ()), cls.type)
    return found
