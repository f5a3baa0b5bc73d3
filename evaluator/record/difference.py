"""Where two JSON values first differ, in words: for a step that is not the one that was recorded."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

MAX_SHOWN_CHARS = 200
_NOTHING = object()


@dataclass(frozen=True, slots=True)
class Difference:
    """`where` is a place such as `messages[1].content, line 3`; the two sides are None where there is nothing."""

    where: str
    recorded: str | None
    now: str | None


def first_difference(recorded: Any, now: Any, where: str = "") -> Difference | None:
    """The first place, in the order of keys and items of `recorded`, where the two are not equal."""
    if isinstance(recorded, Mapping) and isinstance(now, Mapping):
        return _of_mappings(cast("Mapping[str, Any]", recorded), cast("Mapping[str, Any]", now), where)
    if isinstance(recorded, (list, tuple)) and isinstance(now, (list, tuple)):
        return _of_lists(list(cast("list[Any]", recorded)), list(cast("list[Any]", now)), where)
    if isinstance(recorded, str) and isinstance(now, str):
        return _of_texts(recorded, now, where)
    if recorded is not _NOTHING and now is not _NOTHING and recorded == now and type(recorded) is type(now):
        return None
    return Difference(where or "the value", _shown(recorded), _shown(now))


def _of_mappings(recorded: Mapping[str, Any], now: Mapping[str, Any], where: str) -> Difference | None:
    for key in [*recorded, *(key for key in now if key not in recorded)]:
        place = f"{where}.{key}" if where else key
        found = first_difference(recorded.get(key, _NOTHING), now.get(key, _NOTHING), place)
        if found is not None:
            return found
    return None


def _of_lists(recorded: list[Any], now: list[Any], where: str) -> Difference | None:
    for index in range(max(len(recorded), len(now))):
        left, right = (side[index] if index < len(side) else _NOTHING for side in (recorded, now))
        found = first_difference(left, right, f"{where}[{index}]")
        if found is not None:
            return found
    return None


def _of_texts(recorded: str, now: str, where: str) -> Difference | None:
    if recorded == now:
        return None
    left, right = recorded.split("\n"), now.split("\n")
    if len(left) == len(right) == 1:
        return Difference(where or "the text", _shown(recorded), _shown(now))
    for number in range(max(len(left), len(right))):
        a = left[number] if number < len(left) else _NOTHING
        b = right[number] if number < len(right) else _NOTHING
        if a != b:
            return Difference(f"{where or 'the text'}, line {number + 1}", _shown(a), _shown(b))
    return None


def _shown(value: Any) -> str | None:
    if value is _NOTHING:
        return None
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}… ({len(text)} characters)"


def changed_lines(recorded: Any, now: Any) -> Iterator[str]:
    """Every line that differs between two JSON values, as in a unified diff: ` `, `-` or `+` before each.

    Texts inside the values count line by line, each under its place.
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
