"""The base of the shipped scorers: arguments are fields of a frozen dataclass, checked against the
fields' types.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, Self

from evaluator.batch.records import Score
from evaluator.batch.scorers.contract import LeavesInputUnchanged, Scorer, ScorerInput
from evaluator.errors import UsageError
from evaluator.errors.messages import did_you_mean
from evaluator.fields import After, Checked, FieldError
from evaluator.language.scopes import plain

_NAME = re.compile(r"[\w.-]{1,64}")


def check_name(name: str) -> str:
    """Raises: UsageError, for a name that cannot be a key and a column."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"a scorer's name is 1 to 64 letters, digits, '_', '-' and '.', not {name[:80]!r}"
        )
    return name


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared(Checked, error=UsageError):
    """Something shipped that has a `type` and arguments: its fields. `name` defaults to `type`. A
    subclass checks combinations of arguments in `check`.

    Raises: UsageError, for an argument that does not have its field's type.
    """

    type: ClassVar[str] = ""
    name: Annotated[str, After(check_name)] = ""

    def __post_init__(self) -> None:
        if self.name == "":
            object.__setattr__(self, "name", self.type)
        Checked.__post_init__(self)

    @classmethod
    def error_of(cls, problem: FieldError) -> Exception:
        return UsageError(f"{cls.type}: {problem}")

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
        """As `from_table`. `make_scorer` is for scorers that contain other scorers."""
        return cls.from_table(arguments)

    @abstractmethod
    async def score(self, scored: ScorerInput) -> Score: ...

    def check_target(self, target: Any) -> None:
        """Checks a row's target before the first call. Raises: UsageError, for one that the scorer
        cannot compare.
        """


def suggestion(name: str, known: Collection[str]) -> str:
    """The ending of a message about an unknown name: the nearest known ones, or nothing."""
    hint = did_you_mean(name, known)
    if hint:
        return f"; {hint}"
    return ""
