"""The work on one sample: evaluate it, judge the answer, make a result. Every engine does it
through a Worker.

A Worker never raises because of a sample, a model or a scorer: their errors are verdicts. Whatever
it does raise ends the session, such as a folder that cannot be written, or cancellation.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import field, replace
from itertools import chain, count
from typing import TYPE_CHECKING, Any

from evaluator import clock
from evaluator.batch.abandoned import recorded_use
from evaluator.batch.arguments import Arguments
from evaluator.batch.records import (
    Failure,
    Limited,
    SampleResult,
    Score,
    counts_as_failed,
    error_of,
    existing_answer,
    failure_of,
    is_limited,
    limited_answer,
    verdict_of,
)
from evaluator.batch.scorers import Scorer, ScorerInput, run_scores, score_names
from evaluator.batch.work_items import WorkItem, WorkResult
from evaluator.errors import (
    CallParked,
    CallRejected,
    MachineError,
    RecordError,
    TemplateError,
    UsageError,
)
from evaluator.errors.results import (
    Outcome,
    Status,
    TaskError,
    TaskId,
    TaskResult,
    Usage,
    outcome_from_dict,
)
from evaluator.interpreter.calls import usable_schema
from evaluator.interpreter.failures import to_task_error
from evaluator.interpreter.frame import Shots
from evaluator.interpreter.recovery import OnUnfinished
from evaluator.language.scopes import plain
from evaluator.lazy_dataclass import dataclass
from evaluator.nodes import OutputFormat, Task, TopLevel
from evaluator.record.journal import now
from evaluator.record.steps import Recording

if TYPE_CHECKING:
    from evaluator.interpreter.evaluator import Evaluator, PreparedRequest
    from evaluator.library import TemplateLibrary

SAMPLE: ContextVar[str] = ContextVar("SAMPLE", default="")
"""The identity of the sample that this task evaluates."""
_SAMPLE_LABEL = "sample"
GRADER = "grader"
# Repeated calls of a judge, and further tries of a task, run in epochs of their own, so that a
# cache does not answer them with an earlier response.
EPOCHS_APART = 1_000_000
RETRIES_FROM = 1_000


class _Template:
    """A template, prepared for all samples: what it takes of them, its output format, and its
    request for each variant.
    """

    __slots__ = ("arguments", "output", "requests")

    def __init__(self, node: TopLevel) -> None:
        self.arguments = Arguments(node)
        self.output = node.output if isinstance(node, Task) else None
        self.requests: dict[str, PreparedRequest] = {}


class _Templates(dict[str, _Template]):
    """The templates of a library by name, each prepared when it is first asked for."""

    def __init__(self, library: TemplateLibrary) -> None:
        super().__init__()
        self._library = library

    def __missing__(self, name: str) -> _Template:
        template = self[name] = _Template(self._library.get(name).node)
        return template


@dataclass(slots=True)
class _Judges:
    """The evaluations that the scorers of a sample asked for: the errors of those whose calls were
    rejected; the tasks of the others, and of those that are parked, by label; and their calls that
    were in flight when an earlier process ended.
    """

    rejected: list[TaskError] = field(default_factory=list[TaskError])
    completed: dict[str, int] = field(default_factory=dict[str, int])
    interrupted_calls: int = 0


@dataclass(slots=True)
class Worker:
    """Evaluates and judges.

    `budget_ended` returns why the batch's budget allows no further call, or None. `unrecorded` are
    task files of an earlier session that no result refers to, by label; `counted` are completed
    ones that results count already: where they are used again, they count nothing. `unfinished`:
    what to do about a side effect there without a recorded end; `repair`: damaged ones are read up
    to the damage (see `Evaluator.resume`). `versions`: the version of each scorer, by name.
    `cluster` and `group_by` are the fields of the summary.
    """

    evaluator: Evaluator
    scorers: Sequence[Scorer]
    budget_ended: Callable[[], str | None]
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    count_as_failed: Collection[str] = ()
    limited: Limited = "scored"
    unrecorded: dict[str, int] = field(default_factory=dict[str, int])
    counted: dict[str, int] = field(default_factory=dict[str, int])
    unfinished: OnUnfinished = "ask"
    repair: bool = False
    cluster: str | None = None
    group_by: str | None = None
    _templates: _Templates = field(init=False)
    _scorers: list[tuple[Scorer, list[str]]] = field(init=False)

    def __post_init__(self) -> None:
        self._templates = _Templates(self.evaluator.library)
        self._scorers = [(scorer, score_names(scorer)) for scorer in self.scorers]

    async def perform(self, work: WorkItem) -> WorkResult:
        """The result of `work`. It stays pending if the batch's budget ended before the answer, if
        a call of it or of its judges was rejected, or if this machine could not do it (see
        `errors.machine`).
        """
        sample = work.sample
        cell = work.cell
        SAMPLE.set(work.identity.value)
        tracer = self.evaluator.services.tracer
        with tracer.sample(sample.id, work.epoch, cell.template, cell.variant) as span:
            done = await self._perform(work)
            if done.result is not None:
                span.set_result(done.result)
            return done

    async def _perform(self, work: WorkItem) -> WorkResult:
        outcome, started, duration_s = await self._outcome(work)
        if isinstance(outcome, TaskError):
            if isinstance(outcome.cause, CallParked):
                return self._parked(work, outcome, {})
            reason = _rejection(outcome) or self.budget_ended()
            if reason is not None:
                return WorkResult(work, None, pending=reason)
        failure = None
        answer: TaskResult | str | None = None
        if isinstance(outcome, TaskResult):
            answer = outcome
        else:
            failure = failure_of(outcome)
            answer = self._answer_of(work, outcome, failure)
        parsed = None
        scores: dict[str, Score] = {}
        judges = _Judges()
        if isinstance(answer, TaskResult):
            parsed = answer.parsed_content
            found = await self._scores(work, answer, outcome, judges)
            if isinstance(found, WorkResult):
                return found
            scores = found
        elif answer is not None:
            failed = Score(0.0, False, explanation=answer)
            at = now()
            for name in chain.from_iterable(names for _, names in self._scorers):
                scores[name] = failed.judged(self.versions.get(name, ""), at)
        if work.keeps and answer is not None:
            scores = {**work.keeps, **scores}
        task_file = None
        store = self.evaluator.services.store
        notes = outcome.notes
        interrupted_calls = notes.get("interrupted_calls", 0)
        cached_calls = notes.get("cached_calls", 0)
        usage = outcome.usage
        judge_tasks = tuple(judges.completed.values())
        task_id: int | None = outcome.task_id
        if work.answered is not None:
            task_id = work.answered.task_id
            task_file = work.answered.task_file
            if work.answered.failure is None:
                # The result says what it counts: the calls of the run may be those of another one.
                usage = work.answered.usage
                cached_calls = work.answered.cached_calls
                interrupted_calls = 0
            # Those of earlier judges too, and of a further try whose result was not written.
            if interrupted_calls and store is not None:
                of_judges = recorded_use(store, work.answered.judge_tasks)
                interrupted_calls += of_judges.interrupted_calls
            interrupted_calls = max(work.answered.interrupted_calls, interrupted_calls)
            judge_tasks = work.answered.judge_tasks + judge_tasks
        elif outcome.task_id is not None and store is not None and not store.is_packed:
            task_file = f"tasks/done/TASK-{outcome.task_id}.md"
        made = work.result(
            verdict_of(failure if answer is None else None, scores.values()),
            model=notes.get("model"),
            content=outcome.content,
            parsed=parsed,
            scores=scores,
            failure=failure,
            usage=usage,
            duration_s=duration_s,
            started=started,
            task_id=task_id,
            task_file=task_file,
            cached_calls=cached_calls,
            interrupted_calls=interrupted_calls + judges.interrupted_calls,
            warnings=tuple(map(str, notes["warnings"])) if "warnings" in notes else (),
            judge_tasks=judge_tasks,
        )
        return WorkResult(work, made)

    async def _outcome(self, work: WorkItem) -> tuple[Outcome, str, float]:
        """The outcome of the task, also of one that ended in an earlier session, when it started,
        and its seconds.
        """
        earlier = work.answered
        if earlier is not None:
            outcome = earlier_outcome(earlier, self._recording(earlier.task_id))
            return outcome, earlier.started, earlier.duration_s
        task = self.unrecorded.get(work.identity.value, work.resumes)
        if task == work.retry_of:
            # It waited for a provider batch in this session, and has failed since.
            task = None
        counted = None
        if work.retry_of is None:
            counted = self.counted.get(work.identity.value)
        complete = counted if task is None else task
        if complete is not None and complete != work.resumes:
            ended = self._ended_run(work, complete)
            if ended is not None and ended.summary is not None:
                outcome = _recorded_outcome(ended)
                # It is unrecorded too, where its judges waited for a provider batch.
                if complete == counted:
                    outcome = _without_use(outcome)
                return outcome, ended.known_header().created, ended.summary.duration_s
        started = now()
        began = clock.monotonic()
        outcome = await self._evaluate(work, task)
        if isinstance(outcome, TaskResult) and outcome.parsed_content is not None:
            # Scorers and results get data, as they do from a record.
            outcome = replace(outcome, parsed_content=outcome.parsed_data)
        # Waiting for the rate limiter depends on the batch's limits, not on the model.
        waited_s = outcome.notes.get("waited_s", 0.0)
        return outcome, started, max(0.0, clock.monotonic() - began - waited_s)

    async def _scores(
        self, work: WorkItem, answer: TaskResult, outcome: Outcome, judges: _Judges
    ) -> dict[str, Score] | WorkResult:
        """The scores of an answer by name, except those that it keeps; or why it stays pending."""
        scores: dict[str, Score] = {}
        has_error = False
        for scorer, names in self._scorers:
            if work.keeps and all(name in work.keeps for name in names):
                continue
            try:
                scored = self._scored(work, scorer, outcome=answer, judges=judges)
                found = await run_scores(scorer, scored)
            except MachineError as error:
                return WorkResult(work, None, pending=f"scorer {scorer.name!r}: {error}")
            at = now()
            for name, score in found.items():
                has_error = has_error or bool(score.error)
                scores[name] = score.judged(self.versions.get(name, ""), at)
        if judges.rejected:
            # A judge is missing, whatever the scorer returned.
            if all(isinstance(error.cause, CallParked) for error in judges.rejected):
                return self._parked(work, outcome, judges.completed)
            return WorkResult(work, None, pending=judges.rejected[0].message)
        if has_error:
            reason = self.budget_ended()
            if reason is not None:
                return WorkResult(work, None, pending=reason)
        return scores

    @staticmethod
    def _parked(work: WorkItem, outcome: Outcome, judged: Mapping[str, int]) -> WorkResult:
        """The result of a sample, or of its judges, that wait for a provider batch."""
        tasks = dict(judged)
        if outcome.task_id is not None:
            tasks[work.identity.value] = outcome.task_id
        return WorkResult(work, None, pending="waits for a provider batch", parked=tasks)

    def _answer_of(
        self, work: WorkItem, outcome: TaskError, failure: Failure
    ) -> TaskResult | str | None:
        """The partial answer to score; why it counts as failed; or None for an error, which nothing
        scores.
        """
        if not self.scorers:
            return None
        if self.limited != "error" and is_limited(outcome):
            ended = f"ended by the limit of {outcome.resource.name if outcome.resource else 'it'}"
            if self.limited == "failed":
                return ended
            read = self._read_existing(outcome.content, self._templates[work.cell.template].output)
            answer = limited_answer(outcome, read)
            if isinstance(answer, str):
                return f"{ended}: {answer}"
            return replace(answer, parsed_content=answer.parsed_data)
        if counts_as_failed(failure, self.count_as_failed):
            return f"counted as failed: {failure.kind}"
        return None

    # -- evaluating --------------------------------------------------------------------------------

    def _read_existing(self, text: str, wanted: OutputFormat | None) -> Outcome:
        """A text as the result of a task with the output format `wanted`. Schemas are imported and
        read as in a run.
        """
        services = self.evaluator.services
        try:
            if wanted is not None and wanted.schema is not None:
                schema = usable_schema(services, wanted.schema, span=wanted.span)
                wanted = replace(wanted, schema=schema)
        except TemplateError as error:
            return to_task_error(error)
        with services.schema_imports(services.authority):
            return existing_answer(text, wanted)

    async def _evaluate(self, work: WorkItem, task: int | None) -> Outcome:
        """The outcome of the task, which continues `task` of an earlier session if it is its
        run.
        """
        sample = work.sample
        name = work.cell.template
        template = self._templates[name]
        if sample.answer is not None:
            return self._read_existing(sample.answer, template.output)
        try:
            inputs, shots = template.arguments.of(sample)
        except UsageError as error:
            return TaskError("VALIDATION_ERROR", str(error), reason="input_validation_failure")
        variant = work.variant
        if task is not None and self._is_run(task, name, inputs, variant.model, variant.handler):
            return await self._resume(task, inputs, shots=shots)
        request = template.requests.get(variant.name)
        if request is None:
            request = self.evaluator.prepare(name, model=variant.model, handler=variant.handler)
            template.requests[variant.name] = request
        epoch = work.epoch
        if work.retry_of is not None:
            # A new epoch, or the cache would return the failed response.
            epoch += EPOCHS_APART * (RETRIES_FROM + work.retry_of)
        return await request.evaluate(
            inputs,
            epoch=epoch,
            target=template.arguments.target_text(sample.target),
            labels={_SAMPLE_LABEL: work.identity.value},
            shots=shots,
        )

    def _ended_run(self, work: WorkItem, task: int) -> Recording | None:
        """The recording of `task` if it is the run of the sample and ended, with an answer or an
        error, so that only the line of its result is missing.
        """
        name = work.cell.template
        try:
            inputs, _ = self._templates[name].arguments.of(work.sample)
        except UsageError:
            return None
        variant = work.variant
        return self._ended(task, name, inputs, variant.model, variant.handler)

    def _ended(
        self,
        task: int,
        template: str,
        inputs: Mapping[str, Any],
        model: str | None,
        handler: str | None,
    ) -> Recording | None:
        """The recording of a task that is this run and has ended; None for any other."""
        recording = self._recording(task)
        if (
            recording is None
            or recording.status not in ("completed", "failed")
            or recording.summary is None
            or recording.summary.result is None
            or not self._is_run(task, template, inputs, model, handler)
        ):
            return None
        try:
            _recorded_outcome(recording)
        except (LookupError, TypeError, ValueError):
            return None  # a file of somebody else
        return recording

    def _is_run(
        self,
        task_id: int,
        template: str,
        inputs: Mapping[str, Any],
        model: str | None,
        handler: str | None,
    ) -> bool:
        """Whether a task file can be continued as this run; not if it is of another one, which a
        file of somebody else may be.
        """
        recording = self._recording(task_id)
        if recording is None or recording.header is None:
            return True  # resuming it says why it cannot be read
        header = recording.header
        if "node" in header.extra or header.template != template:
            return False
        default = self.evaluator.services.default_profile.name
        if handler is None:
            handlers = (None, default)
        else:
            handlers = (handler,)
        if header.extra.get("handler") not in handlers:
            return False
        if header.model != (model or self.evaluator.model):
            return False
        redacted = header.extra.get("redacted_inputs") or ()
        wanted, recorded = (
            json.dumps({k: v for k, v in some.items() if k not in redacted}, sort_keys=True)
            for some in (plain(dict(inputs)), header.inputs)
        )
        return wanted == recorded

    async def _resume(self, task_id: int, inputs: Mapping[str, Any], shots: Shots = ()) -> Outcome:
        """Resumes a task of an earlier session that `_is_run`, with the inputs and examples that
        were redacted in its file.
        """
        recording = self._recording(task_id)
        if recording is None or recording.header is None:
            redacted = []
        else:
            redacted = recording.header.extra.get("redacted_inputs")
        missing = {name: inputs[name] for name in redacted or () if name in inputs}
        return await self.evaluator.resume(
            task_id,
            missing,
            shots=shots,
            unfinished=self.unfinished,
            repair=self.repair,
        )

    def _recording(self, task_id: int | None) -> Recording | None:
        store = self.evaluator.services.store
        if task_id is None or store is None:
            return None
        try:
            return store.read(task_id)
        except RecordError:
            return None

    # -- judging -----------------------------------------------------------------------------------

    def _scored(
        self,
        work: WorkItem,
        scorer: Scorer,
        outcome: TaskResult,
        judges: _Judges,
    ) -> ScorerInput:
        """What the scorer sees; what it evaluates is added to `judges`."""
        calls = count(1)

        async def evaluate(template: str, inputs: Mapping[str, Any], **options: Any) -> Outcome:
            """A judge's call, recorded as any other; resumed, if an earlier session started it."""
            label = f"{work.identity.value}/{work.judged_by()}/{scorer.name}/{next(calls)}"
            task = self.unrecorded.get(label)
            handler = work.variant.handler
            complete = self.counted.get(label) if task is None else task
            if complete is None:
                ended = None
            else:
                ended = self._ended(complete, template, inputs, None, handler)
            if ended is not None:
                judged = _recorded_outcome(ended)
                if task is None:
                    return _without_use(judged)
            elif task is not None and self._is_run(task, template, inputs, None, handler):
                judged = await self._resume(task, inputs)
            else:
                judged = await self.evaluator.evaluate(
                    template,
                    inputs,
                    labels={_SAMPLE_LABEL: label},
                    epoch=work.epoch + (options.get("repeat", 1) - 1) * EPOCHS_APART,
                    model_roles=self._grader(options.get("model"), work.variant.handler),
                    handler=work.variant.handler,
                )
            if isinstance(judged, TaskError) and _rejection(judged) is not None:
                judges.rejected.append(judged)
                if not isinstance(judged.cause, CallParked):
                    return judged
            if judged.task_id is not None:
                judges.completed[label] = judged.task_id
            judges.interrupted_calls += judged.notes.get("interrupted_calls", 0)
            return judged

        return ScorerInput(
            work.sample,
            outcome,
            recording=lambda: self._recording(outcome.task_id),
            evaluate=evaluate,
        )

    def _grader(self, model: str | None, handler: str | None) -> dict[str, str] | None:
        """The model that judges instead of the usual one; `model` may also be a role that has
        one.
        """
        if model is None:
            return None
        mapped = {**self.evaluator.services.profile(handler).roles, **self.evaluator.model_roles}
        return {GRADER: mapped.get(model, model)}


def earlier_outcome(result: SampleResult, recording: Recording | None) -> Outcome:
    """The outcome in a result's task file; without that file, the part of it in the result."""
    if (
        recording is not None
        and recording.summary is not None
        and recording.summary.result is not None
    ):
        return _recorded_outcome(recording)
    if result.failure is None:
        return TaskResult(
            Status.COMPLETE,
            result.content,
            parsed_content=result.parsed,
            usage=result.usage,
        )
    return replace(error_of(result.failure, result.usage), content=result.content)


def _recorded_outcome(recording: Recording) -> Outcome:
    """The outcome of a run that has ended."""
    summary = recording.summary
    result = {} if summary is None else summary.result
    return replace(outcome_from_dict(result), task_id=TaskId(recording.known_header().task_id))


def _without_use(outcome: Outcome) -> Outcome:
    """An outcome whose calls another result counts."""
    notes = dict(outcome.notes)
    notes.pop("interrupted_calls", None)
    notes.pop("cached_calls", None)
    return replace(outcome, usage=Usage(), notes=notes)


def _rejection(outcome: Outcome) -> str | None:
    """Why the outcome is no result of the task: the limiter rejected a call, or this machine cannot
    continue.
    """
    if isinstance(outcome, TaskError) and isinstance(outcome.cause, (CallRejected, MachineError)):
        return outcome.message
    return None


def sample_label(labels: Mapping[str, Any] | None) -> str:
    """The sample, or its judge, whose task has these labels; "" for any other task."""
    if labels is None:
        label = None
    else:
        label = labels.get(_SAMPLE_LABEL)
    if isinstance(label, str):
        return label
    return ""
