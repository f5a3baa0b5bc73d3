"""The Pacer is a Gate: it passes the checks that every other passes."""

from __future__ import annotations

import asyncio

import pytest

from evaluator.handler.pacing import Pacer
from tests.handler.gate_checks import CHECKS, Case, GateCheck
from tests.handler.virtual_time import run


async def _turns_of_the_loop() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.parametrize("check", CHECKS, ids=str)
def test_conformance(check: GateCheck):
    async def main() -> None:
        tasks = asyncio.all_tasks()
        await check.demand(Case(lambda pace, budget: Pacer(pace, budget=budget), _turns_of_the_loop))
        for task in asyncio.all_tasks() - tasks:
            task.cancel()

    run(main())
