"""Edits of a template's XML: typed operations that change texts, examples and the descriptions of
the output, and leave every other character of the file as it is.

An edit is written as a table, `{"op": "set", "element": "instructions", "text": "…"}`. Texts in it
are data: they are escaped, and their variables are checked, see `checks`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, cast

from evaluator.errors import TemplateError
from evaluator.fields import After, Checked, Count, Doc, Name, to_dict
from evaluator.improve.steps import (
    INDENT,
    PLACEHOLDER,
    EditError,
    check_step_name,
    child,
    children,
    element_of,
    extent,
    indent_in,
    insert,
    joined,
    line_indent,
    quoted,
    set_content,
    with_step,
    wrapped,
)
from evaluator.lazy_dataclass import frozen
from evaluator.xml.source import Source, read_source

if TYPE_CHECKING:
    from lxml.etree import _Element as Element

TextElement = Literal["description", "instructions", "system", "criteria"]
_VERSION = re.compile(r"(.*?)(\d+)(\D*)", re.DOTALL)


@frozen(kw_only=True)
class _Edit(Checked, error=EditError):
    """An edit of the template, or of the task inside it that has the name `task`."""

    task: Annotated[Name | None, Doc("The name of a step; without it, the template itself.")] = None


@frozen(kw_only=True)
class SetText(_Edit, error=EditError):
    """Replaces the whole text of an element, which is added if it is missing."""

    element: Annotated[TextElement, Doc("The element.")]
    text: Annotated[str, Doc("Its new text.")]

    def apply(self, source: Source, task: Element) -> str:
        found = child(task, self.element)
        if found is None:
            written = element_of(self.element, self.text, indent_in(source, task))
            return insert(source, task, written)
        return set_content(source, found, self.text)


@frozen(kw_only=True)
class ReplacePhrase(_Edit, error=EditError):
    """Replaces a phrase that occurs exactly once in an element."""

    element: Annotated[TextElement, Doc("The element.")]
    find: Annotated[Name, Doc("The phrase, as it is written.")]
    text: Annotated[str, Doc("What replaces it.")]

    def apply(self, source: Source, task: Element) -> str:
        found = child(task, self.element)
        if found is None:
            raise EditError(f"replace: the template has no <{self.element}>")
        before = source.text_of(found).value
        phrase = PLACEHOLDER.sub(r"{{\1}}", self.find)
        for wanted in (self.find, phrase):
            if before.count(wanted) == 1:
                return set_content(source, found, before.replace(wanted, self.text))
        raise EditError(
            f"replace: {self.find[:60]!r} occurs {before.count(self.find)} times in "
            f"<{self.element}>, expected once"
        )


@frozen(kw_only=True)
class AddExample(_Edit, error=EditError):
    """Adds a train row as the last few-shot example. `inputs` and `output` are taken from the row
    and are never a model's.
    """

    row: Annotated[Name, Doc("The id of a row that was shown.")]
    inputs: Mapping[str, str] | None = None
    output: str | None = None

    def apply(self, source: Source, task: Element) -> str:
        examples = child(task, "examples")
        text = source.text
        if examples is None:
            indent = indent_in(source, task)
            inner = f"\n{indent}{INDENT}{self._example(indent + INDENT)}\n{indent}"
            return insert(source, task, f'<examples shots="true">{inner}</examples>')
        indent = indent_in(source, examples)
        example = self._example(indent)
        start, end = source.tag_of(examples)
        last = children(examples, "example")
        if last:
            place = extent(source, last[-1])[1]
        else:
            place = end
        text = f"{text[:place]}\n{indent}{example}{text[place:]}"
        if examples.get("shots") in ("true", "1"):
            return text
        tag = re.sub(r"\sshots\s*=\s*(\"[^\"]*\"|'[^']*')", "", text[start:end])
        name_end = start + len("<examples")
        return f'{text[:name_end]} shots="true"{tag[len("<examples") :]}{text[end:]}'

    def _example(self, indent: str) -> str:
        inner = indent + INDENT
        parts = [
            element_of(f"input name={quoted(name)}", value, inner)
            for name, value in (self.inputs or {}).items()
        ]
        return joined("example", [*parts, element_of("output", self.output or "", inner)], indent)


def _examples(task: Element) -> list[Element]:
    examples = child(task, "examples")
    return [] if examples is None else children(examples, "example")


@frozen(kw_only=True)
class OrderExamples(_Edit, error=EditError):
    """Puts the examples into another order; those that are not named are removed."""

    order: Annotated[tuple[Count, ...], Doc("Numbers of examples, counted from 1.")]

    def apply(self, source: Source, task: Element) -> str:
        parts = _examples(task)
        if len(set(self.order)) < len(self.order) or any(n > len(parts) for n in self.order):
            raise EditError(
                f"order_examples: {list(self.order)} are not different numbers from 1 to "
                f"{len(parts)}"
            )
        if not self.order:
            raise EditError("order_examples: at least one example has to stay")
        text = source.text
        extents = [extent(source, part) for part in parts]
        wanted = [text[slice(*extents[number - 1])] for number in self.order]
        for number in range(len(parts), 0, -1):
            start, end = extents[number - 1]
            if number <= len(wanted):
                text = text[:start] + wanted[number - 1] + text[end:]
            else:
                text = text[:start].rstrip() + text[end:]
        return text


@frozen(kw_only=True)
class RewordExample(_Edit, error=EditError):
    """Replaces the text of an example's output, or of one of its inputs."""

    index: Annotated[Count, Doc("The number of the example, counted from 1.")]
    text: Annotated[str, Doc("The new text.")]
    input: Annotated[Name | None, Doc("The input; without it, the output is replaced.")] = None

    def apply(self, source: Source, task: Element) -> str:
        parts = _examples(task)
        if self.index > len(parts):
            raise EditError(f"reword_example: there are {len(parts)} examples, not {self.index}")
        example = parts[self.index - 1]
        if self.input is None:
            found = child(example, "output")
        else:
            inputs = children(example, "input")
            found = next((each for each in inputs if each.get("name") == self.input), None)
        if found is None:
            raise EditError(f"reword_example: example {self.index} has no {self.input or 'output'}")
        return set_content(source, found, self.text)


@frozen(kw_only=True)
class DescribeOutput(_Edit, error=EditError):
    """Sets the description of a member in the inline JSON Schema of the output."""

    path: Annotated[Name, Doc("The member, such as answer or items.name.")]
    text: Annotated[str, Doc("Its description.")]

    def apply(self, source: Source, task: Element) -> str:
        output = child(task, "output_format")
        schema: Any = None
        if output is not None:
            with suppress(ValueError):
                schema = json.loads(source.text_of(output).value)
        if output is None or not isinstance(schema, dict):
            raise EditError("describe_output: the template has no inline JSON Schema")
        member: Any = schema
        for step in self.path.split("."):
            member = member.get("items", member)
            if isinstance(member, dict):
                member = cast("dict[str, Any]", member).get("properties", {}).get(step)
            if not isinstance(member, dict):
                raise EditError(f"describe_output: the schema has no member {self.path!r}")
        cast("dict[str, Any]", member)["description"] = self.text
        return set_content(source, output, json.dumps(schema, ensure_ascii=False, indent=2))


@frozen(kw_only=True)
class AddStep(_Edit, error=EditError):
    """Adds a step before or after the task. An atomic template becomes a sequence, in which the
    template's own work is the step `answer`.

    A step that is added at the end gives the result, in the output format of the step before it.
    """

    place: Annotated[Literal["before", "after"], Doc("Where it is added.")]
    name: Annotated[Name, After(check_step_name), Doc("Its name.")]
    text: Annotated[str, Doc("Its instructions.")]

    def apply(self, source: Source, task: Element) -> str:
        is_whole = task.getparent() is None or task.getparent().tag in ("library", "template")
        add = wrapped if is_whole else with_step
        return add(source, task, self.name, self.text, is_first=self.place == "before")


Edit: TypeAlias = (
    SetText | ReplacePhrase | AddExample | OrderExamples | RewordExample | DescribeOutput | AddStep
)
EDITS: Mapping[str, type[Edit]] = {
    "set": SetText,
    "replace": ReplacePhrase,
    "add_example": AddExample,
    "order_examples": OrderExamples,
    "reword_example": RewordExample,
    "describe_output": DescribeOutput,
    "add_step": AddStep,
}
_NAMES = {cls: name for name, cls in EDITS.items()}
_OF_ROWS = frozenset({"inputs", "output"})
"""Fields of `AddExample` that only a row gives."""


def read_edit(table: Any, *, is_proposed: bool = True) -> Edit:
    """The edit in a table. `is_proposed`: a model or a person wrote it, who names rows and does not
    write their content.

    Raises: EditError.
    """
    if not isinstance(table, dict):
        raise EditError("an edit is a JSON object with the member op")
    entries = cast("dict[str, Any]", table).items()
    values = {name: value for name, value in entries if value != "" or name == "text"}
    op = values.pop("op", None)
    cls = EDITS.get(op) if isinstance(op, str) else None
    if cls is None:
        raise EditError(f"op is {op!r:.60}, expected one of {', '.join(EDITS)}")
    if is_proposed and cls is AddExample and _OF_ROWS & values.keys():
        raise EditError("add_example: name the row; its inputs and output are taken from the data")
    try:
        return cls.from_table(values)
    except EditError as error:
        raise EditError(f"{op}: {error}") from None


def edit_to_dict(edit: Edit) -> dict[str, Any]:
    """The table that `read_edit` reads."""
    return {"op": _NAMES[type(edit)], **to_dict(edit, only_changed=True)}


def apply_edits(text: str, name: str, edits: Sequence[Edit]) -> str:
    """The text of a file of templates with the edits made to the template `name`.

    Raises: EditError, for an edit that does not fit.
    """
    for edit in edits:
        source = read_source(text)
        try:
            text = edit.apply(source, _task_in(_template(source, name), edit.task))
        except TemplateError as error:  # pragma: no cover (texts are escaped)
            raise EditError(f"{_NAMES[type(edit)]}: {error}") from error
    return text


def with_certificate(text: str, name: str, comment: str) -> str:
    """The text with the template's version raised, and a comment before the template."""
    source = read_source(text)
    template = _template(source, name)
    start, end = source.tag_of(template)
    tag = text[start:end]
    version = template.get("version")
    if version is None:
        head = re.match(r"<[\w:.-]+", tag)
        assert head is not None
        tag = f'{head[0]} version="2"{tag[head.end() :]}'
    else:
        parts = _VERSION.fullmatch(version)
        if parts is None:
            number = "2"
        else:
            number = f"{parts[1]}{int(parts[2]) + 1}{parts[3]}"
        old = re.search(r"\sversion\s*=\s*(\"[^\"]*\"|'[^']*')", tag)
        assert old is not None
        tag = f"{tag[: old.start()]} version={quoted(number)}{tag[old.end() :]}"
    remark = comment.replace("--", "- -")
    return f"{text[:start]}<!-- {remark} -->\n{line_indent(text, start)}{tag}{text[end:]}"


def _template(source: Source, name: str) -> Element:
    candidates = [source.root, *source.root.iterchildren("task", "template")]
    kinds = ("task", "template")
    found = [each for each in candidates if each.tag in kinds and each.get("name") == name]
    if len(found) != 1:
        raise EditError(f"{source.file or 'the file'} has no template {name!r} at its top level")
    return found[0]


def _task_in(template: Element, name: str | None) -> Element:
    """The task with this name inside a template. Without a name: the template itself, or the only
    task of a function.
    """
    if name is None and template.tag == "task":
        return template
    inner = list(template.iterdescendants("task"))
    found = [each for each in inner if name in (None, each.get("name"))]
    if len(found) == 1:
        return found[0]
    known = ", ".join(str(each.get("name")) for each in inner if each.get("name"))
    raise EditError(f"task is {name!r}, expected the name of one task in it: {known or 'none'}")
