"""The template library: folders of XML files as templates by name.

Folders are searched in the order given, the shipped templates last; a name in an earlier folder hides that
of a later one, also where the earlier one has errors, so that a mistake never silently runs something else.
One bad template never stops the others.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

from evaluator.errors import Diagnostic, TemplateError, UsageError
from evaluator.library.calls import calls_of
from evaluator.library.checks import Checked, check_each, in_order, spread
from evaluator.library.excerpt import format_with_line
from evaluator.library.files import Root, scan
from evaluator.library.near import did_you_mean
from evaluator.library.reading import Entry, read_entry, read_string
from evaluator.library.resolve import RefResolver
from evaluator.nodes import Atomic, Call, Cond, Function, Node, Span, Task, TopLevel, children
from evaluator.xml.resources import shipped as shipped_folder

if TYPE_CHECKING:
    from evaluator.library.matching import Match, Ranker

MakeRanker: TypeAlias = "Callable[[Sequence[Template]], Ranker]"


@dataclass(frozen=True, slots=True)
class Template:
    """A usable template. `node` is whole: its `ref`s are resolved. `diagnostics` are its warnings.

    `sha256` covers the file, the partials that it includes and the templates that it takes parts from.
    """

    name: str
    node: TopLevel
    file: str | None
    sha256: str
    diagnostics: tuple[Diagnostic, ...] = ()


@dataclass(slots=True)
class _State:
    """Everything that a reload replaces, at once."""

    entries: tuple[tuple[Entry, ...], ...] = ()
    templates: Mapping[str, Template] = field(default_factory=dict[str, Template])
    functions: Mapping[str, Function] = field(default_factory=dict[str, Function])
    diagnostics: tuple[Diagnostic, ...] = ()
    broken: frozenset[str] = frozenset()
    checked: Mapping[str, Checked] = field(default_factory=dict[str, Checked])
    nodes: Mapping[str, TopLevel] = field(default_factory=dict[str, "TopLevel"])
    calls: dict[str, Mapping[str, str]] = field(default_factory=dict[str, "Mapping[str, str]"])
    ranker: Ranker | None = None


class TemplateLibrary:
    """Templates by name. Safe to read from several threads; `reload` and `add` swap its content at once."""

    def __init__(self, *, ranker: MakeRanker | None = None) -> None:
        """An empty library; `load` makes one from folders."""
        self._make_ranker = ranker
        self._roots: tuple[Root, ...] = ()
        self._lock = threading.RLock()
        self._state = _State(entries=((),))

    @classmethod
    def load(
        cls,
        *folders: str | os.PathLike[str],
        shipped: bool = True,
        ranker: MakeRanker | None = None,
    ) -> TemplateLibrary:
        """The templates of `folders` (or single files), and after them the shipped ones.

        Without folders, `templates/` in the current directory, if there is one. What is wrong with single
        templates is in `diagnostics`. Raises: UsageError, where a folder or file is missing.
        """
        library = cls(ranker=ranker)
        given: list[str | os.PathLike[str]] = list(folders)
        if not given and Path("templates").is_dir():
            given.append("templates")
        roots = [Root.of(folder) for folder in given]
        if shipped:
            own = Root.of(shipped_folder("templates"))
            if all((root.folder, root.only) != (own.folder, None) for root in roots):
                roots.append(own)
        library._roots = tuple(roots)
        library.reload()
        return library

    # Reading

    @property
    def templates(self) -> Mapping[str, Template]:
        """The usable templates by name, in the order of the search."""
        return self._state.templates

    @property
    def functions(self) -> Mapping[str, Function]:
        """The function templates among them."""
        return self._state.functions

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """All findings of the load, by file, line and column."""
        return self._state.diagnostics

    @property
    def errors(self) -> tuple[Diagnostic, ...]:
        return tuple(d for d in self._state.diagnostics if d.severity == "error")

    @property
    def warnings(self) -> tuple[Diagnostic, ...]:
        return tuple(d for d in self._state.diagnostics if d.severity == "warning")

    def get(self, name: str) -> Template:
        """The template called `name`.

        Raises: UsageError that says which names are near; TemplateError, if it was found and has errors.
        """
        state = self._state
        template = state.templates.get(name)
        if template is not None:
            return template
        if name in state.broken:
            found = state.checked.get(name, Checked()).diagnostics
            errors = [d for d in found if d.severity == "error"]
            if errors:
                raise TemplateError(errors)
            raise UsageError(f"template {name!r} has errors, or calls one that has: evaluator lint shows them")
        hint = did_you_mean(name, state.templates, f"{len(state.templates)} templates are loaded")
        raise UsageError(f"there is no template {name!r}; {hint}")

    def called_by(self, name: str) -> Mapping[str, str]:
        """The templates that a run of `name` may call, directly or through others: name → their `sha256`."""
        state = self._state
        if name not in state.calls:
            found: dict[str, str] = {}
            waiting = [name]
            while waiting:
                template = state.templates.get(waiting.pop())
                for other in () if template is None else calls_of(template.node):
                    if other in state.templates and other not in found and other != name:
                        found[other] = state.templates[other].sha256
                        waiting.append(other)
            state.calls[name] = found
        return state.calls[name]

    @property
    def broken(self) -> frozenset[str]:
        """The names of templates that were found and cannot be used; `get` says why."""
        return self._state.broken

    def __contains__(self, name: object) -> bool:
        return name in self._state.templates

    def __iter__(self) -> Iterator[str]:
        return iter(self._state.templates)

    def __len__(self) -> int:
        return len(self._state.templates)

    def __repr__(self) -> str:
        return f"TemplateLibrary({len(self)} templates, {len(self.errors)} errors)"

    def match(self, request: str | Node, limit: int = 5) -> list[Match]:
        """At most `limit` atomic templates that fit a text or a node, best first.

        Raises: UsageError, for a request without any text, or a limit below 1.
        """
        if limit < 1:
            raise UsageError(f"limit is {limit}; it must be at least 1")
        if isinstance(request, str):
            if not request.strip():
                raise UsageError("the request is empty: there is nothing to match")
        elif isinstance(request, Call | Cond):
            raise UsageError(f"a {type(request).__name__.lower()} is not matched; it names its templates itself")
        return self._ranker().rank(request, limit)

    def _ranker(self) -> Ranker:
        state = self._state
        if state.ranker is None:
            make = self._make_ranker
            if make is None:
                from evaluator.library.matching import LexicalRanker

                make = LexicalRanker
            state.ranker = make([t for t in state.templates.values() if isinstance(t.node, Atomic)])
        return state.ranker

    def whole(self, node: Task) -> Task:
        """`node`, which need not be registered, with its `ref`s resolved. Raises: TemplateError."""
        resolver = RefResolver({n: t.node for n, t in self._state.templates.items()}, self._state.broken)
        resolved, found = resolver.resolve_unregistered(node)
        if found:
            raise TemplateError(found)
        assert isinstance(resolved, Task)
        return resolved

    def source_line(self, span: Span) -> str | None:
        """The author's line at `span`; None where its file is not among those that were read."""
        for group in self._state.entries:
            for entry in group:
                text = entry.texts.get(span.file or "")
                if text is not None:
                    lines = text.split("\n")
                    return lines[span.line - 1] if 0 < span.line <= len(lines) else None
        return None

    def format_diagnostic(self, diagnostic: Diagnostic) -> str:
        """The diagnostic with the offending line, a caret under the column, and the hint."""
        return format_with_line(diagnostic, self.source_line(diagnostic.span))

    # Changing

    def reload(self) -> frozenset[str]:
        """Reads new and changed files again. Returns the names that came, went or changed.

        Who uses the library meanwhile sees the old content or the new one, never a mixture.
        """
        with self._lock:
            before = self._state
            known = {(e.root, e.relative): e for group in before.entries[1:] for e in group}
            groups: list[tuple[Entry, ...]] = [before.entries[0]]
            refused: list[Diagnostic] = []
            for root in self._roots:
                found, wrong = scan(root)
                refused += wrong
                entries: dict[str, Entry] = {}
                for file in found:
                    if file.relative not in entries:
                        old = known.get((root, file.relative))
                        entries[file.relative] = old if old and old.is_current() else read_entry(root, file)
                groups.append(tuple(entries.values()))
            after = _assemble(tuple(groups), refused, {})
            self._state = after
        return _changed(before, after)

    def add(self, xml_text: str, file: str | None = None) -> tuple[str, ...]:
        """Adds the templates of a text, ahead of all folders; an added name replaces the one added before.

        `file` is the name to report; nothing is read from it. Returns their names. Raises: TemplateError,
        with nothing added, if one of them has errors.
        """
        entry = read_string(xml_text, file)
        errors = [d for d in entry.diagnostics if d.severity == "error"]
        if errors:
            raise TemplateError(errors)
        with self._lock:
            before = self._state
            kept = [_without(old, entry.names) for old in before.entries[0]]
            added = tuple(old for old in kept if old.templates)
            refused = [d for d in before.diagnostics if d.code == "link-refused"]
            after = _assemble(((entry, *added), *before.entries[1:]), refused, _reusable(before, entry))
            mine = {n for n, _ in entry.templates}
            errors = [
                d for n in sorted(mine) for d in after.checked.get(n, Checked()).diagnostics if d.severity == "error"
            ]
            duplicates = len(mine) < len(entry.templates)
            if duplicates:
                errors += [d for d in after.diagnostics if d.code == "duplicate-name" and d.span.file == file]
            if errors:
                raise TemplateError(in_order(errors))
            self._state = after
        return entry.names


def _without(entry: Entry, names: Sequence[str]) -> Entry:
    kept = tuple((name, node) for name, node in entry.templates if name not in names)
    return (
        entry if len(kept) == len(entry.templates) else replace(entry, templates=kept, names=tuple(n for n, _ in kept))
    )


def _reusable(state: _State, entry: Entry) -> dict[str, Checked]:
    """Findings that adding `entry` cannot change: those of sound templates that use none of its names."""
    touched = set(entry.names)
    users: dict[str, set[str]] = {}
    for name, found in state.checked.items():
        for used in found.calls:
            users.setdefault(used, set()).add(name)
    waiting = list(touched)
    while waiting:
        for name in users.get(waiting.pop(), ()):
            if name not in touched:
                touched.add(name)
                waiting.append(name)
    return {
        name: found
        for name, found in state.checked.items()
        if name not in touched and found.usable and not _refers(state.nodes.get(name))
    }


def _refers(node: TopLevel | Node | None) -> bool:
    if node is None:
        return True
    return (isinstance(node, Task) and node.ref is not None) or any(_refers(child) for child in children(node))


def _assemble(
    groups: tuple[tuple[Entry, ...], ...], refused: Sequence[Diagnostic], reuse: Mapping[str, Checked]
) -> _State:
    """The library that these files make: names claimed, refs resolved, everything checked."""
    diagnostics = list(refused)
    claimed: dict[str, tuple[TopLevel, Entry]] = {}
    broken: set[str] = set()
    for group in groups:
        here: dict[str, Span] = {}
        for entry in group:
            diagnostics += entry.diagnostics
            declared = {name for name, _ in entry.templates}
            for name, node in entry.templates:
                if name in here:
                    first = here[name]
                    place = f"{first.file or 'this text'}, line {first.line}"
                    message = f"a template called `{name}` is already in {place}"
                    hint = "rename one of them; the first is used"
                    diagnostics.append(Diagnostic("error", "duplicate-name", message, node.span, hint))
                    continue
                here[name] = node.span
                if name not in claimed and name not in broken:
                    claimed[name] = (node, entry)
            broken.update(name for name in entry.names if name not in declared and name not in claimed)
    registry = {name: node for name, (node, _) in claimed.items()}
    resolver = RefResolver(registry, broken)
    whole = {name: resolver.resolve(name) for name in registry}
    sound = {name: node for name, node in whole.items() if not resolver.diagnostics.get(name)}
    broken.update(name for name in whole if name not in sound)
    checked = check_each(sound, broken=broken, reuse=reuse)
    for name, found in resolver.diagnostics.items():
        checked[name] = Checked(list(found), {})
    broken.update(name for name, found in checked.items() if not found.usable)
    spread(checked, resolver.refs, broken)
    for found in checked.values():
        diagnostics += found.diagnostics
    templates = {
        name: Template(name, node, entry.shown, _digest(name, claimed, resolver), tuple(checked[name].diagnostics))
        for name, (_, entry) in claimed.items()
        if name not in broken and (node := sound.get(name)) is not None
    }
    functions = {name: t.node for name, t in templates.items() if isinstance(t.node, Function)}
    return _State(
        groups, MappingProxyType(templates), MappingProxyType(functions), tuple(in_order(diagnostics)),
        frozenset(broken), checked, whole,
    )  # fmt: skip


def _digest(name: str, claimed: Mapping[str, tuple[TopLevel, Entry]], resolver: RefResolver) -> str:
    """The hash of the template's file and, where it refers to others, of all theirs."""
    if name not in resolver.refs:
        return claimed[name][1].sha256
    seen: set[str] = set()
    waiting = [name]
    while waiting:
        here = waiting.pop()
        if here not in seen and here in claimed:
            seen.add(here)
            waiting.extend(resolver.refs.get(here, ()))
    parts = [claimed[name][1].sha256, *(claimed[other][1].sha256 for other in sorted(seen - {name}))]
    return sha256("\n".join(parts).encode()).hexdigest()


def _changed(before: _State, after: _State) -> frozenset[str]:
    old, new = before.templates, after.templates
    names = {name for name in (*old, *new) if (name in old) != (name in new)}
    for name in new:
        if name not in old:
            continue
        was, is_now = old[name], new[name]
        # A file may hold several templates; those that read as before have not changed.
        if was.file != is_now.file or (was.sha256 != is_now.sha256 and was.node != is_now.node):
            names.add(name)
    return frozenset(names)
