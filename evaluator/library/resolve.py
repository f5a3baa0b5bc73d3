"""`ref` and `include`: templates made whole from their parts.

A task with a `ref` takes every part that it does not state from the registered template: elements and
attributes as a whole; `handler` attribute by attribute, `context_management` dimension by dimension, inputs
by name. It keeps its own name. A stated part that equals the default counts as not stated. Paths of schema
files, which are relative to the template's file, become absolute here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, fields, replace
from itertools import pairwise
from typing import Any

from evaluator.errors import Diagnostic, TemplateError
from evaluator.library.files import Root, Stamp, beneath, read_beneath
from evaluator.library.near import did_you_mean
from evaluator.library.shapes import anchored
from evaluator.nodes import (
    Call,
    Case,
    Cond,
    DirectorEvaluatorLoop,
    Function,
    Input,
    Node,
    Reduce,
    Sequential,
    Span,
    Task,
    Text,
    TopLevel,
)
from evaluator.xml.build import is_stand_in
from evaluator.xml.schema import validate
from evaluator.xml.source import Source, read_source


class RefResolver:
    """Resolves the `ref`s of templates against a registry, each template once.

    `resolve(name)` returns the whole node. What is wrong is collected per template in `diagnostics`; a
    template with errors resolves to what it states itself. `refs` has the names that each one refers to, and
    where. `broken` are names that exist and cannot be used.
    """

    def __init__(self, registry: Mapping[str, TopLevel], broken: Collection[str] = ()) -> None:
        self._registry = registry
        self._broken = broken
        self._done: dict[str, TopLevel] = {}
        self._stack: list[str] = []
        self.diagnostics: dict[str, list[Diagnostic]] = {}
        self.refs: dict[str, dict[str, Span]] = {}

    def resolve(self, name: str) -> TopLevel:
        done = self._done.get(name)
        if done is not None:
            return done
        node = self._registry[name]
        self._stack.append(name)
        try:
            if isinstance(node, Function):
                body = self._node(node.body)
                returns = None if node.returns is None else anchored(node.returns, node.span.file)
                same = body is node.body and returns == node.returns
                whole: TopLevel = node if same else replace(node, body=body, returns=returns)
            else:
                whole = self._task(node)
        finally:
            self._stack.pop()
        self._done[name] = whole
        return whole

    def resolve_unregistered(self, node: Node) -> tuple[Node, list[Diagnostic]]:
        """`node`, which is not in the registry, made whole."""
        self._stack.append("")
        try:
            return self._node(node), self.diagnostics.pop("", [])
        finally:
            self._stack.pop()

    def _node(self, node: Node) -> Node:
        if isinstance(node, Call):
            return node
        if isinstance(node, Cond):
            return self._cond(node)
        return self._task(node)

    def _cond(self, node: Cond) -> Cond:
        cases = tuple(self._case(case) for case in node.cases)
        default = None if node.default is None else self._node(node.default)
        if default is node.default and all(a is b for a, b in zip(cases, node.cases, strict=True)):
            return node
        return replace(node, cases=cases, default=default)

    def _case(self, case: Case) -> Case:
        body = self._node(case.body)
        return case if body is case.body else replace(case, body=body)

    def _task(self, task: Task) -> Task:
        if task.ref is not None:
            base = self._base(task, task.ref)
            if base is not None:
                task = _merge(task, base)
        changes: dict[str, Any] = {}
        if task.output is not None and task.output.schema is not None:
            schema = anchored(task.output.schema, task.output.span.file)
            if schema != task.output.schema:
                changes["output"] = replace(task.output, schema=schema)
        inputs = tuple(self._input(declared) for declared in task.inputs)
        if any(a is not b for a, b in zip(inputs, task.inputs, strict=True)):
            changes["inputs"] = inputs
        if isinstance(task, Sequential):
            steps = tuple(self._node(step) for step in task.steps)
            if any(a is not b for a, b in zip(steps, task.steps, strict=True)):
                changes["steps"] = steps
        else:
            for name in _CHILDREN.get(type(task), ()):
                child = getattr(task, name)
                whole = None if child is None else self._node(child)
                if whole is not child:
                    changes[name] = whole
        return replace(task, **changes) if changes else task

    def _input(self, declared: Input) -> Input:
        if declared.task is None:
            return declared
        task = self._node(declared.task)
        return declared if task is declared.task else replace(declared, task=task)

    def _base(self, task: Task, name: str) -> Task | None:
        self.refs.setdefault(self._stack[-1], {}).setdefault(name, task.span)
        base = self._registry.get(name)
        if base is None and name in self._broken:
            message = f"`ref` names `{name}`, which has errors"
            self._report("uses-broken-template", message, task.span, f"mend `{name}` first")
        elif base is None:
            hint = did_you_mean(name, self._registry, "register the template, or load its folder too")
            self._report("unknown-ref", f"`ref` names no registered template: `{name}`", task.span, hint)
        elif name in self._stack:
            self._report_cycle([*self._stack[self._stack.index(name) :], name])
        elif isinstance(base, Function):
            hint = f'call it instead: <call template="{name}">'
            self._report("ref-not-a-task", f"`ref` names a function: `{name}`", task.span, hint)
        elif type(base) is not type(task):
            message = f"`ref` names a task of type {base.type}, and this one is {task.type}: `{name}`"
            self._report("ref-type-mismatch", message, task.span, f'write type="{base.type}"')
        else:
            whole = self.resolve(name)
            assert isinstance(whole, Task)
            return whole
        return None

    def _report_cycle(self, cycle: list[str]) -> None:
        """An error for each member, at its own `ref`."""
        for place, (name, target) in enumerate(pairwise(cycle)):
            chain = " → ".join([*cycle[place:], *cycle[1 : place + 1]])
            message = f"`ref` leads back to where it began: {chain}"
            found = Diagnostic("error", "ref-cycle", message, self.refs[name][target])
            self.diagnostics.setdefault(name, []).append(found)

    def _report(self, code: str, message: str, span: Span, hint: str | None = None) -> None:
        found = self.diagnostics.setdefault(self._stack[-1], [])
        diagnostic = Diagnostic("error", code, message, span, hint)
        if diagnostic not in found:
            found.append(diagnostic)


_CHILDREN: dict[type[Task], tuple[str, ...]] = {
    Reduce: ("inner_task", "reduction_task"),
    DirectorEvaluatorLoop: ("director", "script_execution", "evaluator"),
}
_KEPT = frozenset({"name", "ref", "span"})


def _merge(own: Task, base: Task) -> Task:
    changes: dict[str, Any] = {}
    for declared in fields(own):
        if declared.name in _KEPT:
            continue
        mine, theirs = getattr(own, declared.name), getattr(base, declared.name)
        if declared.name == "inputs":
            changes["inputs"] = _merge_inputs(own.inputs, base.inputs)
        elif declared.name in ("handler", "context") and mine is not None and theirs is not None:
            changes[declared.name] = _merge_settings(mine, theirs)
        elif not _stated(mine, MISSING if declared.default is MISSING else declared.default):
            changes[declared.name] = theirs
    return replace(own, **changes)


def _stated(value: object, default: object) -> bool:
    if value is None or value == () or value == default:
        return False
    if isinstance(value, Call) and is_stand_in(value):
        return False
    return not (isinstance(value, Text) and not value.value.strip())


def _merge_settings(own: Any, base: Any) -> Any:
    silent = {f.name: getattr(base, f.name) for f in fields(own) if getattr(own, f.name) is None}
    return replace(own, **silent)


def _merge_inputs(own: tuple[Input, ...], base: tuple[Input, ...]) -> tuple[Input, ...]:
    """The base's inputs in their order, each with what the own one of that name says; then the other own."""
    mine = {declared.name: declared for declared in own}
    known = {declared.name for declared in base}
    merged = [_merge_input(mine[b.name], b) if b.name in mine else b for b in base]
    return (*merged, *(declared for declared in own if declared.name not in known))


def _merge_input(own: Input, base: Input) -> Input:
    gives_value = own.source is not None or own.task is not None or own.default is not None
    return replace(
        own,
        type=base.type if own.type == "any" else own.type,
        required=own.required and base.required,
        default=own.default if gives_value else base.default,
        source=own.source if gives_value else base.source,
        task=own.task if gives_value else base.task,
        description=own.description or base.description,
    )


class Includes:
    """Reads the partials that one template file includes, directly or through other partials.

    `href` is relative to the including file and must stay inside its library folder, on a path without links.
    `read` records the stamp and the bytes of every partial. It raises TemplateError, at the `<include>` or,
    where the partial is not valid, at its own places.
    """

    def __init__(self, root: Root, relative: str, shown: str) -> None:
        self._root = root
        self._paths = {shown: relative}
        self._edges: dict[str, set[str]] = {}
        self.stamps: dict[str, Stamp] = {}
        self.data: dict[str, bytes] = {}

    def read(self, href: str, span: Span) -> Source:
        including = self._paths.get(span.file or "", "")
        target = self._target(href, including, span)
        if target == including or self._leads(target, including):
            message = f"`include` leads back to where it began: {href}"
            raise TemplateError([Diagnostic("error", "include-cycle", message, span)])
        self._edges.setdefault(including, set()).add(target)
        data, stamp = read_beneath(self._root, target, span)
        shown = self._root.name_of(target)
        self._paths[shown] = target
        self.stamps[target] = stamp
        self.data[shown] = data
        source = read_source(data, shown)
        found = [d for d in validate(source, "task") if d.severity == "error"]
        if found:
            raise TemplateError(found)
        return source

    def _target(self, href: str, including: str, span: Span) -> str:
        folder = os.path.dirname(os.path.join(self._root.folder, including))
        target = os.path.normpath(os.path.join(folder, href)) if href.strip() else ""
        inside = beneath(self._root.folder, target)
        if inside is None or os.path.isabs(href) or "\0" in href:
            message = f"`include` leaves the library folder: {href!r}"
            hint = "write a path relative to this file, inside the folder that was loaded"
            raise TemplateError([Diagnostic("error", "include-outside", message, span, hint)])
        return inside

    def _leads(self, start: str, goal: str) -> bool:
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            here = waiting.pop()
            if here == goal:
                return True
            if here not in seen:
                seen.add(here)
                waiting.extend(self._edges.get(here, ()))
        return False


def refuse_includes(href: str, span: Span) -> Source:
    """For templates read from a string: there is no folder that a partial could be in."""
    message = f"`include` needs a file: {href!r} has no folder to be relative to"
    raise TemplateError([Diagnostic("error", "include-outside", message, span)])


ReadPartial = Callable[[str, Span], Source]
