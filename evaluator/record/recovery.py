"""What an earlier run recorded, as the answers to the steps of an evaluation that goes on from it or repeats it.

A step is known by its path and its fingerprint. `Resumed` gives what was completed and lets the rest run;
`Replayed` gives what was recorded, also failures, and lets nothing run; `Compared` does so for steps whose
content has changed too, and keeps what differs.

A step that may not be gone on with halts the evaluation with all its subtasks: from then on no step is begun,
so that no later part can take the refusal for an answer. Only the ends of steps in flight are still written.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self, cast

from evaluator.errors import RecordEnds, RecordError, StepChanged, StepUnfinished
from evaluator.record.difference import first_difference
from evaluator.record.grammar import content_text
from evaluator.record.steps import Recording, Scrub, Step, StepEnd, StepKind

Unfinished = Literal["repeat", "tell", "stop"]
# Given the task's id and the step.
Decide = Callable[[int, Step], Awaitable[Unfinished]]


@dataclass(slots=True)
class Progress:
    """What a run and its subtasks share: why they halted, what to warn of, and how far the record went.

    `context_warnings` are those of tasks about files that cannot be read, for a run that halts. `reused` counts steps
    that were answered from the record, `ran` those that were begun anew. `scrub` took secrets out of the record.
    """

    scrub: Scrub | None = None
    halted: RecordError | None = None
    warnings: list[str] = field(default_factory=list[str])
    reused: int = 0
    ran: int = 0
    context_warnings: list[str] = field(default_factory=list[str])

    def check(self) -> None:
        """Raises: RecordError, once the evaluation has halted."""
        if self.halted is not None:
            raise self.halted

    def scrubbed(self, args: Any) -> Any:
        return args if self.scrub is None else self.scrub.redact_value(args)

    def take(self, path: str, end: StepEnd) -> StepEnd:
        """Counts an answer, and warns of one that lacks what was redacted."""
        self.reused += 1
        output = content_text(end) or end.output
        if isinstance(output, str) and "[redacted:" in output:
            self.warnings.append(f"{path}: a secret was taken out of the recorded answer, which is used without it")
        return end

    def halt(self, error: RecordError) -> RecordError:
        self.halted = self.halted or error
        return error


class Earlier:
    """The recording of one task file, by path. Made for one evaluation; `child` gives that of a subtask."""

    def __init__(self, recording: Recording, progress: Progress | None = None) -> None:
        self.recording = recording
        self._is_child = progress is not None
        self.progress = progress or Progress()
        self._at: dict[str, list[Step]] = {}
        for step in recording.steps:
            self._at.setdefault(step.start.path, []).append(step)

    def answer(self, path: str, kind: StepKind, fingerprint: str, args: Any) -> StepEnd | None:
        """How the step at `path` ended; None: it is to run.

        Raises: StepChanged, if it may not.
        """
        raise NotImplementedError

    def child(self, recording: Recording) -> Self:
        """That of a subtask's own file, under the same rules."""
        raise NotImplementedError

    @property
    def task_id(self) -> int:
        """Of the task file; 0 where it does not say."""
        return 0 if self.recording.header is None else self.recording.header.task_id

    def may_run(self) -> bool:
        """Whether steps without an answer run."""
        return False

    def attempts(self, path: str) -> int:
        """How many attempts at the step were made in vain: a further one is numbered after them."""
        steps = self._at.get(path)
        return 0 if not steps or steps[-1].status == "success" else steps[-1].start.attempt

    def unended(self, path: str) -> Step | None:
        """The last attempt at `path`, if nobody knows what it did: it was in flight, or it was cut off."""
        steps = self._at.get(path)
        return steps[-1] if steps and _is_in_doubt(steps[-1]) else None

    def in_doubt(self) -> list[Step]:
        """The last attempt at each step of which nobody knows what it did, in the order of the file."""
        return [steps[-1] for steps in self._at.values() if _is_in_doubt(steps[-1])]

    def open_children(self) -> list[int]:
        """The tasks that subtask steps without an end led to."""
        paths = [path for path, steps in self._at.items() if steps[-1].start.kind == "subtask"]
        found = [self.child_id(path) for path in paths if self._at[path][-1].status in ("running", "aborted")]
        return [number for number in found if number is not None]

    def child_id(self, path: str) -> int | None:
        """The task that a subtask step at `path` led to."""
        for step in reversed(self._at.get(path, ())):
            args = step.start.args
            number = cast("Mapping[str, Any]", args).get("task_id") if isinstance(args, Mapping) else None
            if isinstance(number, int):
                return number
        return None

    def usage_at(self, path: str) -> Mapping[str, Any] | None:
        """What the last attempt at `path` used."""
        steps = self._at.get(path)
        return None if not steps or steps[-1].end is None else steps[-1].end.usage

    def seconds(self) -> float:
        """How long the recorded run took: what its summary says, else what its calls and scripts took together."""
        if self.recording.summary is not None:
            return self.recording.summary.duration_s
        kinds = ("model", "tool", "script")
        ends = (step.end for step in self.recording.steps if step.start.kind in kinds)
        return sum(end.duration_s for end in ends if end is not None)

    def model_at(self, path: str) -> str | None:
        """The model that the task at `path` called first."""
        steps = self._at.get(f"{path}/turn[1]" if path else "turn[1]")
        return steps[-1].start.args["model"] if steps else None

    def has_note(self, path: str, output: Any) -> bool:
        """Whether a step without an effect stands there already, with that output."""
        steps = self._at.get(path)
        return bool(steps) and steps[-1].end is not None and steps[-1].end.output == output

    def _answering(self, path: str, kind: StepKind, fingerprint: str) -> StepEnd | None:
        """The last end at `path` that a later evaluation may take for its own."""
        for step in reversed(self._at.get(path, ())):
            if step.start.fingerprint == fingerprint and _is_answer(step, kind):
                return step.end
        return None


def _is_in_doubt(step: Step) -> bool:
    was_stopped = step.status == "failed" and step.start.kind == "script" and step.end and step.end.output
    return step.status in ("running", "aborted") or bool(was_stopped)


def _is_answer(step: Step, kind: StepKind) -> bool:
    # The error of a tool or subtask is what the model was told, hence an answer; a failed call of a model is none.
    return step.status == "success" or (kind in ("tool", "subtask") and step.status == "failed")


class Resumed(Earlier):
    """What was completed is taken; the first step that was not, and all after it, run.

    `edited` says what was changed outside the record (a template), None if nothing was.
    `allow_changed`: steps whose content is not what was recorded run anew instead of halting the run.
    """

    def __init__(
        self,
        recording: Recording,
        decide: Decide,
        *,
        allow_changed: bool = False,
        edited: Callable[[Recording], str | None] = lambda _: None,
        progress: Progress | None = None,
    ) -> None:
        super().__init__(recording, progress)
        self._decide, self._allow_changed = decide, allow_changed
        self._edited_of = edited
        # By identity: with changes allowed a path may hold several answers, of which one is taken.
        self._taken: set[int] = set()
        self._edited = edited(recording)
        found = list(recording.warnings)
        if recording.tail == "torn" and found:
            found[0] += f"; the rest was cut off, and is kept in active/TASK-{self.task_id}.md.torn-…"
        found += [self._edited] if self._edited else []
        where = f"TASK-{self.task_id}: " if self._is_child else ""
        self.progress.warnings += [f"{where}{warning}" for warning in found]

    def child(self, recording: Recording) -> Resumed:
        return Resumed(
            recording, self._decide, allow_changed=self._allow_changed, edited=self._edited_of, progress=self.progress
        )

    def may_run(self) -> bool:
        return True

    def answer(self, path: str, kind: StepKind, fingerprint: str, args: Any) -> StepEnd | None:
        self.progress.check()
        end = self._answering(path, kind, fingerprint)
        if end is not None:
            self._taken.add(id(end))
            return self.progress.take(path, end)
        steps = self._at.get(path, ())
        if not self._allow_changed:
            self._refuse_change(path, steps[-1] if steps else None, fingerprint, args)
        if kind == "model" and self.unended(path) is not None:
            self.progress.warnings.append(
                f"{path}: this call was in flight when the run was interrupted; it is made again, perhaps billed twice"
            )
        self.progress.ran += 1
        return None

    def _refuse_change(self, path: str, step: Step | None, fingerprint: str, args: Any) -> None:
        if step is not None and step.start.fingerprint != fingerprint:
            raise self.progress.halt(changed(step, self.progress.scrubbed(args), self._edited))
        if self._edited is not None:
            raise self.progress.halt(
                StepChanged(path, f"{self._edited}. No recorded step differs; this is the first that would run")
            )

    def spent_in_vain(self) -> list[Mapping[str, Any]]:
        """What the recorded calls used whose answers were not taken, because they are asked otherwise now."""
        ends = (step.end for step in self.recording.steps if step.start.kind == "model")
        return [e.usage for e in ends if e is not None and e.usage is not None and id(e) not in self._taken]

    async def decide(self, path: str) -> Unfinished:
        """What to do about a step with a side effect of which nobody knows whether it took place.

        Raises: StepUnfinished, where it may not be repeated.
        """
        step = self.unended(path)
        if step is None:
            return "repeat"
        decision = await self._decide(self.task_id, step)
        if stops_at(step, decision):
            raise self.progress.halt(unfinished_error(step))
        return decision


def stops_at(step: Step, decision: Unfinished) -> bool:
    """Whether a run ends at a step in doubt: also where there is no model that could be told."""
    return decision == "stop" or (decision == "tell" and step.start.kind != "tool")


def unfinished_error(step: Step) -> StepUnfinished:
    """The error that a step may have had its effect, or not."""
    how = "was begun and its end is not recorded"
    if step.end is not None:
        how = "was cut off" + (f" ({step.end.error})" if step.end.error else "")
    return StepUnfinished(step.start.path, step.start.name, how, not stops_at(step, "tell"))


def changed(step: Step, args: Any, edited: str | None = None) -> StepChanged:
    """The error that a step is not the recorded one, with the first difference."""
    found = first_difference(step.start.args, args)
    reason = f"{edited}. " if edited else ""
    if found is None:
        return StepChanged(step.start.path, f"{reason}the step is not the one that was recorded")
    return StepChanged(step.start.path, f"{reason}the step has changed at {found.where}", found.recorded, found.now)


class Replayed(Earlier):
    """Recorded answers only, failures too; the first step that the record does not hold halts the evaluation."""

    def __init__(self, recording: Recording, progress: Progress | None = None) -> None:
        super().__init__(recording, progress)
        self._asked: set[str] = set()

    def child(self, recording: Recording) -> Self:
        return type(self)(recording, self.progress)

    def answer(self, path: str, kind: StepKind, fingerprint: str, args: Any) -> StepEnd | None:
        self.progress.check()
        self._asked.add(path)
        end = self._answering(path, kind, fingerprint)
        if end is None:
            end = self._failure(path, fingerprint) or self._other(path, kind, fingerprint, args)
        return self.progress.take(path, end)

    def _failure(self, path: str, fingerprint: str) -> StepEnd | None:
        steps = self._at.get(path)
        last = steps[-1] if steps else None
        return last.end if last and last.status == "failed" and last.start.fingerprint == fingerprint else None

    def _other(self, path: str, kind: StepKind, fingerprint: str, args: Any) -> StepEnd:
        """The answer to a step that the record holds otherwise, or not at all."""
        steps = self._at.get(path)
        if not steps:
            if self.recording.header is not None and self.recording.summary is None:
                raise self.progress.halt(RecordEnds(path))
            self._new(path, kind, self.progress.scrubbed(args))
            raise self.progress.halt(StepChanged(path, "the record has no such step", None, "a new step"))
        if steps[-1].start.fingerprint == fingerprint:
            raise self.progress.halt(RecordEnds(path))
        return self._changed(steps, kind, self.progress.scrubbed(args))

    def _new(self, path: str, kind: StepKind, args: Any) -> None:
        """A step that the record does not hold, which ends the replay."""

    def _changed(self, steps: list[Step], kind: StepKind, args: Any) -> StepEnd:
        raise self.progress.halt(changed(steps[-1], args))

    def unasked(self) -> list[Step]:
        """The steps with an effect that were recorded and not come to again."""
        return [
            steps[-1]
            for path, steps in self._at.items()
            if path not in self._asked and steps[-1].start.kind in ("model", "tool", "script")
        ]


@dataclass(frozen=True, slots=True)
class Change:
    """A step whose content is not what was recorded; `recorded` and `now` are its args, of a new step None and args."""

    path: str
    kind: StepKind
    name: str
    recorded: Any
    now: Any


class Compared(Replayed):
    """A replay that goes on past steps that have changed, with what was answered before the change."""

    def __init__(
        self, recording: Recording, progress: Progress | None = None, changes: list[Change] | None = None
    ) -> None:
        super().__init__(recording, progress)
        self.changes: list[Change] = [] if changes is None else changes

    def child(self, recording: Recording) -> Compared:
        return Compared(recording, self.progress, self.changes)

    def _new(self, path: str, kind: StepKind, args: Any) -> None:
        self.changes.append(Change(path, kind, "a new step", None, args))

    def _changed(self, steps: list[Step], kind: StepKind, args: Any) -> StepEnd:
        last = steps[-1]
        self.changes.append(Change(last.start.path, kind, last.start.name, last.start.args, args))
        for step in reversed(steps):
            if step.end is not None and _is_answer(step, kind):
                return step.end
        raise self.progress.halt(changed(last, args))
