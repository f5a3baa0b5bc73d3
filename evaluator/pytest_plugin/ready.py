"""A batch made ready from what a marker or a call says, with the models that a test run allows."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass, fields, replace
from inspect import signature
from pathlib import Path
from typing import Any, cast

import pytest

from evaluator.batch.definition import BatchDefinition, read_definition
from evaluator.batch.engines import make_engine
from evaluator.batch.plan import BatchPlan
from evaluator.batch.records import Sample
from evaluator.batch.rows import RowSource
from evaluator.batch.run import BatchSettings, make_plan
from evaluator.batch.scorers import parse_scorer
from evaluator.errors import UsageError
from evaluator.front import Evaluator
from evaluator.handler.simulated import SimulatedBackend
from evaluator.library import TemplateLibrary
from evaluator.library.near import did_you_mean, listed

_PLAN = tuple(name for name in signature(make_plan).parameters if name not in ("evaluator", "templates", "rows"))
_SETTINGS = ("cache", "engine", "on_changed", "retry_errors", "unfinished")
_MADE_OF = ("library", "model_roles", "roots", "tools")
_KNOWN = ("templates", "rows", "evaluator", *_PLAN, *_SETTINGS, *_MADE_OF)


@dataclass(frozen=True, slots=True)
class Ready:
    """A batch that can be run. `is_own`: its evaluator was made here, and is to be closed."""

    evaluator: Evaluator
    plan: BatchPlan
    settings: BatchSettings
    is_own: bool

    @property
    def is_simulated(self) -> bool:
        return any(cell.is_simulated for cell, _ in self.plan.cells)

    def only(self, ids: Collection[str]) -> Ready:
        """The same with none but the samples that are called so."""
        rows = cast("RowSource", _Chosen(self.plan.rows, ids))
        return replace(self, plan=replace(self.plan, rows=rows))


def make_ready(config: pytest.Config, what: Any, rows: Any, options: Mapping[str, Any], folder: Path) -> Ready:
    """`what` is a definition's file or names templates; paths are relative to `folder`.

    Raises: EvaluatorError, for what cannot be used.
    """
    given = {**_defined(what, folder), **options}
    if rows is not None:
        given["rows"] = folder / rows if isinstance(rows, (str, Path)) else rows
    for name in given:
        if name not in _KNOWN:
            hint = did_you_mean(name, _KNOWN) or f"known are {listed(sorted(_KNOWN), len(_KNOWN))}"
            raise UsageError(f"{name} is not known here; {hint}")
    if "rows" not in given:
        raise UsageError("rows are missing")
    own = given.pop("evaluator", None)
    made_of = {name: given.pop(name) for name in _MADE_OF if name in given}
    settings: dict[str, Any] = {name: given.pop(name) for name in _SETTINGS if name in given}
    if isinstance(settings.get("cache"), (str, Path)):
        settings["cache"] = folder / settings["cache"]
    if own is None:
        evaluator, given = _allowed(config, made_of, given, folder)
    elif made_of:
        raise UsageError(f"give an evaluator, or {', '.join(made_of)} to make one of, not both")
    else:
        evaluator = own
    given["scorers"] = [parse_scorer(each) if isinstance(each, str) else each for each in given.get("scorers", ())]
    plan = make_plan(evaluator, given.pop("templates"), given.pop("rows"), **given)
    settings["engine"] = make_engine(settings.get("engine"), plan.limits)
    return Ready(evaluator, plan, BatchSettings(**settings), own is None)


def _defined(what: Any, folder: Path) -> dict[str, Any]:
    """What the first argument says, without what it does not say."""
    if isinstance(what, Path) or (isinstance(what, str) and what.endswith(".toml")):
        definition = read_definition(folder / what)
        # Where results go is the test run's.
        said = {each.name: getattr(definition, each.name) for each in fields(BatchDefinition) if each.name != "output"}
        return {name: value for name, value in said.items() if value not in (None, "", (), {})}
    if what is None:
        raise UsageError("give a definition's file or a template's name")
    return {"templates": what}


def _allowed(
    config: pytest.Config, made_of: dict[str, Any], given: dict[str, Any], folder: Path
) -> tuple[Evaluator, dict[str, Any]]:
    """An evaluator, and the arguments of the batch, with the models that the test run allows."""
    library = made_of.get("library")
    if isinstance(library, (str, Path)):
        made_of["library"] = folder / library
    elif isinstance(library, (list, tuple)):
        made_of["library"] = TemplateLibrary.load(*(folder / each for each in cast("tuple[str, ...]", library)))
    made_of["roots"] = [folder / root for root in made_of.get("roots", ())] or [folder]
    model, handler = config.getoption("evaluator_model"), config.getoption("evaluator_handler")
    if not model and not handler:
        if config.getoption("evaluator_live"):
            return Evaluator(tasks_dir=None, **made_of), given
        model = os.environ.get("EVALUATOR_MODEL")
    if not model and not handler:
        # A backend that is given answers every call, whatever is named anywhere.
        simulated = Evaluator(handler="offline", backend=SimulatedBackend(), tasks_dir=None, **made_of)
        return simulated, {**given, "handlers": ()}
    evaluator = Evaluator(handler=handler, tasks_dir=None, **made_of)
    return evaluator, {**given, "models": (model,) if model else (), "handlers": ()}


class _Chosen:
    """Those of `rows` with these ids."""

    def __init__(self, rows: RowSource, ids: Collection[str]) -> None:
        self._rows, self._ids = rows, frozenset(ids)
        self.description, self.is_repeatable, self.total = rows.description, rows.is_repeatable, len(self._ids)
        self.is_live = rows.is_live

    async def __aiter__(self) -> AsyncIterator[Sample]:
        async for sample in self._rows:
            if sample.id in self._ids:
                yield sample
