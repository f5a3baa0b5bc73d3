"""Batches: rows x templates x models x epochs, scored, counted honestly, and gone on with after a crash.

Names are loaded when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evaluator.batch.definition import BatchDefinition as BatchDefinition
    from evaluator.batch.definition import BatchLimits as BatchLimits
    from evaluator.batch.definition import read_definition as read_definition
    from evaluator.batch.engines import Engine as Engine
    from evaluator.batch.engines import make_engine as make_engine
    from evaluator.batch.gates import GateResult as GateResult
    from evaluator.batch.progress import Display as Display
    from evaluator.batch.progress import NoDisplay as NoDisplay
    from evaluator.batch.progress import Snapshot as Snapshot
    from evaluator.batch.reading import Batch as Batch
    from evaluator.batch.reading import open_batch as open_batch
    from evaluator.batch.records import Failure as Failure
    from evaluator.batch.records import Sample as Sample
    from evaluator.batch.records import SampleResult as SampleResult
    from evaluator.batch.records import Score as Score
    from evaluator.batch.records import Verdict as Verdict
    from evaluator.batch.rows import Selection as Selection
    from evaluator.batch.run import BatchResult as BatchResult
    from evaluator.batch.run import BatchSettings as BatchSettings
    from evaluator.batch.run import make_plan as make_plan
    from evaluator.batch.run import run_plan as run_plan
    from evaluator.batch.session import Ended as Ended
    from evaluator.batch.session import Stop as Stop
    from evaluator.batch.summary import BatchSummary as BatchSummary

_HOMES = {
    "definition": ("BatchDefinition", "BatchLimits", "read_definition"),
    "engines": ("Engine", "make_engine"),
    "gates": ("GateResult",),
    "progress": ("Display", "NoDisplay", "Snapshot"),
    "reading": ("Batch", "open_batch"),
    "records": ("Failure", "Sample", "SampleResult", "Score", "Verdict"),
    "rows": ("Selection",),
    "run": ("BatchResult", "BatchSettings", "make_plan", "run_plan"),
    "session": ("Ended", "Stop"),
    "summary": ("BatchSummary",),
}
_HOME = {name: f"{__name__}.{module}" for module, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME)  # pyright: ignore[reportUnsupportedDunderAll]

if not TYPE_CHECKING:
    # A type checker sees the imports above, and a name that is none of them as an error.
    def __getattr__(name: str) -> Any:
        try:
            module = _HOME[name]
        except KeyError:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
        value = getattr(import_module(module), name)
        globals()[name] = value
        return value
