"""A job of the pool: a sample that a process evaluates, and its result if it ends every process
that evaluates it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from evaluator.batch.records import Failure, SampleResult, Verdict
from evaluator.batch.work import WorkItem, WorkResult
from evaluator.record.journal import now


@dataclass(slots=True, eq=False)
class Job:
    """`unrecorded`: task files of the sample, by label. `lost`: how many processes were lost with
    it.
    """

    number: int
    work: WorkItem
    is_stopping: Callable[[], bool]
    unrecorded: dict[str, int]
    done: asyncio.Future[WorkResult]
    lost: int = 0

    def end(self, outcome: WorkResult | Exception) -> None:
        if self.done.done():
            return
        if isinstance(outcome, Exception):
            self.done.set_exception(outcome)
        else:
            self.done.set_result(outcome)


def crash_result(job: Job) -> SampleResult:
    """The error of a sample whose process ended while it evaluated only that sample."""
    work = job.work
    sample = work.sample
    cell = work.cell
    number = job.unrecorded.get(work.identity.value)
    message = (
        "the process that evaluated only this sample ended unexpectedly: it crashed, or ran "
        "out of memory"
    )
    return SampleResult(
        identity=work.identity.value,
        sample_id=sample.id,
        place=sample.place,
        epoch=work.epoch,
        template=cell.template,
        variant=cell.variant,
        verdict=Verdict.ERROR,
        inputs=sample.inputs,
        target=sample.target,
        metadata=sample.metadata,
        failure=Failure("TASK_FAILURE", "unexpected_error", message=message),
        started=now(),
        parts=work.identity.parts,
        scored_by=work.scored_by,
        task_id=number,
        task_file=None if number is None else f"tasks/active/TASK-{number}.md",
    )
