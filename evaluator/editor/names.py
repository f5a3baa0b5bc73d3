"""Where names are declared and used: inputs, parameters, steps, templates, profiles.

A name is a `Key`. Keys that have to be renamed together are joined: an input with the inputs inside
that take its value by name, with the arguments of calls, and with the input of a template that it
overrides by `ref`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator

from evaluator.editor.project import Document, Project, View
from evaluator.errors import UsageError
from evaluator.language.syntax import Reference
from evaluator.lazy_dataclass import frozen
from evaluator.library import TemplateLibrary
from evaluator.library.calls import calls_in
from evaluator.library.scoping import Binding, Bindings, ScopeObserver
from evaluator.library.shapes import find_part
from evaluator.nodes import Expression, Function, Input, Span, Task, Text
from evaluator.xml.tolerant import Element

Key = tuple[str, ...]
"""The kind of a name, then what tells it from others: `("input", "/p/t.xml:3:5", "doc")`,
`("parameter", "title_of", "doc")`, `("step", "/p/t.xml:1:1", "plan")`, `("template", "title_of")`,
`("profile", "fast")`, `("file", "parts/_rules.xml")`.
"""

_TEMPLATE_NAME = re.compile(r"""[^\s<>{}"']+""")
_BOUND_HERE = re.compile(r"\{%[-+]?\s*(?:for|set)\s+([^%]*?)(?:\bin\b|=|%)")


@frozen
class Site:
    """A place where a name is written."""

    path: str
    start: int
    end: int
    is_declaration: bool = False


class Names(ScopeObserver):
    """The names in some files, by where they are written."""

    def __init__(self, project: Project, paths: Iterable[str]) -> None:
        self._project = project
        self._parents: dict[Key, Key] = {}
        self.sites: dict[Site, Key] = {}
        self._scopes: list[tuple[Bindings, str]] = []
        self.references: list[tuple[Site, Reference, Binding]] = []
        self.unsound: list[str] = []
        self._documents: dict[str, Document | None] = {}
        for path in paths:
            view = project.view(path)
            if view is None:
                continue
            if not view.is_sound:
                self.unsound.append(path)
            view.watch(self)
            for node in view.nodes:
                for declared in node.inputs if isinstance(node, Task) and node.name else ():
                    argument = ("parameter", node.name or "", declared.name)
                    self._join(argument, self._key_of_input(declared))
            for element in view.document.tree.walk():
                for key, start, end, is_declaration in _names_of(element, view):
                    self._add(Site(path, start, end, is_declaration), key)

    def at(self, path: str, offset: int) -> tuple[Site, Key] | None:
        """The name at a place: where it is written, and its key."""
        for site, key in self.sites.items():
            if site.path == path and site.start <= offset <= site.end:
                return site, key
        return None

    def all_of(self, key: Key) -> list[Site]:
        """The places of a name and of those that are joined with it."""
        root = self._root(key)
        found = [site for site, other in self.sites.items() if self._root(other) == root]
        return sorted(found, key=lambda site: (site.path, site.start))

    # What a walk tells

    def text(self, value: Text | Expression, scope: Bindings) -> None:
        if isinstance(value, Expression):
            text = value.source
        else:
            text = value
        self._scopes.append((scope, text.value))
        for call in calls_in(value):
            self._add_at(text.locate(call.offset), call.name, ("template", call.name))
            for keyword in call.keywords:
                found = re.compile(rf"\b{re.escape(keyword)}(?=\s*=)").search(
                    text.value, call.offset
                )
                if found is not None:
                    key = ("parameter", call.name, keyword)
                    self._add_at(text.locate(found.start()), keyword, key)

    def reference(self, reference: Reference, text: Text, binding: Binding) -> None:
        span = text.locate(reference.offset)
        key = self._key_of(binding, reference.name)
        site = self._site(span, reference.name)
        if site is not None:
            self.references.append((site, reference, binding))
        if key is not None:
            self._add_at(span, reference.name, key)
        if reference.path and reference.name == "steps" and isinstance(binding.origin, Task):
            step = reference.path[0]
            if isinstance(step, str):
                at = text.locate(find_part(text, reference.offset, part=step))
                self._add_at(at, step, ("step", self._place(binding.origin.span), step))

    def inherited(self, declared: Input, binding: Binding) -> None:
        key = self._key_of(binding, declared.name)
        if key is not None:
            self._join(key, self._key_of_input(declared))

    # Keys

    def _key_of(self, binding: Binding, name: str) -> Key | None:
        if isinstance(binding.origin, Input):
            return self._key_of_input(binding.origin)
        if isinstance(binding.origin, Function):
            return ("parameter", binding.origin.name, name)
        return None

    def _key_of_input(self, declared: Input) -> Key:
        return ("input", self._place(declared.span), declared.name)

    def _place(self, span: Span) -> str:
        return f"{os.path.realpath(span.file or '')}:{span.line}:{span.column}"

    def _root(self, key: Key) -> Key:
        while key in self._parents:
            key = self._parents[key]
        return key

    def _join(self, one: Key, other: Key) -> None:
        roots = (self._root(one), self._root(other))
        if roots[0] != roots[1]:
            self._parents[roots[0]] = roots[1]

    def _add_at(self, span: Span, name: str, key: Key) -> None:
        site = self._site(span, name)
        if site is not None:
            self._add(site, key)

    def _site(self, span: Span, name: str) -> Site | None:
        """The site of a name at a place; None where it is not written there."""
        path = os.path.realpath(span.file or "")
        if path not in self._documents:
            self._documents[path] = self._project.document(path)
        document = self._documents[path]
        if document is None:
            return None
        start = document.offset_of(span)
        if not document.text.startswith(name, start):
            return None
        return Site(path, start, start + len(name))

    def _add(self, site: Site, key: Key) -> None:
        known = self.sites.setdefault(site, key)
        if known != key:
            self._join(known, key)

    # Renaming

    def names_beside(self, key: Key) -> set[str]:
        """The names that texts which may read this name read or bind too."""
        root = self._root(key)
        found: set[str] = set()
        for scope, text in self._scopes:
            keys = (self._key_of(binding, name) for name, binding in scope.items())
            if any(each is not None and self._root(each) == root for each in keys):
                found |= scope.keys()
                for bound in _BOUND_HERE.finditer(text):
                    found.update(re.findall(r"[^\W\d]\w*", bound[1]))
        return found


def _names_of(element: Element, view: View) -> Iterator[tuple[Key, int, int, bool]]:
    """The names in the attributes of an element: key, start, end, whether it declares the name."""
    document = view.document

    def value(owner: Element, attribute: str) -> str:
        start, end = owner.attributes[attribute]
        return document.text[start:end]

    def place(owner: Element) -> str:
        line, column = document.span_at(owner.start)
        return f"{document.path}:{line}:{column}"

    parent = element.parent
    around = "" if parent is None else parent.name
    if "name" in element.attributes:
        name = value(element, "name")
    else:
        name = ""
    name_span = element.attributes.get("name", (0, 0))
    is_top = around in ("", "library")
    if name and element.name in ("task", "template") and is_top:
        yield ("template", name), *name_span, True
    if name and element.name == "template" and "params" in element.attributes:
        start, end = element.attributes["params"]
        for found in re.compile(r"(?:^|,)\s*([^\W\d]\w*)").finditer(document.text[start:end]):
            at = start + found.start(1)
            yield ("parameter", name, found[1]), at, at + len(found[1]), True
    if name and element.name == "input" and around == "inputs":
        yield ("input", place(element), name), *name_span, True
    elif name and element.name == "input" and around == "example":
        for declared in _declarations(document, element, name):
            yield ("input", place(declared), name), *name_span, False
    if name and parent is not None and around == "steps" and parent.parent is not None:
        yield ("step", place(parent.parent), name), *name_span, True
    if element.name == "inputs" and "over" in element.attributes:
        start, end = element.attributes["over"]
        for found in re.compile(r"[^\W\d]\w*").finditer(document.text[start:end]):
            for child in element.children:
                if "name" in child.attributes and value(child, "name") == found[0]:
                    key = ("input", place(child), found[0])
                    yield key, start + found.start(), start + found.end(), False
    if name and element.name == "arg" and parent is not None and "template" in parent.attributes:
        yield ("parameter", value(parent, "template"), name), *name_span, False
    if name and element.name == "tool" and name in view.library.nodes:
        yield ("template", name), *name_span, False
    if element.name == "call" and "template" in element.attributes:
        yield ("template", value(element, "template")), *element.attributes["template"], False
    if "ref" in element.attributes:
        if element.name == "handler":
            kind = "profile"
        else:
            kind = "template"
        yield (kind, value(element, "ref")), *element.attributes["ref"], False
    if element.name == "include" and "href" in element.attributes:
        yield ("file", value(element, "href")), *element.attributes["href"], False


def _declarations(document: Document, example: Element, name: str) -> Iterator[Element]:
    """The input of that name of the task that an example belongs to."""
    for around in example.around():
        inputs = around.child("inputs")
        for child in () if inputs is None else inputs.children:
            start, end = child.attributes.get("name", (0, 0))
            if child.name == "input" and document.text[start:end] == name:
                yield child
        if inputs is not None:
            return


def files_with(project: Project, path: str, name: str) -> list[str]:
    """The files of the project that hold a word, `path` first."""
    word = re.compile(rf"(?<!\w){re.escape(name)}(?!\w)")
    found: dict[str, None] = {path: None}
    for other in project.paths():
        document = project.document(other)
        if document is not None and word.search(document.text):
            found[other] = None
    return list(found)


def declaration_of(project: Project, library: TemplateLibrary, path: str, key: Key) -> Site | None:
    """Where a name is declared; None where that is not known."""
    kind = key[0]
    if kind == "file":
        target = os.path.realpath(os.path.join(os.path.dirname(path), key[1]))
        return Site(target, 0, 0) if os.path.isfile(target) else None
    if kind == "profile":
        file = project.profiles.files.get(key[1])
        return None if file is None else Site(os.path.realpath(file), 0, 0)
    span: Span | None = None
    if kind in ("template", "parameter"):
        node = library.nodes.get(key[1])
        if node is None:
            return None
        span = node.span
        if kind == "parameter" and isinstance(node, Task):
            span = next((one.span for one in node.inputs if one.name == key[2]), span)
        file = os.path.realpath(span.file or "")
    else:
        file, line, column = key[1].rsplit(":", 2)
        span = Span(file, int(line), int(column))
    document = project.document(file)
    if document is None:
        return None
    name = key[-1]
    start = document.offset_of(span)
    element = document.tree.at(start + 1)
    if kind == "step":
        steps = element.child("steps")
        for step in [] if steps is None else steps.children:
            begin, end = step.attributes.get("name", (0, 0))
            if document.text[begin:end] == name:
                return Site(file, begin, end, is_declaration=True)
    begin, end = element.attributes.get("name", (start, start))
    if kind == "parameter" and "params" in element.attributes:
        begin, end = element.attributes["params"]
    return Site(file, begin, end, is_declaration=True)


def renamed(project: Project, path: str, offset: int, new: str) -> list[Site]:
    """The places to change so that the name at a place is `new`.

    Raises: UsageError, where that is not possible, with the reason.
    """
    found = Names(project, [path]).at(path, offset)
    if found is None:
        raise UsageError("there is no name here that can be renamed")
    _, key = found
    kind = key[0]
    if kind not in ("input", "parameter", "template", "step"):
        raise UsageError(f"a {kind} cannot be renamed from a template")
    names = Names(project, files_with(project, path, key[-1]))
    sites = names.all_of(key)
    broken = [each for each in names.unsound if any(site.path == each for site in sites)]
    broken += [each for each in names.unsound if each == path]
    if broken:
        raise UsageError(f"{broken[0]} is not well-formed; fix it first")
    if not any(site.is_declaration for site in sites):
        raise UsageError(f"`{key[-1]}` is not declared in this project")
    if kind == "template":
        if _TEMPLATE_NAME.fullmatch(new) is None:
            raise UsageError(f"{new!r} is not a name for a template")
        library = project.library_of(path) or project.library
        if new in library.nodes or new in library.broken:
            raise UsageError(f"there is a template `{new}` already")
        node = library.nodes.get(key[-1])
        if isinstance(node, Function) and not new.isidentifier():
            raise UsageError(f"{new!r} is not a name for a function: use letters, digits and _")
    elif kind != "step" and not new.isidentifier():
        raise UsageError(f"{new!r} is not a name: use letters, digits and _")
    elif kind == "step" and _TEMPLATE_NAME.fullmatch(new) is None:
        raise UsageError(f"{new!r} is not a name for a step")
    if kind == "step":
        is_taken = (*key[:-1], new) in names.sites.values()
    else:
        is_taken = new in names.names_beside(key)
    if kind != "template" and is_taken:
        raise UsageError(f"`{new}` is in scope already where `{key[-1]}` is")
    shipped = [site for site in sites if not os.access(site.path, os.W_OK)]
    if shipped:
        raise UsageError(f"{shipped[0].path} cannot be written")
    return sites
