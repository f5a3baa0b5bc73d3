"""Coerces text to the number or the boolean that a declared schema requires. Other values are not coerced.

A text is coerced only where the schema allows no text. Nothing is filled in, wrapped, rounded or dropped.
"""

from __future__ import annotations

from typing import Any, cast

from evaluator.language.types import describe
from evaluator.output.result import json_path
from evaluator.output.scalars import read_as

_MAX_REFERENCES = 32
_SCALARS = frozenset({"number", "integer", "boolean"})


class Guide:
    """The types that a JSON Schema document allows at each place; cached for each node of the schema."""

    __slots__ = ("_types", "root")

    def __init__(self, document: dict[str, Any]) -> None:
        self.root = document
        self._types: dict[int, frozenset[str] | None] = {}

    @property
    def top(self) -> frozenset[str] | None:
        return self.types(self.root)

    def types(self, node: Any) -> frozenset[str] | None:
        """The types that a node allows; None where it allows any."""
        known = self._types.get(id(node), False)
        if known is not False:
            return cast("frozenset[str] | None", known)
        found = self._find_types(node, _MAX_REFERENCES)
        self._types[id(node)] = found
        return found

    def _find_types(self, node: Any, left: int) -> frozenset[str] | None:
        if not isinstance(node, dict) or left <= 0:
            return None
        node = cast(dict[str, Any], node)
        declared = node.get("type")
        if isinstance(declared, str):
            return frozenset({declared})
        if isinstance(declared, list):
            return frozenset(cast(list[str], declared))
        values = node.get("enum", [node["const"]] if "const" in node else None)
        if isinstance(values, list):
            return frozenset(describe(value) for value in cast(list[Any], values))
        for part in (self.target(node), *_list(node, "allOf")):
            found = self._find_types(part, left - 1) if part is not None else None
            if found is not None:
                return found
        for keyword in ("anyOf", "oneOf"):
            branches = [self._find_types(part, left - 1) for part in _list(node, keyword)]
            if branches and None not in branches:
                return frozenset[str]().union(*cast("list[frozenset[str]]", branches))
        return None

    def target(self, node: dict[str, Any]) -> Any:
        """The target of a node's `$ref` inside the document; None if there is none."""
        reference = node.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#"):
            return None
        found: Any = self.root
        for part in reference[1:].split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, dict) or part not in found:
                return None
            found = cast(dict[str, Any], found)[part]
        return found

    def parts(self, node: Any, kind: str, left: int = _MAX_REFERENCES) -> list[dict[str, Any]]:
        """The nodes that together describe a container of `kind`; of alternatives only a single one of this kind."""
        if not isinstance(node, dict) or left <= 0:
            return []
        node = cast(dict[str, Any], node)
        found = [node]
        target = self.target(node)
        if target is not None:
            found += self.parts(target, kind, left - 1)
        for part in _list(node, "allOf"):
            found += self.parts(part, kind, left - 1)
        for keyword in ("anyOf", "oneOf"):
            fitting = [part for part in _list(node, keyword) if kind in (self.types(part) or (kind,))]
            if len(fitting) == 1:
                found += self.parts(fitting[0], kind, left - 1)
        return found


def _list(node: dict[str, Any], keyword: str) -> list[Any]:
    found = node.get(keyword)
    return cast(list[Any], found) if isinstance(found, list) else []


class Coercion:
    """One pass over a value, which it changes in place. `notes` are the changes: the places by type, in order."""

    __slots__ = ("_guide", "_path", "notes")

    def __init__(self, guide: Guide) -> None:
        self._guide = guide
        self._path: list[str | int] = []
        self.notes: dict[str, list[str]] = {}

    def apply(self, value: Any, node: Any) -> Any:
        """The value with its texts coerced to the types of `node`; the same value if nothing has to be coerced."""
        if isinstance(value, str):
            return self._scalar(value, self._guide.types(node))
        if isinstance(value, dict):
            self._members(cast(dict[str, Any], value), node)
        elif isinstance(value, list):
            self._items(cast(list[Any], value), node)
        return value

    def _scalar(self, text: str, types: frozenset[str] | None) -> Any:
        if types is None or "string" in types or not types & _SCALARS:
            return text
        value = read_as(text, types)
        if value is None:
            return text
        kind = "boolean" if isinstance(value, bool) else "number"
        self.notes.setdefault(kind, []).append(json_path(self._path))
        return value

    def _members(self, value: dict[str, Any], node: Any) -> None:
        parts = self._guide.parts(node, "object")
        if not parts:
            return
        for key, item in value.items():
            if not isinstance(item, str | dict | list):
                continue
            child = _member_node(parts, key)
            if child is not None:
                self._path.append(key)
                value[key] = self.apply(item, child)
                self._path.pop()

    def _items(self, value: list[Any], node: Any) -> None:
        parts = self._guide.parts(node, "array")
        prefix = next((_list(part, "prefixItems") for part in parts if "prefixItems" in part), [])
        rest = next((part["items"] for part in parts if isinstance(part.get("items"), dict)), None)
        if rest is None and not prefix:
            return
        for index, item in enumerate(value):
            child = prefix[index] if index < len(prefix) else rest
            if child is None:
                return
            if isinstance(item, str | dict | list):
                self._path.append(index)
                value[index] = self.apply(item, child)
                self._path.pop()


def _member_node(parts: list[dict[str, Any]], key: str) -> Any:
    for part in parts:
        properties = part.get("properties")
        if isinstance(properties, dict) and key in properties:
            return cast(dict[str, Any], properties)[key]
    for part in parts:
        rest = part.get("additionalProperties")
        if isinstance(rest, dict):
            return cast(Any, rest)
    return None
