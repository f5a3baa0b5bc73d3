"""Evaluates rows: results come in the order of the rows, with bounded concurrency and memory."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from typing import Any

from evaluator.errors import UsageError
from evaluator.errors.messages import type_of
from evaluator.errors.results import Outcome
from evaluator.processes.concurrency import cancel_all, short_tasks

AHEAD = 4
Rows = Iterable[Mapping[str, Any]] | AsyncIterable[Mapping[str, Any]]


def evaluate_rows(
    evaluate: Callable[[Mapping[str, Any]], Awaitable[Outcome]], rows: Rows, concurrency: int
) -> AsyncGenerator[Outcome]:
    """Evaluates at most `concurrency` rows at once; at most AHEAD times as many results wait for an
    earlier row.

    An error of the iterator is raised after the results of the rows before it. A CancelledError or
    GeneratorExit of the iterator is raised as a UsageError, because it would otherwise end the
    caller. An asynchronous generator is closed.

    Raises: UsageError, at once, for a text, a path, a mapping or a frame: iterating over one gives
    no rows.
    """
    _check(rows)
    return _evaluated(evaluate, rows, concurrency=concurrency)


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
    evaluate: Callable[[Mapping[str, Any]], Awaitable[Outcome]], rows: Rows, concurrency: int
) -> AsyncGenerator[Outcome]:
    running = asyncio.Semaphore(concurrency)
    unread = asyncio.Semaphore(AHEAD * concurrency)
    queue: asyncio.Queue[asyncio.Task[Outcome] | BaseException | None] = asyncio.Queue()
    started: set[asyncio.Task[Any] | None] = set()

    async def one(row: Mapping[str, Any]) -> Outcome:
        try:
            return await evaluate(row)
        finally:
            running.release()
            started.discard(asyncio.current_task())

    async def feed() -> None:
        try:
            async with aclosing(_aiter(rows)) as source:
                async for row in source:
                    await unread.acquire()
                    await running.acquire()
                    task = asyncio.ensure_future(one(row))
                    started.add(task)
                    queue.put_nowait(task)
        except BaseException as error:
            # Every exception is caught, because otherwise the consumer would wait forever.
            queue.put_nowait(error)
        else:
            queue.put_nowait(None)

    with short_tasks():
        feeder = asyncio.ensure_future(feed())
        try:
            while (entry := await queue.get()) is not None:
                if isinstance(entry, asyncio.CancelledError | GeneratorExit):
                    raise UsageError(
                        f"the rows' iterator ended with {type(entry).__name__}"
                    ) from entry
                if isinstance(entry, BaseException):
                    raise entry
                outcome = await entry
                unread.release()
                yield outcome
        finally:
            await cancel_all([feeder, *filter(None, started)])


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
