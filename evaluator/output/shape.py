"""Gives what is written in another form than JSON the shape of a schema. Nothing is dropped or
filled in.
"""

from __future__ import annotations

import re
from typing import Any, cast

from evaluator.output.coerce import Guide
from evaluator.output.lines import (
    ITEM_MARK,
    SENTENCE_END,
    Lines,
    NoReading,
    is_like_prose,
    items,
    members,
    rows,
)
from evaluator.output.strict import read_as_meant
from evaluator.output.words import find_word
from evaluator.patterns import Pattern

_MAX_DEPTH = 12
# Of free texts in one line only a list of short ones is not prose.
_MIN_FREE = 3
_MAX_FREE_WORDS = 2
_BETWEEN_LABELS = Pattern(r"[,;|][ \t]+")
_WRAPS = ("**", "__", "`", "*", "_")
_NULLS = ("null", "none", "~")
_NUMBER = Pattern(r"-?\d{1,18}(?:\.\d{1,18})?")
_OBJECT = frozenset({"object"})
_ARRAY = frozenset({"array"})


class Shaper:
    """Gives written values (texts, Lines, lists, and dicts with labels as keys) the shape of a
    schema.

    Texts stay texts: `conform` reads them as the scalars that the schema asks for.
    """

    def __init__(self, guide: Guide) -> None:
        self._guide = guide

    def shape(self, written: Any, node: Any, depth: int = 0) -> Any:
        """The value; None where nothing is written. Raises: NoReading."""
        types = self._guide.types(node)
        if types is None or depth > _MAX_DEPTH:
            raise NoReading
        if written is None or (
            isinstance(written, str) and written.strip() in ("", *_NULLS) and "null" in types
        ):
            return None
        kinds = types - {"null"}
        if kinds == _OBJECT:
            return self._object(written, node, depth=depth)
        if kinds == _ARRAY:
            return self._array(written, node, depth=depth)
        if kinds & (_OBJECT | _ARRAY):
            raise NoReading
        return _scalar(written, types)

    def _object(self, written: Any, node: Any, depth: int) -> Any:
        if isinstance(written, str):
            if written[:1] == "{":
                return written
            written = Lines.of(_BETWEEN_LABELS.sub("\n", written))
        elif isinstance(written, Lines) and len(written.lines) == 1:
            written = Lines.of(_BETWEEN_LABELS.sub("\n", written.lines[0].text))
        names = list(self._all_properties(node))
        if isinstance(written, Lines):
            pairs = members(written, names)
        elif isinstance(written, dict):
            known = cast(dict[str, Any], written)
            pairs = [
                (find_word(label.lstrip("@"), names) or "", value) for label, value in known.items()
            ]
        else:
            raise NoReading
        labels = [name for name, _ in pairs]
        if not pairs or "" in labels or len(set(labels)) < len(labels):
            raise NoReading
        texts = {name: value for name, value in pairs if isinstance(value, str)}
        properties = self._guide.properties(node, texts)
        found: dict[str, Any] = {}
        for name, value in pairs:
            if name not in properties:
                raise NoReading
            shaped = self.shape(value, properties[name], depth=depth + 1)
            if shaped is not None or "null" in (self._guide.types(properties[name]) or ()):
                found[name] = shaped
        return found

    def _all_properties(self, node: Any) -> dict[str, Any]:
        """The properties of an object node, with those of all its alternatives."""
        found = dict(self._guide.properties(node))
        for part in self._guide.parts(node, "object"):
            for keyword in ("anyOf", "oneOf"):
                for branch in cast(list[Any], part.get(keyword) or []):
                    found |= self._guide.properties(branch)
        return found

    def _array(self, written: Any, node: Any, depth: int) -> Any:
        child = self._guide.items(node)
        kinds = (self._guide.types(child) or frozenset[str]()) - {"null"}
        if not kinds:
            raise NoReading
        while isinstance(written, dict) and len(cast(dict[str, Any], written)) == 1:
            written = next(iter(cast(dict[str, Any], written).values()))
        if isinstance(written, str):
            if written[:1] == "[":
                return written
            written = _comma_items(written)
        elif isinstance(written, Lines) and kinds == _OBJECT:
            written = rows(written, self._all_properties(child))
        elif (
            isinstance(written, Lines)
            and len(written.lines) == 1
            and not ITEM_MARK.match(written.lines[0].text)
        ):
            written = _one_line(
                written.lines[0].text, is_free="string" in kinds and not self._guide.words(child)
            )
        elif isinstance(written, Lines):
            is_free = "string" in kinds and not self._guide.words(child)
            written = items(written, is_free=is_free, is_whole=depth == 0)
            if kinds != _ARRAY and any(isinstance(item, Lines) for item in written):
                raise NoReading
        if not isinstance(written, list):
            raise NoReading
        found = [self.shape(item, child, depth=depth + 1) for item in cast(list[Any], written)]
        if not found or None in found:
            raise NoReading
        return found


def _one_line(text: str, *, is_free: bool) -> Any:
    """The items of one line: strings in quotes, or scalars that the schema checks. Free text may be
    prose.
    """
    if text[0] == '"':
        try:
            return read_as_meant(f"[{text}]")
        except (ValueError, RecursionError):
            raise NoReading from None
    parts = _comma_items(text)
    if is_free and (
        len(parts) < _MIN_FREE
        or is_like_prose(parts)
        or any(len(part.split()) > _MAX_FREE_WORDS for part in parts)
    ):
        raise NoReading
    return parts


def _comma_items(text: str) -> list[str]:
    """The items of `sea, photo`: short, and without a word that joins the last two."""
    parts = [part.strip() for part in re.split(r"[,;][ \t]+|[،、，；]\s*", text)]
    if len(parts) < 2 or any(
        not part or len(part.split()) > 5 or SENTENCE_END.search(part) for part in parts
    ):
        raise NoReading
    if re.search(r"\b(?:and|or|und|oder|et|ou|y|o)\b", parts[-1]):
        raise NoReading
    return parts


def _scalar(written: Any, types: frozenset[str]) -> Any:
    if isinstance(written, Lines):
        if "string" not in types and len(written.lines) > 1:
            raise NoReading
        written = written.text()
    if isinstance(written, dict | list):
        raise NoReading
    if not isinstance(written, str):
        return written
    text = written.strip()
    if text[:1] == '"':
        try:
            return read_as_meant(text)
        except (ValueError, RecursionError):
            raise NoReading from None
    if len(text) > 1 and text[0] == text[-1] == "'" and "'" not in text[1:-1]:
        return text[1:-1]
    if text[:1] in ("{", "["):
        raise NoReading
    for mark in _WRAPS:
        if (
            len(text) > 2 * len(mark)
            and text.startswith(mark)
            and text.endswith(mark)
            and text.count(mark) == 2
        ):
            text = text[len(mark) : -len(mark)].strip()
    if "string" in types:
        if types & {"number", "integer"} and _NUMBER.fullmatch(text):
            if not re.match(r"-?0\d", text):
                return read_as_meant(text)
            return text
        if "boolean" in types and text.lower() in ("true", "false"):
            return text.lower() == "true"
    return text
