"""The project that an editor shows: its templates with the texts that are open, and what `lint`
finds in them.

Each change of a text is read at once; only what depends on it is checked again.

Texts in an editor, and places in them as the Language Server Protocol counts them.

Lines of the protocol end with `\\n`, `\\r\\n` or `\\r`, which the reader of templates makes `\\n`;
so lines are the same. Columns are counted in units of the encoding that the client has chosen;
the reader counts characters.

Source: Language Server Protocol 3.17, "Text Documents" and "Position".
"""

from __future__ import annotations

import gc
import os
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path

from lsprotocol import types

from evaluator.authoring.portraits import price_of
from evaluator.errors import Diagnostic, TemplateError
from evaluator.files.locations import shipped
from evaluator.handler.profiles import Profiles, load_profiles
from evaluator.interpreter.linting import Linter
from evaluator.lazy_dataclass import dataclass
from evaluator.library import TemplateLibrary
from evaluator.library.bounds import CallCounter
from evaluator.library.files import beneath
from evaluator.library.scoping import ScopeObserver, ScopeWalk
from evaluator.nodes import Node, Span, TopLevel
from evaluator.nodes.walk import descendants
from evaluator.xml.schema import validate
from evaluator.xml.source import normalise_newlines, read_source
from evaluator.xml.tolerant import Element, complete, read_tree
from evaluator.xml.vocabulary import ROOTS

Encoding = types.PositionEncodingKind | str


class Document:
    """The text of a file at one moment, with `\\n` as line ends, and its elements as far as they
    can be told.
    """

    def __init__(
        self, path: str, text: str, encoding: Encoding, version: int | None = None
    ) -> None:
        self.path = path
        self.text = normalise_newlines(text.removeprefix("\ufeff"))
        self.version = version
        self._encoding = encoding

    @cached_property
    def tree(self) -> Element:
        return read_tree(self.text)

    @cached_property
    def _starts(self) -> list[int]:
        starts = [0]
        while (found := self.text.find("\n", starts[-1])) >= 0:
            starts.append(found + 1)
        return starts

    def offset(self, position: types.Position) -> int:
        """The offset of a place; one beyond the end of a line is its end."""
        if position.line >= len(self._starts):
            return len(self.text)
        start = self._starts[position.line]
        end = self.text.find("\n", start)
        line = self.text[start : end if end >= 0 else len(self.text)]
        return start + _characters(line, position.character, self._encoding)

    def position(self, offset: int) -> types.Position:
        line = bisect_right(self._starts, offset) - 1
        before = self.text[self._starts[line] : offset]
        return types.Position(line, _units(before, self._encoding))

    def range(self, start: int, end: int) -> types.Range:
        return types.Range(self.position(start), self.position(end))

    def offset_of(self, span: Span) -> int:
        """The offset of a place that the reader reports."""
        if span.line > len(self._starts):
            return len(self.text)
        return min(self._starts[span.line - 1] + span.column - 1, len(self.text))

    def span_at(self, offset: int) -> tuple[int, int]:
        """Line and column of an offset, as the reader counts them."""
        line = bisect_right(self._starts, offset)
        return line, offset - self._starts[line - 1] + 1

    def word_end(self, offset: int) -> int:
        """Where the word at `offset` ends; one character further where there is no word."""
        end = offset
        while end < len(self.text) and (self.text[end].isalnum() or self.text[end] in "_-"):
            end += 1
        return max(end, min(offset + 1, len(self.text)))


def _units(text: str, encoding: Encoding) -> int:
    """The length of `text` in the units of an encoding."""
    if encoding == types.PositionEncodingKind.Utf32 or text.isascii():
        return len(text)
    if encoding == types.PositionEncodingKind.Utf8:
        return len(text.encode("utf-8", "surrogatepass"))
    return len(text) + sum(character > "\uffff" for character in text)


def _characters(line: str, units: int, encoding: Encoding) -> int:
    """The number of characters in the first `units` of a line."""
    if encoding == types.PositionEncodingKind.Utf32 or line.isascii():
        return min(units, len(line))
    counted = 0
    for index, character in enumerate(line):
        if counted >= units:
            return index
        counted += _units(character, encoding)
    return len(line)


MAX_SHOWN_CHARS = 1_000_000
"""Of a longer text only the findings are shown."""


@dataclass(frozen=True)
class View:
    """What is known about a file: its text, and its templates as far as they can be read.

    `is_sound`: the text is well-formed, so places of `nodes` are exact.
    """

    document: Document
    library: TemplateLibrary
    nodes: tuple[TopLevel, ...]
    is_sound: bool

    @cached_property
    def by_place(self) -> Mapping[tuple[int, int], TopLevel | Node]:
        """The nodes of this file by line and column."""
        shown = {node.span.file for node in self.nodes}
        return {
            (each.span.line, each.span.column): each
            for node in self.nodes
            for each in descendants(node)
            if each.span.file in shown
        }

    def node_of(self, element: Element) -> TopLevel | Node | None:
        """The node that an element is; None where it is not a node."""
        return self.by_place.get(self.document.span_at(element.start))

    def watch(self, observer: ScopeObserver) -> None:
        """Walks the templates of the file with `observer`."""
        for node in self.nodes:
            ScopeWalk(self.library.nodes, observer=observer).top(node)


class Project:
    """The templates of a folder. `folder` is the current folder of the process, as it is for
    `lint`: `templates/` and `handlers/` in it belong to the project.

    A file elsewhere has a library of its own. `model` is the one that prices are for.
    """

    def __init__(self, folder: Path, encoding: Encoding, model: str | None = None) -> None:
        self.folder = folder
        self.encoding = encoding
        self.model = model
        self.documents: dict[str, Document] = {}
        self._views: dict[str, View] = {}
        self._others: dict[str, tuple[TemplateLibrary, Linter]] = {}
        self.reload()

    def reload(self) -> None:
        """Reads all files again; texts that are open stay as they are in the editor."""
        self.profiles: Profiles = load_profiles(trust=True)
        folders = [folder for folder in ("templates",) if os.path.isdir(folder)]
        self.library = TemplateLibrary.load(*folders)
        self._linter = Linter(self.profiles)
        self._others = {}
        self._views = {}
        for path, document in self.documents.items():
            self._edit(path, document.text)
        explain_once()
        # The templates stay for the life of the process; collections need not look at them.
        gc.collect()
        gc.freeze()

    # Texts

    def open(self, path: str, text: str, version: int | None) -> None:
        """Takes the text of a file in place of the stored one."""
        document = Document(path, text, self.encoding, version)
        self.documents[path] = document
        self._edit(path, document.text)

    def close(self, path: str) -> None:
        """Takes the stored text of a file again."""
        self.documents.pop(path, None)
        self._edit(path, None)
        self._others.pop(path, None)

    def _edit(self, path: str, text: str | None) -> None:
        library = self.library_of(path)
        if library is not None:
            library.edit(path, text)
        self._views = {}

    def document(self, path: str) -> Document | None:
        """The text of a file as the editor has it, else as it is stored; None if it cannot be
        read.
        """
        if path in self.documents:
            return self.documents[path]
        try:
            return Document(path, Path(path).read_text("utf-8-sig"), self.encoding)
        except (OSError, ValueError):
            return None

    def library_of(self, path: str) -> TemplateLibrary | None:
        """The library that a file belongs to; None for one that is not stored yet, and for one
        outside of the project's templates that does not begin as a template.
        """
        if any(beneath(str(folder), path) is not None for folder in self.library.folders):
            return self.library
        document = self.document(path)
        if document is None:
            elements = []
        else:
            elements = document.tree.children
        if not elements or elements[0].name not in ROOTS:
            self._others.pop(path, None)
            return None
        if path not in self._others:
            if not os.path.isfile(path):
                return None
            self._others[path] = (TemplateLibrary.load(path), Linter(self.profiles))
        return self._others[path][0]

    def paths(self) -> Iterator[str]:
        """The files of the project's templates, and those that are open; without what ships."""
        own = os.path.realpath("templates")
        shipped_folder = str(shipped("templates").resolve())
        found: dict[str, None] = {}
        for name in self.library.files:
            path = os.path.realpath(name)
            if own == shipped_folder or beneath(shipped_folder, path) is None:
                found[path] = None
        yield from found | dict.fromkeys(self.documents)

    # Findings

    def findings(self) -> dict[str, list[Diagnostic]]:
        """What `lint` finds, by the path of the file."""
        found: dict[str, list[Diagnostic]] = {}
        for file, diagnostics in self._linter.lint(self.library).items():
            if file:
                found[os.path.realpath(file)] = diagnostics
        for path, (library, linter) in self._others.items():
            for file, diagnostics in linter.lint(library).items():
                if file and os.path.realpath(file) == path:
                    found[path] = diagnostics
        return found

    # Templates

    def view(self, path: str) -> View | None:
        """What is known about a file; None if it is not one of templates, or too long."""
        if path not in self._views:
            document = self.document(path)
            library = self.library_of(path)
            if document is None or library is None or len(document.text) > MAX_SHOWN_CHARS:
                return None
            self._views[path] = _view(document, library)
        return self._views[path]

    def view_of_text(self, path: str, text: str) -> View | None:
        """What would be known about a file with another text."""
        library = self.library_of(path)
        if library is None:
            return None
        return _view(Document(path, text, self.encoding), library)

    def cost(self, library: TemplateLibrary, node: TopLevel | Node) -> str:
        """The most model calls of a run of `node`, and the most that they cost, in words."""
        limit = CallCounter(library).bound(node)
        calls = limit.of_model_calls()
        if limit.max_calls == 0:
            return calls
        return f"{calls}; {price_of(library, self.profiles, node, self.model)}"


def explain_once() -> None:
    """Prepares the explanation of schema errors, which takes as long as 50 keystrokes at its first
    use.
    """
    validate(read_source("<task nam=''/>"), "task")


def _view(document: Document, library: TemplateLibrary) -> View:
    text: str | None = document.text
    is_sound = True
    try:
        read_source(document.text, document.path)
    except TemplateError:
        text = complete(document.text)
        is_sound = False
    if text is None:
        nodes = ()
    else:
        nodes = library.nodes_at(document.path, text)
    return View(document, library, nodes, is_sound)
