"""Everything that `evaluator lint` reports about the templates of a library, and its safe fixes.

A finding that only repeats another one is left out. A comment `<!-- lint: ignore CODE … -->`
suppresses findings on its line and the next one, and in the whole file if it is before the root
element. An error that makes a template unusable cannot be suppressed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from evaluator.errors import Diagnostic
from evaluator.handler.backends import BACKENDS
from evaluator.handler.config import HandlerConfig
from evaluator.interpreter.preflight import check_surroundings
from evaluator.language.syntax import has_markup
from evaluator.library import TemplateLibrary
from evaluator.library.checks import in_order
from evaluator.library.structure import host_in
from evaluator.models.prices import known_providers
from evaluator.nodes import Span
from evaluator.nodes.walk import tasks
from evaluator.patterns import Pattern
from evaluator.tools import builtin_tools
from evaluator.xml.format import end_tag

_REPEATING = frozenset({"uses-broken-template"})
"""Codes of findings that follow from an error that is reported at its own place."""

_ATTRIBUTES = {
    "unknown-handler": "ref",
    "sandbox": "sandbox",
    "unknown-ref": "ref",
    "ref-cycle": "ref",
    "ref-not-a-task": "ref",
    "unknown-template": "template",
    "endless-call": "template",
    "unknown-schema": "schema",
    "missing-schema": "schema",
    "unknown-type": "type",
    "unused-input": "name",
    "appended-input": "name",
    "missing-input": "name",
    "duplicate-name": "name",
}
"""The attribute whose value a finding about an element is about, by code."""

_TAG = Pattern(r"""<[^<>"']*(?:(?:"[^"]*"|'[^']*')[^<>"']*)*>""")
_IGNORED = Pattern(
    r"<!--\s*lint:\s*ignore\s+([\w\s,-]+?)\s*-->|<\?lint\s+ignore\s+([\w\s,-]+?)\s*\?>"
)
_ROOT = Pattern(r"<[A-Za-z]")


def lint(library: TemplateLibrary, profiles: Mapping[str, HandlerConfig]) -> list[Diagnostic]:
    """All findings about `library`, by place; nothing is run, imported or sent. `profiles` are
    those that a template may name.
    """
    servers = [server for profile in profiles.values() for server in profile.mcp]
    sandboxes = {name: profile.sandbox for name, profile in profiles.items()}
    surroundings = [
        *check_surroundings(
            library,
            builtin_tools().names(),
            profiles=[*profiles, *getattr(profiles, "broken", ())],
            servers=servers,
            sandboxes=sandboxes,
        ),
        *_of_models(library, profiles),
    ]
    avoidable = {*surroundings, *(d for d in library.diagnostics if d.severity != "error")}
    ignored: dict[str | None, _Ignored] = {}
    found: list[Diagnostic] = []
    for diagnostic in dict.fromkeys([*library.diagnostics, *surroundings]):
        if diagnostic.code in _REPEATING:
            continue
        exact = _at_word(diagnostic, library.source_text(diagnostic.span.file))
        if diagnostic in avoidable:
            file = diagnostic.span.file
            if file not in ignored:
                ignored[file] = _Ignored(library.source_text(file) or "")
            if ignored[file].holds(exact):
                continue
        found.append(exact)
    return in_order(found)


def _of_models(library: TemplateLibrary, profiles: Mapping[str, HandlerConfig]) -> list[Diagnostic]:
    """A warning for each model that no provider could be asked for with the task's profile."""
    found: list[Diagnostic] = []
    nodes = [*(template.node for template in library.templates.values()), *library.unusable]
    for task in (task for node in nodes for task in tasks(node)):
        if task.model is None or has_markup(task.model.value) or host_in(task.model.value):
            continue
        model = task.model.value.strip()
        profile = profiles.get((task.handler and task.handler.ref) or "default")
        if not model or profile is None or profile.base_url is not None:
            continue
        prefix, slash, _ = model.partition("/")
        if any(prefix == each.prefix for each in BACKENDS.values()):
            continue
        if not slash and profile.backend == "auto":
            message = f"the model {model!r} names no provider"
            hint = f"write provider/model, as in openai/{model}"
        elif (
            slash
            and profile.backend in ("auto", "litellm")
            and known_providers().isdisjoint([prefix])
            and known_providers()
        ):
            message = f"no provider is called {prefix!r}"
            hint = "write provider/model, or name a profile whose <base_url> has this model"
        else:
            continue
        found.append(
            Diagnostic(
                "warning", "unknown-provider", message=message, span=task.model.span, hint=hint
            )
        )
    return found


class _Ignored:
    """The codes that the comments of a file suppress, by line."""

    def __init__(self, text: str) -> None:
        self._everywhere: set[str] = set()
        self._lines: dict[int, set[str]] = {}
        if "lint" not in text:
            return
        root = _ROOT.search(text)
        for comment in _IGNORED.finditer(text):
            codes = set((comment[1] or comment[2]).replace(",", " ").split())
            if root is not None and comment.end() <= root.start():
                self._everywhere |= codes
                continue
            first = text.count("\n", 0, comment.start()) + 1
            last = text.count("\n", 0, comment.end()) + 2
            for line in range(first, last + 1):
                self._lines.setdefault(line, set()).update(codes)

    def holds(self, diagnostic: Diagnostic) -> bool:
        return diagnostic.code in self._everywhere or diagnostic.code in self._lines.get(
            diagnostic.span.line, ()
        )


def _offset(text: str, span: Span) -> int:
    offset = 0
    for _ in range(span.line - 1):
        offset = text.find("\n", offset) + 1
    return offset + span.column - 1


def _at_word(diagnostic: Diagnostic, text: str | None) -> Diagnostic:
    """The finding at the attribute's value that it is about, where its place is the element."""
    name = _ATTRIBUTES.get(diagnostic.code)
    if name is None or text is None:
        return diagnostic
    tag = _TAG.match(text, _offset(text, diagnostic.span))
    value = None if tag is None else re.search(rf"""\s{name}\s*=\s*["']""", tag[0])
    if tag is None or value is None:
        return diagnostic
    span = Span.at(text, tag.start() + value.end(), file=diagnostic.span.file)
    return replace(diagnostic, span=span)


def fixed(text: str, diagnostics: Sequence[Diagnostic]) -> tuple[str, list[Diagnostic]]:
    """`text` with the fixes of its findings, and the findings that were fixed.

    A fix whose words are not at its place is left out.
    """
    changes: dict[int, tuple[int, str]] = {}
    done: list[Diagnostic] = []
    for diagnostic in diagnostics:
        if diagnostic.fix is None:
            continue
        written, meant = diagnostic.fix
        start = _offset(text, diagnostic.span)
        if not text.startswith(written, start):
            continue
        changes[start] = (start + len(written), meant)
        closing = end_tag(text, start) if written.startswith("<") else None
        if closing is not None:
            changes[closing[0]] = (closing[1], meant[1:])
        done.append(diagnostic)
    for start, (end, meant) in sorted(changes.items(), reverse=True):
        text = text[:start] + meant + text[end:]
    return text, done
