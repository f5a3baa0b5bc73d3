"""The parts of a task that are no tasks: handler, tools, examples, context, files, output, command."""

from __future__ import annotations

import json
from typing import Any, TypeVar, cast

from evaluator.nodes import (
    ContextSettings,
    Example,
    Expression,
    FilePaths,
    HandlerSpec,
    OutputFormat,
    Span,
    Text,
)
from evaluator.xml.build_context import Builder, View
from evaluator.xml.texts import SplitError, expression_of, split_command

_OLD_FORMATS = {"minimal": "notes_only", "full": "full_output"}
_SOURCES = {"path": "literal", "command": "command", "description": "description"}

Choice = TypeVar("Choice", bound=str)


def expression(b: Builder, text: Text, what: str) -> Expression:
    found = expression_of(text)
    if not found.value:
        b.error("missing-value", f"{what} is empty", text.span)
    return Expression(found)


def handler(b: Builder, view: View) -> HandlerSpec:
    def given(name: str) -> bool:
        return view.get(name) is not None

    def whole(name: str) -> Any:
        return b.integer(view.attribute(name), name, 1) if given(name) else None

    def number(name: str, most: float | None = None, zero: bool = False) -> Any:
        return b.decimal(view.attribute(name), name, most, zero) if given(name) else None

    for child in b.children(view):
        b.unexpected(child, "<handler>", frozenset())
    return HandlerSpec(
        ref=view.get("ref"),
        max_turns=whole("max_turns"),
        max_context_fraction=number("max_context_fraction", 1.0),
        max_output_tokens=whole("max_output_tokens"),
        timeout_s=number("timeout"),
        max_cost_usd=number("max_cost", zero=True),
        script_memory_mb=whole("script_memory"),
        span=view.span,
    )


def tools(b: Builder, view: View) -> tuple[str, ...]:
    names: dict[str, View] = {}
    for child in b.only(view, "tool"):
        name = child.get("name") or ""
        if name in names:
            b.error("duplicate-name", f"the tool {name!r} is given twice", child.span)
        names[name] = child
    return tuple(names)


def examples(b: Builder, view: View) -> tuple[Example, ...]:
    return tuple(_example(b, child) for child in b.only(view, "example"))


def _example(b: Builder, view: View) -> Example:
    inputs: dict[str, str] = {}
    output: str | None = None
    for child in b.children(view):
        if child.tag == "input":
            name = child.get("name") or ""
            if name in inputs:
                b.error("duplicate-name", f"this example gives {name!r} twice", child.span)
            inputs[name] = b.text(child).value
        elif child.tag != "output":
            b.unexpected(child, "<example>", frozenset({"input", "output"}))
        elif output is not None:
            b.error("duplicate-element", "<output> is given twice", child.span)
        else:
            output = b.text(child).value
    if output is None:
        b.error("missing-element", "this example has no <output>", view.span)
    return Example(inputs, output or "", view.span)


def context(b: Builder, view: View) -> ContextSettings:
    names = frozenset({"inherit_context", "accumulate_data", "accumulation_format", "fresh_context"})
    found = b.sorted_children(view, names)

    def word(name: str, choices: tuple[Choice, ...]) -> Choice | None:
        if name not in found:
            return None
        text = b.text(found[name])
        value = text.value.strip()
        if name == "accumulation_format" and value in _OLD_FORMATS:
            new = _OLD_FORMATS[value]
            b.warn("old-spelling", f"accumulation_format {value!r} is now {new!r}", text.span, f"write {new}")
            value = new
        return _choice(b, value, choices, f"<{name}>", text.span)

    data = b.text(found["accumulate_data"]) if "accumulate_data" in found else None
    accumulate = None if data is None else word("accumulate_data", ("true", "false", "1", "0")) in ("true", "1")
    return ContextSettings(
        inherit_context=word("inherit_context", ("full", "subset", "none")),
        accumulate_data=accumulate,
        accumulation_format=word("accumulation_format", ("notes_only", "full_output")),
        fresh_context=word("fresh_context", ("enabled", "disabled")),
        span=view.span,
    )


def _choice(b: Builder, value: str, choices: tuple[Choice, ...], what: str, span: Span) -> Choice | None:
    if value in choices:
        return cast(Choice, value)
    b.error("invalid-value", f"{what} must be {' or '.join(choices)}, not {value[:60]!r}", span)
    return None


def file_paths(b: Builder, view: View) -> FilePaths:
    found = b.children(view)
    said = view.get("source")
    source = said or next((_SOURCES[child.tag] for child in found if child.tag in _SOURCES), "literal")
    if source not in ("literal", "glob", "command", "description"):
        message = f"source must be literal, glob, command or description, not {source[:60]!r}"
        b.error("invalid-value", message, view.attribute_span("source"))
        source = "literal"
    wanted = source if source in ("command", "description") else "path"
    items: list[Text] = []
    given = 0
    for child in found:
        if child.tag != wanted:
            b.unexpected(child, f'<file_paths source="{source}">', frozenset({wanted}))
            continue
        given += 1
        if wanted != "path" and given > 1:
            b.error("duplicate-element", f"<{wanted}> is given twice", child.span)
        elif wanted == "command":
            if b.flag(child, "shell"):
                b.error("invalid-value", "a command for file paths is never run by a shell", child.span)
            items += command(b, child)
        else:
            items.append(_filled(b, child))
    if not given:
        b.error("missing-element", f'<file_paths source="{source}"> needs a <{wanted}>', view.span)
    return FilePaths(source, tuple(items), view.span)


def _filled(b: Builder, view: View) -> Text:
    text = b.text(view)
    if not text.value.strip():
        b.error("missing-value", f"<{view.tag}> is empty", view.span)
    return text


def output_format(b: Builder, view: View) -> OutputFormat:
    schema, inline = view.get("schema"), b.text(view)
    kind = view.get("type") or ("json" if schema or inline.value.strip() else "text")
    if kind not in ("text", "json", "xml"):
        b.error("invalid-value", f"type must be text, json or xml, not {kind[:60]!r}", view.attribute_span("type"))
        kind = "text"
    if inline.value.strip():
        if schema is not None:
            b.error(
                "two-schemas", "a schema attribute and an inline JSON Schema; one of them is enough",
                view.attribute_span("schema"),
            )  # fmt: skip
        schema = inline.value
        _check_json_schema(b, inline)
    elif schema is not None and not schema:
        b.error("missing-value", "schema is empty", view.attribute_span("schema"))
    return OutputFormat(kind, schema, view.span)


def _check_json_schema(b: Builder, text: Text) -> None:
    hint = "the text of <output_format> is a JSON Schema; a schema's name goes into the attribute schema"
    try:
        value = json.loads(text.value)
    except json.JSONDecodeError as error:
        b.error("invalid-schema", f"not valid JSON: {error.msg}", text.locate(error.pos), hint)
    except (RecursionError, ValueError):
        b.error("invalid-schema", "this JSON is nested too deeply or holds a number that is too long", text.span)
    else:
        if not isinstance(value, dict):
            b.error("invalid-schema", "an inline JSON Schema is an object", text.span, hint)


def command(b: Builder, view: View) -> tuple[Text, ...]:
    """The argv of a `<command>`: its `<arg>` children, its whole text with `shell`, or its text split."""
    shell = b.flag(view, "shell")
    children = [child for child in b.children(view) if child.tag == "arg"]
    if children:
        text = b.own_text(view)
        if text.value.strip():
            b.error("misplaced-text", "<command> has <arg> children and text; one of them is enough", text.span)
        if shell:
            b.error("misplaced-element", "a shell command is one text, without <arg>", children[0].span)
        return tuple(b.text(child) for child in children)
    text = b.text(view)
    if not text.value.strip():
        b.error("missing-value", "<command> is empty", view.span)
        return ()
    if shell:
        return (text,)
    try:
        return split_command(text)
    except SplitError as error:
        hint = "arguments can also be given one by one: <arg>…</arg>"
        b.error("invalid-command", f"this command cannot be split: {error}", text.locate(error.offset), hint)
        return ()
