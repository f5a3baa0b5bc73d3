"""What an editor shows of a text: hovers, symbols, folding, and code lenses.

What an editor shows beside a place: what a name is, what a template takes, what an element or
an operator does, and the most calls and the highest price of the task there.

The structure of a file: symbols, folding, and code lenses with the bounds of each template.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from lsprotocol import types

from evaluator.authoring.portraits import description_of, runs_programs, signature
from evaluator.editor.completion import binding_text, kinds_at
from evaluator.editor.names import Names
from evaluator.editor.project import Document, Project, View
from evaluator.errors.messages import amount
from evaluator.language.filters import FILTER_NAMES, describe_filter
from evaluator.library.scoping import Binding
from evaluator.library.shapes import follow
from evaluator.nodes import Function, Input, Task, TopLevel
from evaluator.nodes.declare import OPERATORS
from evaluator.nodes.values import Shape, type_text
from evaluator.tools import builtin_tools
from evaluator.xml.tolerant import Element, neutral, tokens
from evaluator.xml.vocabulary import ROOTS

_FILTER = re.compile(r"\|\s*([^\W\d]\w*)")


def hover(project: Project, document: Document, position: types.Position) -> types.Hover | None:
    """What is known about the word at a place; None where there is nothing to say."""
    view = project.view(document.path)
    if view is None:
        return None
    offset = document.offset(position)
    shown = (
        _of_reference(project, view, offset)
        or _of_name(project, view, offset)
        or _of_filter(document, offset)
        or _of_markup(project, view, offset)
    )
    if shown is None:
        return None
    text, start, end = shown
    content = types.MarkupContent(types.MarkupKind.Markdown, text)
    return types.Hover(content, document.range(start, end))


_Shown = tuple[str, int, int]


def _of_reference(project: Project, view: View, offset: int) -> _Shown | None:
    """A variable that an expression reads, or a field of one."""
    path = view.document.path
    text = view.document.text
    for site, reference, binding in Names(project, [path]).references:
        if site.path != path or offset < site.start:
            continue
        end = site.end
        shape = binding.shape
        written = reference.name
        parts = 0
        while offset > end and parts < len(reference.path):
            part = re.compile(r"\s*(?:\.\s*\w+|\[[^\]]*\])").match(text, end)
            if part is None:
                break
            end = part.end()
            parts += 1
            followed = follow(binding.shape, reference.path[:parts], name=reference.name)
            if isinstance(followed, Shape):
                shape = followed
            else:
                shape = Shape()
            written = " ".join(text[site.start : end].split())
        if offset > end:
            continue
        if parts:
            if shape.what:
                what = f": {shape.what}"
            else:
                what = ""
            return f"`{written}`: {type_text(shape)}{what}", site.start, end
        return _binding_shown(reference.name, binding), site.start, end
    return None


def _binding_shown(name: str, binding: Binding) -> str:
    lines = [f"`{name}`: {binding_text(binding)}"]
    if isinstance(binding.origin, Input):
        lines.append(input_shown(binding.origin))
    elif isinstance(binding.origin, Function):
        lines.append(f"of `{signature(binding.origin.name, binding.origin)}`")
    elif isinstance(binding.origin, Task):
        lines.append(f"bound by the {binding.origin.type} task around this one")
    if binding.shape.fields is not None:
        fields = [str(each) for each in binding.shape.fields if isinstance(each, str)]
        if fields:
            lines.append(f"fields: {', '.join(f'`{each}`' for each in fields[:20])}")
    return "\n\n".join(line for line in lines if line)


def input_shown(declared: Input) -> str:
    """An input's description, and where its value comes from."""
    if declared.source is not None:
        origin = f"from `{declared.source.source.value}`"
    elif declared.task is not None:
        origin = "the result of a nested task"
    elif declared.default is not None:
        origin = f"default `{declared.default.value}`"
    elif declared.required:
        origin = "required"
    else:
        origin = "optional"
    return "\n\n".join(part for part in (declared.description, origin) if part)


def _of_name(project: Project, view: View, offset: int) -> _Shown | None:
    """A template, an input, a profile or a tool that an attribute or a call names."""
    path = view.document.path
    found = Names(project, [path]).at(path, offset)
    if found is None:
        return _of_tool(view.document, offset)
    site, key = found
    place = (site.start, site.end)
    if key[0] == "template" and not site.is_declaration:
        node = view.library.nodes.get(key[1])
        if node is None:
            return None
        return template_shown(project, view, key[1], node), *place
    if key[0] == "parameter":
        node = view.library.nodes.get(key[1])
        declared = next((i for i in getattr(node, "inputs", ()) if i.name == key[2]), None)
        if declared is not None:
            return f"`{key[2]}`: {declared.type}\n\n{input_shown(declared)}", *place
        return (f"of `{signature(key[1], node)}`", *place) if node is not None else None
    if key[0] == "profile" and key[1] in project.profiles:
        profile = project.profiles[key[1]]
        detail = (
            f"{profile.backend}, {profile.model or 'no model'}, {amount(profile.max_turns, 'turn')}"
        )
        return f"profile `{key[1]}`: {detail}\n\n{profile.description}", *place
    return None


def _of_tool(document: Document, offset: int) -> _Shown | None:
    element = document.tree.at(offset)
    start, end = element.attributes.get("name", (0, 0))
    if element.name != "tool" or not start <= offset <= end:
        return None
    tool = builtin_tools().get(document.text[start:end])
    if tool is None:
        return None
    return f"tool `{tool.name}`\n\n{tool.spec.description}", start, end


def template_shown(project: Project, view: View, name: str, node: TopLevel) -> str:
    """A template with its inputs and the bound of its runs."""
    lines = [f"```\n{signature(name, node)}\n```", description_of(node)]
    if isinstance(node, Task):
        inputs = [
            f"- `{declared.name}`: {declared.type}"
            f"{'' if declared.must_be_given else ', optional'}"
            f"{f'. {declared.description}' if declared.description else ''}"
            for declared in node.inputs
            if declared.is_given
        ]
        if inputs:
            lines.append("\n".join(inputs))
    lines.append(project.cost(view.library, node))
    return "\n\n".join(line for line in lines if line)


def _of_filter(document: Document, offset: int) -> _Shown | None:
    line_start = document.text.rfind("\n", 0, offset) + 1
    line_end = document.text.find("\n", offset)
    if line_end < 0:
        line_end = len(document.text)
    for match in _FILTER.finditer(document.text, line_start, line_end):
        if match.start(1) <= offset <= match.end(1) and match[1] in FILTER_NAMES:
            arguments, sentence = describe_filter(match[1])
            return f"filter `{match[1]}{arguments}`\n\n{sentence}", match.start(1), match.end(1)
    return None


def _of_markup(project: Project, view: View, offset: int) -> _Shown | None:
    """An element or an attribute, with the bound of the task around it."""
    document = view.document
    element = document.tree.at(offset)
    if not element.name:
        return None
    lines: list[str] = []
    start = element.start
    end = element.inside
    in_tag = offset <= element.inside
    if in_tag:
        found = _attribute_at(document, element, offset)
        if found is not None:
            name, start, end = found
            value_start, value_end = element.attributes[name]
            value = document.text[value_start:value_end]
            notes = [kind.notes.get(f"@{name}", "") for kind in kinds_at(element)]
            lines += [f"`{name}`", *notes[:1]]
            if name == "type" and value in OPERATORS:
                lines.append(f"**{value}**: {' '.join((OPERATORS[value].__doc__ or '').split())}")
        else:
            lines += [f"`<{element.name}>`", _note_on(element)]
    elif element.close < offset:
        start = element.close
        end = element.end
        lines += [f"`<{element.name}>`", _note_on(element)]
    else:
        start = end = offset
    nodes = map(view.node_of, element.around())
    node = next((node for node in nodes if node is not None), None)
    if node is not None:
        name = getattr(node, "name", None) or getattr(node, "type", "cond")
        lines.append(f"`{name}`: {project.cost(view.library, node)}")
    text = "\n\n".join(line for line in lines if line)
    return (text, start, end) if text else None


def _attribute_at(document: Document, element: Element, offset: int) -> tuple[str, int, int] | None:
    for name, (start, end) in element.attributes.items():
        begin = document.text.rfind(name, element.start, start)
        if begin <= offset <= end + 1:
            return name, begin, end + 1
    return None


def _note_on(element: Element) -> str:
    parent = element.parent
    if parent is None or not parent.name:
        return _ROOT_NOTES.get(element.name, "") if element.name in ROOTS else ""
    notes = [kind.notes.get(element.name, "") for kind in kinds_at(parent)]
    return next((note for note in notes if note), "")


_ROOT_NOTES = {
    "task": "A template: a task that requests are matched to, or that is called by its name.",
    "template": "A function that texts and `<call>` call. It sees its parameters and nothing else.",
    "library": "Several templates in one file.",
    "partial": "Parts that other files include.",
}


RENDER = "evaluator.render"
SIMULATE = "evaluator.simulate"
MAX_LENSES = 50

_SYMBOLS = {
    "task": types.SymbolKind.Class,
    "template": types.SymbolKind.Function,
    "library": types.SymbolKind.Package,
    "partial": types.SymbolKind.Package,
    "inputs": types.SymbolKind.Namespace,
    "input": types.SymbolKind.Variable,
    "steps": types.SymbolKind.Namespace,
    "call": types.SymbolKind.Method,
    "cond": types.SymbolKind.Operator,
    "case": types.SymbolKind.EnumMember,
    "default": types.SymbolKind.EnumMember,
    "inner_task": types.SymbolKind.Class,
    "reduction_task": types.SymbolKind.Class,
    "director": types.SymbolKind.Class,
    "evaluator": types.SymbolKind.Class,
    "script_execution": types.SymbolKind.Class,
    "examples": types.SymbolKind.Namespace,
    "turns": types.SymbolKind.Namespace,
}


def symbols(document: Document) -> list[types.DocumentSymbol]:
    """The parts of a file that have a name or hold others, by nesting."""
    return [*_symbols_in(document, document.tree)]


def _symbols_in(document: Document, element: Element) -> Iterator[types.DocumentSymbol]:
    for child in element.children:
        kind = _SYMBOLS.get(child.name)
        if kind is None:
            yield from _symbols_in(document, child)
            continue
        name_place = next(
            (
                child.attributes[key]
                for key in ("name", "template", "test")
                if key in child.attributes
            ),
            (child.start + 1, child.start + 1 + len(child.name)),
        )
        name = document.text[slice(*name_place)].strip() or child.name
        yield types.DocumentSymbol(
            name=name,
            detail=child.name,
            kind=kind,
            range=document.range(child.start, child.end),
            selection_range=document.range(*name_place),
            children=[*_symbols_in(document, child)],
        )


def folding(document: Document) -> list[types.FoldingRange]:
    """Elements and comments of more than one line."""
    found: list[types.FoldingRange] = []
    for element in document.tree.walk():
        if element.name:
            _fold(found, document, element.start, element.close)
    for token in tokens(neutral(document.text)):
        if token.kind == "skipped":
            _fold(found, document, token.start, token.end, types.FoldingRangeKind.Comment)
    return found


def _fold(
    found: list[types.FoldingRange],
    document: Document,
    start: int,
    end: int,
    kind: types.FoldingRangeKind | None = None,
) -> None:
    first = document.position(start).line
    last = document.position(end).line
    if kind is None:
        last -= 1  # the line of the end tag stays
    if last > first:
        found.append(types.FoldingRange(first, last, kind=kind))


def top_level(view: View) -> Iterator[tuple[Element, TopLevel]]:
    """The templates of a file with their elements."""
    for element in view.document.tree.children:
        for each in element.children if element.name == "library" else [element]:
            node = view.node_of(each)
            if node is not None and node in view.nodes:
                yield each, node  # pyright: ignore[reportReturnType]


def lenses(project: Project, view: View) -> list[types.CodeLens]:
    """The bound of each template, and the commands that show its prompts and run it simulated."""
    found: list[types.CodeLens] = []
    for element, node in [*top_level(view)][:MAX_LENSES]:
        place = view.document.range(element.start, element.start + 1 + len(element.name))
        name = node.name
        found.append(
            types.CodeLens(place, command=types.Command(project.cost(view.library, node), ""))
        )
        if not isinstance(node, Task) or name is None or name not in view.library.templates:
            continue
        arguments = [view.document.path, name]
        found.append(
            types.CodeLens(place, command=types.Command("render", RENDER, arguments=arguments))
        )
        if not runs_programs(view.library, node):
            command = types.Command("run with the simulated model", SIMULATE, arguments=arguments)
            found.append(types.CodeLens(place, command=command))
    return found
