"""Compares two JSON values: the first difference in words, and all differences as a diff."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any, cast

from evaluator.lazy_dataclass import frozen

MAX_SHOWN_CHARS = 200
_NOTHING = object()


@frozen
class JsonDifference:
    """`where` is a place such as `messages[1].content, line 3`; a side is None if it has no value
    there.
    """

    where: str
    recorded: str | None
    now: str | None


def first_difference(recorded: Any, now: Any, where: str = "") -> JsonDifference | None:
    """The first place, in the order of keys and items of `recorded`, where the two are not
    equal.
    """
    left = _items(recorded, where)
    right = _items(now, where)
    if (
        left is not None
        and right is not None
        and isinstance(recorded, Mapping) == isinstance(now, Mapping)
    ):
        places = {**left, **right}
        found = (
            first_difference(left.get(one, _NOTHING), right.get(one, _NOTHING), where=one)
            for one in places
        )
        return next((difference for difference in found if difference is not None), None)
    if recorded == now and type(recorded) is type(now):
        return None
    are_texts = isinstance(recorded, str) and isinstance(now, str)
    if are_texts and ("\n" in recorded or "\n" in now):
        lines = enumerate(zip_longest(recorded.split("\n"), now.split("\n"), fillvalue=_NOTHING), 1)
        number, (recorded, now) = next(
            (number, sides) for number, sides in lines if sides[0] != sides[1]
        )
        return JsonDifference(
            f"{where or 'the text'}, line {number}", _shown(recorded), now=_shown(now)
        )
    return JsonDifference(
        where or ("the text" if are_texts else "the value"), _shown(recorded), now=_shown(now)
    )


def _items(value: Any, where: str) -> dict[str, Any] | None:
    """The items of an object or an array by their places; None for another value."""
    if isinstance(value, Mapping):
        fields = cast("Mapping[str, Any]", value).items()
        return {f"{where}.{key}" if where else str(key): item for key, item in fields}
    if isinstance(value, (list, tuple)):
        return {f"{where}[{index}]": item for index, item in enumerate(cast("list[Any]", value))}
    return None


def _shown(value: Any) -> str | None:
    if value is _NOTHING:
        return None
    text = json.dumps(value, ensure_ascii=False, default=str)
    if len(text) <= MAX_SHOWN_CHARS:
        return text
    return f"{text[:MAX_SHOWN_CHARS]}… ({len(text)} characters)"


def changed_lines(recorded: Any, now: Any) -> Iterator[str]:
    """Every line that differs between two JSON values, as in a unified diff: ` `, `-` or `+` before
    each.

    Texts inside the values count line by line, each below its place.
    """
    yield from difflib.unified_diff(
        list(_lines(recorded, "")), list(_lines(now, "")), "recorded", "now", lineterm=""
    )


def _lines(value: Any, where: str) -> Iterator[str]:
    items = _items(value, where)
    if items is not None:
        for place, item in items.items():
            yield from _lines(item, place)
    elif isinstance(value, str) and "\n" in value:
        yield f"{where}:"
        yield from (f"  {line}" for line in value.split("\n"))
    else:
        yield f"{where}: {value if isinstance(value, str) else json.dumps(value, default=str)}"
