"""A running batch is commanded from its page, as `evaluator batch pause` and the others do."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from evaluator import ModelRequest, ModelResponse, SimulatedBackend, run_batch
from evaluator.batch import BatchLimits, open_batch
from evaluator.batch.control import CONTROL
from tests.batch.conftest import QUIZ, ROWS
from tests.conftest import MakeEvaluator
from tests.viewer.site import Answer, Site, visit

LIMITS = BatchLimits(concurrency=2)


class Gated(SimulatedBackend):
    """Answers a call when `gate` lets it through."""

    def __init__(self) -> None:
        super().__init__(script=lambda request: "0")
        self.gate = asyncio.Semaphore(0)

    async def complete(self, request: ModelRequest, *rest: Any, **named: Any) -> ModelResponse:
        await self.gate.acquire()
        return await super().complete(request, *rest, **named)


def running(
    root: Path, make_evaluator: MakeEvaluator, steps: Callable[[Site, str, Gated], Awaitable[None]]
) -> None:
    """Takes `steps` while a batch of ten rows runs, two at once; then ends it."""

    async def whole(site: Site) -> None:
        backend = Gated()
        evaluator = make_evaluator(QUIZ, backend=backend)
        session = asyncio.create_task(
            run_batch("quiz", ROWS[:10], evaluator=evaluator, output=root / "b", limits=LIMITS)
        )
        try:
            found = None
            while found is None or not await is_running(site, found[0]):
                found = re.search(r"/batch/[0-9a-f]+", (await site.get("/batches")).text)
            await steps(site, found[0], backend)
        finally:
            for _ in range(100):
                backend.gate.release()
            await session

    visit(root, whole)


async def is_running(site: Site, href: str) -> bool:
    return (await site.get(href)).data["progress"]["session"] is not None


async def send(site: Site, href: str, action: str, **fields: str) -> Answer:
    """Sends a command from the page; returns the page after it."""
    token = (await site.get(href)).data["control"]["form"]["token"]
    data = {"token": token, "action": action} | fields
    return await site.ask("POST", href, data=data, headers={"Origin": site.address})


def test_a_batch_is_paused_changed_continued_and_stopped_from_its_page(
    tmp_path: Path, make_evaluator: MakeEvaluator
) -> None:
    async def steps(site: Site, href: str, backend: Gated) -> None:
        def commands(page: Answer) -> list[tuple[str, str]]:
            return [(each["text"], each["state"]) for each in page.data["control"]["commands"]]

        paused = await send(site, href, "pause")
        assert commands(paused) == [("pause", "accepted")]
        form = paused.data["control"]["form"]
        assert form["is_paused"] and form["is_running"]
        limits = {
            f"limit.{name}": "" if value is None else str(value) for name, value in form["limits"]
        }
        assert limits["limit.concurrency"] == "2"
        changed = limits | {"limit.concurrency": "3", "limit.max_cost": "20", "confirm": "yes"}
        assert commands(await send(site, href, "set", **changed))[0] == (
            "set concurrency=3 max_cost=20",
            "done",
        )
        skipped = await send(site, href, "skip", sample="r9", confirm="yes")
        assert commands(skipped)[0] == ("skip r9", "accepted")
        assert commands(await send(site, href, "continue"))[0] == ("continue", "done")
        retried = await send(site, href, "retry", error="provider_failure", confirm="yes")
        assert commands(retried)[0][0] == "retry provider_failure"
        stopped = await send(site, href, "stop")
        assert commands(stopped)[0] == ("stop", "done")

    running(tmp_path, make_evaluator, steps)
    manifest = open_batch(tmp_path / "b").manifest
    assert manifest["state"] == "stopped" and manifest["limits"]["concurrency"] == 3


def test_a_command_needs_the_form_and_a_confirmation_and_a_page_sends_none(
    tmp_path: Path, make_evaluator: MakeEvaluator
) -> None:
    async def steps(site: Site, href: str, backend: Gated) -> None:
        for problem, action, fields in (
            ("not of this server", "pause", {"token": "x"}),
            ("was not confirmed", "set", {"limit.max_cost": "9"}),
            ("was not confirmed", "retry", {}),
            ("was not confirmed", "skip", {"sample": "r1"}),
            ("was not confirmed", "explode", {}),
            ("the action is 'explode'", "explode", {"confirm": "yes"}),
            ("the limit speed is unknown", "set", {"limit.speed": "9", "confirm": "yes"}),
            ("max_cost", "set", {"limit.max_cost": "-1", "confirm": "yes"}),
            ("no limit was changed", "set", {"confirm": "yes"}),
            ("the error nonsense", "retry", {"error": "nonsense", "confirm": "yes"}),
            ("skip needs the id", "skip", {"confirm": "yes"}),
        ):
            answer = await send(site, href, action, **fields)
            assert answer.status == 400 and problem in answer.data["message"], problem
        for headers in ({}, {"Origin": "http://evil.example"}):
            assert (await site.ask("POST", href, data={}, headers=headers)).status == 403
        await site.get(f"{href}?action=stop&confirm=yes")
        assert not (tmp_path / "b" / CONTROL).exists()

    running(tmp_path, make_evaluator, steps)
    assert open_batch(tmp_path / "b").manifest["state"] == "complete"

    async def complete(site: Site) -> None:
        found = re.search(r"/batch/[0-9a-f]+", (await site.get("/batches")).text)
        assert found is not None
        assert (await site.get(found[0])).data["control"] is None

    visit(tmp_path, complete)
