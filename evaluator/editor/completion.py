"""Completion: elements, attributes and their values, and in expressions the names in scope, their
fields, filters and tests.

What is at a place in a text that is being typed: a tag, an attribute, an expression, or
text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal

from lsprotocol import types

from evaluator.authoring.portraits import description_of, signature
from evaluator.editor.project import Document, Project
from evaluator.errors.messages import amount
from evaluator.interpreter.background import BACKGROUND_TOOLS
from evaluator.interpreter.toolset import TASK_TOOLS
from evaluator.language.filters import FILTER_NAMES, describe_filter
from evaluator.language.operators import TEST_NAMES
from evaluator.language.syntax import GLOBALS
from evaluator.lazy_dataclass import dataclass
from evaluator.library import TemplateLibrary
from evaluator.library.calls import parameters
from evaluator.library.scoping import Binding, Bindings, ScopeObserver
from evaluator.library.shapes import follow
from evaluator.models.prices import known_models
from evaluator.nodes import Expression, Function, Input, Task, Text, TopLevel
from evaluator.nodes.declare import OPERATORS
from evaluator.nodes.values import VALUE_TYPES, Shape, type_text
from evaluator.patterns import Pattern
from evaluator.tools import builtin_tools
from evaluator.xml.tolerant import Element, neutral, tokens
from evaluator.xml.vocabulary import ROOTS, Kind, editor_vocabulary

CursorKind = Literal["element", "end", "attribute", "value", "expression", "text", "nothing"]

_QUOTED = Pattern(r""""[^"]*+"|'[^']*+'""")
_IN_TAG = Pattern(r"<(/?+)([\w.\-:]*+)")
_LAST_ATTRIBUTE = Pattern(r"""\s([\w.\-:]++)\s*+=\s*+(?:"([^"]*+)|'([^']*+))\Z""")
_NAME_BEFORE = Pattern(r"\s([\w.\-:]*+)\Z")
_OPENS = Pattern(r"\{\{|\{%|<<")
_EXPRESSIONS = frozenset({("case", "test"), ("input", "from"), ("tools", "from")})
"""Attributes whose values are expressions."""
_CONDITIONS = frozenset({"termination_condition", "condition"})
"""Elements whose texts are expressions."""
_CLOSINGS = {"{{": "}}", "{%": "%}", "<<": ">>"}


@dataclass(frozen=True)
class Cursor:
    """What is at `offset`.

    `element` is the innermost element around it, or the one whose tag it is in. `word` is what is
    written before the cursor of the name, value or expression that begins at `start`; the rest of
    it ends at `end`. `opening` is the mark that an expression begins with, empty where the whole
    value or text is one.
    """

    kind: CursorKind
    offset: int
    element: Element
    start: int = 0
    word: str = ""
    end: int = 0
    tag: str = ""
    attribute: str = ""
    opening: str = ""


def cursor_at(document: Document, offset: int) -> Cursor:
    text = neutral(document.text)
    element = document.tree.at(offset)
    for token in tokens(text):
        if token.start < offset < token.end and token.kind == "skipped":
            return Cursor("nothing", offset, element)
        if token.start < offset < token.end and token.kind == "cdata":
            return _cursor_in_text(text, offset, element)
        if token.start >= offset:
            break
    start = text.rfind("<", 0, offset)
    if start >= 0 and text[start - 1 : start] != "<":
        cursor = _in_tag(text, start, offset, element)
        if cursor is not None:
            return cursor
    return _cursor_in_text(text, offset, element)


def _in_tag(text: str, start: int, offset: int, element: Element) -> Cursor | None:
    """The cursor in the tag that begins at `start`; None where no tag that is open begins there."""
    tag = _IN_TAG.match(text, start, offset)
    if tag is None:
        return None
    rest = text[tag.end() : offset]
    if ">" in _QUOTED.sub("", rest).partition('"')[0].partition("'")[0]:
        return None
    if tag.end() == offset:
        end = offset
        while end < len(text) and (text[end].isalnum() or text[end] in "_-."):
            end += 1
        kind: CursorKind = "end" if tag[1] else "element"
        around = element
        if element.start == start and element.parent is not None:
            around = element.parent
        return Cursor(kind, offset, around, start=tag.start(2), word=tag[2], end=end)
    if tag[1] or not rest[:1].isspace():
        return None
    value = _LAST_ATTRIBUTE.search(rest)
    if value is not None:
        group = 2 if value[2] is not None else 3
        quote = rest[value.start(group) - 1]
        begin = tag.end() + value.start(group)
        end = text.find(quote, offset)
        line_end = text.find("\n", offset)
        if end < 0 or 0 <= line_end < end:
            end = offset
        word = text[begin:offset]
        if (tag[2], value[1]) in _EXPRESSIONS:
            return Cursor(
                "expression", offset, element, begin, word, end, tag=tag[2], attribute=value[1]
            )
        inner = _expression(text, begin, offset, element)
        if inner is not None:
            return inner
        return Cursor("value", offset, element, begin, word, end, tag=tag[2], attribute=value[1])
    name = _NAME_BEFORE.search(rest)
    if name is None:
        return Cursor("nothing", offset, element)
    begin = tag.end() + name.start(1)
    return Cursor("attribute", offset, element, begin, name[1], offset, tag=tag[2])


def _cursor_in_text(text: str, offset: int, element: Element) -> Cursor:
    if element.name in _CONDITIONS and not element.children:
        begin = element.inside
        return Cursor("expression", offset, element, begin, text[begin:offset], element.close)
    begin = max([element.inside, *(each.end for each in element.children if each.end <= offset)])
    inner = _expression(text, begin, offset, element)
    if inner is not None:
        return inner
    word = text[begin:offset]
    return Cursor("text", offset, element, begin, word, element.close)


def _expression(text: str, begin: int, offset: int, element: Element) -> Cursor | None:
    """The cursor in a placeholder or a statement that begins after `begin`."""
    opens = list(_OPENS.finditer(text, begin, offset))
    if not opens:
        return None
    last = opens[-1]
    closing = _CLOSINGS[last[0]]
    if closing in text[last.end() : offset]:
        return None
    line_end = text.find("\n", offset)
    rest = text[offset : line_end if line_end >= 0 else len(text)]
    found = rest.find(closing)
    following = _OPENS.search(rest)
    end = offset
    if found >= 0 and (following is None or found <= following.start()):
        end = offset + found
    word = text[last.end() : offset]
    return Cursor("expression", offset, element, last.end(), word, end, opening=last[0])


MARK = "cursor_is_here_"


class _ScopeAtMark(ScopeObserver):
    def __init__(self) -> None:
        self.scope: dict[str, Binding] | None = None

    def text(self, value: Text | Expression, scope: Bindings) -> None:
        if isinstance(value, Expression):
            text = value.source
        else:
            text = value
        if MARK in text.value:
            self.scope = dict(scope)


def scope_at(project: Project, document: Document, cursor: Cursor) -> Mapping[str, Binding]:
    """The names that the expression at the cursor may read."""
    text = document.text
    if cursor.opening:
        begin = cursor.start - len(cursor.opening)
        end = cursor.end
        closing = _CLOSINGS[cursor.opening]
        if text.startswith(closing, end):
            end += len(closing)
        changed = f"{text[:begin]}{{{{ {MARK} }}}}{text[end:]}"
    else:
        # The text of an argument is an expression only where it names a variable.
        if cursor.kind == "text":
            mark = f"{{{{ {MARK} }}}}"
        else:
            mark = MARK
        changed = f"{text[: cursor.start]}{mark}{text[cursor.end :]}"
    view = project.view_of_text(document.path, changed)
    if view is None:
        return {}
    observer = _ScopeAtMark()
    view.watch(observer)
    return observer.scope or {}


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
        items = _attributes(cursor, with_snippets)
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
) -> types.CompletionItem:
    if note:
        documentation = types.MarkupContent(types.MarkupKind.Markdown, note)
    else:
        documentation = None
    return types.CompletionItem(
        label, kind=kind, detail=detail or None, documentation=documentation
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
    required = enumerate(sorted(kind.required), 1)
    written = "".join(f' {attribute}="${stop}"' for stop, attribute in required)
    if not kind.children and not kind.has_text:
        return f"{name}{written}/>$0"
    return f"{name}{written}>$0</{name}>"


def _attributes(cursor: Cursor, with_snippets: bool) -> Iterator[types.CompletionItem]:
    element = cursor.element
    if element.name == cursor.tag:
        seen = set(element.attributes)
    else:
        seen = set[str]()
    for kind in _kinds_of_tag(cursor):
        for name in kind.attributes:
            if name in seen:
                continue
            seen.add(name)
            item = _item(name, Kinds.Field, f'{name}="…"', kind.notes.get(f"@{name}", ""))
            if with_snippets:
                item.insert_text = f'{name}="$1"'
                item.insert_text_format = types.InsertTextFormat.Snippet
            yield item


def _kinds_of_tag(cursor: Cursor) -> list[Kind]:
    """The kinds that the tag at the cursor may be of."""
    if cursor.element.name == cursor.tag:
        kinds = kinds_at(cursor.element)
    else:
        kinds = []
    return kinds or list(editor_vocabulary().kinds_of(cursor.tag))


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
    elif place == ("inputs", "over") or (
        cursor.tag == "input" and any(each.name == "example" for each in cursor.element.around())
    ):
        for name, _ in declared_inputs(document, cursor.element):
            yield _item(name, Kinds.Variable, "input")
    elif place == ("include", "href"):
        folder = Path(document.path).parent
        for path in sorted(folder.rglob("_*.xml")):
            yield _item(path.relative_to(folder).as_posix(), Kinds.File, "partial")
    elif place in (("output_format", "schema"), ("template", "returns")):
        yield from (_item(name, Kinds.TypeParameter, "type") for name in VALUE_TYPES)
    else:
        kinds = _kinds_of_tag(cursor)
        values = {value for kind in kinds for value in kind.attributes.get(cursor.attribute, ())}
        for value in sorted(values - {"0", "1"}):
            if value in OPERATORS:
                note = OPERATORS[value].__doc__
            else:
                note = ""
            yield _item(value, Kinds.EnumMember, "", " ".join((note or "").split()))


def _template_item(name: str, node: TopLevel) -> types.CompletionItem:
    return _item(name, Kinds.Function, signature(name, node), description_of(node))


def profile_items(project: Project) -> Iterator[types.CompletionItem]:
    for name, profile in project.profiles.items():
        detail = (
            f"{profile.backend}, {profile.model or 'no model'}, {amount(profile.max_turns, 'turn')}"
        )
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
                yield _item(field, Kinds.Field, type_text(inner), inner.what)


def binding_text(binding: Binding) -> str:
    if isinstance(binding.origin, Input):
        return f"input, {type_text(binding.shape)}"
    if isinstance(binding.origin, Function):
        return f"parameter, {type_text(binding.shape)}"
    return type_text(binding.shape)


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
