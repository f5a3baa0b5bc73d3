"""Functions that a task offers to its model without running them: the value of `<tools from="…">`.

The schemas come from data, such as a row of a benchmark, so nothing is looked up or executed. The
calls are the answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from evaluator.errors import TemplateError
from evaluator.errors.messages import json_problem
from evaluator.language.sandbox import evaluate_expression_sync
from evaluator.language.scopes import Scope
from evaluator.lazy_dataclass import frozen
from evaluator.models.backend import ToolCall, ToolSpec
from evaluator.nodes import Expression, Span
from evaluator.patterns import Pattern

_INVALID = Pattern(r"[^A-Za-z0-9_-]")
MAX_NAME = 64

# Types of other languages that public collections of functions use, as JSON Schema types.
_FOREIGN_TYPES = {
    "object": "dict hashmap hashtable map",
    "array": "list tuple set arraylist queue stack",
    "number": "float double",
    "integer": "int long short byte bigint",
    "boolean": "bool",
    "string": "str char any",
}
_TYPES = {other: name for name, others in _FOREIGN_TYPES.items() for other in others.split()}
_STANDARD = ("object", "array", "number", "integer", "boolean", "string", "null")


@frozen
class OfferedFunctions:
    """`specs` are what the model is offered; `names` maps the names there to those in the data."""

    specs: tuple[ToolSpec, ...]
    names: Mapping[str, str]

    def calls(self, calls: Sequence[ToolCall]) -> list[dict[str, Any]]:
        """The model's calls as data: name and arguments. Arguments that are not a JSON object stay
        text.
        """
        return [
            {"name": self.names.get(c.name, c.name), "arguments": _arguments(c.arguments)}
            for c in calls
        ]


def offered_functions(tools_from: Expression, scope: Scope) -> OfferedFunctions:
    """The functions that the expression `tools_from` of a task gives.

    A function is `{name, description, parameters}`, or that in the field `function` of OpenAI's
    form; the list may be JSON text. Characters in names that providers refuse become `_`.

    Raises: TemplateError, for a value that is not a list of functions; ExpressionError, from the
    expression.
    """
    span = tools_from.span
    value = evaluate_expression_sync(tools_from, scope)
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise _invalid(f"the text is not JSON: {json_problem(error)}", span) from error
    if isinstance(value, Mapping):
        value = [value]
    if not isinstance(value, list | tuple):
        raise _invalid(f"expected a list of functions, got {type(value).__name__}", span)
    specs: dict[str, ToolSpec] = {}
    names: dict[str, str] = {}
    for number, item in enumerate(cast("Sequence[Any]", value), 1):
        spec = _spec(item, number, span=span)
        name = _INVALID.sub("_", spec.name)[:MAX_NAME]
        if name in specs:
            raise _invalid(f"function {number}: the name {spec.name!r} is there twice", span)
        names[name] = spec.name
        specs[name] = ToolSpec(name, spec.description, parameters=spec.parameters)
    return OfferedFunctions(tuple(specs.values()), names)


def _spec(item: Any, number: int, span: Span) -> ToolSpec:
    inner: Any = item
    if isinstance(item, Mapping):
        inner = cast("Mapping[str, Any]", item).get("function", item)
    if not isinstance(inner, Mapping):
        raise _invalid(
            f"function {number} is not an object with name, description and parameters", span
        )
    function = cast("Mapping[str, Any]", inner)
    name = function.get("name")
    description = function.get("description") or ""
    parameters = function.get("parameters") or {}
    if not isinstance(name, str) or not name:
        raise _invalid(f"function {number} has no name", span)
    if not isinstance(description, str) or not isinstance(parameters, Mapping):
        raise _invalid(
            f"function {number}, {name}: description is text, and parameters a JSON Schema", span
        )
    schema = {
        "type": "object",
        "properties": {},
        **cast("Mapping[str, Any]", _standard(parameters)),
    }
    return ToolSpec(name, description, parameters=schema)


def _standard(schema: Any) -> Any:
    """A schema with JSON Schema's names of types."""
    if isinstance(schema, list | tuple):
        return [_standard(part) for part in cast("Sequence[Any]", schema)]
    if not isinstance(schema, Mapping):
        return schema
    standard: dict[str, Any] = {}
    for key, value in cast("Mapping[str, Any]", schema).items():
        if key == "type" and isinstance(value, str):
            lower = value.lower()
            standard[key] = _TYPES.get(lower, lower if lower in _STANDARD else value)
        elif key == "properties" and isinstance(value, Mapping):
            standard[key] = {
                name: _standard(part) for name, part in cast("Mapping[str, Any]", value).items()
            }
        elif key in ("items", "additionalProperties", "anyOf", "oneOf", "allOf"):
            standard[key] = _standard(value)
        else:
            standard[key] = value
    return standard


def _arguments(text: str) -> Any:
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return text
    if isinstance(value, dict):
        return value
    return text


def _invalid(message: str, span: Span) -> TemplateError:
    return TemplateError.of("invalid-functions", f"tools: {message}", span=span)
