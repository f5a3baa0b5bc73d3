"""The methods that a text may call on plain values: a short list, read-only, each charged to the
meter first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from evaluator.language.locating import LocatedError, nearest
from evaluator.language.meter import Rendering
from evaluator.language.operators import equal
from evaluator.language.scopes import MISSING
from evaluator.language.types import describe
from evaluator.language.values import LOOP_FIELDS, Loop, guard, items_of, pairs_of, text_of

_MAX_STRIPPED = 1000
_LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"


def replace(run: Rendering, value: str, old: str, new: str, count: int | None = None) -> str:
    """Returns `value` with the first `count` occurrences of `old` replaced, or all of them."""
    if count is None:
        found = value.count(old)
    else:
        found = min(value.count(old), max(count, 0))
    run.charge(len(value) + found * max(len(new) - len(old), 0))
    return value.replace(old, new, found)


def join(run: Rendering, separator: str, values: Any) -> str:
    """Returns the texts of a list with `separator` between them."""
    parts: list[str] = []
    size = 0
    for item in items_of(run, values):
        part = text_of(run, item, what="an item of the list")
        parts.append(part)
        size += len(part) + len(separator)
        run.tick()
        if size > run.bounds.output_chars:
            break
    run.charge(size)
    return separator.join(parts)


def strip(run: Rendering, value: str, chars: str | None = None) -> str:
    """Returns `value` without white space, or without any of `chars`, at both ends."""
    return OF_STRING["strip"](run, value, *(() if chars is None else (chars,)))


def _split(
    run: Rendering, value: str, separator: str | None = None, maxsplit: int = -1
) -> list[str]:
    if separator is None:
        bound = len(value) // 2 + 1
    else:
        bound = value.count(separator) + 1
    run.charge(len(value))
    run.charge_items(min(bound, len(value) + 1) if maxsplit < 0 else min(bound, maxsplit + 1))
    return value.split(separator, maxsplit)


def _splitlines(run: Rendering, value: str) -> list[str]:
    run.charge(len(value))
    run.charge_items(sum(value.count(end) for end in _LINE_ENDS) + 1)
    return value.splitlines()


def _method(name: str, growth: int = 1) -> Callable[..., Any]:
    """Returns a method of str that makes at most `growth` times as many characters."""
    method = getattr(str, name)

    def call(run: Rendering, value: str, *args: Any) -> Any:
        for argument in args:
            if not isinstance(argument, str | int):
                raise LocatedError(
                    f"{name} takes text, not {describe(argument)}", None, code="wrong-type"
                )
            if "strip" in name and isinstance(argument, str) and len(argument) > _MAX_STRIPPED:
                # str.strip looks through all of these for each character.
                raise LocatedError(
                    f"{name} takes at most {_MAX_STRIPPED} characters",
                    None,
                    code="too-large",
                    forbidden=True,
                )
        run.charge(len(value) * growth)
        return method(value, *args)

    return call


def _count(run: Rendering, values: Any, item: Any) -> int:
    guard(run, values)
    return sum(1 for other in values if equal(run, item, right=other))


def _index(run: Rendering, values: Any, item: Any) -> int:
    guard(run, values)
    for index, other in enumerate(values):
        if equal(run, item, right=other):
            return index
    raise LocatedError("the list does not hold the value", None, code="wrong-type")


def _values(run: Rendering, value: Mapping[str, Any]) -> list[Any]:
    run.charge_items(len(value))
    return list(value.values())


def _get(run: Rendering, value: Mapping[str, Any], key: Any, default: Any = None) -> Any:
    return value.get(key, default)


def _cycle(run: Rendering, loop: Loop, *values: Any) -> Any:
    return values[loop.index0 % len(values)]


def _changed(run: Rendering, loop: Loop, *values: Any) -> bool:
    changed = loop.seen is MISSING or not equal(run, list(loop.seen), right=list(values))
    loop.seen = values
    return changed


_PLAIN = """
count endswith find isalnum isalpha isdigit islower isspace isupper lower lstrip removeprefix removesuffix rstrip
startswith strip swapcase
"""

OF_STRING: dict[str, Callable[..., Any]] = {
    **{name: _method(name) for name in _PLAIN.split()},
    **{name: _method(name, 3) for name in ("capitalize", "casefold", "title", "upper")},
    "join": join,
    "replace": replace,
    "split": _split,
    "splitlines": _splitlines,
}
OF_LIST: dict[str, Callable[..., Any]] = {"count": _count, "index": _index}
OF_MAPPING: dict[str, Callable[..., Any]] = {
    "get": _get,
    "items": pairs_of,
    "keys": items_of,
    "values": _values,
}
OF_LOOP: dict[str, Callable[..., Any]] = {"changed": _changed, "cycle": _cycle}
_TABLES: tuple[tuple[type, dict[str, Callable[..., Any]]], ...] = (
    (str, OF_STRING),
    (list, OF_LIST),
    (tuple, OF_LIST),
    (Mapping, OF_MAPPING),
    (Loop, OF_LOOP),
)


def method_of(value: Any, name: str, what: str) -> Callable[..., Any]:
    """Returns the method `name` of `value`, to be called with the run and the value first. Raises:
    LocatedError.
    """
    table = next((table for kind, table in _TABLES if isinstance(value, kind)), {})
    if name in table:
        return table[name]
    if isinstance(value, Loop) and name in LOOP_FIELDS:
        raise LocatedError(
            f"loop.{name} is not called; write it without ()", None, code="unknown-method"
        )
    if isinstance(value, Loop):
        kind = "loop"
    else:
        kind = describe(value)
    hint = nearest(name, table) or (f"; there are {', '.join(sorted(table))}" if table else "")
    message = f"{what} is {kind} and has no method {name!r}{hint}"
    raise LocatedError(message, None, code="unknown-method", forbidden=name.startswith("_"))
