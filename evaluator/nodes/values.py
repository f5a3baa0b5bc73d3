"""The names of value types, and shapes: what is known of a value before anything runs.

Where nothing is known the shape is ANY, about which no check complains.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Literal, cast

from evaluator.lazy_dataclass import frozen

TYPE_NAMES = ("any", "string", "number", "integer", "boolean", "object", "array", "[]")
"""The base types; `[]` is another spelling of `array`. `T[]` is a list of T."""

VALUE_TYPES = (
    *TYPE_NAMES,
    *(f"{name}[]" for name in ("string", "number", "integer", "boolean", "object")),
)
"""The types that an `<input>` or a parameter can declare, as in task.xsd."""

Kind = Literal["any", "string", "number", "integer", "boolean", "object", "array", "null"]
KINDS: frozenset[str] = frozenset({*TYPE_NAMES, "null"} - {"[]"})


@frozen
class Shape:
    """`fields` of an object, complete unless `open`; `item` of an array; `what` names it in
    messages.

    `absent` explains a name that exists elsewhere and not here (a later step, for instance).
    `empty` says why the value is always empty here.
    """

    kind: Kind = "any"
    fields: Mapping[str | int, Shape] | None = None
    open: bool = True
    item: Shape | None = None
    what: str = ""
    absent: Callable[[str | int], str | None] | None = None
    empty: str = ""


ANY = Shape()
STRING = Shape("string")
NULL = Shape("null")
INTEGER = Shape("integer")
BOOLEAN = Shape("boolean")
OBJECT = Shape("object")


def record(what: str = "", open: bool = False, **fields: Shape) -> Shape:
    """An object with these fields and, unless `open`, no others."""
    return Shape("object", fields=cast("Mapping[str | int, Shape]", fields), open=open, what=what)


@lru_cache(maxsize=64)
def of_type(name: str) -> Shape | None:
    """The shape of a type's name (`string`, `number[]`, `[]`, …); None if there is no such type."""
    base = name
    while len(base) > 2 and base.endswith("[]"):
        base = base[:-2]
    if base not in TYPE_NAMES:
        return None
    if base == "[]":
        shape = Shape("array")
    else:
        shape = Shape(cast("Kind", base))
    for _ in range((len(name) - len(base)) // 2):
        shape = Shape("array", item=shape)
    return shape


def type_text(shape: Shape) -> str:
    """A shape in the words of types: `string[]`, `object`."""
    if shape.kind == "array" and shape.item is not None:
        return f"{type_text(shape.item)}[]"
    return "nothing" if shape.kind == "null" else shape.kind


def value_shape(parsed: Shape) -> Shape:
    """The shape of a result as a value: the parsed value, or the text where nothing is parsed."""
    if parsed.kind == "null":
        return STRING
    return parsed
