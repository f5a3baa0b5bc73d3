"""Coerces text to the number or the boolean that a declared schema requires. Other values are not
coerced.

A text is coerced only where the schema allows no text. Nothing is filled in, wrapped, rounded or
dropped.
"""

from __future__ import annotations

from typing import Any, cast

from evaluator.language.scopes import describe
from evaluator.output.fast_check import is_dict, is_list
from evaluator.output.reader import read_block
from evaluator.output.result import json_path
from evaluator.output.scalars import as_type, has_multiplier, is_null, read_as, read_quantity
from evaluator.output.strict import StrictScanner, read_as_meant
from evaluator.output.words import find_labelled, find_word

_MAX_REFERENCES = 32
_MAX_STEPS = 2_000
_STEPS_PER_TEXT = 5
_SCALARS = frozenset({"number", "integer", "boolean"})


class Guide:
    """The types that a JSON Schema document allows at each place; cached for each node of the
    schema.
    """

    __slots__ = ("_types", "_words", "root")

    def __init__(self, document: dict[str, Any]) -> None:
        self.root = document
        self._types: dict[tuple[int, int], frozenset[str] | None] = {}
        self._words: dict[int, list[str]] = {}

    @property
    def top(self) -> frozenset[str] | None:
        return self.types(self.root)

    def types(self, node: Any, left: int = _MAX_REFERENCES) -> frozenset[str] | None:
        """The types that a node allows; None where it allows any, or `left` levels below do not
        tell.
        """
        # Levels with several references to the next one would otherwise take exponential time.
        key = (id(node), left)
        if key not in self._types:
            self._types[key] = self._find_types(node, left)
        return self._types[key]

    def _find_types(self, node: Any, left: int) -> frozenset[str] | None:
        if not is_dict(node) or left <= 0:
            return None
        declared = node.get("type")
        if isinstance(declared, str):
            return frozenset({declared})
        if is_list(declared):
            return frozenset(declared)
        values = _enumerated(node)
        if values is not None:
            return frozenset(describe(value) for value in values)
        for part in (self.target(node), *_list(node, "allOf")):
            found = self.types(part, left - 1)
            if found is not None:
                return found
        for keyword in ("anyOf", "oneOf"):
            branches = [self.types(part, left - 1) for part in _list(node, keyword)]
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
            if not is_dict(found) or part not in found:
                return None
            found = found[part]
        return found

    def words(self, node: Any) -> list[str]:
        """The strings that a node and its alternatives enumerate; [] if it does not, or allows
        others too.
        """
        known = self._words.get(id(node))
        if known is None:
            self._words[id(node)] = []  # while it is looked for: a node may contain itself
            known = self._words[id(node)] = self._find_words(node)
        return known

    def _find_words(self, node: Any) -> list[str]:
        for part in self.parts(node, "string"):
            values = _enumerated(part)
            if values is not None:
                return [value for value in values if isinstance(value, str)]
            for keyword in ("anyOf", "oneOf"):
                types = [(branch, self.types(branch)) for branch in _list(part, keyword)]
                found = [
                    self.words(branch)
                    for branch, kinds in types
                    if kinds is not None and "string" in kinds
                ]
                if len(found) > 1 and all(found) and all(kinds is not None for _, kinds in types):
                    return list(dict.fromkeys(word for words in found for word in words))
        return []

    def properties(self, node: Any, value: Any = None) -> dict[str, Any]:
        """The declared properties of an object node with their nodes; `value` decides between
        alternatives.
        """
        found: dict[str, Any] = {}
        for part in self.parts(node, "object", value=value):
            declared = part.get("properties")
            if is_dict(declared):
                found = {**declared, **found}
        return found

    def items(self, node: Any) -> Any:
        """The node of the items of an array node; None if it does not say."""
        return next(
            (
                part["items"]
                for part in self.parts(node, "array")
                if isinstance(part.get("items"), dict)
            ),
            None,
        )

    def _fits(self, part: Any, kind: str, value: Any) -> bool:
        """Whether an alternative is of `kind` and has no constant that differs from what `value`
        has there.
        """
        if part is False or kind not in (self.types(part) or (kind,)):
            return False
        if not is_dict(value) or not is_dict(part):
            return True
        target = self.target(part)
        properties = (target if is_dict(target) else part).get("properties")
        if not is_dict(properties):
            return True
        for name, node in properties.items():
            values = _enumerated(node) if is_dict(node) else None
            if values is not None and name in value and value[name] not in values:
                words = [word for word in values if isinstance(word, str)]
                if not isinstance(value[name], str) or find_word(value[name], words) is None:
                    return False
        return True

    def parts(self, node: Any, kind: str, value: Any = None) -> list[dict[str, Any]]:
        """The nodes that together describe a container of `kind`; of alternatives only a single one
        that fits.

        An alternative fits if it is of this kind and its constants are those of `value`.
        """
        found: dict[int, dict[str, Any]] = {}

        def add(node: Any, left: int) -> None:
            if not is_dict(node) or left <= 0 or id(node) in found:
                return
            found[id(node)] = node
            add(self.target(node), left - 1)
            for part in _list(node, "allOf"):
                add(part, left - 1)
            for keyword in ("anyOf", "oneOf"):
                fitting = [part for part in _list(node, keyword) if self._fits(part, kind, value)]
                if len(fitting) == 1:
                    add(fitting[0], left - 1)

        add(node, _MAX_REFERENCES)
        return list(found.values())


def _enumerated(node: dict[str, Any]) -> list[Any] | None:
    """The values that a node allows, if it lists them."""
    if "enum" not in node and "const" in node:
        return [node["const"]]
    values = node.get("enum")
    if is_list(values):
        return values
    return None


def _list(node: dict[str, Any], keyword: str) -> list[Any]:
    found = node.get(keyword)
    if is_list(found):
        return found
    return []


class Coercion:
    """One pass over a value, which it changes in place. `notes` are the changes: the places by
    type, in order.
    """

    __slots__ = ("_guide", "_path", "_steps", "notes")

    def __init__(self, guide: Guide) -> None:
        self._guide = guide
        self._path: list[str | int] = []
        self._steps = _MAX_STEPS
        self.notes: dict[str, list[str]] = {}

    def apply(self, value: Any, node: Any) -> Any:
        """The value with its texts coerced to the types of `node`; the same value if nothing has to
        be coerced.
        """
        if isinstance(value, str):
            return self._text(value, node)
        if is_dict(value):
            if self._allows("object", node):
                self._members(value, node)
        elif is_list(value) and self._allows("array", node):
            self._items(value, node)
        return value

    def _allows(self, kind: str, node: Any) -> bool:
        """Whether `node` may be of `kind`; the parts of a value of another type stay unchanged."""
        types = self._guide.types(node)
        return types is None or kind in types

    def _text(self, text: str, node: Any) -> Any:
        types = self._guide.types(node)
        if types is None:
            return text
        value: Any = None
        kind = ""
        if "string" in types:
            words = self._guide.words(node)
            if words and text not in words:
                # A label before the word is left out.
                value = find_word(text, words) or find_word(find_labelled(text, words), words)
            kind = "word"
        elif types & _SCALARS:
            value = read_as(text, types)
            if isinstance(value, bool):
                kind = "boolean"
            else:
                kind = "number"
            if value is None and types & {"number", "integer"}:
                value = as_type(read_quantity(text), types)
                if has_multiplier(text):
                    kind = "multiplier"
                else:
                    kind = "unit"
        if value is None and "null" in types and "string" not in types and is_null(text):
            self.notes.setdefault("null", []).append(json_path(self._path))
            return None
        if value is None and not types & {"string", *_SCALARS}:
            value, kind = self._read_inner(text, types)
        if value is None:
            return text
        self.notes.setdefault(kind, []).append(json_path(self._path))
        if isinstance(value, dict | list):
            return self.apply(value, node)
        return value

    def _read_inner(self, text: str, types: frozenset[str]) -> tuple[Any, str]:
        """The object or array that a string holds, and its type; (None, "") if it holds none.

        What is not valid JSON is repaired, within one number of steps for all strings of the value.
        """
        text = text.strip()
        if text[:1] not in ("{", "["):
            return None, ""
        try:
            value = read_as_meant(text)
        except (ValueError, RecursionError):
            value = self._repair(text)
        kind = describe(value)
        if kind in types:
            return (value, kind)
        return (None, "")

    def _repair(self, text: str) -> Any:
        """The container that a text is as a whole, leniently; None if it is none."""
        if self._steps <= 0:
            return None
        scanner = StrictScanner(text, self._steps - _STEPS_PER_TEXT)
        reader = read_block(scanner)
        self._steps = scanner.steps
        if reader is None or reader.cut or reader.end < len(text):
            return None
        return reader.value

    def _members(self, value: dict[str, Any], node: Any) -> None:
        parts = self._guide.parts(node, "object", value)
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
        rest = self._guide.items(node)
        if rest is None and not prefix:
            return
        for index, item in enumerate(value):
            if index < len(prefix):
                child = prefix[index]
            else:
                child = rest
            if child is None:
                return
            if isinstance(item, str | dict | list):
                self._path.append(index)
                value[index] = self.apply(item, child)
                self._path.pop()


def _member_node(parts: list[dict[str, Any]], key: str) -> Any:
    for part in parts:
        properties = part.get("properties")
        if is_dict(properties) and key in properties:
            return properties[key]
    for part in parts:
        rest = part.get("additionalProperties")
        if is_dict(rest):
            return cast(Any, rest)
    return None
