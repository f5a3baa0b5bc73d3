"""Elements to nodes: the five operators, calls, conditions and inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from evaluator.nodes import (
    TASK_TYPES,
    Argument,
    Atomic,
    Call,
    Case,
    Cond,
    DirectorEvaluatorLoop,
    Input,
    Node,
    Reduce,
    Script,
    Sequential,
    Task,
    TaskType,
    Text,
)
from evaluator.xml import build_parts as parts
from evaluator.xml.build_context import MAX_NODE_DEPTH, Builder, View, stand_in

VALUE_TYPES = (
    "any", "string", "number", "integer", "boolean", "object", "array", "[]",
    "string[]", "number[]", "integer[]", "boolean[]", "object[]",
)  # fmt: skip

_NODES = ("task", "call", "cond")
_COMMON = frozenset(
    {
        "description", "instructions", "system", "model", "criteria", "handler", "inputs", "tools",
        "examples", "context_management", "file_paths", "output_format", "manual_xml", "disable_reparsing",
    }
)  # fmt: skip
_OWN: dict[TaskType, frozenset[str]] = {
    "atomic": frozenset(),
    "sequential": frozenset({"steps"}),
    "reduce": frozenset({"initial_value", "inner_task", "reduction_task"}),
    "script": frozenset({"command", "timeout"}),
    "director_evaluator_loop": frozenset(
        {"max_iterations", "director", "evaluator", "script_execution", "termination_condition"}
    ),
}
_ROLE_ATTRIBUTES = ("type", "name", "subtype", "version", "ref", "concurrency")


@dataclass(frozen=True, slots=True)
class _Open:
    """A task under construction: its element, its children by tag, and what it refers to."""

    view: View
    type: TaskType
    ref: str | None
    children: dict[str, View]


def node(b: Builder, view: View) -> Node:
    """The node of a `task`, `call` or `cond` element."""
    if b.depth >= MAX_NODE_DEPTH:
        b.error("too-deep", f"tasks are nested more than {MAX_NODE_DEPTH} deep", view.span)
        return stand_in(view.span)
    b.depth += 1
    try:
        if view.tag == "call":
            return _call(b, view)
        return _cond(b, view) if view.tag == "cond" else task(b, view)
    finally:
        b.depth -= 1


def task(b: Builder, view: View) -> Task:
    """The task of a `task` element, or of a role element that is a task itself."""
    kind = view.get("type")
    if kind is None and view.tag == "task":
        b.error("missing-attribute", "<task> needs the attribute 'type'", view.span)
    if kind is not None and kind not in TASK_TYPES:
        b.error("invalid-value", f"type must be one of {', '.join(TASK_TYPES)}", view.attribute_span("type"))
    type_ = kind if kind in TASK_TYPES else "atomic"
    if view.get("concurrency") is not None and type_ != "reduce":
        b.error("misplaced-attribute", "only a reduce task has concurrency", view.attribute_span("concurrency"))
    ref = view.get("ref")
    children = b.sorted_children(view, _COMMON | _OWN[type_], f"<{view.tag}> of type {type_}")
    opened = _Open(view, type_, ref, children)
    return _OPERATORS[type_](b, opened, _common(b, opened))


def _common(b: Builder, opened: _Open) -> dict[str, Any]:
    view, children = opened.view, opened.children

    def text(name: str) -> Text | None:
        return b.text(children[name]) if name in children else None

    description = text("description")
    if opened.ref is None and (description is None or not description.value.strip()):
        what = "is empty" if description else "is missing"
        b.error("missing-element", f"the <description> of this <{view.tag}> {what}", view.span)
    inputs = children.get("inputs")
    if inputs is not None and inputs.get("over") is not None and opened.type != "reduce":
        b.error("misplaced-attribute", "only a reduce task iterates `over` inputs", inputs.attribute_span("over"))
    shown = children.get("examples")
    return {
        "name": view.get("name"),
        "subtype": view.get("subtype"),
        "version": view.get("version"),
        "ref": opened.ref,
        "description": description or Text("", view.span),
        "instructions": text("instructions"),
        "system": text("system"),
        **_model(b, children.get("model")),
        "criteria": text("criteria"),
        "handler": parts.handler(b, children["handler"]) if "handler" in children else None,
        "inputs": _inputs(b, inputs) if inputs is not None else (),
        "tools": parts.tools(b, children["tools"]) if "tools" in children else (),
        "examples": parts.examples(b, shown) if shown is not None else (),
        "shots": b.flag(shown, "shots") if shown is not None else False,
        **_settings(b, opened),
        "span": view.span,
    }


def _model(b: Builder, view: View | None) -> dict[str, Any]:
    """A model's id, a role that is mapped to one, or both."""
    if view is None:
        return {}
    said, role = b.text(view), view.get("role")
    return {"model": None if role is not None and not said.value.strip() else said, "model_role": role}


def _settings(b: Builder, opened: _Open) -> dict[str, Any]:
    children = opened.children
    out: dict[str, Any] = {}
    if "context_management" in children:
        out["context"] = parts.context(b, children["context_management"])
    if "file_paths" in children:
        out["file_paths"] = parts.file_paths(b, children["file_paths"])
    if "output_format" in children:
        out["output"] = parts.output_format(b, children["output_format"])
    for name in ("manual_xml", "disable_reparsing"):
        if name in children:
            out[name] = b.boolean(b.text(children[name]), f"<{name}>")
    return out


def _inputs(b: Builder, view: View) -> tuple[Input, ...]:
    found: dict[str, Input] = {}
    for child in b.only(view, "input"):
        one = _input(b, child)
        if one.name in found:
            line = found[one.name].span.line
            b.error("duplicate-name", f"the input {one.name!r} is given twice; first on line {line}", one.span)
        found.setdefault(one.name, one)
    return tuple(found.values())


def _input(b: Builder, view: View) -> Input:
    name, kind = view.get("name") or "", view.get("type") or "any"
    if not name.isidentifier():
        b.error("invalid-value", f"{name[:60]!r} is not a name for an input", view.span)
    if kind not in VALUE_TYPES:
        b.error("invalid-value", f"type must be one of {', '.join(VALUE_TYPES)}", view.attribute_span("type"))
    default = view.attribute("default") if view.element.get("default") is not None else None
    source = None
    if view.get("from") is not None:
        source = parts.expression(b, view.attribute("from"), "from")
    nested = b.children(view)
    inner = _single(b, view, nested, optional=True)
    if inner is not None and source is not None:
        b.error("two-sources", f"the input {name!r} has both `from` and a nested <{nested[0].tag}>", view.span)
    required = b.flag(view, "required") if view.get("required") is not None else default is None
    return Input(name, kind, required, default, source, inner, b.own_text(view).value, view.span)


def _single(b: Builder, view: View, found: list[View], optional: bool = False) -> Node | None:
    """The one node among `found`, children of `view`."""
    nodes = [child for child in found if child.tag in _NODES]
    for child in found:
        if child.tag not in _NODES:
            b.unexpected(child, f"<{view.tag}>", frozenset(_NODES))
    for extra in nodes[1:]:
        b.error("duplicate-element", f"<{view.tag}> holds one task, call or cond; this is another", extra.span)
    if nodes:
        return node(b, nodes[0])
    if not optional:
        b.error("missing-element", f"<{view.tag}> needs a <task>, <call> or <cond>", view.span)
    return None


def body(b: Builder, view: View, found: list[View] | None = None) -> Node:
    """The one node inside an element that must hold one."""
    inner = _single(b, view, b.children(view) if found is None else found)
    return stand_in(view.span) if inner is None else inner


def _required(b: Builder, opened: _Open, name: str) -> View | None:
    """The child, with a finding where it is missing and no `ref` could supply it."""
    found = opened.children.get(name)
    if found is None and opened.ref is None:
        b.error("missing-element", f"a {opened.type} task needs <{name}>", opened.view.span)
    return found


def _role(b: Builder, opened: _Open, name: str) -> Node:
    view = _required(b, opened, name)
    if view is None:
        return stand_in(opened.view.span)
    found = b.children(view)
    if any(child.tag in _NODES for child in found):
        for attribute in _ROLE_ATTRIBUTES:
            if view.get(attribute) is not None:
                hint = "it belongs to the task inside"
                message = f"<{name}> holds a task of its own and has no {attribute!r}"
                b.error("misplaced-attribute", message, view.attribute_span(attribute), hint)
        return body(b, view, found)
    if b.depth >= MAX_NODE_DEPTH:
        b.error("too-deep", f"tasks are nested more than {MAX_NODE_DEPTH} deep", view.span)
        return stand_in(view.span)
    b.depth += 1
    try:
        return task(b, view)
    finally:
        b.depth -= 1


def _atomic(b: Builder, opened: _Open, common: dict[str, Any]) -> Task:
    return Atomic(**common)


def _sequential(b: Builder, opened: _Open, common: dict[str, Any]) -> Task:
    view = _required(b, opened, "steps")
    steps: list[Node] = []
    names: dict[str, Node] = {}
    for child in b.children(view) if view is not None else ():
        if child.tag not in _NODES:
            b.unexpected(child, "<steps>", frozenset(_NODES))
            continue
        step = node(b, child)
        if step.name is not None and step.name in names:
            line = names[step.name].span.line
            b.error("duplicate-name", f"the step {step.name!r} is given twice; first on line {line}", step.span)
        elif step.name is not None:
            names[step.name] = step
        steps.append(step)
    if view is not None and not steps:
        b.error("missing-element", "<steps> holds no step", view.span)
    return Sequential(**common, steps=tuple(steps))


def _reduce(b: Builder, opened: _Open, common: dict[str, Any]) -> Task:
    view, children = opened.view, opened.children
    inputs = _required(b, opened, "inputs")
    over: tuple[str, ...] = ()
    if inputs is not None:
        over = tuple((inputs.get("over") or "").replace(",", " ").split())
        declared = {one.name for one in common["inputs"]}
        for name in over:
            if name not in declared:
                b.error("unknown-input", f"there is no input {name!r} to iterate", inputs.attribute_span("over"))
        if not declared and opened.ref is None:
            b.error("missing-element", "a reduce task needs at least one <input>", inputs.span)
    concurrency = None
    if view.get("concurrency") is not None:
        concurrency = b.integer(view.attribute("concurrency"), "concurrency", 1)
    return Reduce(
        **common,
        initial_value=b.text(children["initial_value"]) if "initial_value" in children else None,
        inner_task=_role(b, opened, "inner_task"),
        reduction_task=_role(b, opened, "reduction_task"),
        concurrency=1 if concurrency is None else concurrency,
        over=over,
    )


def _script(b: Builder, opened: _Open, common: dict[str, Any]) -> Task:
    view = _required(b, opened, "command")
    return Script(
        **common,
        command=parts.command(b, view) if view is not None else (),
        shell=b.flag(view, "shell") if view is not None else False,
        timeout_s=_timeout(b, opened.children),
    )


def _timeout(b: Builder, children: dict[str, View]) -> float | Text | None:
    return b.decimal(b.text(children["timeout"]), "<timeout>") if "timeout" in children else None


def _loop(b: Builder, opened: _Open, common: dict[str, Any]) -> Task:
    children = opened.children
    limit = None
    if "max_iterations" in children:
        limit = b.integer(b.text(children["max_iterations"]), "<max_iterations>", 1)
    script = children.get("script_execution")
    condition = children.get("termination_condition")
    return DirectorEvaluatorLoop(
        **common,
        max_iterations=5 if limit is None else limit,
        director=_role(b, opened, "director"),
        evaluator=_role(b, opened, "evaluator"),
        script_execution=_script_execution(b, script) if script is not None else None,
        termination_condition=_condition(b, condition) if condition is not None else None,
    )


def _script_execution(b: Builder, view: View) -> Script:
    children = b.sorted_children(view, frozenset({"description", "command", "timeout", "inputs"}))
    command = children.get("command")
    if command is None:
        b.error("missing-element", "<script_execution> needs a <command>", view.span)
    described = children.get("description")
    return Script(
        name=view.get("name"),
        description=b.text(described) if described is not None else Text("", view.span),
        inputs=_inputs(b, children["inputs"]) if "inputs" in children else (),
        span=view.span,
        command=parts.command(b, command) if command is not None else (),
        shell=b.flag(command, "shell") if command is not None else False,
        timeout_s=_timeout(b, children),
    )


def _condition(b: Builder, view: View) -> Any:
    found = [child for child in b.children(view) if child.tag == "condition"]
    if not found:
        return parts.expression(b, b.text(view), "<termination_condition>")
    text = b.own_text(view)
    if text.value.strip() or len(found) > 1:
        span = found[1].span if len(found) > 1 else text.span
        b.error("duplicate-element", "<termination_condition> holds one condition; this is another", span)
    return parts.expression(b, b.text(found[0]), "<condition>")


_OPERATORS = {
    "atomic": _atomic,
    "sequential": _sequential,
    "reduce": _reduce,
    "script": _script,
    "director_evaluator_loop": _loop,
}


def _call(b: Builder, view: View) -> Call:
    template = view.get("template") or ""
    if not template:
        b.error("missing-attribute", "<call> needs the attribute 'template'", view.span)
    arguments: list[Argument] = []
    named: set[str] = set()
    for child in b.only(view, "arg"):
        name = child.get("name")
        if name is not None and name in named:
            b.error("duplicate-name", f"the argument {name!r} is given twice", child.span)
        elif name is None and named:
            b.error("misplaced-element", "an argument by position stands after one by name", child.span)
        if name is not None:
            named.add(name)
        arguments.append(Argument(name, b.text(child), child.span))
    return Call(template, tuple(arguments), view.get("name"), view.span)


def _cond(b: Builder, view: View) -> Cond:
    cases: list[Case] = []
    default: Node | None = None
    for child in b.children(view):
        if child.tag == "case":
            test = parts.expression(b, child.attribute("test"), "test")
            cases.append(Case(test, body(b, child), child.span))
        elif child.tag != "default":
            b.unexpected(child, "<cond>", frozenset({"case", "default"}))
        elif default is not None:
            b.error("duplicate-element", "<default> is given twice", child.span)
        else:
            default = body(b, child)
    if not cases:
        b.error("missing-element", "<cond> needs at least one <case>", view.span)
    return Cond(tuple(cases), default, view.get("name"), view.span)
