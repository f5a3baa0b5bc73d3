"""What batches with provider batches share: a provider, and no waiting."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from evaluator.batch import submissions, waves
from tests.provider_server import ProviderServer


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(waves, "POLL_S", 0.001)
    monkeypatch.setattr(submissions, "SETTLE_S", 0.0)
    monkeypatch.setattr(submissions, "RETRY_AFTER_S", (0.0, 0.0, 0.0))


@pytest.fixture
def server() -> Iterator[ProviderServer]:
    with ProviderServer() as server:
        yield server
