"""Works on a queue in one process: several entries at once, each under a lease that is renewed
while it runs. A worker that is cancelled releases its entries. A worker whose lease is lost stops
the attempt and changes nothing.

An attempt chooses a template, evaluates it, verifies the result, and says how the entry ends. Its
strategy is a template: the best match that was not tried yet, or the one that the entry names. The
entry's text is data: it is a request in words, never a template's name and never XML. It has the
authority of the evaluator and no more.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any, cast

from evaluator import clock
from evaluator.errors import EvaluatorError, StepUnfinished, ToolError
from evaluator.errors.messages import cut
from evaluator.errors.results import FailureReason, Outcome, TaskError, TaskResult
from evaluator.handler.backends import is_simulated_model
from evaluator.interpreter.evaluator import Evaluator
from evaluator.interpreter.frame import ContextItem
from evaluator.interpreter.recovery import OnUnfinished
from evaluator.jobs import deliverables, entries
from evaluator.jobs.attempt_runs import AttemptRuns, CannotResume, folder_of
from evaluator.jobs.deliverables import ResultToVerify, Verifier, answer_field
from evaluator.jobs.entries import (
    INTERRUPTED,
    RELEASED,
    BegunAttempt,
    EntryStatus,
    EntryType,
    QueueEntry,
    StrategyAttempt,
)
from evaluator.jobs.queue_store import Claim, QueueStore, now
from evaluator.lazy_dataclass import dataclass, frozen
from evaluator.library.matching import LOW_SCORE
from evaluator.processes.concurrency import run_together
from evaluator.store import leases

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
        verifiers: Sequence[Verifier],
        *,
        ask_model: bool,
        unfinished: OnUnfinished,
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
        inputs, context = await self._inputs_and_context(claim, strategy)
        outcome = await runs.answer(_words(claim), strategy, inputs, context=context)
        if runs.trouble is not None:
            return self._trouble(claim, begun, outcome=runs.trouble)
        attempt = StrategyAttempt(
            begun.number,
            strategy,
            tool=await deliverables.tools_used(self._evaluator, outcome),
            attempted_at=begun.began_at,
            result=_result_text(outcome, begun),
        )
        if isinstance(outcome, TaskError):
            tried = None if outcome.retryable else strategy
            final = outcome.reason in _SAME_AGAIN and outcome.usage.turns == 0  # no model was asked
            return self._failed(
                claim, kind, attempt=attempt, reason=outcome.message, tried=tried, final=final
            )
        file, failure = await self._verify(claim, runs, strategy, inputs=inputs, outcome=outcome)
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
        return self._completed(claim, kind, attempt=attempt, outcome=outcome, file=file)

    async def _inputs_and_context(
        self, claim: Claim, strategy: str
    ) -> tuple[dict[str, Any], tuple[ContextItem, ...]]:
        """The inputs of the template, and what its run sees beside them: what the entries before
        this one delivered, and what the user says and no input takes.
        """
        declared = self._declared(strategy)
        told = _told(claim)
        inputs = {name: text for name, text in told.items() if name in declared}
        inputs |= claim.options.inputs
        before = [self._entry_of(needed) for needed in claim.options.needs]
        delivered = await asyncio.to_thread(
            deliverables.delivered_items, before, self._folder, self._evaluator
        )
        others = (ContextItem(name, text) for name, text in told.items() if name not in declared)
        return inputs, (*delivered, *others)

    async def _verify(
        self,
        claim: Claim,
        runs: AttemptRuns,
        strategy: str,
        *,
        inputs: dict[str, Any],
        outcome: TaskResult,
    ) -> tuple[Path | None, str | None]:
        """The file that a result delivers, and why the result is refused; None if it has no file,
        or is accepted.
        """
        try:
            file = await deliverables.delivered_file(self._evaluator, outcome)
        except ToolError as error:
            return None, (
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
        failure = _not_done(outcome) or await deliverables.failure_of(self._verifiers, result)
        return file, failure

    def _completed(
        self,
        claim: Claim,
        kind: EntryType,
        attempt: StrategyAttempt,
        *,
        outcome: TaskResult,
        file: Path | None,
    ) -> AttemptEnd:
        """The end of an attempt whose result was accepted; its answer is written."""
        answer = deliverables.write_answer(self._folder, claim.entry.id, outcome)
        path = file or answer
        text = (
            answer_field(outcome, "deliverable") or outcome.notes.get("summary") or outcome.content
        )
        deliverable = _short(str(text), _MAX_DELIVERABLE_CHARS)
        return AttemptEnd(
            lambda entry: entries.complete(
                replace(entry, type=kind),
                attempt,
                now(),
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
        tell = ", or --unfinished tell, which lets the model know" if cause.can_tell else ""
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
            lambda entry: entries.block(entry, now(), reason=reason, action=action, attempt=attempt)
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
                now(),
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
        return entries.block(entry, now(), reason=reason, action=_action(entry.id))

    async def _type_of(self, claim: Claim, runs: AttemptRuns) -> EntryType:
        """The entry's type; where it is unknown and a model may be asked, the model's answer."""
        kind = claim.entry.type
        if kind != "unknown" or not self._ask_model or CLASSIFIER not in self._evaluator.library:
            return kind
        inputs = {"text": claim.entry.description, "labels": list(entries.TYPES)}
        outcome = await runs.evaluate(CLASSIFIER, inputs)
        if isinstance(outcome, TaskResult):
            label = answer_field(outcome, "label")
            if label in entries.TYPES:
                return label
        return kind


def _released(claim: Claim, strategy: str | None) -> Callable[[QueueEntry], QueueEntry]:
    """The end of an attempt that was stopped with its worker."""
    begun = claim.attempt or BegunAttempt(claim.attempt_number, strategy or "none", began_at=now())
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
    if any(map(is_simulated_model, outcome.notes.get("models", ()))):
        text = f"{text} (simulated)"
    match begun.interruptions:
        case 0:
            return text
        case 1:
            return f"{text} (interrupted once)"
        case times:
            return f"{text} (interrupted {times} times)"


def _short(text: str, limit: int) -> str:
    return cut(text.encode(errors="backslashreplace").decode(), limit)


LEASE_S = 60.0
_POLL_S = 0.3


@dataclass(slots=True)
class WorkSummary:
    """What a worker did: the attempts that ended, by the state that followed; `lost` ended under
    another worker's lease.
    """

    ended: dict[EntryStatus, int] = field(default_factory=dict[EntryStatus, int])
    lost: int = 0

    def count(self, entry: QueueEntry | None) -> None:
        """Counts the end of an attempt."""
        if entry is None:
            self.lost += 1
        else:
            self.ended[entry.status] = self.ended.get(entry.status, 0) + 1


class QueueWorker:
    """Runs entries of a store. `on_start` and `on_end` get each entry when an attempt begins and
    when it has ended; `before_claim` is called before each look for work.
    """

    def __init__(
        self,
        store: QueueStore,
        dispatcher: Dispatcher,
        *,
        before_claim: Callable[[], None],
        on_start: Callable[[QueueEntry], None],
        on_end: Callable[[QueueEntry], None],
        lease_s: float,
    ) -> None:
        self._store = store
        self._dispatcher = dispatcher
        self._before_claim = before_claim
        self._on_start = on_start
        self._on_end = on_end
        self._lease_s = lease_s
        self._has_ended = asyncio.Event()
        self.summary = WorkSummary()

    async def run(self, workers: int, *, until_empty: bool) -> WorkSummary:
        """Works with `workers` entries at once, until it is cancelled.

        `until_empty`: until no entry runs and none could: those left wait for a time, for the user,
        or for an entry that is not done.

        Raises: EvaluatorError, if an attempt cannot run because of the configuration or the
        machine.
        """
        await run_together(*(self._serve(until_empty) for _ in range(workers)))
        return self.summary

    async def _serve(self, until_empty: bool) -> None:
        while True:
            self._before_claim()
            claim = self._store.claim(self._lease_s)
            if claim is not None:
                self._on_start(claim.entry)
                await self._work_on(claim)
            elif until_empty and self._store.is_idle():
                return
            else:
                # Until an entry of this process ends, or for a moment, because other processes
                # change the queue too.
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._has_ended.wait(), _POLL_S)
                self._has_ended.clear()

    async def _work_on(self, claim: Claim) -> None:
        """Runs an attempt of the entry. In place of one that cannot be resumed, a new one begins at
        once.
        """
        while True:
            try:
                return self._count(await self._attempt(claim))
            except CannotResume as error:
                following = self._store.give_up_attempt(claim, str(error))
                if following is None:
                    return self._count(None)
                claim = following

    async def _attempt(self, claim: Claim) -> QueueEntry | None:
        """The entry after an attempt; None if the lease is lost. Raises: CannotResume."""
        strategy = self._dispatcher.choose(claim)
        try:
            if strategy is not None:
                begun = self._store.begin_attempt(claim, strategy, *self._dispatcher.task_files())
                if begun is None:
                    return None
                claim = begun
            return await self._run(claim, strategy)
        except CannotResume:
            raise
        except BaseException as error:
            self._store.end(claim, _released(claim, strategy))
            if isinstance(error, AttemptAborted):
                raise error.reason from error
            raise

    async def _run(self, claim: Claim, strategy: str | None) -> QueueEntry | None:
        """Runs the attempt while its lease is renewed; None if the lease is lost."""
        attempt = asyncio.create_task(self._dispatcher.attempt(claim, strategy))
        beat = asyncio.create_task(self._keep_lease(claim, attempt))
        try:
            end = await attempt
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if beat.done() and not (task and task.cancelling()):
                return None  # `beat` cancelled the attempt, because the lease is lost
            raise
        finally:
            beat.cancel()
        return self._store.end(claim, end.change, tried=end.tried)

    async def _keep_lease(self, claim: Claim, attempt: asyncio.Task[AttemptEnd]) -> None:
        while True:
            await clock.sleep(self._lease_s / leases.BEATS)
            if not self._store.extend(claim, self._lease_s):
                attempt.cancel()
                return

    def _count(self, entry: QueueEntry | None) -> None:
        self.summary.count(entry)
        self._has_ended.set()
        if entry is not None:
            self._on_end(entry)
