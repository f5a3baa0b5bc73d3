"""Generates values that fit a schema from a seed: the simulated backend's answers if it has no
other.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping
from typing import Any

from evaluator.language.scopes import is_type_name
from evaluator.lazy_dataclass import dataclass
from evaluator.output.schema import schema_text

_MAX_DEPTH = 12
# Nested lists with many items, and objects that refer to themselves twice, multiply.
_MAX_VALUES = 10_000
# Below this depth only required properties are filled in, so that a schema that refers to itself
# ends.
_OPTIONAL_DEPTH = 4

_FORMATS = {
    "date": "2024-01-15",
    "date-time": "2024-01-15T12:00:00Z",
    "time": "12:00:00Z",
    "email": "simulated@example.com",
    "uri": "https://example.com/simulated",
    "uuid": "00000000-0000-4000-8000-000000000000",
    "ipv4": "192.0.2.1",
    "hostname": "example.com",
}


def synthesise(schema: str | None, rng: random.Random) -> Any:
    """A JSON value for a declared schema: the name of a type (`object`, `string[]`, …) or JSON
    Schema text.

    A schema file and `module:Model` count as their JSON Schema. For a schema that cannot be read it
    is an object that says `simulated`.
    Patterns of strings are not followed. `rng` decides, so equal seeds give equal values. What goes
    beyond 10,000 values or 12 levels is null or left out, even if the schema requires more.
    """
    name = (schema or "").strip()
    if name and not name.startswith("{") and not is_type_name(name):
        name = schema_text(name) or name
    if name.startswith("{"):
        try:
            document = json.loads(name)
        except (ValueError, RecursionError):
            return {"simulated": True}
        return _value(document, _Example(document, rng), depth=0)
    if not is_type_name(name):
        return {"simulated": True}
    if name.endswith("[]") and name != "[]":
        return [synthesise(name[:-2], rng) for _ in range(2)]
    return _value({"type": "array" if name == "[]" else name}, _Example({}, rng), depth=0)


@dataclass(slots=True)
class _Example:
    """What the parts of one value have in common: `left` is how many may still be made."""

    root: Any
    rng: random.Random
    left: int = _MAX_VALUES


def _value(schema: Any, example: _Example, depth: int) -> Any:
    if example.left <= 0:
        return None
    example.left -= 1
    rng = example.rng
    schema = _resolved(schema, example.root)
    if "const" in schema:
        return schema["const"]
    if isinstance(schema.get("enum"), list) and schema["enum"]:
        return rng.choice(schema["enum"])
    if depth >= _MAX_DEPTH:
        return None
    match _kind(schema, rng):
        case "object":
            return _object(schema, example, depth)
        case "array":
            return _array(schema, example, depth)
        case "string":
            return _string(schema, rng)
        case "number":
            return _number(schema, rng, step=schema.get("multipleOf"))
        case "integer":
            return int(_number(schema, rng, step=schema.get("multipleOf") or 1))
        case "boolean":
            return rng.random() < 0.5
        case _:
            return None


def _resolved(schema: Any, root: Any) -> dict[str, Any]:
    """The schema with its references followed, `allOf` merged and the first choice of `anyOf`
    taken.
    """
    merged: dict[str, Any] = {}
    todo = [schema]
    for _ in range(100):  # a bound for references in a circle
        part = todo.pop(0) if todo else None
        if not isinstance(part, dict):
            continue
        if isinstance(part.get("$ref"), str):
            todo.append(_follow(part["$ref"], root))
        todo.extend(part.get("allOf") or ())
        for key in ("anyOf", "oneOf"):
            choices = part.get(key)
            if isinstance(choices, list) and choices:
                todo.append(next((c for c in choices if c != {"type": "null"}), choices[0]))
        for key, value in part.items():
            if key == "properties" and isinstance(value, dict):
                merged["properties"] = {**merged.get("properties", {}), **value}
            elif key == "required" and isinstance(value, list):
                merged["required"] = [*merged.get("required", []), *value]
            else:
                merged.setdefault(key, value)
    return merged


def _follow(reference: str, root: Any) -> Any:
    """The target of a `#/…` pointer (RFC 6901) in the same document; {} for anything else."""
    if not reference.startswith("#"):
        return {}
    target = root
    for step in reference[1:].split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(target, dict):
            target = target.get(step)
        else:
            target = None
    if target is None:
        return {}
    return target


def _kind(schema: Mapping[str, Any], rng: random.Random) -> str:
    kind = schema.get("type")
    if isinstance(kind, list):
        kinds = [k for k in kind if k != "null"] or ["null"]
        return str(rng.choice(kinds))
    if isinstance(kind, str):
        return kind
    for key, implied in (("properties", "object"), ("items", "array"), ("minimum", "number")):
        if key in schema:
            return implied
    return "string"


def _object(schema: Mapping[str, Any], example: _Example, depth: int) -> dict[str, Any]:
    properties = schema.get("properties") or {}
    required: list[str] = [name for name in schema.get("required") or () if isinstance(name, str)]
    names = [n for n in properties if depth < _OPTIONAL_DEPTH or n in required]
    names += [n for n in required if n not in properties]
    if not names and not properties and depth == 0:
        if schema.get("additionalProperties") is not False:
            return {"simulated": True}
        return {}
    return {name: _value(properties.get(name, {}), example, depth + 1) for name in names}


def _array(schema: Mapping[str, Any], example: _Example, depth: int) -> list[Any]:
    fixed = schema.get("prefixItems") or ()
    least = int(schema.get("minItems", 0))
    wanted = 2 if depth < _OPTIONAL_DEPTH else 0
    count = min(max(wanted, least, len(fixed)), int(schema.get("maxItems", 1_000_000)), 1000)
    items = schema.get("items")
    if items is False:
        count = min(count, len(fixed))
    values: list[Any] = []
    for index in range(count):
        if example.left <= 0:
            break
        if index < len(fixed):
            part = fixed[index]
        elif isinstance(items, dict):
            part = items
        else:
            part = {}
        value = _value(part, example, depth + 1)
        for _ in range(20):
            if not schema.get("uniqueItems") or value not in values:
                break
            value = _value(part, example, depth + 1)
        if schema.get("uniqueItems") and value in values and index >= least:
            break
        values.append(value)
    return values


def _string(schema: Mapping[str, Any], rng: random.Random) -> str:
    made = _FORMATS.get(str(schema.get("format")))
    if made is not None:
        return made
    text = f"simulated {rng.randrange(1000)}"
    least = schema.get("minLength", 0)
    most = schema.get("maxLength")
    text = text.ljust(min(int(least), 10_000), ".")
    if most is None:
        return text
    return text[: int(most)]


def _number(schema: Mapping[str, Any], rng: random.Random, step: float | None) -> float:
    above = schema.get("exclusiveMinimum")
    below = schema.get("exclusiveMaximum")
    floor = max(
        (x for x in (schema.get("minimum"), above) if isinstance(x, int | float)), default=None
    )
    ceiling = min(
        (x for x in (schema.get("maximum"), below) if isinstance(x, int | float)), default=None
    )
    if floor is None:
        if ceiling is None or ceiling > 0:
            floor = 0
        else:
            floor = ceiling - 100
    if ceiling is None:
        ceiling = floor + 100
    if not step:
        value = round(floor + (ceiling - floor) * (0.05 + 0.9 * rng.random()), 2)
        if floor < value < ceiling:
            return value
        return (floor + ceiling) / 2
    if above == floor:
        first = math.floor(floor / step) + 1
    else:
        first = math.ceil(floor / step)
    if below == ceiling:
        last = math.ceil(ceiling / step) - 1
    else:
        last = math.floor(ceiling / step)
    return step * rng.randint(first, max(first, last))
