"""What a type annotation says about values: which it accepts, and how a message describes them.

| annotation | accepts |
|---|---|
| `bool`, `int`, `float`, `str`, `None` | that type; a float may be an int, and is finite |
| `Literal[…]` | one of the values |
| an `Enum` | a member, or its value |
| `tuple[X, …]`, `Sequence[X]` | a list or tuple; a `tuple` stores a tuple |
| `Mapping[str, X]` | a mapping with strings as keys |
| a `Checked` dataclass | an instance, or a table of its fields |
| `X | Y` | what X accepts, else what Y accepts |
| `Any`; any other class | every value; its instances |

`Annotated[X, …]` narrows X with `Range`, `Before`, `After` and `Expected`; None is not narrowed.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from functools import lru_cache
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin

from evaluator.hints import cut, did_you_mean, with_article
from evaluator.lazy_dataclass import frozen

MAX_SHOWN_CHARS = 80
PLAIN_DATA = (bool, int, float, str, list, tuple, Mapping, types.NoneType)


class Unloaded:
    """The base of stand-ins for classes that are imported for type checkers only."""

    def __class_getitem__(cls, arguments: object) -> type:
        return cls


_NO_VALUE = object()


class FieldError(ValueError):
    """A value that does not fit its declaration: `path` is where it stands, `problem` the rest of
    the message. If there is a `value`, the message says between them what it is.
    """

    def __init__(self, problem: str, path: str = "", value: Any = _NO_VALUE) -> None:
        super().__init__(problem, path, value)
        self.problem = problem
        self.path = path
        self.value = value

    def __str__(self) -> str:
        return self.message(shown)

    def message(self, show: Callable[[Any], str]) -> str:
        """The message; `show` gives the text of a value."""
        if self.value is not _NO_VALUE:
            return f"{self.path} is {show(self.value)}, {self.problem}".lstrip()
        if self.problem.startswith(":"):
            return f"{self.path}{self.problem}"
        return f"{self.path} {self.problem}".lstrip()

    def inside(self, part: str) -> FieldError:
        """The same error, of the field or item `part` of a larger value."""
        if self.path and not self.path.startswith("["):
            part += "."
        return FieldError(self.problem, part + self.path, self.value)


@frozen
class Range:
    """Narrows a number: at least `least`, above `above`, at most `most`."""

    least: float | None = None
    above: float | None = None
    most: float | None = None

    def admits(self, number: float) -> bool:
        return (
            (self.least is None or number >= self.least)
            and (self.above is None or number > self.above)
            and (self.most is None or number <= self.most)
        )

    def __str__(self) -> str:
        if self.above is not None:
            if self.most is None:
                return f" above {self.above}"
            return f" in ({self.above}, {self.most}]"
        if self.most is None:
            return f", at least {self.least}"
        return f" in [{self.least}, {self.most}]"


@frozen(eq=False)
class Before:
    """Converts a value before it is checked."""

    convert: Callable[[Any], Any]


@frozen(eq=False)
class After:
    """Checks a value that has its type, and returns it as it is stored. Raises ValueError with the
    message that follows the name of the field, for which a later `Expected` has precedence.
    """

    check: Callable[[Any], Any]


@frozen
class Expected:
    """How a message describes the values, instead of the description of the type."""

    text: str


@frozen
class Words:
    """How a value is written on the command line: one word or `several`, each of type `of`, if
    there are `choices` one of them. The words of a table are pairs of a name and a value.
    """

    of: type = str
    choices: Sequence[Any] = ()
    several: bool = False
    is_table: bool = False


_ONE_WORD = Words()


class Kind:
    """The values of one type: `expected` describes one of them in a message, `plural` several."""

    expected = "a value"
    plural = "values"
    words: Words = _ONE_WORD
    record: type | None = None
    """The dataclass whose instances are the values."""

    def accept(self, value: Any) -> Any:
        """The value as it is stored. Raises: FieldError."""
        return value

    def refuse(self, value: Any) -> FieldError:
        return FieldError(f"expected {self.expected}", value=value)


def shown(value: Any) -> str:
    """A value for a message, cut after 80 characters."""
    return cut(repr(value), MAX_SHOWN_CHARS)


class _Tested(Kind):
    """The values that pass a test."""

    def __init__(self, of: type, expected: str, plural: str, fits: Callable[[Any], bool]) -> None:
        self.words = Words(of)
        self.expected = expected
        self.plural = plural
        self.fits = fits

    def accept(self, value: Any) -> Any:
        if self.fits(value):
            return value
        raise self.refuse(value)


def _instance(of: type) -> Kind:
    """A class. Of one that `isinstance` cannot check, any object that is not plain data may be an
    instance.
    """

    def fits(value: Any) -> bool:
        if is_checked:
            return isinstance(value, of)
        return not isinstance(value, PLAIN_DATA)

    is_protocol = getattr(of, "_is_protocol", False)
    is_checked = not is_protocol or getattr(of, "_is_runtime_protocol", False)
    is_checked = is_checked and not issubclass(of, Unloaded)
    return _Tested(of, with_article(of.__name__), f"{of.__name__}s", fits)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and type(value) is not bool and math.isfinite(value)


class _Choice(Kind):
    def __init__(self, values: Sequence[Any]) -> None:
        self.words = Words(choices=values)
        self.expected = f"one of {', '.join(map(str, values))}"

    def accept(self, value: Any) -> Any:
        for choice in self.words.choices:
            if type(value) is type(choice) and value == choice:
                return choice
        raise self.refuse(value)

    def refuse(self, value: Any) -> FieldError:
        return _with_hint(super().refuse(value), value, self.words.choices)


def _with_hint(error: FieldError, value: Any, choices: Sequence[Any]) -> FieldError:
    """`error`, with the nearest of the choices."""
    if isinstance(value, str):
        hint = did_you_mean(value, [str(choice) for choice in choices])
        if hint:
            error.problem += f"; {hint}"
    return error


class _Member(_Choice):
    def __init__(self, of: type[Enum]) -> None:
        super().__init__([member.value for member in of])
        self.of = of

    def accept(self, value: Any) -> Any:
        if isinstance(value, self.of):
            return value
        return self.of(super().accept(value))


class _Items(Kind):
    def __init__(self, item: Kind, stored: type) -> None:
        self.item = item
        self.stored = stored
        self.words = replace(item.words, several=True)
        self.plural = f"lists of {item.plural}"
        self.expected = f"a list of {item.plural}"

    def accept(self, value: Any) -> Any:
        if not isinstance(value, list | tuple):
            raise self.refuse(value)
        items: list[Any] = []
        for position, item in enumerate(cast("Sequence[Any]", value)):
            try:
                items.append(self.item.accept(item))
            except FieldError as error:
                raise error.inside(f"[{position}]") from None
        if self.stored is tuple:
            return tuple(items)
        return value


class _Table(Kind):
    words = Words(several=True, is_table=True)
    expected = "a table"
    plural = "tables"

    def __init__(self, item: Kind) -> None:
        self.item = item

    def accept(self, value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise self.refuse(value)
        items: dict[str, Any] = {}
        for name, item in cast("Mapping[Any, Any]", value).items():
            if not isinstance(name, str):
                raise FieldError(f"has the key {shown(name)}, expected a string")
            try:
                items[name] = self.item.accept(item)
            except FieldError as error:
                raise error.inside(name) from None
        return items


class _Record(Kind):
    expected = "a table"
    plural = "tables"

    def __init__(self, of: type) -> None:
        self.record = of

    def accept(self, value: Any) -> Any:
        record: Any = self.record
        if isinstance(value, record):
            return value
        if isinstance(value, Mapping):
            return record.read_table(value)
        raise self.refuse(value)


class _Either(Kind):
    def __init__(self, kinds: Sequence[Kind]) -> None:
        self.kinds = kinds
        first = next((kind for kind in kinds if kind is not _NONE), _NONE)
        self.words = first.words
        self.record = first.record
        self.expected = " or ".join(kind.expected for kind in kinds if kind is not _NONE)
        self.plural = " or ".join(kind.plural for kind in kinds if kind is not _NONE)

    def accept(self, value: Any) -> Any:
        if value is None and _NONE in self.kinds:
            return None
        kinds = [kind for kind in self.kinds if kind is not _NONE]
        if len(kinds) == 1:
            return kinds[0].accept(value)
        inner: list[FieldError] = []
        for kind in kinds:
            try:
                return kind.accept(value)
            except FieldError as error:
                if error.path:
                    inner.append(error)
        # A value that has the form of one kind is wrong inside.
        if len(inner) == 1:
            raise inner[0]
        choices = [choice for kind in kinds for choice in kind.words.choices]
        raise _with_hint(self.refuse(value), value, choices)


class _Narrowed(Kind):
    """A type with marks."""

    def __init__(self, base: Kind, marks: Sequence[Any]) -> None:
        self.base = base
        self.before = [mark.convert for mark in marks if isinstance(mark, Before)]
        self.after = [mark for mark in marks if isinstance(mark, After | Range)]
        self.words = base.words
        self.record = base.record
        self.expected = base.expected
        self.plural = base.plural
        self.is_described = any(isinstance(mark, Expected) for mark in marks)
        for mark in marks:
            if isinstance(mark, Range):
                self.expected += str(mark)
                self.is_described = True
            elif isinstance(mark, Expected):
                self.expected = mark.text

    def accept(self, value: Any) -> Any:
        stored = value
        for convert in self.before:
            stored = convert(stored)
        try:
            stored = self.base.accept(stored)
        except FieldError as error:
            if error.path or not self.is_described:
                raise
            raise self.refuse(value) from None
        if stored is None:
            return None
        for mark in self.after:
            if isinstance(mark, After):
                try:
                    stored = mark.check(stored)
                except FieldError:
                    raise
                except ValueError as error:
                    if self.is_described:
                        raise self.refuse(value) from None
                    raise FieldError(str(error)) from None
            elif not mark.admits(stored):
                raise self.refuse(value)
        return stored


_NONE = _instance(types.NoneType)
_KINDS: dict[Any, Kind] = {
    Any: Kind(),
    None: _NONE,
    types.NoneType: _NONE,
    bool: _Tested(bool, "true or false", "booleans", lambda value: type(value) is bool),
    int: _Tested(int, "an integer", "integers", lambda value: type(value) is int),
    float: _Tested(float, "a number", "numbers", _is_number),
    str: _Tested(str, "a string", "strings", lambda value: isinstance(value, str)),
}


@lru_cache(maxsize=1024)
def kind_of(hint: Any) -> Kind:
    """The kind that an annotation describes."""
    if isinstance(hint, TypeVar):
        return _KINDS[Any]
    if hint in _KINDS:
        return _KINDS[hint]
    origin = get_origin(hint)
    arguments = get_args(hint)
    if origin is Annotated:
        return _Narrowed(kind_of(arguments[0]), arguments[1:])
    if origin in (Union, types.UnionType):
        return _Either([kind_of(each) for each in arguments])
    if origin is Literal:
        return _Choice(arguments)
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return _Items(kind_of(arguments[0]), tuple)
    if origin in (list, Sequence):
        return _Items(kind_of(arguments[0]), list)
    if origin in (dict, Mapping):
        return _Table(kind_of(arguments[1]))
    if isinstance(hint, type) and hasattr(hint, "from_table"):
        return _Record(hint)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _Member(hint)
    return _instance(origin or hint)
