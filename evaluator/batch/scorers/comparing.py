"""Two JSON values held against each other under rules: where they first differ, in words."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from evaluator.batch.scorers.numbers import exact_number, is_close
from evaluator.errors import UsageError
from evaluator.output.result import json_path
from evaluator.record.difference import first_difference

MAX_UNORDERED = 300
_PATH = list[str | int]


@dataclass(frozen=True, slots=True)
class Rules:
    """`subset`: objects may have further keys, and with `ignore_order` arrays further items. 1 and 1.0 are one number,
    a boolean is none, NaN is NaN."""

    ignore_order: bool = False
    abs_tol: float = 0.0
    rel_tol: float = 0.0
    subset: bool = False


def difference(expected: Any, found: Any, rules: Rules) -> str | None:
    """The first difference, with its path, or None. Keys in the order of `expected`, then further ones.

    Raises: UsageError, for arrays of more than 300 items that can be compared without order only by trying pairs;
    RecursionError, for values nested some hundreds deep.
    """
    return _differs(expected, found, rules, [])


def _differs(expected: Any, found: Any, rules: Rules, path: _PATH) -> str | None:
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        return _of_objects(cast("Mapping[str, Any]", expected), cast("Mapping[str, Any]", found), rules, path)
    if isinstance(expected, list | tuple) and isinstance(found, list | tuple):
        compare = _without_order if rules.ignore_order else _in_order
        return compare(list(cast("list[Any]", expected)), list(cast("list[Any]", found)), rules, path)
    if _same_leaf(expected, found, rules):
        return None
    return _said(expected, found, path)


def _same_leaf(expected: Any, found: Any, rules: Rules) -> bool:
    a, b = exact_number(expected), exact_number(found)
    if a is not None and b is not None:
        return is_close(a, b, rules.abs_tol, rules.rel_tol)
    if isinstance(expected, float) and isinstance(found, float):
        return expected == found or (math.isnan(expected) and math.isnan(found))
    return type(expected) is type(found) and expected == found


def _of_objects(expected: Mapping[str, Any], found: Mapping[str, Any], rules: Rules, path: _PATH) -> str | None:
    for key, value in expected.items():
        if key not in found:
            return f"{json_path([*path, key])}: missing"
        if (said := _differs(value, found[key], rules, [*path, key])) is not None:
            return said
    if not rules.subset:
        for key in found:
            if key not in expected:
                return f"{json_path([*path, key])}: not expected"
    return None


def _in_order(expected: list[Any], found: list[Any], rules: Rules, path: _PATH) -> str | None:
    for index, (a, b) in enumerate(zip(expected, found, strict=False)):
        if (said := _differs(a, b, rules, [*path, index])) is not None:
            return said
    return _of_lengths(expected, found, path)


def _of_lengths(expected: list[Any], found: list[Any], path: _PATH) -> str | None:
    if len(expected) == len(found):
        return None
    return f"{json_path(path)}: expected {len(expected)} items, found {len(found)}"


def _without_order(expected: list[Any], found: list[Any], rules: Rules, path: _PATH) -> str | None:
    if not rules.subset and (said := _of_lengths(expected, found, path)) is not None:
        return said
    if not rules.subset and not rules.abs_tol and not rules.rel_tol:
        surplus = Counter(map(canonical, found))
        for index, item in enumerate(expected):
            key = canonical(item)
            if not surplus[key]:
                return f"{json_path([*path, index])}: {_short(item)} is not in the answer"
            surplus[key] -= 1
        return None
    unmatched = _unmatched(expected, found, rules)
    if unmatched is None:
        return None
    return f"{json_path([*path, unmatched])}: {_short(expected[unmatched])} is not in the answer"


def _unmatched(expected: list[Any], found: list[Any], rules: Rules) -> int | None:
    """The first expected item that cannot be given a found one of its own; a maximum matching by augmenting paths."""
    if max(len(expected), len(found)) > MAX_UNORDERED:
        raise UsageError(
            f"arrays of {len(expected)} and {len(found)} items are too long to compare without order with a tolerance "
            f"or as a subset; at most {MAX_UNORDERED} are"
        )
    fitting = [
        [j for j, other in enumerate(found) if _differs(item, other, rules, []) is None] for item in expected
    ]  # fmt: skip
    taken: dict[int, int] = {}

    def place(index: int, seen: set[int]) -> bool:
        for j in fitting[index]:
            if j not in seen:
                seen.add(j)
                if j not in taken or place(taken[j], seen):
                    taken[j] = index
                    return True
        return False

    return next((index for index in range(len(expected)) if not place(index, set())), None)


def canonical(value: Any) -> str:
    """One text for all values that are equal without regard to order."""
    if isinstance(value, Mapping):
        items = sorted((str(key), canonical(item)) for key, item in cast("Mapping[Any, Any]", value).items())
        return "{" + ",".join(f"{json.dumps(key)}:{item}" for key, item in items) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(sorted(map(canonical, cast("list[Any]", value)))) + "]"
    number = exact_number(value)
    if number is not None:
        return f"{number.normalize():E}" if number else "0"
    return json.dumps(value, default=str)


def _said(expected: Any, found: Any, path: _PATH) -> str:
    place = json_path(path)
    differs = first_difference(expected, found, place)
    if differs is None:
        return f"{place}: expected {_short(expected)}, found {_short(found)}"
    return f"{differs.where}: expected {differs.recorded or 'nothing'}, found {differs.now or 'nothing'}"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 200 else f"{text[:199]}…"
