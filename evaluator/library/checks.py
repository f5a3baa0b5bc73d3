"""Checks a whole library for errors that the XSD cannot express.

Per template: its structure, its variables, its calls. Across templates: calls that never end, and
templates that call or `ref` one that cannot be used.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from evaluator.errors import Diagnostic
from evaluator.library.calls import calls_of, endless_calls
from evaluator.library.scoping import ScopeWalk
from evaluator.nodes import Span, TopLevel
from evaluator.nodes.declare import FIELDS, OPERATORS

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
    """The findings about one template. `calls`: the templates that it calls, and where."""

    diagnostics: list[Diagnostic] = field(default_factory=list[Diagnostic])
    calls: Mapping[str, Span] = field(default_factory=dict[str, Span])

    @property
    def usable(self) -> bool:
        return all(d.severity != "error" for d in self.diagnostics)


def check_each(
    templates: Mapping[str, TopLevel],
    *,
    known_tools: frozenset[str] | None = None,
    broken: Collection[str] = (),
    reuse: Mapping[str, Checked] | None = None,
) -> dict[str, Checked]:
    """The findings of `check` by template.

    `broken` are names that exist and cannot be used. `reuse` has the findings of templates that
    have not changed, and whose callees have not.
    """
    checked: dict[str, Checked] = {}
    errors: Counter[str | None] = Counter()
    if known_tools is not None:  # a template is a tool too: a subtask of its own
        known_tools |= templates.keys()
    for name, node in templates.items():
        if reuse is not None and name in reuse:
            checked[name] = reuse[name]
            continue
        file = node.span.file
        if errors[file] > MAX_ERRORS:
            message = (
                f"more than {MAX_ERRORS} errors in this file; its other templates are not checked"
            )
            checked[name] = Checked(
                [Diagnostic("error", "too-many-errors", message=message, span=Span(file))]
            )
            continue
        walk = ScopeWalk(templates, known_tools, broken=broken)
        walk.top(node)
        checked[name] = Checked(walk.diagnostics, walk.called)
        errors[file] += sum(1 for one in walk.diagnostics if one.severity == "error")
    graph = {name: calls_of(templates[name]) for name, found in checked.items() if found.calls}
    for name, diagnostic in endless_calls(graph):
        found = checked[name].diagnostics
        if diagnostic not in found:
            found.append(diagnostic)
    return checked


_CERTAIN = frozenset(
    {"syntax", "forbidden-statement", "unknown-filter", "unknown-test", "unknown-template"}
    | {"undefined-variable", "model-with-host", "unknown-type", "default-type", "unknown-schema"}
    | {"missing-schema", "too-deep", "unknown-ref"}
)
"""Codes of findings that hold also where parts of the template are missing."""
_NAME = re.compile(r"`([^`]*)`")


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
    diagnostics = [d for d in walk.diagnostics if not _is_of_a_missing_part(d)]
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


def _is_of_a_missing_part(diagnostic: Diagnostic) -> bool:
    """Whether a finding is about what stands for a part that is missing, which is reported as such:
    a call without a name, or an empty condition.
    """
    if diagnostic.code == "unknown-template":
        return "``" in diagnostic.message
    return diagnostic.code == "syntax" and diagnostic.message == "an expression is missing"


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
            message = f"`{name}` uses `{bad}`, which has errors"
            checked[name].diagnostics.append(
                Diagnostic(
                    "error",
                    "uses-broken-template",
                    message=message,
                    span=span,
                    hint=f"fix `{bad}` first",
                )
            )


def in_order(diagnostics: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Each diagnostic once, by file, line and column."""
    return sorted(dict.fromkeys(diagnostics), key=_place)


def _place(diagnostic: Diagnostic) -> tuple[str, int, int, str, str]:
    span = diagnostic.span
    return (span.file or "", span.line, span.column, diagnostic.code, diagnostic.message)
