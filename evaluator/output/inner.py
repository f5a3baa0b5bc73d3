"""Finds the one value inside another that fits a schema: `{"keywords": ["a"]}` for an array,
arguments of a call.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from evaluator.language.types import describe
from evaluator.output.choose import CheckedValue, conform
from evaluator.output.repairs import MESSAGES
from evaluator.output.schema import NotChecked, Schema

_CONTAINERS = frozenset({"object", "array"})
_MAX_DEPTH = 5
_MAX_PLACES = 32


def read_inner(values: list[Any], schema: Schema | None) -> CheckedValue | None:
    """The only object or array inside `values` that fits the schema wholly; None if there is none,
    or several.

    Declared properties are not searched: an object that has them is the value itself, with a
    mistake. Nor are arrays with several items: one item cannot stand for all.
    """
    if schema is None or schema.guide is None:
        return None
    wanted = (schema.types or frozenset[str]()) - {"null"}
    if not wanted or wanted - _CONTAINERS:
        return None
    declared = schema.guide.properties(schema.guide.root).keys()
    fitting: list[CheckedValue] = []
    waiting = [(child, 1, len(value)) for value in values for child in _children(value, declared)]
    for count, (value, depth, siblings) in enumerate(waiting):
        if count >= _MAX_PLACES:
            return None
        if describe(value) in wanted or (
            isinstance(value, str) and value.lstrip()[:1] in ("{", "[")
        ):
            conformed = conform(value, schema, MESSAGES["inner"])
            if isinstance(conformed.error, NotChecked):
                return None
            if conformed.error is None and not value and siblings > 1:
                return None  # {"error": "not found", "items": []} may be no answer
            if conformed.error is None:
                fitting.append(conformed)
                continue
        if depth < _MAX_DEPTH:
            waiting += [(child, depth + 1, len(value)) for child in _children(value, declared)]
    if len(fitting) == 1:
        return fitting[0]
    return None


def _children(value: Any, declared: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for key, child in cast(dict[str, Any], value).items():
            if key not in declared and isinstance(child, dict | list | str):
                yield child
    elif isinstance(value, list) and len(cast(list[Any], value)) == 1:
        yield value[0]
