"""Pages show the same on a busy machine: they wait for what they compute, and nothing grows old."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from evaluator.viewer.server import progress, queues, state
from tests.viewer.browser import running, tab
from tests.viewer.report_page import Steps


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "WAIT_S", 120)
    monkeypatch.setattr(progress, "WAIT_S", 120)
    monkeypatch.setattr(queues, "KILL_WAIT_S", 120)
    monkeypatch.setattr(progress, "FRESH_S", 3600)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of one Chromium for all tests of a process; each test opens tabs of its own."""
    with running(tmp_path_factory.mktemp("profile")) as address:
        yield address


@pytest.fixture
def with_page(browser: str) -> Callable[[Steps], Any]:
    """Runs steps in a new tab, and expects that the console says nothing and no address is asked for but files'."""

    def go(steps: Steps) -> Any:
        async def whole() -> Any:
            async with tab(browser) as page:
                found = await steps(page)
                assert page.problems == []
                assert [
                    address for address in page.requests if not address.startswith("file:")
                ] == []
                return found

        return asyncio.run(whole())

    return go
