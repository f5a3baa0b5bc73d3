"""The Ray engine on a cluster of two nodes on this machine; first one node is killed, then both.

The cluster takes seconds to start, so that everything that needs it is one test; a failure names its part.
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

from evaluator import ConfigurationError, MissingExtra, UsageError
from evaluator.batch.engines import ClusterLost
from evaluator.batch.scorers import scorer
from evaluator.tools import CallbackAsker
from tests.batch.engines.engine_checks import (
    CHECKS,
    CONCURRENCY,
    PROCESS_CHECKS,
    Bench,
    a_batch_that_loses_all_processes_fails_and_can_be_resumed,
    killed_processes_lose_nothing,
    serving,
    task_files_are_sent_if_the_folder_is_not_shared,
)

ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'evaluator[ray]'")

from evaluator.batch.engines.ray_engine import RayEngine  # noqa: E402

# Engines share the cluster, each with one process on each node.
PARTS_AT_ONCE = 4
# How soon a silent node counts as dead.
QUICKLY = {
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 2000,
    "health_check_failure_threshold": 2,
}


class Nodes:
    """A cluster with a head without CPUs, and two nodes that can be killed."""

    def __init__(self, address: str, cluster: Any, nodes: list[Any]) -> None:
        self.address, self._cluster, self._nodes = address, cluster, nodes

    def kill(self) -> None:
        """Sends SIGKILL to all processes of a node at once, as if its machine were lost."""
        self._kill(self._nodes.pop())

    def kill_head(self) -> None:
        self._kill(self._cluster.head_node)

    @staticmethod
    def _kill(node: Any) -> None:
        for pid in [found for _, process in node.live_processes() for found in family(process.pid)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def family(pid: int) -> list[int]:
    """A process and all its descendants."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents.setdefault(int(stat.read_text().rpartition(")")[2].split()[1]), []).append(
                int(stat.parent.name)
            )
    found = [pid]
    for each in found:
        found += parents.get(each, [])
    return found


@contextmanager
def a_cluster(*, is_connected: bool = True) -> Iterator[Nodes]:
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        logging.getLogger("ray").setLevel(logging.ERROR)
        cluster = Cluster(
            initialize_head=True,
            head_node_args={"num_cpus": 0, "include_dashboard": False, "_system_config": QUICKLY},
        )
        try:
            nodes = [cluster.add_node(num_cpus=PARTS_AT_ONCE, wait=False) for _ in range(2)]
            cluster.wait_for_nodes()
            if is_connected:
                ray.init(address=cluster.address, log_to_driver=False, configure_logging=False)
            yield Nodes(cluster.address, cluster, nodes)
        finally:
            ray.shutdown()
            cluster.shutdown()


PARTS = [*CHECKS, *PROCESS_CHECKS]


@pytest.mark.timeout(900)
def test_the_ray_engine(tmp_path: Path) -> None:
    async def part(check: Any, *more: Any, **options: Any) -> None:
        folder = tmp_path / check.__name__
        folder.mkdir()
        try:
            async with serving() as server:
                await check(
                    Bench(RayEngine(CONCURRENCY, processes=1, **options), server, folder), *more
                )
        except BaseException as error:
            error.add_note(f"in: {check.__name__}")
            raise

    async def run(nodes: Nodes) -> None:
        for at in range(0, len(PARTS), PARTS_AT_ONCE):
            await asyncio.gather(*(part(check) for check in PARTS[at : at + PARTS_AT_ONCE]))
        await part(task_files_are_sent_if_the_folder_is_not_shared, gather=True)
        await part(killed_processes_lose_nothing, nodes.kill, CONCURRENCY // 2)
        await part(a_batch_that_loses_all_processes_fails_and_can_be_resumed, nodes.kill)
        assert ray.is_initialized(), "a cluster that was there is left running"

    with a_cluster() as nodes:
        asyncio.run(run(nodes))


@pytest.mark.timeout(900)
def test_a_dead_head_ends_the_batch_and_not_the_program(tmp_path: Path) -> None:
    async def run(nodes: Nodes) -> None:
        async with serving() as server:
            bench = Bench(
                RayEngine(CONCURRENCY, address=nodes.address, processes=1), server, tmp_path
            )

            is_killed = False

            def on_done(done: Any) -> None:
                nonlocal is_killed
                bench.keep(done)
                # Several results come together.
                if len(bench.done) >= 5 and not is_killed:
                    is_killed = True
                    server.hold()
                    nodes.kill_head()

            with pytest.raises(
                ClusterLost, match=r"the head of the Ray cluster at .* does not answer"
            ):
                await bench.run(bench.works(30), None, on_done)
            assert 5 <= len(bench.done) < 30

    # A connection of its own: the one of this process would have to wait for the head.
    with a_cluster(is_connected=False) as nodes:
        asyncio.run(run(nodes))
        assert not ray.is_initialized()


def test_an_address_where_nothing_listens_is_an_error(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving() as server:
            bench = Bench(RayEngine(1, address="127.0.0.1:1"), server, tmp_path)
            await bench.run(bench.works(1))

    with pytest.raises(
        ConfigurationError, match=r"'127.0.0.1:1' cannot be reached: nothing answers there"
    ):
        asyncio.run(run())


def test_without_ray_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)

    async def run() -> None:
        async with serving() as server:
            await Bench(RayEngine(1), server, tmp_path).run([])

    with pytest.raises(MissingExtra, match=r"pip install 'evaluator\[ray\]'"):
        asyncio.run(run())


def test_an_object_that_cannot_be_sent_is_named_before_a_cluster_is_used(tmp_path: Path) -> None:
    lock = threading.current_thread()

    async def run(**given: Any) -> None:
        async with serving() as server:
            bench = Bench(RayEngine(1, address="127.0.0.1:1"), server, tmp_path, **given)
            await bench.run(bench.works(1))

    with pytest.raises(
        UsageError, match=r"^the scorer bound cannot be sent to another process: .*can be pickled$"
    ):
        asyncio.run(run(scorers=[scorer(name="bound")(lambda output: lock.is_alive())]))
    with pytest.raises(
        UsageError, match=r"^the evaluator's asker cannot be sent to another process"
    ):
        asyncio.run(run(options={"asker": CallbackAsker(lambda _: str(lock.is_alive()))}))
