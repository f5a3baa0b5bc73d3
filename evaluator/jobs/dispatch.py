"""Runs one attempt of an entry: chooses a template, evaluates it, verifies the result, and says how
the entry ends.

The strategy of an attempt is a template: the best match that was not tried yet, or the one that the
entry names. The entry's text is data: it is a request in words, never a template's name and never
XML. It has the authority of the evaluator and no more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

from evaluator import clock
from evaluator.errors import EvaluatorError, StepUnfinished, ToolError
from evaluator.errors.messages import cut
from evaluator.errors.results import FailureReason, Outcome, TaskError, TaskResult
from evaluator.interpreter.evaluator import Evaluator
from evaluator.interpreter.frame import ContextItem
from evaluator.interpreter.recovery import OnUnfinished
from evaluator.jobs import entries
from evaluator.jobs.attempt_runs import AttemptRuns, folder_of
from evaluator.jobs.deliverables import (
    ResultToVerify,
    Verifier,
    answer_field,
    delivered_file,
    delivered_items,
    failure_of,
    tools_used,
    write_answer,
)
from evaluator.jobs.entries import (
    INTERRUPTED,
    RELEASED,
    TYPES,
    BegunAttempt,
    EntryType,
    QueueEntry,
    StrategyAttempt,
    timestamp,
)
from evaluator.jobs.queue_store import Claim
from evaluator.lazy_dataclass import frozen
from evaluator.library.matching import LOW_SCORE

CLASSIFIER = "classify"
WORKER = "do_task"
_MAX_RESULT_CHARS = 500
_MAX_DELIVERABLE_CHARS = 2_000
# The template does not exist, or its inputs are wrong.
_SAME_AGAIN: tuple[FailureReason, ...] = ("input_validation_failure", "template_resolution_failure")


class AttemptAborted(Exception):
    """An attempt could not run because of the configuration or the machine: `reason`. The entry is
    not to blame.
    """

    def __init__(self, reason: EvaluatorError) -> None:
        super().__init__(str(reason))
        self.reason = reason


@frozen
class AttemptEnd:
    """How an attempt ends: the entry's next state, and the template that this round need not try
    again.
    """

    change: Callable[[QueueEntry], QueueEntry]
    tried: str | None = None


class Dispatcher:
    """Runs attempts with an evaluator. `ask_model`: a model is asked for the type of an entry that
    is `unknown`, with the template `classify`. `unfinished`: what to do about a side effect of an
    interrupted attempt without a recorded end, see `Evaluator.resume`. Answers are written into
    `folder`. `entry_of` gives the entry with an id: an attempt sees what the entries before it
    delivered.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        folder: Path,
        entry_of: Callable[[str], QueueEntry],
        verifiers: Sequence[Verifier] = (),
        *,
        ask_model: bool = False,
        unfinished: OnUnfinished = "ask",
    ) -> None:
        self._evaluator = evaluator
        self._unfinished: OnUnfinished = unfinished
        self._folder = folder
        self._entry_of = entry_of
        self._verifiers = tuple(verifiers)
        self._ask_model = ask_model

    def choose(self, claim: Claim) -> str | None:
        """The template to try; None if none that fits is left. One whose result was refused, or
        that an earlier round tried, comes last; an attempt that was stopped before its end does not
        count, and one that can be resumed is.
        """
        if claim.attempt is not None:
            return claim.attempt.strategy
        if claim.options.template is not None:
            return claim.options.template
        tried = claim.options.tried
        earlier = {
            attempt.strategy for attempt in claim.entry.strategies_tried if attempt.has_ended
        }
        best = self._best(claim, {*tried, *earlier}) or self._best(claim, set(tried))
        if best is None and WORKER in self._evaluator.library and WORKER not in tried:
            return WORKER
        return best

    def _best(self, claim: Claim, without: set[str]) -> str | None:
        matches = self._evaluator.library.match(_words(claim), limit=1, without=without)
        if matches and matches[0].score >= LOW_SCORE:
            return matches[0].template.name
        return None

    def task_files(self) -> tuple[str, int]:
        """The folder of task files, empty without one, and the highest id in it. Raises:
        RecordError.
        """
        store = self._evaluator.services.store
        return folder_of(store), 0 if store is None else store.last_id()

    async def attempt(self, claim: Claim, strategy: str | None) -> AttemptEnd:
        """Runs the attempt, or what is left of it after an interruption.

        Raises: AttemptAborted, if it could not run at all; CannotResume, if a new attempt has to
        begin in its place.
        """
        begun = claim.attempt
        if strategy is None or begun is None:
            return AttemptEnd(lambda entry: self._nothing_to_try(claim, entry))
        runs = AttemptRuns(
            self._evaluator, claim.entry.id, attempt=begun, unfinished=self._unfinished
        )
        await runs.find_recorded()
        kind = await self._type_of(claim, runs)
        inputs = self._inputs(claim, strategy)
        context = await self._context(claim, strategy)
        outcome = await runs.answer(_words(claim), strategy, inputs, context=context)
        if runs.trouble is not None:
            return self._trouble(claim, begun, outcome=runs.trouble)
        attempt = StrategyAttempt(
            begun.number,
            strategy,
            tool=await tools_used(self._evaluator, outcome),
            attempted_at=begun.began_at,
            result=_result_text(outcome, begun),
        )
        if isinstance(outcome, TaskError):
            if outcome.retryable:
                tried = None
            else:
                tried = strategy
            final = outcome.reason in _SAME_AGAIN and outcome.usage.turns == 0  # no model was asked
            return self._failed(
                claim, kind, attempt=attempt, reason=outcome.message, tried=tried, final=final
            )
        file = None
        failure = None
        try:
            file = await delivered_file(self._evaluator, outcome)
        except ToolError as error:
            failure = (
                f"the file that the answer names as deliverable_path cannot be delivered: {error}"
            )
        result = ResultToVerify(
            claim.entry,
            strategy,
            inputs=inputs,
            outcome=outcome,
            evaluator=self._evaluator,
            evaluate=runs.evaluate,
            file=file,
        )
        failure = failure or _not_done(outcome) or await failure_of(self._verifiers, result)
        if runs.trouble is not None:
            return self._trouble(claim, begun, outcome=runs.trouble)
        if failure is not None:
            failure = _short(failure, _MAX_RESULT_CHARS)
            return self._failed(
                claim,
                kind,
                attempt=replace(attempt, verification_failure=failure),
                reason=failure,
                tried=None,
            )
        answer = write_answer(self._folder, claim.entry.id, outcome)
        path = file or answer
        text = (
            answer_field(outcome, "deliverable") or outcome.notes.get("summary") or outcome.content
        )
        deliverable = _short(str(text), _MAX_DELIVERABLE_CHARS)
        return AttemptEnd(
            lambda entry: entries.complete(
                replace(entry, type=kind),
                attempt,
                timestamp(clock.wall()),
                deliverable=deliverable,
                path=str(path),
            )
        )

    def _trouble(self, claim: Claim, begun: BegunAttempt, outcome: TaskError) -> AttemptEnd:
        """The end of an attempt at a side effect that is in doubt: the attempt stays open.

        Raises: AttemptAborted, for any other trouble.
        """
        cause = outcome.cause
        if not isinstance(cause, StepUnfinished):
            assert isinstance(cause, EvaluatorError)
            raise AttemptAborted(cause)
        where = f"TASK-{outcome.task_id}: "
        entry_id = claim.entry.id
        attempt = begun.stopped(f"{INTERRUPTED}: {where}{cause}")
        if cause.can_tell:
            tell = ", or --unfinished tell, which lets the model know"
        else:
            tell = ""
        store = self._evaluator.services.store
        option = "" if store is None else store.option
        action = (
            f"1. Find out whether it took effect: evaluator tasks show {outcome.task_id}{option}\n"
            f"2. Run: evaluator queue retry {entry_id}, then: evaluator queue work --unfinished "
            f"repeat{tell}; "
            "guidance for the retry begins a new attempt"
        )
        reason = (
            f"an interrupted attempt had a side effect that may have taken place: {where}{cause}"
        )
        return AttemptEnd(
            lambda entry: entries.block(
                entry, timestamp(clock.wall()), reason=reason, action=action, attempt=attempt
            )
        )

    def _inputs(self, claim: Claim, strategy: str) -> dict[str, object]:
        declared = self._declared(strategy)
        told = {name: text for name, text in _told(claim).items() if name in declared}
        return {**told, **claim.options.inputs}

    async def _context(self, claim: Claim, strategy: str) -> tuple[ContextItem, ...]:
        """What the entries before this one delivered, and what the user says and no input takes."""
        declared = self._declared(strategy)
        before = [self._entry_of(needed) for needed in claim.options.needs]
        delivered = await asyncio.to_thread(delivered_items, before, self._folder, self._evaluator)
        told = _told(claim).items()
        return (
            *delivered,
            *(ContextItem(name, text) for name, text in told if name not in declared),
        )

    def _declared(self, strategy: str) -> set[str]:
        """The names of the template's inputs."""
        if strategy not in self._evaluator.library:
            return set()
        node = self._evaluator.library.get(strategy).node
        return {declared.name for declared in getattr(node, "inputs", ())}

    def _failed(
        self,
        claim: Claim,
        kind: EntryType,
        attempt: StrategyAttempt,
        reason: str,
        tried: str | None,
        *,
        final: bool = False,
    ) -> AttemptEnd:
        """`final`: the same template with the same inputs would fail again."""
        options = claim.options
        left = tried is None or (options.template is not None and not final)
        if not left and options.template is None:
            following = replace(
                claim, attempt=None, options=replace(options, tried=(*options.tried, tried or ""))
            )
            left = self.choose(following) is not None
        what = (
            f"attempt {attempt.attempt} with {attempt.strategy!r} failed: "
            f"{_short(reason, _MAX_RESULT_CHARS)}"
        )
        return AttemptEnd(
            lambda entry: entries.fail(
                replace(entry, type=kind),
                attempt,
                timestamp(clock.wall()),
                reason=what,
                action=_action(entry.id),
                final=not left,
            ),
            tried,
        )

    def _nothing_to_try(self, claim: Claim, entry: QueueEntry) -> QueueEntry:
        reason = "no template fits the text"
        if claim.options.tried:
            reason = f"each template that fits was tried: {', '.join(claim.options.tried)}"
        return entries.block(
            entry, timestamp(clock.wall()), reason=reason, action=_action(entry.id)
        )

    async def _type_of(self, claim: Claim, runs: AttemptRuns) -> EntryType:
        """The entry's type; where it is unknown and a model may be asked, the model's answer."""
        kind = claim.entry.type
        if kind != "unknown" or not self._ask_model or CLASSIFIER not in self._evaluator.library:
            return kind
        inputs = {"text": claim.entry.description, "labels": list(TYPES)}
        outcome = await runs.evaluate(CLASSIFIER, inputs)
        if isinstance(outcome, TaskResult):
            label = answer_field(outcome, "label")
            if label in TYPES:
                return label
        return kind


def released(claim: Claim, strategy: str | None, now: str) -> Callable[[QueueEntry], QueueEntry]:
    """The end of an attempt that was stopped with its worker."""
    begun = claim.attempt or BegunAttempt(claim.attempt_number, strategy or "none", began_at=now)
    attempt = begun.stopped(f"{RELEASED}: the worker was stopped before the attempt ended")
    return lambda entry: entries.release(entry, attempt)


def _words(claim: Claim) -> str:
    """The request: the user's text, and what the user added with each retry."""
    return "\n\n".join((claim.entry.description, *claim.options.guidance))


def _told(claim: Claim) -> dict[str, str]:
    """The request and the guidance for it, by the names of the inputs that take them."""
    ended = [attempt for attempt in claim.entry.strategies_tried if attempt.has_ended]
    guidance = list(claim.options.guidance)
    if claim.entry.retries and ended[-1:] and ended[-1].verification_failure is not None:
        guidance.append(f"An earlier result was refused: {ended[-1].verification_failure}")
    told = {"request": claim.entry.description}
    if guidance:
        told["guidance"] = "\n".join(guidance)
    return told


def _not_done(outcome: TaskResult) -> str | None:
    """What an answer with `"done": false` says; None for others."""
    answer = outcome.parsed_data
    if isinstance(answer, dict) and cast("dict[str, object]", answer).get("done") is False:
        return answer_field(outcome, "deliverable") or "the answer says that it is not done"
    return None


def _action(entry: str) -> str:
    return (
        f"1. Look at the attempts: evaluator queue show {entry}\n"
        f'2. Say what to do differently: evaluator queue retry {entry} "…"; or add a template '
        "that fits the text"
    )


def _result_text(outcome: Outcome, begun: BegunAttempt) -> str:
    text = str(outcome) if isinstance(outcome, TaskError) else outcome.content
    text = _short(text, _MAX_RESULT_CHARS)
    if outcome.task_id is not None:
        text = f"TASK-{outcome.task_id}: {text}"
    if not begun.interruptions:
        return text
    if begun.interruptions == 1:
        times = "once"
    else:
        times = f"{begun.interruptions} times"
    return f"{text} (interrupted {times})"


def _short(text: str, limit: int) -> str:
    return cut(text.encode(errors="backslashreplace").decode(), limit)
