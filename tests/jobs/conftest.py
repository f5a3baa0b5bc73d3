"""A store, a queue, and a wall clock that tests set."""

from __future__ import annotations

from pathlib import Path

import pytest

from evaluator import clock as clocks
from evaluator.jobs.queue_store import QueueStore
from evaluator.queue import TaskQueue

START = 1_772_960_400.0  # 2026-03-08T09:00:00Z


class Clock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> float:
        return self.now


class Observed:
    """Time that passes for an observer of leases, which looks every few seconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def look_for(self, store: QueueStore, seconds: float) -> list[str]:
        """The entries that are returned within that time."""
        found = [entry.id for entry in store.recover()]
        end = self.now + seconds
        while self.now < end:
            self.now = min(self.now + 5, end)
            found += [entry.id for entry in store.recover()]
        return found


@pytest.fixture
def observed(monkeypatch: pytest.MonkeyPatch) -> Observed:
    monotonic = Observed()
    monkeypatch.setattr(clocks, "monotonic", monotonic)
    return monotonic


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    wall = Clock()
    monkeypatch.setattr(clocks, "wall", wall)
    return wall


@pytest.fixture
def store(tmp_path: Path, clock: Clock):
    found = QueueStore(tmp_path / "queue.sqlite")
    yield found
    found.close()


@pytest.fixture
def queue(tmp_path):
    with TaskQueue(tmp_path / "queue") as found:
        yield found
