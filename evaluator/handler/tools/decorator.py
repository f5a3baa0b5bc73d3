"""`@tool`: a Python function, sync or async, as a tool; its schema from signature and docstring."""

from __future__ import annotations

import functools
import inspect
import json
import re
from collections.abc import Callable
from typing import Any, overload

from evaluator.errors import UsageError
from evaluator.handler.backend import ToolSpec
from evaluator.handler.tools.registry import Policy, Tool, ToolContext
from evaluator.handler.tools.signature import Shape, resolve_hints, shape_of
from evaluator.handler.tools.threads import in_thread

_SECTION = re.compile(r"(?:Args|Arguments|Parameters|Params)\s*:\s*$")
_OTHER_SECTION = re.compile(r"(?:Returns?|Raises|Yields?|Examples?|Notes?|Warnings?|See Also)\s*:")
_ENTRY = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)")


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    policy: Policy = "allow",
    retryable: bool = False,
    effect: bool = True,
) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    policy: Policy = "allow",
    retryable: bool = False,
    effect: bool = True,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Makes a function a tool, as `@tool` or `@tool(policy="ask", …)`.

    Parameters without a default are required. A parameter annotated `ToolContext` is filled in by the
    Handler and hidden from the model. The docstring's text before its `Args:` is the tool's description. A
    sync function runs in a thread of its own, which a timeout abandons and cannot stop. The function itself
    is the tool's `function`.

    Raises: UsageError, for a parameter without an annotation or with one that JSON Schema cannot express.
    """

    def make(target: Callable[..., Any]) -> Tool:
        return _make(target, name, description, policy, retryable, effect)

    return make if function is None else make(function)


def _make(
    function: Callable[..., Any],
    name: str | None,
    description: str | None,
    policy: Policy,
    retryable: bool,
    effect: bool,
) -> Tool:
    title = name or getattr(function, "__name__", "")
    text, notes = _read_docstring(inspect.getdoc(function) or "", _parameter_names(function))
    shapes, schema, context_name = _read_signature(function, f"tool {title!r}", notes)

    def bind(arguments: dict[str, Any], context: ToolContext) -> dict[str, Any]:
        values = {key: shapes[key].convert(value) for key, value in arguments.items()}
        return values if context_name is None else {**values, context_name: context}

    async def run_async(arguments: dict[str, Any], context: ToolContext) -> Any:
        return await function(**bind(arguments, context))

    async def run_sync(arguments: dict[str, Any], context: ToolContext) -> Any:
        values = bind(arguments, context)
        value = await in_thread(lambda: function(**values))
        # What wraps an async function may itself be a plain one.
        return await value if inspect.isawaitable(value) else value

    return Tool(
        ToolSpec(title, description or text, schema),
        run_async if _is_async(function) else run_sync,
        policy=policy,
        retryable=retryable,
        effect=effect,
        function=function,
    )


def _is_async(function: Callable[..., Any]) -> bool:
    if inspect.isroutine(function):
        return inspect.iscoroutinefunction(function)
    return inspect.iscoroutinefunction(type(function).__call__)


def _parameter_names(function: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters)


def _read_signature(
    function: Callable[..., Any], where: str, notes: dict[str, str]
) -> tuple[dict[str, Shape], dict[str, Any], str | None]:
    """Each parameter's shape, the schema of them all, and the name of the one that takes the context."""
    inner = function.func if isinstance(function, functools.partial) else function
    annotated = inner if inspect.isroutine(inner) else type(inner).__call__
    hints = resolve_hints(annotated, where)
    shapes: dict[str, Shape] = {}
    properties: dict[str, Any] = {}
    required: list[str] = []
    context_name: str | None = None
    for parameter in inspect.signature(function).parameters.values():
        here = f"{where}, parameter {parameter.name!r}"
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise UsageError(f"{here}: a model passes arguments by name; {parameter} cannot take them")
        if parameter.name not in hints:
            raise UsageError(f"{here} has no annotation")
        if hints[parameter.name] is ToolContext:
            context_name = parameter.name
            continue
        shape = shape_of(hints[parameter.name], here)
        shapes[parameter.name] = shape
        described = {"description": notes[parameter.name]} if parameter.name in notes else {}
        properties[parameter.name] = {**shape.schema, **described, **_default(parameter.default)}
        if parameter.default is parameter.empty:
            required.append(parameter.name)
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return shapes, schema, context_name


def _default(value: Any) -> dict[str, Any]:
    if value is inspect.Parameter.empty or value is None:
        return {}
    try:
        return {"default": json.loads(json.dumps(value, allow_nan=False))}
    except (TypeError, ValueError):
        return {}  # a default that JSON cannot write is Python's own business


def _read_docstring(text: str, names: frozenset[str]) -> tuple[str, dict[str, str]]:
    """The description, and the text of each parameter: under `Args:`, or plain `name: text` lines."""
    description: list[str] = []
    notes: dict[str, str] = {}
    current: str | None = None
    ended = False
    for line in text.splitlines():
        stripped = line.strip()
        entry = _ENTRY.match(stripped)
        if _SECTION.match(stripped) or (stripped == line and _OTHER_SECTION.match(stripped)):
            ended, current = True, None
        elif entry and entry[1] in names:
            current = str(entry[1])
            notes[current] = entry[2]
        elif current is not None and stripped and line[0].isspace():
            notes[current] = f"{notes[current]} {stripped}".strip()
        elif not ended and not (current is not None and not stripped):
            current = None
            description.append(line)
    return "\n".join(description).strip(), {key: note for key, note in notes.items() if note}
