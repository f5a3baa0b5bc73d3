"""Waiting for a disk without holding the event loop up.

Each file is synced in a thread of its own out of a few, side by side: the file system puts what waits at the
same time into one commit of its own, so that many runs at once cost little more than one.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

from evaluator.record.journal import Journal
from evaluator.record.steps import Summary

THREADS = 32


@lru_cache(maxsize=1)
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(THREADS, thread_name_prefix="evaluator-sync")


async def on_disk(journal: Journal) -> None:
    """Returns when what was flushed is on the disk itself. Raises: RecordError, as `Journal.sync`."""
    await asyncio.get_running_loop().run_in_executor(_threads(), journal.sync)


async def kept(journal: Journal, data: bytes) -> None:
    """`Journal.keep`, in a thread: the bytes may be millions. Raises: RecordError, as it does."""
    await asyncio.get_running_loop().run_in_executor(_threads(), journal.keep, data)


async def closed(journal: Journal, summary: Summary) -> Path:
    """`Journal.close`, with what waits for the disk in a thread."""
    if journal.policy == "off":
        return journal.close(summary)
    return await asyncio.get_running_loop().run_in_executor(_threads(), journal.close, summary)
