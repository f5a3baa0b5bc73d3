"""`@tool`: turns a Python function, sync or async, into a tool; its schema comes from signature and
docstring.
"""

from __future__ import annotations

import functools
import inspect
import json
import types
import typing
from collections.abc import Awaitable, Callable, Mapping
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Generic,
    ParamSpec,
    TypeVar,
    Union,
    get_args,
    get_origin,
    overload,
)

from evaluator.errors import ToolError, UsageError
from evaluator.errors.messages import did_you_mean
from evaluator.models.backend import ToolSpec
from evaluator.patterns import Pattern
from evaluator.processes.concurrency import in_thread
from evaluator.tools.policy import Policy
from evaluator.tools.tool import Control, Tool, ToolContext, object_schema

_SECTION = Pattern(r"(?:Args|Arguments|Parameters|Params)\s*:\s*$")
_OTHER_SECTION = Pattern(r"(?:Returns?|Raises|Yields?|Examples?|Notes?|Warnings?|See Also)\s*:")
_ENTRY = Pattern(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)")
_SCALARS: dict[Any, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    type(None): "null",
}

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")
Convert = Callable[[dict[str, Any]], dict[str, Any]]
"""Converts JSON values that fit the schema into values of the annotated types."""


class FunctionTool(Tool, Generic[_Parameters, _Result]):
    """A tool that `@tool` made. It is called as the function: `look_up("x")`."""

    __slots__ = ()

    if TYPE_CHECKING:

        def __call__(self, *args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result: ...


@overload
def tool(function: Callable[_Parameters, _Result], /) -> FunctionTool[_Parameters, _Result]: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    policy: Policy = "allow",
    retryable: bool = False,
    effect: bool = True,
    controls: Control | None = None,
) -> Callable[[Callable[_Parameters, _Result]], FunctionTool[_Parameters, _Result]]: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    policy: Policy = "allow",
    retryable: bool = False,
    effect: bool = True,
    controls: Control | None = None,
) -> FunctionTool[..., Any] | Callable[[Callable[..., Any]], FunctionTool[..., Any]]:
    """Turns a function into a tool, as `@tool` or `@tool(policy="ask", …)`. The tool may be called
    as the function.

    >>> @tool
    ... def count_words(text: str) -> int:
    ...     '''Counts the words of a text.'''
    ...     return len(text.split())
    >>> count_words("one two")
    2
    >>> count_words.spec.parameters["required"]
    ['text']

    Annotations may be any type that pydantic can describe as JSON Schema: str, int, list[…],
    dict[str, …], Literal, Enum, dataclasses, unions, pydantic models. `Annotated[T, "text"]`
    describes a parameter, as does the docstring. Unknown names are refused, in nested objects too.
    Parameters without a default are required. A parameter annotated with `ToolContext` is filled in
    by the Handler and hidden from the model. The docstring's text before its `Args:` is the tool's
    description. A sync function runs in its own thread, which a timeout abandons and cannot stop.
    The function itself is the tool's `function`. A tool that runs programs declares
    `controls="programs"`, and runs them in `context.sandbox`.

    Raises: UsageError, for a parameter without an annotation or with one that JSON Schema cannot
    express, and for an entry below `Args:` that is not a parameter.
    """

    def make(target: Callable[..., Any]) -> FunctionTool[..., Any]:
        title = name or getattr(target, "__name__", "")
        parameters = inspect.signature(target).parameters
        text, notes = _read_docstring(
            inspect.getdoc(target) or "", frozenset(parameters), where=f"tool {title!r}"
        )
        annotations, context_name = _annotations(target, parameters, where=f"tool {title!r}")
        schema, convert = _read_annotations(annotations, parameters, where=f"tool {title!r}")
        for key, schema_of_parameter in schema["properties"].items():
            if key in notes:
                schema_of_parameter["description"] = notes[key]
            schema_of_parameter |= _default(parameters[key].default)

        return FunctionTool(
            ToolSpec(title, description or text, parameters=schema),
            _runner(target, convert, context_name=context_name),
            policy=policy,
            retryable=retryable,
            effect=effect,
            controls=controls,
            function=target,
        )

    if function is None:
        return make
    return make(function)


def _runner(
    target: Callable[..., Any], convert: Convert, context_name: str | None
) -> Callable[[dict[str, Any], ToolContext], Awaitable[Any]]:
    """Calls `target` with converted arguments; `context_name` is its parameter for the context."""

    def bind(arguments: dict[str, Any], context: ToolContext) -> dict[str, Any]:
        values = convert(arguments)
        if context_name is None:
            return values
        return {**values, context_name: context}

    async def run_async(arguments: dict[str, Any], context: ToolContext) -> Any:
        return await target(**bind(arguments, context))

    async def run_sync(arguments: dict[str, Any], context: ToolContext) -> Any:
        values = bind(arguments, context)
        value = await in_thread(lambda: target(**values))
        # A plain function may wrap an async one.
        if inspect.isawaitable(value):
            return await value
        return value

    called = target
    if not inspect.isroutine(target):
        called = type(target).__call__
    if inspect.iscoroutinefunction(called):
        return run_async
    return run_sync


def _annotations(
    function: Callable[..., Any], parameters: Mapping[str, inspect.Parameter], where: str
) -> tuple[dict[str, Any], str | None]:
    """The annotation of each parameter that a model gives, and the name of the one that takes the
    context.
    """
    if isinstance(function, functools.partial):
        inner = function.func
    else:
        inner = function
    try:
        hints = typing.get_type_hints(
            inner if inspect.isroutine(inner) else type(inner).__call__, include_extras=True
        )
    except (NameError, TypeError, AttributeError, SyntaxError) as error:
        raise UsageError(
            f"{where}: its annotations cannot be read ({error}); define types at module level"
        ) from error
    found: dict[str, Any] = {}
    context_name: str | None = None
    for name, parameter in parameters.items():
        here = f"{where}, parameter {name!r}"
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise UsageError(
                f"{here}: a model passes arguments by name; {parameter} cannot take them"
            )
        if name not in hints:
            raise UsageError(f"{here} has no annotation")
        if hints[name] is ToolContext:
            context_name = name
        else:
            found[name] = hints[name]
    return found, context_name


def _read_annotations(
    annotations: Mapping[str, Any], parameters: Mapping[str, inspect.Parameter], where: str
) -> tuple[dict[str, Any], Convert]:
    """The schema of the arguments, and their conversion."""
    required = [name for name in annotations if parameters[name].default is inspect.Parameter.empty]
    simple = {name: _simple_schema(annotation) for name, annotation in annotations.items()}
    properties = {name: schema for name, schema in simple.items() if schema is not None}
    if len(properties) < len(simple):
        return _read_with_pydantic(annotations, required, where=where)
    # JSON has one kind of number: 3.0 is a valid integer, and 3 a valid number.
    numbers = {name: kind for name, kind in annotations.items() if kind in (int, float)}
    return object_schema(properties, required), lambda given: {
        key: numbers[key](value) if key in numbers else value for key, value in given.items()
    }


def _simple_schema(annotation: Any) -> dict[str, Any] | None:
    """The schema of a scalar, a union of scalars or list[str]; None for others.

    These are what the built-in tools have: with them, pydantic is not loaded, which takes a tenth
    of a second.
    """
    if get_origin(annotation) is Annotated and all(
        isinstance(extra, str) for extra in get_args(annotation)[1:]
    ):
        schema = _simple_schema(get_args(annotation)[0])
        if schema is None:
            return None
        return {**schema, "description": _text_in(annotation)}
    if annotation is Any:
        return {}
    if annotation == list[str]:
        return {"type": "array", "items": {"type": "string"}}
    if get_origin(annotation) in (Union, types.UnionType) and all(
        arg in _SCALARS for arg in get_args(annotation)
    ):
        return {"type": [_SCALARS[arg] for arg in get_args(annotation)]}
    kind = None
    if isinstance(annotation, type):
        kind = _SCALARS.get(annotation)
    if kind is None:
        return None
    return {"type": kind}


def _text_in(annotation: Any) -> str | None:
    """The description in `Annotated[T, "description"]`."""
    if get_origin(annotation) is not Annotated:
        return None
    return next((extra for extra in get_args(annotation)[1:] if isinstance(extra, str)), None)


def _read_with_pydantic(
    annotations: Mapping[str, Any], required: list[str], where: str
) -> tuple[dict[str, Any], Convert]:
    import typing_extensions
    from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
    from pydantic.errors import PydanticUserError

    fields: dict[str, Any] = {}
    for name, annotation in annotations.items():
        described: Any = Annotated[annotation, Field(description=_text_in(annotation))]
        try:
            TypeAdapter(described).json_schema()
        except (PydanticUserError, AttributeError, TypeError) as error:
            raise UsageError(
                f"{where}, parameter {name!r}: {annotation} cannot be described to a model: {error}"
            ) from error
        fields[name] = described if name in required else typing.NotRequired[described]
    arguments: Any = vars(typing_extensions)["TypedDict"]("arguments", fields)
    arguments.__pydantic_config__ = ConfigDict(extra="forbid")
    adapter: TypeAdapter[dict[str, Any]] = TypeAdapter(arguments)

    def convert(given: dict[str, Any]) -> dict[str, Any]:
        try:
            return adapter.validate_python(given)
        except ValidationError as error:
            first = error.errors()[0]
            raise ToolError(
                f"argument {'.'.join(map(str, first['loc']))}: {first['msg']}"
            ) from error

    schema = adapter.json_schema()
    for described in (schema, *schema["properties"].values()):
        described.pop("title", None)
    return {**schema, "required": required, "additionalProperties": False}, convert


def _default(value: Any) -> dict[str, Any]:
    if value is inspect.Parameter.empty or value is None:
        return {}
    try:
        return {"default": json.loads(json.dumps(value, allow_nan=False))}
    except (TypeError, ValueError):
        return {}  # a default that JSON cannot express is not shown to the model


def _read_docstring(text: str, names: frozenset[str], where: str) -> tuple[str, dict[str, str]]:
    """The description, and the text of each parameter: below `Args:`, or as plain `name: text`
    lines.

    Raises: UsageError, for an entry below `Args:` that is not a parameter.
    """
    description: list[str] = []
    notes: dict[str, str] = {}
    current: str | None = None
    ended = False
    # The indents of `Args:` and of its first entry; the lines of an entry are further in.
    section: int | None = None
    first: int | None = None
    for line in text.splitlines():
        stripped = line.strip()
        indent = len(line) - len(line.lstrip())
        entry = _ENTRY.match(stripped)
        if section is not None and stripped:
            if indent <= section:
                section = None
            if first is None:
                first = indent
        if _SECTION.match(stripped) or (stripped == line and _OTHER_SECTION.match(stripped)):
            ended = True
            current = None
            section = None
            if _SECTION.match(stripped):
                section = indent
            first = None
        elif entry and entry[1] in names:
            current = str(entry[1])
            notes[current] = entry[2]
        elif entry and section is not None and indent == first:
            hint = did_you_mean(entry[1], sorted(names))
            message = f"{where}: its docstring describes {entry[1]!r}, which is not a parameter"
            raise UsageError(message if hint is None else f"{message}; {hint}")
        elif current is not None and stripped and line[0].isspace():
            notes[current] = f"{notes[current]} {stripped}".strip()
        elif not ended and not (current is not None and not stripped):
            current = None
            description.append(line)
    return "\n".join(description).strip(), {key: note for key, note in notes.items() if note}
