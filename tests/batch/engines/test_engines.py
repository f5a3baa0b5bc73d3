"""Each engine passes the checks of all engines; the engine of processes passes those of several processes too."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from itertools import islice, zip_longest
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator import MissingExtra, UsageError
from evaluator.batch import SilentProcess, Verdict, WorkResult, make_engine
from evaluator.batch.display import line_of
from evaluator.batch.engines import LocalEngine, pool
from evaluator.batch.engines.base import ConcurrentRun, WatchedEngine, perform_here
from evaluator.batch.progress import Tally
from evaluator.processes.concurrency import TASKS_A_TURN
from tests.batch.engines.engine_checks import (
    CHECKS,
    CONCURRENCY,
    GATHER_CHECKS,
    PROCESS_CHECKS,
    Bench,
    Check,
    a_batch_that_loses_all_processes_fails_and_can_be_resumed,
    killed_processes_lose_nothing,
    serving,
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


@pytest.mark.parametrize("at_once", [1, 64])
def test_short_work_fills_the_whole_concurrency(at_once: int) -> None:
    run = ConcurrentRun(at_once)
    works = iter(range(10 * at_once))
    in_flight: list[int] = []
    done: list[int] = []

    async def next_work(most: int) -> Any:
        return list(islice(works, most))

    async def perform(work: Any) -> Any:
        for _ in range(4):  # turns of the event loop, as an answer that arrives at once takes
            in_flight.append(run.in_flight)
            await asyncio.sleep(0)
        return WorkResult(work, None)

    asyncio.run(
        perform_here(run, perform, next_work, lambda ended: done.append(ended.work))  # type: ignore[arg-type,union-attr]
    )
    assert sorted(done) == list(range(10 * at_once))
    assert max(in_flight) == at_once
    assert sum(in_flight) / len(in_flight) >= at_once / 2
    assert run.in_flight == 0


def test_the_first_works_go_on_before_the_last_of_many_begin() -> None:
    works = iter(range(3 * TASKS_A_TURN))
    begun: list[int] = []
    begun_at_second_step: list[int] = []

    async def next_work(most: int) -> Any:
        return list(islice(works, most))

    async def perform(work: Any) -> Any:
        begun.append(work)
        await asyncio.sleep(0)
        begun_at_second_step.append(len(begun))
        return WorkResult(work, None)

    engine = LocalEngine(10 * TASKS_A_TURN)
    worker: Any = SimpleNamespace(perform=perform)
    asyncio.run(engine.run(worker, next_work, lambda ended: None, lambda: False))
    assert begun == list(range(3 * TASKS_A_TURN))
    assert begun_at_second_step == [
        place * TASKS_A_TURN for place in (1, 2, 3) for _ in range(TASKS_A_TURN)
    ]


def test_a_work_that_ends_as_cancelled_frees_its_place() -> None:
    run = ConcurrentRun(1)
    works = iter(range(3))
    done: list[int] = []

    async def next_work(most: int) -> Any:
        return list(islice(works, most))

    async def perform(work: Any) -> Any:
        if work == 1:
            raise asyncio.CancelledError
        return WorkResult(work, None)

    asyncio.run(
        perform_here(run, perform, next_work, lambda ended: done.append(ended.work))  # type: ignore[arg-type,union-attr]
    )
    assert done == [0, 2]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_local_engine(check: Check, tmp_path: Path) -> None:
    run(check, lambda: LocalEngine(CONCURRENCY), tmp_path)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("check", [*CHECKS, *PROCESS_CHECKS], ids=lambda check: check.__name__)
def test_the_engine_of_processes(check: Check, tmp_path: Path) -> None:
    run(check, lambda: KillableEngine(CONCURRENCY), tmp_path)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("check", GATHER_CHECKS, ids=lambda check: check.__name__)
def test_processes_that_do_not_share_the_folder(check: Check, tmp_path: Path) -> None:
    run(check, lambda: KillableEngine(CONCURRENCY, gather=True), tmp_path)


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


@pytest.mark.timeout(120)
def test_a_stopped_process_is_named_until_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "ASK_S", 0.01)
    monkeypatch.setattr(pool, "SILENT_S", 0.5)
    sleep = asyncio.sleep

    async def check(bench: Bench) -> None:
        engine = bench.engine
        assert isinstance(engine, KillableEngine) and isinstance(engine, WatchedEngine)

        async def sleep_and_look(seconds: float) -> None:
            await sleep(seconds)
            await bench.server.look()

        async def until_silent(*pids: int) -> None:
            await bench.server.until(lambda: [each.pid for each in engine.silent()] == [*pids])

        monkeypatch.setattr(pool.clock, "sleep", sleep_and_look)
        bench.server.hold()
        running = asyncio.ensure_future(bench.run(bench.works(4)))
        await bench.server.until(lambda: bench.server.open == 4)
        await until_silent()  # waiting for a model is no silence
        os.kill(engine.pid(0), signal.SIGSTOP)
        try:
            await until_silent(engine.pid(0))
            [process] = engine.silent()
            assert process.node == "this machine" and process.samples == 2
            bench.server.let_go()
            await bench.server.until(lambda: bench.server.open == 0)
        finally:
            os.kill(engine.pid(0), signal.SIGCONT)
        await running
        assert bench.verdicts == {Verdict.PASSED: 4}

    run(check, lambda: KillableEngine(CONCURRENCY), tmp_path)


def test_a_silent_process_stands_in_the_progress_line() -> None:
    process = SilentProcess(4711, "node\x1b7", silent_s=35.0, samples=12)
    line = line_of(Tally().snapshot(12, silent=(process,)))
    assert line.endswith("no sign of life for 35 s from process 4711 on node\\x1b7 (12 samples)"), (
        line
    )
    assert "no sign of life" not in line_of(Tally().snapshot(12))


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


@given(st.lists(st.integers(0, 20), min_size=1, max_size=6), st.integers(1, 40))
def test_jobs_go_to_the_processes_with_the_fewest(loads: list[int], further: int) -> None:
    loads.sort()
    # What one job after the other to the process with the fewest gives.
    expected = list(loads)
    for _ in range(further):
        expected[expected.index(min(expected))] += 1
    shares = pool.shares_of(loads, further)
    assert min(shares) >= 0 and sum(shares) == further
    given_all = [load + share for load, share in zip_longest(loads, shares, fillvalue=0)]
    assert sorted(given_all) == sorted(expected)
