"""Writes nodes as XML text that reads back to an equal tree; only the places differ."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any

from evaluator.errors import UsageError
from evaluator.nodes import (
    Call,
    Cond,
    Example,
    Expression,
    FilePaths,
    Function,
    Input,
    Node,
    OutputFormat,
    Param,
    Span,
    Task,
    Text,
    TopLevel,
    Turn,
)
from evaluator.nodes.declare import FIELDS, Field
from evaluator.nodes.walk import is_stand_in
from evaluator.xml.layout import clean

_ILLEGAL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_ATTRIBUTE_ESCAPES = str.maketrans(
    {"&": "&amp;", "<": "&lt;", '"': "&quot;", "\n": "&#10;", "\t": "&#9;", "\r": "&#13;"}
)
_TEXT_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", "\r": "&#13;"})
_NEEDS_QUOTES = re.compile(r"""[\s,\[\](){}"'\\=]""")

Attributes = Mapping[str, "str | int | float | bool | Text | None"]


def to_xml(node: TopLevel | Node) -> str:
    """The XML of one node, indented, with a line end; read and built, it is an equal node except for spans.

    Raises: UsageError, for a character that XML cannot hold.
    """
    lines = _function(node, "") if isinstance(node, Function) else _node(node, "")
    return "\n".join(lines) + "\n"


def _node(node: Node, pad: str, space: str | None = None) -> list[str]:
    if isinstance(node, Call):
        arguments = [_text("arg", one.value, pad + "  ", {"name": one.name}) for one in node.args]
        return _element("call", pad, {"template": node.template, "name": node.name, "xml:space": space}, arguments)
    if isinstance(node, Cond):
        inner: list[str] = []
        for case in node.cases:
            inner += _element("case", pad + "  ", {"test": case.test.source}, _node(case.body, pad + "    "))
        if node.default is not None:
            inner += _element("default", pad + "  ", {}, _node(node.default, pad + "    "))
        return _element("cond", pad, {"name": node.name, "xml:space": space}, inner)
    return _task(node, pad, space)


def _task(task: Task, pad: str, space: str | None) -> list[str]:
    attributes, lines = _fields(task, pad + "  ")
    return _element("task", pad, {"name": task.name, "type": task.type, **attributes, "xml:space": space}, lines)


def _fields(owner: Any, pad: str) -> tuple[Attributes, list[str]]:
    """The attributes of a task or a part, and the lines of the elements inside it; defaults are not written."""
    own: dict[str, Any] = {}
    inside: dict[str, dict[str, Any]] = {}
    stated = {
        field: value for field in FIELDS[type(owner)] if not _is_default(field, value := getattr(owner, field.name))
    }
    for field, value in stated.items():
        if field.attribute is not None:
            attributes = own if field.element is None else inside.setdefault(field.element, {})
            attributes[field.attribute] = _ATTRIBUTE_VALUES.get(field.form, _same)(value)
    lines: list[str] = []
    for field in FIELDS[type(owner)]:
        element = field.element
        if field.attribute is None and element is not None and (field in stated or element in inside):
            lines += WRITERS[field.form](element, stated.get(field), pad, inside.get(element, {}))
    return own, lines


def _literal_json(value: Any) -> str:
    """JSON that reads back as it is: nothing in it looks like a variable."""
    return json.dumps(value, ensure_ascii=False).replace("{{", "{\\u007b").replace("<<", "<\\u003c")


def _same(value: Any) -> Any:
    return value


_ATTRIBUTE_VALUES: dict[str, Callable[[Any], Any]] = {
    "names": " ".join,
    "expression": lambda value: value.source,
    "stop": lambda value: _literal_json(list(value)),
    "extra_body": lambda value: _literal_json(dict(value)),
}
"""Writes the value of an attribute of each form that is not written as it is."""


def _is_default(field: Field, value: Any) -> bool:
    if value is None or value == () or value == field.default or is_stand_in(value):
        return True
    if isinstance(value, Text):
        return field.required and not value.value
    return field.form == "fields" and field.default is not None and value == replace(field.default, span=value.span)


def _value(name: str, value: Any, pad: str, attributes: Attributes) -> list[str]:
    """A text, an expression, a setting or a choice; empty where only attributes are given."""
    value = value.source if isinstance(value, Expression) else "" if value is None else value
    return [_text(name, _as_text(value), pad, attributes)]


def _part(name: str, value: Any, pad: str, attributes: Attributes) -> list[str]:
    own, lines = _fields(value, pad + "  ")
    return _element(name, pad, own, lines)


def _nodes(name: str, value: Any, pad: str, attributes: Attributes) -> list[str]:
    nodes: tuple[Node, ...] = value if isinstance(value, tuple) else (value,)
    return _element(name, pad, {}, [line for one in nodes for line in _node(one, pad + "  ")])


def _inputs(name: str, value: tuple[Input, ...], pad: str, attributes: Attributes) -> list[str]:
    return _element(name, pad, attributes, [line for one in value or () for line in _input(one, pad + "  ")])


def _turns(name: str, value: tuple[Turn, ...], pad: str, attributes: Attributes) -> list[str]:
    return _element(name, pad, {}, [line for one in value for line in _turn(one, pad + "  ")])


def _turn(turn: Turn, pad: str) -> list[str]:
    if turn.node is None:
        return [_text("turn", turn.text or _as_text(""), pad, {"role": "user"})]
    most = None if turn.most == 1 else turn.most
    return _element("turn", pad, {"role": "user", "max": most}, _node(turn.node, pad + "  "))


def _tools(name: str, value: tuple[str, ...] | None, pad: str, attributes: Attributes) -> list[str]:
    return _element(name, pad, attributes, [_empty("tool", pad + "  ", {"name": tool}) for tool in value or ()])


def _examples(name: str, value: tuple[Example, ...] | None, pad: str, attributes: Attributes) -> list[str]:
    lines: list[str] = []
    for example in value or ():
        inner = [_text("input", _as_text(text), pad + "    ", {"name": key}) for key, text in example.inputs.items()]
        inner.append(_text("output", _as_text(example.output), pad + "    "))
        lines += _element("example", pad + "  ", {}, inner)
    return _element(name, pad, attributes, lines)


def _file_paths(name: str, value: FilePaths, pad: str, attributes: Attributes) -> list[str]:
    inside = pad + "  "
    if value.source == "command":
        inner = _command("command", value.items, inside, {"shell": True} if value.shell else {})
    else:
        inner = [
            _text("description" if value.source == "description" else "path", item, inside) for item in value.items
        ]
    return _element(name, pad, {"source": value.source}, inner)


def _output_format(name: str, value: OutputFormat, pad: str, attributes: Attributes) -> list[str]:
    # The name of a schema has no braces; an inline schema is a JSON object.
    schema = value.schema or ""
    inline = schema.lstrip().startswith("{")
    declared: Attributes = {"type": value.type, "schema": None if inline else value.schema}
    return [_text(name, _as_text(schema if inline else ""), pad, declared)]


def _command(name: str, value: tuple[Text, ...] | None, pad: str, attributes: Attributes) -> list[str]:
    if not value:
        return []
    if attributes:
        return [_text(name, value[0], pad, attributes)]
    return _element(name, pad, {}, [_text("arg", one, pad + "  ") for one in value])


WRITERS: dict[str, Callable[[str, Any, str, Attributes], list[str]]] = {
    **dict.fromkeys(("text", "model", "integer", "decimal", "boolean", "choice", "condition"), _value),
    **dict.fromkeys(("role", "steps"), _nodes),
    **dict.fromkeys(("fields", "script"), _part),
    "command": _command,
    "inputs": _inputs,
    "turns": _turns,
    "tools": _tools,
    "examples": _examples,
    "file_paths": _file_paths,
    "output_format": _output_format,
}
"""Writes the element of a field of each form that is not an attribute, from its name, value and attributes."""


def _input(one: Input, pad: str) -> list[str]:
    source: Expression | None = one.source
    attributes: Attributes = {
        "name": one.name, "type": one.type, "required": one.required, "default": one.default,
        "from": None if source is None else source.source,
    }  # fmt: skip
    if one.task is None:
        return [_text("input", _as_text(one.description), pad, attributes)]
    if not one.description:
        return _element("input", pad, attributes, _node(one.task, pad + "  "))
    nested = "\n".join(_node(one.task, "", "default"))
    opening = _opening("input", {**attributes, "xml:space": "preserve"})
    return [f"{pad}<{opening}>{_escape(one.description)}{nested}</input>"]


def _function(function: Function, pad: str) -> list[str]:
    attributes: Attributes = {
        "name": function.name,
        "params": ", ".join(_param(one) for one in function.params) or None,
        "returns": function.returns,
    }
    described = [_text("description", _as_text(function.description), pad + "  ")] if function.description else []
    return _element("template", pad, attributes, [*described, *_node(function.body, pad + "  ")])


def _param(param: Param) -> str:
    head = param.name if param.type == "any" else f"{param.name}: {param.type}"
    if param.default is None:
        return head
    default = param.default
    if _NEEDS_QUOTES.search(default):
        default = '"' + default.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return f"{head}={default}"


def _element(name: str, pad: str, attributes: Attributes, inner: Iterable[str]) -> list[str]:
    lines = list(inner)
    if not lines:
        return [_empty(name, pad, attributes)]
    return [f"{pad}<{_opening(name, attributes)}>", *lines, f"{pad}</{name}>"]


def _empty(name: str, pad: str, attributes: Attributes) -> str:
    return f"{pad}<{_opening(name, attributes)}/>"


def _text(name: str, text: Text, pad: str, attributes: Attributes | None = None) -> str:
    """A text element: in one line, or as an indented block, or preserved where reading would trim it."""
    value = text.value
    given = attributes or {}
    if not value:
        return _empty(name, pad, given)
    block = "\n".join(["", *(f"{pad}  {line}" if line else "" for line in value.split("\n")), pad])
    for form in (value, block) if "\n" in value else (value,):
        if clean(form) == value:
            return f"{pad}<{_opening(name, given)}>{_escape(form)}</{name}>"
    return f"{pad}<{_opening(name, {**given, 'xml:space': 'preserve'})}>{_escape(value)}</{name}>"


def _opening(name: str, attributes: Attributes) -> str:
    parts = [name]
    for key, value in attributes.items():
        if value is not None:
            text = _as_text(value).value
            _check(text)
            parts.append(f'{key}="{text.translate(_ATTRIBUTE_ESCAPES)}"')
    return " ".join(parts)


def _escape(value: str) -> str:
    _check(value)
    return value.translate(_TEXT_ESCAPES).replace("]]>", "]]&gt;")


def _check(value: str) -> None:
    bad = _ILLEGAL.search(value)
    if bad is not None:
        raise UsageError(f"the character U+{ord(bad[0]):04X} is not allowed in XML")


def _as_text(value: str | int | float | bool | Text) -> Text:
    if isinstance(value, Text):
        return value
    if isinstance(value, bool):
        shown = "true" if value else "false"
    else:
        shown = value if isinstance(value, str) else format(Decimal(str(value)), "f")
    return Text(shown, Span())
