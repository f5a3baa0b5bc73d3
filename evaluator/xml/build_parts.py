"""The parts of a task that are not nodes: tools, examples, files, output format, command."""

from __future__ import annotations

import json
import re
from typing import Any, cast

from evaluator.errors.messages import correction
from evaluator.nodes import Example, Expression, FilePaths, OutputFormat, Span, Text
from evaluator.xml.build_context import (
    Builder,
    SplitError,
    View,
    expression_of,
    find_shell_operator,
    split_command,
)

_SOURCES = {"path": "literal", "command": "command", "description": "description"}


def expression(b: Builder, text: Text, what: str) -> Expression:
    found = expression_of(text)
    if not found.value:
        b.error("missing-value", f"{what} is empty", text.span)
    return Expression(found)


def tools(b: Builder, view: View) -> tuple[str, ...]:
    names: dict[str, Span] = {}
    for child in b.items(view, "tool"):
        b.is_new(child.get("name") or "", names, child.span, "the tool")
    return tuple(names)


def examples(b: Builder, view: View) -> tuple[Example, ...]:
    return tuple(_example(b, child) for child in b.items(view, "example"))


def _example(b: Builder, view: View) -> Example:
    found, given = b.sorted_children(view, ("output",), ("input",))
    inputs: dict[str, str] = {}
    seen: dict[str, Span] = {}
    places: dict[str | None, Span] = {}
    output = ""
    for child in given:
        name = child.get("name") or ""
        b.is_new(name, seen, child.span, "the input")
        inputs[name] = b.text(child).value
        places[name] = child.attribute_span("name")
    if "output" in found:
        text = b.text(found["output"])
        output = text.value
        places[None] = text.span
    else:
        b.error("missing-element", "this example has no <output>", view.span)
    return Example(inputs, output, span=view.span, places=places)


def file_paths(b: Builder, view: View) -> FilePaths:
    found = b.children(view)
    source = view.get("source") or next(
        (_SOURCES[child.tag] for child in found if child.tag in _SOURCES), "literal"
    )
    if source not in ("literal", "glob", "command", "description"):
        message = f"source must be literal, glob, command or description, not {source[:60]!r}"
        b.error("invalid-value", message, view.attribute_span("source"))
        source = "literal"
    wanted = "path"
    if source in ("command", "description"):
        wanted = source
    where = f'<file_paths source="{source}">'
    items: list[Text] = []
    given = 0
    shell = False
    for child in found:
        if child.tag != wanted:
            b.unexpected(child, where, (wanted,))
            continue
        given += 1
        if wanted != "path" and given > 1:
            b.error("duplicate-element", f"<{wanted}> is given twice", child.span)
        elif wanted == "command":
            shell = b.flag(child, "shell")
            items += command(b, child)
        else:
            items.append(_filled(b, child))
    if not given:
        b.error("missing-element", f"{where} needs a <{wanted}>", view.span)
    return FilePaths(source, tuple(items), view.span, shell)


def _filled(b: Builder, view: View) -> Text:
    text = b.text(view)
    if not text.value.strip():
        b.error("missing-value", f"<{view.tag}> is empty", view.span)
    return text


def output_format(b: Builder, view: View) -> OutputFormat:
    schema = view.get("schema")
    inline = b.text(view)
    kind = view.get("type") or ("json" if schema or inline.value.strip() else "text")
    if kind not in ("text", "json", "xml"):
        b.error(
            "invalid-value",
            f"type must be text, json or xml, not {kind[:60]!r}",
            view.attribute_span("type"),
        )
        kind = "text"
    if inline.value.strip():
        if schema is not None:
            message = "a schema attribute and an inline JSON Schema; one of them is enough"
            b.error("two-schemas", message, view.attribute_span("schema"))
        schema = inline.value
        _check_json_schema(b, inline)
    elif schema is not None and not schema:
        b.error("missing-value", "schema is empty", view.attribute_span("schema"))
    return OutputFormat(kind, schema, span=view.span)


def _check_json_schema(b: Builder, text: Text) -> None:
    hint = (
        "the text of <output_format> is a JSON Schema; a schema's name goes into the attribute "
        "schema"
    )
    try:
        value = json.loads(text.value)
    except json.JSONDecodeError as error:
        b.error("invalid-schema", f"not valid JSON: {error.msg}", text.locate(error.pos), hint)
    except (RecursionError, ValueError):
        message = "this JSON is nested too deeply or holds a number that is too long"
        b.error("invalid-schema", message, text.span)
    else:
        if not isinstance(value, dict):
            b.error("invalid-schema", "an inline JSON Schema is an object", text.span, hint)
        else:
            _check_keywords(b, cast("dict[str, Any]", value), text)


_KEYWORD_NAMES = """
    $anchor $comment $defs $dynamicAnchor $dynamicRef $id $ref $schema $vocabulary additionalItems
    additionalProperties allOf anyOf const contains contentEncoding contentMediaType contentSchema
    default definitions dependencies dependentRequired dependentSchemas deprecated description
    discriminator else enum example examples exclusiveMaximum exclusiveMinimum externalDocs format
    if items maxContains maxItems maxLength maxProperties maximum minContains minItems minLength
    minProperties minimum multipleOf not nullable oneOf pattern patternProperties prefixItems
    properties propertyNames readOnly required then title type unevaluatedItems
    unevaluatedProperties uniqueItems writeOnly xml
"""
_KEYWORDS = frozenset(_KEYWORD_NAMES.split())
_MAPS_OF_SCHEMAS = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
)
_DATA = frozenset({"const", "default", "enum", "example", "examples", "required"})
# Shorter words may be annotations of the author.
_MIN_KEYWORD = 5
_MAX_SCHEMA_DEPTH = 60


def _check_keywords(b: Builder, schema: dict[str, Any], text: Text, depth: int = 0) -> None:
    """A finding for each misspelt keyword of a JSON Schema; other unknown keys are annotations."""
    for key, value in schema.items():
        if key not in _KEYWORDS and len(key) >= _MIN_KEYWORD:
            meant = correction(key, _KEYWORDS, cutoff=0.85)
            place = re.search(rf'"{re.escape(key)}"\s*:', text.value)
            if meant is not None and place is not None:
                b.warn(
                    "schema-keyword",
                    f"JSON Schema has no keyword `{key}`, so it has no effect",
                    text.locate(place.start() + 1),
                    f"did you mean `{meant}`?",
                    fix=(key, meant),
                )
        if depth >= _MAX_SCHEMA_DEPTH or key in _DATA:
            continue
        if key in _MAPS_OF_SCHEMAS and isinstance(value, dict):
            inner = list(cast("dict[str, Any]", value).values())
        else:
            inner = cast("list[Any]", value if isinstance(value, list) else [value])
        for each in inner:
            if isinstance(each, dict):
                _check_keywords(b, cast("dict[str, Any]", each), text, depth=depth + 1)


def command(b: Builder, view: View) -> tuple[Text, ...]:
    """The argv of a `<command>`: its `<arg>` children, its whole text with `shell`, or its text
    split.
    """
    shell = b.flag(view, "shell")
    children = [child for child in b.children(view) if child.tag == "arg"]
    if children:
        text = b.own_text(view)
        if text.value.strip():
            message = "<command> has <arg> children and text; one of them is enough"
            b.error("misplaced-text", message, text.span)
        if shell:
            message = "a shell command is one text, without <arg>"
            b.error("misplaced-element", message, children[0].span)
        return tuple(b.text(child) for child in children)
    text = _filled(b, view)
    if shell:
        return (text,)
    try:
        words = split_command(text)
    except SplitError as error:
        hint = "arguments can also be given one by one: <arg>…</arg>"
        message = f"this command cannot be split: {error}"
        b.error("invalid-command", message, text.locate(error.offset), hint)
        return ()
    operator = find_shell_operator(text)
    if operator is not None:
        word, offset = operator
        hint = (
            f'write shell="true" to have a shell run it, or quote {word} to pass it as an argument'
        )
        message = f"{word} needs a shell, and no shell runs this command"
        b.error("shell-syntax", message, text.locate(offset), hint)
    return words
