"""A value that fits a schema, made up from a seed: what the simulated model says when it knows no answer."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping
from typing import Any

_MAX_DEPTH = 12
# Past this depth only what is required is filled in, so that a schema that refers to itself ends.
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

_NAMES: Mapping[str, Mapping[str, Any]] = {
    "array": {"type": "array"},
    "[]": {"type": "array"},
    "string": {"type": "string"},
    "number": {"type": "number"},
    "integer": {"type": "integer"},
    "boolean": {"type": "boolean"},
}


def synthesise(schema: str | None, rng: random.Random) -> Any:
    """A JSON value for a declared schema: a name (`object`, `string[]`, `number`, …) or JSON Schema text.

    What cannot be read here (a file, a model class, a broken schema) gives an object that says `simulated`.
    Patterns of strings are not followed. `rng` decides, so equal seeds give equal values.
    """
    name = (schema or "").strip()
    if name.startswith("{"):
        try:
            read = json.loads(name)
        except (ValueError, RecursionError):
            return {"simulated": True}
        return _value(read, read, rng, 0)
    if name in _NAMES:
        return _value(_NAMES[name], {}, rng, 0)
    if name.endswith("[]"):
        item = _NAMES.get(name[:-2], {"type": "object"})
        return [_value(item, {}, rng, 0) for _ in range(2)]
    return {"simulated": True}


def _value(schema: Any, root: Any, rng: random.Random, depth: int) -> Any:
    schema = _resolved(schema, root)
    if "const" in schema:
        return schema["const"]
    if isinstance(schema.get("enum"), list) and schema["enum"]:
        return rng.choice(schema["enum"])
    if depth >= _MAX_DEPTH:
        return None
    kind = _kind(schema, rng)
    if kind == "object":
        return _object(schema, root, rng, depth)
    if kind == "array":
        return _array(schema, root, rng, depth)
    if kind == "string":
        return _string(schema, rng)
    if kind in ("number", "integer"):
        return _number(schema, rng, whole=kind == "integer")
    if kind == "boolean":
        return rng.random() < 0.5
    return None


def _resolved(schema: Any, root: Any) -> dict[str, Any]:
    """The schema with its references followed, `allOf` merged and the first choice of `anyOf` taken."""
    merged: dict[str, Any] = {}
    todo = [schema]
    for _ in range(100):
        if not todo:
            break
        part = todo.pop(0)
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
    found = root
    for step in reference[1:].split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        found = found.get(step) if isinstance(found, dict) else None
    return found if found is not None else {}


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


def _object(schema: Mapping[str, Any], root: Any, rng: random.Random, depth: int) -> dict[str, Any]:
    properties = schema.get("properties") or {}
    required: list[str] = [name for name in schema.get("required") or () if isinstance(name, str)]
    names = [n for n in properties if depth < _OPTIONAL_DEPTH or n in required]
    names += [n for n in required if n not in properties]
    if not names and not properties and depth == 0:
        return {"simulated": True} if schema.get("additionalProperties") is not False else {}
    return {name: _value(properties.get(name, {}), root, rng, depth + 1) for name in names}


def _array(schema: Mapping[str, Any], root: Any, rng: random.Random, depth: int) -> list[Any]:
    fixed = schema.get("prefixItems") or ()
    least = int(schema.get("minItems", 0))
    wanted = 2 if depth < _OPTIONAL_DEPTH else 0
    count = min(max(wanted, least, len(fixed)), int(schema.get("maxItems", 1_000_000)), 1000)
    items = schema.get("items")
    if items is False:
        count = min(count, len(fixed))
    values: list[Any] = []
    for index in range(count):
        part = fixed[index] if index < len(fixed) else items if isinstance(items, dict) else {}
        value = _value(part, root, rng, depth + 1)
        for _ in range(20):
            if not schema.get("uniqueItems") or value not in values:
                break
            value = _value(part, root, rng, depth + 1)
        if schema.get("uniqueItems") and value in values and index >= least:
            break
        values.append(value)
    return values


def _string(schema: Mapping[str, Any], rng: random.Random) -> str:
    made = _FORMATS.get(str(schema.get("format")))
    if made is not None:
        return made
    text = f"simulated {rng.randrange(1000)}"
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    text = text.ljust(min(int(least), 10_000), ".")
    return text if most is None else text[: int(most)]


def _number(schema: Mapping[str, Any], rng: random.Random, *, whole: bool) -> float | int:
    low, high = schema.get("minimum"), schema.get("maximum")
    above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    step = schema.get("multipleOf") or (1 if whole else None)
    floor = max((x for x in (low, above) if isinstance(x, int | float)), default=None)
    ceiling = min((x for x in (high, below) if isinstance(x, int | float)), default=None)
    if floor is None:
        floor = 0 if ceiling is None or ceiling > 0 else ceiling - 100
    if ceiling is None:
        ceiling = floor + 100
    if step is None:
        value = round(floor + (ceiling - floor) * (0.05 + 0.9 * rng.random()), 2)
        return value if floor < value < ceiling else (floor + ceiling) / 2
    first = math.floor(floor / step) + 1 if above == floor else math.ceil(floor / step)
    last = math.ceil(ceiling / step) - 1 if below == ceiling else math.floor(ceiling / step)
    value = step * rng.randint(first, max(first, last))
    return int(value) if whole else value
