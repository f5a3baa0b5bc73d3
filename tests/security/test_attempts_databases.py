"""Attempts with what is in the place of a database: links, pipes, devices, and files of 100 GB without content.

Each program that opens a database refuses them with a message that names the file, waits for nothing, and follows
no link. Its control opens the database as it was made.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from evaluator import (
    EvaluatorError,
    GlobalIndex,
    Message,
    ModelRequest,
    ModelResponse,
    ResponseCache,
)
from evaluator.background import BackgroundStore
from evaluator.jobs.background_store import FILE_NAME as BACKGROUND
from evaluator.jobs.queue_store import QueueStore
from evaluator.models.cache_store import CacheKey
from evaluator.queue import TaskQueue

SPARSE_BYTES = 100 << 30
KEY = CacheKey.of(ModelRequest("m", (Message("user", "q"),)), endpoint="https://a.example", epoch=1)


def queue(folder: Path) -> None:
    with TaskQueue(folder) as found:
        found.add("work")


def background(folder: Path) -> None:
    with BackgroundStore(folder) as store:
        store.list()


def cache(folder: Path) -> None:
    notices: list[str] = []
    found = ResponseCache(folder / "cache.sqlite", notice=notices.append)
    found._open()
    found.put(KEY, ModelResponse("a", "stop"))
    found.close()
    if notices:
        raise EvaluatorError(notices[0])


def memory(folder: Path) -> None:
    with GlobalIndex(folder / "memory.sqlite") as index:
        asyncio.run(index.stats())


def queue_snapshot(folder: Path) -> None:
    with closing(QueueStore(folder / "queue.sqlite", is_snapshot=True)):
        pass


def background_snapshot(folder: Path) -> None:
    with BackgroundStore(folder, is_snapshot=True) as store:
        store.list()


def cache_stats(folder: Path) -> None:
    ResponseCache(folder / "cache.sqlite").stats()


def memory_stats(folder: Path) -> None:
    with GlobalIndex(folder / "memory.sqlite", is_snapshot=True) as index:
        asyncio.run(index.stats())


OPENERS: dict[str, tuple[str, Callable[[Path], None], Callable[[Path], None]]] = {
    # The file, what makes it and opens it for writing, and what only reads it.
    "queue": ("queue.sqlite", queue, queue_snapshot),
    "background": (BACKGROUND, background, background_snapshot),
    "cache": ("cache.sqlite", cache, cache_stats),
    "memory": ("memory.sqlite", memory, memory_stats),
}


def sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, SPARSE_BYTES)


TRAPS: dict[str, Callable[[Path, Path], object]] = {
    "a link to another database": lambda path, other: path.symlink_to(other),
    "a link to nothing": lambda path, other: path.symlink_to(other.parent / "new"),
    "a device": lambda path, other: path.symlink_to("/dev/zero"),
    "a pipe": lambda path, other: os.mkfifo(path),
    "a folder": lambda path, other: path.mkdir(),
    "100 GB": lambda path, other: sparse(path),
}
BESIDE = ("-wal", "-journal", "-shm")


@pytest.mark.parametrize("trap", TRAPS)
@pytest.mark.parametrize("opener", OPENERS)
def test_what_is_in_the_place_of_a_database_is_refused(
    opener: str, trap: str, tmp_path: Path
) -> None:
    name, writes, reads = OPENERS[opener]
    outside, project = tmp_path / "outside", tmp_path / "project"
    for folder in (outside, project):
        folder.mkdir(mode=0o700)
        writes(folder)
        reads(folder)
    path = project / name
    original = path.read_bytes()
    for ending in ("", *BESIDE):
        place = project / f"{name}{ending}"
        place.unlink(missing_ok=True)
        TRAPS[trap](place, outside / name)
        before = {file.name: file.stat() for file in outside.iterdir()}
        for attempt in (writes, reads):
            with pytest.raises(EvaluatorError) as refused:
                attempt(project)
            assert place.name in str(refused.value)
        assert {file.name: file.stat() for file in outside.iterdir()} == before
        if trap == "a folder":
            place.rmdir()
        else:
            place.unlink()
        path.write_bytes(original)
    # The control: without it, the database is opened.
    writes(project)
    reads(project)
