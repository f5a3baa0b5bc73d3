"""The steps of an earlier run, looked up by an evaluation that resumes or replays it.

A step is identified by its path and its fingerprint. `ResumedSteps` returns the results of
completed steps and lets the other steps run. `ReplayedSteps` returns what was recorded, failures
included, and lets nothing run. The first row that fits decides:

| record at the path | resume | resume with `allow_changed` | replay | replay with `past_changes` |
|---|---|---|---|---|
| an answer, same fingerprint | answer | answer | answer | answer |
| no step | runs, unless `edited` | runs | halts | halts |
| last step: other fingerprint | halts | runs | halts | answer before the change, else halts |
| last step: failed, timed out, not run | runs, unless `edited` | runs | the failure | the failure |
| last step: no end, or aborted | runs, unless `edited` | runs | halts | halts |

With `edited` a resume halts there instead. Before a step whose effect is in doubt runs again,
`ResumedSteps.decide` asks what to do; a model call is repeated with a warning.

A step that may not run halts the evaluation with all its subtasks: from then on no step is begun,
so that no later part can mistake the refusal for an answer. Only the ends of steps in flight are
still written.

`interpreter.recovery` uses these to start an evaluation; `step_log` asks them at each step.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, Literal, Self

from evaluator.errors import RecordError, RecordIncomplete, StepChanged, StepUnfinished
from evaluator.lazy_dataclass import dataclass, frozen
from evaluator.record.grammar import content_text
from evaluator.record.journal import IN_FLIGHT
from evaluator.record.steps import (
    CANCELLED,
    DENIED,
    FAILED,
    NEXT,
    NOT_RUN,
    STOPPED,
    TIMEOUT,
    Recording,
    Scrub,
    Step,
    StepEnd,
    StepKind,
)

Unfinished = Literal["repeat", "tell", "stop"]
# Given the task's id and the step.
Decide = Callable[[int, Step], Awaitable[Unfinished]]


@frozen
class ChangedStep:
    """A step whose arguments differ from the recorded ones. `recorded` is None for a step that the
    record lacks.
    """

    path: str
    kind: StepKind
    name: str
    recorded: Any
    now: Any


@dataclass(slots=True)
class SharedRunState:
    """State that a run and its subtasks share: why they halted, their warnings, and how much came
    from the record.

    `reused` counts steps that were answered from the record, `ran` those that were begun.
    `context_warnings` are about files that a task could not read. `changes` are the steps that a
    replay went past.
    """

    scrub: Scrub | None = None
    halted: RecordError | None = None
    warnings: list[str] = field(default_factory=list[str])
    context_warnings: list[str] = field(default_factory=list[str])
    changes: list[ChangedStep] = field(default_factory=list[ChangedStep])
    reused: int = 0
    ran: int = 0

    def check(self) -> None:
        """Raises: RecordError, once the evaluation has halted."""
        if self.halted is not None:
            raise self.halted

    def redact(self, args: Any) -> Any:
        """`args` as a record holds them."""
        if self.scrub is None:
            return args
        return self.scrub.redact_value(args)

    def reuse(self, path: str, end: StepEnd) -> StepEnd:
        """Counts an answer, and warns if a secret was removed from it."""
        self.reused += 1
        output = content_text(end) or end.output
        if isinstance(output, str) and "[redacted:" in output:
            self.warnings.append(
                f"{path}: the recorded answer is used, but a secret was removed from it"
            )
        return end

    def halt(self, error: RecordError) -> RecordError:
        """Stops the evaluation. Returns: `error`, to be raised."""
        self.halted = self.halted or error
        return error


class RecordedSteps:
    """The recording of one task file, by path. Made for one evaluation; `child` gives that of a
    subtask. `repair`: files of subtasks that were damaged are read up to the damage. `trust`: those
    that somebody else wrote are used.
    """

    repair = False
    trust = False

    def __init__(self, recording: Recording, progress: SharedRunState | None = None) -> None:
        self.recording = recording
        self.progress = progress or SharedRunState()
        self._at: dict[str, list[Step]] = {}
        for step in recording.steps:
            self._at.setdefault(step.start.path, []).append(step)

    def answer(self, path: str, kind: StepKind, fingerprint: str, args: Any) -> StepEnd | None:
        """The recorded end of the step at `path`; None if the step has to run.

        Raises: StepChanged, if it may not.
        """
        raise NotImplementedError

    def child(self, recording: Recording) -> Self:
        """The steps in a subtask's own file, under the same rules."""
        raise NotImplementedError

    @property
    def task_id(self) -> int:
        """The id of the task file; 0 where it has none."""
        if self.recording.header is None:
            return 0
        return self.recording.header.task_id

    def may_run(self) -> bool:
        """Whether steps without an answer run."""
        return False

    def attempts(self, path: str) -> int:
        """How many attempts at the step failed: a further one is numbered after them."""
        last = self._last(path)
        if last is None or last.status == "success":
            return 0
        return last.start.attempt

    def step_in_doubt(self, path: str) -> Step | None:
        """The last attempt at `path` that was made, if its effect is unknown: it was in flight, or
        it was cut off.
        """
        return _attempt_in_doubt(self._at.get(path, ()))

    def in_doubt(self) -> list[Step]:
        """The last attempt at each step that was made, if its effect is unknown, in the order of
        the file.
        """
        attempts = map(_attempt_in_doubt, self._at.values())
        return [step for step in attempts if step is not None]

    def open_children(self) -> list[int]:
        """The tasks of subtask steps that have no end."""
        last = (steps[-1] for steps in self._at.values())
        paths = (
            s.start.path
            for s in last
            if s.start.kind == "subtask" and s.status in ("running", "aborted")
        )
        return [number for number in map(self.child_id, paths) if number is not None]

    def interrupted_models(self) -> list[str]:
        """The model of each call that was in flight when a process ended, or was cut off: the call
        may be billed, and its usage is not recorded.
        """
        return [step.start.name for step in self.recording.steps if is_interrupted_call(step)]

    def child_id(self, path: str) -> int | None:
        """The task of the subtask step at `path`."""
        numbers = (step.subtask_id for step in reversed(self._at.get(path, ())))
        return next((number for number in numbers if number is not None), None)

    def end_at(self, path: str) -> StepEnd | None:
        """The end of the last attempt at `path`."""
        last = self._last(path)
        if last is None:
            return None
        return last.end

    def batch_failure(self, path: str) -> StepEnd | None:
        """The end of the last attempt at `path`, if a provider batch had no answer for it. A run
        that has failed as a whole starts again.
        """
        last = self._last(path)
        if last is None or last.end is None or self.recording.status != "interrupted":
            return None
        if last.end.extra is None or NEXT not in last.end.extra:
            return None
        return last.end

    def is_batch_answer(self, path: str) -> bool:
        """Whether a provider batch answered the step at `path`, in a record of this user, and no
        secret was removed from the answer.
        """
        last = self._last(path)
        if last is None or last.start.custom_id is None or self.recording.unsigned is not None:
            return False
        return last.end is not None and "[redacted:" not in str(last.end.output)

    def duration_s(self) -> float:
        """The duration of the recorded run: its summary's, else the sum of its calls and
        scripts.
        """
        if self.recording.summary is not None:
            return self.recording.summary.duration_s
        kinds = ("model", "tool", "script")
        ends = (step.end for step in self.recording.steps if step.start.kind in kinds)
        return sum(end.duration_s for end in ends if end is not None)

    def model_at(self, path: str) -> str | None:
        """The model that the task at `path` called first."""
        last = self._last(f"{path}/turn[1]" if path else "turn[1]")
        if last is None:
            return None
        return last.start.args["model"]

    def has_note(self, path: str, output: Any) -> bool:
        """Whether the step at `path`, which has no effect, is recorded with that output."""
        last = self._last(path)
        return last is not None and last.end is not None and last.end.output == output

    def _last(self, path: str) -> Step | None:
        steps = self._at.get(path)
        if steps:
            return steps[-1]
        return None

    def _find_answer(self, path: str, kind: StepKind, fingerprint: str) -> StepEnd | None:
        """The last end at `path` that another evaluation may use."""
        for step in reversed(self._at.get(path, ())):
            if step.start.fingerprint == fingerprint and step.start.kind == kind and step.is_answer:
                return step.end
        return None


def _attempt_in_doubt(steps: Sequence[Step]) -> Step | None:
    for step in reversed(steps):
        # An attempt that was not made says nothing about the effect of the one before it.
        if step.end is None or step.end.reason_word not in (NOT_RUN, STOPPED):
            return step if _is_in_doubt(step) else None
    return None


def _is_in_doubt(step: Step) -> bool:
    if step.end is not None and step.end.reason_word == DENIED:
        return False
    was_stopped = (
        step.status == "failed" and step.start.kind == "script" and step.end and step.end.output
    )
    return step.status in ("running", "aborted") or bool(was_stopped)


def is_interrupted_call(step: Step) -> bool:
    """Whether a step is a call of a model that was in flight when a process ended, or was cut off:
    it may be billed, and its usage is not recorded.
    """
    start = step.start
    if start.kind != "model" or start.custom_id is not None:
        return False
    if step.end is None:
        return True
    if step.status != "aborted" or step.end.usage is not None:
        return False
    # A timeout of the provider has a text after the word.
    if step.end.error in (IN_FLIGHT, TIMEOUT):
        return True
    return step.end.reason_word in (CANCELLED, FAILED)


class ResumedSteps(RecordedSteps):
    """The steps of a run that is resumed: completed ones are reused, all others run.

    `edited` describes what was changed outside the record (a template), None if nothing was. With
    `allow_changed`, steps whose content differs from the record run again instead of halting the
    run.
    """

    def __init__(
        self,
        recording: Recording,
        decide: Decide,
        *,
        allow_changed: bool = False,
        edited: Callable[[Recording], str | None] = lambda _: None,
        progress: SharedRunState | None = None,
        repair: bool = False,
        trust: bool = False,
    ) -> None:
        super().__init__(recording, progress)
        self.repair = repair
        self.trust = trust
        self._decide = decide
        self._allow_changed = allow_changed
        self._edited_of = edited
        # By identity: with changes allowed a path may hold several answers, and one is used.
        self._used: set[int] = set()
        self._edited = edited(recording)
        found = list(recording.warnings)
        if recording.tail == "torn" and found:
            found[0] += f"; the rest was cut off and saved as active/TASK-{self.task_id}.md.torn-…"
        found += [self._edited] if self._edited else []
        if progress is None:
            where = ""
        else:
            where = f"TASK-{self.task_id}: "
        self.progress.warnings += [f"{where}{warning}" for warning in found]

    def child(self, recording: Recording) -> ResumedSteps:
        return ResumedSteps(
            recording,
            self._decide,
            allow_changed=self._allow_changed,
            edited=self._edited_of,
            progress=self.progress,
            repair=self.repair,
            trust=self.trust,
        )

    def may_run(self) -> bool:
        return True

    def answer(self, path: str, kind: StepKind, fingerprint: str, args: Any) -> StepEnd | None:
        self.progress.check()
        end = self._find_answer(path, kind, fingerprint)
        if end is not None:
            self._used.add(id(end))
            return self.progress.reuse(path, end)
        if not self._allow_changed:
            self._refuse_change(path, fingerprint, args=args)
        if kind == "model" and self.step_in_doubt(path) is not None:
            self.progress.warnings.append(
                f"{path}: this call was in flight when the run was interrupted; it is repeated "
                "and may be billed twice"
            )
        self.progress.ran += 1
        return None

    def _refuse_change(self, path: str, fingerprint: str, args: Any) -> None:
        step = self._last(path)
        if step is not None and step.start.fingerprint != fingerprint:
            raise self.progress.halt(
                changed_error(step, self.progress.redact(args), edited=self._edited)
            )
        if self._edited is not None:
            raise self.progress.halt(
                StepChanged(
                    path,
                    f"{self._edited}. No recorded step differs; this is the first that would run",
                )
            )

    def unused_usage(self) -> list[Mapping[str, Any]]:
        """The usage of recorded calls whose answers were not used, because the calls have
        changed.
        """
        ends = (step.end for step in self.recording.steps if step.start.kind == "model")
        return [
            e.usage
            for e in ends
            if e is not None and e.usage is not None and id(e) not in self._used
        ]

    async def decide(self, path: str) -> Unfinished:
        """The decision about a step with a side effect that may or may not have taken place.

        Raises: StepUnfinished, where it may not be repeated.
        """
        step = self.step_in_doubt(path)
        if step is None:
            return "repeat"
        decision = await self._decide(self.task_id, step)
        if stops_at(step, decision):
            raise self.progress.halt(unfinished_error(step))
        return decision


def stops_at(step: Step, decision: Unfinished) -> bool:
    """Whether a run ends at a step in doubt, also because no model can be informed about it."""
    return decision == "stop" or (decision == "tell" and step.start.kind != "tool")


def unfinished_error(step: Step) -> StepUnfinished:
    """The error that a step may or may not have had its effect."""
    how = "was begun and its end is not recorded"
    if step.end is not None:
        how = "was cut off" + (f" ({step.end.error})" if step.end.error else "")
    return StepUnfinished(
        step.start.path, step.start.name, how=how, can_tell=not stops_at(step, "tell")
    )


def changed_error(step: Step, args: Any, edited: str | None = None) -> StepChanged:
    """The error that a step differs from the recorded one, with the first difference."""
    from evaluator.record.json_difference import first_difference

    found = first_difference(step.start.args, args)
    reason = f"{edited}. " if edited else ""
    if found is None:
        return StepChanged(step.start.path, f"{reason}the step differs from the recorded one")
    return StepChanged(
        step.start.path,
        f"{reason}the step has changed at {found.where}",
        recorded=found.recorded,
        now=found.now,
    )


class ReplayedSteps(RecordedSteps):
    """The steps of a run that is replayed: recorded answers only, failures too.

    The first step that the record does not hold halts the evaluation. With `past_changes` a step
    that has changed gets the answer that was recorded before the change, and is added to
    `progress.changes`.
    """

    def __init__(
        self,
        recording: Recording,
        progress: SharedRunState | None = None,
        *,
        past_changes: bool = False,
    ) -> None:
        super().__init__(recording, progress)
        self._past_changes = past_changes
        self._asked: set[str] = set()

    def child(self, recording: Recording) -> ReplayedSteps:
        return ReplayedSteps(recording, self.progress, past_changes=self._past_changes)

    def answer(self, path: str, kind: StepKind, fingerprint: str, args: Any) -> StepEnd | None:
        self.progress.check()
        self._asked.add(path)
        end = self._find_answer(path, kind, fingerprint)
        if end is None:
            last = self._last(path)
            if last is None:
                raise self._lacks_step(path, kind, args=args)
            if last.start.fingerprint != fingerprint:
                end = self._answer_before_change(last, kind, args=args)
            elif last.end is not None and (
                last.status == "failed" or last.end.reason_word in (TIMEOUT, NOT_RUN)
            ):
                end = last.end
            else:
                raise self.progress.halt(RecordIncomplete(path))
        return self.progress.reuse(path, end)

    def _lacks_step(self, path: str, kind: StepKind, args: Any) -> RecordError:
        if self.recording.header is not None and self.recording.summary is None:
            return self.progress.halt(RecordIncomplete(path))
        if self._past_changes:
            self.progress.changes.append(
                ChangedStep(
                    path, kind, name="a new step", recorded=None, now=self.progress.redact(args)
                )
            )
        return self.progress.halt(
            StepChanged(path, "the record has no such step", recorded=None, now="a new step")
        )

    def _answer_before_change(self, last: Step, kind: StepKind, args: Any) -> StepEnd:
        start = last.start
        now = self.progress.redact(args)
        if self._past_changes:
            self.progress.changes.append(
                ChangedStep(start.path, kind, name=start.name, recorded=start.args, now=now)
            )
            for step in reversed(self._at[start.path]):
                if step.end is not None and step.start.kind == kind and step.is_answer:
                    return step.end
        raise self.progress.halt(changed_error(last, now))

    def unasked(self) -> list[Step]:
        """The recorded steps with an effect that the replay did not reach."""
        return [
            steps[-1]
            for path, steps in self._at.items()
            if path not in self._asked and steps[-1].start.kind in ("model", "tool", "script")
        ]
