"""The iteration that reduce and map share: runs the inner task for each item, one by one or concurrently."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from typing import Any

from evaluator.errors.results import TaskError, TaskResult
from evaluator.interpreter.frame import Outcome, Run
from evaluator.interpreter.operators.outcomes import failed, partial
from evaluator.interpreter.prepared import Prepared
from evaluator.language.inputs import resolve_setting
from evaluator.nodes import Iteration


async def inner_outcomes(
    run: Run, task: Iteration, prepared: Prepared, items: list[Any]
) -> AsyncGenerator[Outcome, None]:
    """The outcome of the inner task for each item, in the order of the items.

    With `concurrency` above 1, at most that many inner tasks run at once, ahead of the requested outcome. Closing the
    generator cancels them.
    """

    async def one(index: int) -> Outcome:
        scope = prepared.scope.child({"current_input": items[index], "index": index})
        return await run.services.evaluate(run, task.inner_task, prepared.inside(f"items[{index}]/inner", scope))

    ahead: int = resolve_setting(task, "concurrency", prepared.scope)
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
        for running in pending:
            running.cancel()
        await asyncio.gather(*pending, return_exceptions=True)


def failed_item(
    error: TaskError, prepared: Prepared, items: list[Any], part: str, done: list[TaskResult], **details: Any
) -> TaskError:
    """The error of an iteration whose `part` failed for the first item after `done`."""
    index = len(done)
    return failed(
        error, prepared, f"{part} of item {index + 1} of {len(items)}",
        failed_input={"index": index, "value": items[index]}, failed_part=part,
        processed_inputs=list(range(index)), total_steps=len(items), **details,
        partial_results=[partial(result, prepared) for result in done],
    )  # fmt: skip
