"""What every node has: `Task`, which each operator extends, with its parts; `Call`, `Cond` and
`Function`.

Places in a source, and template texts that know the place of each of their characters.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import field
from operator import attrgetter
from typing import Any, ClassVar, Literal, TypeAlias

from evaluator.lazy_dataclass import frozen
from evaluator.nodes.declare import (
    Known,
    attribute,
    choice,
    declared,
    declared_by_name,
    flag,
    inner,
    literal,
    part,
    setting,
    text,
)
from evaluator.nodes.values import ANY, Shape


@frozen
class Span:
    """A place in a source: file (None for a string), line and column, both counted from 1 in
    characters.
    """

    file: str | None = None
    line: int = 1
    column: int = 1

    @classmethod
    def at(cls, text: str, offset: int, file: str | None) -> Span:
        """The place of the character at `offset` of a file's text."""
        return cls(file, text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset))

    def __str__(self) -> str:
        return f"{self.file or '<string>'}:{self.line}:{self.column}"


@frozen
class Mark:
    """The characters of a `Text` from `offset` on are found at `span` and after it, one to one."""

    offset: int
    span: Span


_OFFSET = attrgetter("offset")


@frozen
class Text:
    """Template text as the author wrote it: XML decoded, dedented, `<<x>>` read as `{{x}}`, not
    rendered.

    `marks` has one entry where the text begins and one after each place where the source and the
    text diverge (line starts after dedenting, entities, CDATA borders), so that `locate` is exact.
    """

    value: str
    span: Span
    marks: tuple[Mark, ...] = ()

    @property
    def source(self) -> Text:
        """The text itself, as an `Expression` has it."""
        return self

    def locate(self, offset: int) -> Span:
        """The place in the author's file of the character at `offset` in `value`."""
        offset = max(0, min(offset, len(self.value)))
        at = bisect_right(self.marks, offset, key=_OFFSET)
        if at:
            best = self.marks[at - 1]
        else:
            best = Mark(0, self.span)
        newlines = self.value.count("\n", best.offset, offset)
        if newlines:
            last = self.value.rfind("\n", best.offset, offset)
            return Span(best.span.file, best.span.line + newlines, column=offset - last)
        return Span(best.span.file, best.span.line, column=best.span.column + offset - best.offset)

    def part(self, start: int, end: int) -> Text:
        """The text from `start` to `end`, whose characters keep their places."""
        if start == 0 and end == len(self.value):
            return self
        span = self.locate(start)
        first, last = (bisect_right(self.marks, offset, key=_OFFSET) for offset in (start, end - 1))
        inner = [Mark(mark.offset - start, mark.span) for mark in self.marks[first:last]]
        return Text(self.value[start:end], span, marks=(Mark(0, span), *inner) if inner else ())


@frozen
class Expression:
    """A sandboxed expression (`test`, `termination_condition`, `from`), as written."""

    source: Text

    @property
    def span(self) -> Span:
        return self.source.span


InheritContext = Literal["full", "subset", "none"]
AccumulationFormat = Literal["notes_only", "full_output"]
FreshContext = Literal["enabled", "disabled"]

IntSetting: TypeAlias = int | Text
FloatSetting: TypeAlias = float | Text
BoolSetting: TypeAlias = bool | Text


@declared
class ContextSettings:
    """The context settings of a template; a setting is None if the template does not have it."""

    inherit_context: InheritContext | None = choice(
        {"full": "full", "subset": "subset", "none": "none"}, default=None
    )
    accumulate_data: bool | None = choice(
        {"true": True, "false": False, "1": True, "0": False}, default=None
    )
    accumulation_format: AccumulationFormat | None = choice(
        {
            "notes_only": "notes_only",
            "full_output": "full_output",
            "minimal": "notes_only",
            "full": "full_output",
        },
        default=None,
    )
    fresh_context: FreshContext | None = choice(
        {"enabled": "enabled", "disabled": "disabled"}, default=None
    )
    span: Span = Span()


@declared
class HandlerSpec:
    """The `<handler>` element: a profile's name and overrides; an absent value is None. For `stop`
    and `extra_body` see `sampling`.
    """

    ref: str | None = attribute(default=None)
    max_turns: IntSetting | None = setting("integer", default=None, attribute="max_turns", least=1)
    max_context_fraction: FloatSetting | None = setting(
        "decimal", default=None, attribute="max_context_fraction", above=0, most=1
    )
    max_output_tokens: IntSetting | None = setting(
        "integer", default=None, attribute="max_output_tokens", least=1
    )
    timeout_s: FloatSetting | None = setting("decimal", default=None, attribute="timeout", above=0)
    max_cost_usd: FloatSetting | None = setting(
        "decimal", default=None, attribute="max_cost", least=0
    )
    script_memory_mb: IntSetting | None = setting(
        "integer", default=None, attribute="script_memory", least=1
    )
    sandbox: str | None = attribute(default=None)
    temperature: FloatSetting | None = setting(
        "decimal", default=None, attribute="temperature", least=0
    )
    top_p: FloatSetting | None = setting(
        "decimal", default=None, attribute="top_p", above=0, most=1
    )
    top_k: IntSetting | None = setting("integer", default=None, attribute="top_k", least=0)
    seed: IntSetting | None = setting("integer", default=None, attribute="seed")
    stop: tuple[str, ...] | None = literal("stop", default=None)
    logprobs: IntSetting | None = setting(
        "integer", default=None, attribute="logprobs", least=0, most=20
    )
    echo: BoolSetting | None = setting("boolean", default=None, attribute="echo")
    extra_body: Mapping[str, Any] | None = literal("extra_body", default=None)
    span: Span = Span()


@declared
class FilePaths:
    """Files that a task always sees. `items` are paths, one glob each, a command's argv, or one
    description.

    With `shell` the command is one text for `/bin/sh -c`.
    """

    source: Literal["literal", "glob", "command", "description"]
    items: tuple[Text, ...] = inner("text", may_call=False)
    span: Span
    shell: bool = False


@frozen
class OutputFormat:
    """`type` and `schema` as declared; `schema` may also be inline JSON Schema text."""

    type: Literal["text", "json", "xml"]
    schema: str | None
    span: Span


@declared
class Input:
    """A named input. `source` is its `from` expression, `task` a nested task whose result it is."""

    name: str
    type: str
    required: bool
    default: Text | None = inner("text")
    source: Expression | None = inner("text")
    task: Node | None = inner("node")
    description: str
    span: Span

    @property
    def is_given(self) -> bool:
        """Whether its value comes from the caller: neither from an expression nor from a nested
        task.
        """
        return self.source is None and self.task is None

    @property
    def must_be_given(self) -> bool:
        """Whether a caller has to give its value."""
        return self.required and self.default is None and self.is_given


@frozen
class Example:
    """Sample inputs and the output they should give; values are data, never rendered.

    `places` are those of the names of the inputs, and that of the output as None.
    """

    inputs: Mapping[str, str]
    output: str
    span: Span
    places: Mapping[str | None, Span] = field(
        default_factory=dict[str | None, Span], repr=False, compare=False
    )


@frozen
class Param:
    """A parameter of a function; its default is text that is read as its type."""

    name: str
    default: str | None = None
    type: str = "any"


@declared
class Argument:
    """An `<arg>`: a variable if one has that name, else text. `name` None means by position."""

    name: str | None
    value: Text = inner("text")
    span: Span


@declared
class Case:
    """A branch of a cond: `body` runs if `test` holds."""

    test: Expression = inner("text")
    body: Node = inner("node", one_of=True, guard="test")
    span: Span


@frozen
class Repeats:
    """The number of times a task runs its child nodes: `least` to `most` (None: unbounded); `why`
    says it in words.
    """

    least: int
    most: int | None
    why: str = ""


@frozen
class Doubt:
    """A finding about one task alone: an error, or a setting that is legal but probably a
    mistake. `span` is the element that it is about, if that is not the task's.
    """

    severity: Literal["error", "warning"]
    code: str
    message: str
    hint: str | None = None
    span: Span | None = None


@declared_by_name
class Task:
    """The fields that every operator has. The subclass determines the operator."""

    type: ClassVar[str]
    default_context: ClassVar[ContextSettings] = ContextSettings(
        "full", False, "notes_only", "disabled"
    )
    """The context settings of a task that states none."""
    asks_model: ClassVar[bool] = False
    """Whether the task itself has a conversation with a model."""
    runs_process: ClassVar[bool] = False
    """Whether the task itself runs a process, which reads its inputs and sees no context."""

    name: str | None = attribute(default=None)
    subtype: str | None = attribute(default=None)
    version: str | None = attribute(default=None)
    ref: str | None = attribute(default=None)
    description: Text = text()
    instructions: Text | None = text(default=None)
    system: Text | None = text(default=None)
    model: Text | None = text(default=None, form="model", may_call=False)
    model_role: str | None = attribute(default=None, of="model", name="role")
    criteria: Text | None = text(default=None, resolved=False)
    handler: HandlerSpec | None = part(HandlerSpec, "fields", default=None)
    inputs: tuple[Input, ...] = part(Input, "inputs", default=())
    tools: tuple[str, ...] = part(None, "tools", default=())
    examples: tuple[Example, ...] = part(None, "examples", default=())
    shots: bool = flag(default=False, of="examples")
    context: ContextSettings = part(
        ContextSettings, "fields", default=ContextSettings(), element="context_management"
    )
    file_paths: FilePaths | None = part(FilePaths, "file_paths", default=None)
    output: OutputFormat | None = part(None, "output_format", default=None, element="output_format")
    manual_xml: BoolSetting = setting("boolean", default=False, element="manual_xml")
    disable_reparsing: BoolSetting = setting("boolean", default=False, element="disable_reparsing")
    span: Span = Span()
    tool_spans: tuple[Span, ...] = ()
    """The places of the names in `tools`; empty where they are not known."""

    @property
    def profile(self) -> str | None:
        """The name of the profile that the task asks for."""
        if self.handler is None:
            return None
        return self.handler.ref

    def queries(self) -> Repeats:
        """The number of messages that the task sends to its model one after another, each for an
        answer.
        """
        return Repeats(1, 1)

    def repeats(self, given: Mapping[str, Any]) -> Repeats:
        """The number of times a run with the inputs `given` runs each child node that is not nested
        in an input.
        """
        return Repeats(1, 1)

    def repeats_of(self, child: str, given: Mapping[str, Any]) -> Repeats:
        """The number of times a run with the inputs `given` runs a child node in the field
        `child`.
        """
        return self.repeats(given)

    def result(self, known: Known) -> Shape:
        """The shape of the parsed result of a task that declares no output format; NULL where it is
        text only.
        """
        return ANY

    def doubts(self) -> Iterator[Doubt]:
        """Findings about this task alone that its XML form does not exclude."""
        return iter(())


@declared
class Call:
    """A call of a function or a named task; `name` is the step's name in a sequence."""

    template: str
    args: tuple[Argument, ...] = inner("part", of=Argument)
    name: str | None
    span: Span


@declared
class Cond:
    """The first case whose test holds, else `default`, else an empty COMPLETE result."""

    cases: tuple[Case, ...] = inner("part", of=Case)
    default: Node | None = inner("node", one_of=True)
    name: str | None
    span: Span


@declared
class Function:
    """A `<template>`: `body` sees `params` and nothing else. `returns` is an output schema name or
    None.
    """

    name: str
    params: tuple[Param, ...]
    returns: str | None
    body: Node = inner("node")
    description: str
    span: Span


Node: TypeAlias = Task | Call | Cond
TopLevel: TypeAlias = Task | Function
