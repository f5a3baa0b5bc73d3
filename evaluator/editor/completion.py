"""Completion: elements, attributes and their values, and in expressions the names in scope, their
fields, filters and tests.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from lsprotocol import types

from evaluator.authoring.portraits import description_of, signature
from evaluator.editor.cursor import Cursor, cursor_at, scope_at
from evaluator.editor.documents import Document
from evaluator.editor.project import Project
from evaluator.interpreter.background import BACKGROUND_TOOLS
from evaluator.interpreter.toolset import TASK_TOOLS
from evaluator.language.filters import FILTER_NAMES, describe_filter
from evaluator.language.operators import TEST_NAMES
from evaluator.language.syntax import GLOBALS
from evaluator.library import TemplateLibrary
from evaluator.library.calls import parameters
from evaluator.library.scoping import Binding
from evaluator.library.shapes import follow
from evaluator.models.prices import known_models
from evaluator.nodes import Function, Input, Task, TopLevel
from evaluator.nodes.declare import OPERATORS
from evaluator.nodes.values import VALUE_TYPES, Shape
from evaluator.patterns import Pattern
from evaluator.tools import builtin_tools
from evaluator.xml.tolerant import Element
from evaluator.xml.vocabulary import ROOTS, Kind, editor_vocabulary

MAX_ITEMS = 200
_STATEMENTS = ("if", "elif", "else", "endif", "for", "endfor", "set", "with", "endwith", "raw")
_FILTER = re.compile(r"\|\s*(\w*)\Z")
_TEST = re.compile(r"\bis\s+(?:not\s+)?(\w*)\Z")
_FIELD = re.compile(r"([^\W\d]\w*(?:\.\w+|\[(?:\d+|'[^']*'|\"[^\"]*\")\])*)\.(\w*)\Z")
_NAME = re.compile(r"(?<![\w.])([^\W\d]\w*)?\Z")
_PART = re.compile(r"\.(\w+)|\[(\d+)\]|\[(?:'([^']*)'|\"([^\"]*)\")\]")
_BOUND_HERE = re.compile(r"\{%[-+]?\s*(?:for|set)\s+([^\W\d]\w*)(?:\s*,\s*([^\W\d]\w*))?")
_IN_STRING = Pattern(r"""(?:[^'"]|'[^']*'|"[^"]*")*+['"]""")
Kinds = types.CompletionItemKind


def completions(
    project: Project, document: Document, position: types.Position, with_snippets: bool = False
) -> types.CompletionList:
    """What may be written at a place of a text."""
    offset = document.offset(position)
    cursor = cursor_at(document, offset)
    library = project.library_of(document.path) or project.library
    items: Iterable[types.CompletionItem] = ()
    start = cursor.start
    end = offset
    if cursor.kind == "element":
        items = _elements(cursor, document, with_snippets)
        end = cursor.end
    elif cursor.kind == "end" and cursor.element.name:
        items = iter([_item(f"{cursor.element.name}>", Kinds.Property, "end tag")])
    elif cursor.kind == "attribute":
        items = _attributes(cursor, document, with_snippets)
    elif cursor.kind == "value":
        items = _values(project, library, document, cursor)
        end = cursor.end
    elif cursor.kind == "expression":
        start, items = _in_expression(project, library, document, cursor)
    elif cursor.kind == "text":
        start, end, items = _in_text(project, library, document, cursor)
    edit_range = document.range(start, end)
    found: list[types.CompletionItem] = []
    is_cut = False
    typed = document.text[start:offset].lower()
    for item in items:
        if not _fits(typed, item.label.lower()):
            continue
        if len(found) == MAX_ITEMS:
            is_cut = True
            break
        item.text_edit = types.TextEdit(edit_range, item.insert_text or item.label)
        item.insert_text = None
        found.append(item)
    return types.CompletionList(is_incomplete=is_cut, items=found)


def _fits(typed: str, label: str) -> bool:
    """Whether the characters of `typed` are in `label` in their order, as editors filter."""
    characters = iter(label)
    return all(character in characters for character in typed)


def _item(
    label: str,
    kind: types.CompletionItemKind,
    detail: str = "",
    note: str = "",
    insert: str | None = None,
) -> types.CompletionItem:
    if note:
        documentation = types.MarkupContent(types.MarkupKind.Markdown, note)
    else:
        documentation = None
    return types.CompletionItem(
        label, kind=kind, detail=detail or None, documentation=documentation, insert_text=insert
    )


# Elements and attributes


def kinds_at(element: Element) -> list[Kind]:
    """The kinds that an element may be of, judged by the elements around it."""
    vocabulary = editor_vocabulary()
    path = [each.name for each in element.around() if each.name][::-1]
    if not path or path[0] not in ROOTS:
        return list(vocabulary.kinds_of(element.name))
    kind = vocabulary.kinds[ROOTS[path[0]]]
    for name in path[1:]:
        if name not in kind.children:
            return list(vocabulary.kinds_of(element.name))
        kind = vocabulary.kinds[kind.children[name]]
    return [kind]


def _elements(
    cursor: Cursor, document: Document, with_snippets: bool
) -> Iterator[types.CompletionItem]:
    parent = cursor.element
    vocabulary = editor_vocabulary()
    if not parent.name:
        children = {name: (kind, "") for name, kind in ROOTS.items()}
    else:
        children = {
            name: (type_name, kind.notes.get(name, ""))
            for kind in kinds_at(parent)
            for name, type_name in kind.children.items()
        }
    there = {child.name for child in parent.children if child.start < cursor.start - 1}
    followed = document.text[cursor.end : cursor.end + 1]
    for name, (type_name, note) in children.items():
        item = _item(name, Kinds.Property, f"<{name}>", note)
        # What is there already is usually not meant again.
        repeats = name in _REPEATED or name not in there
        item.sort_text = f"{0 if repeats else 1}{name}"
        if with_snippets and followed not in (">", "/", " ", "="):
            item.insert_text = _element_snippet(name, vocabulary.kinds[type_name])
            item.insert_text_format = types.InsertTextFormat.Snippet
        yield item


_REPEATED = frozenset(
    {"task", "call", "cond", "case", "input", "tool", "example", "arg", "turn", "path", "include"}
)


def _element_snippet(name: str, kind: Kind) -> str:
    written = ""
    stop = 1
    for attribute in sorted(kind.required):
        written += f' {attribute}="${stop}"'
        stop += 1
    if not kind.children and not kind.has_text:
        return f"{name}{written}/>$0"
    return f"{name}{written}>$0</{name}>"


def _attributes(
    cursor: Cursor, document: Document, with_snippets: bool
) -> Iterator[types.CompletionItem]:
    element = cursor.element
    if element.name == cursor.tag:
        kinds = kinds_at(element)
    else:
        kinds = []
    if not kinds:
        kinds = list(editor_vocabulary().kinds_of(cursor.tag))
    if element.name == cursor.tag:
        present = element.attributes
    else:
        present = {}
    seen: set[str] = set()
    for kind in kinds:
        for name in kind.attributes:
            if name in present or name in seen:
                continue
            seen.add(name)
            item = _item(name, Kinds.Field, f'{name}="…"', kind.notes.get(f"@{name}", ""))
            if with_snippets:
                item.insert_text = f'{name}="$1"'
                item.insert_text_format = types.InsertTextFormat.Snippet
            yield item


def _values(
    project: Project, library: TemplateLibrary, document: Document, cursor: Cursor
) -> Iterator[types.CompletionItem]:
    place = (cursor.tag, cursor.attribute)
    if place == ("call", "template"):
        yield from (_template_item(name, node) for name, node in library.nodes.items())
    elif cursor.attribute == "ref" and cursor.tag != "handler":
        yield from (
            _template_item(name, node)
            for name, node in library.nodes.items()
            if isinstance(node, Task)
        )
    elif place == ("handler", "ref"):
        yield from profile_items(project)
    elif place == ("tool", "name"):
        yield from _tool_items(library)
    elif place == ("arg", "name"):
        yield from _argument_items(library, document, cursor)
    elif place == ("inputs", "over") or (cursor.tag == "input" and _is_example(cursor.element)):
        yield from _declared_items(document, cursor)
    elif place == ("include", "href"):
        folder = Path(document.path).parent
        for path in sorted(folder.rglob("_*.xml")):
            yield _item(path.relative_to(folder).as_posix(), Kinds.File, "partial")
    elif place in (("output_format", "schema"), ("template", "returns")):
        yield from (_item(name, Kinds.TypeParameter, "type") for name in VALUE_TYPES)
    else:
        if cursor.element.name == cursor.tag:
            kinds = kinds_at(cursor.element)
        else:
            kinds = []
        kinds = kinds or list(editor_vocabulary().kinds_of(cursor.tag))
        values = {value for kind in kinds for value in kind.attributes.get(cursor.attribute, ())}
        for value in sorted(values - {"0", "1"}):
            if value in OPERATORS:
                note = OPERATORS[value].__doc__
            else:
                note = ""
            yield _item(value, Kinds.EnumMember, "", " ".join((note or "").split()))


def _is_example(element: Element) -> bool:
    return any(each.name == "example" for each in element.around())


def _template_item(name: str, node: TopLevel) -> types.CompletionItem:
    return _item(name, Kinds.Function, signature(name, node), description_of(node))


def profile_items(project: Project) -> Iterator[types.CompletionItem]:
    for name, profile in project.profiles.items():
        detail = f"{profile.backend}, {profile.model or 'no model'}, {profile.max_turns} turns"
        yield _item(name, Kinds.Value, detail, profile.description)


def _tool_items(library: TemplateLibrary) -> Iterator[types.CompletionItem]:
    for tool in builtin_tools():
        yield _item(tool.name, Kinds.Function, "tool", tool.spec.description)
    for name in [*TASK_TOOLS, *BACKGROUND_TOOLS]:
        yield _item(name, Kinds.Function, "tool")
    yield from (_template_item(name, node) for name, node in library.nodes.items())


def _argument_items(
    library: TemplateLibrary, document: Document, cursor: Cursor
) -> Iterator[types.CompletionItem]:
    call = next((each for each in cursor.element.around() if each.name == "call"), None)
    if call is None or "template" not in call.attributes:
        return
    start, end = call.attributes["template"]
    target = library.nodes.get(document.text[start:end])
    for name, (type_name, is_required) in parameters(target).items() if target else ():
        yield _item(name, Kinds.Variable, f"{type_name}{', required' if is_required else ''}")


def declared_inputs(document: Document, element: Element) -> Iterator[tuple[str, Element]]:
    """The inputs of the task around an element: name and element."""
    for around in element.around():
        inputs = around.child("inputs")
        if inputs is not None and around.name != "example":
            for child in inputs.children:
                if child.name == "input" and "name" in child.attributes:
                    start, end = child.attributes["name"]
                    yield document.text[start:end], child
            return


def _declared_items(document: Document, cursor: Cursor) -> Iterator[types.CompletionItem]:
    for name, _ in declared_inputs(document, cursor.element):
        yield _item(name, Kinds.Variable, "input")


# Expressions and texts


def _in_text(
    project: Project, library: TemplateLibrary, document: Document, cursor: Cursor
) -> tuple[int, int, Iterable[types.CompletionItem]]:
    word = cursor.word.lstrip()
    start = cursor.offset - len(word)
    if cursor.element.name == "model" and "\n" not in word:
        models = (name for name in known_models() if name.startswith(word))
        return start, cursor.offset, (_item(name, Kinds.Value, "model") for name in models)
    values = {value for kind in kinds_at(cursor.element) for value in kind.values}
    if values:
        return start, cursor.offset, (_item(v, Kinds.EnumMember) for v in sorted(values))
    if cursor.element.name == "arg":
        start, items = _in_expression(project, library, document, cursor)
        return start, cursor.offset, items
    return cursor.offset, cursor.offset, ()


def _in_expression(
    project: Project, library: TemplateLibrary, document: Document, cursor: Cursor
) -> tuple[int, Iterator[types.CompletionItem]]:
    written = cursor.word
    offset = cursor.offset
    if _IN_STRING.fullmatch(written):
        return offset, iter(())
    if found := _FILTER.search(written):
        return offset - len(found[1]), _filters()
    if found := _TEST.search(written):
        tests = (_item(name, Kinds.Operator, "test") for name in sorted(TEST_NAMES))
        return offset - len(found[1]), tests
    if found := _FIELD.search(written):
        scope = scope_at(project, document, cursor)
        return offset - len(found[2]), _fields(scope, found[1])
    if found := _NAME.search(written):
        word = found[1] or ""
        scope = scope_at(project, document, cursor)
        return offset - len(word), _names(library, document, cursor, scope)
    return offset, iter(())


def _filters() -> Iterator[types.CompletionItem]:
    for name in sorted(FILTER_NAMES):
        arguments, sentence = describe_filter(name)
        yield _item(name, Kinds.Function, f"{name}{arguments}", sentence)


def path_of(written: str) -> tuple[str, tuple[str | int, ...]]:
    """The name and the parts of a path such as `steps.plan.parsed[0]`."""
    name = re.match(r"\w+", written)
    begin = 0 if name is None else name.end()
    parts: list[str | int] = []
    for part in _PART.finditer(written, begin):
        parts.append(int(part[2]) if part[2] else part[1] or part[3] or part[4] or "")
    return written[:begin], tuple(parts)


def _fields(scope: Mapping[str, Binding], written: str) -> Iterator[types.CompletionItem]:
    name, parts = path_of(written)
    binding = scope.get(name)
    if binding is None:
        return
    shape = follow(binding.shape, parts, name=name)
    if isinstance(shape, Shape) and shape.fields is not None:
        for field in shape.fields:
            if isinstance(field, str):
                inner = shape.fields[field]
                yield _item(field, Kinds.Field, shape_text(inner), inner.what)


def shape_text(shape: Shape) -> str:
    """A shape in the words of types: `string[]`, `object`."""
    if shape.kind == "array":
        return f"{shape_text(shape.item)}[]" if shape.item is not None else "array"
    return "nothing" if shape.kind == "null" else shape.kind


def binding_text(binding: Binding) -> str:
    if isinstance(binding.origin, Input):
        return f"input, {shape_text(binding.shape)}"
    if isinstance(binding.origin, Function):
        return f"parameter, {shape_text(binding.shape)}"
    return shape_text(binding.shape)


def _names(
    library: TemplateLibrary, document: Document, cursor: Cursor, scope: Mapping[str, Binding]
) -> Iterator[types.CompletionItem]:
    for name, binding in scope.items():
        if isinstance(binding.origin, Input):
            note = binding.origin.description
        else:
            note = ""
        item = _item(name, Kinds.Variable, binding_text(binding), note)
        item.sort_text = f"0{name}"
        yield item
    before = document.text[cursor.element.inside : cursor.start]
    for match in _BOUND_HERE.finditer(before):
        for name in filter(None, match.groups()):
            if name not in scope:
                yield _item(name, Kinds.Variable, "bound in this text")
    if cursor.opening == "{%" and not cursor.word.strip().partition(" ")[2]:
        yield from (_item(name, Kinds.Keyword) for name in _STATEMENTS)
    for name, node in library.nodes.items():
        if name.isidentifier():
            item = _template_item(name, node)
            item.sort_text = f"2{name}"
            yield item
    yield from (_item(name, Kinds.Function, "function") for name in sorted(GLOBALS))
