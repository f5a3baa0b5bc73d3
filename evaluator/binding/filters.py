"""The filters, with Jinja's names and meaning, over plain values and within the bounds.

A filter is called with the run, the value and its arguments. `default` is not here: the compiler knows it,
since it takes a value that may be undefined.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

from evaluator.binding.bounds import Run
from evaluator.binding.methods import OF_STRING
from evaluator.binding.methods import join as join_text
from evaluator.binding.methods import replace as replace_text
from evaluator.binding.operations import (
    absent,
    add,
    items_of,
    ordered,
    text_of,
    to_json,
)
from evaluator.binding.operations import attribute as attribute_of
from evaluator.binding.operations import item as item_of
from evaluator.binding.predicates import run_test
from evaluator.binding.scopes import MISSING
from evaluator.binding.types import describe
from evaluator.library.syntax import Fault, unknown_filter

_MAX_WIDTH = 100_000


def _text(run: Run, value: Any) -> str:
    text = text_of(run, value)
    run.charge(len(text))
    return text


def _width(width: Any, name: str = "width") -> int:
    if isinstance(width, bool) or not isinstance(width, int):
        raise Fault(f"{name} is an integer, not {describe(width)}", None, "wrong-type")
    if not 0 <= width <= _MAX_WIDTH:
        raise Fault(f"{name} lies between 0 and {_MAX_WIDTH:,}", None, "too-large", width > 0)
    return width


def _field(run: Run, value: Any, path: Any, default: Any = MISSING) -> Any:
    """The value at a dotted path, as in `map(attribute="a.b")`."""
    for part in path.split(".") if isinstance(path, str) else [path]:
        key = int(part) if isinstance(part, str) and part.isdigit() else part
        name = isinstance(key, str)
        found = attribute_of(run, value, key, "an item") if name else item_of(run, value, key, "an item")
        if found is MISSING:
            if default is not MISSING:
                return default
            raise absent(value, key, "an item")
        value = found
    return value


class _Key:
    """An ordering of plain values that refuses to compare what has no order."""

    __slots__ = ("run", "value")

    def __init__(self, run: Run, value: Any) -> None:
        self.run, self.value = run, value

    def __lt__(self, other: _Key) -> bool:
        self.run.tick()
        left, right = ordered(self.run, self.value, other.value)
        return left < right


def _keyed(run: Run, attribute: Any, case_sensitive: bool) -> Callable[[Any], _Key]:
    def key(value: Any) -> _Key:
        if attribute is not None:
            parts = attribute.split(",") if isinstance(attribute, str) else [attribute]
            found = [_folded(_field(run, value, part), case_sensitive) for part in parts]
            return _Key(run, found if len(found) > 1 else found[0])
        return _Key(run, _folded(value, case_sensitive))

    return key


def _folded(value: Any, case_sensitive: bool) -> Any:
    return value.lower() if isinstance(value, str) and not case_sensitive else value


# Text


def _center(run: Run, value: Any, width: int = 80) -> str:
    text = _text(run, value)
    run.charge(max(_width(width), len(text)))
    return text.center(width)


def _indent(run: Run, value: Any, width: Any = 4, first: bool = False, blank: bool = False) -> str:
    text = _text(run, value)
    margin = width if isinstance(width, str) else " " * _width(width)
    run.charge(len(text) + len(margin) * (text.count("\n") + 1))
    lines = text.split("\n")
    rest = [margin + line if line.strip() or blank else line for line in lines[1:]]
    return "\n".join([margin + lines[0] if first else lines[0], *rest])


def _truncate(
    run: Run, value: Any, length: int = 255, killwords: bool = False, end: str = "...", leeway: int = 0
) -> str:
    text = text_of(run, value)
    end = text_of(run, end)
    if length < len(end):
        raise Fault(f"length is at least {len(end)}, the length of the end mark", None, "wrong-type")
    if len(text) <= length + leeway:
        return text
    cut = text[: length - len(end)]
    return (cut if killwords else cut.rsplit(" ", 1)[0]) + end


def _wordwrap(run: Run, value: Any, width: int = 79, break_long_words: bool = True, wrapstring: str = "\n") -> str:
    text = _text(run, value)
    if _width(width) == 0:
        raise Fault("width is at least 1", None, "wrong-type")
    run.charge(len(text) + len(wrapstring) * (len(text) // width + text.count(" ") + 1))
    return "\n".join(wrapstring.join(_wrapped(run, line, width, break_long_words)) for line in text.split("\n"))


def _wrapped(run: Run, line: str, width: int, break_words: bool) -> list[str]:
    lines: list[str] = []
    current = ""
    for word in line.split():
        run.tick()
        if current and len(current) + 1 + len(word) <= width:
            current = f"{current} {word}"
            continue
        if current:
            lines.append(current)
        if break_words and len(word) > width:
            run.tick(len(word) // width)
            pieces = [word[start : start + width] for start in range(0, len(word), width)]
            lines.extend(pieces[:-1])
            word = pieces[-1]
        current = word
    return [*lines, current] if current or not lines else lines


_DIRECTIVE = re.compile(r"%(?:\((\w+)\))?([-+ #0]*)(\d*)(?:\.(\d+))?([sdifgGeExXo%])")


def _format(run: Run, value: Any, *args: Any, **kwargs: Any) -> str:
    """`"%.2f of %s" | format(x, name)`: the directives of Python's `%` without `*`, widths up to 1000."""
    text = _text(run, value)
    if _DIRECTIVE.sub("", text).count("%"):
        raise Fault("there is a directive after % that format does not know", None, "wrong-type")
    values: list[Any] = []
    extra = 0
    for match in _DIRECTIVE.finditer(text):
        name, _, width, precision, kind = match.groups()
        if int(width or 0) > 1000 or int(precision or 0) > 1000:
            raise Fault("a width in format is at most 1000", None, "too-large", True)
        extra += int(width or 0) + int(precision or 0) + 400
        if kind == "%":
            continue
        if name is None and len(values) >= len(args):
            raise Fault("format has fewer values than directives", None, "wrong-arity")
        if name is not None and name not in kwargs:
            raise Fault(f"format has no value named {name!r}", None, "wrong-arity")
        given = args[len(values)] if name is None else kwargs[name]
        given = text_of(run, given) if kind == "s" else given
        extra += len(given) if isinstance(given, str) else 0
        values.append(given)
    run.charge(len(text) + extra)
    return _DIRECTIVE.sub(lambda m: f"%{m[2]}{m[3]}{'' if m[4] is None else '.' + m[4]}{m[5]}", text) % tuple(values)


def _title(run: Run, value: Any) -> str:
    return re.sub(r"[^\s({\[<-]+", lambda m: m[0][:1].upper() + m[0][1:].lower(), _text(run, value))


def _urlencode(run: Run, value: Any) -> str:
    if isinstance(value, Mapping):
        value = _items(run, value)
    if isinstance(value, list | tuple):
        pairs = [items_of(run, pair) for pair in value]
        return "&".join("=".join(_urlencode(run, part) for part in pair) for pair in pairs)
    text = text_of(run, value)
    run.charge(len(text) * 3)
    return quote(text.encode("utf-8", "surrogatepass"), safe="/")


def _replace(run: Run, value: Any, old: Any, new: Any, count: int | None = None) -> str:
    return replace_text(run, text_of(run, value), text_of(run, old), text_of(run, new), count)


def _trim(run: Run, value: Any, *chars: Any) -> str:
    return OF_STRING["strip"](run, text_of(run, value), *chars)


def _tojson(run: Run, value: Any, indent: int | None = None) -> str:
    if indent is not None and not 0 <= _width(indent, "indent") <= 8:
        raise Fault("indent lies between 0 and 8", None, "too-large")
    return to_json(run, value, indent)


# Numbers


def _float(run: Run, value: Any, default: Any = 0.0) -> Any:
    if isinstance(value, int | float):
        return float(value)
    try:
        return float(value) if isinstance(value, str) and len(value) <= 1000 else default
    except ValueError:
        return default


def _int(run: Run, value: Any, default: Any = 0, base: int = 10) -> Any:
    """The whole part of a number or of text that is one, else `default`."""
    if isinstance(value, int):
        return int(value)
    try:
        if isinstance(value, float):
            return int(value)
        if not isinstance(value, str) or len(value) > 1000:
            return default
        return int(float(value)) if base == 10 and "." in value else int(value, base)
    except (ValueError, OverflowError):
        return default


def _round(run: Run, value: Any, precision: int = 0, method: str = "common") -> float:
    if method not in ("common", "ceil", "floor"):
        raise Fault("method is common, ceil or floor", None, "wrong-type")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Fault(f"cannot round {describe(value)}", None, "wrong-type")
    if not -300 <= precision <= 300:
        raise Fault("precision lies between -300 and 300", None, "wrong-type")
    if method == "common":
        return round(float(value), precision)
    return (math.ceil if method == "ceil" else math.floor)(value * 10.0**precision) / 10.0**precision


def _sum(run: Run, value: Any, attribute: Any = None, start: Any = 0) -> Any:
    total = start
    for item in items_of(run, value):
        run.tick()
        total = add(run, total, item if attribute is None else _field(run, item, attribute))
    return total


def _abs(run: Run, value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Fault(f"{describe(value)} is not a number", None, "wrong-type")
    return abs(value)


# Lists and mappings


def _length(run: Run, value: Any) -> int:
    if isinstance(value, str | list | tuple | Mapping):
        return len(value)
    raise Fault(f"{describe(value)} has no length", None, "wrong-type")


def _end(index: int) -> Callable[[Run, Any], Any]:
    def end(run: Run, value: Any) -> Any:
        items = value if isinstance(value, str) else items_of(run, value)
        if not items:
            raise Fault("the list is empty", None, "undefined-attribute")
        return items[index]

    return end


def _list(run: Run, value: Any) -> list[Any]:
    items = items_of(run, value)
    run.charge_items(len(items))
    return list(items)


def _reverse(run: Run, value: Any) -> Any:
    if isinstance(value, str):
        run.charge(len(value))
        return value[::-1]
    return _list(run, value)[::-1]


def _items(run: Run, value: Any) -> list[Any]:
    if not isinstance(value, Mapping):
        raise Fault(f"{describe(value)} has no items; it is not an object", None, "wrong-type")
    run.charge_items(len(value) * 2)
    return [[key, item] for key, item in value.items()]


def _join(run: Run, value: Any, d: Any = "", attribute: Any = None) -> str:
    if attribute is not None:
        value = [_field(run, item, attribute) for item in items_of(run, value)]
    return join_text(run, text_of(run, d), value)


def _sort(
    run: Run, value: Any, reverse: bool = False, case_sensitive: bool = False, attribute: Any = None
) -> list[Any]:
    return sorted(_list(run, value), key=_keyed(run, attribute, case_sensitive), reverse=bool(reverse))


def _dictsort(run: Run, value: Any, case_sensitive: bool = False, by: str = "key", reverse: bool = False) -> list[Any]:
    if by not in ("key", "value"):
        raise Fault("by is 'key' or 'value'", None, "wrong-type")
    return _sort(run, _items(run, value), reverse, case_sensitive, 0 if by == "key" else 1)


def _extreme(largest: bool) -> Callable[..., Any]:
    def extreme(run: Run, value: Any, case_sensitive: bool = False, attribute: Any = None) -> Any:
        items = items_of(run, value)
        if not items:
            raise Fault("the list is empty", None, "undefined-attribute")
        key = _keyed(run, attribute, case_sensitive)
        best, best_key = items[0], key(items[0])
        for item in items[1:]:
            item_key = key(item)
            if (best_key < item_key) if largest else (item_key < best_key):
                best, best_key = item, item_key
        return best

    return extreme


def _hashable(run: Run, value: Any) -> Any:
    """A key under which equal values, and only those, are equal."""
    if isinstance(value, list | tuple | Mapping):
        return ("json", to_json(run, value))
    return (isinstance(value, bool), value)


def _unique(run: Run, value: Any, case_sensitive: bool = False, attribute: Any = None) -> list[Any]:
    seen: dict[Any, Any] = {}
    for item in items_of(run, value):
        run.tick()
        key = item if attribute is None else _field(run, item, attribute)
        seen.setdefault(_hashable(run, _folded(key, case_sensitive)), item)
    return list(seen.values())


def _groupby(run: Run, value: Any, attribute: Any, default: Any = MISSING, case_sensitive: bool = False) -> list[Any]:
    groups: dict[Any, dict[str, Any]] = {}
    for item in items_of(run, value):
        run.tick()
        key = _field(run, item, attribute, default)
        group = groups.setdefault(_hashable(run, _folded(key, case_sensitive)), {"grouper": key, "list": []})
        group["list"].append(item)
    return sorted(groups.values(), key=_keyed(run, "grouper", case_sensitive))


def _batch(run: Run, value: Any, linecount: int, fill_with: Any = None) -> list[Any]:
    if _width(linecount, "batch") == 0:
        raise Fault("batch is at least 1", None, "wrong-type")
    items = items_of(run, value)
    run.charge_items(len(items) + linecount)
    rows = [list(items[start : start + linecount]) for start in range(0, len(items), linecount)]
    if rows and fill_with is not None:
        rows[-1].extend([fill_with] * (linecount - len(rows[-1])))
    return rows


def _slice(run: Run, value: Any, slices: int, fill_with: Any = None) -> list[Any]:
    if _width(slices, "slice") == 0:
        raise Fault("slice is at least 1", None, "wrong-type")
    items = items_of(run, value)
    run.charge_items(len(items) + 8 * slices)
    each, longer = divmod(len(items), slices)
    columns: list[Any] = []
    start = 0
    for column in range(slices):
        size = each + (column < longer)
        part = list(items[start : start + size])
        start += size
        if fill_with is not None and column >= longer > 0:
            part.append(fill_with)
        columns.append(part)
    return columns


def apply_filter(run: Run, name: str, value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A filter by its name, as `map("upper")` does. Raises: Fault."""
    function = FILTERS.get(name)
    if function is None:
        raise unknown_filter(name, None)
    run.tick()
    return function(run, value, *args, **kwargs)


def _map(run: Run, value: Any, *args: Any, **kwargs: Any) -> list[Any]:
    items = items_of(run, value)
    run.charge_items(len(items))
    if "attribute" in kwargs and not args:
        attribute, default = kwargs.pop("attribute"), kwargs.pop("default", MISSING)
        if kwargs:
            raise Fault(f"map has no argument {next(iter(kwargs))!r}", None, "wrong-arity")
        run.tick(len(items))
        return [_field(run, item, attribute, default) for item in items]
    if not args or not isinstance(args[0], str):
        raise Fault("map takes the name of a filter, or attribute=…", None, "wrong-arity")
    return [apply_filter(run, args[0], item, args[1:], kwargs) for item in items]


def _choose(keep: bool, by_attribute: bool) -> Callable[..., list[Any]]:
    def choose(run: Run, value: Any, *args: Any) -> list[Any]:
        items = items_of(run, value)
        run.charge_items(len(items))
        chosen: list[Any] = []
        if by_attribute and not args:
            raise Fault("the name of an attribute is missing", None, "wrong-arity")
        attribute, rest = (args[0], args[1:]) if by_attribute else (None, args)
        for item in items:
            run.tick()
            subject = _field(run, item, attribute, None) if by_attribute else item
            holds = run_test(run, rest[0], subject, rest[1:]) if rest else bool(subject)
            if holds is keep:
                chosen.append(item)
        return chosen

    return choose


def _textual(function: Callable[[str], Any], growth: int = 1) -> Callable[[Run, Any], Any]:
    def apply(run: Run, value: Any) -> Any:
        text = text_of(run, value)
        run.charge(len(text) * growth)
        return function(text)

    return apply


def _escape(text: str) -> str:
    return html.escape(text).replace("&#x27;", "&#39;").replace("&quot;", "&#34;")


FILTERS: dict[str, Callable[..., Any]] = {
    "abs": _abs,
    "batch": _batch,
    "capitalize": _textual(str.capitalize, 3),
    "center": _center,
    "count": _length,
    "dictsort": _dictsort,
    "e": _textual(_escape, 2),
    "escape": _textual(_escape, 2),
    "first": _end(0),
    "float": _float,
    "format": _format,
    "groupby": _groupby,
    "indent": _indent,
    "int": _int,
    "items": _items,
    "join": _join,
    "last": _end(-1),
    "length": _length,
    "list": _list,
    "lower": _textual(str.lower, 2),
    "map": _map,
    "max": _extreme(True),
    "min": _extreme(False),
    "reject": _choose(False, False),
    "rejectattr": _choose(False, True),
    "replace": _replace,
    "reverse": _reverse,
    "round": _round,
    "select": _choose(True, False),
    "selectattr": _choose(True, True),
    "slice": _slice,
    "sort": _sort,
    "string": _textual(str),
    "sum": _sum,
    "title": _title,
    "tojson": _tojson,
    "trim": _trim,
    "truncate": _truncate,
    "unique": _unique,
    "upper": _textual(str.upper, 3),
    "urlencode": _urlencode,
    "wordcount": _textual(lambda text: len(re.findall(r"\w+", text))),
    "wordwrap": _wordwrap,
}
