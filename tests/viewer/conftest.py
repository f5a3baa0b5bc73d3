"""Pages show the same on a busy machine: they wait for what they compute, and nothing grows old."""

from __future__ import annotations

import pytest

from evaluator.viewer.server import progress, queues, state


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "WAIT_S", 120)
    monkeypatch.setattr(progress, "WAIT_S", 120)
    monkeypatch.setattr(queues, "KILL_WAIT_S", 120)
    monkeypatch.setattr(progress, "FRESH_S", 3600)
