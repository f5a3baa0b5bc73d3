"""Plans a batch from the arguments of a marker or a call, with the models that the test run
allows.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, cast

import pytest

from evaluator.batch.definition import read_definition
from evaluator.batch.options import BatchOptions
from evaluator.batch.plan import BatchPlan, make_plan
from evaluator.batch.records import Sample
from evaluator.batch.rows import RowSource
from evaluator.batch.rows.hf_rows import place_in
from evaluator.batch.scorers import parse_scorer
from evaluator.errors import UsageError
from evaluator.fields import check_names
from evaluator.interpreter.evaluator import Evaluator
from evaluator.library import TemplateLibrary
from evaluator.models.simulated import SimulatedBackend

_EVALUATOR = {"library", "model_roles", "roots", "tools"}
# Where results go, and when a session ends, is up to the test run.
_OPTIONS = {each.name for each in fields(BatchOptions)} - {"output", "resume", "display", "stop"}


@dataclass(frozen=True, slots=True)
class PreparedBatch:
    """A batch that can run. `is_own`: its evaluator was made here and has to be closed."""

    evaluator: Evaluator
    plan: BatchPlan
    is_own: bool

    @property
    def is_simulated(self) -> bool:
        return any(cell.is_simulated for cell, _ in self.plan.cells)

    def only(self, ids: Collection[str]) -> PreparedBatch:
        """The batch with only these samples."""
        rows = cast("RowSource", _SelectedRows(self.plan.rows, ids))
        return replace(self, plan=replace(self.plan, rows=rows))


def prepare(
    config: pytest.Config, what: Any, rows: Any, arguments: Mapping[str, Any], folder: Path
) -> PreparedBatch:
    """`what` is a definition's file or names templates; paths are relative to `folder`.

    Raises: EvaluatorError, for anything that cannot be used.
    """
    given = {**_read_definition(what, folder), **arguments}
    if rows is not None:
        if isinstance(rows, (str, Path)):
            given["rows"] = place_in(folder, str(rows))
        else:
            given["rows"] = rows
    check_names(given, {"templates", "rows", "evaluator", *_OPTIONS, *_EVALUATOR}, UsageError)
    if "rows" not in given:
        raise UsageError("rows are missing")
    templates = given.pop("templates")
    rows = given.pop("rows")
    own = given.pop("evaluator", None)
    init = {name: given.pop(name) for name in _EVALUATOR & given.keys()}
    if isinstance(given.get("cache"), (str, Path)):
        given["cache"] = folder / given["cache"]
    if own is None:
        evaluator, given = _make_evaluator(config, init, given=given, folder=folder)
    elif init:
        raise UsageError(f"give either an evaluator, or {', '.join(sorted(init))} to make one")
    else:
        evaluator = own
    options = BatchOptions(**given, display=None)
    scorers = tuple(
        parse_scorer(each) if isinstance(each, str) else each for each in options.scorers
    )
    return PreparedBatch(
        evaluator,
        make_plan(evaluator, templates, rows=rows, options=replace(options, scorers=scorers)),
        is_own=own is None,
    )


def _read_definition(what: Any, folder: Path) -> dict[str, Any]:
    """The table that the first argument denotes."""
    if isinstance(what, Path) or (isinstance(what, str) and what.endswith(".toml")):
        table = read_definition(folder / what).to_dict()
        table.pop("output", None)
        return table
    if what is None:
        raise UsageError("give a definition's file or a template's name")
    return {"templates": what}


def _make_evaluator(
    config: pytest.Config, init: dict[str, Any], given: dict[str, Any], folder: Path
) -> tuple[Evaluator, dict[str, Any]]:
    """An evaluator, and the options of the batch, with the models that the test run allows."""
    library = init.get("library")
    if isinstance(library, (str, Path)):
        init["library"] = folder / library
    elif isinstance(library, (list, tuple)):
        init["library"] = TemplateLibrary.load(
            *(folder / each for each in cast("tuple[str, ...]", library))
        )
    init |= {
        "roots": [folder / root for root in init.get("roots", ())] or [folder],
        "tasks_dir": None,
    }
    # pytest runs the project's code anyway.
    init["trust"] = True
    model = config.getoption("evaluator_model")
    handler = config.getoption("evaluator_handler")
    if not model and not handler:
        if config.getoption("evaluator_live"):
            return Evaluator(**init), given
        model = os.environ.get("EVALUATOR_MODEL")
    if not model and not handler:
        # This backend answers every call, whatever model is named anywhere.
        return Evaluator(handler="offline", backend=SimulatedBackend(), **init), {
            **given,
            "handlers": (),
        }
    return Evaluator(handler=handler, **init), {
        **given,
        "models": (model,) if model else (),
        "handlers": (),
    }


class _SelectedRows:
    """The `rows` with these ids."""

    def __init__(self, rows: RowSource, ids: Collection[str]) -> None:
        self._rows = rows
        self._ids = frozenset(ids)
        self.total = len(self._ids)
        self.is_repeatable = rows.is_repeatable
        self.description = rows.description
        self.is_live = rows.is_live
        self.name = rows.name
        self.notices = rows.notices

    async def __aiter__(self) -> AsyncIterator[Sample]:
        async for sample in self._rows:
            if sample.id in self._ids:
                yield sample
