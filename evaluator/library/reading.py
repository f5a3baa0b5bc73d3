"""Reads one template file: its templates, its findings, and what shows whether it has changed.

Formats a diagnostic for a person: place, message, the offending line with a caret, the hint.
"""

from __future__ import annotations

import os
import re
import unicodedata
from bisect import bisect_right
from collections.abc import Mapping, Set
from dataclasses import field, replace
from types import MappingProxyType

from evaluator import clock
from evaluator.errors import Diagnostic, TemplateError
from evaluator.lazy_dataclass import frozen
from evaluator.library.files import Root, Stamp, TemplateFile, read_beneath, stamp_of
from evaluator.library.resolve import Includes, ReadPartial, refuse_includes
from evaluator.nodes import Span, TopLevel
from evaluator.patterns import Pattern
from evaluator.xml.build import BuildResult, build
from evaluator.xml.schema import MAX_FINDINGS, Recovered, recover
from evaluator.xml.source import Source, normalise_newlines, read_source

# An edit within this time of the read may leave the stamp unchanged, so such a stamp proves
# nothing.
_SETTLED_NS = 50_000_000
# After these a file may have to be read again although neither it nor a partial that was read has
# changed.
_UNSETTLED_CODES = frozenset({"unreadable", "include-outside", "include-cycle"})


@frozen
class Suspect:
    """A template with errors of structure, as far as it could be read: to be checked, never to be
    used.

    `names` are the names that its file declares, which may be missing in `node`; None where others
    may be declared too. `complete`: all of its elements and attributes are in `node`.
    """

    node: TopLevel
    names: frozenset[str] | None
    complete: bool


@frozen
class LoadedFile:
    """The content of one file when it was read. `names` includes those of templates with errors.

    `texts` are its own text and those of its partials, by their names in diagnostics. `stamps` are
    theirs by relative path; None where they prove nothing.
    """

    shown: str | None
    root: Root | None
    relative: str
    templates: tuple[tuple[str, TopLevel], ...] = ()
    names: tuple[str, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()
    texts: dict[str, str] = field(default_factory=dict[str, str])
    stamps: Mapping[str, Stamp] | None = None
    suspects: tuple[Suspect, ...] = ()

    def is_current(self) -> bool:
        """Whether neither the file nor a partial of it has changed since it was read."""
        if self.root is None or self.stamps is None:
            return False
        return all(stamp_of(self.root, path) == stamp for path, stamp in self.stamps.items())


def read_entry(
    root: Root, found: TemplateFile, edited: Mapping[str, str] = MappingProxyType({})
) -> LoadedFile:
    """The templates of one file; whatever is wrong with it is in `diagnostics`, nothing is
    raised. `edited` are the texts of files that are not stored yet, by their paths below the root.
    """
    entry = LoadedFile(found.shown, root, relative=found.relative)
    includes = Includes(root, found.relative, shown=found.shown, edited=edited)
    if found.relative in edited:
        entry = _parsed(entry, edited[found.relative], read_partial=includes.read)
        return replace(entry, texts=entry.texts | _texts_of(includes))
    started = clock.wall_ns()
    try:
        data, stamp = read_beneath(root, found.relative, at=Span(found.shown))
    except TemplateError as error:
        return replace(entry, diagnostics=error.diagnostics, names=_names_in("", found.relative))
    entry = _parsed(entry, data, read_partial=includes.read)
    stamps = {found.relative: stamp, **includes.stamps}
    is_settled = (
        all(started - changed_ns >= _SETTLED_NS for changed_ns, _, _ in stamps.values())
        and not edited
        and _UNSETTLED_CODES.isdisjoint(d.code for d in entry.diagnostics)
    )
    entry = replace(entry, texts=entry.texts | _texts_of(includes))
    if is_settled:
        return replace(entry, stamps=stamps)
    return entry


def _texts_of(includes: Includes) -> dict[str, str]:
    return {shown: _decoded(data) for shown, data in includes.data.items()}


def read_string(text: str, file: str | None) -> LoadedFile:
    """The templates of a text that is not in a folder; `include` is refused."""
    return _parsed(LoadedFile(file, None, relative=""), text, read_partial=refuse_includes)


def _parsed(entry: LoadedFile, data: bytes | str, read_partial: ReadPartial) -> LoadedFile:
    """`entry` with what the file contains."""
    key = entry.shown or ""
    try:
        source = read_source(data, entry.shown)
    except TemplateError as error:
        text = _decoded(data)
        names = _names_in(text, entry.relative)
        return replace(entry, diagnostics=error.diagnostics, texts={key: text}, names=names)
    entry = replace(entry, texts={key: source.text}, names=_names(source, entry.relative))
    roots = [source.root]
    if source.root.tag == "library":
        roots = source.root.iterchildren("*")
    members = [source.locate(element) for element in roots]
    recovered = recover(source)
    found = sorted(recovered.diagnostics, key=lambda one: (one.span.line, one.span.column))
    if len(found) >= MAX_FINDINGS:
        message = (
            f"at least {MAX_FINDINGS} errors in this file; nothing of it is used, and no "
            "other error is shown"
        )
        found.append(Diagnostic("error", "too-many-errors", message=message, span=found[-1].span))
        return replace(entry, diagnostics=tuple(found))
    if source.root.tag not in ("task", "template", "library", "partial"):
        return replace(entry, diagnostics=tuple(found))
    built = build(source, read_partial=read_partial)
    reasons = {d.span for d in built.diagnostics if d.code != "include"}
    # "Cannot be included" adds nothing if the reason is reported at the same place.
    found += [
        d
        for d in built.diagnostics
        if (d.code != "include" or d.span not in reasons)
        and not (d.span.file == entry.shown and recovered.follows(d))
    ]
    invalid = _invalid_members(source, members, recovered)
    usable = [n for n in built.templates if n.span.file != entry.shown or n.span not in invalid]
    suspects = _suspects(source, built, recovered, usable)
    templates: list[tuple[str, TopLevel]] = []
    for node in usable:
        name = node.name or (_stem(entry.relative) if source.root.tag == "task" else None)
        if name is None:
            message = "a template needs a name"
            hint = 'add name="…"'
            found.append(
                Diagnostic("error", "missing-name", message=message, span=node.span, hint=hint)
            )
        else:
            templates.append((name, node if node.name else replace(node, name=name)))
    names = dict.fromkeys((*entry.names, *(name for name, _ in templates)))
    return replace(
        entry,
        templates=tuple(templates),
        names=tuple(names),
        diagnostics=tuple(found),
        suspects=suspects,
    )


def _invalid_members(source: Source, members: list[Span], recovered: Recovered) -> Set[Span]:
    """The places of the members that violate the schema; all of them where the library itself
    does.
    """
    places = [(span.line, span.column) for span in members]
    invalid: set[Span] = set()
    for element in recovered.invalid:
        if element is source.root:
            return set(members)
        span = source.locate(element)
        member = bisect_right(places, (span.line, span.column)) - 1
        invalid.add(members[member])
    return invalid


_DECLARED_NAMES = Pattern(r"""\b(?:name|params)\s*=\s*("[^"]*"|'[^']*')""")
_WORD = re.compile(r"[^\W\d]\w*")


def _suspects(
    source: Source, built: BuildResult, recovered: Recovered, usable: list[TopLevel]
) -> tuple[Suspect, ...]:
    known = {id(node) for node in usable}
    every = (*built.templates, *built.rejected)
    invalid = [node for node in every if id(node) not in known]
    if not invalid:
        return ()
    rejected = {id(node) for node in built.rejected}
    names: frozenset[str] | None = None
    trouble = {d.code for d in built.diagnostics if d.severity == "error"}
    if not recovered.nameless and not any(code.startswith("include") for code in trouble):
        declared = _DECLARED_NAMES.findall(source.text)
        names = frozenset(word for value in declared for word in _WORD.findall(value))
    return tuple(
        Suspect(node, names, complete=recovered.complete and id(node) not in rejected)
        for node in invalid
    )


def _names(source: Source, relative: str) -> tuple[str, ...]:
    """The names of the templates in a file, also of invalid ones."""
    root = source.root
    if root.tag in ("task", "template"):
        name = root.get("name") or _stem(relative)
        if name:
            return (name,)
        return ()
    return tuple(
        name for element in root.iterchildren("task", "template") if (name := element.get("name"))
    )


def _names_in(text: str, relative: str) -> tuple[str, ...]:
    """The names that a file claims although it cannot be parsed, so that no later folder's template
    takes its place.

    In a library these are all names in it: what is a member and what is a step cannot be told any
    more.
    """
    from evaluator.xml.lenient import read_tree
    from evaluator.xml.vocabulary import task_vocabulary

    roots = read_tree(text, task_vocabulary()).roots
    if roots and roots[0].name == "library":
        every = (element for root in roots for element in root.walk())
        found = [each.attributes.get("name") for each in every if each.name in ("task", "template")]
    else:
        is_template = bool(roots) and roots[0].name in ("task", "template")
        found = [(is_template and roots[0].attributes.get("name")) or _stem(relative)]
    return tuple(dict.fromkeys(name for name in found if name))


def _stem(relative: str) -> str | None:
    return os.path.splitext(os.path.basename(relative))[0] or None


def _decoded(data: bytes | str) -> str:
    """`data` as text, to show a line of it."""
    if isinstance(data, str):
        return data
    encoding = "utf-8-sig"
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        encoding = "utf-16"
    return normalise_newlines(data.decode(encoding, "replace"))


_WIDTH = 160


def excerpt(line: str, column: int) -> str:
    """`line` and a caret under its `column` (from 1), cut to a readable width around it.

    Control characters are shown as `?`, so that a hostile file cannot control a terminal.
    """
    column = max(1, min(column, len(line) + 1))
    start = 0
    if len(line) > _WIDTH:
        start = max(0, min(column - 1 - _WIDTH // 2, len(line) - _WIDTH))
        line = line[start : start + _WIDTH]
    shown = "".join(c if c == "\t" or c.isprintable() else "?" for c in line)
    pad = "".join(_blank(c) for c in shown[: column - 1 - start])
    return f"    {shown}\n    {pad}^"


def _blank(character: str) -> str:
    if character == "\t":
        return "\t"
    if unicodedata.combining(character):
        return ""
    if unicodedata.east_asian_width(character) in "WF":
        return "  "
    return " "


def format_with_line(diagnostic: Diagnostic, line: str | None) -> str:
    """The diagnostic over several lines; without an excerpt where the source has no such line."""
    parts = [f"{diagnostic.span}: {diagnostic.severity}: {diagnostic.message} [{diagnostic.code}]"]
    if line is not None:
        parts.append(excerpt(line, diagnostic.span.column))
    if diagnostic.hint:
        parts.append(f"  hint: {diagnostic.hint}")
    return "\n".join(parts)
