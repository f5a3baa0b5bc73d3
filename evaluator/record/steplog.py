"""Durable steps: the record is ahead of each effect, and a recorded result is taken instead of a second call.

A `StepLog` joins one open task file (`Journal`) with what an earlier run of the same task recorded
(`recovery`). `begin` is on disk before the caller has its effect; `succeed` and `fail` are on disk before the
result is used. What "on disk" survives is the journal's policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evaluator.errors import RecordError, StepChanged
from evaluator.record.journal import Journal
from evaluator.record.recovery import Earlier, Resumed
from evaluator.record.steps import Scrub, StepEnd, StepKind, StepStart, fingerprint
from evaluator.record.waiting import kept, on_disk


class StepLog:
    """Steps of one evaluation. Recorded results come first; what they lack runs for real and is appended.

    With `journal` None nothing is written (an evaluation that was asked not to record, or a replay). `scrub`
    takes secrets out of what is fingerprinted, since it takes them out of what is recorded.
    """

    __slots__ = ("_scrub", "earlier", "journal")

    def __init__(self, journal: Journal | None, earlier: Earlier | None = None, scrub: Scrub | None = None) -> None:
        self.journal = journal
        self.earlier = earlier
        self._scrub = scrub

    def fingerprint(self, args: Any) -> str:
        """What identifies a step's inputs; empty where nothing is recorded."""
        if self.journal is None and self.earlier is None:
            return ""
        return fingerprint(args, self._scrub)

    def recorded(self, path: str, kind: StepKind, fingerprint: str, args: Any) -> StepEnd | None:
        """How the step at `path` with the same inputs ended, if it need not, or may not, run.

        Raises: RecordError, if the evaluation may not go on past it.
        """
        return None if self.earlier is None else self.earlier.answer(path, kind, fingerprint, args)

    def spent_at(self, path: str) -> Mapping[str, Any] | None:
        """What the step at `path` used when it was recorded, where the record says so."""
        return None if self.earlier is None else self.earlier.usage_at(path)

    async def may_repeat(self, path: str) -> bool:
        """Whether a step with a side effect may run, although an earlier run may have had that effect already.

        Returns: False for a tool call only: do not run it, and say that nobody knows whether it took place.
        Raises: RecordError, if the run is to stop here.
        """
        if not isinstance(self.earlier, Resumed):
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
    ) -> int:
        """Writes the intent; on disk when this returns. Attempts of an earlier run are counted along.

        Raises: RecordError, if it cannot be written; then the effect must not be had.
        """
        earlier, journal = self.earlier, self.journal
        if earlier is not None:
            earlier.progress.check()
            if not earlier.may_run():
                raise earlier.progress.halt(StepChanged(path, "the record has no such step", None, "a new step"))
            before = earlier.attempts(path)
            attempt, max_attempts = attempt + before, max_attempts + before
        if journal is None:
            return 0
        number = journal.begin(StepStart(path, kind, name, args, fingerprint, attempt, max_attempts, backoff_s))
        await self._flush(journal)
        return number

    async def keep(self, data: bytes) -> None:
        """Keeps bytes that the end of a step will name by their SHA-256. Raises: RecordError, as `begin`."""
        if self.journal is not None:
            await kept(self.journal, data)

    def kept(self, sha256: str) -> bytes | None:
        """What was kept; None where it is not there any more, or nothing is recorded here (a replay)."""
        return None if self.journal is None else self.journal.kept(sha256)

    async def succeed(
        self,
        number: int,
        output: Any,
        duration_s: float,
        *,
        usage: Mapping[str, Any] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        await self._end(number, StepEnd("success", output, duration_s, None, usage, extra))

    async def fail(
        self, number: int, output: Any, duration_s: float, error: str, *, usage: Mapping[str, Any] | None = None
    ) -> None:
        await self._end(number, StepEnd("failed", output, duration_s, error, usage, None))

    def abort(self, number: int, output: Any, duration_s: float, error: str) -> None:
        """Writes that a step was cut off. Does not wait for the disk: nothing follows that depends on it."""
        if self.journal is not None:
            self.journal.end(number, StepEnd("aborted", output, duration_s, error.removesuffix(": "), None, None))
            self.journal.flush()

    def note(self, path: str, kind: StepKind, name: str, args: Any, output: Any, *, error: str | None = None) -> None:
        """A step without an effect (resolve, parse, match): begun and ended at once, written with the next flush."""
        if self.journal is None or self.halted is not None:
            return
        if self.earlier is not None and self.earlier.has_note(path, output):
            return
        end = StepEnd("failed" if error else "success", output, 0.0, error, None, None)
        self.journal.note(StepStart(path, kind, name, args, ""), end)

    async def _end(self, number: int, end: StepEnd) -> None:
        # Also of an evaluation that was halted meanwhile: what was begun before was paid for.
        if self.journal is not None:
            self.journal.end(number, end)
            await self._flush(self.journal)

    @property
    def halted(self) -> RecordError | None:
        """Why the evaluation may not go on; None while it may."""
        return None if self.earlier is None else self.earlier.progress.halted

    async def _flush(self, journal: Journal) -> None:
        journal.flush()
        if journal.policy == "step":
            await on_disk(journal)
