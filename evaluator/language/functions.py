"""The functions that a text may call, such as `namespace`, and the methods that it may call on
plain values: a short list, read-only, each charged to the meter first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any

from evaluator.language.closures import Evaluate, Execute
from evaluator.language.locating import LocatedError, nearest
from evaluator.language.operators import equal
from evaluator.language.scopes import MISSING, describe
from evaluator.language.values import (
    LOOP_FIELDS,
    MAX_MACRO_DEPTH,
    MAX_RANGE,
    Loop,
    Namespace,
    Rendering,
    guard,
    items_of,
    pairs_of,
    text_of,
)

_MAX_STRIPPED = 1000
_LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"


def replace(run: Rendering, value: str, old: str, new: str, count: int | None = None) -> str:
    """Returns `value` with the first `count` occurrences of `old` replaced, or all of them."""
    found = value.count(old)
    if count is not None:
        found = min(found, max(count, 0))
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


def _splitlines(run: Rendering, value: str, keepends: Any = False) -> list[str]:
    run.charge(len(value))
    run.charge_items(sum(value.count(end) for end in _LINE_ENDS) + 1)
    return value.splitlines(bool(keepends))


def _plain(run: Rendering, value: str, /) -> None: ...
def _of_chars(run: Rendering, value: str, chars: Any = None, /) -> None: ...
def _of_end(run: Rendering, value: str, text: Any, /) -> None: ...
def _of_place(
    run: Rendering, value: str, text: Any, start: Any = 0, end: Any = None, /
) -> None: ...


def _method(name: str, takes: Callable[..., None] = _plain, growth: int = 1) -> Callable[..., Any]:
    """Returns a method of str that makes at most `growth` times as many characters. Its signature
    is that of `takes`.
    """
    method = getattr(str, name)

    @wraps(takes, assigned=(), updated=())
    def call(run: Rendering, value: str, *args: Any) -> Any:
        for argument in args:
            if not isinstance(argument, str | int):
                raise LocatedError(f"{name} takes text, not {describe(argument)}", "wrong-type")
            if "strip" in name and isinstance(argument, str) and len(argument) > _MAX_STRIPPED:
                # str.strip looks through all of these for each character.
                raise LocatedError(
                    f"{name} takes at most {_MAX_STRIPPED} characters", "too-large", forbidden=True
                )
        run.charge(len(value) * growth)
        return method(value, *args)

    return call


def _end_test(name: str) -> Callable[..., Any]:
    """Returns a method of str that looks for a text, or one of several, at an end of the value."""
    method = getattr(str, name)

    def call(run: Rendering, value: str, text: Any, start: Any = None, end: Any = None) -> Any:
        texts = text
        if not isinstance(text, list | tuple):
            texts = [text]
        for each in texts:
            if not isinstance(each, str):
                raise LocatedError(f"{name} takes text, not {describe(each)}", "wrong-type")
            run.tick(1 + (len(each) >> 9))
        for place in (start, end):
            if place is not None and not isinstance(place, int):
                raise LocatedError(f"{name} takes a place, not {describe(place)}", "wrong-type")
        return method(value, tuple(texts), start, end)

    return call


def _count(run: Rendering, values: Any, item: Any) -> int:
    guard(run, values)
    return sum(1 for other in values if equal(run, item, right=other))


def _index(run: Rendering, values: Any, item: Any) -> int:
    guard(run, values)
    for index, other in enumerate(values):
        if equal(run, item, right=other):
            return index
    raise LocatedError("the list does not hold the value", "wrong-type")


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


_PLAIN = "isalnum isalpha isdigit islower isspace isupper lower swapcase"

OF_STRING: dict[str, Callable[..., Any]] = {
    **{name: _method(name) for name in _PLAIN.split()},
    **{name: _method(name, growth=3) for name in ("capitalize", "casefold", "title", "upper")},
    **{name: _method(name, _of_chars) for name in ("lstrip", "rstrip", "strip")},
    **{name: _method(name, _of_end) for name in ("removeprefix", "removesuffix")},
    **{name: _method(name, _of_place) for name in ("count", "find")},
    **{name: _end_test(name) for name in ("endswith", "startswith")},
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
METHODS: dict[str, dict[str, Callable[..., Any]]] = {
    "string": OF_STRING,
    "array": OF_LIST,
    "object": OF_MAPPING,
}
"""The methods of values by the type of the value; other types have none."""
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
        raise LocatedError(f"loop.{name} is not called; write it without ()", "unknown-method")
    if isinstance(value, Loop):
        kind = "loop"
    else:
        kind = describe(value)
    hint = nearest(name, table) or (f"; there are {', '.join(sorted(table))}" if table else "")
    message = f"{what} is {kind} and has no method {name!r}{hint}"
    raise LocatedError(message, "unknown-method", forbidden=name.startswith("_"))


class Macro:
    """The value that `{% macro %}` binds: parameters, body, and the names around it."""

    def __init__(
        self,
        name: str,
        params: tuple[str, ...],
        defaults: tuple[Evaluate, ...],
        body: Execute,
        names: dict[str, Any],
    ) -> None:
        self.name = name
        self.params = params
        self.defaults = defaults
        self.body = body
        self.names = names

    def call(self, run: Rendering, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """Returns the text that the body writes. Raises: LocatedError, if the arguments do not
        fit.
        """
        run.tick(10)
        if run.macro_depth >= MAX_MACRO_DEPTH:
            message = f"macros call one another more than {MAX_MACRO_DEPTH} deep"
            raise LocatedError(message, "too-deep", forbidden=True)
        run.macro_depth += 1
        try:
            with run.inner_names(self.names):
                required = self.params[: len(self.params) - len(self.defaults)]
                bound = bind_names(
                    f"macro {self.name!r}", self.params, required=required, args=args, kwargs=kwargs
                )
                run.names.update(bound)
                # In order, so that a default may use the parameters before it.
                optional = self.params[len(required) :]
                for name, default in zip(optional, self.defaults, strict=True):
                    if name not in bound:
                        run.names[name] = default(run)
                out: list[str] = []
                self.body(run, out)
        finally:
            run.macro_depth -= 1
        text = "".join(out)
        run.charge(len(text))
        return text


def bind_names(
    what: str,
    names: Sequence[str],
    required: Sequence[str],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> dict[str, Any]:
    """The values of the parameters `names` that a call of `what` gives, by name.

    Raises: LocatedError `wrong-arity`, `unknown-argument` or `duplicate-argument`.
    """
    if len(args) > len(names):
        takes = f"{len(names)} argument{'' if len(names) == 1 else 's'}"
        raise LocatedError(f"{what} takes {takes}, got {len(args)}", "wrong-arity")
    bound = dict(zip(names, args, strict=False))
    for key, value in kwargs.items():
        if key not in names:
            raise LocatedError(
                f"{what} has no parameter {key!r}{nearest(key, names)}", "unknown-argument"
            )
        if key in bound:
            raise LocatedError(f"{what} is given {key!r} twice", "duplicate-argument")
        bound[key] = value
    missing = [name for name in required if name not in bound]
    if missing:
        raise LocatedError(f"{what} needs {', '.join(map(repr, missing))}", "wrong-arity")
    return bound


def _range(run: Rendering, *bounds: Any) -> list[int]:
    count = len(range(*bounds))
    if count > MAX_RANGE:
        raise LocatedError(
            f"a range has at most {MAX_RANGE:,} numbers", "too-large", forbidden=True
        )
    run.charge_items(count)
    return list(range(*bounds))


def _dict(run: Rendering, *pairs: Any, **fields: Any) -> dict[str, Any]:
    result: dict[Any, Any] = {}
    for source in pairs:
        result.update(source if isinstance(source, Mapping) else dict(items_of(run, source)))
    run.charge_items(2 * (len(result) + len(fields)))
    if not all(isinstance(key, str) for key in result):
        raise LocatedError("a key is a string", "wrong-type")
    return {**result, **fields}


def _namespace(run: Rendering, *pairs: Any, **fields: Any) -> Namespace:
    return Namespace(_dict(run, *pairs, **fields))


GLOBAL_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "dict": _dict,
    "namespace": _namespace,
    "range": _range,
}
