"""Code actions: the fixes of `lint --fix`, "declare this input", "extract these steps as a
template".
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape

from lsprotocol import types

from evaluator.editor.names import Names
from evaluator.editor.project import Document, Project, View
from evaluator.errors import Diagnostic
from evaluator.interpreter.linting import fixed
from evaluator.lazy_dataclass import frozen
from evaluator.nodes import Function, Input, Span
from evaluator.xml.format import format_source
from evaluator.xml.source import read_source
from evaluator.xml.tolerant import Element

_UNDEFINED = re.compile(r"`([^\W\d]\w*)` is not defined")


@frozen
class Change:
    """New texts of files, by path; those of `created` do not exist yet."""

    texts: dict[str, str]
    created: frozenset[str] = frozenset()


@frozen
class Action:
    """What a user may choose: its title, its kind, the finding that it ends, and what changes."""

    title: str
    kind: types.CodeActionKind
    change: Change
    diagnostic: Diagnostic | None = None


def actions(
    project: Project,
    document: Document,
    start: int,
    end: int,
    findings: Sequence[Diagnostic],
    can_create: bool,
) -> Iterator[Action]:
    """The actions for a part of a text. `can_create`: the editor can create files."""
    here: list[Diagnostic] = []
    for diagnostic in findings:
        at = document.offset_of(diagnostic.span)
        if start <= document.word_end(at) and at <= max(end, start):
            here.append(diagnostic)
    for diagnostic in here:
        if diagnostic.fix is not None:
            text, done = fixed(document.text, [diagnostic])
            if done:
                title = f"Change to {diagnostic.fix[1].lstrip('<')}"
                change = Change({document.path: text})
                yield Action(title, types.CodeActionKind.QuickFix, change, diagnostic)
        undefined = _UNDEFINED.match(diagnostic.message)
        if diagnostic.code == "undefined-variable" and undefined is not None:
            text = _with_input(document, undefined[1], document.offset_of(diagnostic.span))
            if text is not None:
                title = f"Declare the input {undefined[1]}"
                change = Change({document.path: text})
                yield Action(title, types.CodeActionKind.QuickFix, change, diagnostic)
    text, done = fixed(document.text, findings)
    if done:
        title = f"Fix everything that is safe ({len(done)})"
        yield Action(title, types.CodeActionKind.SourceFixAll, Change({document.path: text}))
    view = project.view(document.path)
    if view is not None and view.is_sound and end > start:
        change = _extraction(project, view, start, end, can_create)
        if change is not None:
            title = "Extract these steps as a template"
            yield Action(title, types.CodeActionKind.RefactorExtract, change)


# Declare an input


def _with_input(document: Document, name: str, offset: int) -> str | None:
    """The text with an input declared in the outermost task around `offset`."""
    text = document.text
    around = [each for each in document.tree.at(offset).around() if each.name][::-1]
    owners = [each for each in around if each.name in ("task", "template")]
    if not owners:
        return None
    owner = owners[0]
    if owner.name == "template" and "params" in owner.attributes:
        start, end = owner.attributes["params"]
        comma = ", " if text[start:end].strip() else ""
        return f"{text[:end]}{comma}{name}{text[end:]}"
    if owner.name == "template":
        at = owner.start + 1 + len(owner.name)
        return f'{text[:at]} params="{name}"{text[at:]}'
    indent = _indent(text, owner.start) + "  "
    inputs = owner.child("inputs")
    written = f'<input name="{name}"/>'
    if inputs is not None and inputs.children:
        last = inputs.children[-1]
        return f"{text[: last.end]}\n{_indent(text, last.start)}{written}{text[last.end :]}"
    block = f"<inputs>\n{indent}  {written}\n{indent}</inputs>"
    if inputs is not None:
        return f"{text[: inputs.start]}{block}{text[inputs.end :]}"
    previous = owner.child("criteria") or owner.child("description")
    if previous is None:
        at = owner.inside
    else:
        at = previous.end
    return f"{text[:at]}\n{indent}{block}{text[at:]}"


def _indent(text: str, offset: int) -> str:
    line = text[text.rfind("\n", 0, offset) + 1 : offset]
    return line if line.isspace() else line[: len(line) - len(line.lstrip())]


# Extract steps


def _extraction(
    project: Project, view: View, start: int, end: int, can_create: bool
) -> Change | None:
    """The files with the selected steps as a template of their own; None where the selection is not
    made of whole steps, or the rest depends on what is in them.
    """
    document = view.document
    text = document.text
    steps = _selected_steps(document, start, end)
    if not steps:
        return None
    first = steps[0]
    last = steps[-1]
    own = {_name(document, step) for step in steps} - {""}
    last_name = _name(document, last)
    inputs = _inputs_of_steps(project, document, steps, inner=own - {last_name})
    if inputs is None:
        return None
    owner = next((e for e in first.around() if e.name == "task" and e is not first), None)
    base = (_name(document, owner) if owner is not None else "") or "task"
    library = view.library
    new = next(
        name
        for name in (f"{base}_part{n or ''}" for n in range(1000))
        if name not in library.nodes and name not in library.broken
    )
    arguments = "".join(f'<arg name="{name}">{name}</arg>' for name in inputs)
    if last_name:
        step_name = f' name="{last_name}"'
    else:
        step_name = ""
    call = f'<call template="{new}"{step_name}>{arguments}</call>'
    declared = "".join(
        f'<input name="{name}" type="{type_name}"/>' for name, type_name in inputs.items()
    )
    described = escape(", ".join(sorted(own)) or base)
    body = text[first.start : last.end]
    template = (
        f'<task name="{new}" type="sequential">\n<description>Steps of {base}: {described}'
        f"</description>\n{f'<inputs>{declared}</inputs>' if declared else ''}\n"
        f"<steps>\n{body}\n</steps>\n</task>"
    )
    rest = f"{text[: first.start]}{call}{text[last.end :]}"
    root = document.tree.children[0]
    if root.name == "library":
        close = rest.rindex("</library")
        created = format_source(read_source(template))
        return Change({document.path: f"{rest[:close].rstrip()}\n\n{created}{rest[close:]}"})
    if not can_create:
        return None
    path = os.path.join(os.path.dirname(document.path), f"{new}.xml")
    if os.path.exists(path):
        return None
    created = format_source(read_source(template))
    return Change({document.path: rest, path: created}, frozenset({path}))


def _inputs_of_steps(
    project: Project, document: Document, steps: Sequence[Element], inner: set[str]
) -> dict[str, str] | None:
    """The types of the inputs that the steps need as a template of their own; None where the rest
    depends on what is in them. `inner`: the names of the steps that the rest cannot see then.
    """
    first = steps[0]
    last = steps[-1]
    own = {_name(document, step) for step in steps} - {""}
    inputs: dict[str, str] = {}
    sequence = next(each for each in first.around() if each.name == "steps").parent
    for site, reference, binding in Names(project, [document.path]).references:
        if site.path != document.path:
            continue
        is_within = first.start <= site.start < last.end
        origin = binding.origin
        if origin is None:
            at = -1
        else:
            at = _offset_of(document, origin.span)
        if reference.path:
            step = reference.path[0]
        else:
            step = None
        is_of_sequence = sequence is not None and at == sequence.start
        if first.start <= at < last.end:
            continue
        if is_within and reference.name == "steps" and is_of_sequence:
            if step not in own:
                return None
        elif is_within and reference.name == "previous" and is_of_sequence:
            if site.start < first.end:
                return None
        elif is_within and isinstance(origin, Function):
            inputs[reference.name] = "any"
        elif is_within and isinstance(origin, Input):
            inputs[reference.name] = origin.type
        elif is_within or (
            reference.name == "steps"
            and is_of_sequence
            and (not isinstance(step, str) or step in inner)
        ):
            return None
    return inputs


def _selected_steps(document: Document, start: int, end: int) -> list[Element]:
    """The steps of one sequence that a selection covers whole; none if it cuts through one."""
    text = document.text
    while start < end and text[start].isspace():
        start += 1
    while end > start and text[end - 1].isspace():
        end -= 1
    for element in document.tree.walk():
        if element.name == "steps" and element.inside <= start and end <= element.close:
            chosen = [e for e in element.children if e.start < end and e.end > start]
            is_whole = chosen and chosen[0].start >= start and chosen[-1].end <= end
            if is_whole and all(e.name in ("task", "call", "cond") for e in chosen):
                return chosen
    return []


def _name(document: Document, element: Element | None) -> str:
    if element is None or "name" not in element.attributes:
        return ""
    start, end = element.attributes["name"]
    return document.text[start:end]


def _offset_of(document: Document, span: Span) -> int:
    """The offset of a place in this document; -1 for one in another file."""
    if os.path.realpath(span.file or "") != document.path:
        return -1
    return document.offset_of(span)
