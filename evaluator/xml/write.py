"""Writes nodes as XML text that reads back to an equal tree; only the places differ."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from evaluator.errors import UsageError
from evaluator.lazy_dataclass import frozen
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
    Text,
    TopLevel,
    Turn,
)
from evaluator.nodes.declare import FIELDS, Field
from evaluator.nodes.walk import is_stand_in
from evaluator.patterns import Pattern
from evaluator.xml.layout import ILLEGAL, ILLEGAL_IN_ASCII, clean

_ATTRIBUTE_ESCAPES = str.maketrans(
    {"&": "&amp;", "<": "&lt;", '"': "&quot;", "\n": "&#10;", "\t": "&#9;", "\r": "&#13;"}
)
_TEXT_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", "\r": "&#13;"})
_NEEDS_QUOTES = Pattern(r"""[\s,\[\](){}"'\\=]""")

Attributes = Mapping[str, "str | int | float | bool | Text | None"]
"""Attributes by name; an attribute with the value None is not written."""


@frozen
class _Element:
    """An element to write: `content` is its text, or the elements in it, or in mixed content texts
    and elements.
    """

    name: str
    attributes: Attributes
    content: Text | Sequence[_Element | Text] = ()


def to_xml(node: TopLevel | Node) -> str:
    """The XML of one node, indented, with a line end; read and built, it is an equal node except
    for spans.

    Raises: UsageError, for a character that XML cannot hold.
    """
    return (
        "\n".join(_lines(_function(node) if isinstance(node, Function) else _node(node), "")) + "\n"
    )


def _node(node: Node) -> _Element:
    if isinstance(node, Call):
        arguments = [_Element("arg", {"name": one.name}, content=one.value) for one in node.args]
        return _Element("call", {"template": node.template, "name": node.name}, content=arguments)
    if isinstance(node, Cond):
        inner = [
            _Element("case", {"test": case.test.source}, content=[_node(case.body)])
            for case in node.cases
        ]
        if node.default is not None:
            inner.append(_Element("default", {}, content=[_node(node.default)]))
        return _Element("cond", {"name": node.name}, content=inner)
    attributes, inner = _fields(node)
    return _Element("task", {"name": node.name, "type": node.type, **attributes}, content=inner)


def _fields(owner: Any) -> tuple[Attributes, list[_Element]]:
    """The attributes of a task or a part, and the elements inside it; defaults are not written."""
    own: dict[str, Any] = {}
    inside: dict[str, dict[str, Any]] = {}
    values = {field: getattr(owner, field.name) for field in FIELDS[type(owner)]}
    stated = {field: value for field, value in values.items() if not _is_default(field, value)}
    for field, value in stated.items():
        if field.attribute is not None:
            if field.element is None:
                attributes = own
            else:
                attributes = inside.setdefault(field.element, {})
            attributes[field.attribute] = _ATTRIBUTE_VALUES.get(field.form, _same)(value)
    found: list[_Element] = []
    for field in FIELDS[type(owner)]:
        element = field.element
        if (
            field.attribute is None
            and element is not None
            and (field in stated or element in inside)
        ):
            found.append(WRITERS[field.form](element, stated.get(field), inside.get(element, {})))
    return own, found


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
    if isinstance(value, Text | Expression):
        return field.required and not value.source.value
    return (
        field.form == "fields"
        and field.default is not None
        and value == replace(field.default, span=value.span)
    )


def _value(name: str, value: Any, attributes: Attributes) -> _Element:
    """A text, an expression, a setting or a choice; empty where only attributes are given."""
    if value is None:
        value = ""
    return _Element(name, attributes, content=_as_text(value))


def _each(write: Callable[[Any], _Element]) -> Callable[[str, Any, Attributes], _Element]:
    """Writes an element that has one element for each item of a value."""
    return lambda name, value, attributes: _Element(
        name, attributes, content=[write(one) for one in value or ()]
    )


def _turn(turn: Turn) -> _Element:
    if turn.node is None:
        return _Element("turn", {"role": "user"}, content=turn.text or ())
    return _Element(
        "turn",
        {"role": "user", "max": None if turn.most == 1 else turn.most},
        content=[_node(turn.node)],
    )


def _example(example: Example) -> _Element:
    inputs = [
        _Element("input", {"name": key}, content=_as_text(text))
        for key, text in example.inputs.items()
    ]
    return _Element(
        "example", {}, content=[*inputs, _Element("output", {}, content=_as_text(example.output))]
    )


def _file_paths(name: str, value: FilePaths, attributes: Attributes) -> _Element:
    if value.source == "command":
        inner = [
            _command("command", value.items, attributes={"shell": True} if value.shell else {})
        ]
    else:
        inner = [
            _Element("description" if value.source == "description" else "path", {}, content=item)
            for item in value.items
        ]
    return _Element(name, {"source": value.source}, content=inner)


def _output_format(name: str, value: OutputFormat, attributes: Attributes) -> _Element:
    # The name of a schema has no braces; an inline schema is a JSON object.
    if value.schema is not None and value.schema.lstrip().startswith("{"):
        return _Element(name, {"type": value.type}, content=_as_text(value.schema))
    return _Element(name, {"type": value.type, "schema": value.schema})


def _command(name: str, value: tuple[Text, ...] | None, attributes: Attributes) -> _Element:
    value = value or ()
    return _Element(
        name,
        attributes,
        content=value[0]
        if attributes and value
        else [_Element("arg", {}, content=one) for one in value],
    )


def _input(one: Input) -> _Element:
    source: Expression | None = one.source
    attributes: Attributes = {
        "name": one.name,
        "type": one.type,
        "required": one.required,
        "default": one.default,
        "from": None if source is None else source.source,
    }
    if one.task is None:
        return _Element("input", attributes, content=_as_text(one.description))
    nested = _node(one.task)
    if not one.description:
        return _Element("input", attributes, content=[nested])
    nested = replace(nested, attributes={**nested.attributes, "xml:space": "default"})
    return _Element(
        "input",
        {**attributes, "xml:space": "preserve"},
        content=[_as_text(one.description), nested],
    )


WRITERS: dict[str, Callable[[str, Any, Attributes], _Element]] = {
    **dict.fromkeys(
        ("text", "model", "integer", "decimal", "boolean", "choice", "condition"), _value
    ),
    **dict.fromkeys(
        ("fields", "script"), lambda name, value, attributes: _Element(name, *_fields(value))
    ),
    "role": lambda name, value, attributes: _Element(name, attributes, content=[_node(value)]),
    "steps": _each(_node),
    "command": _command,
    "inputs": _each(_input),
    "turns": _each(_turn),
    "tools": _each(lambda tool: _Element("tool", {"name": tool})),
    "examples": _each(_example),
    "file_paths": _file_paths,
    "output_format": _output_format,
}
"""Writes the element of a field of each form that is not an attribute, from its name, value and
attributes.
"""


def _function(function: Function) -> _Element:
    attributes: Attributes = {
        "name": function.name,
        "params": ", ".join(_param(one) for one in function.params) or None,
        "returns": function.returns,
    }
    if function.description:
        described = [_Element("description", {}, content=_as_text(function.description))]
    else:
        described = []
    return _Element("template", attributes, content=[*described, _node(function.body)])


def _param(param: Param) -> str:
    if param.type == "any":
        head = param.name
    else:
        head = f"{param.name}: {param.type}"
    if param.default is None:
        return head
    default = param.default
    if _NEEDS_QUOTES.search(default):
        default = '"' + default.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return f"{head}={default}"


def _lines(element: _Element, pad: str) -> list[str]:
    name = element.name
    attributes = element.attributes
    content = element.content
    if isinstance(content, Text):
        return [pad + _with_text(name, content, pad=pad, attributes=attributes)]
    opening = _opening(name, attributes)
    if any(isinstance(part, Text) for part in content):
        parts = [
            _escape(one.value) if isinstance(one, Text) else "\n".join(_lines(one, ""))
            for one in content
        ]
        return [f"{pad}<{opening}>{''.join(parts)}</{name}>"]
    inner = [
        line for one in content if not isinstance(one, Text) for line in _lines(one, pad + "  ")
    ]
    if inner:
        return [f"{pad}<{opening}>", *inner, f"{pad}</{name}>"]
    return [f"{pad}<{opening}/>"]


def _with_text(name: str, text: Text, pad: str, attributes: Attributes) -> str:
    """A text element: in one line, or as an indented block, or preserved where reading would trim
    it.
    """
    value = text.value
    if not value:
        return f"<{_opening(name, attributes)}/>"
    block = "\n".join(["", *(f"{pad}  {line}" if line else "" for line in value.split("\n")), pad])
    for form in (value, block) if "\n" in value else (value,):
        if clean(form) == value:
            return f"<{_opening(name, attributes)}>{_escape(form)}</{name}>"
    return f"<{_opening(name, {**attributes, 'xml:space': 'preserve'})}>{_escape(value)}</{name}>"


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
    illegal = ILLEGAL_IN_ASCII if value.isascii() else ILLEGAL
    bad = illegal.search(value)
    if bad is not None:
        raise UsageError(f"the character U+{ord(bad[0]):04X} is not allowed in XML")


def _as_text(value: str | int | float | bool | Text | Expression) -> Text:
    if isinstance(value, Text | Expression):
        return value.source
    if isinstance(value, bool):
        shown = "true" if value else "false"
    elif isinstance(value, str):
        shown = value
    else:
        from decimal import Decimal

        shown = format(Decimal(str(value)), "f")
    return Text(shown, Span())
