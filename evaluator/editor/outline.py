"""The structure of a file: symbols, folding, and code lenses with the bounds of each template."""

from __future__ import annotations

from collections.abc import Iterator

from lsprotocol import types

from evaluator.authoring.portraits import runs_programs
from evaluator.editor.documents import Document
from evaluator.editor.project import Project, View
from evaluator.nodes import Task, TopLevel
from evaluator.xml.tolerant import Element, neutral, tokens

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
