"""A recorded run evaluated again from its record alone, and where that comes to something else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from evaluator.errors import ConfigurationError, RecordEnds, RecordError, StepChanged, UsageError
from evaluator.handler.tracing import UNTRACED
from evaluator.interpreter.frame import Outcome
from evaluator.interpreter.requests import start_again
from evaluator.interpreter.runs import RunStart, record_run
from evaluator.interpreter.services import Services
from evaluator.record.difference import Difference, first_difference
from evaluator.record.recovery import Change, Compared, Replayed
from evaluator.record.steplog import StepLog
from evaluator.record.steps import Header, Recording
from evaluator.results import TaskError


@dataclass(frozen=True, slots=True)
class Replay:
    """What a replay came to.

    `divergence` is the first step, or the result, that is not what was recorded; None if nothing is. `changes`
    are the steps whose content is another now, `gone` the paths of those that were not come to again: both
    empty unless the replay went on past changes. `steps` counts the answers that were taken from the record. `ends_at`
    is the step at which the record of a run without an end ends, None where it does not.
    """

    task_id: int | None
    outcome: Outcome
    steps: int
    divergence: StepChanged | None = None
    changes: tuple[Change, ...] = ()
    gone: tuple[str, ...] = ()
    ends_at: str | None = None

    @property
    def ok(self) -> bool:
        """Whether everything was as recorded."""
        return self.divergence is None and not self.changes and not self.gone

    def to_dict(self) -> dict[str, Any]:
        found = self.divergence
        return {
            "task_id": self.task_id,
            "ok": self.ok,
            "steps": self.steps,
            "divergence": None
            if found is None
            else {"path": found.path, "message": found.message, "recorded": found.recorded, "now": found.now},
            "changes": [
                {"path": c.path, "kind": c.kind, "name": c.name, "recorded": c.recorded, "now": c.now}
                for c in self.changes
            ],
            "gone": list(self.gone),
            "ends_at": self.ends_at,
            "outcome": self.outcome.to_dict(),
        }


async def replay(
    services: Services, task: int | Path, template_changes: bool, finish: Callable[[RunStart, Header], RunStart]
) -> Replay:
    """See `Evaluator.replay`."""
    store = services.store
    if store is None:
        raise UsageError("there is no folder of task files to replay from: the evaluator was made with tasks_dir=None")
    recording = await asyncio.to_thread(store.read, task)
    header = recording.header
    if header is None:
        raise RecordError(f"{task}: ends inside its header: there is nothing to replay")
    earlier = Compared(recording) if template_changes else Replayed(recording)
    earlier.progress.scrub = store.redactor
    services = replace(services, reparse=bool(header.extra.get("reparse")), tracer=UNTRACED)
    start = finish(start_again(services.library, header, dict(header.inputs)), header)
    outcome = await record_run(services, replace(start, steps=StepLog(None, earlier, store.redactor)))
    halted = earlier.progress.halted
    if halted is not None and not isinstance(halted, (StepChanged, RecordEnds)):
        raise halted
    if isinstance(outcome, TaskError) and isinstance(outcome.cause, ConfigurationError) and not _failed(recording):
        raise outcome.cause
    ends_at = halted.path if isinstance(halted, RecordEnds) else None
    divergence = halted if isinstance(halted, StepChanged) else None
    if halted is None:
        divergence = _of_result(recording, outcome, services)
    changes = tuple(earlier.changes) if isinstance(earlier, Compared) else ()
    gone = () if halted is not None else tuple(step.start.path for step in earlier.unasked())
    return Replay(header.task_id, outcome, earlier.progress.reused, divergence, changes, gone, ends_at)


def _failed(recording: Recording) -> bool:
    return recording.summary is not None and recording.summary.status == "failed"


def _of_result(recording: Recording, outcome: Outcome, services: Services) -> StepChanged | None:
    """The first difference between the recorded result and that of the replay, in what a caller uses of it."""
    summary = recording.summary
    if summary is None:
        return None
    if summary.result is None:
        return StepChanged("result", f"the recorded run was aborted ({summary.reason}); this one came to an end")
    now = outcome.to_dict()
    if services.store is not None and services.store.redactor is not None:
        now = services.store.redactor.redact_value(now)
    found = first_difference(_essence(summary.result), _essence(now))
    return None if found is None else _said(found)


def _essence(result: Mapping[str, Any]) -> dict[str, Any]:
    names = ("status", "type", "reason", "message", "content", "parsed_content")
    return {name: result[name] for name in names if name in result}


def _said(found: Difference) -> StepChanged:
    return StepChanged("result", f"the result is another at {found.where}", found.recorded, found.now)
