"""Compares two JSON values: the first difference in words, and all differences as a diff."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, cast

MAX_SHOWN_CHARS = 200
_NOTHING = object()


@dataclass(frozen=True, slots=True)
class JsonDifference:
    """`where` is a place such as `messages[1].content, line 3`; a side is None if it has no value there."""

    where: str
    recorded: str | None
    now: str | None


def first_difference(recorded: Any, now: Any, where: str = "") -> JsonDifference | None:
    """The first place, in the order of keys and items of `recorded`, where the two are not equal."""
    for place, left, right in _parts(recorded, now, where):
        found = first_difference(left, right, place)
        if found is not None:
            return found
    if _is_container(recorded, now) or (recorded == now and type(recorded) is type(now)):
        return None
    if isinstance(recorded, str) and isinstance(now, str) and ("\n" in recorded or "\n" in now):
        lines = enumerate(zip_longest(recorded.split("\n"), now.split("\n"), fillvalue=_NOTHING), 1)
        number, (recorded, now) = next((number, sides) for number, sides in lines if sides[0] != sides[1])
        return JsonDifference(f"{where or 'the text'}, line {number}", _shown(recorded), _shown(now))
    otherwise = "the text" if isinstance(recorded, str) and isinstance(now, str) else "the value"
    return JsonDifference(where or otherwise, _shown(recorded), _shown(now))


def _is_container(recorded: Any, now: Any) -> bool:
    return any(isinstance(recorded, kind) and isinstance(now, kind) for kind in (Mapping, (list, tuple)))


def _parts(recorded: Any, now: Any, where: str) -> Iterator[tuple[str, Any, Any]]:
    """Pairs of the items of two objects or two arrays, each with its place."""
    if isinstance(recorded, Mapping) and isinstance(now, Mapping):
        left, right = cast("Mapping[str, Any]", recorded), cast("Mapping[str, Any]", now)
        for key in {**left, **right}:
            yield f"{where}.{key}" if where else key, left.get(key, _NOTHING), right.get(key, _NOTHING)
    elif isinstance(recorded, (list, tuple)) and isinstance(now, (list, tuple)):
        sides = cast("tuple[list[Any], list[Any]]", (recorded, now))
        for index, (one, other) in enumerate(zip_longest(*sides, fillvalue=_NOTHING)):
            yield f"{where}[{index}]", one, other


def _shown(value: Any) -> str | None:
    if value is _NOTHING:
        return None
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}… ({len(text)} characters)"


def changed_lines(recorded: Any, now: Any) -> Iterator[str]:
    """Every line that differs between two JSON values, as in a unified diff: ` `, `-` or `+` before each.

    Texts inside the values count line by line, each below its place.
    """
    yield from difflib.unified_diff(list(_lines(recorded, "")), list(_lines(now, "")), "recorded", "now", lineterm="")


def _lines(value: Any, where: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, item in cast("Mapping[str, Any]", value).items():
            yield from _lines(item, f"{where}.{key}" if where else str(key))
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(cast("list[Any]", value)):
            yield from _lines(item, f"{where}[{index}]")
    elif isinstance(value, str) and "\n" in value:
        yield f"{where}:"
        yield from (f"  {line}" for line in value.split("\n"))
    else:
        yield f"{where}: {value if isinstance(value, str) else json.dumps(value, default=str)}"
