"""SQLite on the simulated disk: what it commits survives a loss of power, or does not."""

from __future__ import annotations

import os
import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path
from random import Random
from unittest.mock import patch

import pytest

from evaluator import disk
from evaluator.jobs import queue_tables
from evaluator.jobs.entries import EntryOptions
from evaluator.jobs.queue_store import QueueStore
from tests.simulation.schedule import folder
from tests.simulation.simulated_disk import DISK_FUNCTIONS, Loss, SimulatedDisk
from tests.simulation.simulated_sqlite import on_disk

ENTRIES = 4


def lost_entries(root: str, crash_at: int, how: str) -> int:
    """How many entries were reported as added and are gone after a loss of power."""
    shutil.rmtree(root)
    os.makedirs(root)
    files = SimulatedDisk(root)
    random = Random(crash_at)
    connections: list[sqlite3.Connection] = []
    added = 0

    def close() -> None:
        for connection in connections:
            connection.close()
        connections.clear()
        files.end_process()

    functions = {name: getattr(files, name) for name in DISK_FUNCTIONS}
    with patch.multiple(disk, **functions), on_disk(files, random, connections.append):
        files.begin_process(crash_at, how)
        try:
            store = QueueStore(Path(root) / "queue" / "queue.sqlite")
            for number in range(ENTRIES):
                store.add(f"text {number}", "goal", "unknown", EntryOptions())
                added += 1
            store.close()
        except BaseException:
            assert files.is_dead
        files.life.is_dead = True
        close()
        names = random.choice(("ordered", "folders", "none"))
        files.lose_power(random, Loss(names, random.choice(("prefix", "any", "zero"))))
        files.begin_process(None, "before")
        store = QueueStore(Path(root) / "queue" / "queue.sqlite")
        found = len(store.documents())
        store.close()
        close()
    return max(0, added - found)


@pytest.fixture
def root():
    with folder() as found:
        yield found


def losses(root: str) -> int:
    return sum(
        lost_entries(root, crash_at, how)
        for crash_at in range(1, 150, 6)
        for how in ("before", "half", "after")
    )


def test_an_entry_that_was_added_survives_a_loss_of_power(root):
    assert losses(root) == 0


def test_a_queue_whose_transactions_are_not_synced_loses_entries(root, monkeypatch):
    monkeypatch.setattr(queue_tables, "FORMAT", replace(queue_tables.FORMAT, is_durable=False))
    original = queue_tables.QueueTables.transaction
    monkeypatch.setattr(
        queue_tables.QueueTables,
        "transaction",
        lambda self, kind="IMMEDIATE", *, sync=True: original(self, kind, sync=False),
    )
    assert losses(root) > 0
