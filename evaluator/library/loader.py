"""The template library: folders of XML files as templates by name.

Folders are searched in the order given, the shipped templates last. A name in an earlier folder
hides the same name in a later one, also where the earlier template has errors, so that a mistake
never silently runs something else. An invalid template never stops the others.

A shipped file holds one valid template with the name of the file. It is read when that template, or
one that mentions it, is used; all of them are read for what depends on the whole library.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from evaluator.errors import Diagnostic, TemplateError, UsageError
from evaluator.errors.messages import agree, amount, cut, did_you_mean, limited_hints, type_of
from evaluator.files.locations import shipped as shipped_folder
from evaluator.library.calls import Needs, calls_of, needs_of, reachable, schema_places
from evaluator.library.checks import errors_of, in_order
from evaluator.library.content import (
    Content,
    Template,
    assemble,
    changed_names,
    mentioned,
    read_shipped,
    reread,
)
from evaluator.library.files import Root, TemplateFile, scan
from evaluator.library.reading import LoadedFile, format_with_line, read_entry, read_string
from evaluator.library.resolve import RefResolver
from evaluator.nodes import Atomic, Call, Cond, Function, Node, Span, Task, TopLevel
from evaluator.nodes.walk import tasks

if TYPE_CHECKING:
    from evaluator.library.matching import Match, Ranker

MakeRanker: TypeAlias = "Callable[[Sequence[Template]], Ranker]"
# What suggestions for unknown names may compare in one load.
_MAX_COMPARISONS = 20_000


class TemplateLibrary:
    """Templates by name. Safe to read from several threads: `reload` and `add` replace the content
    as a whole.
    """

    def __init__(self, *, ranker: MakeRanker | None = None) -> None:
        """An empty library; `load` makes one from folders."""
        self._make_ranker = ranker
        self._roots: tuple[Root, ...] = ()
        self._edited: dict[Root, dict[str, str]] = {}
        self._lock = threading.RLock()
        self._content = Content()
        self._shipped: Root | None = None

    @classmethod
    def load(
        cls,
        *folders: str | os.PathLike[str],
        shipped: bool = True,
        ranker: MakeRanker | None = None,
        on_progress: Callable[[int], None] | None = None,
    ) -> TemplateLibrary:
        """The templates of `folders` (or single files), and after them the shipped ones.

        Without folders, `templates/` in the current directory is loaded, if it exists. The errors
        of single templates are in `diagnostics`. `on_progress` receives the number of files of
        `folders` that were read, after each.
        Raises: UsageError, where a folder or file is missing.
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
                library._shipped = own
        library._roots = tuple(roots)
        library._load(on_progress)
        return library

    # Reading

    @property
    def _state(self) -> Content:
        """The content with all shipped templates."""
        return self._with_shipped(None)

    def _with_shipped(self, name: str | None) -> Content:
        """The content with the shipped template `name`, if there is one, and those that it
        mentions; with all of them for None.
        """
        content = self._content
        if not content.unread or (name is not None and name not in content.unread):
            return content
        with self._lock, limited_hints(_MAX_COMPARISONS):
            before = self._content
            if self._shipped is not None:
                if name is None:
                    wanted = before.unread
                else:
                    wanted = [name]
                self._content = read_shipped(self._shipped, before, wanted)
            return self._content

    @property
    def content(self) -> object:
        """Another object after each change of the templates, to compare by identity."""
        return self._content

    @property
    def templates(self) -> Mapping[str, Template]:
        """The usable templates by name, in the order of the search."""
        return self._state.templates

    @property
    def own(self) -> Mapping[str, Template]:
        """The usable templates by name that are not shipped ones."""
        content = self._content
        groups = zip((None, *self._roots), content.entries, strict=True)
        names = {
            name
            for root, group in groups
            if root is None or root != self._shipped
            for entry in group
            for name, _ in entry.templates
        }
        return {name: one for name, one in content.templates.items() if name in names}

    @property
    def schema_places(self) -> Sequence[str]:
        """The modules, and paths of Python files, that the schemas (`module:Model`) of these
        templates name. Nothing is imported.
        """
        content = self._content
        if content.places is None:
            content.places = schema_places(template.node for template in self.own.values())
        return content.places

    @property
    def folders(self) -> tuple[Path, ...]:
        """The folders that the templates were loaded from, in the order of the search."""
        return tuple(dict.fromkeys(Path(root.folder) for root in self._roots))

    @property
    def files(self) -> list[str]:
        """The files that were read from the folders, by their names in findings."""
        groups = self._state.entries[1:]
        return [entry.shown for group in groups for entry in group if entry.shown is not None]

    @property
    def partials(self) -> list[str]:
        """The files that the templates include, by their names in findings."""
        entries = chain.from_iterable(self._state.entries[1:])
        names = {name for entry in entries for name in entry.texts}
        return sorted(names.difference(self.files))

    @property
    def functions(self) -> Mapping[str, Function]:
        """The function templates by name."""
        return {
            name: t.node
            for name, t in self._state.templates.items()
            if isinstance(t.node, Function)
        }

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """All findings of the load, by file, line and column."""
        return self._state.diagnostics

    @property
    def unusable(self) -> tuple[TopLevel, ...]:
        """The templates with errors, as far as they could be read: to be checked, not to be run."""
        return self._state.unusable

    @property
    def errors(self) -> tuple[Diagnostic, ...]:
        return tuple(errors_of(self._content.diagnostics))

    def errors_for(self, name: str) -> list[Diagnostic]:
        """The errors in the files of the template `name`, and of those that it names, as a call, a
        tool or a `ref`, directly or through others.
        """
        state = self._state
        nodes = {node.name: node for node in state.unusable}
        nodes |= {known: template.node for known, template in state.templates.items()}

        def named(one: str) -> set[str] | None:
            node = nodes.get(one)
            if node is None:
                return set() if one in state.broken else None
            names = {*calls_of(node)}
            for task in tasks(node):
                names.update(task.tools)
                if task.ref is not None:
                    names.add(task.ref)
            return names

        reached = reachable([name], named).keys()
        files: set[str | None] = set()
        for entry in chain.from_iterable(state.entries):
            if not reached.isdisjoint(entry.names):
                files |= {entry.shown, *entry.texts}
        return [error for error in self.errors if error.span.file in files]

    @property
    def warnings(self) -> tuple[Diagnostic, ...]:
        return tuple(d for d in self._state.diagnostics if d.severity == "warning")

    def get(self, name: str) -> Template:
        """The template with this name.

        Raises: UsageError, with similar names, if there is none; TemplateError, if it was found and
        has errors.
        """
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"name is {type_of(name)}, expected the name of a template")
        template = self._with_shipped(name).templates.get(name)
        if template is not None:
            return template
        state = self._state
        if name in state.templates:  # in a shipped file of another name
            return state.templates[name]
        if name in state.broken:
            # The first file that claims the name and has no usable template of that name.
            claims = (
                one.diagnostics for one in chain.from_iterable(state.entries) if name in one.names
            )
            if name in state.checked:
                found = state.checked[name].diagnostics
            else:
                found = next(claims, ())
            raise TemplateError(errors_of(found))
        raise UsageError(f"there is no template {cut(name, 60)!r}; {self.suggestion(name)}")

    def suggestion(self, name: str) -> str:
        """What may be meant by a name that no template has; a file stands for its template."""
        known = self._state.templates
        wanted = name
        if name.endswith(".xml"):
            wanted = Path(name).stem
        loaded = f"{amount(len(known), 'template')} {agree(len(known), 'is', 'are')} loaded"
        return did_you_mean(wanted, known, otherwise=loaded) or ""

    def called_by(self, name: str) -> Mapping[str, str]:
        """The templates that a run of `name` may call, directly or through others: name → their
        `sha256`.
        """
        state = self._with_shipped(name)
        if name not in state.calls:
            known = state.templates
            found = reachable(
                [name], lambda one: calls_of(known[one].node) if one in known else None
            )
            state.calls[name] = {other: known[other].sha256 for other in found if other != name}
        return state.calls[name]

    def needs(self, root: str | Node | Function) -> Needs:
        """What a run of a template, or of a node that need not be registered, may need: it and the
        templates that it may call. Those that a model may choose are not among them.

        Raises: as `get`, for the name of a template.
        """
        if not isinstance(root, str):
            starts = [name for name in calls_of(root) if name in self]
            called = dict.fromkeys(
                name for start in starts for name in (start, *self.called_by(start))
            )
            return needs_of([root, *(self.get(name).node for name in called)])
        known = self._with_shipped(root).needs
        if root not in known:
            reached = (root, *self.called_by(root))
            known[root] = needs_of(self.get(name).node for name in reached)
        return known[root]

    @property
    def bounds(self) -> dict[tuple[str, Hashable], Any]:
        """The bounds of these templates that were computed, see `bounds.call_bound`."""
        return self._state.bounds

    @property
    def broken(self) -> frozenset[str]:
        """The names of templates that were found and cannot be used; `get` says why."""
        return self._content.broken

    def __contains__(self, name: object) -> bool:
        content = self._content
        return name in content.templates or name in content.unread

    def __iter__(self) -> Iterator[str]:
        return iter(self._state.templates)

    def __len__(self) -> int:
        return len(self._state.templates)

    def __repr__(self) -> str:
        return (
            f"TemplateLibrary({amount(len(self), 'template')}, {amount(len(self.errors), 'error')})"
        )

    def match(
        self, request: str | Node, limit: int = 5, *, without: Collection[str] = ()
    ) -> list[Match]:
        """At most `limit` atomic templates that fit a text or an atomic node, best first.

        `without`: names of templates that are left out. The scores are those of a library without
        them; the index is built for this call.

        >>> TemplateLibrary.load().match("is this review positive or negative?")[0].template.name
        'sentiment'

        Raises: UsageError, for a request without any text, a node of another type, or a limit below
        1.
        """
        if type(limit) is not int or limit < 1:
            raise UsageError(f"limit is {limit!r}; it must be at least 1")
        if isinstance(request, str):
            if not request.strip():
                raise UsageError("the request is empty: there is nothing to match")
        elif not isinstance(request, Task):
            if not isinstance(request, Call | Cond):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise UsageError(f"request is {type_of(request)}, expected text or a node")
            raise UsageError(
                f"a {type(request).__name__.lower()} cannot be matched: it names its templates "
                "itself"
            )
        elif not isinstance(request, Atomic):
            raise UsageError(
                f"a task of type {request.type} cannot be matched: only atomic templates take "
                "part. Evaluate it itself, or match an atomic task"
            )
        return self._ranker(without).rank(request, limit)

    def match_composites(self, request: str | Task, limit: int = 3) -> list[Match]:
        """The composite templates nearest to a request, best first, though composites are never
        chosen.

        For messages: somebody may have expected one.
        """
        from evaluator.library.matching import LexicalRanker

        state = self._state
        if state.composites is None:
            state.composites = LexicalRanker(state.templates.values(), composites=True)
        return state.composites.rank(request, limit)

    def _ranker(self, without: Collection[str]) -> Ranker:
        state = self._state
        if state.ranker is not None and not without:
            return state.ranker
        from evaluator.library.vectors import make_ranker

        make = self._make_ranker or make_ranker
        templates = [
            template
            for template in state.templates.values()
            if isinstance(template.node, Atomic) and template.name not in without
        ]
        ranker = make(templates)
        if not without:
            state.ranker = ranker
        return ranker

    @property
    def nodes(self) -> Mapping[str, TopLevel]:
        """The templates by name, with their refs resolved, also those with errors that can be
        called to see what they take.
        """
        return {} if self._state.steps is None else self._state.steps.templates

    def whole(self, node: Task) -> Task:
        """`node`, which need not be registered, with its `ref`s resolved. Raises: TemplateError."""
        resolver = RefResolver(
            {n: t.node for n, t in self._state.templates.items()}, self._state.broken
        )
        resolved, found = resolver.resolve_unregistered(node)
        if found:
            raise TemplateError(found)
        return cast("Task", resolved)

    def source_text(self, file: str | None) -> str | None:
        """The text of a file as it was read; None if it was not."""
        state = self._state
        if state.texts is None:
            state.texts = {}
            for entry in reversed([*chain.from_iterable(state.entries)]):
                state.texts |= entry.texts
        return state.texts.get(file or "")

    def nodes_at(self, path: str, text: str | None = None) -> tuple[TopLevel, ...]:
        """The templates of the file with this absolute path, also those with errors, as far as they
        can be read. With `text`: those that the file would have with this text.
        """
        for root, group in zip(self._roots, self._state.entries[1:], strict=True):
            relative = root.relative(path)
            if relative is None:
                continue
            entry = next((each for each in group if each.relative == relative), None)
            if text is not None:
                edited = {**self._edited.get(root, {}), relative: text}
                file = TemplateFile(relative, root.name_of(relative))
                entry = read_entry(root, file, edited)
            if entry is not None:
                suspects = [suspect.node for suspect in entry.suspects]
                # Their refs are resolved as far as they can be.
                resolver = RefResolver(self.nodes, self._state.broken)
                return tuple(
                    cast("TopLevel", resolver.resolve_unregistered(cast("Task", node))[0])
                    for node in (*(node for _, node in entry.templates), *suspects)
                )
        return ()

    def source_line(self, span: Span) -> str | None:
        """The source line at `span`; None if its file was not read."""
        text = self.source_text(span.file)
        if text is None:
            return None
        lines = text.split("\n")
        if 0 < span.line <= len(lines):
            return lines[span.line - 1]
        return None

    def format_diagnostic(self, diagnostic: Diagnostic) -> str:
        """The diagnostic with the offending line, a caret under the column, and the hint."""
        return format_with_line(diagnostic, self.source_line(diagnostic.span))

    # Changing

    def reload(self) -> frozenset[str]:
        """Reads new and changed files again. Returns the names that were added, removed or changed.

        Other threads see the old content or the new one, never a mixture.
        """
        with self._lock:
            before = self._state
            self._load(None)
            return changed_names(before, self._state)

    def _load(self, on_progress: Callable[[int], None] | None) -> None:
        read = count(1)
        with self._lock, limited_hints(_MAX_COMPARISONS):
            before = self._content
            known = {
                (entry.root, entry.relative): entry
                for entry in chain.from_iterable(before.entries[1:])
            }
            groups = [before.entries[0]]
            refused: list[Diagnostic] = []
            unread: dict[str, TemplateFile] = {}
            for root in self._roots:
                found, wrong = scan(root)
                refused += wrong
                if root == self._shipped and not self._edited.get(root):
                    unread = {Path(file.relative).stem: file for file in found}
                    groups.append(())
                    continue
                entries: dict[str, LoadedFile] = {}
                edited = self._edited.get(root, {})
                for file in found:
                    if file.relative not in entries:
                        old = known.get((root, file.relative))
                        if old is None or edited or not old.is_current():
                            old = read_entry(root, file, edited)
                        entries[file.relative] = old
                    if on_progress is not None:
                        on_progress(next(read))
                groups.append(tuple(entries.values()))
            if self._shipped is None:
                self._content = assemble(tuple(groups), refused)
                return
            own = [*chain.from_iterable(groups)]
            is_hiding = any(not unread.keys().isdisjoint(entry.names) for entry in own)
            if is_hiding or len(own) > len(unread):
                used = [*unread]
            else:
                used = [name for entry in own for name in mentioned(entry, unread)]
            content = Content(tuple(groups), refused, unread=unread)
            self._content = read_shipped(self._shipped, content, used)

    def edit(self, path: str, text: str | None) -> frozenset[str]:
        """Reads `text` in place of the file with this absolute path, until it is called with None.

        Only what depends on the change is read and checked again. Returns the names that were
        added, removed or changed; none for a path that is in no folder of this library.
        """
        with self._lock, limited_hints(_MAX_COMPARISONS):
            before = self._state
            groups = [before.entries[0]]
            for root, group in zip(self._roots, before.entries[1:], strict=True):
                relative = root.relative(path)
                if relative is None:
                    groups.append(group)
                    continue
                edited = self._edited.setdefault(root, {})
                if text is None:
                    edited.pop(relative, None)
                else:
                    edited[relative] = text
                groups.append(reread(root, group, relative, edited=edited))
            self._content = after = assemble(tuple(groups), before.refused, before.steps)
        return changed_names(before, after)

    def with_edit(self, path: str, text: str) -> TemplateLibrary:
        """A copy of this library that reads `text` in place of the file with this absolute path."""
        copy = TemplateLibrary(ranker=self._make_ranker)
        with self._lock:
            copy._roots = self._roots
            copy._shipped = self._shipped
            copy._edited = {root: dict(texts) for root, texts in self._edited.items()}
            copy._content = self._state
        copy.edit(path, text)
        return copy

    def add(self, xml_text: str, file: str | None = None) -> tuple[str, ...]:
        """Adds the templates of a text, ahead of all folders; an added name replaces the one added
        before.

        `file` is the name to report; nothing is read from it. Returns their names. Raises:
        TemplateError, with nothing added, if one of them has errors.
        """
        if not isinstance(xml_text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(
                f"xml_text is {type_of(xml_text)}, expected the XML of a template as text"
            )
        with self._lock, limited_hints(_MAX_COMPARISONS):
            entry = read_string(xml_text, file)
            if errors := errors_of(entry.diagnostics):
                raise TemplateError(errors)
            before = self._state
            added: list[LoadedFile] = []
            for old in before.entries[0]:
                kept = tuple(
                    (name, node) for name, node in old.templates if name not in entry.names
                )
                if kept:
                    added.append(
                        replace(old, templates=kept, names=tuple(name for name, _ in kept))
                    )
            after = assemble(((entry, *added), *before.entries[1:]), before.refused)
            errors = [d for name in entry.names for d in errors_of(after.checked[name].diagnostics)]
            errors += [
                d for d in after.diagnostics if d.code == "duplicate-name" and d.span.file == file
            ]
            if errors:
                raise TemplateError(in_order(errors))
            self._content = after
        return entry.names
