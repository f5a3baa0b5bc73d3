"""What is known of a value before anything runs: its kind, its fields, its items.

Shapes come from declared types, from `output_format` schemas and from `returns`. Where nothing is known the
shape is ANY, about which no check complains. A JSON Schema that lists properties and does not say
`additionalProperties` counts as complete: a field that it does not name cannot be relied on.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from evaluator.library.near import did_you_mean, listed
from evaluator.nodes import Text

Kind = Literal["any", "string", "number", "integer", "boolean", "object", "array", "null"]
KINDS: frozenset[str] = frozenset({"any", "string", "number", "integer", "boolean", "object", "array", "null"})
MAX_SCHEMA_BYTES = 1_000_000
_MAX_DEPTH = 24

_METHODS: dict[Kind, frozenset[str]] = {
    "object": frozenset(name for name in dir(dict) if not name.startswith("_")),
    "array": frozenset(name for name in dir(list) if not name.startswith("_")),
    "string": frozenset(name for name in dir(str) if not name.startswith("_")),
}


@dataclass(frozen=True, slots=True)
class Shape:
    """`fields` of an object, complete unless `open`; `item` of an array; `what` names it in messages.

    `absent` explains names that exist elsewhere and not here (a later step, for instance).
    """

    kind: Kind = "any"
    fields: Mapping[str | int, Shape] | None = None
    open: bool = True
    item: Shape | None = None
    what: str = ""
    absent: Mapping[str | int, str] | None = None


ANY = Shape()
STRING = Shape("string")
NULL = Shape("null")
INTEGER = Shape("integer")
BOOLEAN = Shape("boolean")
OBJECT = Shape("object")


def record(what: str = "", open: bool = False, **fields: Shape) -> Shape:
    """An object with these fields and, unless `open`, no others."""
    return Shape("object", cast("Mapping[str | int, Shape]", fields), open, None, what)


@dataclass(frozen=True, slots=True)
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
        said = name + "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in path[:index])
        if shape.kind == "object":
            found = (shape.fields or {}).get(part)
            if found is None:
                if shape.open and not _misspelt(part, shape):
                    return ANY
                if isinstance(part, str) and part in _METHODS["object"]:
                    return ANY
                return _no_field(shape, part, said, index)
            shape = found
        elif shape.kind == "array":
            if isinstance(part, str) and part not in _METHODS["array"]:
                hint = f"take an item first: {said}[0].{part}, or loop over it"
                return WrongPath(index, f"{_called(shape, said)} is a list and has no field `{part}`", hint)
            shape = shape.item or ANY if isinstance(part, int) else ANY
        elif shape.kind == "null":
            hint = 'declare <output_format type="json" …> there, or read `content`'
            message = f"{_called(shape, said)} is always empty and has no field `{part}`"
            return WrongPath(index, message, hint)
        elif isinstance(part, str) and part not in _METHODS["string"]:
            return WrongPath(index, f"{_called(shape, said)} is a {shape.kind} and has no field `{part}`", None)
        else:
            return ANY
    return shape


def _misspelt(part: str | int, shape: Shape) -> bool:
    fields = [key for key in shape.fields or () if isinstance(key, str)]
    return isinstance(part, str) and bool(fields) and did_you_mean(part, fields) is not None


def _called(shape: Shape, said: str) -> str:
    return f"`{said}`{f' ({shape.what})' if shape.what else ''}"


def _no_field(shape: Shape, part: str | int, said: str, index: int) -> WrongPath:
    why = (shape.absent or {}).get(part)
    if why is not None:
        return WrongPath(index, f"`{said}` has no `{part}` here: {why}", None)
    fields = [str(key) for key in shape.fields or () if isinstance(key, str)]
    hint = did_you_mean(str(part), fields, f"there is {listed(fields)}")
    return WrongPath(index, f"{_called(shape, said)} has no field `{part}`", hint)


_MODEL = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*\Z")
SCHEMA_NAMES = (
    "any", "object", "array", "string", "number", "integer", "boolean", "string[]", "number[]", "integer[]",
    "boolean[]", "object[]",
)  # fmt: skip


def of_type(name: str) -> Shape | None:
    """The shape of a type's name (`string`, `number[]`, `[]`, …); None where it names no type."""
    name = name.strip()
    depth = 0
    while len(name) > 2 and name.endswith("[]"):
        name, depth = name[:-2], depth + 1
    if name != "[]" and name not in KINDS:
        return None
    shape = Shape("array") if name == "[]" else Shape(cast("Kind", name))
    for _ in range(depth):
        shape = Shape("array", item=shape)
    return shape


class BadSchema(Exception):
    """A declared schema that cannot be used: a stable code, a message and a hint."""

    def __init__(self, code: str, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.hint = code, message, hint

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.code, self.message, self.hint))


def of_schema(declared: str, folder: str | None) -> Shape:
    """The shape of an `output_format` schema or of `returns`; files are relative to `folder`.

    A `module:Model` is not imported: nothing that a template names is run to check it. Raises: BadSchema.
    """
    declared = declared.strip()
    named = of_type(declared)
    if named is not None:
        return named
    if declared.startswith("{"):
        return _of_json(declared, "inline JSON Schema")
    if _MODEL.match(declared):
        return ANY
    if declared.endswith(".json") or "/" in declared:
        return ANY if folder is None else _of_file(declared, folder)
    hint = did_you_mean(declared, SCHEMA_NAMES, "use object, array, string[], number, …, a .json file or module:Model")
    raise BadSchema("unknown-schema", f"unknown schema `{declared}`", hint)


def _of_file(href: str, folder: str) -> Shape:
    path = os.path.join(folder, href)
    try:
        if not os.path.isfile(path):
            raise BadSchema("missing-schema", f"there is no schema file `{href}`", "the path is relative to this file")
        if os.path.getsize(path) > MAX_SCHEMA_BYTES:
            raise BadSchema("bad-schema", f"the schema file `{href}` is above {MAX_SCHEMA_BYTES:,} bytes")
        with open(path, encoding="utf-8") as file:
            return _of_json(file.read(MAX_SCHEMA_BYTES), f"schema file `{href}`")
    except (OSError, UnicodeDecodeError) as error:
        raise BadSchema("missing-schema", f"cannot read the schema file `{href}`: {error}") from error


def _of_json(text: str, what: str) -> Shape:
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadSchema("bad-schema", f"the {what} is not JSON: {error}") from error
    if not isinstance(schema, dict):
        raise BadSchema("bad-schema", f"the {what} is not a JSON object")
    return _of_json_schema(cast("dict[str, Any]", schema), cast("dict[str, Any]", schema), 0)


def _of_json_schema(schema: Any, root: dict[str, Any], depth: int) -> Shape:
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return ANY
    node = cast("dict[str, Any]", schema)
    reference = node.get("$ref")
    if isinstance(reference, str):
        return _of_json_schema(_pointed(reference, root), root, depth + 1)
    if any(key in node for key in ("anyOf", "oneOf", "allOf", "if", "$dynamicRef")):
        return ANY
    kind: Any = node.get("type")
    if isinstance(kind, list):
        kinds = [k for k in cast("list[Any]", kind) if k != "null"]
        kind = kinds[0] if len(kinds) == 1 else None
    if kind is None and isinstance(node.get("properties"), dict):
        kind = "object"
    if kind == "object":
        return _of_object(node, root, depth)
    if kind == "array":
        return Shape("array", item=_of_json_schema(node.get("items"), root, depth + 1))
    return Shape(cast("Kind", kind)) if isinstance(kind, str) and kind in KINDS else ANY


def _of_object(node: dict[str, Any], root: dict[str, Any], depth: int) -> Shape:
    properties: Any = node.get("properties")
    if not isinstance(properties, dict) or not properties:
        return OBJECT
    fields: dict[str | int, Shape] = {
        name: _of_json_schema(value, root, depth + 1) for name, value in cast("dict[str, Any]", properties).items()
    }
    more = node.get("additionalProperties", False)
    return Shape("object", fields, bool(more) or "patternProperties" in node or "unevaluatedProperties" in node)


def _pointed(reference: str, root: dict[str, Any]) -> Any:
    if not reference.startswith("#"):
        return None
    here: Any = root
    for part in reference[1:].strip("/").split("/"):
        if part:
            key = part.replace("~1", "/").replace("~0", "~")
            here = cast("dict[str, Any]", here).get(key) if isinstance(here, dict) else None
    return here


def mismatch(have: Shape, want: Shape) -> bool:
    """Whether a value of shape `have` is refused where `want` is declared: values are never converted."""
    if "any" in (have.kind, want.kind) or have.kind == "null":
        return False
    if have.kind != want.kind:
        return {have.kind, want.kind} != {"integer", "number"}
    return have.item is not None and want.item is not None and mismatch(have.item, want.item)


def anchored(schema: str, file: str | None) -> str:
    """A declared schema with the path of a schema file made absolute, from the template's folder."""
    name = schema.strip()
    if file is None or name.startswith("{") or not (name.endswith(".json") or "/" in name):
        return schema
    return os.path.abspath(os.path.join(os.path.dirname(file), name))


def literal_fits(text: str, want: Shape) -> bool:
    """Whether `text`, which is all constant, can be read as a value of shape `want`."""
    text = text.strip()
    match want.kind:
        case "any" | "string" | "null":
            return True
        case "integer":
            return re.fullmatch(r"[+-]?\d+(\.0*)?", text, re.A) is not None
        case "number":
            return re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", text, re.A) is not None
        case "boolean":
            return text.lower() in ("true", "false")
        case _:
            return _value_fits(text, want)


def _value_fits(text: str, want: Shape) -> bool:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return not mismatch(of_value(value), want) and isinstance(value, (dict, list))


def of_value(value: object) -> Shape:
    """The shape of a JSON value; of a list, as far as its items agree."""
    if isinstance(value, bool):
        return BOOLEAN
    if isinstance(value, int):
        return INTEGER
    if isinstance(value, float):
        return Shape("number")
    if isinstance(value, str):
        return STRING
    if isinstance(value, list):
        items = {of_value(item) for item in cast("list[object]", value)}
        return Shape("array", item=items.pop() if len(items) == 1 else None)
    return OBJECT if isinstance(value, dict) else NULL


def folder_of(file: str | None) -> str | None:
    return None if file is None else os.path.dirname(file)


def find_part(text: Text, offset: int, part: str | int) -> int:
    """The offset of a path's `part` after the name at `offset`; `offset` where it is not found."""
    pattern = (
        rf"\[\s*{part}\s*\]"
        if isinstance(part, int)
        else rf"""(?<=\.){re.escape(part)}\b|(?<=['"]){re.escape(part)}(?=['"])"""
    )
    match = re.compile(pattern).search(text.value, offset)
    return match.start() if match else offset
