"""One sample's work: evaluated, judged, and made into a result. Every engine does it through a Worker.

A Worker never raises for what a sample, a model or a scorer does: that is a verdict. What it does raise ends the
session: a results folder that cannot be written, cancellation.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol, cast

from evaluator.batch.identity import Cell, Identity
from evaluator.batch.records import Failure, Sample, SampleResult, Score, Verdict, verdict_of
from evaluator.batch.scorers import Scored, Scorer, judge
from evaluator.batch.scorers.fences import within_fences
from evaluator.binding.types import read_typed
from evaluator.errors import NotLetIn, RecordError, UsageError
from evaluator.interpreter.frame import Outcome
from evaluator.interpreter.recovery import OnUnfinished
from evaluator.nodes import Function, TopLevel
from evaluator.record.journal import now
from evaluator.record.steps import Recording
from evaluator.results import ErrorType, FailureReason, Status, TaskError, TaskId, TaskResult, Usage, outcome_from_dict

if TYPE_CHECKING:
    from evaluator.interpreter.evaluator import Evaluator

SAMPLE_LABEL = "sample"
GRADER = "grader"
# A judge that is asked several times is asked in further epochs, so that a cache keeps its answers apart.
EPOCHS_APART = 1_000_000
RETRIES_FROM = 1_000


@dataclass(frozen=True, slots=True)
class Variant:
    """A model, or a handler profile, or both, under one name."""

    name: str
    model: str | None = None
    handler: str | None = None


@dataclass(frozen=True, slots=True)
class Work:
    """A sample to evaluate in a cell. `scored_by` is the hash of what it is judged by; `begun` the task to go on with,
    if there is one; `retry_of` one that failed and is tried again from the beginning; `judged` an earlier result, which
    is only judged anew."""

    sample: Sample
    epoch: int
    cell: Cell
    variant: Variant
    identity: Identity
    scored_by: str = ""
    begun: int | None = None
    retry_of: int | None = None
    judged: SampleResult | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """What came of a Work. `result` None: it goes back to those that are pending, for the reason given."""

    work: Work
    result: SampleResult | None
    pending: str = ""


class Turns(Protocol):
    """Says when one more sample may begin."""

    async def start_sample(self) -> None: ...

    def end_sample(self) -> None: ...


@dataclass(slots=True)
class Worker:
    """Evaluates and judges, as `turns` allows. `budget_ended` says why the batch's own budget lets no further call be
    made, or None. `unrecorded` are task files of an earlier session that no result speaks of, by label; `unfinished`
    says what becomes of a side effect in doubt there (see `Evaluator.resume`)."""

    evaluator: Evaluator
    scorers: Sequence[Scorer]
    turns: Turns
    budget_ended: Callable[[], str | None]
    count_as_failed: Collection[str] = ()
    unrecorded: Mapping[str, int] = field(default_factory=dict[str, int])
    unfinished: OnUnfinished = "ask"

    async def perform(self, work: Work, is_stopping: Callable[[], bool] = lambda: False) -> Done:
        """The result of `work`; pending where the batch's own budget ended before the answer was there, a call of it or
        of its judges was not let in, or `is_stopping` says so before it is begun."""
        await self.turns.start_sample()
        try:
            if is_stopping():
                return Done(work, None, "asked to stop")
            sample, cell = work.sample, work.cell
            tracer = self.evaluator.services.tracer
            with tracer.sample(sample.id, work.epoch, cell.template, cell.variant) as span:
                done = await self._perform(work)
                if done.result is not None:
                    span.ended(done.result)
                return done
        finally:
            self.turns.end_sample()

    async def _perform(self, work: Work) -> Done:
        started, clock = now(), time.perf_counter()
        earlier = work.judged
        if earlier is not None:
            outcome: Outcome = self._earlier_outcome(earlier)
            started, duration_s = earlier.started, earlier.duration_s
        else:
            outcome = await self._evaluate(work)
            # Waiting for one's turn says something of the batch's limits, and nothing of the model.
            duration_s = max(0.0, time.perf_counter() - clock - outcome.notes.get("waited_s", 0.0))
        if isinstance(outcome, TaskError) and (spent := _not_let_in(outcome) or self.budget_ended()) is not None:
            return Done(work, None, spent)
        failure = failure_of(outcome)
        scores: dict[str, Score] = {}
        if isinstance(outcome, TaskResult):
            refused: list[str] = []
            for scorer in self.scorers:
                scores[scorer.name] = await judge(scorer, self._scored(work, scorer, outcome, refused))
            if refused:
                # Whatever the scorer made of it: it was not judged by all that were to judge.
                return Done(work, None, refused[0])
            if any(score.error for score in scores.values()) and (spent := self.budget_ended()) is not None:
                return Done(work, None, spent)
        verdict = verdict_of(failure, scores.values())
        if failure is not None and failure.kind in self.count_as_failed:
            why = f"counted as failed: {failure.kind}"
            scores = {scorer.name: Score(0.0, False, explanation=why) for scorer in self.scorers}
            verdict = Verdict.FAILED
        return Done(work, self._result(work, outcome, verdict, scores, failure, started, duration_s))

    def _result(
        self, work: Work, outcome: Outcome, verdict: Verdict, scores: Mapping[str, Score], failure: Failure | None,
        started: str, duration_s: float,
    ) -> SampleResult:  # fmt: skip
        sample, cell, notes = work.sample, work.cell, outcome.notes
        store = self.evaluator.services.store
        number = outcome.task_id
        return SampleResult(
            identity=work.identity.value, sample_id=sample.id, place=sample.place, epoch=work.epoch,
            template=cell.template, variant=cell.variant, verdict=verdict, inputs=sample.inputs, target=sample.target,
            metadata=sample.metadata, model=notes.get("model"), content=outcome.content, parsed=outcome.parsed_content,
            scores=scores, failure=failure, usage=outcome.usage, duration_s=duration_s, started=started,
            task_id=number, task_file=None if number is None or store is None else f"tasks/done/TASK-{number}.md",
            cached_calls=notes.get("cached_calls", 0), warnings=tuple(map(str, notes.get("warnings", ()))),
            parts=work.identity.parts, scored_by=work.scored_by,
        )  # fmt: skip

    # -- evaluating ----------------------------------------------------------------------------------------------

    async def _evaluate(self, work: Work) -> Outcome:
        sample, name, label = work.sample, work.cell.template, work.identity.value
        try:
            inputs = typed(self.evaluator.library.get(name).node, sample.inputs)
        except UsageError as error:
            return TaskError("VALIDATION_ERROR", str(error), "input_validation_failure")
        begun = self.unrecorded.get(label, work.begun)
        if begun is not None:
            return await self._resume(begun, inputs)
        variant = work.variant
        return await self.evaluator.evaluate(
            name, inputs, model=variant.model, handler=variant.handler, epoch=self._epoch(work),
            target=None if sample.target is None else text_of(sample.target), labels={SAMPLE_LABEL: label},
        )  # fmt: skip

    @staticmethod
    def _epoch(work: Work) -> int:
        """Another one for a further try: a cache would answer with what has failed."""
        return work.epoch if work.retry_of is None else work.epoch + EPOCHS_APART * (RETRIES_FROM + work.retry_of)

    async def _resume(self, task_id: int, inputs: Mapping[str, Any]) -> Outcome:
        """Goes on with a task of an earlier session, with those inputs that its file does not hold."""
        recording = self._recording(task_id)
        hidden = [] if recording is None or recording.header is None else recording.header.extra.get("redacted_inputs")
        lacking = {name: inputs[name] for name in hidden or () if name in inputs}
        return await self.evaluator.resume(task_id, lacking, unfinished=self.unfinished)

    def _earlier_outcome(self, earlier: SampleResult) -> Outcome:
        """The whole of it from its task file; without one, what the line of results holds."""
        recording = self._recording(earlier.task_id)
        if recording is not None and recording.summary is not None and recording.summary.result is not None:
            return replace(
                outcome_from_dict(recording.summary.result),
                task_id=None if earlier.task_id is None else TaskId(earlier.task_id),
            )
        if earlier.failure is None:
            return TaskResult(Status.COMPLETE, earlier.content, earlier.parsed, usage=earlier.usage)
        return error_of(earlier.failure, earlier.usage)

    def _recording(self, task_id: int | None) -> Recording | None:
        store = self.evaluator.services.store
        if task_id is None or store is None:
            return None
        try:
            return store.read(task_id)
        except RecordError:
            return None

    # -- judging -------------------------------------------------------------------------------------------------

    def _scored(self, work: Work, scorer: Scorer, outcome: TaskResult, refused: list[str]) -> Scored:
        """What the scorer sees; `refused` gets why a judge was not asked, where none is to be asked any more."""
        calls = count(1)

        async def evaluate(template: str, inputs: Mapping[str, Any], **options: Any) -> Outcome:
            """A judge's call, recorded with the others, and gone on with where an earlier session began it."""
            label = f"{work.identity.value}/{work.scored_by}/{scorer.name}/{next(calls)}"
            inputs = within_fences(self.evaluator.library, template, inputs)
            begun = self.unrecorded.get(label)
            if begun is not None:
                judged = await self._resume(begun, inputs)
            else:
                judged = await self.evaluator.evaluate(
                    template, inputs, labels={SAMPLE_LABEL: label},
                    epoch=work.epoch + (options.get("repeat", 1) - 1) * EPOCHS_APART,
                    model_roles=self._grader(options.get("model"), work.variant.handler),
                    handler=work.variant.handler,
                )  # fmt: skip
            if (why := _not_let_in(judged)) is not None:
                refused.append(why)
            return judged

        return Scored(work.sample, outcome, lambda: self._recording(outcome.task_id), evaluate)

    def _grader(self, model: str | None, handler: str | None) -> dict[str, str] | None:
        """Who judges, where it is not who usually does: a model, or another role that has one."""
        if model is None:
            return None
        mapped = {**self.evaluator.services.profile(handler).roles, **self.evaluator.model_roles}
        return {GRADER: mapped.get(model, model)}


def _not_let_in(outcome: Outcome) -> str | None:
    """Why a call of it was not let in; None where all were."""
    if isinstance(outcome, TaskError) and isinstance(outcome.cause, NotLetIn):
        return outcome.message
    return None


def failure_of(outcome: Outcome) -> Failure | None:
    """Why there is no answer; None where there is one."""
    if isinstance(outcome, TaskResult):
        return None
    return Failure(outcome.type, outcome.reason or outcome.type, outcome.message, outcome.retryable)


def error_of(failure: Failure, usage: Usage) -> TaskError:
    """The error that `failure_of` was made of, without its details."""
    reason = None if failure.kind == failure.type else cast("FailureReason", failure.kind)
    return TaskError(cast("ErrorType", failure.type), failure.message, reason, usage=usage, retryable=failure.retryable)


def typed(node: TopLevel, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Those of `inputs` that `node` declares, texts read as the type that it says: a CSV file has nothing but texts.

    Raises: UsageError, for a text that is no such value.
    """
    declared = node.params if isinstance(node, Function) else node.inputs
    types = {each.name: each.type for each in declared}
    found: dict[str, Any] = {}
    for name, wanted in types.items():
        if name not in inputs:
            continue
        value = found[name] = inputs[name]
        if isinstance(value, str) and wanted not in ("any", "string"):
            try:
                found[name] = read_typed(value, wanted)
            except UsageError as error:
                raise UsageError(f"input {name!r}: {error}") from error
    return found


def text_of(target: Any) -> str:
    """A target as a model would write it."""
    return target if isinstance(target, str) else json.dumps(target, ensure_ascii=False)
