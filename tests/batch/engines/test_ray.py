"""The engine of a cluster: Ray on this machine, with two nodes to evaluate on, of which first one is killed, then both.

The cluster takes seconds to start, so that all that needs it is one test, whose parts are named where one fails.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from evaluator.batch.engines import LocalEngine
from evaluator.batch.records import Verdict
from evaluator.batch.scorers import scorer
from evaluator.batch.work import Done
from evaluator.errors import MissingExtra, UsageError
from tests.batch.engines.engine_checks import CHECKS, CONCURRENCY, Bench, serving

ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'evaluator[ray]'")

from evaluator.batch.engines.pool import ClusterLost  # noqa: E402
from evaluator.batch.engines.ray_engine import RayEngine  # noqa: E402

# Engines share the cluster, each with one process on each node.
PARTS_AT_ONCE = 4
# How soon a node that says nothing counts as dead.
QUICKLY = {"health_check_period_ms": 500, "health_check_timeout_ms": 2000, "health_check_failure_threshold": 2}


class Nodes:
    """A cluster whose head evaluates nothing, and two nodes that can be killed."""

    def __init__(self, address: str, cluster: Any, nodes: list[Any]) -> None:
        self.address, self._cluster, self._nodes = address, cluster, nodes

    def kill(self) -> None:
        """SIGKILL to all processes of a node at once, as when its machine is gone."""
        node = self._nodes.pop()
        for pid in [found for _, process in node.live_processes() for found in family(process.pid)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def family(pid: int) -> list[int]:
    """A process and all that it has started."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents.setdefault(int(stat.read_text().rpartition(")")[2].split()[1]), []).append(int(stat.parent.name))
    found = [pid]
    for each in found:
        found += parents.get(each, [])
    return found


@contextmanager
def a_cluster() -> Iterator[Nodes]:
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        logging.getLogger("ray").setLevel(logging.ERROR)
        cluster = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, "_system_config": QUICKLY}
        )
        try:
            nodes = [cluster.add_node(num_cpus=PARTS_AT_ONCE, wait=False) for _ in range(2)]
            cluster.wait_for_nodes()
            ray.init(address=cluster.address, log_to_driver=False, configure_logging=False)
            yield Nodes(cluster.address, cluster, nodes)
        finally:
            ray.shutdown()
            cluster.shutdown()


@scorer
def ends_the_process_for_s3(metadata: Any, inputs: Any) -> bool:
    if inputs["question"] == "question 3":
        os._exit(3)
    return True


def ends_the_process_once(place: Path) -> Any:
    @scorer(name="ends_once")
    def ends_once(inputs: Any) -> bool:
        if inputs["question"] == "question 3":
            try:
                (place / "ended").touch(exist_ok=False)
            except FileExistsError:
                return True
            os._exit(3)
        return True

    return ends_once


async def a_sample_that_ends_its_process_each_time_is_an_error(bench: Bench) -> None:
    bench.scorers = [ends_the_process_for_s3]
    await bench.run(bench.works(8))
    assert set(bench.samples.values()) == {1} and len(bench.done) == 8
    assert bench.verdicts == {Verdict.PASSED: 7, Verdict.ERROR: 1}
    [crashed] = [done.result for done in bench.done if done.result and done.result.verdict is Verdict.ERROR]
    assert crashed.sample_id == "s3" and crashed.failure is not None
    assert "ended without a word" in crashed.failure.message
    # What was completed before each of the three ends was not done again.
    assert bench.server.asked["question 3"] == 1 and max(bench.server.asked.values()) <= 3


async def a_process_that_is_lost_gives_its_work_back(bench: Bench) -> None:
    bench.scorers = [ends_the_process_once(bench.folder)]
    bench.template = "twice"
    await bench.run(bench.works(8))
    assert (bench.folder / "ended").exists()
    assert bench.verdicts == {Verdict.PASSED: 8} and set(bench.samples.values()) == {1}
    repeated = sum(times - 1 for times in bench.server.asked.values())
    assert repeated <= CONCURRENCY and bench.server.asked["again: question 3"] == 1


async def task_files_come_home_where_a_folder_is_not_shared(bench: Bench) -> None:
    bench.engine = RayEngine(CONCURRENCY, processes=1, gather=True)
    bench.template = "twice"
    await bench.run(bench.works(12))
    assert bench.verdicts == {Verdict.PASSED: 12}
    tasks = list(bench.store.list())
    assert {task.status for task in tasks} == {"completed"} and len(tasks) == 12
    assert {done.result.task_id for done in bench.done if done.result} == {task.id for task in tasks}
    assert {task.path.stat().st_mode & 0o777 for task in tasks} == {0o600}


def repeated(bench: Bench) -> int:
    return sum(times - 1 for times in bench.server.asked.values())


def answers(bench: Bench) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for done in bench.done:
        assert done.result is not None and done.work.sample.id not in found
        result = done.result
        found[result.sample_id] = result.verdict, result.content, result.scores, result.usage, result.failure
    return found


async def a_node_that_is_killed_loses_nothing(bench: Bench, nodes: Nodes) -> None:
    """All samples have one result, the same as without the death; repeated is what was in flight there at most."""
    bench.template = "twice"
    in_flight = 0

    def on_done(done: Done) -> None:
        nonlocal in_flight
        bench.keep(done)
        if len(bench.done) == 10:
            in_flight = bench.engine.in_flight()
            nodes.kill()

    await bench.run(bench.works(60), None, on_done)
    assert in_flight and set(bench.samples.values()) == {1} and len(bench.done) == 60
    assert repeated(bench) <= CONCURRENCY // 2
    undisturbed = Bench(LocalEngine(CONCURRENCY), bench.server, bench.folder / "local", template="twice")
    undisturbed.folder.mkdir()
    await undisturbed.run(undisturbed.works(60))
    assert answers(bench) == answers(undisturbed)
    # A file without a header is of a task that had done nothing yet.
    assert {task.status for task in bench.store.list() if task.header is not None} == {"completed"}


async def a_batch_whose_nodes_all_die_says_so_and_can_be_gone_on_with(bench: Bench, nodes: Nodes) -> None:
    def on_done(done: Done) -> None:
        bench.keep(done)
        if len(bench.done) == 5:
            bench.server.hold()
            nodes.kill()

    with pytest.raises(ClusterLost, match="no process is left to evaluate on; what was done is kept"):
        await bench.run(bench.works(30), None, on_done)
    assert 5 <= len(bench.done) < 30 and bench.engine.in_flight() == 0
    bench.server.let_go()
    bench.engine = LocalEngine(CONCURRENCY)
    done = set(bench.samples)
    await bench.run([work for work in bench.works(30) if work.sample.id not in done])
    assert bench.verdicts == {Verdict.PASSED: 30} and set(bench.samples.values()) == {1}


PARTS = [
    *CHECKS,
    task_files_come_home_where_a_folder_is_not_shared,
    a_process_that_is_lost_gives_its_work_back,
    a_sample_that_ends_its_process_each_time_is_an_error,
]


@pytest.mark.timeout(150)
def test_the_ray_engine(tmp_path: Path) -> None:
    async def part(check: Any, *more: Any) -> None:
        folder = tmp_path / check.__name__
        folder.mkdir()
        try:
            async with serving() as server:
                await check(Bench(RayEngine(CONCURRENCY, processes=1), server, folder), *more)
        except BaseException as error:
            error.add_note(f"in: {check.__name__}")
            raise

    async def run(nodes: Nodes) -> None:
        for at in range(0, len(PARTS), PARTS_AT_ONCE):
            await asyncio.gather(*(part(check) for check in PARTS[at : at + PARTS_AT_ONCE]))
        await part(a_node_that_is_killed_loses_nothing, nodes)
        await part(a_batch_whose_nodes_all_die_says_so_and_can_be_gone_on_with, nodes)
        assert ray.is_initialized(), "a cluster that was there is left running"

    with a_cluster() as nodes:
        asyncio.run(run(nodes))


def test_without_ray_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)

    async def run() -> None:
        async with serving() as server:
            await Bench(RayEngine(1), server, tmp_path).run([])

    with pytest.raises(MissingExtra, match=r"pip install 'evaluator\[ray\]'"):
        asyncio.run(run())


def test_what_cannot_be_taken_along_is_named_before_a_cluster_is_looked_for(tmp_path: Path) -> None:
    lock = threading.current_thread()

    async def run(**given: Any) -> None:
        async with serving() as server:
            bench = Bench(RayEngine(1, address="127.0.0.1:1"), server, tmp_path, **given)
            await bench.run(bench.works(1))

    with pytest.raises(UsageError, match=r"^the scorer bound cannot be taken to another process: .*can be pickled$"):
        asyncio.run(run(scorers=[scorer(name="bound")(lambda output: lock.is_alive())]))
    with pytest.raises(UsageError, match=r"^the evaluator's asker cannot be taken to another process"):
        asyncio.run(run(options={"asker": lock.is_alive}))
