"""The RateLimiter passes the conformance suite of CallLimiters."""

from __future__ import annotations

import asyncio

import pytest

from evaluator.limits.rate_limiter import RateLimiter
from tests.limits.limiter_checks import CHECKS, Case, LimiterCheck
from tests.limits.virtual_time import run


async def _run_ready_callbacks() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.parametrize("check", CHECKS, ids=str)
def test_conformance(check: LimiterCheck):
    async def main() -> None:
        tasks = asyncio.all_tasks()
        await check.demand(
            Case(lambda pace, budget: RateLimiter(pace, budget=budget), _run_ready_callbacks)
        )
        for task in asyncio.all_tasks() - tasks:
            task.cancel()

    run(main())
