"""A scorer's arguments: fields of a frozen dataclass, checked against their types however the scorer is made."""

from __future__ import annotations

import math
import re
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, ClassVar, Literal, Union, cast, get_args, get_origin, get_type_hints

from evaluator.batch.records import Score
from evaluator.batch.scorers.contract import ReadsOnly, Scored
from evaluator.binding.scopes import plain
from evaluator.binding.types import describe as type_of
from evaluator.errors import UsageError
from evaluator.library.syntax import nearest

_NAME = re.compile(r"[\w.-]{1,64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(ReadsOnly):
    """What shipped scorers share. `name` defaults to the type. A subclass checks more in `check`.

    Raises: UsageError, for an argument of another type than its field.
    """

    type: ClassVar[str] = ""
    name: str = ""

    def __post_init__(self) -> None:
        if self.name == "":
            object.__setattr__(self, "name", self.type)
        for field, hint in hints_of(type(self)).items():
            value = getattr(self, field)
            if not fits(value, hint):
                shown = f"{value!r}"[:80]
                raise UsageError(f"{self.type}: {field} is {shown} ({type_of(value)}), expected {in_words(hint)}")
        check_name(self.name)
        pass_at = getattr(self, "pass_at", None)
        if pass_at is not None and not 0 <= pass_at <= 1:
            raise UsageError(f"{self.type}: pass_at is {pass_at!r}, expected a number in [0, 1]")
        self.check()

    async def score(self, scored: Scored) -> Score:
        raise NotImplementedError

    def check(self) -> None:
        """Raises: UsageError, for arguments that do not go together."""

    def describe(self) -> dict[str, Any]:
        """The type and every argument but the name."""
        given = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "name"}
        return {"type": self.type, **{name: _json(value) for name, value in given.items()}}


def _json(value: Any) -> Any:
    return plain(value) if isinstance(value, Mapping | list | tuple) else value


def check_name(name: str) -> None:
    """Raises: UsageError, for a name that cannot be a key and a column."""
    if not _NAME.fullmatch(name):
        raise UsageError(f"a scorer's name is letters, digits, '_', '-' and '.', at most 64 of them, not {name[:80]!r}")


def build(kind: type[Settings], arguments: Mapping[str, Any]) -> Settings:
    """A scorer of this kind. Raises: UsageError, for unknown, missing or wrong arguments, with the nearest name."""
    known = hints_of(kind)
    for name in arguments:
        if name not in known:
            takes = ", ".join(known)
            raise UsageError(f"{kind.type} has no argument {name!r}{nearest(name, known)} (it takes {takes})")
    try:
        return kind(**arguments)
    except TypeError as error:
        missing = ", ".join(re.findall(r"'(\w+)'", str(error)))
        raise UsageError(f"{kind.type} needs the argument {missing}") from error


@lru_cache(maxsize=64)
def hints_of(kind: type[Settings]) -> dict[str, Any]:
    """The arguments of a kind of scorer with their types, the name last."""
    hints = get_type_hints(kind)
    names = [field.name for field in fields(kind) if field.init]
    return {name: hints[name] for name in [*(n for n in names if n != "name"), "name"]}


def fits(value: Any, hint: Any) -> bool:
    """Whether `value` is of the type; an int is a float too, a bool is no number, no float is NaN or infinite."""
    origin = get_origin(hint)
    if hint is Any:
        return True
    if origin in (Union, types.UnionType):
        return any(fits(value, part) for part in get_args(hint))
    if origin is Literal:
        return value in get_args(hint)
    if hint is types.NoneType:
        return value is None
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if origin is Sequence:
        inner = get_args(hint)[0]
        return isinstance(value, list | tuple) and all(fits(item, inner) for item in cast("list[Any]", value))
    if origin is Mapping:
        inner = get_args(hint)[1]
        if not isinstance(value, Mapping):
            return False
        items = cast("Mapping[Any, Any]", value).items()
        return all(isinstance(key, str) and fits(item, inner) for key, item in items)
    return isinstance(value, origin or hint)


def in_words(hint: Any) -> str:
    """A type as an author of a batch reads it."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(in_words(part) for part in get_args(hint) if part is not types.NoneType)
    if origin is Literal:
        return " or ".join(repr(choice) for choice in get_args(hint))
    if origin is Sequence:
        return f"a list of {in_words(get_args(hint)[0])}"
    if origin is Mapping:
        return f"a table of {in_words(get_args(hint)[1])}"
    plain: dict[Any, str] = {
        bool: "true or false", int: "a whole number", float: "a number", str: "text", Any: "any value",
    }  # fmt: skip
    return plain.get(hint) or getattr(hint, "__name__", str(hint))
