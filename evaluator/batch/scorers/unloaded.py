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

_paths: ContextVar[list[str] | None] = ContextVar("evaluator_unloaded_scorers", default=None)


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
def without_code() -> Generator[list[str]]:
    """Inside, scorers of a project are not imported. Yields: the paths of their code, as they are
    found.
    """
    paths: list[str] = []
    token = _paths.set(paths)
    try:
        yield paths
    finally:
        _paths.reset(token)


def unloaded(path: str, name: object) -> UnloadedScorer | None:
    """What stands for the code at `path` inside `without_code`; None outside of it."""
    paths = _paths.get()
    if paths is None:
        return None
    paths.append(path)
    return UnloadedScorer(path, name if isinstance(name, str) else path.rpartition(":")[2])
