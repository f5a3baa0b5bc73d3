"""The content of a library: names assigned, refs resolved, everything checked."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from hashlib import sha256
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from evaluator.errors import Diagnostic
from evaluator.lazy_dataclass import dataclass, frozen
from evaluator.library.checks import (
    Checked,
    add_endless_calls,
    check_suspect,
    in_order,
    spread,
    unaffected,
    walk_each,
)
from evaluator.library.files import Root, TemplateFile
from evaluator.library.reading import LoadedFile, Suspect, read_entry
from evaluator.library.resolve import RefResolver
from evaluator.nodes import Function, Span, Task, TopLevel
from evaluator.patterns import Pattern

if TYPE_CHECKING:
    from evaluator.library.calls import Needs
    from evaluator.library.matching import Ranker


# The shipped files as this process read them last, for its other libraries.
_shipped_entries: dict[tuple[Root, str], LoadedFile] = {}


@dataclass(frozen=True)
class Template:
    """A usable template. The `ref`s in `node` are resolved. `diagnostics` are its warnings."""

    name: str
    node: TopLevel
    file: str | None
    diagnostics: tuple[Diagnostic, ...] = ()

    def __repr__(self) -> str:
        return f"<Template {self.name!r}, {self.type}, in {self.file!r}>"

    @property
    def type(self) -> str:
        """The operator's type, or `function`."""
        if isinstance(self.node, Function):
            return "function"
        return self.node.type

    @cached_property
    def sha256(self) -> str:
        """The hash of the template as it is evaluated: with its partials and the parts that it
        takes from others, and without comments, positions and the rest of its file.
        """
        from evaluator.xml.write import to_xml

        return sha256(to_xml(self.node).encode("utf-8", "surrogatepass")).hexdigest()


@frozen
class Steps:
    """What an assembly computed on its way, for the next one: the resolver, the templates that
    were checked with their own findings, the broken names, and the findings about each suspect.
    """

    resolver: RefResolver
    templates: Mapping[str, TopLevel]
    walked: Mapping[str, Checked]
    broken: frozenset[str]
    suspects: Mapping[int, tuple[Suspect, TopLevel, list[Diagnostic]]]
    made: Mapping[str, Template]


@dataclass(slots=True)
class Content:
    """The content of a library. A change replaces it as a whole.

    `entries` are the files read, in groups that are searched in order: the added texts, then one
    group for each root. `unread` are the shipped files that nothing needed, by the names of their
    templates; there are none where there are findings, since these may mention any name. `refused`
    are the findings about files that were not read; `calls`, `needs`, `bounds`, `texts`,
    `places` (the code of schemas) and the rankers are made at first use.
    """

    entries: tuple[tuple[LoadedFile, ...], ...] = ((),)
    refused: Sequence[Diagnostic] = ()
    unread: Mapping[str, TemplateFile] = field(default_factory=dict[str, TemplateFile])
    templates: Mapping[str, Template] = field(default_factory=dict[str, Template])
    diagnostics: tuple[Diagnostic, ...] = ()
    broken: frozenset[str] = frozenset()
    checked: Mapping[str, Checked] = field(default_factory=dict[str, Checked])
    unusable: tuple[TopLevel, ...] = ()
    calls: dict[str, Mapping[str, str]] = field(default_factory=dict[str, "Mapping[str, str]"])
    needs: dict[str, Needs] = field(default_factory=dict[str, "Needs"])
    bounds: dict[tuple[str, Hashable], Any] = field(default_factory=dict[Any, Any])
    ranker: Ranker | None = None
    composites: Ranker | None = None
    steps: Steps | None = None
    texts: dict[str, str] | None = None
    places: list[str] | None = None


def reread(
    root: Root, group: tuple[LoadedFile, ...], relative: str, edited: Mapping[str, str]
) -> tuple[LoadedFile, ...]:
    """The files of a root with one of them, and those that include it, read again."""
    name = os.path.basename(relative)
    is_template = name.endswith(".xml") and not name.startswith((".", "_"))
    shown = root.name_of(relative)
    entries = {entry.relative: entry for entry in group}
    for entry in group:
        if shown in entry.texts and entry.relative != relative:
            file = TemplateFile(entry.relative, entry.shown or "")
            entries[entry.relative] = read_entry(root, file, edited)
    is_there = relative in edited or os.path.isfile(os.path.join(root.folder, relative))
    if relative in entries or (is_template and is_there):
        known = entries.get(relative)
        file = TemplateFile(relative, shown if known is None else known.shown or "")
        entries[relative] = read_entry(root, file, edited)
        if not is_there:
            del entries[relative]
        elif known is None:
            entries = dict(sorted(entries.items(), key=lambda item: os.fsencode(item[0])))
    return tuple(entries.values())


def read_shipped(root: Root, before: Content, names: Iterable[str]) -> Content:
    """The content with the shipped templates `names` and those that they mention; with all shipped
    templates where there are findings.
    """
    unread = dict(before.unread)
    *groups, read = before.entries
    waiting = [*names]
    for name in waiting:
        file = unread.pop(name, None)
        if file is not None:
            entry = _shipped_entries.get((root, file.relative))
            if entry is None or not entry.is_current():
                entry = read_entry(root, file)
                _shipped_entries[root, file.relative] = entry
            read = (*read, entry)
            waiting += mentioned(entry, unread)
    read = tuple(sorted(read, key=lambda entry: os.fsencode(entry.relative)))
    after = assemble((*groups, read), before.refused, before.steps)
    after.unread = unread
    if unread and (after.diagnostics or after.broken):
        return read_shipped(root, after, unread)
    return after


# A name that is a whole value, or one of a list, or is called; a word of a sentence is neither.
_MENTION = Pattern(r"(?<=[\"'>,])\s*+(\w++)(?=\s*+[\"'<,])|(\w++)(?=\s*+\()")


def mentioned(entry: LoadedFile, names: Iterable[str]) -> list[str]:
    """Those of `names` that the texts of a file mention. A name that is spelled with entities is
    missed: it is then unknown, which is a finding.
    """
    words = {
        word for text in entry.texts.values() for pair in _MENTION.findall(text) for word in pair
    }
    return [name for name in names if name in words]


def assemble(
    groups: tuple[tuple[LoadedFile, ...], ...],
    refused: Sequence[Diagnostic],
    before: Steps | None = None,
) -> Content:
    """The library that these files make: names assigned, refs resolved, everything checked.

    What `before` computed of the same templates is used again.
    """
    claimed, broken, duplicates = _claim_names(groups)
    registry = {name: node for name, (node, _) in claimed.items()}
    unread = frozenset(broken)
    resolver = RefResolver(registry, unread, None if before is None else before.resolver)
    whole = resolver.resolve_all()
    checked = {name: Checked(list(found), {}) for name, found in resolver.diagnostics.items()}
    broken.update(checked)
    own = {name: node for name, node in whole.items() if name not in checked}
    known_broken = frozenset(broken)
    reuse: dict[str, Checked] = {}
    known_suspects: Mapping[int, tuple[Suspect, TopLevel, list[Diagnostic]]] = {}
    if before is not None:
        is_same_broken = known_broken == before.broken
        reuse = unaffected(own, before.templates, before.walked, is_same_broken=is_same_broken)
        if is_same_broken and len(reuse) == len(own) == len(before.templates):
            known_suspects = before.suspects
    walked = walk_each(own, broken=known_broken, reuse=reuse)
    # Findings that follow from other templates are added to copies.
    checked |= {
        name: Checked([*found.diagnostics], found.calls, found.edges)
        for name, found in walked.items()
    }
    add_endless_calls(checked)
    broken.update(name for name, found in checked.items() if not found.usable)
    spread(checked, resolver.refs, broken=broken)
    earlier = {} if before is None else before.made
    templates: dict[str, Template] = {}
    for name, (_, entry) in claimed.items():
        if name in broken:
            continue
        template = earlier.get(name)
        found = checked[name].diagnostics
        is_same = template is not None and template.node is whole[name]
        if template is None or not is_same or [*template.diagnostics] != found:
            template = Template(name, whole[name], entry.shown, tuple(found))
        templates[name] = template
    suspects: list[tuple[TopLevel, list[Diagnostic]]] = []
    checked_suspects: dict[int, tuple[Suspect, TopLevel, list[Diagnostic]]] = {}
    for suspect in (each for entry in chain.from_iterable(groups) for each in entry.suspects):
        known = known_suspects.get(id(suspect))
        if known is None:
            known = (suspect, *_check_suspect(suspect, resolver, whole, broken))
        checked_suspects[id(suspect)] = known
        suspects.append(known[1:])
    for name in resolver.diagnostics:
        if name in whole:
            node = whole[name]
            found = check_suspect(node, whole, broken=broken, names=None, complete=False)
            suspects.append((node, found))
    unusable = [whole[name] for name in claimed if name in broken and name in whole]
    diagnostics = [*refused, *duplicates, *chain.from_iterable(found for _, found in suspects)]
    for found in (*chain.from_iterable(groups), *checked.values()):
        diagnostics += found.diagnostics
    return Content(
        groups,
        refused,
        templates=MappingProxyType(templates),
        diagnostics=tuple(in_order(diagnostics)),
        broken=frozenset(broken),
        checked=checked,
        unusable=(*unusable, *(node for node, _ in suspects)),
        steps=Steps(resolver, own, walked, known_broken, checked_suspects, templates),
    )


def _check_suspect(
    suspect: Suspect, resolver: RefResolver, whole: Mapping[str, TopLevel], broken: set[str]
) -> tuple[TopLevel, list[Diagnostic]]:
    """The node of a template with errors of structure, and the findings that do not follow from
    them.
    """
    node = suspect.node
    names = suspect.names
    complete = suspect.complete
    found: list[Diagnostic] = []
    if isinstance(node, Task):
        resolved, found = resolver.resolve_unregistered(node)
        node = cast("Task", resolved)
        if found:
            names = None
            complete = False
    found += check_suspect(node, whole, broken=broken, names=names, complete=complete)
    return node, found


def _claim_names(
    groups: Iterable[Iterable[LoadedFile]],
) -> tuple[dict[str, tuple[TopLevel, LoadedFile]], set[str], list[Diagnostic]]:
    """The node and file of each name, the names of invalid templates, and an error for each
    duplicate name.
    """
    claimed: dict[str, tuple[TopLevel, LoadedFile]] = {}
    broken: set[str] = set()
    duplicates: list[Diagnostic] = []
    for group in groups:
        here: dict[str, Span] = {}
        for entry in group:
            for name, node in entry.templates:
                if name in here:
                    first = here[name]
                    message = (
                        f"`{name}` is already the name of a template in "
                        f"{first.file or 'this text'}, line {first.line}"
                    )
                    hint = "rename one of them; the first is used"
                    duplicates.append(
                        Diagnostic("error", "duplicate-name", message, span=node.span, hint=hint)
                    )
                    continue
                here[name] = node.span
                if name not in claimed and name not in broken:
                    claimed[name] = (node, entry)
            declared = {name for name, _ in entry.templates}
            broken.update(
                name for name in entry.names if name not in declared and name not in claimed
            )
    return claimed, broken, duplicates


def changed_names(before: Content, after: Content) -> frozenset[str]:
    """The names of templates that were added, removed or changed."""
    old = before.templates
    new = after.templates
    # A file may hold several templates; those whose nodes are equal have not changed.
    changed = {
        name
        for name in old.keys() & new.keys()
        if old[name].node is not new[name].node
        and (old[name].file != new[name].file or old[name].node != new[name].node)
    }
    return frozenset(changed | (old.keys() ^ new.keys()))
