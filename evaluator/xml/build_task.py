"""Builds nodes from elements: tasks as their classes declare them, calls, conditions and inputs."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, cast

from evaluator.errors.messages import with_article
from evaluator.nodes import (
    Argument,
    Atomic,
    Call,
    Case,
    Cond,
    Expression,
    Input,
    Node,
    Script,
    Span,
    Task,
    Text,
    Turn,
    operators_with,
)
from evaluator.nodes.declare import FIELDS, OPERATORS, Field, elements_of, field_of
from evaluator.nodes.sampling import read_extra_body, read_stop
from evaluator.nodes.values import VALUE_TYPES
from evaluator.nodes.walk import stand_in
from evaluator.xml import build_parts as parts
from evaluator.xml.build_context import MAX_NODE_DEPTH, Builder, View

NODES = ("task", "call", "cond")
_SCRIPT_EXECUTION = ("description", "command", "timeout", "inputs")


def node(b: Builder, view: View) -> Node:
    """The node of a `task`, `call` or `cond` element, or of a role element that is a task
    itself.
    """
    if b.depth >= MAX_NODE_DEPTH:
        b.error("too-deep", f"tasks are nested more than {MAX_NODE_DEPTH} deep", view.span)
        return stand_in(view.span)
    b.depth += 1
    try:
        if view.tag == "call":
            return _call(b, view)
        if view.tag == "cond":
            return _cond(b, view)
        return task(b, view)
    finally:
        b.depth -= 1


def task(b: Builder, view: View) -> Task:
    """The task of a `task` element, or of a role element that is a task itself."""
    type_name = view.get("type")
    cls: type[Task] = OPERATORS.get(type_name or "", Atomic)
    kind = f"of type {cls.type}"
    if type_name is None and view.tag == "task":
        kind = "without a type, which is atomic"
        hint = 'write type="atomic", or the type that is meant'
        b.note("no-type", "<task> has no type, so it is atomic", view.span, hint)
    elif type_name is not None and type_name not in OPERATORS:
        message = f"type must be one of {', '.join(OPERATORS)}"
        b.error("invalid-value", message, view.attribute_span("type"))
    children, _ = b.sorted_children(view, elements_of(cls), where=f"<{view.tag}> {kind}")
    _check_attributes(b, view, element=None, cls=cls)
    for tag, child in children.items():
        _check_attributes(b, child, element=tag, cls=cls)
    found = _fields(b, view, cls=cls, children=children, needs_all=view.get("ref") is None)
    made = cls(**found, span=view.span, tool_spans=_tool_spans(b, children))
    _check_names(b, made, children=children)
    if made.ref is None and not made.description.value.strip() and "description" in children:
        b.error("missing-element", f"the <description> of this <{view.tag}> is empty", view.span)
    return made


def _tool_spans(b: Builder, children: dict[str, View]) -> tuple[Span, ...]:
    if "tools" not in children:
        return ()
    places: dict[str, Span] = {}
    for tool in b.children(children["tools"]):
        if tool.tag == "tool":
            places.setdefault(tool.get("name") or "", tool.attribute_span("name"))
    return tuple(places.values())


def _check_attributes(b: Builder, view: View, element: str | None, cls: type[Task]) -> None:
    """A finding for each attribute that only tasks of other types have."""
    for name in map(str, view.element.keys()):
        owners = operators_with(element, name)
        if owners and cls.type not in owners:
            message = f"only a {' or '.join(owners)} task has the attribute {name!r}"
            b.error("misplaced-attribute", message, view.attribute_span(name))


def _check_names(b: Builder, made: Task, children: dict[str, View]) -> None:
    """Checks that names refer to inputs, and that there is at least one input."""
    for field in FIELDS[type(made)]:
        view = children.get(field.element or "")
        if field.form != "names" or view is None:
            continue
        known = {declared.name for declared in made.inputs}
        for name in getattr(made, field.name):
            if name not in known:
                b.error(
                    "unknown-input",
                    f"there is no input {name!r}",
                    view.attribute_span(field.attribute or ""),
                )
        if not known and made.ref is None:
            b.error("missing-element", f"a {made.type} task needs at least one <input>", view.span)


def _fields(
    b: Builder, view: View, cls: type, children: dict[str, View], *, needs_all: bool
) -> dict[str, Any]:
    """The values of the declared fields that are given; with `needs_all`, a finding for each
    required one that is not.

    A task with a `ref` leaves parts to the template that `ref` names.
    """
    found: dict[str, Any] = {}
    for field in FIELDS[cls]:
        if field.element is None:
            place = view
        else:
            place = children.get(field.element)
        if place is None:
            if field.required:
                if needs_all:
                    kind = with_article(view.get("type") or "atomic")
                    message = f"this <{view.tag}>, {kind} task, needs <{field.element}>"
                    b.error("missing-element", message, view.span)
                if field.form in _ABSENT:
                    found[field.name] = _ABSENT[field.form](view.span)
        elif field.attribute is None or place.element.get(field.attribute) is not None:
            value = READERS[field.form](b, place, field)
            if value is not None:
                found[field.name] = value
    return found


_ABSENT: dict[str, Callable[[Span], Any]] = {
    "text": lambda span: Text("", span),
    "condition": lambda span: Expression(Text("", span)),
    "role": stand_in,
    "steps": lambda span: (),
    "command": lambda span: (),
}
"""The value of a required field that is not there."""


def _model(b: Builder, view: View, field: Field) -> Text | None:
    """A model's id; None where the element gives a role only."""
    text = b.text(view)
    if view.get("role") is not None and not text.value.strip():
        return None
    return text


def _literal(b: Builder, view: View, field: Field) -> Any:
    name = field.attribute or ""
    # Blank space counts in a text that ends an answer.
    value = view.element.get(name) or ""
    try:
        if "{{" in value:
            raise ValueError(
                "it is taken as it is written, without variables; in JSON, \\u007b stands for {"
            )
        return _LITERALS[field.form](value)
    except ValueError as error:
        b.error("invalid-value", f"{name}: {error}", view.attribute_span(name))
        return None


_LITERALS: dict[str, Callable[[str], Any]] = {"stop": read_stop, "extra_body": read_extra_body}


def _setting(b: Builder, view: View, field: Field) -> float | bool | Text | None:
    if field.attribute is not None:
        return b.setting(view.attribute(field.attribute), field, field.attribute)
    return b.setting(b.text(view), field, f"<{field.element}>")


def _choice(b: Builder, view: View, field: Field) -> Any:
    text = b.text(view)
    choices = field.choices or {}
    value = text.value.strip()
    if value not in choices:
        message = f"<{field.element}> must be {field.wanted}, not {value[:60]!r}"
        return b.error("invalid-value", message, text.span)
    meaning = choices[value]
    if isinstance(meaning, str) and meaning != value:
        message = f"{field.element} {value!r} is now {meaning!r}"
        fix = (value, meaning)
        b.warn("old-spelling", message, text.span, f"write {meaning}", fix=fix)
    return meaning


def _condition(b: Builder, view: View, field: Field) -> Any:
    found = [child for child in b.children(view) if child.tag == "condition"]
    if not found:
        return parts.expression(b, b.text(view), f"<{view.tag}>")
    text = b.own_text(view)
    if text.value.strip() or len(found) > 1:
        if len(found) > 1:
            span = found[1].span
        else:
            span = text.span
        b.error("duplicate-element", f"<{view.tag}> holds one condition; this is another", span)
    return parts.expression(b, b.text(found[0]), "<condition>")


def _part(b: Builder, view: View, field: Field) -> Any:
    if field.of is None:
        raise TypeError(f"the field {field.name!r} declares no class")
    children, _ = b.sorted_children(view, elements_of(field.of))
    return field.of(
        **_fields(b, view, cls=field.of, children=children, needs_all=True), span=view.span
    )


def _role(b: Builder, view: View, field: Field) -> Node:
    found = b.children(view)
    if not any(child.tag in NODES for child in found):
        return node(b, view)
    for name in map(str, view.element.keys()):
        if not name.startswith("{"):
            message = f"<{view.tag}> holds a task of its own and has no {name!r}"
            hint = "it belongs to the task inside"
            b.error("misplaced-attribute", message, view.attribute_span(name), hint)
    return body(b, view, found=found)


def _steps(b: Builder, view: View, field: Field) -> tuple[Node, ...]:
    steps = tuple(node(b, child) for child in b.items(view, *NODES))
    seen: dict[str, Span] = {}
    for step in steps:
        b.is_new(step.name, seen, step.span, "the step")
    if not steps:
        b.error("missing-element", f"<{view.tag}> holds no step", view.span)
    return steps


def _script(b: Builder, view: View, field: Field) -> Script:
    children, _ = b.sorted_children(view, _SCRIPT_EXECUTION)
    if "command" not in children:
        b.error("missing-element", f"<{view.tag}> needs a <command>", view.span)
    return Script(
        **_fields(b, view, cls=Script, children=children, needs_all=False), span=view.span
    )


def _turns(b: Builder, view: View, field: Field) -> tuple[Turn, ...]:
    turns = tuple(_turn(b, child) for child in b.items(view, "turn"))
    if not turns:
        b.error("missing-element", f"<{view.tag}> holds no turn", view.span)
    return turns


def _turn(b: Builder, view: View) -> Turn:
    found = [child for child in b.children(view) if child.tag in NODES]
    most = None
    if view.get("max") is not None:
        most = b.setting(view.attribute("max"), field_of(Turn, "most"), "max")
        if not found:
            message = "only a turn that a task or call writes has max"
            b.error("misplaced-attribute", message, view.attribute_span("max"))
    if not found:
        text = b.text(view)
        if not text.value.strip():
            b.error("missing-value", "<turn> is empty", view.span)
        return Turn(text=text, span=view.span)
    if (own := b.own_text(view)).value.strip():
        message = "a <turn> holds a text, or the task or call that writes it"
        b.error("misplaced-text", message, own.span)
    return Turn(
        node=_single(b, view, found=found),
        most=1 if most is None else cast("int | Text", most),
        span=view.span,
    )


def _inputs(b: Builder, view: View, field: Field) -> tuple[Input, ...]:
    found = [_input(b, child) for child in b.items(view, "input")]
    seen: dict[str, Span] = {}
    return tuple(one for one in found if b.is_new(one.name, seen, one.span, "the input"))


READERS: dict[str, Callable[[Builder, View, Field], Any]] = {
    "attribute": lambda b, view, field: view.get(field.attribute or ""),
    "flag": lambda b, view, field: b.flag(view, field.attribute or ""),
    "names": lambda b, view, field: tuple(
        (view.get(field.attribute or "") or "").replace(",", " ").split()
    ),
    "stop": _literal,
    "extra_body": _literal,
    "text": lambda b, view, field: b.text(view),
    "model": _model,
    "integer": _setting,
    "decimal": _setting,
    "boolean": _setting,
    "choice": _choice,
    "condition": _condition,
    "command": lambda b, view, field: parts.command(b, view),
    "role": _role,
    "steps": _steps,
    "script": _script,
    "fields": _part,
    "inputs": _inputs,
    "turns": _turns,
    "expression": lambda b, view, field: parts.expression(
        b, view.attribute(field.attribute or ""), field.attribute or ""
    ),
    "tools": lambda b, view, field: parts.tools(b, view),
    "examples": lambda b, view, field: parts.examples(b, view),
    "file_paths": lambda b, view, field: parts.file_paths(b, view),
    "output_format": lambda b, view, field: parts.output_format(b, view),
}
"""Reads the value of a field of each form from the element that holds it; None: there is none."""


def _input(b: Builder, view: View) -> Input:
    name = view.get("name") or ""
    type_name = view.get("type") or "any"
    if not name.isidentifier():
        b.error("invalid-value", f"{name[:60]!r} is not a name for an input", view.span)
    if type_name not in VALUE_TYPES:
        message = f"type must be one of {', '.join(VALUE_TYPES)}"
        b.error("invalid-value", message, view.attribute_span("type"))
    default = None
    if view.get("default") is not None:
        default = view.attribute("default")
    source = None
    if view.get("from") is not None:
        source = parts.expression(b, view.attribute("from"), "from")
    nested = _single(b, view, found=b.items(view, *NODES))
    if nested is not None and source is not None:
        b.error("two-sources", f"the input {name!r} has both `from` and a nested node", view.span)
    required = default is None
    if view.get("required") is not None:
        required = b.flag(view, "required")
    return Input(
        name,
        type_name,
        required=required,
        default=default,
        source=source,
        task=nested,
        description=b.own_text(view).value,
        span=view.span,
    )


def _single(b: Builder, view: View, found: list[View]) -> Node | None:
    """The one node among `found`, children of `view`."""
    for extra in found[1:]:
        message = f"<{view.tag}> holds one task, call or cond; this is another"
        b.error("duplicate-element", message, extra.span)
    if found:
        return node(b, found[0])
    return None


def body(b: Builder, view: View, found: Collection[View] | None = None) -> Node:
    """The one node inside an element that must hold one."""
    if found is None:
        children = b.children(view)
    else:
        children = found
    for child in children:
        if child.tag not in NODES:
            b.unexpected(child, f"<{view.tag}>", NODES)
    inner = _single(b, view, found=[child for child in children if child.tag in NODES])
    if inner is None:
        b.error("missing-element", f"<{view.tag}> needs a <task>, <call> or <cond>", view.span)
        return stand_in(view.span)
    return inner


def _call(b: Builder, view: View) -> Call:
    template = view.get("template") or ""
    if not template:
        b.error("missing-attribute", "<call> needs the attribute 'template'", view.span)
    arguments: list[Argument] = []
    named: dict[str, Span] = {}
    for child in b.items(view, "arg"):
        name = child.get("name")
        b.is_new(name, named, child.span, "the argument")
        if name is None and named:
            message = "a positional argument follows a named argument"
            b.error("misplaced-element", message, child.span)
        arguments.append(Argument(name, b.text(child), child.span))
    return Call(template, tuple(arguments), view.get("name"), view.span)


def _cond(b: Builder, view: View) -> Cond:
    found, cases = b.sorted_children(view, ("default",), ("case",))
    if not cases:
        b.error("missing-element", "<cond> needs at least one <case>", view.span)
    built = tuple(
        Case(parts.expression(b, case.attribute("test"), "test"), body(b, case), case.span)
        for case in cases
    )
    default = None
    if "default" in found:
        default = body(b, found["default"])
    return Cond(built, default, view.get("name"), view.span)
