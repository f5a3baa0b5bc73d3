"""The base of the shipped scorers: arguments are fields of a frozen dataclass, checked against the
fields' types.
"""

from __future__ import annotations

import math
import re
import types
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import lru_cache
from typing import Any, ClassVar, Literal, Self, Union, cast, get_args, get_origin, get_type_hints

from evaluator.batch.records import Score
from evaluator.batch.scorers.contract import LeavesInputUnchanged, Scorer, ScorerInput
from evaluator.errors import UsageError
from evaluator.errors.messages import did_you_mean
from evaluator.language.scopes import plain
from evaluator.language.types import describe as type_of

_NAME = re.compile(r"[\w.-]{1,64}")
_DESCRIPTIONS: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    Any: "any value",
    Scorer: "a scorer",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """Something shipped that has a `type` and arguments: its fields. `name` defaults to `type`. A
    subclass checks combinations of arguments in `check`.

    Raises: UsageError, for an argument that does not have its field's type.
    """

    type: ClassVar[str] = ""
    name: str = ""

    def __post_init__(self) -> None:
        if self.name == "":
            object.__setattr__(self, "name", self.type)
        for field, hint in _arguments_of(type(self)).items():
            value = getattr(self, field)
            if not fits(value, hint):
                shown = f"{value!r}"[:80]
                raise UsageError(
                    f"{self.type}: {field} is {shown} ({type_of(value)}), expected "
                    f"{_described(hint)}"
                )
        check_name(self.name)
        pass_at = getattr(self, "pass_at", None)
        if pass_at is not None and not 0 <= pass_at <= 1:
            raise UsageError(f"{self.type}: pass_at is {pass_at!r}, expected a number in [0, 1]")
        self.check()

    @classmethod
    def of_arguments(cls, arguments: Mapping[str, Any]) -> Self:
        """Raises: UsageError, for unknown, missing or wrong arguments; it suggests the nearest
        name.
        """
        known = _arguments_of(cls)
        for name in arguments:
            if name not in known:
                hint = suggestion(name, known)
                raise UsageError(
                    f"{cls.type} has no argument {name!r}{hint} (arguments: {', '.join(known)})"
                )
        for field in fields(cls):
            if (
                field.default is MISSING
                and field.default_factory is MISSING
                and field.name not in arguments
            ):
                raise UsageError(f"{cls.type} needs the argument {field.name}")
        return cls(**arguments)

    def check(self) -> None:
        """Raises: UsageError, for arguments that cannot be combined."""

    def describe(self) -> dict[str, Any]:
        """The type and every argument except the name."""
        described = {"type": self.type}
        for field in fields(self):
            if field.name != "name":
                value = getattr(self, field.name)
                if isinstance(value, Mapping | list | tuple):
                    described[field.name] = plain(value)
                else:
                    described[field.name] = value
        return described


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltinScorer(Declared, LeavesInputUnchanged, ABC):
    """A shipped scorer."""

    @classmethod
    def from_arguments(
        cls, arguments: Mapping[str, Any], make_scorer: Callable[[Any], Scorer]
    ) -> Self:
        """As `of_arguments`. `make_scorer` is for scorers that contain other scorers."""
        return cls.of_arguments(arguments)

    @abstractmethod
    async def score(self, scored: ScorerInput) -> Score: ...

    def check_target(self, target: Any) -> None:
        """Checks a row's target before the first call. Raises: UsageError, for one that the scorer
        cannot compare.
        """


def check_name(name: str) -> None:
    """Raises: UsageError, for a name that cannot be a key and a column."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"a scorer's name is 1 to 64 letters, digits, '_', '-' and '.', not {name[:80]!r}"
        )


def suggestion(name: str, known: Collection[str]) -> str:
    """The ending of a message about an unknown name: the nearest known ones, or nothing."""
    hint = did_you_mean(name, known)
    if hint:
        return f"; {hint}"
    return ""


@lru_cache(maxsize=64)
def _arguments_of(kind: type[Declared]) -> dict[str, Any]:
    """The types of the arguments, the name last."""
    hints = get_type_hints(kind)
    names = [field.name for field in fields(kind) if field.init]
    return {name: hints[name] for name in [*(n for n in names if n != "name"), "name"]}


def fits(value: Any, hint: Any) -> bool:
    """Whether `value` has the type `hint`: an int is also a float, a bool is not a number, and
    floats are finite.
    """
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
        return (
            isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        )
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if origin is Sequence:
        inner = get_args(hint)[0]
        return isinstance(value, list | tuple) and all(
            fits(item, inner) for item in cast("list[Any]", value)
        )
    if origin is Mapping:
        if isinstance(value, Mapping):
            items = cast("Mapping[Any, Any]", value).items()
        else:
            items = [(None, None)]
        return all(isinstance(key, str) and fits(item, get_args(hint)[1]) for key, item in items)
    return isinstance(value, origin or hint)


def _described(hint: Any) -> str:
    """A type as text, for messages."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(
            _described(part) for part in get_args(hint) if part is not types.NoneType
        )
    if origin is Literal:
        return " or ".join(repr(choice) for choice in get_args(hint))
    if origin is Sequence:
        return f"a list of {_described(get_args(hint)[0])}"
    if origin is Mapping:
        return f"a table of {_described(get_args(hint)[1])}"
    return _DESCRIPTIONS.get(hint) or getattr(hint, "__name__", str(hint))
