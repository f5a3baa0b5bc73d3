"""Workers that are killed at any moment: every entry ends once, attempts add up, and published files are states."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.patience import with_enough_time

BENCH = Path(__file__).parents[2] / "bench" / "queue_kills.py"


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location("queue_kills", BENCH)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["queue_kills"] = module  # its dataclass looks there
    spec.loader.exec_module(module)
    return module


def test_every_entry_ends_once_although_workers_are_killed(
    bench: ModuleType, tmp_path: Path
) -> None:
    def attempt(latency_s: float) -> Any:
        folder = tmp_path / f"calls of {latency_s} s"
        return bench.killed(folder, 50, processes=3, at_once=2, latency_s=latency_s, kills=4)

    # Workers that have ended cannot be killed.
    found = with_enough_time(attempt, lambda found: found.kills == 4, 0.05)
    assert found.kills == 4 and found.attempts_lost >= 4 and found.files_checked > 1


def test_the_check_notices_a_file_that_mixes_two_states(bench: ModuleType, tmp_path: Path) -> None:
    files: dict[str, dict[str, str]] = {}
    with bench.fill(tmp_path, 2, 2, log=True) as queue:
        bench.read_published(tmp_path, files)
        for _ in range(2):
            queue.skip(queue.list("pending")[0].id)
            queue.publish()
            bench.read_published(tmp_path, files)
    bench.check_files(tmp_path, files)
    first, _, last = files.values()
    mixed = {"T-01": first["T-01"], "T-02": last["T-02"]}
    with pytest.raises(AssertionError, match="mixes two states"):
        bench.check_files(tmp_path, {"mixed": mixed})
