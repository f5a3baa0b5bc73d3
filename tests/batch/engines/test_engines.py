"""Each engine passes the checks that all engines pass."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from evaluator.batch.definition import BatchLimits
from evaluator.batch.engines import LocalEngine, make_engine
from evaluator.errors import UsageError
from tests.batch.engines.engine_checks import CHECKS, CONCURRENCY, Bench, Check, serving


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_local_engine(check: Check, tmp_path: Path) -> None:
    async def run() -> None:
        async with serving() as server:
            await check(Bench(LocalEngine(CONCURRENCY), server, tmp_path))

    asyncio.run(run())


def test_an_engine_is_named_or_given() -> None:
    own = LocalEngine(3)
    assert make_engine(own, BatchLimits()) is own
    assert make_engine(None, BatchLimits()).name == make_engine("local", BatchLimits()).name == "local"
    assert make_engine("ray", BatchLimits()).name == "ray"
    with pytest.raises(UsageError, match="expected local or ray"):
        make_engine("slurm", BatchLimits())
