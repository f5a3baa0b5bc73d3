"""Batches: rows x templates x models x epochs, scored and summarised, resumable after a crash.

Names are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evaluator.lazy_names import lazy_names

if TYPE_CHECKING:
    from evaluator.batch.cells import Judges as Judges
    from evaluator.batch.control import BatchStatus as BatchStatus
    from evaluator.batch.control import Command as Command
    from evaluator.batch.control import batch_status as batch_status
    from evaluator.batch.control import control_batch as control_batch
    from evaluator.batch.cost_plan import Amounts as Amounts
    from evaluator.batch.cost_plan import plan_costs as plan_costs
    from evaluator.batch.costs import CacheSaving as CacheSaving
    from evaluator.batch.costs import CostPart as CostPart
    from evaluator.batch.costs import CostPlan as CostPlan
    from evaluator.batch.decision import Deciding as Deciding
    from evaluator.batch.decision import Decision as Decision
    from evaluator.batch.decision import Design as Design
    from evaluator.batch.decision import LookResult as LookResult
    from evaluator.batch.definition import BatchDefinition as BatchDefinition
    from evaluator.batch.definition import read_definition as read_definition
    from evaluator.batch.design import PlannedDecision as PlannedDecision
    from evaluator.batch.display import Display as Display
    from evaluator.batch.display import NoDisplay as NoDisplay
    from evaluator.batch.engines import Engine as Engine
    from evaluator.batch.engines import make_engine as make_engine
    from evaluator.batch.identity import Cell as Cell
    from evaluator.batch.identity import Identity as Identity
    from evaluator.batch.labels import CurrentLabels as CurrentLabels
    from evaluator.batch.labels import Label as Label
    from evaluator.batch.labels import LabelVerdict as LabelVerdict
    from evaluator.batch.merge import merge_shards as merge_shards
    from evaluator.batch.metrics import FunctionMetric as FunctionMetric
    from evaluator.batch.metrics import Metric as Metric
    from evaluator.batch.metrics import metric as metric
    from evaluator.batch.options import BatchLimits as BatchLimits
    from evaluator.batch.options import BatchOptions as BatchOptions
    from evaluator.batch.options import Stop as Stop
    from evaluator.batch.pending import Changed as Changed
    from evaluator.batch.pending import Counts as Counts
    from evaluator.batch.plan import BatchPlan as BatchPlan
    from evaluator.batch.plan import make_plan as make_plan
    from evaluator.batch.progress import EndpointStatus as EndpointStatus
    from evaluator.batch.progress import Remaining as Remaining
    from evaluator.batch.progress import SilentProcess as SilentProcess
    from evaluator.batch.progress import Snapshot as Snapshot
    from evaluator.batch.reading import Batch as Batch
    from evaluator.batch.reading import Declared as Declared
    from evaluator.batch.reading import Results as Results
    from evaluator.batch.reading import open_batch as open_batch
    from evaluator.batch.records import Failure as Failure
    from evaluator.batch.records import Sample as Sample
    from evaluator.batch.records import SampleResult as SampleResult
    from evaluator.batch.records import Score as Score
    from evaluator.batch.records import Shot as Shot
    from evaluator.batch.records import Verdict as Verdict
    from evaluator.batch.rows import FewShot as FewShot
    from evaluator.batch.rows import Selection as Selection
    from evaluator.batch.run import BatchResult as BatchResult
    from evaluator.batch.run import run_batch as run_batch
    from evaluator.batch.run import run_batch_sync as run_batch_sync
    from evaluator.batch.run import run_plan as run_plan
    from evaluator.batch.scoring import score_batch as score_batch
    from evaluator.batch.scoring import score_batch_sync as score_batch_sync
    from evaluator.batch.session import SessionEnd as SessionEnd
    from evaluator.batch.summary import BatchSummary as BatchSummary
    from evaluator.batch.summary import MetricValue as MetricValue
    from evaluator.batch.thresholds import Threshold as Threshold
    from evaluator.batch.thresholds import ThresholdResult as ThresholdResult
    from evaluator.batch.work import Worker as Worker
    from evaluator.batch.work_items import Variant as Variant
    from evaluator.batch.work_items import WorkItem as WorkItem
    from evaluator.batch.work_items import WorkResult as WorkResult

_HOMES = {
    ".cells": ("Judges",),
    ".control": ("BatchStatus", "Command", "batch_status", "control_batch"),
    ".cost_plan": ("Amounts", "plan_costs"),
    ".costs": ("CacheSaving", "CostPart", "CostPlan"),
    ".decision": ("Deciding", "Decision", "Design", "LookResult"),
    ".display": ("Display", "NoDisplay"),
    ".design": ("PlannedDecision",),
    ".definition": ("BatchDefinition", "read_definition"),
    ".engines": ("Engine", "make_engine"),
    ".merge": ("merge_shards",),
    ".metrics": ("FunctionMetric", "Metric", "metric"),
    ".options": ("BatchLimits", "BatchOptions", "Stop"),
    ".plan": ("BatchPlan", "make_plan"),
    ".identity": ("Cell", "Identity"),
    ".labels": ("CurrentLabels", "Label", "LabelVerdict"),
    ".thresholds": ("Threshold", "ThresholdResult"),
    ".progress": ("EndpointStatus", "Remaining", "SilentProcess", "Snapshot"),
    ".reading": ("Batch", "Declared", "Results", "open_batch"),
    ".work": ("Worker",),
    ".work_items": ("Variant", "WorkItem", "WorkResult"),
    ".records": ("Failure", "Sample", "SampleResult", "Score", "Shot", "Verdict"),
    ".rows": ("FewShot", "Selection"),
    ".run": ("BatchResult", "run_batch", "run_batch_sync", "run_plan"),
    ".scoring": ("score_batch", "score_batch_sync"),
    ".pending": ("Changed", "Counts"),
    ".session": ("SessionEnd",),
    ".summary": ("BatchSummary", "MetricValue"),
}

__all__ = sorted(  # pyright: ignore[reportUnsupportedDunderAll]
    name for names in _HOMES.values() for name in names
)

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__, _HOMES)


def __dir__() -> list[str]:
    return __all__
