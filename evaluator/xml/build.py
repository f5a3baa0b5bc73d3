"""Builds the syntax trees of a source, with includes in their place.

Checks what the XSD cannot say about structure: an element given twice, one that belongs to another
operator, a part that an operator needs, names given twice, ranges. Every finding has its place, in
the included file if it is there. A template with an error is left out; the others of the file are
built.
"""

from __future__ import annotations

from evaluator.errors import Diagnostic
from evaluator.lazy_dataclass import frozen
from evaluator.nodes import Function, Param, Span, Text, TopLevel
from evaluator.nodes.values import VALUE_TYPES
from evaluator.xml.build_context import Builder, ReadPartial, View
from evaluator.xml.build_task import NODES, body, task
from evaluator.xml.source import Source

_BRACKETS = {"[": "]", "(": ")", "{": "}"}


@frozen
class BuildResult:
    """`templates` without errors, in order; `includes` the files (or hrefs) that were read, each
    once.

    `rejected` are the templates with errors, as far as they could be built: to be checked, never to
    be used.
    """

    templates: tuple[TopLevel, ...]
    diagnostics: tuple[Diagnostic, ...]
    includes: tuple[str, ...]
    rejected: tuple[TopLevel, ...] = ()


def build(source: Source, *, read_partial: ReadPartial | None = None) -> BuildResult:
    """Build the templates of `source`.

    `read_partial` gets the href and the place of an include; it returns a validated source, or
    raises TemplateError, whose diagnostics are passed on. Without it an include is an error. A
    `partial` as the root declares nothing. Never raises for what a source holds.
    """
    b = Builder(read_partial)
    templates: list[TopLevel] = []
    rejected: list[TopLevel] = []
    names: dict[str, Span] = {}
    for view in _top_level(b, View(source, source.root)):
        before = b.errors
        built: TopLevel
        if view.tag == "template":
            built = _function(b, view)
        else:
            built = task(b, view)
        if b.errors == before and b.is_new(built.name, names, built.span, "the name"):
            templates.append(built)
        else:
            rejected.append(built)
    diagnostics = sorted(
        dict.fromkeys(b.diagnostics),
        key=lambda one: (one.span.file != source.file, one.span.line, one.span.column),
    )
    return BuildResult(
        tuple(templates),
        tuple(diagnostics),
        includes=tuple(b.includes),
        rejected=tuple(rejected),
    )


def _top_level(b: Builder, root: View) -> list[View]:
    if root.tag in ("task", "template"):
        return [root]
    if root.tag == "partial":
        return []
    if root.tag != "library":
        b.unexpected(root, "a template file", ("task", "template", "library", "partial"))
        return []
    return b.sorted_children(root, ("description",), ("task", "template"))[1]


def _function(b: Builder, view: View) -> Function:
    name = view.get("name") or ""
    if not name.isidentifier():
        b.error("invalid-value", f"{name[:60]!r} is not a name for a function template", view.span)
    found, nodes = b.sorted_children(view, ("description",), NODES)
    return Function(
        name=name,
        params=_params(b, view.attribute("params")) if view.get("params") is not None else (),
        returns=view.get("returns") or None,
        body=body(b, view, found=nodes),
        description=b.text(found["description"]).value if found else "",
        span=view.span,
    )


def _params(b: Builder, text: Text) -> tuple[Param, ...]:
    """`doc, style=short, n: integer=3`; a default in quotes may hold commas and blank space."""
    out: list[Param] = []
    seen: dict[str, Span] = {}
    for start, end in _split(text.value):
        part = text.value[start:end]
        offset = start + len(part) - len(part.lstrip())
        head, equals, default = part.partition("=")
        name, colon, kind = (piece.strip() for piece in head.partition(":"))
        place = text.locate(min(offset, max(len(text.value) - 1, 0)))
        if not name.isidentifier():
            hint = 'parameters look like params="doc, style=short, n: integer=3"'
            b.error("invalid-params", f"{name[:60]!r} is not a name for a parameter", place, hint)
        elif colon and kind not in VALUE_TYPES:
            message = f"the type of {name} must be one of {', '.join(VALUE_TYPES)}"
            b.error("invalid-params", message, place)
        elif b.is_new(name, seen, place, "the parameter"):
            value = None
            if equals:
                value = _unquoted(default.strip())
            out.append(Param(name, value, type=kind or "any"))
    return tuple(out)


def _split(value: str) -> list[tuple[int, int]]:
    """The start and end of each parameter; commas outside quotes and brackets separate them."""
    if not value.strip():
        return []
    out: list[tuple[int, int]] = []
    start = 0
    quote = ""
    escaped = False
    closers: list[str] = []
    for position, character in enumerate(value):
        if escaped:
            escaped = False
        elif quote:
            escaped = character == "\\"
            quote = "" if character == quote else quote
        elif character in "\"'" and value[start:position].rstrip().endswith("="):
            quote = character
        elif character in _BRACKETS:
            closers.append(_BRACKETS[character])
        elif closers and character == closers[-1]:
            closers.pop()
        elif character == "," and not closers:
            out.append((start, position))
            start = position + 1
    return [*out, (start, len(value))]


def _unquoted(value: str) -> str:
    """The default as text: without its quotes, and without the backslashes that escape inside
    them.
    """
    if len(value) < 2 or value[0] not in "\"'" or value[-1] != value[0]:
        return value
    inner = value[1:-1]
    return inner.replace("\\\\", "\0").replace("\\" + value[0], value[0]).replace("\0", "\\")
