"""One server and one forking process for each test process; the counts of the sweep are printed at the end.

These tests wait for events, never for a length of time. Their time-out only ends a test that hangs.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from recovery_harness import Counts, Lab, shared_memory

HANGS_AFTER_S = 900


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.parent == here:
            item.add_marker(pytest.mark.timeout(HANGS_AFTER_S))


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    memory = shared_memory()
    root = memory if memory is not None else tmp_path_factory.mktemp("recovery")
    with (
        tempfile.TemporaryDirectory(prefix="evaluator-recovery-", dir=root) as folder,
        Lab(Path(folder)) as made,
    ):
        yield made


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """The counts of every sweep that ran, and their sum; also where tests ran in several processes."""
    said = [
        value
        for outcome in ("passed", "failed")
        for report in terminalreporter.stats.get(outcome, ())
        for name, value in report.user_properties
        if name == "sweep"
    ]
    if not said:
        return
    total: Counter[str] = Counter()
    terminalreporter.section("crash sweep")
    for counts in sorted(said, key=lambda counts: counts["name"]):
        terminalreporter.line(str(Counts(**counts)))
        total.update({name: value for name, value in counts.items() if name != "name"})
    terminalreporter.line(str(Counts("total", **total)))
