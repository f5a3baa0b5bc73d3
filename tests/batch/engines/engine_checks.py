"""What every engine guarantees, as checks: `local`, `ray` and any other pass all of them."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from evaluator import Evaluator, TemplateLibrary
from evaluator.batch.engines import Engine
from evaluator.batch.identity import Cell, Identity
from evaluator.batch.records import Sample, Verdict
from evaluator.batch.scorers import make_scorers
from evaluator.batch.session import unrecorded_tasks
from evaluator.batch.work import Done, Variant, Work, Worker
from evaluator.handler.config import HandlerConfig
from evaluator.handler.pacing import BatchBudget, Pace, Pacer
from evaluator.record.store import TaskStore

TEMPLATES = (
    '<library><task name="ask" type="atomic"><description>Ask</description>'
    '<inputs><input name="question" type="string" required="true">it</input></inputs>'
    "<instructions>{{ question }}</instructions></task>"
    '<task name="twice" type="sequential"><description>Ask and ask again</description>'
    '<inputs><input name="question" type="string" required="true">it</input></inputs><steps>'
    '<task type="atomic" name="first"><description>First</description><instructions>{{ question }}</instructions></task>'
    '<task type="atomic" name="last"><description>Last</description>'
    "<instructions>again: {{ question }}</instructions></task></steps></task></library>"
)
CONCURRENCY = 6


class Server:
    """Chat completions in this loop; answers a prompt with itself. `hold` keeps answers back until `let_go`."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.open = self.most_open = 0
        self.url = ""
        self._changed = asyncio.Condition()
        self._may_answer = asyncio.Event()
        self._may_answer.set()

    def hold(self) -> None:
        self._may_answer.clear()

    def let_go(self) -> None:
        self._may_answer.set()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Returns when `holds` does, which is asked after each change."""
        async with self._changed:
            await self._changed.wait_for(holds)

    async def answer(self, request: web.Request) -> web.Response:
        body = await request.json()
        prompt = body["messages"][-1]["content"]
        self.asked[prompt] += 1
        await self._count(1)
        try:
            await self._may_answer.wait()
        finally:
            await self._count(-1)
        return web.json_response(
            {
                "id": "x", "object": "chat.completion", "created": 1, "model": "m",
                "choices": [
                    {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": prompt}}
                ],
                "usage": {"prompt_tokens": 5, "completion_tokens": 5, "total_tokens": 10},
            }
        )  # fmt: skip

    async def _count(self, change: int) -> None:
        self.open += change
        self.most_open = max(self.most_open, self.open)
        async with self._changed:
            self._changed.notify_all()


@asynccontextmanager
async def serving() -> AsyncIterator[Server]:
    server = Server()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", server.answer)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    try:
        yield server
    finally:
        server.let_go()
        await runner.cleanup()


@dataclass(slots=True)
class Bench:
    """A worker that asks `server`, works for it, and an engine that runs them. What is handed in is kept."""

    engine: Engine
    server: Server
    folder: Path
    pacer: Pacer = field(default_factory=lambda: Pacer(Pace.fixed(64)))
    scorers: list[Any] = field(default_factory=lambda: ["exact"])
    template: str = "ask"
    done: list[Done] = field(default_factory=list[Done])
    threads: set[int] = field(default_factory=set[int])
    unrecorded: dict[str, int] = field(default_factory=dict[str, int])
    is_stopping: bool = False
    options: dict[str, Any] = field(default_factory=dict[str, Any])

    @asynccontextmanager
    async def worker(self) -> AsyncIterator[Worker]:
        library = TemplateLibrary.load(self._templates(), shipped=False)
        profile = HandlerConfig(
            name="test", backend="openai_compatible", base_url=self.server.url, model="m", max_output_tokens=20,
            backoff_s=(),
        )  # fmt: skip
        evaluator = Evaluator(library, profile, tasks_dir=None, roots=[self.folder], profiles={}, **self.options)
        async with evaluator.behind(self.pacer, self.folder / "tasks") as own:
            refused = lambda: None if self.pacer.refused is None else str(self.pacer.refused)  # noqa: E731
            yield Worker(
                own, make_scorers(self.scorers), self.pacer, refused, (), self.unrecorded, "repeat",
            )  # fmt: skip

    def _templates(self) -> Path:
        path = self.folder / "templates.xml"
        path.write_text(TEMPLATES, encoding="utf-8")
        return path

    @property
    def store(self) -> TaskStore:
        return TaskStore(self.folder / "tasks")

    def works(self, number: int) -> list[Work]:
        return [self.work(n) for n in range(number)]

    def work(self, number: int) -> Work:
        question = f"question {number}"
        answer = f"again: {question}" if self.template == "twice" else question
        sample = Sample(f"s{number}", {"question": question}, answer, {}, number)
        return Work(
            sample, 1, Cell(self.template, "default", "t", "h", False), Variant("default"),
            Identity(f"key-{number}", f"identity-{number}", {}), "by",
        )  # fmt: skip

    async def run(self, works: list[Work], next_work: Any = None, on_done: Any = None) -> None:
        waiting = iter(works)
        is_asked = False

        async def following() -> Work | None:
            nonlocal is_asked
            assert not is_asked, "next_work is called twice at once"
            is_asked = True
            await asyncio.sleep(0)
            is_asked = False
            return next(waiting, None)

        async with self.worker() as worker:
            await self.engine.run(worker, next_work or following, on_done or self.keep, lambda: self.is_stopping)

    def keep(self, done: Done) -> None:
        self.threads.add(threading.get_ident())
        self.done.append(done)

    @property
    def samples(self) -> Counter[str]:
        return Counter(done.work.sample.id for done in self.done if done.result is not None)

    @property
    def verdicts(self) -> Counter[Verdict]:
        return Counter(done.result.verdict for done in self.done if done.result is not None)


Check = Callable[[Bench], Awaitable[None]]


async def each_work_is_done_once_and_handed_in_in_the_callers_loop(bench: Bench) -> None:
    bench.template = "twice"
    works = bench.works(20)
    await bench.run(works)
    assert bench.samples == Counter(work.sample.id for work in works)
    assert bench.verdicts == {Verdict.PASSED: 20}
    assert bench.threads == {threading.get_ident()}
    assert set(bench.server.asked.values()) == {1} and bench.server.asked.total() == 40
    assert bench.server.most_open <= CONCURRENCY and bench.engine.in_flight() == 0
    for done in bench.done:
        assert done.result is not None and done.result.task_id is not None
        recording = bench.store.read(done.result.task_id)
        assert recording.status == "completed"
        assert recording.header is not None and recording.header.inputs == done.work.sample.inputs


async def what_next_work_raises_ends_the_run_after_cancelling(bench: Bench) -> None:
    numbers = count()
    bench.server.hold()

    async def next_work() -> Work:
        number = next(numbers)
        if number == 3:
            await bench.server.until(lambda: bench.server.open == 3)
            raise OSError("the rows are gone")
        return bench.work(number)

    with pytest.raises(OSError, match="the rows are gone"):
        await bench.run([], next_work)
    assert not bench.done and bench.engine.in_flight() == 0
    await bench.server.until(lambda: bench.server.open == 0)
    assert not list(bench.store.interrupted())


async def what_on_done_raises_ends_the_run(bench: Bench) -> None:
    def on_done(done: Done) -> None:
        bench.keep(done)
        raise OSError("no space is left")

    with pytest.raises(OSError, match="no space is left"):
        await bench.run(bench.works(30), None, on_done)
    assert 1 <= len(bench.done) <= CONCURRENCY and bench.engine.in_flight() == 0
    assert bench.server.asked.total() < 30


async def cancelling_cancels_what_is_in_flight_and_a_later_run_goes_on_with_it(bench: Bench) -> None:
    bench.template = "twice"
    bench.server.hold()
    running = asyncio.ensure_future(bench.run(bench.works(9)))
    await bench.server.until(lambda: bench.server.open == CONCURRENCY)
    assert bench.engine.in_flight() == CONCURRENCY
    running.cancel()
    outcome = await asyncio.gather(running, return_exceptions=True)
    assert isinstance(outcome[0], asyncio.CancelledError)
    await bench.server.until(lambda: bench.server.open == 0)
    assert bench.engine.in_flight() == 0 and not bench.done
    assert Counter(task.status for task in bench.store.list()) in ({"aborted": CONCURRENCY}, {})
    bench.server.let_go()
    bench.unrecorded = unrecorded_tasks(bench.store, {})
    await bench.run(bench.works(9))
    assert bench.verdicts == {Verdict.PASSED: 9} and set(bench.samples.values()) == {1}
    assert len(list(bench.store.list())) == 9


async def work_that_is_not_begun_when_it_stops_is_handed_in_as_pending(bench: Bench) -> None:
    bench.server.hold()
    bench.pacer = Pacer(Pace.fixed(2))
    running = asyncio.ensure_future(bench.run(bench.works(10)))
    # Three samples may run where two calls may; the others that were taken wait for their turn.
    await bench.server.until(lambda: bench.server.open == 2)
    bench.is_stopping = True
    bench.server.let_go()
    await running
    begun = [done for done in bench.done if done.result is not None]
    pending = [done for done in bench.done if done.result is None]
    assert len(begun) in (2, 3) and len(begun) + len(pending) == 10
    assert {done.pending for done in pending} == {"asked to stop"}
    assert bench.server.asked.total() == len(begun)


async def calls_at_once_are_bounded_over_all_processes(bench: Bench) -> None:
    bench.pacer = Pacer(Pace.fixed(2))
    await bench.run(bench.works(16))
    assert bench.verdicts == {Verdict.PASSED: 16}
    assert bench.server.most_open <= 2
    [state] = bench.pacer.state()
    assert (state.requests, state.in_flight) == (16, 0)


async def one_budget_holds_over_all_processes(bench: Bench) -> None:
    bench.pacer = Pacer(Pace.fixed(64), budget=BatchBudget(max_tokens=300))
    await bench.run(bench.works(40))
    spent = bench.pacer.spent()
    assert (spent.input_tokens, spent.output_tokens) == (5 * spent.turns, 5 * spent.turns)
    assert 0 < 10 * spent.turns <= 300 and bench.server.asked.total() == spent.turns
    assert sum(bench.samples.values()) == spent.turns
    assert all("budget of 300 tokens" in done.pending for done in bench.done if done.result is None)
    assert len(bench.done) == 40


async def what_is_only_judged_anew_makes_no_call(bench: Bench) -> None:
    await bench.run(bench.works(4))
    earlier = {done.work.sample.id: done for done in bench.done}
    asked = bench.server.asked.total()
    bench.done, bench.scorers = [], ["includes", {"type": "regex", "pattern": "question"}]
    again = [
        Work(work.sample, 1, work.cell, work.variant, work.identity, "anew", judged=earlier[work.sample.id].result)
        for work in bench.works(4)
    ]
    await bench.run(again)
    assert bench.server.asked.total() == asked == 4
    for done in bench.done:
        assert done.result is not None and set(done.result.scores) == {"includes", "regex"}
        before = earlier[done.work.sample.id].result
        assert before is not None and done.result.task_id == before.task_id


CHECKS: list[Check] = [
    each_work_is_done_once_and_handed_in_in_the_callers_loop,
    what_next_work_raises_ends_the_run_after_cancelling,
    what_on_done_raises_ends_the_run,
    cancelling_cancels_what_is_in_flight_and_a_later_run_goes_on_with_it,
    work_that_is_not_begun_when_it_stops_is_handed_in_as_pending,
    calls_at_once_are_bounded_over_all_processes,
    one_budget_holds_over_all_processes,
    what_is_only_judged_anew_makes_no_call,
]
