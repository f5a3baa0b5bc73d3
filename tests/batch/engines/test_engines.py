"""Each engine passes the checks of all engines; the engine of processes passes those of several processes too."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from evaluator.batch.engines import LocalEngine, make_engine
from evaluator.errors import MissingExtra, UsageError
from tests.batch.engines.engine_checks import (
    CHECKS,
    CONCURRENCY,
    PROCESS_CHECKS,
    Bench,
    Check,
    a_batch_that_loses_all_processes_fails_and_can_be_resumed,
    killed_processes_lose_nothing,
    serving,
    task_files_are_sent_if_the_folder_is_not_shared,
)
from tests.batch.engines.process_engine import KillableEngine


def run(
    check: Callable[..., Any], make: Callable[[], Any], folder: Path, *more: Callable[[Any], Any]
) -> None:
    async def main() -> None:
        async with serving() as server:
            engine = make()
            await check(Bench(engine, server, folder), *(argument(engine) for argument in more))

    asyncio.run(main())


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_local_engine(check: Check, tmp_path: Path) -> None:
    run(check, lambda: LocalEngine(CONCURRENCY), tmp_path)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("check", [*CHECKS, *PROCESS_CHECKS], ids=lambda check: check.__name__)
def test_the_engine_of_processes(check: Check, tmp_path: Path) -> None:
    run(check, lambda: KillableEngine(CONCURRENCY), tmp_path)


@pytest.mark.timeout(300)
def test_processes_that_do_not_share_the_folder(tmp_path: Path) -> None:
    run(
        task_files_are_sent_if_the_folder_is_not_shared,
        lambda: KillableEngine(CONCURRENCY, gather=True),
        tmp_path,
    )


@pytest.mark.timeout(300)
def test_a_killed_process(tmp_path: Path) -> None:
    run(
        killed_processes_lose_nothing,
        lambda: KillableEngine(CONCURRENCY),
        tmp_path,
        lambda engine: engine.lose_one,
        lambda engine: CONCURRENCY // 2,
    )


@pytest.mark.timeout(300)
def test_the_loss_of_all_processes(tmp_path: Path) -> None:
    run(
        a_batch_that_loses_all_processes_fails_and_can_be_resumed,
        lambda: KillableEngine(CONCURRENCY),
        tmp_path,
        lambda engine: engine.lose_all,
    )


def test_an_engine_is_named_or_given(monkeypatch: pytest.MonkeyPatch) -> None:
    own = LocalEngine(3)
    assert make_engine(own, 64) is own
    assert make_engine(None, 64).name == make_engine("local", 64).name == "local"
    assert make_engine("processes", 64, 2).name == "processes"
    with pytest.raises(UsageError, match="expected one of local, processes, ray"):
        make_engine("slurm", 64)
    for engine in (None, "local", own):
        with pytest.raises(
            UsageError, match="workers is the number of processes of the engines processes and ray"
        ):
            make_engine(engine, 64, 2)
    for make in (lambda: make_engine("processes", 0), lambda: make_engine("processes", 1, 0)):
        with pytest.raises(UsageError, match="is 0, expected an integer, at least 1"):
            make()
    monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))
    assert make_engine("ray", 64).name == "ray"
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"pip install 'evaluator\[ray\]'"):
        make_engine("ray", 64)
