"""Checks given values against declared inputs, parameters and typed settings; finds inputs that no
text names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from evaluator.errors import Diagnostic, ExpressionError, InputError, UsageError
from evaluator.language.analysis import references_in
from evaluator.language.locating import LocatedError, nearest
from evaluator.language.sandbox import render_sync
from evaluator.language.scopes import Scope, describe, matches, plain, read_typed, wrong_item
from evaluator.nodes import Atomic, Input, Param, Span, Task, Text
from evaluator.nodes.declare import field_of
from evaluator.nodes.walk import children, descendants

_OF_STRINGS = ("string", "any")
"""Types that every text has."""


def bind_inputs(
    declared: Sequence[Input], given: Mapping[str, Any], *, location: Span
) -> dict[str, Any]:
    """The values of a task's inputs, by name, in the order of their declaration.

    A given value has to be of the declared type. An input that is not required is null if it is not
    given. The caller resolves defaults, `from` and nested tasks: an input with one of them that is
    not given is left out.

    Raises: InputError at `location`, with one diagnostic for each `missing-input`, `excess-input`
    and `wrong-type`.
    """
    values: dict[str, Any] = {}
    problems: list[Diagnostic] = []
    taken = 0
    for entry in declared:
        name = entry.name
        if name in given:
            taken += 1
            value = given[name]
            if value.__class__ is str and entry.type in _OF_STRINGS:
                values[name] = value  # the usual case, without the calls
            else:
                _take(entry, value, location=location, values=values, problems=problems)
        elif entry.must_be_given:
            about = ""
            if entry.description:
                about = f": {entry.description}"
            message = f"the required input {name!r} ({entry.type}) is missing{about}"
            hint = f"declared at {entry.span}"
            problems.append(
                Diagnostic("error", "missing-input", message=message, span=location, hint=hint)
            )
        elif entry.default is None and entry.is_given:
            values[entry.name] = None
    if taken < len(given):
        problems = [*_excess(declared, given, location), *problems]
    if problems:
        raise InputError(problems)
    return values


def _excess(
    declared: Sequence[Input], given: Mapping[str, Any], location: Span
) -> Iterable[Diagnostic]:
    """The findings about given values that no input takes."""
    names = [entry.name for entry in declared]
    takes = "it takes none"
    if names:
        takes = f"it takes: {', '.join(names)}"
    for name in given:
        if name not in names:
            message = f"there is no input {name!r}{nearest(name, names)} ({takes})"
            yield Diagnostic("error", "excess-input", message=message, span=location)


def check_type(value: Any, type_name: str, what: str, span: Span) -> Diagnostic | None:
    """The finding about a value that is not of a type, or None. An unknown type is a `wrong-type`
    too.
    """
    try:
        if matches(value, type_name):
            return None
    except UsageError as error:
        return Diagnostic("error", "wrong-type", message=f"{what}: {error}", span=span)
    message = f"{what}: expected {type_name}, got {describe(value)}{wrong_item(value, type_name)}"
    return Diagnostic("error", "wrong-type", message=message, span=span)


def _take(
    entry: Input, value: Any, location: Span, values: dict[str, Any], problems: list[Diagnostic]
) -> None:
    try:
        value = plain(value, f"input {entry.name!r}")
    except UsageError as error:
        problems.append(Diagnostic("error", "wrong-type", message=str(error), span=location))
        return
    if value is None and not entry.required:
        values[entry.name] = None
        return
    problem = check_type(value, entry.type, what=f"input {entry.name!r}", span=location)
    if problem is None:
        values[entry.name] = value
    else:
        problems.append(problem)


def bind_arguments(
    params: Sequence[Param],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    name: str,
    span: Span,
) -> dict[str, Any]:
    """The values of a function's parameters, by name, in the order of `params`.

    A parameter with a default may be left out; its default is text, read as the parameter's type.

    Raises: ExpressionError at `span`: `wrong-arity`, `unknown-argument`, `duplicate-argument` or
    `wrong-type`.
    """
    from evaluator.language.functions import bind_names

    names = [param.name for param in params]
    required = [param.name for param in params if param.default is None]
    try:
        bound = bind_names(f"{name}()", names, required=required, args=args, kwargs=kwargs)
    except LocatedError as error:
        signature = f"{name}({', '.join(_declared(param) for param in params)})"
        raise ExpressionError(f"{error.message}: {signature}", span, code=error.code) from None
    return {param.name: _argument(param, bound, name=name, span=span) for param in params}


def _argument(param: Param, bound: Mapping[str, Any], name: str, span: Span) -> Any:
    what = f"{name}(), parameter {param.name!r}"
    try:
        if param.name not in bound:
            return read_typed(param.default or "", param.type)
        value = plain(bound[param.name], param.name)
    except UsageError as error:
        raise ExpressionError(f"{what}: {error}", span, code="wrong-type") from error
    problem = check_type(value, param.type, what=what, span=span)
    if problem is not None:
        raise ExpressionError(problem.message, span, code="wrong-type")
    return value


def _declared(param: Param) -> str:
    if param.type == "any":
        typed = param.name
    else:
        typed = f"{param.name}: {param.type}"
    if param.default is None:
        return typed
    return f"{typed} = {param.default!r}"


def unnamed_inputs(task: Task) -> tuple[Input, ...]:
    """The inputs of a task that none of its texts names: they are appended to the prompt.

    The texts are those that are sent (the description only where it is the prompt), settings, file
    paths, the model's id, and what the other inputs and the tasks nested in them read.
    """
    is_prompt = task.instructions is None and not (isinstance(task, Atomic) and task.turns)
    unnamed = {declared.name: declared for declared in task.inputs}
    own = references_in(task, without=None if is_prompt else task.description)
    nested = (one for child in children(task) for one in descendants(child))
    read = chain(own, chain.from_iterable(map(references_in, nested)))
    # Most tasks name their inputs in their first text: the others are read only for what is left.
    for reference in read:
        unnamed.pop(reference.name, None)
        if not unnamed:
            break
    return tuple(unnamed.values())


_TYPE_OF: Mapping[str, str] = {"integer": "integer", "decimal": "number", "boolean": "boolean"}


def single_expression(text: Text) -> Text | None:
    """The expression of a text that consists of one `{{ … }}`, so that its value keeps its type."""
    value = text.value.strip()
    if (
        not (value.startswith("{{") and value.endswith("}}"))
        or value.count("{{") != 1
        or "}}" in value[2:-2]
    ):
        return None
    start = text.value.index("{{") + 2
    end = text.value.rindex("}}")
    # `{{-` and `-}}` remove the space around them, and there is none.
    if text.value[start:end].startswith(("-", "+")):
        start += 1
    if text.value[start:end].endswith("-"):
        end -= 1
    return text.part(start, end)


def resolve_setting(owner: Any, name: str, scope: Scope) -> Any:
    """The value of the setting `name` of a node or part: int, float or bool as declared, or None if
    it is not set.

    A placeholder is substituted and the result is validated as if it had been written.

    Raises: ExpressionError at the setting's text (at `owner` if it holds no placeholder):
    `wrong-type`, `out-of-range`, or what rendering raises.
    """
    value: Any = getattr(owner, name)
    if value is None:
        return None
    field = field_of(type(owner), name)
    shown = field.attribute or field.element
    wanted = _TYPE_OF[field.form]
    place: Span = owner.span
    if isinstance(value, Text):
        place = value.span
        rendered = render_sync(value, scope)
        try:
            value = read_typed(rendered, wanted)
        except UsageError as error:
            raise ExpressionError(f"{shown}: {error}", place, code="wrong-type") from error
    if not matches(value, wanted):
        raise ExpressionError(
            f"{shown}: expected {wanted}, got {describe(value)}", place, code="wrong-type"
        )
    if field.form == "boolean":
        return value
    if not field.admits(value):
        raise ExpressionError(
            f"{shown} must be {field.wanted}, not {value}", place, code="out-of-range"
        )
    if field.form == "integer":
        return int(value)
    return float(value)
