"""Places in a template's XML, and what an edit writes there: texts, and steps before or after a
task. Every other character stays.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from evaluator.errors import UsageError
from evaluator.nodes import Atomic, ContextSettings, Sequential, Task, TopLevel
from evaluator.patterns import Pattern
from evaluator.xml.format import end_tag
from evaluator.xml.source import Source
from evaluator.xml.write import to_xml

if TYPE_CHECKING:
    from lxml.etree import _Element as Element


_ILLEGAL = Pattern("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
PLACEHOLDER = re.compile(r"<<\s*([A-Za-z_][\w.]*)\s*>>")
INDENT = "  "


class EditError(UsageError):
    """An edit that cannot be made to this template."""


def children(element: Element, tag: str) -> list[Element]:
    return list(element.iterchildren(tag))


def child(element: Element, tag: str) -> Element | None:
    return next(iter(element.iterchildren(tag)), None)


def extent(source: Source, element: Element) -> tuple[int, int]:
    """Where the element begins and ends in the text."""
    start, end = source.tag_of(element)
    closing = end_tag(source.text, start)
    if closing is not None:
        end = source.text.index(">", closing[1]) + 1
    return start, end


def set_content(source: Source, element: Element, value: str) -> str:
    """The text of the file with `value` as the element's only content, laid out as it was."""
    text = source.text
    start, begin = source.tag_of(element)
    closing = end_tag(text, start)
    if closing is None:
        name = str(element.tag)
        return f"{text[: begin - 2].rstrip()}>{escaped(value)}</{name}>{text[begin:]}"
    close = closing[0] - 2
    if text[begin:close].lstrip().startswith("<![CDATA[") and "]]>" not in value:
        plain = readable(value).strip("\n")
        return f"{text[:begin]}<![CDATA[\n{plain}\n]]>{text[close:]}"
    preserves = element.get("{http://www.w3.org/XML/1998/namespace}space") == "preserve"
    lines = escaped(value).strip("\n").split("\n")
    is_block = text[begin:close].lstrip(" \t").startswith("\n")
    if preserves or (len(lines) == 1 and not is_block):
        return text[:begin] + escaped(value) + text[close:]
    line = text.rfind("\n", 0, start) + 1
    indent = re.match(r"[ \t]*", text[line:])
    outer = "" if indent is None else indent[0]
    shown = [f"{outer}{INDENT}{each}" if each.strip() else "" for each in lines]
    return text[:begin] + "\n" + "\n".join(shown) + "\n" + outer + text[close:]


def element_of(tag: str, value: str, indent: str) -> str:
    """An element with a text, which is in a block if it has several lines. `tag` may have
    attributes.
    """
    name = tag.split()[0]
    lines = escaped(value).strip("\n").split("\n")
    if len(lines) == 1:
        return f"<{tag}>{lines[0]}</{name}>"
    shown = [f"{indent}{INDENT}{line}" if line.strip() else "" for line in lines]
    return "\n".join([f"<{tag}>", *shown, f"{indent}</{name}>"])


def line_indent(text: str, start: int) -> str:
    """The indentation of an element that begins at `start`; empty if other text is before it."""
    before = text[text.rfind("\n", 0, start) + 1 : start]
    return "" if before.strip() else before


def insert(source: Source, task: Element, written: str) -> str:
    """The text with an element after the task's description."""
    text = source.text
    described = child(task, "description")
    if described is None:
        place = source.tag_of(task)[1]
    else:
        place = extent(source, described)[1]
    return f"{text[:place]}\n{indent_in(source, task)}{written}{text[place:]}"


def indent_in(source: Source, element: Element) -> str:
    """The indentation of the children of an element."""
    text = source.text
    children = list(element.iterchildren("*"))
    start = source.tag_of(children[0] if children else element)[0]
    indent = line_indent(text, start)
    return indent if children else indent + INDENT


def joined(name: str, parts: Sequence[str], indent: str) -> str:
    inner = "".join(f"\n{indent}{INDENT}{part}" for part in parts)
    return f"<{name}>{inner}\n{indent}</{name}>"


def readable(value: str) -> str:
    """The value with its variables in braces. Raises: EditError, for what XML cannot hold."""
    if found := _ILLEGAL.search(value):
        raise EditError(f"the character U+{ord(found[0]):04X} is not allowed in XML")
    return PLACEHOLDER.sub(r"{{ \1 }}", value)


def escaped(value: str) -> str:
    return readable(value).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def quoted(value: str) -> str:
    return '"' + escaped(value).replace('"', "&quot;").replace("\n", "&#10;") + '"'


ANSWER = "answer"
"""The step of a sequence that was an atomic template."""
MAX_ADDED = 3
"""Steps that a candidate may have more than its template."""
_NAME = re.compile(r"[a-z][a-z0-9_]{0,40}")
_OUTER = ("description", "inputs")
"""Elements of an atomic template that stay those of the sequence. Criteria are left out: requests
are matched with atomic templates only.
"""


def check_step_name(name: str) -> str:
    if _NAME.fullmatch(name) is None or name == ANSWER:
        raise ValueError(f"is {name!r}, expected small letters, digits and _, and not {ANSWER!r}")
    return name


def with_step(source: Source, task: Element, name: str, text: str, *, is_first: bool) -> str:
    """The text with a step before or after `task`, which is a step of a sequence."""
    steps = task.getparent()
    if steps is None or steps.tag != "steps":
        raise EditError(f"add_step: {task.get('name')!r} is not a step of a sequence")
    indent = indent_in(source, steps)
    is_last = not is_first and task.getnext() is None
    added = _step(source, task, name, text, indent=indent, is_last=is_last)
    start, end = extent(source, task)
    whole = source.text
    if is_first:
        return f"{whole[:start]}{added}\n{indent}{whole[start:]}"
    return f"{whole[:end]}\n{indent}{added}{whole[end:]}"


def wrapped(source: Source, task: Element, name: str, text: str, *, is_first: bool) -> str:
    """The text with an atomic template as a sequence of its own work and a further step."""
    if task.get("type", "atomic") != "atomic" or task.get("ref") is not None:
        raise EditError("add_step: name a step of the sequence with task")
    if (task.getparent() is not None and task.getparent().tag == "template") or not task.get(
        "name"
    ):
        raise EditError("add_step: a function has one task")
    whole = source.text
    start, begin = source.tag_of(task)
    end = extent(source, task)[1]
    indent = indent_in(source, task)
    inner = indent + INDENT * 2
    outer: list[str] = []
    moved: list[str] = []
    at = begin
    for element in task.iterchildren("*"):
        stop = extent(source, element)[1]
        part = whole[at:stop].strip("\n")
        if element.tag in _OUTER:
            outer.append(part)
        elif element.tag != "criteria":
            lines = [f"{INDENT * 2}{line}" if line.strip() else "" for line in part.split("\n")]
            moved.append("\n".join(lines))
        at = stop
    described = child(task, "description")
    if described is None:
        raise EditError("add_step: the template has no description")
    step = [f'<task name="{ANSWER}" type="atomic">']
    step.append(inner + whole[slice(*extent(source, described))])
    step += [f"{inner}{line}" for line in _passed_inputs(source, task, inner)]
    step += [*moved, f"{indent}{INDENT}</task>"]
    added = _step(source, task, name, text, indent=indent + INDENT, is_last=not is_first)
    own = "\n".join(step)
    both = [added, own] if is_first else [own, added]
    tag = re.sub(r"""\stype\s*=\s*("[^"]*"|'[^']*')""", "", whole[start:begin])
    tag = tag.replace("<task", '<task type="sequential"', 1)
    context = (
        f"{indent}<context_management><accumulate_data>false</accumulate_data></context_management>"
    )
    steps = [f"{indent}<steps>", *(f"{indent}{INDENT}{each}" for each in both), f"{indent}</steps>"]
    closing = f"{indent.removesuffix(INDENT)}</task>"
    return whole[:start] + "\n".join([tag, *outer, context, *steps, closing]) + whole[end:]


def _step(
    source: Source, task: Element, name: str, text: str, *, indent: str, is_last: bool
) -> str:
    inner = indent + INDENT
    lines = [
        f'<task name="{name}" type="atomic">',
        f"{inner}<description>{name.replace('_', ' ').capitalize()}</description>",
        inner + element_of("instructions", text, inner),
    ]
    output = child(task, "output_format")
    if is_last and output is not None:
        lines.append(inner + source.text[slice(*extent(source, output))])
    return "\n".join([*lines, f"{indent}</task>"])


def _passed_inputs(source: Source, task: Element, indent: str) -> Iterator[str]:
    """The inputs of a template as those of its step, which takes them from the sequence."""
    inputs = child(task, "inputs")
    if inputs is None:
        return
    yield "<inputs>"
    for one in inputs.iterchildren("input"):
        name = quoted(one.get("name") or "")
        kind = f" type={quoted(one.get('type') or 'any')}"
        tag = f"input name={name}{kind} from={name}"
        yield INDENT + element_of(tag, source.text_of(one).value, indent + INDENT)
    yield "</inputs>"


def added_steps(node: TopLevel, base: TopLevel) -> tuple[TopLevel, list[Task]]:
    """`node` as it would be without the steps that were added to `base`, and these steps."""
    if not isinstance(node, Sequential):
        return node, []
    if isinstance(base, Atomic):
        own = [step for step in node.steps if getattr(step, "name", None) == ANSWER]
        if len(own) != 1 or not isinstance(own[0], Atomic):
            return node, []
        others = [step for step in node.steps if step is not own[0] and isinstance(step, Task)]
        shell = replace(node, steps=(), context=ContextSettings(), criteria=None)
        plain = Sequential(
            name=base.name,
            subtype=base.subtype,
            version=base.version,
            description=node.description,
            inputs=base.inputs,
            steps=(),
        )
        if not _is_equal(shell, plain):
            return node, []
        step = replace(
            own[0],
            name=base.name,
            subtype=base.subtype,
            version=base.version,
            inputs=base.inputs,
        )
        return step, others
    if isinstance(base, Sequential):
        known = {step.name for step in base.steps}
    else:
        known = set()
    added = [step for step in node.steps if isinstance(step, Task) and step.name not in known]
    left = tuple(step for step in node.steps if all(step is not each for each in added))
    return replace(node, steps=left), added


def is_plain(step: Task) -> bool:
    """Whether a step asks a model with a prompt, and has nothing else than an output format."""
    plain = Atomic(name=step.name, description=step.description, instructions=step.instructions)
    return isinstance(step, Atomic) and _is_equal(replace(step, output=None), plain)


def _is_equal(one: TopLevel, other: TopLevel) -> bool:
    return to_xml(one) == to_xml(other)
