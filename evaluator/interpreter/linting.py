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
from evaluator.interpreter.preflight import check_node, known_tools
from evaluator.language.syntax import has_markup
from evaluator.lazy_dataclass import frozen
from evaluator.library import TemplateLibrary
from evaluator.library.checks import in_order
from evaluator.library.structure import host_in
from evaluator.models.prices import known_providers
from evaluator.nodes import Span, TopLevel
from evaluator.nodes.walk import tasks
from evaluator.patterns import Pattern
from evaluator.tools import builtin_tools
from evaluator.xml.format import end_tag
from evaluator.xml.tolerant import read_tree

_REPEATING = frozenset({"uses-broken-template"})
"""Codes of findings that follow from an error that is reported at its own place."""

_CODES = {
    "ref": "unknown-handler unknown-ref ref-cycle ref-not-a-task",
    "type ref": "ref-type-mismatch",
    "template": "unknown-template endless-call call-cycle",
    "template name": "wrong-arity",
    "schema returns": "unknown-schema missing-schema bad-schema",
    "schema": "schema-without-effect",
    "schema name": "type-mismatch",
    "type params": "unknown-type",
    "type": "loop-by-default",
    "params": "default-type parameter-order",
    "name": "unused-input appended-input missing-input duplicate-name",
    "default name": "default-without-effect",
    "max_turns": "too-few-turns",
    "sandbox": "sandbox",
}
_ATTRIBUTES = {code: names.split() for names, codes in _CODES.items() for code in codes.split()}
"""The attributes whose value a finding about an element is about, by code: the first that it
has.
"""

_PART = re.compile(r"<?(\w+)>? has no effect")

_TAG = Pattern(r"""<[^<>"']*(?:(?:"[^"]*"|'[^']*')[^<>"']*)*>""")
_IGNORED = Pattern(
    r"<!--\s*lint:\s*ignore\s+([\w\s,-]+?)\s*-->|<\?lint\s+ignore\s+([\w\s,-]+?)\s*\?>"
)
_ROOT = Pattern(r"<[A-Za-z]")


def lint(library: TemplateLibrary, profiles: Mapping[str, HandlerConfig]) -> list[Diagnostic]:
    """All findings about `library`, by place; nothing is run, imported or sent. `profiles` are
    those that a template may name.
    """
    by_file = Linter(profiles).lint(library)
    return in_order(diagnostic for found in by_file.values() for diagnostic in found)


class Linter:
    """Finds what `lint` finds, again after each change of a library: what is the same is not
    checked again.
    """

    def __init__(self, profiles: Mapping[str, HandlerConfig]) -> None:
        self._profiles = profiles
        self._names = [*profiles, *getattr(profiles, "broken", ())]
        self._servers = [server for profile in profiles.values() for server in profile.mcp]
        self._sandboxes = {name: profile.sandbox for name, profile in profiles.items()}
        self._known: set[str] = set()
        # By id, with the node, which keeps the id unique.
        self._nodes: dict[int, tuple[TopLevel, list[Diagnostic]]] = {}
        self._files: dict[str | None, _FileFindings] = {}

    def lint(self, library: TemplateLibrary) -> dict[str | None, list[Diagnostic]]:
        """The findings by file; a file without one is left out."""
        surroundings = self._surroundings(library)
        raw: dict[str | None, list[tuple[Diagnostic, bool]]] = {}
        for diagnostic in library.diagnostics:
            if diagnostic.code not in _REPEATING:
                avoidable = diagnostic.severity != "error"
                raw.setdefault(diagnostic.span.file, []).append((diagnostic, avoidable))
        for diagnostic in surroundings:
            raw.setdefault(diagnostic.span.file, []).append((diagnostic, True))
        files: dict[str | None, _FileFindings] = {}
        for file, found in raw.items():
            text = library.source_text(file)
            known = self._files.get(file)
            if known is None or known.text is not text or known.raw != found:
                known = _FileFindings(text, found, _exact(found, text))
            files[file] = known
        self._files = files
        return {file: [*each.exact] for file, each in files.items() if each.exact}

    def _surroundings(self, library: TemplateLibrary) -> list[Diagnostic]:
        known = known_tools(library, builtin_tools().names())
        is_same = known == self._known
        self._known = known
        nodes: dict[int, tuple[TopLevel, list[Diagnostic]]] = {}
        for node in [*(t.node for t in library.templates.values()), *library.unusable]:
            earlier = self._nodes.get(id(node))
            if earlier is None or not (is_same or not any(t.tools for t in tasks(node))):
                found = check_node(node, known, self._names, self._servers, self._sandboxes)
                earlier = (node, [*found, *_of_models(node, self._profiles)])
            nodes[id(node)] = earlier
        self._nodes = nodes
        unused = _unused_shipped(library)
        # What this machine lacks for a shipped template concerns only those who use it.
        return list(
            dict.fromkeys(
                diagnostic
                for node, diagnostics in nodes.values()
                for diagnostic in diagnostics
                if diagnostic.code != "sandbox" or id(node) not in unused
            )
        )


def _unused_shipped(library: TemplateLibrary) -> set[int]:
    """The ids of the nodes of shipped templates that no other template of `library` calls."""
    own = library.own
    used = {*own, *(called for name in own for called in library.called_by(name))}
    return {id(t.node) for name, t in library.templates.items() if name not in used}


@frozen
class _FileFindings:
    """The findings about a file as they were found, and at their exact places."""

    text: str | None
    raw: list[tuple[Diagnostic, bool]]
    exact: list[Diagnostic]


def _exact(found: list[tuple[Diagnostic, bool]], text: str | None) -> list[Diagnostic]:
    """The findings at the words that they are about, without those that a comment suppresses."""
    ignored = _Ignored(text or "")
    exact: dict[Diagnostic, None] = {}
    for diagnostic, is_avoidable in found:
        placed = _at_word(diagnostic, text)
        if not (is_avoidable and ignored.holds(placed)):
            exact[placed] = None
    return in_order(exact)


def _of_models(node: TopLevel, profiles: Mapping[str, HandlerConfig]) -> list[Diagnostic]:
    """A warning for each model that no provider could be asked for with the task's profile."""
    found: list[Diagnostic] = []
    for task in tasks(node):
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
    """The finding at the attribute's value or at the part that it is about, where its place is the
    element.
    """
    names = _ATTRIBUTES.get(diagnostic.code, ())
    part = _PART.match(diagnostic.message)
    if text is None or not (names or part):
        return diagnostic
    start = _offset(text, diagnostic.span)
    tag = _TAG.match(text, start)
    if tag is None:
        return diagnostic
    for name in names:
        value = re.search(rf"""\s{name}\s*=\s*["']""", tag[0])
        if value is not None:
            span = Span.at(text, tag.start() + value.end(), file=diagnostic.span.file)
            return replace(diagnostic, span=span)
    child = None
    if part is not None:
        child = read_tree(text).at(start + 1).child(part[1])
    if child is None:
        return diagnostic
    return replace(diagnostic, span=Span.at(text, child.start, file=diagnostic.span.file))


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
        closing = None
        if written.startswith("<"):
            closing = end_tag(text, start)
        if closing is not None:
            changes[closing[0]] = (closing[1], meant[1:])
        done.append(diagnostic)
    for start, (end, meant) in sorted(changes.items(), reverse=True):
        text = text[:start] + meant + text[end:]
    return text, done
