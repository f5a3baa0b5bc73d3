"""The plain form of a batch: rows in, results out in the same order, bounded in concurrency and memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import Any

from evaluator.interpreter.frame import Outcome

AHEAD = 4
Rows = Iterable[Mapping[str, Any]] | AsyncIterable[Mapping[str, Any]]


async def evaluate_rows(
    evaluate: Callable[[Mapping[str, Any]], Awaitable[Outcome]], rows: Rows, concurrency: int
) -> AsyncIterator[Outcome]:
    """At most `concurrency` rows run at once; at most AHEAD times as many results wait for an earlier row.

    What iterating over `rows` raises is raised here, after the results of the rows before it.
    """
    running = asyncio.Semaphore(concurrency)
    unread = asyncio.Semaphore(AHEAD * concurrency)
    queue: asyncio.Queue[asyncio.Task[Outcome] | BaseException | None] = asyncio.Queue()
    started: set[asyncio.Task[Outcome]] = set()

    async def one(row: Mapping[str, Any]) -> Outcome:
        try:
            return await evaluate(row)
        finally:
            running.release()

    async def feed() -> None:
        try:
            async for row in _aiter(rows):
                await unread.acquire()
                await running.acquire()
                task = asyncio.ensure_future(one(row))
                started.add(task)
                task.add_done_callback(started.discard)
                queue.put_nowait(task)
        except Exception as error:
            queue.put_nowait(error)
        else:
            queue.put_nowait(None)

    feeder = asyncio.ensure_future(feed())
    try:
        while (entry := await queue.get()) is not None:
            if isinstance(entry, BaseException):
                raise entry
            outcome = await entry
            unread.release()
            yield outcome
    finally:
        feeder.cancel()
        for task in started:
            task.cancel()
        await asyncio.gather(feeder, *started, return_exceptions=True)


async def _aiter(rows: Rows) -> AsyncIterator[Mapping[str, Any]]:
    if isinstance(rows, AsyncIterable):
        async for row in rows:
            yield row
    else:
        for row in rows:
            yield row
