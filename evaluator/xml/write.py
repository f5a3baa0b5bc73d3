"""Nodes to XML text that reads back to an equal tree; only the places differ."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from decimal import Decimal

from evaluator.errors import UsageError
from evaluator.nodes import (
    Atomic,
    Call,
    Cond,
    DirectorEvaluatorLoop,
    Expression,
    FilePaths,
    Function,
    Input,
    Node,
    Param,
    Reduce,
    Script,
    Sequential,
    Span,
    Task,
    Text,
    TopLevel,
)
from evaluator.xml.build_context import is_stand_in
from evaluator.xml.layout import clean

_ILLEGAL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_ATTRIBUTE_ESCAPES = str.maketrans(
    {"&": "&amp;", "<": "&lt;", '"': "&quot;", "\n": "&#10;", "\t": "&#9;", "\r": "&#13;"}
)
_TEXT_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", "\r": "&#13;"})
_NEEDS_QUOTES = re.compile(r"""[\s,\[\](){}"'\\=]""")

Attributes = Mapping[str, "str | int | float | bool | Text | None"]


def to_xml(node: TopLevel | Node) -> str:
    """The XML of one node, indented, with a line end; read and built, it is an equal node but for spans.

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
    attributes: dict[str, str | int | float | bool | Text | None] = {
        "name": task.name, "type": task.type, "subtype": task.subtype, "version": task.version,
        "ref": task.ref, "xml:space": space,
    }  # fmt: skip
    if isinstance(task, Reduce) and task.concurrency != 1:
        attributes["concurrency"] = task.concurrency
    inside = pad + "  "
    return _element("task", pad, attributes, [*_common(task, inside), *_own(task, inside)])


def _common(task: Task, pad: str) -> list[str]:
    lines: list[str] = []
    for name in ("description", "instructions", "system", "model", "criteria"):
        text: Text | None = getattr(task, name)
        if name == "model" and task.model_role is not None:
            lines.append(_text(name, text or Text("", task.span), pad, {"role": task.model_role}))
        elif text is not None and (text.value or name != "description"):
            lines.append(_text(name, text, pad))
    if (spec := task.handler) is not None:
        settings: Attributes = {
            "ref": spec.ref, "max_turns": spec.max_turns,
            "max_context_fraction": spec.max_context_fraction, "max_output_tokens": spec.max_output_tokens,
            "timeout": spec.timeout_s, "max_cost": spec.max_cost_usd,
            "script_memory": spec.script_memory_mb,
        }  # fmt: skip
        lines += _element("handler", pad, settings, ())
    over = " ".join(task.over) if isinstance(task, Reduce) and task.over else None
    lines += _inputs(task.inputs, pad, over)
    if task.tools:
        lines += _element("tools", pad, {}, [_empty("tool", pad + "  ", {"name": name}) for name in task.tools])
    lines += _examples(task, pad)
    lines += _context(task, pad)
    if task.file_paths is not None:
        lines += _file_paths(task.file_paths, pad)
    if (output := task.output) is not None:
        # What was given by name has no braces; what was inline is a JSON object.
        inline = output.schema is not None and output.schema.lstrip().startswith("{")
        declared: Attributes = {"type": output.type, "schema": None if inline else output.schema}
        lines.append(_text("output_format", Text((output.schema or "") if inline else "", output.span), pad, declared))
    for name in ("manual_xml", "disable_reparsing"):
        value: bool | Text = getattr(task, name)
        if value is not False:
            lines.append(_text(name, _as_text(value), pad))
    return lines


def _examples(task: Task, pad: str) -> list[str]:
    lines: list[str] = []
    for example in task.examples:
        inner = [
            _text("input", _as_text(value), pad + "    ", {"name": name}) for name, value in example.inputs.items()
        ]
        inner.append(_text("output", _as_text(example.output), pad + "    "))
        lines += _element("example", pad + "  ", {}, inner)
    shots: Attributes = {"shots": True if task.shots else None}
    return _element("examples", pad, shots, lines) if lines or task.shots else []


def _context(task: Task, pad: str) -> list[str]:
    settings = task.context
    lines: list[str] = []
    for name in ("inherit_context", "accumulate_data", "accumulation_format", "fresh_context"):
        value: str | bool | None = getattr(settings, name)
        if value is not None:
            lines.append(_text(name, _as_text(value), pad + "  "))
    return _element("context_management", pad, {}, lines) if lines else []


def _file_paths(files: FilePaths, pad: str) -> list[str]:
    inside = pad + "  "
    if files.source == "command":
        inner = _command(files.items, False, inside)
    else:
        name = "description" if files.source == "description" else "path"
        inner = [_text(name, item, inside) for item in files.items]
    return _element("file_paths", pad, {"source": files.source}, inner)


def _own(task: Task, pad: str) -> list[str]:
    inside = pad + "  "
    if isinstance(task, Sequential):
        steps = [line for step in task.steps for line in _node(step, inside)]
        return _element("steps", pad, {}, steps) if steps else []
    if isinstance(task, Reduce):
        initial = [] if task.initial_value is None else [_text("initial_value", task.initial_value, pad)]
        return [
            *initial,
            *_role("inner_task", task.inner_task, pad),
            *_role("reduction_task", task.reduction_task, pad),
        ]
    if isinstance(task, Script):
        return _script(task, pad)
    if isinstance(task, DirectorEvaluatorLoop):
        return _loop(task, pad)
    if isinstance(task, Atomic):
        return []
    raise UsageError(f"{type(task).__name__} cannot be written")


def _loop(task: DirectorEvaluatorLoop, pad: str) -> list[str]:
    lines = [_text("max_iterations", _as_text(task.max_iterations), pad)]
    lines += _role("director", task.director, pad)
    if (script := task.script_execution) is not None:
        described = [_text("description", script.description, pad + "  ")] if script.description.value else []
        inner = [*described, *_inputs(script.inputs, pad + "  ", None), *_script(script, pad + "  ")]
        lines += _element("script_execution", pad, {"name": script.name}, inner)
    lines += _role("evaluator", task.evaluator, pad)
    if task.termination_condition is not None:
        lines.append(_text("termination_condition", task.termination_condition.source, pad))
    return lines


def _role(name: str, node: Node, pad: str) -> list[str]:
    return [] if is_stand_in(node) else _element(name, pad, {}, _node(node, pad + "  "))


def _script(script: Script, pad: str) -> list[str]:
    lines = _command(script.command, script.shell, pad)
    if script.timeout_s is not None:
        lines.append(_text("timeout", _as_text(script.timeout_s), pad))
    return lines


def _command(argv: tuple[Text, ...], shell: bool, pad: str) -> list[str]:
    if not argv:
        return []
    if shell:
        return [_text("command", argv[0], pad, {"shell": True})]
    return _element("command", pad, {}, [_text("arg", one, pad + "  ") for one in argv])


def _inputs(inputs: tuple[Input, ...], pad: str, over: str | None) -> list[str]:
    lines = [line for one in inputs for line in _input(one, pad + "  ")]
    return _element("inputs", pad, {"over": over}, lines) if lines else []


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
        raise UsageError(f"the character U+{ord(bad[0]):04X} cannot stand in XML")


def _as_text(value: str | int | float | bool | Text) -> Text:
    if isinstance(value, Text):
        return value
    if isinstance(value, bool):
        shown = "true" if value else "false"
    else:
        shown = value if isinstance(value, str) else format(Decimal(str(value)), "f")
    return Text(shown, Span())
