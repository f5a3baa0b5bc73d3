"""The methods that a text may call on plain values: a short list, read-only, each paid for first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from evaluator.binding.bounds import Run
from evaluator.binding.operations import LOOP_FIELDS, Loop, equal, guard, items_of, text_of
from evaluator.binding.scopes import MISSING
from evaluator.binding.types import describe
from evaluator.library.syntax import Fault, nearest

MAX_STRIPPED = 1000


def replace(run: Run, value: str, old: str, new: str, count: int | None = None) -> str:
    found = value.count(old) if count is None else min(value.count(old), max(count, 0))
    run.charge(len(value) + found * max(len(new) - len(old), 0))
    return value.replace(old, new, found)


def join(run: Run, separator: str, values: Any) -> str:
    items = items_of(run, values)
    parts: list[str] = []
    size = 0
    for item in items:
        part = text_of(run, item, "an item of the list")
        parts.append(part)
        size += len(part) + len(separator)
        run.tick(1)
        if size > run.bounds.output_chars:
            break
    run.charge(size)
    return separator.join(parts)


def _split(run: Run, value: str, separator: str | None = None, maxsplit: int = -1) -> list[str]:
    bound = len(value) // 2 + 1 if separator is None else value.count(separator) + 1
    run.charge(len(value))
    run.charge_items(min(bound, len(value) + 1) if maxsplit < 0 else min(bound, maxsplit + 1))
    return value.split(separator, maxsplit)


def _splitlines(run: Run, value: str) -> list[str]:
    run.charge(len(value))
    # Every character that str.splitlines knows as a line end may end a line.
    run.charge_items(sum(value.count(end) for end in "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029") + 1)
    return value.splitlines()


def _plainly(name: str, growth: int = 1) -> Callable[..., Any]:
    """A method of str that makes at most `growth` times as many characters."""
    method = getattr(str, name)

    def call(run: Run, value: str, *args: Any) -> Any:
        for argument in args:
            if not isinstance(argument, str | int):
                raise Fault(f"{name} takes text, not {describe(argument)}", None, "wrong-type")
            if "strip" in name and isinstance(argument, str) and len(argument) > MAX_STRIPPED:
                # str.strip looks through all of these for each character.
                raise Fault(f"{name} takes at most {MAX_STRIPPED} characters", None, "too-large", True)
        run.charge(len(value) * growth)
        return method(value, *args)

    return call


def _count(run: Run, values: Any, item: Any) -> int:
    guard(run, values)
    return sum(1 for other in values if equal(run, item, other))


def _index(run: Run, values: Any, item: Any) -> int:
    guard(run, values)
    for index, other in enumerate(values):
        if equal(run, item, other):
            return index
    raise Fault("the list does not hold the value", None, "wrong-type")


def _items(run: Run, value: Mapping[str, Any]) -> list[Any]:
    run.charge_items(len(value) * 2)
    return [[key, item] for key, item in value.items()]


def _keys(run: Run, value: Mapping[str, Any]) -> list[Any]:
    run.charge_items(len(value))
    return list(value)


def _values(run: Run, value: Mapping[str, Any]) -> list[Any]:
    run.charge_items(len(value))
    return list(value.values())


def _get(run: Run, value: Mapping[str, Any], key: Any, default: Any = None) -> Any:
    return value.get(key, default)


def _cycle(run: Run, loop: Loop, *values: Any) -> Any:
    return values[loop.index0 % len(values)]


def _changed(run: Run, loop: Loop, *values: Any) -> bool:
    changed = loop.seen is MISSING or not equal(run, list(loop.seen), list(values))
    loop.seen = values
    return changed


_PLAIN = """
capitalize casefold count endswith find isalnum isalpha isdigit islower isspace isupper
lower lstrip removeprefix removesuffix rstrip startswith strip swapcase title upper
"""

OF_STRING: dict[str, Callable[..., Any]] = {
    **{
        name: _plainly(name, 3 if name in ("upper", "title", "casefold", "capitalize") else 1)
        for name in _PLAIN.split()
    },
    "join": join,
    "replace": replace,
    "split": _split,
    "splitlines": _splitlines,
}
OF_LIST: dict[str, Callable[..., Any]] = {"count": _count, "index": _index}
OF_MAPPING: dict[str, Callable[..., Any]] = {"get": _get, "items": _items, "keys": _keys, "values": _values}
OF_LOOP: dict[str, Callable[..., Any]] = {"changed": _changed, "cycle": _cycle}


def method_of(value: Any, name: str, what: str) -> Callable[..., Any]:
    """The method `name` of `value`, to be called with the run and the value first. Raises: Fault."""
    if isinstance(value, str):
        table = OF_STRING
    elif isinstance(value, list | tuple):
        table = OF_LIST
    elif isinstance(value, Mapping):
        table = OF_MAPPING
    elif isinstance(value, Loop):
        table = OF_LOOP
    else:
        table = {}
    method = table.get(name)
    if method is None:
        kind = "loop" if isinstance(value, Loop) else describe(value)
        if isinstance(value, Loop) and name in LOOP_FIELDS:
            raise Fault(f"loop.{name} is not called; write it without ()", None, "unknown-method")
        hint = nearest(name, table) or (f"; there are {', '.join(sorted(table))}" if table else "")
        message = f"{what} is {kind} and has no method {name!r}{hint}"
        raise Fault(message, None, "unknown-method", name.startswith("_"))
    return method
