"""Durable steps: the record is ahead of each effect, and a recorded result replaces a second call.

A `StepLog` joins one open task file (`Journal`) with the steps of an earlier run of the same task
(`recorded_steps`). `begin` is on disk before the caller has its effect; `succeed` and `fail` are on
disk before the result is used. What "on disk" survives is the journal's policy.

Waiting for the disk does not block the event loop: each file is synced in one of a few threads. The
file system combines syncs that wait at the same time into one commit, so that many concurrent runs
cost little more than one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, TypeVarTuple

from evaluator.errors import RecordError, StepChanged
from evaluator.errors.results import TaskId
from evaluator.record.entries import Note
from evaluator.record.journal import Journal, now
from evaluator.record.recorded_steps import RecordedSteps, ResumedSteps
from evaluator.record.steps import (
    STOPPED,
    FixedPart,
    Scrub,
    StepEnd,
    StepKind,
    StepStart,
    Summary,
    abort_reason,
    fingerprint,
)

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

DISK_THREADS = 32
_Args = TypeVarTuple("_Args")


@lru_cache(maxsize=1)
def _disk_threads() -> ThreadPoolExecutor:
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(DISK_THREADS, thread_name_prefix="evaluator-sync")


async def _run_in_disk_thread(call: Callable[[*_Args], object], *args: *_Args) -> None:
    """Waits for the thread also after a cancellation: a journal is for one thread at a time."""
    from evaluator.processes.supervisor import run_to_end

    writing = asyncio.get_running_loop().run_in_executor(_disk_threads(), call, *args)
    try:
        await run_to_end(writing)
    except asyncio.CancelledError:
        writing.exception()  # else asyncio logs it; the journal keeps it
        raise


class StepLog:
    """Steps of one evaluation. Recorded results come first; the other steps run and are appended.

    With `journal` None nothing is written (an evaluation that was asked not to record, or a
    replay). `scrub` removes secrets from what is fingerprinted, as it removes them from what is
    recorded.
    """

    __slots__ = ("_scrub", "earlier", "journal")

    def __init__(
        self,
        journal: Journal | None,
        earlier: RecordedSteps | None = None,
        scrub: Scrub | None = None,
    ) -> None:
        self.journal = journal
        self.earlier = earlier
        self._scrub = scrub
        if earlier is not None and scrub is not None:
            earlier.progress.scrub = scrub

    @property
    def task_id(self) -> TaskId | None:
        """The id of the task file that is written or read; None if it was never written."""
        if self.journal is not None:
            if self.journal.never_began:
                return None
            return TaskId(self.journal.id)
        if self.earlier is None or self.earlier.recording.header is None:
            return None
        return TaskId(self.earlier.recording.header.task_id)

    def fingerprint(self, args: Any, fixed: FixedPart | None = None) -> str:
        """The fingerprint of a step's inputs; empty if nothing is recorded. `fixed` has further
        ones that many steps share.
        """
        if self.journal is None and self.earlier is None:
            return ""
        return fingerprint(args, self._scrub, fixed)

    def recorded(self, path: str, kind: StepKind, fingerprint: str, args: Any) -> StepEnd | None:
        """The recorded end of the step at `path` with the same inputs; None if the step has to run.

        Raises: RecordError, if the evaluation may not continue past it.
        """
        if self.earlier is None:
            return None
        return self.earlier.answer(path, kind, fingerprint, args)

    def end_at(self, path: str) -> StepEnd | None:
        """The end that the record has for the step at `path`."""
        if self.earlier is None:
            return None
        return self.earlier.end_at(path)

    def batch_failure(self, path: str) -> StepEnd | None:
        """Why the provider batch of this run did not answer the call at `path`; None if it did not
        fail there last.
        """
        if self.earlier is None:
            return None
        return self.earlier.batch_failure(path)

    def is_batch_answer(self, path: str) -> bool:
        """Whether the recorded answer of the step at `path` is one of a provider batch, as it was
        received.
        """
        return self.earlier is not None and self.earlier.is_batch_answer(path)

    async def may_repeat(self, path: str) -> bool:
        """Whether a step with a side effect may run, although an earlier run may have had that
        effect already.

        Returns: False for a tool call only: do not run it, and report that it is unknown whether it
        took place.
        Raises: RecordError, if the run is to stop here.
        """
        if not isinstance(self.earlier, ResumedSteps):
            return True
        return await self.earlier.decide(path) == "repeat"

    async def begin(
        self,
        path: str,
        kind: StepKind,
        name: str,
        args: Any,
        fingerprint: str,
        *,
        attempt: int = 1,
        max_attempts: int = 1,
        backoff_s: float | None = None,
        custom_id: str | None = None,
    ) -> int:
        """Writes that a step begins; on disk when this returns. Attempts of an earlier run are
        counted too.

        Raises: RecordError, if it cannot be written; the caller must then not perform the effect.
        """
        earlier = self.earlier
        journal = self.journal
        if earlier is not None:
            earlier.progress.check()
            if not earlier.may_run():
                raise earlier.progress.halt(
                    StepChanged(
                        path, "the record has no such step", recorded=None, now="a new step"
                    )
                )
            before = earlier.attempts(path)
            attempt = attempt + before
            max_attempts = max_attempts + before
        if journal is None:
            return 0
        number = journal.begin(
            StepStart(
                path,
                kind,
                name=name,
                args=args,
                fingerprint=fingerprint,
                attempt=attempt,
                max_attempts=max_attempts,
                backoff_s=backoff_s,
                started=now(),
                custom_id=custom_id,
            )
        )
        try:
            await journal.flush_together()
            if journal.policy == "step":
                await _run_in_disk_thread(journal.sync)
        except RecordError:
            raise
        except BaseException:
            # The effect does not follow.
            with contextlib.suppress(RecordError):
                reason = abort_reason(STOPPED, "the task ended before it was made")
                self.abort(number, "", 0.0, reason)
            raise
        return number

    async def begin_file(self) -> None:
        """Where each step is synced, syncs the header and the name of a new task file, so that the
        step of another task that names it never outlives it. Raises: RecordError, as `begin`.
        """
        if self.journal is not None and self.journal.policy == "step":
            self.journal.flush()
            await _run_in_disk_thread(self.journal.sync)

    async def write_blob(self, data: bytes) -> None:
        """Stores bytes that the end of a step will name by their SHA-256. Raises: RecordError, as
        `begin`.
        """
        from evaluator.record.blobs import write_blob

        if self.journal is not None:
            # In a thread: the bytes may be millions.
            await _run_in_disk_thread(
                partial(write_blob, self.journal.root, data, durable=self.journal.policy != "off")
            )

    def read_blob(self, sha256: str) -> bytes | None:
        """The bytes that were stored; None where they are gone, or nothing is recorded here (a
        replay).
        """
        from evaluator.record.blobs import read_blob

        if self.journal is None:
            return None
        return read_blob(self.journal.root, sha256)

    def succeed(
        self,
        number: int,
        output: Any,
        duration_s: float,
        *,
        usage: Mapping[str, Any] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> Coroutine[Any, Any, None]:
        return self._end(number, StepEnd("success", output, duration_s, None, usage, extra))

    def fail(
        self,
        number: int,
        output: Any,
        duration_s: float,
        error: str,
        *,
        usage: Mapping[str, Any] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> Coroutine[Any, Any, None]:
        """Writes that an attempt failed."""
        return self._end(number, StepEnd("failed", output, duration_s, error, usage, extra))

    def refuse(
        self,
        number: int,
        output: Any,
        duration_s: float,
        reason: str,
        *,
        usage: Mapping[str, Any] | None = None,
    ) -> Coroutine[Any, Any, None]:
        """Writes that a tool call was denied, or that a tool or model call was out of time.

        `output` is what the model is told, or the part of its answer that arrived.
        """
        return self._end(number, StepEnd("aborted", output, duration_s, reason, usage))

    def abort(self, number: int, output: Any, duration_s: float, error: str) -> None:
        """Writes that a step was cut off. Does not wait for the disk: nothing follows that depends
        on it.
        """
        if self.journal is not None:
            self.journal.end(
                number, StepEnd("aborted", output, duration_s, error.removesuffix(": "), None, None)
            )
            self.journal.flush()

    def note(
        self,
        path: str,
        kind: StepKind,
        name: str,
        args: Any,
        output: Any,
        *,
        error: str | None = None,
    ) -> None:
        """Adds a step without an effect (resolve, parse, match), which begins and ends at once, to
        the next flush.
        """
        end = StepEnd("failed" if error else "success", output, 0.0, error, None, None)
        self.add_note(Note(StepStart(path, kind, name, args, ""), end))

    def add_note(self, note: Note) -> None:
        """As `note`, for a note that other tasks may have too."""
        if self.journal is None or self.halted is not None:
            return
        if self.earlier is None or not self.earlier.has_note(note.start.path, note.end.output):
            self.journal.add_note(note)

    async def close(self, summary: Summary) -> None:
        """`Journal.close`; it waits for the disk in a thread. Raises: RecordError, as it does."""
        if self.journal is None:
            return
        self.journal.add_summary(summary)
        try:
            await self.journal.flush_together()
        except (asyncio.CancelledError, GeneratorExit):
            # The task has ended: it is not to end again, as one that was stopped.
            with contextlib.suppress(RecordError):
                self.journal.settle(summary.status)
            raise
        if self.journal.policy == "off":
            self.journal.settle(summary.status)
        else:
            await _run_in_disk_thread(self.journal.settle, summary.status)

    @property
    def halted(self) -> RecordError | None:
        """Why the evaluation may not continue; None while it may."""
        if self.earlier is None:
            return None
        return self.earlier.progress.halted

    async def _end(self, number: int, end: StepEnd) -> None:
        # Written even after the evaluation was halted, because steps that began before may have
        # cost money.
        if self.journal is not None:
            self.journal.end(number, end)
            if self.journal.flush_end() and self.journal.policy == "step":
                await _run_in_disk_thread(self.journal.sync)
