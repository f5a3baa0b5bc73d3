"""The evaluations of one attempt: each has a task file, and one that an interrupted worker has left
is resumed.

The labels of a task file name its entry, its attempt, and the call of the attempt: `answer`, or the
fingerprint of what a check evaluates. So a worker that takes up an interrupted attempt finds what
was recorded, and pays for no call twice.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from evaluator.errors import ConfigurationError, MachineError, RecordError, StepUnfinished
from evaluator.errors.results import Outcome, TaskError, TaskId
from evaluator.interpreter.evaluator import Evaluator
from evaluator.interpreter.frame import DEFAULT_MAX_DEPTH, ContextItem
from evaluator.interpreter.recovery import OnUnfinished, trusts_foreign
from evaluator.interpreter.requests import recorded_context
from evaluator.interpreter.runs import recorded_outcome
from evaluator.jobs.entries import BegunAttempt
from evaluator.language.scopes import plain
from evaluator.record.steps import Header, fingerprint
from evaluator.record.store import TaskStore

ENTRY_LABEL = "queue_entry"
ATTEMPT_LABEL = "queue_attempt"
RUN_LABEL = "queue_run"
_ANSWER = "answer"
# These stop the worker: each further entry would fail in the same way.
_NOT_OF_THE_ENTRY = (ConfigurationError, MachineError, RecordError)


class CannotResume(Exception):
    """An interrupted attempt cannot be resumed, for the reason in the message; a new one has to
    begin.
    """


class AttemptRuns:
    """Evaluates for one attempt of an entry. `unfinished`: as for `Evaluator.resume`.

    `trouble` is the first outcome that is not the fault of the entry: of a wrong configuration, of
    the machine, or of a side effect that is in doubt.
    """

    def __init__(
        self, evaluator: Evaluator, entry: str, attempt: BegunAttempt, unfinished: OnUnfinished
    ) -> None:
        self._evaluator = evaluator
        self._attempt = attempt
        self._unfinished: OnUnfinished = unfinished
        self._labels = {ENTRY_LABEL: entry, ATTEMPT_LABEL: str(attempt.number)}
        self._recorded: dict[str, int] = {}
        self._equal_calls = Counter[str]()
        self.trouble: TaskError | None = None

    async def find_recorded(self) -> None:
        """Finds the task files that an interrupted worker has left. Raises: CannotResume, if they
        are elsewhere.
        """
        if not self._attempt.interruptions:
            return
        store = self._evaluator.services.store
        folder = self._attempt.tasks
        if not folder:
            raise CannotResume("its calls were not recorded")
        if store is None or folder != folder_of(store):
            raise CannotResume(f"its task files are in {folder}")
        self._recorded = await asyncio.to_thread(self._look, store)

    async def answer(
        self,
        words: str,
        template: str,
        inputs: Mapping[str, Any],
        *,
        context: Sequence[ContextItem] = (),
    ) -> Outcome:
        """As `Evaluator.evaluate_words`. Raises: CannotResume."""
        return await self._run(
            _ANSWER,
            (words, inputs),
            options={"context": recorded_context(context)},
            begin=lambda labels: self._evaluator.evaluate_words(
                words,
                template,
                inputs,
                context=[(item.source, item.content) for item in context],
                labels=labels,
            ),
        )

    async def evaluate(
        self,
        template: str,
        inputs: Mapping[str, Any],
        *,
        model_roles: Mapping[str, str] | None = None,
        epoch: int = 1,
    ) -> Outcome:
        """As `Evaluator.evaluate`, for a check of the result. What cannot be resumed begins
        again.
        """
        inputs = cast("dict[str, Any]", plain(dict(inputs), "inputs"))
        options = {"model_roles": dict(model_roles or {}), "epoch": epoch}
        scrub = self._evaluator.services.redactor
        call = fingerprint({"template": template, "inputs": inputs, **options}, scrub)[:16]
        self._equal_calls[call] += 1
        call += f"/{self._equal_calls[call]}"

        def begin(labels: Mapping[str, str]) -> Awaitable[Outcome]:
            return self._evaluator.evaluate(
                template, inputs, labels=labels, model_roles=model_roles, epoch=epoch
            )

        try:
            return await self._run(call, (template, inputs), options=options, begin=begin)
        except CannotResume:
            self._recorded.pop(self._label(call), None)
            return await self._run(call, (template, inputs), options=options, begin=begin)

    def _look(self, store: TaskStore) -> dict[str, int]:
        """The newest task file of each call."""
        found: dict[str, int] = {}
        for task in store.list():
            if task.id <= self._attempt.after:
                break
            labels = {} if task.header is None else task.header.extra.get("labels") or {}
            label = labels.get(RUN_LABEL)
            if isinstance(label, str) and label.startswith(f"{self._attempt.key}/"):
                found.setdefault(label, task.id)
        return found

    def _label(self, call: str) -> str:
        return f"{self._attempt.key}/{call}"

    async def _run(
        self,
        call: str,
        request: tuple[str, Mapping[str, Any]],
        options: Mapping[str, Any],
        begin: Callable[[Mapping[str, str]], Awaitable[Outcome]],
    ) -> Outcome:
        task = self._recorded.get(self._label(call))
        if task is None:
            outcome = await begin({**self._labels, RUN_LABEL: self._label(call)})
        else:
            outcome = await self._resumed(task, *request, options)
        if isinstance(outcome, TaskError) and isinstance(outcome.cause, _NOT_OF_THE_ENTRY):
            self.trouble = self.trouble or outcome
        return outcome

    async def _resumed(
        self, task: int, words: str, inputs: Mapping[str, Any], options: Mapping[str, Any]
    ) -> Outcome:
        store = self._evaluator.services.store
        assert store is not None
        try:
            recording = await asyncio.to_thread(store.read, task)
            header = recording.known_header()
            changed = self._changed(header, words, inputs=inputs, options=options)
            if changed:
                raise CannotResume(f"TASK-{task} was begun with another {', '.join(changed)}")
            if recording.status == "failed":
                recording.check_signed(trusts_foreign(self._evaluator.services))
                failed = recorded_outcome(recording)
                if not (isinstance(failed, TaskError) and failed.reason == "execution_halted"):
                    return replace(failed, task_id=TaskId(task))
        except RecordError as error:
            raise CannotResume(f"TASK-{task}: {error}") from error
        redacted = {
            name: inputs[name] for name in header.extra.get("redacted_inputs", ()) if name in inputs
        }
        outcome = await self._evaluator.resume(task, redacted, unfinished=self._unfinished)
        if isinstance(outcome, TaskError):
            cause = outcome.cause
        else:
            cause = None
        if isinstance(cause, RecordError) and not isinstance(cause, (MachineError, StepUnfinished)):
            raise CannotResume(f"TASK-{task}: {cause}")
        return outcome

    def _changed(
        self, header: Header, words: str, inputs: Mapping[str, Any], options: Mapping[str, Any]
    ) -> list[str]:
        """What a new run would do otherwise than the run with this header, apart from its templates
        and profile.
        """
        evaluator = self._evaluator
        was = header.extra
        services = evaluator.services
        given = evaluator.init_args["handler"]
        pairs: dict[str, tuple[Any, Any]] = {
            "text": (header.request, words),
            "input": (header.inputs, dict(inputs)),
            "context": (was.get("context") or [], options.get("context", [])),
            "model": (header.model, evaluator.model),
            "handler": (
                was.get("handler"),
                None if given is None else services.default_profile.name,
            ),
            "model role": (
                was.get("model_roles") or {},
                {**evaluator.model_roles, **options.get("model_roles", {})},
            ),
            "epoch": (was.get("epoch", 1), options.get("epoch", 1)),
            "root": (was.get("root"), str(services.root)),
            "depth": (was.get("max_depth", DEFAULT_MAX_DEPTH), services.max_depth),
            "setting of reparse": (bool(was.get("reparse")), services.reparse),
        }
        # A record holds no secrets.
        return [
            name
            for name, (recorded, now) in pairs.items()
            if fingerprint(recorded) != fingerprint(now, services.redactor)
        ]


def folder_of(store: TaskStore | None) -> str:
    """The absolute path of a folder of task files; empty without one."""
    if store is None:
        return ""
    return os.path.abspath(store.root)
