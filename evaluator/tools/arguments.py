"""A model's arguments of a call: parsed strictly, and validated against the tool's JSON Schema
within bounded work.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from evaluator.errors import ToolError
from evaluator.errors.messages import json_problem
from evaluator.tools.tool import Tool, describe_error, shorten

if TYPE_CHECKING:
    from evaluator.output.validator import BoundedValidator

CALL_FORM = (
    'write JSON like {"name": "the tool", "arguments": {"an argument": "its value"}} '
    "between the tags"
)
_MAX_VIOLATIONS = 5


def why_unreadable(text: str) -> str:
    """Why the text of a call names no tool and arguments."""
    if not text.strip():
        return "it is empty"
    try:
        parse_arguments(text)
    except ToolError as error:
        return str(error)
    return "it names no tool"


def parse_arguments(text: str) -> dict[str, Any]:
    """A model's arguments, parsed strictly: one JSON object, no duplicate names, no NaN. Empty text
    is an empty object.

    Raises: ToolError, with line, column and the text found there.
    """
    if not text.strip():
        return {}
    try:
        value = json.loads(text, object_pairs_hook=_distinct, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        found = text[error.pos : error.pos + 20]
        where = f"at line {error.lineno}, column {error.colno}"
        what = "the text ends there"
        if found:
            what = f"found {found!r}"
        raise ToolError(
            f"not valid JSON: {error.msg} {where} ({what}); send one JSON object"
        ) from error
    except RecursionError as error:
        raise ToolError("nested too deeply; send a flat JSON object") from error
    except ValueError as error:
        raise ToolError(f"not valid JSON: {json_problem(error)}") from error
    if not isinstance(value, dict):
        kind = _JSON_KINDS.get(type(value), "value")
        raise ToolError(f"expected one JSON object with named arguments, found {kind}")
    return cast(dict[str, Any], value)


_JSON_KINDS: dict[type, str] = {
    list: "an array",
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "a boolean",
    type(None): "null",
}


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))
        raise ValueError(f"the name {twice!r} occurs twice")
    return value


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON value")


def validate_arguments(tool: Tool, arguments: Mapping[str, Any]) -> None:
    """Raises ToolError if arguments violate the tool's schema; it names up to five violations with
    their JSON paths.
    """
    from evaluator.output.validator import MAX_STEPS, Watch

    validator = _validator_of(json.dumps(tool.spec.parameters))
    watch = Watch()
    try:
        if validator.verdict(arguments):
            return
        found = validator.errors(arguments, _MAX_VIOLATIONS, watch)
        violations = [
            f"{violation.json_path}: {shorten(violation.message, 300)}" for violation in found
        ]
    except Exception as error:  # an unresolvable reference, a pattern that no engine accepts
        raise ToolError(f"the tool's own schema cannot be used: {describe_error(error)}") from error
    if violations:
        raise ToolError("; ".join(violations))
    if watch.is_spent:
        raise ToolError(
            f"the arguments are not checked: that takes more than {MAX_STEPS:,} steps; give "
            "shorter arguments"
        )
    if watch.late:
        raise ToolError(
            "a pattern of the tool's schema took too long on these arguments: give shorter texts"
        )


@lru_cache(256)
def _validator_of(schema: str) -> BoundedValidator:
    """The validator of a schema, which tools that are made again and again share."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError

    from evaluator.output.validator import BoundedValidator

    parameters = json.loads(schema)
    try:
        Draft202012Validator.check_schema(parameters)
    except SchemaError as error:
        raise ToolError(
            f"the tool's own schema is not valid: {shorten(error.message, 300)}"
        ) from error
    return BoundedValidator(parameters, Draft202012Validator)


def check_action(
    arguments: Mapping[str, Any], required: Sequence[str], optional: Sequence[str] = ()
) -> None:
    """Raises ToolError for an argument that the action in `arguments["action"]` lacks or does not
    take.
    """
    action = arguments["action"]
    known = (*required, *optional)
    missing = [name for name in required if name not in arguments]
    if missing:
        raise ToolError(f"{action} needs {' and '.join(missing)}")
    unknown = [name for name in arguments if name not in ("action", *known)]
    if unknown:
        takes = ", ".join(known) or "no other argument"
        raise ToolError(
            f"{action} does not take {' and '.join(unknown)}; it takes {takes}; nothing was done"
        )
