"""A store with a clock that tests set."""

from __future__ import annotations

from pathlib import Path

import pytest

from evaluator.queue.store import QueueStore

START = 1_772_960_400.0  # 2026-03-08T09:00:00Z


class Clock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock):
    found = QueueStore(tmp_path / "queue.sqlite", clock=clock)
    yield found
    found.close()
