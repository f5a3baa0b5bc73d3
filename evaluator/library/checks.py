"""Checks a whole library for errors that the XSD cannot express.

Per template: its structure, its variables, its calls. Across templates: calls that never end, and
templates that call or `ref` one that cannot be used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import field

from evaluator.errors import Diagnostic
from evaluator.lazy_dataclass import dataclass
from evaluator.library.calls import EdgeKind, calls_of, endless_calls, parameters, uses_broken
from evaluator.library.scoping import ScopeWalk
from evaluator.library.shapes import ResultShapes
from evaluator.nodes import Function, Span, TopLevel
from evaluator.nodes.declare import FIELDS, OPERATORS
from evaluator.patterns import Pattern

MAX_ERRORS = 200
"""The templates of a file are checked until more errors than this are found."""


def check(
    templates: Mapping[str, TopLevel], *, known_tools: frozenset[str] | None = None
) -> list[Diagnostic]:
    """Findings about `templates`, whose `ref`s are resolved, in the order of their places.

    With `known_tools` a tool that is neither one of them nor a template is an error. Where several
    templates share a node, because one took it from the other by `ref`, each finding is given once.
    """
    checked = check_each(templates, known_tools=known_tools)
    return in_order(d for found in checked.values() for d in found.diagnostics)


@dataclass(slots=True)
class Checked:
    """The findings about one template. `calls`: the templates that it calls, and where. `edges`:
    how certain each call is, see `calls_of`.
    """

    diagnostics: list[Diagnostic] = field(default_factory=list[Diagnostic])
    calls: Mapping[str, Span] = field(default_factory=dict[str, Span])
    edges: Mapping[str, tuple[EdgeKind, Span]] = field(
        default_factory=dict[str, "tuple[EdgeKind, Span]"]
    )

    @property
    def usable(self) -> bool:
        return not errors_of(self.diagnostics)


def check_each(
    templates: Mapping[str, TopLevel],
    *,
    known_tools: frozenset[str] | None = None,
    broken: Collection[str] = (),
    reuse: Mapping[str, Checked] | None = None,
) -> dict[str, Checked]:
    """The findings of `check` by template, see `walk_each`."""
    checked = walk_each(templates, known_tools=known_tools, broken=broken, reuse=reuse)
    add_endless_calls(checked)
    return checked


def walk_each(
    templates: Mapping[str, TopLevel],
    *,
    known_tools: frozenset[str] | None = None,
    broken: Collection[str] = (),
    reuse: Mapping[str, Checked] | None = None,
) -> dict[str, Checked]:
    """The findings by template that need no walk from call to call.

    `broken` are names that exist and cannot be used. `reuse` has the findings of templates that
    have not changed, and whose callees have not.
    """
    checked: dict[str, Checked] = {}
    errors: Counter[str | None] = Counter()
    if known_tools is not None:  # a template is a tool too: a subtask of its own
        known_tools |= templates.keys()
    for name, node in templates.items():
        file = node.span.file
        if reuse is not None and name in reuse:
            checked[name] = reuse[name]
        elif errors[file] > MAX_ERRORS:
            message = (
                f"more than {MAX_ERRORS} errors in this file; its other templates are not checked"
            )
            checked[name] = Checked(
                [Diagnostic("error", "too-many-errors", message=message, span=Span(file))]
            )
            continue
        else:
            walk = ScopeWalk(templates, known_tools, broken=broken)
            walk.top(node)
            edges = {}
            if walk.called:
                edges = calls_of(node)
            checked[name] = Checked(walk.diagnostics, walk.called, edges)
        errors[file] += len(errors_of(checked[name].diagnostics))
    return checked


def errors_of(diagnostics: Iterable[Diagnostic]) -> list[Diagnostic]:
    """The findings that are errors."""
    return [one for one in diagnostics if one.severity == "error"]


def add_endless_calls(checked: Mapping[str, Checked]) -> None:
    """Adds the findings about calls that never end."""
    graph = {name: found.edges for name, found in checked.items() if found.edges}
    for name, diagnostic in endless_calls(graph):
        found = checked[name].diagnostics
        if diagnostic not in found:
            found.append(diagnostic)


def unaffected(
    templates: Mapping[str, TopLevel],
    before: Mapping[str, TopLevel],
    checked: Mapping[str, Checked],
    *,
    is_same_broken: bool,
) -> dict[str, Checked]:
    """The findings of `checked`, which are about the templates `before`, that hold for `templates`
    too.

    A template is checked again if it has changed, if what a caller sees of one that it calls has
    changed, and if it has a finding and the names that are known have changed: findings name them.
    """
    callers: dict[str, list[str]] = {}
    for name, found in checked.items():
        for called in found.calls:
            callers.setdefault(called, []).append(name)
    waiting = [
        name
        for name in {*templates, *before, *callers}
        if templates.get(name) is not before.get(name)
    ]
    again = set(waiting)
    old = ResultShapes(before)
    new = ResultShapes(templates)
    for name in waiting:
        if _interface(name, before, old) == _interface(name, templates, new):
            continue
        for caller in callers.get(name, ()):
            if caller not in again:
                again.add(caller)
                waiting.append(caller)
    is_same_names = is_same_broken and templates.keys() == before.keys()
    return {
        name: found
        for name, found in checked.items()
        if name in templates
        and name not in again
        and (is_same_names or not found.diagnostics)
        and not any(one.code == "too-many-errors" for one in found.diagnostics)
    }


def _interface(name: str, templates: Mapping[str, TopLevel], shapes: ResultShapes) -> object:
    """What a template that calls `name` sees of it; None where there is no such template."""
    node = templates.get(name)
    if node is None:
        return None
    return isinstance(node, Function), list(parameters(node).items()), shapes.result(node)


_CERTAIN_CODES = """
    syntax forbidden-statement unknown-filter unknown-test unknown-template undefined-variable
    model-with-host unknown-type default-type unknown-schema missing-schema too-deep unknown-ref
    call-not-allowed
"""
_CERTAIN = frozenset(_CERTAIN_CODES.split())
"""Codes of findings that hold also where parts of the template are missing."""
_NAME = Pattern(r"`([^`]*)`")


def check_suspect(
    node: TopLevel,
    templates: Mapping[str, TopLevel],
    *,
    broken: Collection[str],
    names: Collection[str] | None,
    complete: bool,
) -> list[Diagnostic]:
    """The findings about a template with errors of structure that follow from none of them.

    `names` are not undefined, although nothing in `node` binds them; None: no name is. `complete`:
    nothing of the template is missing in `node`.
    """
    walk = ScopeWalk(templates, broken=broken)
    walk.top(node)
    # A part that is missing is reported as such, so nothing is said of what is in its place.
    diagnostics = [
        one
        for one in walk.diagnostics
        if not (one.code == "unknown-template" and "``" in one.message)
        and (one.code, one.message) != ("syntax", "an expression is missing")
    ]
    if complete:
        return diagnostics
    bound = {name for cls in OPERATORS.values() for f in FIELDS[cls] for name in f.binds or ()}
    found: list[Diagnostic] = []
    for diagnostic in diagnostics:
        if diagnostic.code not in _CERTAIN:
            continue
        name = _NAME.search(diagnostic.message)
        if diagnostic.code == "undefined-variable" and (
            names is None or name is None or name[1] in names or name[1] in bound
        ):
            continue
        found.append(diagnostic)
    return found


def spread(
    checked: Mapping[str, Checked], refs: Mapping[str, Mapping[str, Span]], broken: set[str]
) -> None:
    """Adds an error to each template that calls or `ref`s an unusable one, transitively.

    `broken` holds the names that cannot be used, and grows.
    """
    users: dict[str, dict[str, Span]] = {}
    for name, found in checked.items():
        for used, span in (*found.calls.items(), *refs.get(name, {}).items()):
            users.setdefault(used, {}).setdefault(name, span)
    waiting = sorted(broken)
    for bad in waiting:
        for name, span in sorted(users.get(bad, {}).items()):
            if name in broken:
                continue
            broken.add(name)
            waiting.append(name)
            checked[name].diagnostics.append(
                uses_broken(f"`{name}` uses `{bad}`, which has errors", bad, span=span)
            )


def in_order(diagnostics: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Each diagnostic once, by file, line and column."""
    return sorted(dict.fromkeys(diagnostics), key=_place)


def _place(diagnostic: Diagnostic) -> tuple[str, int, int, str, str]:
    span = diagnostic.span
    return (span.file or "", span.line, span.column, diagnostic.code, diagnostic.message)
