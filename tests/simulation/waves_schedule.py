"""One seed: a batch whose calls go into provider batches, faults, and what must hold after each."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from evaluator import ModelRequest, ProviderError, clock
from evaluator.models.chat_wire import request_body
from evaluator.models.provider_batches import BatchAnswer, ProviderBatch, unanswered
from tests.simulation.batch_schedule import BatchSchedule, reference
from tests.simulation.schedule import Plan, Violation
from tests.simulation.workload import MAX_FAULTS, World

# A batch is over so many seconds after it was created.
TAKES_S = (10.0, 100.0)
MAX_REQUESTS = 5


@dataclass(eq=False)
class Job:
    """A provider batch, and what becomes of its requests."""

    batch: ProviderBatch
    answers: list[BatchAnswer]
    ends: float
    status: str = "completed"


class SimulatedBatches:
    """A batch API. A request of its own may be refused, or its answer may be lost; a request in a
    batch may stay unanswered once.
    """

    format = "openai"
    max_requests = MAX_REQUESTS
    max_bytes = 1_000_000

    def __init__(self, world: World) -> None:
        self._world = world

    def request_line(self, custom_id: str, request: ModelRequest) -> bytes:
        body = request_body(request)
        return json.dumps({"custom_id": custom_id, "body": body}).encode() + b"\n"

    async def _answered(self, effect: Callable[[], Any]) -> Any:
        """What `effect` returns, after some time, unless something goes wrong before or after it."""
        world = self._world
        if world.is_dead():
            raise asyncio.CancelledError
        await clock.sleep(world.random.uniform(0.01, 1.0))
        fault = world.random.random()
        if fault < world.faults / 2:
            raise ProviderError("try later", kind="rate_limit", status=429, retryable=True)
        value = effect()
        await clock.sleep(world.random.uniform(0.01, 1.0))
        if fault < world.faults:
            raise ProviderError("cut", kind="connection", retryable=True, maybe_billed=True)
        return value

    async def upload(self, path: Path, tag: str, *, is_repeated: bool) -> str | None:
        return None

    async def create(self, path: Path, upload: str | None, tag: str) -> ProviderBatch:
        return await self._answered(lambda: self._create(path, tag))

    def _create(self, path: Path, tag: str) -> ProviderBatch:
        world = self._world
        lines = [json.loads(line) for line in path.read_bytes().splitlines()]
        now = clock.wall()
        world.created += 1
        number = f"batch-{world.created}"
        batch = ProviderBatch(
            number,
            "in_progress",
            is_over=False,
            tag=tag if world.has_tags else None,
            created=now,
            expires=now + 86_400,
            requests=len(lines),
        )
        answers = [self._answer(line["custom_id"], line["body"]) for line in lines]
        world.random.shuffle(answers)
        ends = clock.monotonic() + world.random.uniform(*TAKES_S)
        world.jobs[number] = Job(batch, answers, ends)
        if world.random.random() < world.expires:
            self._cut(world.jobs[number], "expired")
        return batch

    def _cut(self, job: Job, status: str) -> None:
        """Takes the answers to some requests of a batch, which are not billed then."""
        world = self._world
        job.status = status
        for place in range(world.random.randint(0, len(job.answers)), len(job.answers)):
            answer = job.answers[place]
            if answer.response is None:
                continue
            digest = answer.response.model.removeprefix("ANS-")
            if world.failed[digest] < MAX_FAULTS:
                world.failed[digest] += 1
                world.billed[digest] -= 1
                job.answers[place] = BatchAnswer(answer.custom_id, error=unanswered(status))

    def _seen(self, number: str) -> ProviderBatch:
        job = self._world.jobs.get(number)
        if job is None:
            raise ProviderError(f"no {number}", kind="not_found", status=404)
        # `monotonic` of each process begins anew.
        job.ends = min(job.ends, clock.monotonic() + TAKES_S[1])
        if not job.batch.is_over and clock.monotonic() >= job.ends:
            job.batch = replace(job.batch, status=job.status, is_over=True)
        return job.batch

    def _answer(self, custom_id: str, body: dict[str, Any]) -> BatchAnswer:
        world = self._world
        digest = world.note_sent(body)
        if world.random.random() < world.faults and world.failed[digest] < MAX_FAULTS:
            world.failed[digest] += 1
            return BatchAnswer(custom_id, error=unanswered("expired"))
        world.bill(digest)
        return BatchAnswer(custom_id, response=world.reply(body, digest))

    async def listed(self) -> AsyncIterator[ProviderBatch]:
        batches = await self._answered(lambda: [*map(self._seen, reversed(self._world.jobs))])
        for batch in batches:
            yield batch

    async def look(self, batch: str) -> ProviderBatch:
        return await self._answered(lambda: self._seen(batch))

    async def answers(self, batch: ProviderBatch) -> AsyncIterator[BatchAnswer]:
        for answer in await self._answered(lambda: self._world.jobs[batch.id].answers):
            yield answer

    async def cancel(self, batch: str) -> None:
        await self._answered(lambda: self._cancel(batch))

    def _cancel(self, number: str) -> None:
        if self._seen(number).is_over:
            raise ProviderError(f"{number} is over", kind="bad_request", status=409)
        self._cut(self._world.jobs[number], "cancelled")

    async def clean_up(self, batch: ProviderBatch, upload: str | None) -> None:
        await self._answered(lambda: self._world.jobs.pop(batch.id, None))

    async def aclose(self) -> None:
        pass


class WavesSchedule(BatchSchedule):
    """Runs a plan with provider batches. What is paid in one is never paid again, whatever happens."""

    def __init__(self, plan: Plan, root: str) -> None:
        super().__init__(plan, root)
        self.world.has_tags = self.random.random() < 0.5

    def is_recorded(self, answer: str, promised: set[str]) -> bool:
        # What was collected stays, also where the records of its samples do not.
        return answer in promised or any(
            answer in path.read_text() for path in self.path.glob("provider/answers-*.jsonl")
        )

    def check_nothing_again(self, billed: Counter[str], effects: Counter[str]) -> None:
        allowed = reference(self.plan.sync, self.plan.form)[3]
        # A call that is made at once may be billed and lost, once with each process.
        lost = self.number + bool(self.plan.provider_faults)
        twice = [
            key
            for key, count in self.world.billed.items()
            if count > allowed[key] + min(lost, self.world.at_once[key])
        ]
        if twice:
            raise Violation(f"paid twice by process {self.number}: {twice}")
