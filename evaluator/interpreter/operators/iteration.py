"""The iteration that reduce and map share: runs the inner task for each item, one by one or
concurrently.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from typing import Any

from evaluator.errors.results import Outcome, TaskError, TaskResult
from evaluator.interpreter.binding import BoundTask
from evaluator.interpreter.frame import Run
from evaluator.interpreter.operators.outcomes import failed, partial
from evaluator.language.inputs import resolve_setting
from evaluator.nodes import Iteration
from evaluator.processes.concurrency import cancel_all


async def inner_outcomes(
    run: Run, task: Iteration, bound: BoundTask, items: list[Any]
) -> AsyncGenerator[Outcome, None]:
    """The outcome of the inner task for each item, in the order of the items.

    With `concurrency` above 1, at most that many inner tasks run at once, ahead of the requested
    outcome. Closing the generator cancels them.
    """

    async def one(index: int) -> Outcome:
        scope = bound.scope.child({"current_input": items[index], "index": index})
        frame = bound.inside(f"items[{index}]/inner", scope, wants_notes=False)
        return await run.services.evaluate(run, task.inner_task, frame)

    ahead: int = resolve_setting(task, "concurrency", scope=bound.scope)
    if ahead == 1:
        for index in range(len(items)):
            yield await one(index)
        return
    pending: deque[asyncio.Task[Outcome]] = deque()
    started = 0
    try:
        while started < len(items) or pending:
            while started < len(items) and len(pending) < ahead:
                pending.append(asyncio.ensure_future(one(started)))
                started += 1
            yield await pending.popleft()
    finally:
        await cancel_all(pending)


class IterationProgress:
    """What is done of an iteration. An error of the task has it in its details, however the task
    ends.
    """

    def __init__(self, bound: BoundTask, items: list[Any]) -> None:
        self.done: list[TaskResult] = []
        self._prepared = bound
        self._items = items
        self._partials: list[Any] = []
        self._processed: list[int] = []
        bound.details.update(
            total_steps=len(items), partial_results=self._partials, processed_inputs=self._processed
        )
        self._next()

    def add(self, result: TaskResult, **details: Any) -> None:
        """Adds the result of the next item's inner task, after everything about the item is
        done.
        """
        self._prepared.use(result)
        self._processed.append(len(self.done))
        self._partials.append(partial(result, self._prepared))
        self.done.append(result)
        self._prepared.details.update(details)
        self._next()

    def _next(self) -> None:
        index = len(self.done)
        if index < len(self._items):
            self._prepared.details["failed_input"] = {"index": index, "value": self._items[index]}

    def failed(self, error: TaskError, part: str) -> TaskError:
        """The error of the iteration, whose `part` failed with `error` for the next item."""
        what = f"{part} of item {len(self.done) + 1} of {len(self._items)}"
        return failed(error, self._prepared, what=what, failed_part=part)
