"""Declared inputs, parameters and typed settings: given values in, checked values out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

from evaluator.binding.sandbox import render_sync
from evaluator.binding.scopes import Scope, plain
from evaluator.binding.types import describe, matches, read_typed, wrong_item
from evaluator.errors import Diagnostic, ExpressionError, TemplateError, UsageError
from evaluator.library.syntax import nearest
from evaluator.nodes import Input, Param, Span, Text

_EMPTY = Scope()


def bind_inputs(
    declared: Sequence[Input], given: Mapping[str, Any], *, location: Span, scope: Scope | None = None
) -> dict[str, Any]:
    """The values of a task's inputs, by name, in the order of their declaration.

    A given value has to be of the declared type. A missing one takes its `default`: a text, rendered in
    `scope` with the inputs before it, then read as the declared type. An input that is not required and has
    no default is null. An input with `from` or a nested task that is not given is left out: the caller
    resolves it.

    Raises: TemplateError with one diagnostic for each `missing-input`, `excess-input` and `wrong-type`, the
    first two at `location` where nothing nearer is known, and for each default that cannot be resolved.
    """
    values: dict[str, Any] = {}
    problems: list[Diagnostic] = []
    names = [entry.name for entry in declared]
    for name in given:
        if name not in names:
            takes = f"it takes: {', '.join(names)}" if names else "it takes none"
            message = f"there is no input {name!r}{nearest(name, names)} ({takes})"
            problems.append(Diagnostic("error", "excess-input", message, location))
    for entry in declared:
        if entry.name in given:
            _take(entry, given[entry.name], location, values, problems)
        elif entry.default is not None:
            _take_default(entry, entry.default, (scope or _EMPTY).child(dict(values)), values, problems)
        elif entry.source is not None or entry.task is not None:
            continue
        elif entry.required:
            about = f": {entry.description}" if entry.description else ""
            message = f"the required input {entry.name!r} ({entry.type}) is missing{about}"
            problems.append(Diagnostic("error", "missing-input", message, location, f"declared at {entry.span}"))
        else:
            values[entry.name] = None
    if problems:
        raise TemplateError(problems)
    return values


def check_type(value: Any, type_name: str, what: str, span: Span) -> Diagnostic | None:
    """What is wrong with a value's type, or None. An unknown type is a `wrong-type` too."""
    try:
        if matches(value, type_name):
            return None
    except UsageError as error:
        return Diagnostic("error", "wrong-type", f"{what}: {error}", span)
    message = f"{what}: expected {type_name}, got {describe(value)}{wrong_item(value, type_name)}"
    return Diagnostic("error", "wrong-type", message, span)


def _take(entry: Input, value: Any, location: Span, values: dict[str, Any], problems: list[Diagnostic]) -> None:
    try:
        value = plain(value, f"input {entry.name!r}")
    except UsageError as error:
        problems.append(Diagnostic("error", "wrong-type", str(error), location))
        return
    if value is None and not entry.required:
        values[entry.name] = None
        return
    problem = check_type(value, entry.type, f"input {entry.name!r}", location)
    if problem is None:
        values[entry.name] = value
    else:
        problems.append(problem)


def _take_default(
    entry: Input, default: Text, scope: Scope, values: dict[str, Any], problems: list[Diagnostic]
) -> None:
    try:
        values[entry.name] = read_typed(render_sync(default, scope), entry.type)
    except ExpressionError as error:
        problems.append(error.diagnostic())
    except UsageError as error:
        message = f"default of input {entry.name!r}: {error}"
        problems.append(Diagnostic("error", "wrong-type", message, default.span))


def bind_arguments(
    params: Sequence[Param], args: Sequence[Any], kwargs: Mapping[str, Any], *, name: str, span: Span
) -> dict[str, Any]:
    """The values of a function's parameters, by name, in the order of `params`.

    A parameter with a default may be left out; its default is text, read as the parameter's type.

    Raises: ExpressionError at `span`: `wrong-arity`, `unknown-argument`, `duplicate-argument` or
    `wrong-type`.
    """
    names = [param.name for param in params]
    signature = f"{name}({', '.join(_declared(param) for param in params)})"
    if len(args) > len(params):
        message = f"{name}() takes {_count(len(params))}, got {len(args)}: {signature}"
        raise ExpressionError(message, span, "wrong-arity")
    bound = dict(zip(names, args, strict=False))
    for key, value in kwargs.items():
        if key not in names:
            message = f"{name}() has no parameter {key!r}{nearest(key, names)}: {signature}"
            raise ExpressionError(message, span, "unknown-argument")
        if key in bound:
            raise ExpressionError(f"{name}() is given {key!r} twice", span, "duplicate-argument")
        bound[key] = value
    missing = [param.name for param in params if param.name not in bound and param.default is None]
    if missing:
        message = f"{name}() needs {', '.join(map(repr, missing))}: {signature}"
        raise ExpressionError(message, span, "wrong-arity")
    return {param.name: _argument(param, bound, name, span) for param in params}


def _argument(param: Param, bound: Mapping[str, Any], name: str, span: Span) -> Any:
    what = f"{name}(), parameter {param.name!r}"
    try:
        if param.name not in bound:
            return read_typed(param.default or "", param.type)
        value = plain(bound[param.name], param.name)
    except UsageError as error:
        raise ExpressionError(f"{what}: {error}", span, "wrong-type") from error
    problem = check_type(value, param.type, what, span)
    if problem is not None:
        raise ExpressionError(problem.message, span, "wrong-type")
    return value


def _declared(param: Param) -> str:
    typed = param.name if param.type == "any" else f"{param.name}: {param.type}"
    return typed if param.default is None else f"{typed} = {param.default!r}"


def _count(number: int) -> str:
    return f"{number} argument{'' if number == 1 else 's'}"


SettingKind = Literal["int", "float", "bool"]
_TYPE_OF: dict[SettingKind, str] = {"int": "integer", "float": "number", "bool": "boolean"}


def resolve_setting(
    value: int | float | bool | Text | None,
    kind: SettingKind,
    scope: Scope,
    *,
    name: str,
    minimum: float | None = None,
    maximum: float | None = None,
    span: Span | None = None,
) -> Any:
    """A typed attribute's value: int, float or bool as `kind` says, or None where the attribute is not set.

    A placeholder is substituted and the result is validated as if it had been written. Both limits are
    inclusive.

    Raises: ExpressionError at the attribute's text (at `span` where it held no placeholder): `wrong-type`,
    `out-of-range`, or what rendering raises.
    """
    if value is None:
        return None
    place = span or Span()
    if isinstance(value, Text):
        place = value.span
        rendered = render_sync(value, scope)
        try:
            value = cast(int | float | bool, read_typed(rendered, _TYPE_OF[kind]))
        except UsageError as error:
            raise ExpressionError(f"{name}: {error}", place, "wrong-type") from error
    if not matches(value, _TYPE_OF[kind]):
        message = f"{name}: expected {_TYPE_OF[kind]}, got {describe(value)}"
        raise ExpressionError(message, place, "wrong-type")
    if kind == "bool":
        return value
    if isinstance(value, float) and not math.isfinite(value):
        raise ExpressionError(f"{name}: {value} is not a finite number", place, "out-of-range")
    if minimum is not None and value < minimum:
        raise ExpressionError(f"{name}: {value} is less than {minimum:g}", place, "out-of-range")
    if maximum is not None and value > maximum:
        raise ExpressionError(f"{name}: {value} is more than {maximum:g}", place, "out-of-range")
    return int(value) if kind == "int" else float(value)
