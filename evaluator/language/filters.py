"""The filters, with Jinja's names and meaning, over plain values and within the bounds.

A filter is called with the run, the value and its arguments. Jinja's own functions do the work
where their cost is bounded by a check beforehand; filters that compare values, look up fields or
could grow without bound are written here. `default` is in the compiler, because its subject may be
undefined.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cmp_to_key
from inspect import Parameter, getdoc, signature
from typing import Any

from jinja2 import filters as jinja

from evaluator.language import functions
from evaluator.language.locating import LocatedError, nearest
from evaluator.language.operators import add, less, run_test
from evaluator.language.scopes import MISSING, describe, is_number
from evaluator.language.values import (
    Group,
    Rendering,
    absent,
    attribute,
    item,
    items_of,
    pairs_of,
    text_of,
    to_json,
)
from evaluator.language.wrapping import wrapped_lines
from evaluator.patterns import Pattern

_MAX_WIDTH = 100_000
_MAX_NUMBER_CHARS = 1000


def _text(run: Rendering, value: Any, growth: int = 1) -> str:
    text = text_of(run, value)
    run.charge(len(text) * growth)
    return text


def _textual(function: Callable[[str], Any], growth: int = 1) -> Callable[[Rendering, Any], Any]:
    return lambda run, value: function(_text(run, value, growth=growth))


def _width(width: Any, name: str = "width", least: int = 0, most: int = _MAX_WIDTH) -> int:
    if isinstance(width, bool) or not isinstance(width, int):
        raise LocatedError(f"{name} is an integer, not {describe(width)}", "wrong-type")
    if not least <= width <= most:
        raise LocatedError(
            f"{name} lies between {least} and {most:,}", "too-large", forbidden=width > 0
        )
    return width


# Text


def _center(run: Rendering, value: Any, width: int = 80) -> str:
    run.charge(_width(width))
    return _text(run, value).center(width)


def _indent(
    run: Rendering, value: Any, width: Any = 4, first: bool = False, blank: bool = False
) -> str:
    text = _text(run, value)
    if isinstance(width, str):
        margin = width
    else:
        margin = " " * _width(width)
    run.charge(len(text) + len(margin) * (text.count("\n") + 1))
    lines = text.split("\n")
    rest = [margin + line if line.strip() or blank else line for line in lines[1:]]
    return "\n".join([margin + lines[0] if first else lines[0], *rest])


def _truncate(
    run: Rendering,
    value: Any,
    length: int = 255,
    killwords: bool = False,
    end: str = "...",
    leeway: int = 0,
) -> str:
    text = text_of(run, value)
    end = text_of(run, end)
    if length < len(end):
        raise LocatedError(
            f"length is at least {len(end)}, the length of the end mark", "wrong-type"
        )
    if len(text) <= length + leeway:
        return text
    cut = text[: length - len(end)]
    return (cut if killwords else cut.rsplit(" ", 1)[0]) + end


def _wordwrap(
    run: Rendering,
    value: Any,
    width: int = 79,
    break_long_words: bool = True,
    wrapstring: str = "\n",
    break_on_hyphens: bool = True,
) -> str:
    text = _text(run, value)
    _width(width, least=1)
    lines: list[str] = []
    for paragraph in text.splitlines():
        wrapped = wrapped_lines(
            run,
            paragraph,
            width=width,
            break_words=break_long_words,
            on_hyphens=break_on_hyphens,
        )
        lines += wrapped or [""]
    run.charge(len(text) + len(wrapstring) * len(lines))
    return wrapstring.join(lines)


_DIRECTIVE = Pattern(r"%(?:\((\w+)\))?([-+ #0]*)(\d*)(?:\.(\d+))?([sdifgGeExXo%])")


def _format(run: Rendering, value: Any, *args: Any, **kwargs: Any) -> str:
    """`"%.2f of %s" | format(x, name)`: the directives of Python's `%` without `*`, widths up to
    1000.
    """
    text = _text(run, value)
    if _DIRECTIVE.sub("", text).count("%"):
        raise LocatedError("there is a directive after % that format does not know", "wrong-type")
    values: list[Any] = []
    extra = 0
    for name, _, width, precision, kind in _DIRECTIVE.findall(text):
        if int(width or 0) > 1000 or int(precision or 0) > 1000:
            raise LocatedError("a width in format is at most 1000", "too-large", forbidden=True)
        extra += int(width or 0) + int(precision or 0) + 400
        if kind == "%":
            continue
        if not name and len(values) >= len(args):
            raise LocatedError("format has fewer values than directives", "wrong-arity")
        if name and name not in kwargs:
            raise LocatedError(f"format has no value named {name!r}", "wrong-arity")
        if name:
            given = kwargs[name]
        else:
            given = args[len(values)]
        values.append(text_of(run, given) if kind == "s" else given)
        extra += len(values[-1]) if isinstance(values[-1], str) else 0
    run.charge(len(text) + extra)
    return _DIRECTIVE.sub(lambda match: match[0].replace(f"({match[1]})", "", 1), text) % tuple(
        values
    )


def _escape(run: Rendering, value: Any) -> str:
    text = _text(run, value)
    run.charge(4 * sum(map(text.count, "&<>'\"")))
    return str(jinja.do_forceescape(text))


def _urlencode(run: Rendering, value: Any) -> str:
    if isinstance(value, Mapping):
        value = pairs_of(run, value)
    if isinstance(value, list | tuple):
        pairs: list[Any] = [
            [_text(run, part, growth=3) for part in items_of(run, pair)] for pair in value
        ]
        return jinja.do_urlencode(pairs)
    return jinja.do_urlencode(_text(run, value, growth=3))


def _replace(run: Rendering, value: Any, old: Any, new: Any, count: int | None = None) -> str:
    return functions.replace(run, text_of(run, value), text_of(run, old), text_of(run, new), count)


def _trim(run: Rendering, value: Any, chars: str | None = None) -> str:
    return functions.strip(run, text_of(run, value), chars)


def _tojson(run: Rendering, value: Any, indent: int | None = None) -> str:
    return to_json(run, value, indent=None if indent is None else _width(indent, "indent", most=8))


# Numbers


def _numeric(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns Jinja's filter `int` or `float`, which gives a default for a value that is not a
    number. A number of too many digits is an error instead.
    """

    def convert(run: Rendering, value: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(value, str) and len(value) > _MAX_NUMBER_CHARS:
            digits = value.strip().removeprefix("-").removeprefix("+")
            if digits[:1].isdigit() and digits.replace(".", "", 1).isdigit():
                raise LocatedError("the number has too many digits", "too-large")
            return function("", *args, **kwargs)
        if not isinstance(value, str | int | float):
            value = ""
        return function(value, *args, **kwargs)

    return convert


def _round(run: Rendering, value: Any, precision: int = 0, method: Any = "common") -> int | float:
    if not is_number(value):
        raise LocatedError(f"cannot round {describe(value)}", "wrong-type")
    if method not in ("common", "ceil", "floor"):
        raise LocatedError("method is common, ceil or floor", "wrong-type")
    digits = _width(precision, "precision", least=-300, most=300)
    if isinstance(value, int) and method == "common":
        return round(value, digits)  # an integer, of any length
    return jinja.do_round(float(value), digits, method)


def _abs(run: Rendering, value: Any) -> Any:
    if not is_number(value):
        raise LocatedError(f"{describe(value)} is not a number", "wrong-type")
    return abs(value)


# Lists


def _list(run: Rendering, value: Any) -> list[Any]:
    items = items_of(run, value)
    run.charge_items(len(items))
    return list(items)


def _length(run: Rendering, value: Any) -> int:
    if not isinstance(value, str | list | tuple | Mapping):
        raise LocatedError(f"{describe(value)} has no length", "wrong-type")
    return len(value)


def _at(index: int) -> Callable[[Rendering, Any], Any]:
    return lambda run, value: _not_empty(value if isinstance(value, str) else items_of(run, value))[
        index
    ]


def _not_empty(items: Sequence[Any]) -> Sequence[Any]:
    if not items:
        raise LocatedError("the list is empty", "undefined-attribute")
    return items


def _reverse(run: Rendering, value: Any) -> Any:
    if isinstance(value, str):
        return _text(run, value)[::-1]
    return _list(run, value)[::-1]


def _join(run: Rendering, value: Any, d: Any = "", attribute: Any = None) -> str:
    if attribute is not None:
        value = [_field(run, each, path=attribute) for each in items_of(run, value)]
    return functions.join(run, text_of(run, d), value)


def _sum(run: Rendering, value: Any, attribute: Any = None, start: Any = 0) -> Any:
    total = start
    for each in items_of(run, value):
        run.tick()
        total = add(
            run, total, right=each if attribute is None else _field(run, each, path=attribute)
        )
    return total


def _batch(run: Rendering, value: Any, linecount: int, fill_with: Any = None) -> list[Any]:
    items = items_of(run, value)
    run.charge_items(len(items) + _width(linecount, "batch", least=1))
    return list(jinja.do_batch(items, linecount, fill_with))


def _slice(run: Rendering, value: Any, slices: int, fill_with: Any = None) -> list[Any]:
    items = items_of(run, value)
    run.charge_items(len(items) + 8 * _width(slices, "slice", least=1))
    # Jinja fills every column, even if all of them are equally long.
    return list(jinja.sync_do_slice(items, slices, fill_with if len(items) % slices else None))


# Fields and order


def _field(run: Rendering, value: Any, path: Any, default: Any = MISSING) -> Any:
    """Returns the value at a dotted path, as in `map(attribute="a.b")`."""
    for part in path.split(".") if isinstance(path, str) else [path]:
        if isinstance(part, str) and part.isdigit():
            key = int(part)
        else:
            key = part
        if isinstance(key, str):
            found = attribute(value, key, what="an item")
        else:
            found = item(run, value, key=key, what="an item")
        if found is MISSING and default is MISSING:
            raise absent(value, key, what="an item")
        if found is MISSING:
            return default
        value = found
    return value


def _folded(value: Any, case_sensitive: bool) -> Any:
    if isinstance(value, str) and not case_sensitive:
        return value.lower()
    return value


def _key(run: Rendering, attribute: Any, case_sensitive: bool) -> Callable[[Any], Any]:
    """Returns a sort key that refuses to compare values that have no order."""

    def compare(left: Any, right: Any) -> int:
        run.tick()
        if less(run, left, right=right):
            return -1
        return int(less(run, right, right=left))

    ordered = cmp_to_key(compare)

    def key(value: Any) -> Any:
        if attribute is None:
            return ordered(_folded(value, case_sensitive))
        if isinstance(attribute, str):
            parts = attribute.split(",")
        else:
            parts = [attribute]
        found = [_folded(_field(run, value, path=part), case_sensitive) for part in parts]
        return ordered(found if len(found) > 1 else found[0])

    return key


def _sort(
    run: Rendering,
    value: Any,
    reverse: bool = False,
    case_sensitive: bool = False,
    attribute: Any = None,
) -> list[Any]:
    return sorted(
        _list(run, value),
        key=_key(run, attribute, case_sensitive=case_sensitive),
        reverse=bool(reverse),
    )


def _dictsort(
    run: Rendering, value: Any, case_sensitive: bool = False, by: str = "key", reverse: bool = False
) -> list[Any]:
    if by not in ("key", "value"):
        raise LocatedError("by is 'key' or 'value'", "wrong-type")
    return _sort(
        run,
        pairs_of(run, value),
        reverse=reverse,
        case_sensitive=case_sensitive,
        attribute=0 if by == "key" else 1,
    )


def _extreme(choose: Callable[..., Any]) -> Callable[..., Any]:
    def extreme(
        run: Rendering, value: Any, case_sensitive: bool = False, attribute: Any = None
    ) -> Any:
        return choose(
            _not_empty(items_of(run, value)),
            key=_key(run, attribute, case_sensitive=case_sensitive),
        )

    return extreme


def _groups(
    run: Rendering, value: Any, key_of: Callable[[Any], Any], case_sensitive: bool
) -> list[tuple[Any, list[Any]]]:
    """Returns the different keys of a list's items, each with the items that share it."""
    groups: dict[Any, tuple[Any, list[Any]]] = {}
    items = items_of(run, value)
    run.charge_items(len(items))
    for each in items:
        run.tick()
        key = key_of(each)
        folded = _folded(key, case_sensitive)
        hashable = (isinstance(folded, bool), folded)
        if isinstance(folded, list | tuple | Mapping):
            hashable = ("json", to_json(run, folded))
        groups.setdefault(hashable, (key, []))[1].append(each)
    return list(groups.values())


def _unique(
    run: Rendering, value: Any, case_sensitive: bool = False, attribute: Any = None
) -> list[Any]:
    groups = _groups(
        run,
        value,
        key_of=lambda each: each if attribute is None else _field(run, each, path=attribute),
        case_sensitive=case_sensitive,
    )
    return [items[0] for _, items in groups]


def _groupby(
    run: Rendering, value: Any, attribute: Any, default: Any = MISSING, case_sensitive: bool = False
) -> list[Any]:
    groups = _groups(
        run,
        value,
        key_of=lambda each: _field(run, each, path=attribute, default=default),
        case_sensitive=case_sensitive,
    )
    named = [Group(grouper=key, list=items) for key, items in groups]
    return _sort(run, named, reverse=False, case_sensitive=case_sensitive, attribute="grouper")


# Filters and tests of each item


def apply_filter(
    run: Rendering, name: str, value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Returns the result of a filter by its name, as `map("upper")` needs it. Raises:
    LocatedError.
    """
    function = _default if name in ("d", "default") else FILTERS.get(name)
    if function is None:
        raise unknown_filter(name)
    run.tick()
    return function(run, value, *args, **kwargs)


def _default(run: Rendering, value: Any, default_value: Any = "", boolean: Any = False) -> Any:
    """The filter `default` of an item, which is never undefined."""
    if value is None or (boolean and not value):
        return default_value
    return value


def _map(run: Rendering, value: Any, *args: Any, **kwargs: Any) -> list[Any]:
    items = _list(run, value)
    if "attribute" in kwargs and not args:
        path = kwargs.pop("attribute")
        default = kwargs.pop("default", MISSING)
        if kwargs:
            raise LocatedError(f"map has no argument {next(iter(kwargs))!r}", "wrong-arity")
        run.tick(len(items))
        return [_field(run, each, path=path, default=default) for each in items]
    if not args or not isinstance(args[0], str):
        raise LocatedError("map takes the name of a filter, or attribute=…", "wrong-arity")
    return [apply_filter(run, args[0], value=each, args=args[1:], kwargs=kwargs) for each in items]


def _choose(keep: bool, by_attribute: bool) -> Callable[..., list[Any]]:
    def choose(run: Rendering, value: Any, *args: Any) -> list[Any]:
        items = _list(run, value)
        if by_attribute and not args:
            raise LocatedError("the name of an attribute is missing", "wrong-arity")
        test = args[1:] if by_attribute else args

        def holds(each: Any) -> bool:
            run.tick()
            if by_attribute:
                subject = _field(run, each, path=args[0], default=None)
            else:
                subject = each
            if test:
                return run_test(run, test[0], value=subject, args=test[1:])
            return bool(subject)

        return [each for each in items if holds(each) is keep]

    return choose


FILTERS: dict[str, Callable[..., Any]] = {
    "abs": _abs,
    "batch": _batch,
    "capitalize": _textual(str.capitalize, 3),
    "center": _center,
    "count": _length,
    "dictsort": _dictsort,
    "e": _escape,
    "escape": _escape,
    "first": _at(0),
    "float": _numeric(jinja.do_float),
    "format": _format,
    "groupby": _groupby,
    "indent": _indent,
    "int": _numeric(jinja.do_int),
    "items": pairs_of,
    "join": _join,
    "last": _at(-1),
    "length": _length,
    "list": _list,
    "lower": _textual(str.lower, 2),
    "map": _map,
    "max": _extreme(max),
    "min": _extreme(min),
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
    "title": _textual(jinja.do_title, 3),
    "tojson": _tojson,
    "trim": _trim,
    "truncate": _truncate,
    "unique": _unique,
    "upper": _textual(str.upper, 3),
    "urlencode": _urlencode,
    "wordcount": _textual(jinja.do_wordcount),
    "wordwrap": _wordwrap,
}
FILTER_NAMES = frozenset({*FILTERS, "d", "default"})
"""The names of all filters."""


def unknown_filter(name: str) -> LocatedError:
    """Returns the error for a filter that does not exist."""
    return LocatedError(
        f"there is no filter {name!r}{nearest(name, sorted(FILTER_NAMES))}", "unknown-filter"
    )


_OF_JINJA = frozenset({"environment", "eval_ctx", "context", "value", "s"})


def describe_filter(name: str) -> tuple[str, str]:
    """A filter's arguments, as `(width=80)`, and what it does in a sentence of Jinja2's."""
    known = jinja.FILTERS[name]
    parameters = [*signature(FILTERS.get(name, known)).parameters.values()][2:]
    if name not in FILTERS or any(one.kind is Parameter.VAR_KEYWORD for one in parameters):
        every = signature(known).parameters.values()
        parameters = [one for one in every if one.name not in _OF_JINJA]
    shown = ", ".join(
        one.name if one.default is MISSING else str(one.replace(annotation=Parameter.empty))
        for one in parameters
    )
    sentence = " ".join((getdoc(known) or "").split()).partition(". ")[0].removesuffix(".")
    return (f"({shown})" if shown else ""), f"{sentence}.".replace("``", "`")
