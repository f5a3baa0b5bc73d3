"""The shapes of values: read from schemas, followed along paths, and compared.

A JSON Schema that lists properties and does not say `additionalProperties` counts as complete: a
field that it does not name may be missing. A schema may be in a file, below the template's own
folder or the roots of the run; its size is limited.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from evaluator.errors import ToolError, UsageError
from evaluator.errors.messages import did_you_mean, json_problem, listed, with_article
from evaluator.files.open_below import FILE
from evaluator.files.roots import Roots
from evaluator.language.scopes import read_typed
from evaluator.lazy_dataclass import frozen
from evaluator.nodes import Call, Cond, Function, Node, Sequential, Text, TopLevel
from evaluator.nodes.values import (
    ANY,
    KINDS,
    NULL,
    OBJECT,
    STRING,
    VALUE_TYPES,
    Kind,
    Shape,
    of_type,
)
from evaluator.patterns import Pattern

MAX_SCHEMA_BYTES = 1_000_000
OUTSIDE = "schema-outside"
"""The code of the finding for a file that is in none of the folders."""


class SchemaFileError(Exception):
    """A declared schema that cannot be used: a stable code, a message and a hint."""

    def __init__(self, code: str, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint


def read_schema(href: str, folder: str | None, roots: Sequence[str | Path]) -> str:
    """The JSON Schema in the file `href` as compact JSON.

    `folder` is that of the template's file, to which a relative path refers; without one it refers
    to the roots. The file is a regular one below `folder` or one of `roots`, reached without a
    symbolic link.

    Raises: SchemaFileError.
    """
    folders = [*([] if folder is None else [folder or "."]), *roots]
    path = os.path.normpath(os.path.join("" if folder is None else os.path.abspath(folder), href))
    places = Roots(folders)
    try:
        # A list: `candidates` raises for a path outside when it is consumed.
        list(places.candidates(path))
    except ToolError as error:
        shown = ", ".join(map(str, places.folders))
        message = (
            f"the schema file `{href}` is outside of the template's folder and of the roots "
            f"({shown})"
        )
        hint = "move the file there, or name its folder as a root"
        raise SchemaFileError(OUTSIDE, message, hint=hint) from error
    try:
        data = _read(places.open(path, FILE))
    except ToolError as error:
        message = f"cannot read the schema file: {error}"
        raise SchemaFileError(
            "missing-schema", message, hint="the path is relative to the template's file"
        ) from error
    if len(data) > MAX_SCHEMA_BYTES:
        raise SchemaFileError(
            "bad-schema", f"the schema file `{href}` is above {MAX_SCHEMA_BYTES:,} bytes"
        )
    return _compact(data, href)


def _read(descriptor: int) -> bytes:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ToolError("it is not a regular file")
    with open(descriptor, "rb") as file:
        return file.read(MAX_SCHEMA_BYTES + 1)


@lru_cache(maxsize=64)
def _compact(data: bytes, href: str) -> str:
    try:
        schema = json.loads(data.decode("utf-8-sig"))
        if not isinstance(schema, dict):
            raise SchemaFileError("bad-schema", f"the schema file `{href}` is not a JSON object")
        return json.dumps(schema, ensure_ascii=False)
    except (ValueError, RecursionError) as error:
        raise SchemaFileError(
            "bad-schema", f"the schema file `{href}` is not JSON: {json_problem(error)}"
        ) from error


_MAX_DEPTH = 24


@frozen
class WrongPath:
    """A path that cannot be followed: the index of the part that fails, why, and a hint."""

    at: int
    message: str
    hint: str | None


def follow(shape: Shape, path: tuple[str | int, ...], name: str) -> Shape | WrongPath:
    """The shape at `path` below `shape`, or the first part of the path that cannot be there."""
    for index, part in enumerate(path):
        if shape.kind == "any":
            return ANY
        shown = shown_path(name, path[:index])
        if shape.kind == "object":
            found = None
            if shape.fields is not None:
                found = shape.fields.get(part)
            if found is None:
                if shape.open and not _misspelt(part, shape):
                    return ANY
                return _no_field(shape, part, shown=shown, index=index)
            shape = found
        elif shape.kind == "array":
            if isinstance(part, str):
                hint = f"take an item first: {shown}[0].{part}, or loop over it"
                return WrongPath(
                    index, f"{_called(shape, shown)} is a list and has no field `{part}`", hint=hint
                )
            shape = shape.item or ANY
        elif shape.kind == "null":
            hint = 'declare <output_format type="json" …> there, or read `content`'
            message = f"{_called(shape, shown)} is always empty and has no field `{part}`"
            return WrongPath(index, message, hint=hint)
        elif isinstance(part, int) and shape.kind == "string":
            shape = STRING
        else:
            lacks = "items" if isinstance(part, int) else f"field `{part}`"
            message = f"{_called(shape, shown)} is {with_article(shape.kind)} and has no {lacks}"
            return WrongPath(index, message, hint=None)
    return shape


def shown_path(name: str, path: tuple[str | int, ...]) -> str:
    """A name with its path, as it is written in a text."""
    return name + "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in path)


def _names_of(shape: Shape) -> list[str]:
    return [key for key in shape.fields or () if isinstance(key, str)]


def _misspelt(part: str | int, shape: Shape) -> bool:
    names = _names_of(shape)
    return isinstance(part, str) and bool(names) and did_you_mean(part, names) is not None


def _called(shape: Shape, shown: str) -> str:
    return f"`{shown}`{f' ({shape.what})' if shape.what else ''}"


def _no_field(shape: Shape, part: str | int, shown: str, index: int) -> WrongPath:
    why = None
    if shape.absent is not None:
        why = shape.absent(part)
    if why is not None:
        return WrongPath(index, f"`{shown}` has no `{part}` here: {why}", hint=None)
    names = _names_of(shape)
    hint = did_you_mean(str(part), names, otherwise=f"there is {listed(names)}")
    return WrongPath(index, f"{_called(shape, shown)} has no field `{part}`", hint=hint)


_MODEL = Pattern(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*\Z")


def is_file(declared: str) -> bool:
    """Whether a declared schema is the path of a file."""
    name = declared.strip()
    if name.startswith("{") or _MODEL.match(name) or of_type(name) is not None:
        return False
    return name.endswith(".json") or "/" in name


def is_model(declared: str) -> bool:
    """Whether a declared schema is a class of a module (`module:Model`)."""
    return _MODEL.match(declared.strip()) is not None


def of_schema(declared: str, folder: str | None) -> Shape:
    """The shape of an `output_format` schema or of `returns`; files are relative to `folder`.

    A `module:Model` is not imported: nothing that a template names is run to check it. Raises:
    SchemaFileError.
    """
    declared = declared.strip()
    named = of_type(declared)
    if named is not None:
        return named
    if declared.startswith("{"):
        return _of_json(declared, "inline JSON Schema")
    if is_model(declared):
        return ANY
    if is_file(declared):
        if folder is None:
            return ANY
        return _of_file(declared, folder)
    hint = did_you_mean(
        declared,
        VALUE_TYPES,
        otherwise="use object, array, string[], number, …, a .json file or module:Model",
    )
    raise SchemaFileError("unknown-schema", f"unknown schema `{declared}`", hint=hint)


def _of_file(href: str, folder: str) -> Shape:
    roots: list[str] = []
    with suppress(OSError):  # the current folder has been removed
        roots.append(os.getcwd())
    try:
        text = read_schema(href, folder, roots=roots)
    except SchemaFileError as bad:
        if bad.code == OUTSIDE:
            return ANY  # it may be below a root of the run, which is not known here
        raise
    return _of_json(text, f"schema file `{href}`")


def _of_json(text: str, what: str) -> Shape:
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SchemaFileError(
            "bad-schema", f"the {what} is not JSON: {json_problem(error)}"
        ) from error
    if not isinstance(schema, dict):
        raise SchemaFileError("bad-schema", f"the {what} is not a JSON object")
    return _JsonSchemaShapes(cast("dict[str, Any]", schema)).of(schema)


class _JsonSchemaShapes:
    """The shapes of the parts of one JSON Schema, each computed once for each depth."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._known: dict[tuple[int, int], Shape] = {}

    def of(self, schema: Any, depth: int = 0) -> Shape:
        if not isinstance(schema, dict) or depth > _MAX_DEPTH:
            return ANY
        key = id(schema), depth  # of parts of the root, which live as long as it does
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._of(cast("dict[str, Any]", schema), depth)
        return known

    def _of(self, node: dict[str, Any], depth: int) -> Shape:
        reference = node.get("$ref")
        if isinstance(reference, str):
            return self.of(_pointed(reference, self._root), depth + 1)
        if any(key in node for key in ("anyOf", "oneOf", "allOf", "if", "$dynamicRef")):
            return ANY
        kind: Any = node.get("type")
        if isinstance(kind, list):
            kinds = [k for k in cast("list[Any]", kind) if k != "null"]
            kind = kinds[0] if len(kinds) == 1 else None
        if kind is None and isinstance(node.get("properties"), dict):
            kind = "object"
        if kind == "object":
            return self._of_object(node, depth)
        if kind == "array":
            return Shape("array", item=self.of(node.get("items"), depth + 1))
        if isinstance(kind, str) and kind in KINDS:
            return Shape(cast("Kind", kind))
        return ANY

    def _of_object(self, node: dict[str, Any], depth: int) -> Shape:
        properties: Any = node.get("properties")
        if not isinstance(properties, dict) or not properties:
            return OBJECT
        fields: dict[str | int, Shape] = {
            name: self.of(value, depth + 1)
            for name, value in cast("dict[str, Any]", properties).items()
        }
        more = node.get("additionalProperties", False)
        return Shape(
            "object",
            fields,
            open=bool(more) or "patternProperties" in node or "unevaluatedProperties" in node,
        )


def _pointed(reference: str, root: dict[str, Any]) -> Any:
    if not reference.startswith("#"):
        return None
    here: Any = root
    for part in reference[1:].strip("/").split("/"):
        if part and not isinstance(here, dict):
            return None
        if part:
            here = cast("dict[str, Any]", here).get(part.replace("~1", "/").replace("~0", "~"))
    return here


def mismatch(have: Shape, want: Shape) -> bool:
    """Whether a value of shape `have` is refused where `want` is declared: values are never
    converted.
    """
    if "any" in (have.kind, want.kind) or have.kind == "null":
        return False
    if have.kind != want.kind:
        return {have.kind, want.kind} != {"integer", "number"}
    return have.item is not None and want.item is not None and mismatch(have.item, want.item)


def anchored(schema: str, file: str | None) -> str:
    """A declared schema with the path of a schema file made absolute, from the template's
    folder.
    """
    if file is None or not is_file(schema):
        return schema
    return os.path.abspath(os.path.join(os.path.dirname(file), schema.strip()))


def literal_fits(text: str, type_name: str) -> bool:
    """Whether `text`, which is all constant, can be read as a value of a type."""
    try:
        read_typed(text, type_name)
    except UsageError:
        return False
    return True


class ResultShapes:
    """The shapes of the parsed results of nodes, which may call `templates`."""

    def __init__(self, templates: Mapping[str, TopLevel]) -> None:
        self._templates = templates
        self._depth = 0
        # By id, with the node, which keeps the id unique.
        self._places: dict[int, tuple[Sequential, dict[str, list[int]]]] = {}

    def variable(self, name: str) -> Shape:
        """The shape of a variable: not known without a scope."""
        return ANY

    def step_places(self, node: Sequential) -> Mapping[str, Sequence[int]]:
        """The positions of the steps of `node` by name, in order."""
        known = self._places.get(id(node))
        if known is None:
            places: dict[str, list[int]] = {}
            for index, step in enumerate(node.steps):
                if step.name:
                    places.setdefault(step.name, []).append(index)
            known = self._places[id(node)] = node, places
        return known[1]

    def result(self, node: TopLevel | Node) -> Shape:
        """The shape that the output format of `node` declares; NULL if nothing is ever parsed, ANY
        if it is unknown.
        """
        if self._depth > _MAX_DEPTH:
            return ANY
        self._depth += 1
        try:
            return self._result(node)
        finally:
            self._depth -= 1

    def _result(self, node: TopLevel | Node) -> Shape:
        if isinstance(node, Cond):
            return ANY
        if isinstance(node, Call):
            target = self._templates.get(node.template)
            if target is None:
                return ANY
            return self.result(target)
        if isinstance(node, Function):
            if node.returns is None or node.returns.strip() in ("any", "string"):
                return self.result(node.body)
            return declared_shape(node.returns, node.span.file)
        output = node.output
        if output is None:
            return node.result(self)
        if output.type == "json" and output.schema is not None:
            return declared_shape(output.schema, output.span.file)
        if (output.type, output.schema) == ("text", None):
            return NULL
        return ANY


def declared_shape(schema: str, file: str | None) -> Shape:
    """The shape of a schema that `file` declares; ANY where it cannot be used."""
    try:
        return of_schema(schema, folder_of(file))
    except SchemaFileError:
        return ANY


def folder_of(file: str | None) -> str | None:
    if file is None:
        return None
    return os.path.dirname(file)


def find_part(text: Text, offset: int, part: str | int) -> int:
    """The offset of a path's `part` after the name at `offset`; `offset` where it is not found."""
    if isinstance(part, int):
        pattern = rf"\[\s*{part}\s*\]"
    else:
        pattern = rf"""(?<=\.){re.escape(part)}\b|(?<=['"]){re.escape(part)}(?=['"])"""
    match = re.compile(pattern).search(text.value, offset)
    if match:
        return match.start()
    return offset
