"""One template file read: its templates, what is wrong with it, and what tells whether it changed."""

from __future__ import annotations

import os
import time
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256

from evaluator.errors import Diagnostic, EvaluatorError, TemplateError
from evaluator.library.files import Found, Root, Stamp, read_beneath, stamp_of
from evaluator.library.resolve import Includes, ReadPartial, refuse_includes
from evaluator.nodes import Span, TopLevel
from evaluator.xml.build import build
from evaluator.xml.schema import validate
from evaluator.xml.source import Source, read_source

# An edit within this time of the read may leave the stamp as it was: then the stamp proves nothing.
_SETTLED_NS = 50_000_000


@dataclass(frozen=True, slots=True)
class Entry:
    """A file as it was read. `names` also has those of its templates that have errors.

    `stamps` are the file's own and its partials', by relative path, and None where they prove nothing.
    """

    shown: str | None
    root: Root | None
    relative: str
    templates: tuple[tuple[str, TopLevel], ...] = ()
    names: tuple[str, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()
    sha256: str = ""
    texts: Mapping[str, str] = field(default_factory=dict[str, str])
    stamps: Mapping[str, Stamp] | None = None

    def is_current(self) -> bool:
        """Whether neither the file nor a partial of it has changed since it was read."""
        if self.root is None or self.stamps is None:
            return self.root is None
        return all(stamp_of(self.root, path) == stamp for path, stamp in self.stamps.items())


def read_entry(root: Root, found: Found) -> Entry:
    """The templates of one file; whatever is wrong with it is in `diagnostics`, nothing is raised."""
    entry = Entry(found.shown, root, found.relative)
    started = time.time_ns()
    try:
        data, stamp = read_beneath(root, found.relative, Span(found.shown))
    except TemplateError as error:
        return replace(entry, diagnostics=error.diagnostics)
    includes = Includes(root, found.relative, found.shown)
    entry = _parsed(entry, data, includes.read)
    digest = sha256(data)
    texts = dict(entry.texts)
    for shown, partial in includes.data.items():
        digest.update(partial)
        texts[shown] = _decoded(partial)
    stamps: dict[str, Stamp] | None = {found.relative: stamp, **includes.stamps}
    if any(started - s.mtime_ns < _SETTLED_NS for s in stamps.values()) or any(
        d.code in ("unreadable", "include-outside", "include-cycle") for d in entry.diagnostics
    ):
        stamps = None
    return replace(entry, sha256=digest.hexdigest(), texts=texts, stamps=stamps)


def read_string(text: str, file: str | None) -> Entry:
    """The templates of a text that stands in no folder; `include` is refused."""
    data = text.encode("utf-8", "surrogatepass")
    entry = _parsed(Entry(file, None, ""), text, refuse_includes)
    return replace(entry, sha256=sha256(data).hexdigest())


def _parsed(entry: Entry, data: bytes | str, read_partial: ReadPartial) -> Entry:
    key = entry.shown or ""
    try:
        source = read_source(data, entry.shown)
    except TemplateError as error:
        shown = data if isinstance(data, str) else _decoded(data)
        return replace(entry, diagnostics=error.diagnostics, texts={key: shown})
    entry = replace(entry, texts={key: source.text})
    try:
        return _built(entry, source, read_partial)
    except TemplateError as error:
        return replace(entry, diagnostics=error.diagnostics, names=_names(source, entry.relative))
    except EvaluatorError as error:
        diagnostic = Diagnostic("error", "unreadable", str(error), Span(entry.shown))
        return replace(entry, diagnostics=(diagnostic,), names=_names(source, entry.relative))


def _built(entry: Entry, source: Source, read_partial: ReadPartial) -> Entry:
    names = _names(source, entry.relative)
    found = validate(source, "task")
    wrong = [d for d in found if d.severity == "error"]
    if wrong and not _drop_invalid(source, wrong):
        return replace(entry, diagnostics=tuple(found), names=names)
    built = build(source, read_partial=read_partial)
    reasons = {d.span for d in built.diagnostics if d.code != "include"}
    # "Cannot be included" says nothing where the reason stands at the same place.
    diagnostics = [*found, *(d for d in built.diagnostics if d.code != "include" or d.span not in reasons)]
    named: list[tuple[str, TopLevel]] = []
    for node in built.templates:
        name = node.name or (_stem(entry.relative) if source.root.tag == "task" else None)
        if name is None:
            diagnostics.append(
                Diagnostic("error", "missing-name", "a template needs a name", node.span, 'add name="…"')
            )
        else:
            named.append((name, node if node.name else replace(node, name=name)))
    return replace(
        entry,
        diagnostics=tuple(diagnostics),
        templates=tuple(named),
        names=tuple(dict.fromkeys((*names, *(name for name, _ in named)))),
    )


def _drop_invalid(source: Source, wrong: Sequence[Diagnostic]) -> bool:
    """Takes the invalid members out of a library's tree; False where the library itself is invalid."""
    if source.root.tag != "library":
        return False
    members = list(source.root.iterchildren("*"))
    places = [(span.line, span.column) for span in map(source.locate, members)]
    invalid: set[int] = set()
    for diagnostic in wrong:
        member = bisect_right(places, (diagnostic.span.line, diagnostic.span.column)) - 1
        if member < 0:
            return False
        invalid.add(member)
    for number in invalid:
        source.root.remove(members[number])
    return True


def _names(source: Source, relative: str) -> tuple[str, ...]:
    """The names that a file would have declared, as far as they can be read."""
    root = source.root
    if root.tag in ("task", "template"):
        name = root.get("name") or _stem(relative)
        return (name,) if name else ()
    return tuple(name for element in root.iterchildren("task", "template") if (name := element.get("name")))


def _stem(relative: str) -> str | None:
    return os.path.splitext(os.path.basename(relative))[0] or None


def _decoded(data: bytes) -> str:
    """Bytes as text for showing a line of them."""
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    return data.decode(encoding, "replace").replace("\r\n", "\n").replace("\r", "\n")
