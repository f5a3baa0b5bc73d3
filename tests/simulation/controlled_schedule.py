"""One seed: provider batches that expire, are cancelled, have a deadline, or are not waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from evaluator import Evaluator, EvaluatorError, clock
from evaluator.batch import control_batch
from tests.simulation.batch_schedule import act
from tests.simulation.schedule import Plan, Violation
from tests.simulation.waves_schedule import WavesSchedule

# More than a batch needs whose sessions do not wait, or are cancelled.
SESSIONS = 60
MOST_CANCELS = 3
DEADLINES_S = (None, None, 20.0, 200.0)


class ControlledSchedule(WavesSchedule):
    """Runs a plan with sessions that follow each other until the batch is complete. Calls after the
    deadline are made at once: of these one may be paid and lost with its process.
    """

    def __init__(self, plan: Plan, root: str) -> None:
        super().__init__(plan, root)
        self.world.expires = self.random.choice((0.0, 0.5))
        self.waits = self.random.random() < 0.5
        self.deadline_s = self.random.choice(DEADLINES_S)
        self.cancels = self.random.choice((0, 1, MOST_CANCELS))

    def changes(self) -> int:
        return 2 * super().changes()

    def act(self) -> Callable[[Evaluator], Any]:
        repair = self.is_damaged
        return lambda evaluator: self._sessions(evaluator, repair=repair)

    async def _sessions(self, evaluator: Evaluator, *, repair: bool) -> Any:
        for _ in range(SESSIONS):
            person = asyncio.create_task(self._cancel())
            outcome = await act(
                evaluator,
                self.path,
                repair=repair,
                form=self.plan.form,
                wait=self.waits,
                provider_batch_deadline=self.deadline_s,
            )
            await person
            if outcome.is_complete:
                return outcome
            await clock.sleep(self.random.uniform(1.0, 60.0))
        raise Violation(f"{SESSIONS} sessions do not complete the batch: {outcome.ended}")

    async def _cancel(self) -> None:
        """A person cancels the provider batches, while a session runs or after it."""
        await clock.sleep(self.random.uniform(0.0, 60.0))
        if self.cancels:
            self.cancels -= 1
            with suppress(EvaluatorError):  # not begun yet, or complete
                control_batch(self.path, "cancel", wait_s=0.0)
