"""Operations on plain values, and the meter that bounds them.

The operations are conversion to text, fields and indices, iteration, and size. Nothing here reaches
a Python attribute: a dot reads a key of a mapping, or a field of `loop` or of a namespace.

Jinja's own sandbox bounds nothing. Here every loop, call, filter and operation that can grow pays
before it works: in steps (one, plus one for each 512 characters), in characters and items
allocated, and in wall time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from evaluator import clock
from evaluator.language.locating import LocatedError, first_names, nearest
from evaluator.language.scopes import MISSING, Scope, describe
from evaluator.lazy_dataclass import frozen

MAX_ITEMS: Final = 1_000_000
MAX_RANGE: Final = 100_000
MAX_BITS: Final = 10_000
MAX_NESTING: Final = 100
MAX_MACRO_DEPTH: Final = 40

_CLOCK_EVERY = 500


@frozen
class Bounds:
    """The most that one rendering or evaluation may use. Every text has the same bounds.

    `output_chars`: characters of the result; intermediate values may hold four times as many in
    all.
    `seconds`: wall time, not counting the time that called function templates take.
    `steps`: iterations, calls and filters, weighted by the size of what they work on.
    `calls`: calls of function templates.
    """

    output_chars: int = 10_000_000
    seconds: float = 2.0
    steps: int = 2_000_000
    calls: int = 1000


BOUNDS = Bounds()


class PendingCall(Exception):
    """Stops a rendering until a function template has been called."""

    def __init__(
        self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], offset: int, index: int
    ) -> None:
        super().__init__(name)
        self.name = name
        self.args_ = args
        self.kwargs = dict(kwargs)
        self.offset = offset
        self.index = index


class Rendering:
    """One pass over a text: its local names, its scope and its remaining bounds."""

    __slots__ = (
        "_due",
        "_steps",
        "allowance",
        "blocks",
        "bounds",
        "calls",
        "deadline",
        "macro_depth",
        "names",
        "remaining",
        "results",
        "scope",
    )

    def __init__(self, scope: Scope, results: list[Any] | None = None) -> None:
        self.scope = scope
        self.bounds = bounds = BOUNDS
        self.results = results
        self.calls = 0
        self.names: dict[str, Any] = {}
        self.blocks: list[Any] = []
        self.macro_depth = 0
        self.remaining = bounds.output_chars
        self.allowance = bounds.output_chars * 4
        self.deadline = clock.monotonic() + bounds.seconds
        self._steps = bounds.steps
        self._due = _CLOCK_EVERY

    def tick(self, cost: int = 1) -> None:
        """Charges `cost` steps. Raises: LocatedError, if steps or time are used up."""
        self._steps -= cost
        self._due -= cost
        if self._due < 0:
            self._due = _CLOCK_EVERY
            if self._steps < 0:
                raise LocatedError(
                    f"takes more than {self.bounds.steps:,} steps", "too-long", forbidden=True
                )
            if clock.monotonic() > self.deadline:
                raise LocatedError(
                    f"takes more than {self.bounds.seconds:g} s", "too-long", forbidden=True
                )

    def charge(self, chars: int) -> None:
        """Charges for a value before it is made: one unit for each character, eight for each item
        of a list.
        """
        if chars > 64:
            self.allowance -= chars
            if self.allowance < 0 or chars > self.bounds.output_chars:
                raise self.too_large()
        self.tick(1 + (chars >> 9))

    def charge_items(self, count: int) -> None:
        """Charges for a list of this many items before it is made."""
        if count > MAX_ITEMS:
            raise LocatedError(
                f"makes a list of more than {MAX_ITEMS:,} items", "too-large", forbidden=True
            )
        self.charge(count * 8)

    def too_large(self) -> LocatedError:
        """Returns the error for an intermediate value past the bounds."""
        message = f"makes values of more than {self.bounds.output_chars:,} characters"
        return LocatedError(message, "too-large", forbidden=True)

    def too_long(self, offset: int) -> LocatedError:
        """Returns the error for a result past the bounds, whose characters `remaining` counts."""
        limit = self.bounds.output_chars
        return LocatedError(
            f"the result is longer than {limit:,} characters",
            "too-large",
            offset=offset,
            forbidden=True,
        )

    @contextmanager
    def inner_names(self, names: Mapping[str, Any]) -> Generator[None]:
        """Makes a copy of `names` the local names; names that are set inside are forgotten
        afterwards.
        """
        outside = self.names
        self.names = dict(names)
        try:
            yield
        finally:
            self.names = outside

    def look_up(self, name: str) -> Any:
        """Returns the value of a name, locals first, or MISSING."""
        value = self.names.get(name, MISSING)
        if value is MISSING:
            return self.scope.get(name)
        return value

    def visible(self) -> list[str]:
        """Returns every name that can be used at this point, sorted."""
        return sorted({*self.names, *self.scope.names()})

    def call(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], offset: int) -> Any:
        """Returns the recorded result of a function template, or raises Pending.

        A text is deterministic, so a rendering that stops for a call is started again with the
        call's result.
        """
        index = self.calls
        self.calls += 1
        self.tick()
        if self.results is None:
            message = f"{name!r} is not a function that can be called here"
            raise LocatedError(message, "unknown-function", offset=offset)
        if index < len(self.results):
            return self.results[index]
        if index >= self.bounds.calls:
            raise LocatedError(
                f"calls more than {self.bounds.calls} templates",
                "too-long",
                offset=offset,
                forbidden=True,
            )
        raise PendingCall(name, args, kwargs=kwargs, offset=offset, index=index)


class Namespace:
    """The value of `namespace()`: the one thing that a text can change, and never visible outside
    of it.
    """

    __slots__ = ("fields",)

    def __init__(self, fields: dict[str, Any]) -> None:
        self.fields = fields


class Group(dict[str, Any]):
    """A group of the filter `groupby`: an object with the fields `grouper` and `list`, which can
    also be bound to two names, as in Jinja2.
    """


class Loop:
    """The value of `loop` inside a `for`."""

    __slots__ = ("depth", "index0", "items", "seen")

    def __init__(self, items: Sequence[Any], depth: int) -> None:
        self.items = items
        self.depth = depth
        self.index0 = 0
        self.seen: Any = MISSING

    def item(self, index: int) -> Any:
        if 0 <= index < len(self.items):
            return self.items[index]
        return MISSING


LOOP_FIELDS: dict[str, Callable[[Loop], Any]] = {
    "index": lambda loop: loop.index0 + 1,
    "index0": lambda loop: loop.index0,
    "first": lambda loop: loop.index0 == 0,
    "last": lambda loop: loop.index0 == len(loop.items) - 1,
    "length": lambda loop: len(loop.items),
    "revindex": lambda loop: len(loop.items) - loop.index0,
    "revindex0": lambda loop: len(loop.items) - loop.index0 - 1,
    "depth": lambda loop: loop.depth,
    "depth0": lambda loop: loop.depth - 1,
    "previtem": lambda loop: loop.item(loop.index0 - 1),
    "nextitem": lambda loop: loop.item(loop.index0 + 1),
}


# Text and size


def text_of(run: Rendering, value: Any, what: str = "the value") -> str:
    """Returns a value as text: strings as they are, `true`, `false`, plain numbers, JSON for the
    rest.

    Raises: LocatedError `null-value` for None.
    """
    if isinstance(value, str):
        return value
    if value is None:
        raise LocatedError(
            f"{what} is null; write {{{{ … | default('…') }}}} where it may be", "null-value"
        )
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, bool | float):
        return json.dumps(value)
    return to_json(run, value)


def to_json(run: Rendering, value: Any, indent: int | None = None) -> str:
    """Returns a value as JSON, non-ASCII characters as they are."""
    size, depth = measure(run, value)
    run.charge(size * (1 if indent is None else 1 + indent * (depth + 1)))
    return json.dumps(value, ensure_ascii=False, indent=indent, default=dict)


def measure(run: Rendering, value: Any) -> tuple[int, int]:
    """Returns about how many characters a value has as JSON, and how deep it is nested.

    Lists that hold one another can be exponentially large in little memory, so this pays for each
    item before anything walks the value. Raises: LocatedError, past the bounds, or if the value
    holds anything that is not plain data.
    """
    size = 0
    deepest = 0
    pending: list[tuple[Any, int]] = [(value, 0)]
    while pending:
        item, depth = pending.pop()
        if isinstance(item, str):
            size += len(item) + 4
        elif item is None or isinstance(item, int | float):
            size += 8
        else:
            run.tick()
            deepest = max(deepest, depth)
            if depth > MAX_NESTING:
                raise LocatedError(
                    f"a value is nested more than {MAX_NESTING} deep", "too-large", forbidden=True
                )
            if isinstance(item, Mapping):
                size += 2 + sum(len(str(key)) + 6 for key in item)
                children = item.values()
            elif isinstance(item, list | tuple):
                size += 2 + 2 * len(item)
                children = item
            else:
                raise LocatedError(f"{describe(item)} is not a value", "not-plain", forbidden=True)
            run.tick(len(item) >> 3)
            pending.extend((child, depth + 1) for child in children)
        if size > run.bounds.output_chars:
            raise run.too_large()
    return size, deepest


def guard(run: Rendering, value: Any) -> None:
    """Charges for a comparison that may walk the whole of `value`."""
    if isinstance(value, str):
        run.tick(len(value) >> 10)
    elif isinstance(value, list | tuple | Mapping):
        measure(run, value)


# Dots, brackets, loops


def attribute(base: Any, name: str, what: str) -> Any:
    """Returns `base.name`, or MISSING if a mapping has no such key. Raises: LocatedError, if it can
    have no field.
    """
    if isinstance(base, Mapping):
        return base.get(name, MISSING)
    if isinstance(base, Namespace):
        return base.fields.get(name, MISSING)
    if isinstance(base, Loop):
        if name in LOOP_FIELDS:
            return LOOP_FIELDS[name](base)
        raise LocatedError(
            f"loop has no field {name!r}{nearest(name, LOOP_FIELDS)}", "undefined-attribute"
        )
    hint = ""
    if name == "length":
        hint = "; write {{ … | length }}"
    raise LocatedError(
        f"{what} is {describe(base)} and has no field {name!r}{hint}", "undefined-attribute"
    )


def item(run: Rendering, base: Any, key: Any, what: str) -> Any:
    """Returns `base[key]`, or MISSING if there is no such key or index."""
    if isinstance(base, Mapping):
        if isinstance(key, str | int | float):
            return base.get(key, MISSING)
        return MISSING
    if isinstance(base, list | tuple | str):
        if isinstance(key, slice):
            length = len(range(*key.indices(len(base))))
            run.charge(length if isinstance(base, str) else length * 8)
            if isinstance(base, str):
                return base[key]
            return list(base[key])
        if isinstance(key, int) and not isinstance(key, bool):
            if -len(base) <= key < len(base):
                return base[key]
            return MISSING
        message = f"{what} is {describe(base)}; its index is an integer, not {describe(key)}"
        raise LocatedError(message, "undefined-attribute")
    if isinstance(base, Namespace | Loop) and isinstance(key, str):
        return attribute(base, key, what=what)
    raise LocatedError(f"{what} is {describe(base)} and has no items", "undefined-attribute")


def absent(base: Any, key: Any, what: str) -> LocatedError:
    """Returns the error for a `base[key]` or `base.key` that does not exist."""
    if isinstance(base, Loop):
        message = f"loop.{key} does not exist in this iteration; test it with 'is defined'"
    elif isinstance(base, list | tuple | str):
        unit = "item"
        if isinstance(base, str):
            unit = "character"
        message = (
            f"{what} has no index {key}: it has {len(base)} {unit}{'' if len(base) == 1 else 's'}"
        )
    else:
        keys = [str(name) for name in (base.fields if isinstance(base, Namespace) else base)]
        has = "is empty"
        if keys:
            has = f"has only: {first_names(keys)}"
        message = f"{what} has no field {key!r}{nearest(str(key), keys)} ({has})"
    return LocatedError(message, "undefined-attribute")


def items_of(run: Rendering, value: Any) -> Sequence[Any]:
    """Returns the items for a loop or a filter: a list's items, a mapping's keys, a string's
    characters.
    """
    if isinstance(value, list | tuple):
        return value
    if isinstance(value, Mapping | str):
        run.charge_items(len(value))
        return list(value)
    raise LocatedError(f"cannot go over {describe(value)}; it is not a list", "wrong-type")


def pairs_of(run: Rendering, value: Any) -> list[Any]:
    """Returns a mapping's keys and values as a list of pairs."""
    if not isinstance(value, Mapping):
        raise LocatedError(f"{describe(value)} has no items; it is not an object", "wrong-type")
    run.charge_items(len(value) * 2)
    return [[key, item] for key, item in value.items()]
