"""Runs coroutines as tasks that end together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import Any


async def run_together(*parts: Awaitable[Any]) -> list[Any]:
    """Returns the results of all. The first error cancels the others and is raised when they have
    ended.
    """
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await cancel_all(tasks)


async def cancel_all(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancels the tasks and returns when they have ended, however they end."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
