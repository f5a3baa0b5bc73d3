"""Evaluates rows: results come in the order of the rows, with bounded concurrency and memory."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from typing import Any

from evaluator.errors import UsageError
from evaluator.errors.messages import type_of
from evaluator.errors.results import Outcome
from evaluator.processes.concurrency import TASKS_A_TURN, cancel_all, short_tasks

AHEAD = 4
Rows = Iterable[Mapping[str, Any]] | AsyncIterable[Mapping[str, Any]]


def evaluate_rows(
    evaluate: Callable[[Mapping[str, Any]], Awaitable[Outcome]],
    rows: Rows,
    concurrency: int,
    at_end: Callable[[], None],
) -> AsyncGenerator[Outcome]:
    """Evaluates at most `concurrency` rows at once; at most AHEAD times as many results wait for an
    earlier row.

    An error of the iterator is raised after the results of the rows before it. A CancelledError or
    GeneratorExit of the iterator is raised as a UsageError, because it would otherwise end the
    caller. An asynchronous generator is closed. `at_end` is called when all evaluations have ended.

    Raises: UsageError, at once, for a text, a path, a mapping or a frame: iterating over one gives
    no rows.
    """
    _check(rows)
    return _evaluated(evaluate, rows, concurrency=concurrency, at_end=at_end)


def _check(rows: Any) -> None:
    is_frame = hasattr(rows, "columns") and hasattr(rows, "shape")
    if is_frame or isinstance(rows, str | bytes | bytearray | os.PathLike | Mapping):
        raise UsageError(
            f"rows is {type_of(rows)}, expected an iterable that gives a mapping of names to "
            "values for each "
            "row; run_batch takes files and frames"
        )
    if not isinstance(rows, Iterable | AsyncIterable):
        raise UsageError(
            f"rows is {type_of(rows)}, expected an iterable that gives a mapping for each row"
        )


async def _evaluated(
    evaluate: Callable[[Mapping[str, Any]], Awaitable[Outcome]],
    rows: Rows,
    concurrency: int,
    at_end: Callable[[], None],
) -> AsyncGenerator[Outcome]:
    running = 0
    unread = 0
    is_over = False
    has_room = asyncio.Event()
    has_entry = asyncio.Event()
    entries: deque[asyncio.Task[Outcome] | BaseException | None] = deque()
    started: dict[int, asyncio.Task[Any]] = {}
    # `asyncio.create_task` looks for the loop again for each row.
    create_task = asyncio.get_running_loop().create_task

    async def one(row: Mapping[str, Any], number: int) -> Outcome:
        nonlocal running
        try:
            return await evaluate(row)
        finally:
            running -= 1
            has_room.set()
            started.pop(number, None)

    def add(entry: asyncio.Task[Outcome] | BaseException | None) -> None:
        entries.append(entry)
        has_entry.set()

    async def feed() -> None:
        nonlocal running, unread
        number = 0
        try:
            async with aclosing(_aiter(rows)) as source:
                async for row in source:
                    if is_over:  # the rows' iterator caught the cancellation
                        return
                    while running >= concurrency or unread >= AHEAD * concurrency:
                        has_room.clear()
                        await has_room.wait()
                    running += 1
                    unread += 1
                    number += 1
                    task = create_task(one(row, number))
                    if not task.done():  # an eager task may have ended
                        started[number] = task
                    add(task)
                    if number % TASKS_A_TURN == 0:
                        await asyncio.sleep(0)
        except BaseException as error:
            # Every exception is caught, because otherwise the consumer would wait forever.
            add(error)
        else:
            add(None)

    with short_tasks(concurrency):
        feeder = create_task(feed())
        try:
            while True:
                while not entries:
                    has_entry.clear()
                    await has_entry.wait()
                entry = entries.popleft()
                if entry is None:
                    return
                if isinstance(entry, BaseException):
                    raise _raised_by_rows(entry)
                outcome = await entry
                unread -= 1
                has_room.set()
                yield outcome
        finally:
            is_over = True
            try:
                await cancel_all([feeder, *started.values()])
            finally:
                at_end()


def _raised_by_rows(error: BaseException) -> BaseException:
    """What the consumer gets instead of an error of the rows' iterator."""
    if not isinstance(error, asyncio.CancelledError | GeneratorExit):
        return error
    ended = UsageError(f"the rows' iterator ended with {type(error).__name__}")
    ended.__cause__ = error
    return ended


async def _aiter(rows: Rows) -> AsyncGenerator[Mapping[str, Any]]:
    if isinstance(rows, AsyncGenerator):
        async with aclosing(rows):
            async for row in rows:
                yield row
    elif isinstance(rows, AsyncIterable):
        async for row in rows:
            yield row
    else:
        for row in rows:
            yield row
