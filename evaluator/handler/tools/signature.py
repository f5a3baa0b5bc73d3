"""Python annotations as JSON Schema, and JSON values as the Python values that they stand for."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin

from evaluator.errors import UsageError

_SCALARS: dict[Any, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    type(None): "null",
}


@dataclass(frozen=True, slots=True)
class Shape:
    """An annotation's JSON Schema, and how a value that fits the schema becomes the annotation's own."""

    schema: dict[str, Any]
    convert: Callable[[Any], Any]


def shape_of(annotation: Any, where: str, within: tuple[Any, ...] = ()) -> Shape:
    """The shape of an annotation; `where` names it in errors.

    Takes str, int, float, bool, None, Any, list[T], Sequence[T], dict[str, T], Mapping[str, T], Literal,
    Enum, unions, Annotated with a text as description, dataclasses and TypedDicts. Raises UsageError for
    anything else.
    """
    if annotation in within:
        raise UsageError(f"{where}: {_name(annotation)} contains itself, which a tool's schema cannot express")
    if annotation is Any:
        return Shape({}, _same)
    if annotation in _SCALARS:
        return Shape({"type": _SCALARS[annotation]}, _CONVERSIONS.get(annotation, _same))
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        inner = shape_of(args[0], where, within)
        texts = [extra for extra in args[1:] if isinstance(extra, str)]
        return Shape({**inner.schema, "description": texts[0]}, inner.convert) if texts else inner
    if origin is Literal:
        return _choice(args, where, _same)
    if origin in (Union, types.UnionType):
        return _union(args, where, within)
    if origin in (list, Sequence) or annotation is list:
        item = shape_of(args[0], where, within) if args else Shape({}, _same)
        schema = {"type": "array", "items": item.schema} if args else {"type": "array"}
        return Shape(schema, lambda value: [item.convert(one) for one in value])
    if origin in (dict, Mapping) or annotation is dict:
        if args and args[0] is not str:
            raise UsageError(f"{where}: the keys of {_name(annotation)} have to be str, as in JSON")
        one = shape_of(args[1], where, within) if args else Shape({}, _same)
        return Shape(
            {"type": "object", "additionalProperties": one.schema or True},
            lambda value: {key: one.convert(item) for key, item in value.items()},
        )
    if isinstance(annotation, type):
        return _class_shape(annotation, where, within)
    raise _unsupported(annotation, where)


def _class_shape(annotation: type, where: str, within: tuple[Any, ...]) -> Shape:
    if issubclass(annotation, Enum):
        return _choice(tuple(member.value for member in annotation), where, annotation)
    if typing.is_typeddict(annotation):
        return _record(annotation, _typed_dict_fields(annotation), where, within, dict)
    if is_dataclass(annotation):
        declared = [
            (field.name, field.default is MISSING and field.default_factory is MISSING)
            for field in fields(annotation)
            if field.init
        ]
        return _record(annotation, declared, where, within, annotation)
    raise _unsupported(annotation, where)


def _typed_dict_fields(annotation: Any) -> list[tuple[str, bool]]:
    required: frozenset[str] = annotation.__required_keys__
    return [(name, name in required) for name in annotation.__annotations__]


def _record(
    annotation: Any,
    declared: list[tuple[str, bool]],
    where: str,
    within: tuple[Any, ...],
    build: Callable[..., Any],
) -> Shape:
    hints = resolve_hints(annotation, where)
    shapes = {name: shape_of(_unmarked(hints[name]), f"{where}.{name}", (*within, annotation)) for name, _ in declared}
    schema = {
        "type": "object",
        "properties": {name: shape.schema for name, shape in shapes.items()},
        "required": [name for name, required in declared if required],
        "additionalProperties": False,
    }
    return Shape(schema, lambda value: build(**{name: shapes[name].convert(item) for name, item in value.items()}))


def _unmarked(annotation: Any) -> Any:
    return get_args(annotation)[0] if get_origin(annotation) in (typing.Required, typing.NotRequired) else annotation


def _union(args: tuple[Any, ...], where: str, within: tuple[Any, ...]) -> Shape:
    branches = [shape_of(arg, where, within) for arg in args]
    kinds = [branch.schema.get("type") for branch in branches]
    if all(set(branch.schema) == {"type"} for branch in branches):
        schema: dict[str, Any] = {"type": kinds}
    else:
        schema = {"anyOf": [branch.schema for branch in branches]}
    others = [branch for branch in branches if branch.schema != {"type": "null"}]
    if len(others) == 1:
        only = others[0]
        return Shape(schema, lambda value: None if value is None else only.convert(value))
    return Shape(schema, lambda value: _first_fit(branches, value))


def _first_fit(branches: Sequence[Shape], value: Any) -> Any:
    from jsonschema import Draft202012Validator

    for branch in branches:
        if Draft202012Validator(branch.schema).is_valid(value):
            return branch.convert(value)
    return value


def _choice(values: tuple[Any, ...], where: str, convert: Callable[[Any], Any]) -> Shape:
    for value in values:
        if value is not None and not isinstance(value, str | int | float):
            raise UsageError(f"{where}: {value!r} cannot be written in JSON")
    kinds = {_SCALARS.get(type(value)) for value in values}
    schema: dict[str, Any] = {"enum": list(values)}
    if len(kinds) == 1 and None not in kinds:
        schema = {"type": cast(str, kinds.pop()), **schema}
    return Shape(schema, convert)


def resolve_hints(subject: Any, where: str) -> dict[str, Any]:
    """Annotations with their names looked up. Raises UsageError where a name cannot be found."""
    try:
        return typing.get_type_hints(subject, include_extras=True)
    except (NameError, TypeError, AttributeError, SyntaxError) as error:
        raise UsageError(f"{where}: its annotations cannot be read ({error}); define types at module level") from error


def _unsupported(annotation: Any, where: str) -> UsageError:
    return UsageError(
        f"{where}: {_name(annotation)} cannot be described to a model; use str, int, float, bool, list[…], "
        "dict[str, …], Literal, an Enum, a dataclass, a TypedDict or a union of these"
    )


def _name(annotation: Any) -> str:
    return annotation.__qualname__ if isinstance(annotation, type) and not get_args(annotation) else repr(annotation)


def _same(value: Any) -> Any:
    return value


# JSON has one kind of number: 3.0 is a valid integer there, and 3 a valid number.
_CONVERSIONS: dict[Any, Callable[[Any], Any]] = {int: int, float: float}
