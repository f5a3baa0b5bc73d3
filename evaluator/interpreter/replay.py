"""Replays a recorded run: evaluates it again from its record alone, and finds differences.

No call is made and no tool runs. The answers come from `record.recorded_steps`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from evaluator.errors import ConfigurationError, RecordIncomplete, StepChanged, UsageError
from evaluator.errors.results import Outcome, TaskError
from evaluator.handler.tracing import UNTRACED
from evaluator.interpreter.frame import Services
from evaluator.interpreter.requests import recorded_options, recorded_run, recorded_services
from evaluator.interpreter.runs import record_run
from evaluator.lazy_dataclass import frozen
from evaluator.record.recorded_steps import ChangedStep, ReplayedSteps
from evaluator.record.step_log import StepLog
from evaluator.record.steps import Recording

# The fields of a result that a caller uses.
_COMPARED = ("status", "type", "reason", "message", "content", "parsed_content")


@frozen
class Replay:
    """The outcome of a replay, and how it differs from the record.

    `divergence` is the first step, or the result, that differs; None if nothing does. `changes` are
    the steps whose content has changed (empty unless the replay went past changes), `gone` the
    paths of those that were not reached. `steps` counts the steps of the record, as
    `evaluator tasks show` does, `answers` those that answered a call again, also of subtasks.
    `ends_at` is the step at which the record of an interrupted run ends, None if the run
    has an end.
    """

    task_id: int | None
    outcome: Outcome
    steps: int
    answers: int
    divergence: StepChanged | None = None
    changes: tuple[ChangedStep, ...] = ()
    gone: tuple[str, ...] = ()
    ends_at: str | None = None

    @property
    def ok(self) -> bool:
        """Whether everything was as recorded."""
        return self.divergence is None and not self.changes and not self.gone

    def to_dict(self) -> dict[str, Any]:
        divergence = self.divergence
        names = ("path", "message", "recorded", "now")
        return {
            "task_id": self.task_id,
            "ok": self.ok,
            "steps": self.steps,
            "answers": self.answers,
            "divergence": None
            if divergence is None
            else {name: getattr(divergence, name) for name in names},
            "changes": [asdict(change) for change in self.changes],
            "gone": list(self.gone),
            "ends_at": self.ends_at,
            "outcome": self.outcome.to_dict(),
        }


async def replay(services: Services, task: int | Path, past_changes: bool) -> Replay:
    """See `Evaluator.replay`."""
    store = services.store
    if store is None:
        raise UsageError(
            "there is no folder of task files to replay from: the evaluator was made with "
            "tasks_dir=None"
        )
    recording = await asyncio.to_thread(store.read, task)
    header = recording.known_header()
    earlier = ReplayedSteps(recording, past_changes=past_changes)
    services = replace(recorded_services(header, services), tracer=UNTRACED)
    run = recorded_run(services, header, values=dict(header.inputs))
    run.options = recorded_options(header, services)
    outcome = await record_run(run, StepLog(None, earlier, scrub=store.redactor))
    halted = earlier.progress.halted
    summary = recording.summary
    if halted is not None and not isinstance(halted, (StepChanged, RecordIncomplete)):
        raise halted
    has_failed = summary is not None and summary.status == "failed"
    if (
        isinstance(outcome, TaskError)
        and isinstance(outcome.cause, ConfigurationError)
        and not has_failed
    ):
        raise outcome.cause
    return Replay(
        header.task_id,
        outcome,
        steps=len(recording.steps) if summary is None else summary.steps,
        answers=earlier.progress.reused,
        divergence=halted
        if isinstance(halted, StepChanged)
        else _result_change(recording, outcome, services=services, halted=halted),
        changes=tuple(earlier.progress.changes),
        gone=() if halted is not None else tuple(step.start.path for step in earlier.unasked()),
        ends_at=halted.path if isinstance(halted, RecordIncomplete) else None,
    )


def _result_change(
    recording: Recording, outcome: Outcome, services: Services, halted: RecordIncomplete | None
) -> StepChanged | None:
    """The first difference between the recorded and the replayed result, in the fields that a
    caller uses.
    """
    from evaluator.record.json_difference import first_difference

    summary = recording.summary
    if summary is None or halted is not None:
        return None
    if summary.result is None:
        return StepChanged(
            "result", f"the recorded run was aborted ({summary.reason}); the replay was not"
        )
    now: Mapping[str, Any] = outcome.to_dict()
    if services.store is not None and services.store.redactor is not None:
        now = services.store.redactor.redact_value(now)
    recorded, now = (
        {name: result[name] for name in _COMPARED if name in result}
        for result in (summary.result, now)
    )
    difference = first_difference(recorded, now)
    return difference and StepChanged(
        "result",
        f"the result differs at {difference.where}",
        recorded=difference.recorded,
        now=difference.now,
    )
