"""A session with provider batches that is killed at any effect: no call is billed twice, and no paid answer is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.batch.wave_driver import Driver, result, write_project
from tests.provider_server import Fault, ProviderServer

ROWS = 2


@pytest.fixture(scope="module")
def driver() -> Iterator[Driver]:
    with Driver() as driver:
        yield driver


def resume(driver: Driver, folder: Path) -> None:
    """Sessions until one ends by itself."""
    for _ in range(5):
        if driver.session(folder) == 0:
            return
    raise AssertionError((folder / "error.txt").read_text())


def check(server: ProviderServer, folder: Path) -> None:
    found = result(folder)
    assert (found["state"], found["answers"]) == ("complete", {"r0": "1", "r1": "2"})
    assert server.twice == [] and len(server.ledger) == ROWS
    assert server.interactive == []
    assert found["cost"] == pytest.approx(server.billed, rel=1e-9)


@pytest.mark.parametrize("format", ["openai", "anthropic"])
def test_a_session_that_is_killed_at_any_effect_pays_each_call_once(
    driver: Driver, tmp_path: Path, format: str
) -> None:
    # Every second effect for each format; bench/provider_batches.py kills at each one.
    effects = 1
    number = 0
    first = 1 if format == "openai" else 2
    while number < effects:
        folder = tmp_path / str(number)
        with ProviderServer() as server:
            write_project(folder, server.url, format, ROWS)
            if number:
                assert driver.session(folder, kill_at=number) == -9
            resume(driver, folder)
            check(server, folder)
            assert not server.files
        if not number:
            effects = len(result(folder)["effects"])
            assert effects > 10
        number = number + 2 if number else first


@pytest.mark.parametrize("what", ["before", "after", "kill before", "kill after", 503, 504])
@pytest.mark.parametrize("format", ["openai", "anthropic"])
def test_a_batch_whose_creation_has_no_answer_is_created_once(
    driver: Driver, tmp_path: Path, format: str, what: int | str
) -> None:
    with ProviderServer() as server:
        write_project(tmp_path / "p", server.url, format, ROWS)
        server.faults = [Fault("create", what)]
        resume(driver, tmp_path / "p")
        check(server, tmp_path / "p")
        assert server.operations.count("create") == (1 if what in ("after", "kill after") else 2)
