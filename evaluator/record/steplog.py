"""Durable steps: the record is ahead of each effect, and a recorded result is taken instead of a second call.

A `StepLog` joins one open task file (`Journal`) with what an earlier run of the same task recorded. `begin`
is on disk before the caller has its effect; `succeed` and `fail` are on disk before the result is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evaluator.record.journal import Journal
from evaluator.record.steps import Recording, StepEnd, StepKind, StepStart, fingerprint


class StepLog:
    """Steps of one evaluation. `recorded` results come first; what they lack runs for real and is appended.

    With `journal` None nothing is written (an evaluation that was asked not to record).
    """

    __slots__ = ("_earlier", "journal")

    def __init__(self, journal: Journal | None, earlier: Recording | None = None) -> None:
        self.journal = journal
        self._earlier = earlier

    def fingerprint(self, args: Any) -> str:
        """What identifies a step's inputs; empty where nothing is recorded."""
        return "" if self.journal is None and self._earlier is None else fingerprint(args)

    def recorded(self, path: str, fingerprint: str) -> StepEnd | None:
        """How the completed step at `path` with the same inputs ended, if an earlier run recorded one."""
        step = None if self._earlier is None else self._earlier.completed(path, fingerprint)
        return None if step is None else step.end

    def begin(
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
        """Writes the intent; on disk when this returns.

        Raises: RecordError, if it cannot be written; then the effect must not be had.
        """
        if self.journal is None:
            return 0
        number = self.journal.begin(StepStart(path, kind, name, args, fingerprint, attempt, max_attempts, backoff_s))
        self.journal.flush()
        return number

    def succeed(self, number: int, output: Any, duration_s: float, *, usage: Mapping[str, Any] | None = None) -> None:
        self._end(number, StepEnd("success", output, duration_s, None, usage, None))

    def fail(self, number: int, output: Any, duration_s: float, error: str) -> None:
        self._end(number, StepEnd("failed", output, duration_s, error, None, None))

    def abort(self, number: int, output: Any, duration_s: float, error: str) -> None:
        self._end(number, StepEnd("aborted", output, duration_s, error, None, None))

    def note(self, path: str, kind: StepKind, name: str, args: Any, output: Any, *, error: str | None = None) -> None:
        """A step without an effect (resolve, parse, match): begun and ended at once, written with the next flush."""
        if self.journal is None:
            return
        number = self.journal.begin(StepStart(path, kind, name, args, ""))
        self.journal.end(number, StepEnd("failed" if error else "success", output, 0.0, error, None, None))

    def _end(self, number: int, end: StepEnd) -> None:
        if self.journal is not None:
            self.journal.end(number, end)
            self.journal.flush()
