"""Resolves `ref` and `include`, so that a template has all its parts.

A task with a `ref` takes every part that it does not have from the registered template: elements
and attributes as a whole; `handler` attribute by attribute, `context_management` dimension by
dimension, inputs by name. It keeps its own name. A part that equals the default counts as missing.
Paths of schema files, which are relative to the template's file, become absolute here.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import fields, replace
from types import MappingProxyType
from typing import Any

from evaluator.errors import Diagnostic, TemplateError
from evaluator.errors.messages import did_you_mean
from evaluator.library.calls import components, cycles, reachable
from evaluator.library.files import Root, Stamp, beneath, read_beneath
from evaluator.library.shapes import anchored
from evaluator.nodes import Expression, Function, Input, Node, Span, Task, Text, TopLevel
from evaluator.nodes.declare import FIELDS
from evaluator.nodes.walk import children, is_stand_in, replace_children, tasks
from evaluator.xml.build_context import MAX_NODE_DEPTH
from evaluator.xml.schema import validate
from evaluator.xml.source import Source, read_source

MAX_REF_NODES = 100_000
"""At most this many nodes are copied by the refs of a library."""


class RefResolver:
    """Resolves the `ref`s of templates against a registry, each template once and after its bases.

    Errors are collected by template in `diagnostics`; a template with errors resolves to its own
    parts. `refs` has the names that each template refers to, and where. `broken` are names that
    exist and cannot be used. What `earlier` resolved is taken from it where nothing has changed.
    """

    def __init__(
        self,
        registry: Mapping[str, TopLevel],
        broken: Collection[str] = (),
        earlier: RefResolver | None = None,
    ) -> None:
        self._registry = registry
        self._broken = broken
        self._done: dict[str, TopLevel] = {}
        # The template that is being resolved, those that refer to it and it to them, and one of
        # their cycles.
        self._name = ""
        self._together: Collection[str] = ()
        self._cycle: list[str] = []
        self.diagnostics: dict[str, list[Diagnostic]] = {}
        self.refs: dict[str, dict[str, Span]] = {}
        self.copied: Counter[str] = Counter()
        """The number of nodes that refs brought into each template."""
        self._sizes: dict[str, tuple[int, int]] = {}
        self._level = 0
        if earlier is not None:
            self._take(earlier)

    def _take(self, earlier: RefResolver) -> None:
        """Takes what `earlier` resolved of the templates that are the same and so are their
        bases.
        """
        bases = {base for refs in earlier.refs.values() for base in refs}
        changed = {
            name
            for name in {*self._registry, *earlier._registry, *bases}
            if self._registry.get(name) is not earlier._registry.get(name)
            or (name in self._broken) != (name in earlier._broken)
        }
        changed |= earlier.diagnostics.keys()
        users = {name for name, refs in earlier.refs.items() if refs}
        while found := {name for name in users - changed if changed & earlier.refs[name].keys()}:
            changed |= found
        for name, node in earlier._done.items():
            if name not in changed:
                self._done[name] = node
                if name in earlier.refs:
                    self.refs[name] = earlier.refs[name]
                if name in earlier.copied:
                    self.copied[name] = earlier.copied[name]

    def resolve_all(self) -> dict[str, TopLevel]:
        """Every node of the registry, resolved."""
        self._resolve(self._registry)
        return {name: self._done[name] for name in self._registry}

    def resolve_unregistered(self, node: Node) -> tuple[Node, list[Diagnostic]]:
        """`node`, which is not in the registry, with its refs resolved, and the errors."""
        self._resolve(_refs_of(node))
        self._name = ""
        self._cycle = []
        return self._node(node), self.diagnostics.pop("", [])

    def _resolve(self, names: Iterable[str]) -> None:
        graph = reachable(
            (name for name in names if name not in self._done),
            lambda name: (
                _refs_of(self._registry[name])
                if name in self._registry and name not in self._done
                else None
            ),
        )
        on_cycle = cycles(graph)
        for component in components(graph):
            self._together = frozenset(component)
            for name in component:
                self._name = name
                self._cycle = on_cycle.get(name, [])
                self._done[name] = self._node(self._registry[name])

    def _node(self, node: Any) -> Any:
        """`node` made whole with everything in it, and the paths of its schema files made
        absolute.
        """
        if isinstance(node, Task) and node.ref is not None:
            base = self._base(node, node.ref)
            if base is not None:
                node = _merge(node, base)
        if isinstance(node, Task) and node.output is not None and node.output.schema is not None:
            schema = anchored(node.output.schema, node.output.span.file)
            if schema != node.output.schema:
                node = replace(node, output=replace(node.output, schema=schema))
        if isinstance(node, Function) and node.returns is not None:
            returns = anchored(node.returns, node.span.file)
            if returns != node.returns:
                node = replace(node, returns=returns)
        self._level += 1
        try:
            return replace_children(node, self._node)
        finally:
            self._level -= 1

    def _base(self, task: Task, name: str) -> Task | None:
        span = self.refs.setdefault(self._name, {}).setdefault(name, task.span)
        base = self._registry.get(name)
        if base is None and name in self._broken:
            message = f"`ref` names `{name}`, which has errors"
            hint = f"fix `{name}` first"
            self._report("uses-broken-template", message, span=task.span, hint=hint)
        elif base is None:
            hint = did_you_mean(
                name, self._registry, otherwise="register the template, or load its folder too"
            )
            message = f"`ref` names no registered template: `{name}`"
            self._report("unknown-ref", message, span=task.span, hint=hint)
        elif self._cycle and name in self._together:
            if name == self._cycle[1]:
                self._report("ref-cycle", f"`ref` is a cycle: {' → '.join(self._cycle)}", span=span)
        elif isinstance(base, Function):
            hint = f'call it instead: <call template="{name}">'
            message = f"`ref` names a function: `{name}`"
            self._report("ref-not-a-task", message, span=task.span, hint=hint)
        elif type(base) is not type(task):
            message = (
                f"`ref` names a task of type {base.type}, and this one is {task.type}: `{name}`"
            )
            hint = f'write type="{base.type}"'
            self._report("ref-type-mismatch", message, span=task.span, hint=hint)
        else:
            whole = self._done[name]
            if isinstance(whole, Task) and self._admits(task, name, base=whole):
                return whole
        return None

    def _admits(self, task: Task, name: str, base: Task) -> bool:
        """Whether the bounds allow another copy of `base`."""
        if name not in self._sizes:
            self._sizes[name] = _size_of(base)
        nodes, height = self._sizes[name]
        self.copied[self._name] += nodes
        if self.copied.total() > MAX_REF_NODES:
            code = "too-large"
            message = (
                f"the `ref`s of this library bring in more than {MAX_REF_NODES:,} tasks, at "
                "this one"
            )
        elif self._level + height > MAX_NODE_DEPTH:
            code = "too-deep"
            message = (
                "with the parts that `ref` brings in, tasks are nested more than "
                f"{MAX_NODE_DEPTH} deep"
            )
        else:
            return True
        hint = "call the template instead of copying its parts"
        self._report(code, message, span=task.span, hint=hint)
        return False

    def _report(self, code: str, message: str, span: Span, hint: str | None = None) -> None:
        found = self.diagnostics.setdefault(self._name, [])
        diagnostic = Diagnostic("error", code, message=message, span=span, hint=hint)
        if diagnostic not in found:
            found.append(diagnostic)


def _refs_of(node: TopLevel | Node) -> dict[str, Span]:
    """The names that the tasks in `node` refer to, and where."""
    found: dict[str, Span] = {}
    for task in tasks(node):
        if task.ref is not None:
            found.setdefault(task.ref, task.span)
    return found


def _size_of(node: Node) -> tuple[int, int]:
    """The number of nodes in `node`, and how deep they are nested."""
    nodes = height = 0
    waiting = [(node, 1)]
    while waiting:
        one, level = waiting.pop()
        nodes = nodes + 1
        height = max(height, level)
        waiting += [(child, level + 1) for child in children(one)]
    return nodes, height


_KEPT = frozenset({"name", "ref", "inputs"})


def _merge(own: Task, base: Task) -> Task:
    changes: dict[str, Any] = {"inputs": _merge_inputs(own.inputs, base.inputs)}
    for field in FIELDS[type(own)]:
        mine = getattr(own, field.name)
        theirs = getattr(base, field.name)
        if field.name in _KEPT:
            continue
        if field.form == "fields" and mine is not None and theirs is not None:
            silent = [one.name for one in fields(mine) if getattr(mine, one.name) is None]
            changes[field.name] = replace(mine, **{name: getattr(theirs, name) for name in silent})
        elif not _is_stated(mine, field.default):
            changes[field.name] = theirs
            if field.name == "tools":
                changes["tool_spans"] = base.tool_spans
    return replace(own, **changes)


def _is_stated(value: object, default: object) -> bool:
    if value is None or value == () or value == default or is_stand_in(value):
        return False
    return not (isinstance(value, Text | Expression) and not value.source.value.strip())


def _merge_inputs(own: tuple[Input, ...], base: tuple[Input, ...]) -> tuple[Input, ...]:
    """The base's inputs in their order, each with what the own one of that name says; then the
    other own.
    """
    mine = {declared.name: declared for declared in own}
    merged: list[Input] = []
    for theirs in base:
        declared = mine.pop(theirs.name, None)
        if declared is None:
            merged.append(theirs)
            continue
        if declared.source is None and declared.task is None and declared.default is None:
            value = theirs
        else:
            value = declared
        merged.append(
            replace(
                declared,
                type=theirs.type if declared.type == "any" else declared.type,
                required=declared.required and theirs.required,
                default=value.default,
                source=value.source,
                task=value.task,
                description=declared.description or theirs.description,
            )
        )
    return (*merged, *mine.values())


class Includes:
    """Reads the partials that one template file includes, directly or through other partials.

    `href` is relative to the including file and must stay inside its library folder, on a path
    without links. `read` records the stamp and the bytes of every partial. It raises TemplateError,
    at the `<include>` or, where the partial is not valid, at its own places. Whether includes form
    a cycle is checked in `xml.build`.
    """

    def __init__(
        self,
        root: Root,
        relative: str,
        shown: str,
        edited: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`edited` are the texts of files that are not stored yet, by their paths below the
        root.
        """
        self._root = root
        self._edited = edited
        self._paths = {shown: relative}
        self.stamps: dict[str, Stamp] = {}
        self.data: dict[str, bytes | str] = {}

    def read(self, href: str, span: Span) -> Source:
        including = self._paths.get(span.file or "", "")
        target = self._target(href, including, span=span)
        shown = self._root.name_of(target)
        if target in self._edited:
            self.data[shown] = self._edited[target]
        else:
            self.data[shown], self.stamps[target] = read_beneath(self._root, target, at=span)
        self._paths[shown] = target
        source = read_source(self.data[shown], shown)
        found = validate(source, "task")
        if found:
            raise TemplateError(found)
        return source

    def _target(self, href: str, including: str, span: Span) -> str:
        folder = os.path.dirname(os.path.join(self._root.folder, including))
        if href.strip():
            target = os.path.normpath(os.path.join(folder, href))
        else:
            target = ""
        inside = beneath(self._root.folder, target)
        if inside is None or os.path.isabs(href) or "\0" in href:
            message = f"`include` leaves the library folder: {href!r}"
            hint = "write a path relative to this file, inside the folder that was loaded"
            raise TemplateError.of("include-outside", message, span=span, hint=hint)
        return inside


def refuse_includes(href: str, span: Span) -> Source:
    """Raises TemplateError: a template read from a string has no folder that a partial could be
    in.
    """
    message = f"`include` needs a file: {href!r} has no folder to be relative to"
    raise TemplateError.of("include-outside", message, span=span)


ReadPartial = Callable[[str, Span], Source]
