"""Native structured output: a declared schema as the `response_format` that the provider enforces.

The answer is read like any text. A provider that refuses the field gets the same request without
it: the Handler does that once, and the ModelChoice remembers it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

from evaluator.errors import ProviderError
from evaluator.nodes import OutputFormat
from evaluator.output.schema import schema_text
from evaluator.patterns import Pattern

# The keywords that OpenAI's strict mode supports; a schema with any other is sent without `strict`.
_STRICT_NAMES = """
    type properties required additionalProperties items enum const anyOf $ref $defs title
    description
"""
_STRICT_WORDS = frozenset(_STRICT_NAMES.split())
_NAMED = Pattern(
    r"response[ _]?format|response[ _]?schema|response[ _]?mime[ _]?type|json[ _]?schema"
    r"|output[ _]?(?:format|config)"
    r"|structured[ _]?output|guided[ _](?:json|decoding)|grammar",
    "i",
)


def native_schema(output: OutputFormat | None) -> Mapping[str, Any] | None:
    """The JSON Schema of a declared output; None where there is none, or it allows everything
    (`any`).
    """
    if output is None or output.type != "json" or output.schema is None:
        return None
    text = schema_text(output.schema)
    schema = None if text is None else json.loads(text)
    if isinstance(schema, dict) and schema:
        return cast("Mapping[str, Any]", schema)
    return None


def response_format(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The field of a chat completion request. `strict` only where the schema keeps to that mode's
    rules.
    """
    declared: dict[str, Any] = {"name": "answer", "schema": dict(schema)}
    if is_strict(schema):
        declared["strict"] = True
    return {"type": "json_schema", "json_schema": declared}


def is_strict(schema: Mapping[str, Any]) -> bool:
    """Whether a schema follows the rules of strict mode.

    These are: an object in which, at any depth, every property is required and no other is allowed,
    and no keyword that the mode does not support.
    """
    try:
        return schema.get("type") == "object" and _fits(schema)
    except RecursionError:
        return False


def _fits(node: Any) -> bool:
    if not isinstance(node, Mapping):
        return False
    schema = cast("Mapping[str, Any]", node)
    if not _STRICT_WORDS.issuperset(schema) or not schema.keys() & {
        "type",
        "enum",
        "const",
        "anyOf",
        "$ref",
    }:
        return False
    declared = schema.get("type")
    if isinstance(declared, list):
        types = declared
    else:
        types = [declared]
    if "object" in types or "properties" in schema:
        names: Any = schema.get("properties", {})
        required: Any = schema.get("required", [])
        if schema.get("additionalProperties") is not False or set(names) != set(required):
            return False
    if "array" in types and "items" not in schema:
        return False
    inner: list[Any]
    if "items" in schema:
        inner = [schema["items"]]
    else:
        inner = []
    inner += schema.get("anyOf", [])
    for group in ("properties", "$defs"):
        inner += cast("Mapping[str, Any]", schema.get(group, {})).values()
    return all(_fits(child) for child in inner)


def kind_of(schema: Mapping[str, Any]) -> str:
    """The kind for which a refusal is remembered: providers that accept objects may refuse arrays
    or texts.
    """
    if schema.get("type", "object") == "object":
        return "object"
    return "other"


def is_refusal(error: ProviderError) -> bool:
    """Whether a provider refused a request because of its `response_format`."""
    return error.kind == "bad_request" and _NAMED.search(error.message) is not None
