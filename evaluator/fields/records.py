"""Dataclasses whose fields are declared by their annotations: checked when one is made, read from
tables, written as JSON.

    @frozen
    class Limits(Checked):
        concurrency: Annotated[int, Range(least=1), Flag("--concurrency", "Tasks at once.")] = 64
        max_cost: Annotated[float | None, Range(above=0), Flag("--max-cost", "US dollars.")] = None

`Limits(concurrency=0)` and `Limits.from_table({"concurency": 1})` raise the class's `error`, which
says what is wrong, what was expected, and which name is near. `Limits().to_dict()` is its JSON.
"""

from __future__ import annotations

import builtins
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cached_property, lru_cache
from pathlib import PurePath
from typing import Annotated, Any, ClassVar, Self, TypeVar, cast, get_args, get_origin

from evaluator.fields.kinds import FieldError, Kind, Unloaded, kind_of
from evaluator.hints import did_you_mean, listed
from evaluator.lazy_dataclass import dataclass, frozen

_Mark = TypeVar("_Mark")


@frozen
class Doc:
    """What a field means, for the docs."""

    help: str


@frozen
class Flag:
    """A field's flag on the command line. `default` is the default there, if it is another one.
    `example` is one of a table's pairs.
    """

    name: str
    help: str
    metavar: str | None = None
    default: Any = None
    example: str = ""


@frozen
class Section:
    """The heading of a field and of those after it, in the help and in the docs."""

    title: str


@frozen
class Place:
    """The field is the path of a file or a folder; the command line checks whether it exists."""

    file: bool = True
    folder: bool = True
    must_exist: bool = False


@frozen
class Key:
    """The key of a field in JSON, if it is not its name."""

    name: str


class _Here:
    """A mark without a value."""


SESSION = _Here()
"""The field is not part of what a file says, and is not written."""
REQUIRED = _Here()
"""The field has to be in a table, though it has a default."""
MERGED = _Here()
"""The field is a record whose keys stand beside those of the other fields."""


@dataclass(frozen=True)
class Field:
    """One declared field. What is derived from the marks is found once."""

    name: str
    kind: Kind
    default: Any
    make_default: Callable[[], Any]
    is_argument: bool
    marks: tuple[Any, ...]

    def mark(self, of: type[_Mark]) -> _Mark | None:
        return next((mark for mark in self.marks if isinstance(mark, of)), None)

    @cached_property
    def key(self) -> str:
        """The name in a table."""
        key = self.mark(Key) or self
        return key.name

    @cached_property
    def is_required(self) -> bool:
        return self.default is MISSING and self.make_default is MISSING

    @cached_property
    def is_required_in_table(self) -> bool:
        return self.is_required or REQUIRED in self.marks

    @cached_property
    def is_stored(self) -> bool:
        return SESSION not in self.marks

    @cached_property
    def is_merged(self) -> bool:
        return MERGED in self.marks and self.record is not None

    @cached_property
    def record(self) -> type | None:
        """The `Checked` class of the value, if it is a record."""
        return self.kind.record

    def default_value(self) -> Any:
        """The default; MISSING for a required field."""
        if self.make_default is MISSING:
            return self.default
        return self.make_default()

    def accept(self, value: Any) -> Any:
        """The value as it is stored; the default is not checked. Raises: FieldError."""
        if value is self.default or (type(value) is str and value == self.default):
            return value
        try:
            return self.kind.accept(value)
        except FieldError as error:
            raise error.inside(self.key) from None


class _Names(dict[str, Any]):
    """The names of a module, with stand-ins for those that it imports for type checkers only."""

    def __missing__(self, name: str) -> Any:
        return getattr(builtins, name, None) or type(name, (Unloaded,), {})


@lru_cache(maxsize=256)
def fields_of(cls: type) -> Mapping[str, Field]:
    """The declared fields of a dataclass by name, in order."""
    hints: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        annotations = inspect.get_annotations(base)
        if not annotations:
            continue
        hints |= annotations
        texts = {name: hint for name, hint in annotations.items() if isinstance(hint, str)}
        names = _Names(vars(sys.modules[base.__module__]))
        # At once, which is faster than one after the other.
        hints |= zip(texts, eval(f"[{', '.join(texts.values())}]", {}, names), strict=True)
    declared: dict[str, Field] = {}
    for each in fields(cls):
        hint = hints[each.name]
        marks: tuple[Any, ...] = ()
        if get_origin(hint) is Annotated:
            marks = get_args(hint)[1:]
        declared[each.name] = Field(
            each.name,
            kind_of(hint),
            default=each.default,
            make_default=cast("Any", each.default_factory),
            is_argument=each.init,
            marks=marks,
        )
    return declared


def check_names(
    names: Iterable[str],
    known: Iterable[str],
    error: type[Exception] | None = None,
    *,
    where: str = "",
) -> None:
    """Raises: `error`, by default FieldError, for a name that is not in `known`, with the nearest
    one. `where` is the beginning of the message.
    """
    known = list(known)
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known) or f"expected one of {listed(known, len(known))}"
            unknown = FieldError(f"is unknown; {hint}", f"{where}{name}")
            if error is None:
                raise unknown
            raise error(str(unknown))


def mapping_of(value: Any) -> Mapping[str, Any]:
    """`value` if it is a JSON object, else an empty one: what a file of somebody else holds may be
    anything.
    """
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def items_of(value: Any) -> list[Any]:
    """`value` if it is a JSON array, else an empty one."""
    return cast("list[Any]", value) if isinstance(value, list) else []


def fits(value: Any, hint: Any) -> bool:
    """Whether a value has the type of an annotation."""
    try:
        kind_of(hint).accept(value)
    except FieldError:
        return False
    return True


def accept(hint: Any, value: Any, name: str, error: type[Exception]) -> Any:
    """The value of an argument called `name` as it is stored. Raises: `error`."""
    try:
        return kind_of(hint).accept(value)
    except FieldError as problem:
        raise error(str(problem.inside(name))) from None


def check_fields(record: Any) -> None:
    """Checks the fields of a dataclass, and stores each value in its one form. Raises:
    FieldError.
    """
    for name, default, field in _arguments_of(type(record)):
        value = getattr(record, name)
        if value is not default:
            accepted = field.accept(value)
            if accepted is not value:
                object.__setattr__(record, name, accepted)


@lru_cache(maxsize=256)
def _arguments_of(cls: type) -> list[tuple[str, Any, Field]]:
    return [
        (field.name, field.default, field) for field in fields_of(cls).values() if field.is_argument
    ]


def use_defaults(record: Any) -> None:
    """Replaces None by the default of each field that has one."""
    for field in fields_of(type(record)).values():
        is_wanted = field.default is not None and not field.is_required
        if is_wanted and getattr(record, field.name) is None:
            object.__setattr__(record, field.name, field.default_value())


@lru_cache(maxsize=256)
def stored_fields(cls: type) -> Mapping[str, Field]:
    """The fields that a table may have, by key; those of merged records too."""
    found: dict[str, Field] = {}
    for field in fields_of(cls).values():
        if field.is_merged:
            found.update(stored_fields(field.kind.record))
        elif field.is_stored and field.is_argument:
            found[field.key] = field
    return found


def _read(cls: Any, table: Mapping[str, Any]) -> Any:
    values: dict[str, Any] = {}
    for field in fields_of(cls).values():
        if field.is_merged:
            values[field.name] = _read(field.kind.record, table)
        elif field.key in table and field.is_stored:
            values[field.name] = field.accept(table[field.key])
        elif field.is_required_in_table:
            raise FieldError("is missing", field.key)
    return cls(**values)


def to_dict(record: Any, *, only_changed: bool = False) -> dict[str, Any]:
    """The stored fields of a dataclass as JSON; with `only_changed` those that differ from their
    default.
    """
    data: dict[str, Any] = {}
    for field in fields_of(type(record)).values():
        value = getattr(record, field.name)
        if not field.is_stored or (only_changed and value == field.default_value()):
            continue
        if value is None or type(value) in _PLAIN:
            data[field.key] = value
            continue
        if only_changed and field.record is not None:
            json = to_dict(value, only_changed=True)
        elif isinstance(value, JsonForm):
            json = value.to_dict()
        elif not value and isinstance(value, list | tuple | Mapping):
            json = {} if isinstance(value, Mapping) else []
        else:
            json = as_json(value)
        if field.is_merged:
            data.update(json)
        else:
            data[field.key] = json
    return data


_PLAIN = (str, int, float, bool)


def as_json(value: Any) -> Any:
    """A value of a field as JSON."""
    if value is None or type(value) in _PLAIN:
        return value
    if isinstance(value, list | tuple):
        return [as_json(item) for item in cast("list[Any]", value)]
    if isinstance(value, Mapping):
        return {name: as_json(item) for name, item in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, PurePath):
        return str(value)
    if is_dataclass(value):
        record: Any = value
        if hasattr(record, "to_dict"):
            return record.to_dict()
        return to_dict(record)
    return value


class JsonForm:
    """A dataclass with a JSON form: its stored fields in order, then the properties in
    `computed`.

    `class Limits(JsonForm, error=UsageError)` says what is raised for a table that does not fit the
    fields; the default is FieldError.
    """

    __slots__ = ()
    computed: ClassVar[tuple[str, ...]] = ()
    field_error: ClassVar[type[Exception]] = FieldError

    def __init_subclass__(cls, error: type[Exception] | None = None) -> None:
        if error is not None:
            cls.field_error = error

    def to_dict(self) -> dict[str, Any]:
        """The record as JSON."""
        data = to_dict(self)
        for name in self.computed:
            value = getattr(self, name)
            data[name] = value if type(value) in _PLAIN else as_json(value)
        return data

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Self:
        """The record that a table describes. Raises: the error of the class, for a value that does
        not fit its field, and for an unknown or missing name.
        """
        try:
            return cls.read_table(table)
        except FieldError as error:
            raise cls.error_of(error) from None

    @classmethod
    def read_table(cls, table: Mapping[str, Any]) -> Self:
        """As `from_table`. Raises: FieldError; the error of the class, for values that cannot be
        combined.
        """
        known = stored_fields(cls)
        if not table.keys() <= known.keys():
            check_names(map(str, table), known)
        return cast("Self", _read(cls, table))

    @classmethod
    def error_of(cls, problem: FieldError) -> Exception:
        """The error of the class for a problem."""
        return cls.field_error(str(problem))


class Checked(JsonForm):
    """A dataclass whose fields are checked also when one is made."""

    __slots__ = ()

    def __post_init__(self) -> None:
        try:
            check_fields(self)
        except FieldError as error:
            raise self.error_of(error) from None
        self.check()

    def check(self) -> None:
        """Raises: the error of the class, for values that cannot be combined."""
