"""Scorers whose code is named and not imported: to plan a batch, and to ask the user about its
code.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from evaluator.batch.records import Score
from evaluator.batch.scorers.contract import LeavesInputUnchanged, ScorerInput
from evaluator.errors import UsageError
from evaluator.output.schema import schema_imports


@dataclass(frozen=True, slots=True)
class NamedCode:
    """Code that was named and not imported: functions, and classes that are schemas, as
    `place:name`.
    """

    functions: list[str]
    schemas: list[str]


_named: ContextVar[NamedCode | None] = ContextVar("evaluator_unloaded_code", default=None)


@dataclass(frozen=True, slots=True)
class UnloadedScorer(LeavesInputUnchanged):
    """Stands for the function at `path`, which is not imported. It cannot score."""

    path: str
    name: str

    def describe(self) -> dict[str, Any]:
        return {"type": "function", "function": self.path}

    async def score(self, scored: ScorerInput) -> Score:
        raise UsageError(f"the scorer {self.path} was not imported")


@contextmanager
def without_code() -> Generator[NamedCode]:
    """Inside, scorers, metrics and schemas of a project are not imported. Yields: their code, as it
    is found.
    """
    with schema_imports("none") as schemas:
        named = NamedCode([], schemas)
        token = _named.set(named)
        try:
            yield named
        finally:
            _named.reset(token)


def unloaded(path: str, name: object) -> UnloadedScorer | None:
    """What stands for the code at `path` inside `without_code`; None outside of it."""
    named = _named.get()
    if named is None:
        return None
    named.functions.append(path)
    return UnloadedScorer(path, name if isinstance(name, str) else path.rpartition(":")[2])
