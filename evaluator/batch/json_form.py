"""Dataclasses that are written as JSON: their fields in order, then their computed properties."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, ClassVar, cast


class JsonForm:
    """A dataclass whose JSON object has a key for each field, and then for each property in
    `computed`.

    A field's metadata may name another `key`, or `merged`: the keys of its value then replace it.
    """

    __slots__ = ()
    computed: ClassVar[tuple[str, ...]] = ()

    def to_dict(self) -> dict[str, Any]:
        return fields_as_json(self)


def fields_as_json(record: JsonForm) -> dict[str, Any]:
    """The fields and computed properties of a dataclass as a JSON object."""
    data: dict[str, Any] = {}
    for field in fields(cast("Any", record)):
        value = _json_value(getattr(record, field.name))
        if field.metadata.get("merged"):
            data.update(value)
        else:
            data[field.metadata.get("key", field.name)] = value
    return data | {name: getattr(record, name) for name in record.computed}


def _json_value(value: Any) -> Any:
    if isinstance(value, JsonForm):
        return value.to_dict()
    if isinstance(value, tuple):
        return [_json_value(item) for item in cast("tuple[Any, ...]", value)]
    if isinstance(value, Mapping):
        return {name: _json_value(item) for name, item in cast("Mapping[str, Any]", value).items()}
    return value
