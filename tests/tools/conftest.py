"""What the tests of tools share."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from evaluator.files import open_below
from tests.tools.fake_display import Fake
from tests.tools.mcp_play import Client, Play


@pytest.fixture(params=["openat2", "by steps"])
def road(request, monkeypatch):
    """A test runs on both roads: with openat2, and component by component for systems without it."""
    if request.param == "by steps":
        monkeypatch.setattr(open_below, "openat2", lambda: None)
    elif open_below.openat2() is None:
        pytest.skip("this system has no openat2")
    return request.param


@pytest.fixture
def play(tmp_path):
    """Runs a scene with a client and closes its connections; returns the client."""

    def run(scene: Play, mode: str = "", **more: Any) -> Client:
        async def whole() -> Client:
            client = Client(tmp_path, mode, **more)
            try:
                await scene(client)
            finally:
                await client.connections.aclose()
            return client

        return asyncio.run(whole())

    return run


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """The only programs that are found: xdotool and import, which note how they are called."""
    (folder := tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return Fake(folder)
