"""The syntax tree of a template: frozen data with positions, no behaviour and no I/O.

Every node carries the `Span` of the place in the author's file that it was read from. Texts that may hold
variables are kept as `Text`, unrendered; typed attributes that hold a placeholder are kept as `Text` too and
are validated again after substitution.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

TaskType = Literal["atomic", "sequential", "reduce", "script", "director_evaluator_loop"]
TASK_TYPES: tuple[TaskType, ...] = ("atomic", "sequential", "reduce", "script", "director_evaluator_loop")

InheritContext = Literal["full", "subset", "none"]
AccumulationFormat = Literal["notes_only", "full_output"]
FreshContext = Literal["enabled", "disabled"]


@dataclass(frozen=True, slots=True)
class Span:
    """A place in a source: file (None for a string), line and column, both counted from 1 in characters."""

    file: str | None = None
    line: int = 1
    column: int = 1

    def __str__(self) -> str:
        return f"{self.file or '<string>'}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class Mark:
    """From `offset` in a `Text` on, characters stand at `span` and the ones after it, one to one."""

    offset: int
    span: Span


@dataclass(frozen=True, slots=True)
class Text:
    """Template text as the author wrote it: XML decoded, dedented, `<<x>>` read as `{{x}}`, not rendered.

    `marks` has one entry where the text begins and one after each place where the source and the text
    diverge (line starts after dedenting, entities, CDATA borders), so that `locate` is exact.
    """

    value: str
    span: Span
    marks: tuple[Mark, ...] = ()

    def locate(self, offset: int) -> Span:
        """The place in the author's file of the character at `offset` in `value`."""
        best = Mark(0, self.span)
        for mark in self.marks:
            if mark.offset > offset:
                break
            best = mark
        between = self.value[best.offset : offset]
        newlines = between.count("\n")
        if newlines:
            return Span(best.span.file, best.span.line + newlines, len(between) - between.rfind("\n"))
        return Span(best.span.file, best.span.line, best.span.column + len(between))


IntSetting: TypeAlias = int | Text
FloatSetting: TypeAlias = float | Text
BoolSetting: TypeAlias = bool | Text


@dataclass(frozen=True, slots=True)
class Expression:
    """A sandboxed expression (`test`, `termination_condition`, `from`), as written."""

    source: Text

    @property
    def span(self) -> Span:
        return self.source.span


@dataclass(frozen=True, slots=True)
class ContextSettings:
    """What a template says about context, dimension by dimension; None where it is silent."""

    inherit_context: InheritContext | None = None
    accumulate_data: bool | None = None
    accumulation_format: AccumulationFormat | None = None
    fresh_context: FreshContext | None = None
    span: Span = Span()


@dataclass(frozen=True, slots=True)
class FilePaths:
    """Files that a task always sees. `items` are paths, one glob each, a command's argv, or one description."""

    source: Literal["literal", "glob", "command", "description"]
    items: tuple[Text, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """`type` and `schema` as declared; `schema` may also be inline JSON Schema text."""

    type: Literal["text", "json", "xml"]
    schema: str | None
    span: Span


@dataclass(frozen=True, slots=True)
class HandlerSpec:
    """The `<handler>` element: a profile's name and overrides; None where it is silent."""

    ref: str | None = None
    max_turns: IntSetting | None = None
    max_context_fraction: FloatSetting | None = None
    max_output_tokens: IntSetting | None = None
    timeout_s: FloatSetting | None = None
    max_cost_usd: FloatSetting | None = None
    script_memory_mb: IntSetting | None = None
    span: Span = Span()


@dataclass(frozen=True, slots=True)
class Input:
    """A named input. `source` is its `from` expression, `task` a nested task whose result it is."""

    name: str
    type: str
    required: bool
    default: Text | None
    source: Expression | None
    task: Node | None
    description: str
    span: Span


@dataclass(frozen=True, slots=True)
class Example:
    """Sample inputs and the output they should give; values are data, never rendered."""

    inputs: Mapping[str, str]
    output: str
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What every operator has. The subclass says which operator it is."""

    name: str | None = None
    subtype: str | None = None
    version: str | None = None
    ref: str | None = None
    description: Text
    instructions: Text | None = None
    system: Text | None = None
    model: Text | None = None
    model_role: str | None = None
    criteria: Text | None = None
    handler: HandlerSpec | None = None
    inputs: tuple[Input, ...] = ()
    tools: tuple[str, ...] = ()
    examples: tuple[Example, ...] = ()
    shots: bool = False
    context: ContextSettings = ContextSettings()
    file_paths: FilePaths | None = None
    output: OutputFormat | None = None
    manual_xml: BoolSetting = False
    disable_reparsing: BoolSetting = False
    span: Span = Span()

    @property
    def type(self) -> TaskType:
        raise TypeError("a Task is always one of the five operators")


@dataclass(frozen=True, slots=True, kw_only=True)
class Atomic(Task):
    @property
    def type(self) -> TaskType:
        return "atomic"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequential(Task):
    steps: tuple[Node, ...]

    @property
    def type(self) -> TaskType:
        return "sequential"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduce(Task):
    """`over` names the inputs that are iterated (all of them when empty); a list value gives one item each."""

    initial_value: Text | None = None
    inner_task: Node
    reduction_task: Node
    concurrency: IntSetting = 1
    over: tuple[str, ...] = ()

    @property
    def type(self) -> TaskType:
        return "reduce"


@dataclass(frozen=True, slots=True, kw_only=True)
class Script(Task):
    """`command` is argv, one Text an argument; with `shell` it is one Text, handed to `/bin/sh -c`."""

    command: tuple[Text, ...]
    shell: bool = False
    timeout_s: FloatSetting | None = None

    @property
    def type(self) -> TaskType:
        return "script"


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectorEvaluatorLoop(Task):
    max_iterations: IntSetting = 5
    director: Node
    evaluator: Node
    script_execution: Script | None = None
    termination_condition: Expression | None = None

    @property
    def type(self) -> TaskType:
        return "director_evaluator_loop"


@dataclass(frozen=True, slots=True)
class Param:
    name: str
    default: str | None = None
    type: str = "any"


@dataclass(frozen=True, slots=True)
class Function:
    """A `<template>`: `body` sees `params` and nothing else. `returns` is an output schema name or None."""

    name: str
    params: tuple[Param, ...]
    returns: str | None
    body: Node
    description: str
    span: Span


@dataclass(frozen=True, slots=True)
class Argument:
    """An `<arg>`: a variable if one has that name, else text. `name` None means by position."""

    name: str | None
    value: Text
    span: Span


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a function or a named task; `name` is the step's name in a sequence."""

    template: str
    args: tuple[Argument, ...]
    name: str | None
    span: Span


@dataclass(frozen=True, slots=True)
class Case:
    test: Expression
    body: Node
    span: Span


@dataclass(frozen=True, slots=True)
class Cond:
    """The first case whose test holds, else `default`, else an empty COMPLETE result."""

    cases: tuple[Case, ...]
    default: Node | None
    name: str | None
    span: Span


Node: TypeAlias = Task | Call | Cond
TopLevel: TypeAlias = Task | Function


def children(node: TopLevel | Node) -> Iterator[Node]:
    """The nodes directly inside `node`, in document order."""
    if isinstance(node, Function):
        yield node.body
        return
    if isinstance(node, Cond):
        for case in node.cases:
            yield case.body
        if node.default is not None:
            yield node.default
        return
    if isinstance(node, Call):
        return
    for declared in node.inputs:
        if declared.task is not None:
            yield declared.task
    if isinstance(node, Sequential):
        yield from node.steps
    elif isinstance(node, Reduce):
        yield node.inner_task
        yield node.reduction_task
    elif isinstance(node, DirectorEvaluatorLoop):
        yield node.director
        if node.script_execution is not None:
            yield node.script_execution
        yield node.evaluator
