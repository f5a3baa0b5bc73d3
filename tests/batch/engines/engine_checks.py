"""The guarantees of every engine, as checks. Engines of several processes pass further ones, in PROCESS_CHECKS."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import count, islice
from pathlib import Path
from random import randint
from typing import Any

import pytest
from aiohttp import web

from evaluator import Evaluator, HandlerConfig, TaskStore, TemplateLibrary
from evaluator.batch import (
    Cell,
    Engine,
    Identity,
    Sample,
    Variant,
    Verdict,
    Worker,
    WorkItem,
    WorkResult,
)
from evaluator.batch.engines import LocalEngine
from evaluator.batch.engines.base import ClusterLost, Done
from evaluator.batch.engines.packing import ResultPacker
from evaluator.batch.identity import is_sealed, parse_line
from evaluator.batch.scorers import make_scorers, scorer
from evaluator.batch.work import sample_label
from evaluator.limits.rate_limiter import BatchBudget, Pace, RateLimiter

TEMPLATES = (
    '<library><task name="ask" type="atomic"><description>Ask</description>'
    '<inputs><input name="question" type="string" required="true">it</input></inputs>'
    "<instructions>{{ question }}</instructions></task>"
    '<task name="twice" type="sequential"><description>Ask and ask again</description>'
    "<context_management><accumulate_data>false</accumulate_data></context_management>"
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
                "id": "x",
                "object": "chat.completion",
                "created": 1,
                "model": "m",
                "choices": [
                    {
                        "index": 0,
                        "finish_reason": "stop",
                        "message": {"role": "assistant", "content": prompt},
                    }
                ],
                "usage": {"prompt_tokens": 5, "completion_tokens": 5, "total_tokens": 10},
            }
        )

    async def look(self) -> None:
        """Asks again what is waited for."""
        await self._count(0)

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
    """A worker that asks `server`, its work, and an engine that runs them. `done` collects what is handed in."""

    engine: Engine
    server: Server
    folder: Path
    limiter: RateLimiter = field(default_factory=lambda: RateLimiter(Pace(concurrency=64)))
    scorers: list[Any] = field(default_factory=lambda: ["exact"])
    template: str = "ask"
    done: list[WorkResult] = field(default_factory=list[WorkResult])
    lines: list[bytes] = field(default_factory=list[bytes])
    threads: set[int] = field(default_factory=set[int])
    unrecorded: dict[str, int] = field(default_factory=dict[str, int])
    counted: dict[str, int] = field(default_factory=dict[str, int])
    is_stopping: bool = False
    options: dict[str, Any] = field(default_factory=dict[str, Any])

    @asynccontextmanager
    async def worker(self) -> AsyncIterator[Worker]:
        library = TemplateLibrary.load(self._templates(), shipped=False)
        profile = HandlerConfig(
            name="test",
            backend="openai_compatible",
            base_url=self.server.url,
            model="m",
            max_output_tokens=20,
            backoff_s=(),
        )
        evaluator = Evaluator(
            library, profile, tasks_dir=None, roots=[self.folder], profiles={}, **self.options
        )
        # As `run_batch`: the tasks are packed.
        async with evaluator.with_limiter(
            self.limiter, self.folder / "tasks", is_packed=True
        ) as own:
            refused = lambda: None if self.limiter.refused is None else str(self.limiter.refused)  # noqa: E731
            yield Worker(
                own,
                make_scorers(self.scorers),
                refused,
                unrecorded=self.unrecorded,
                counted=self.counted,
                unfinished="repeat",
            )

    def _templates(self) -> Path:
        path = self.folder / "templates.xml"
        path.write_text(TEMPLATES, encoding="utf-8")
        return path

    @property
    def store(self) -> TaskStore:
        return TaskStore(self.folder / "tasks")

    def works(self, number: int) -> list[WorkItem]:
        return [self.work(n) for n in range(number)]

    def work(self, number: int) -> WorkItem:
        question = f"question {number}"
        answer = f"again: {question}" if self.template == "twice" else question
        sample = Sample(f"s{number}", {"question": question}, answer, {}, number)
        return WorkItem(
            sample,
            1,
            Cell(self.template, "default", "t", "h", False),
            Variant("default"),
            Identity(f"key-{number}", f"identity-{number}", {}),
            "by",
        )

    async def run(self, works: list[WorkItem], next_work: Any = None, on_done: Any = None) -> None:
        waiting = iter(works)
        is_asked = False

        async def following(most: int) -> list[WorkItem]:
            nonlocal is_asked
            assert not is_asked, "next_work is called twice at once"
            assert most > 0
            is_asked = True
            await asyncio.sleep(0)
            is_asked = False
            return list(islice(waiting, randint(1, most)))

        async with self.worker() as worker:
            await self.engine.run(
                worker, next_work or following, on_done or self.keep, lambda: self.is_stopping
            )

    def keep(self, done: Done) -> None:
        self.threads.add(threading.get_ident())
        if isinstance(done, WorkResult):
            self.done.append(done)
            return
        self.lines += done.lines.splitlines(keepends=True)
        self.done += map(WorkResult, done.works, done.results())

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

    async def next_work(most: int) -> list[WorkItem]:
        number = next(numbers)
        if number == 3:
            await bench.server.until(lambda: bench.server.open == 3)
            raise OSError("the rows are gone")
        return [bench.work(number)]

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


async def cancelling_cancels_work_in_flight_and_a_later_run_resumes_it(bench: Bench) -> None:
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
    bench.unrecorded = {sample_label(labels): task for task, _, labels in bench.store.labelled()}
    bench.unrecorded.pop("", None)
    await bench.run(bench.works(9))
    assert bench.verdicts == {Verdict.PASSED: 9} and set(bench.samples.values()) == {1}
    assert len(list(bench.store.list())) == 9


def relative(path: Path) -> str:
    return os.path.relpath(path)


async def relative_paths_of_scorers_begin_in_the_callers_folder(bench: Bench) -> None:
    (bench.folder / "beside.txt").write_text("question 0")
    name = relative(bench.folder / "beside.txt")

    @scorer(name="beside")
    def beside(output: str) -> bool:
        return Path(name).read_text() == output

    bench.scorers = [beside]
    await bench.run(bench.works(1))
    assert bench.verdicts == {Verdict.PASSED: 1}


async def calls_at_once_are_bounded_over_all_processes(bench: Bench) -> None:
    bench.limiter = RateLimiter(Pace(concurrency=2))
    await bench.run(bench.works(16))
    assert bench.verdicts == {Verdict.PASSED: 16}
    assert bench.server.most_open <= 2
    [state] = bench.limiter.state()
    assert (bench.server.asked.total(), state.in_flight) == (16, 0)


async def one_budget_holds_over_all_processes(bench: Bench) -> None:
    bench.limiter = RateLimiter(Pace(concurrency=64), budget=BatchBudget(max_tokens=300))
    await bench.run(bench.works(40))
    calls = bench.server.asked.total()
    assert 0 < bench.limiter.spending.tokens == 10 * calls <= 300
    assert sum(bench.samples.values()) == calls
    assert all("budget of 300 tokens" in done.pending for done in bench.done if done.result is None)
    assert len(bench.done) == 40


async def what_is_only_judged_anew_makes_no_call(bench: Bench) -> None:
    await bench.run(bench.works(4))
    earlier = {done.work.sample.id: done for done in bench.done}
    asked = bench.server.asked.total()
    bench.done, bench.scorers = [], ["includes", {"type": "regex", "pattern": "question"}]
    again = [
        WorkItem(
            work.sample,
            1,
            work.cell,
            work.variant,
            work.identity,
            "anew",
            answered=earlier[work.sample.id].result,
        )
        for work in bench.works(4)
    ]
    await bench.run(again)
    assert bench.server.asked.total() == asked == 4
    for done in bench.done:
        assert done.result is not None and set(done.result.scores) == {"includes", "regex"}
        before = earlier[done.work.sample.id].result
        assert before is not None and done.result.task_id == before.task_id


async def an_answer_that_a_result_counts_is_used_again_and_counts_nothing(bench: Bench) -> None:
    await bench.run(bench.works(9))
    bench.counted = {sample_label(labels): task for task, _, labels in bench.store.labelled()}
    # As a sample whose judge waits for a provider batch.
    bench.unrecorded = {"identity-0": bench.counted["identity-0"]}
    # It is run again, not only given its answer once more.
    retried = bench.counted["identity-8"]
    await bench.run([*bench.works(8), replace(bench.work(8), retry_of=retried)])
    assert bench.verdicts == {Verdict.PASSED: 18} and set(bench.samples.values()) == {2}
    assert [bench.server.asked[f"question {n}"] for n in range(9)] == [1] * 8 + [2]
    for done in bench.done[9:]:
        result = done.result
        assert result is not None
        is_retried = result.identity == "identity-8"
        assert result.usage.turns == is_retried
        assert (result.task_id == bench.counted[result.identity]) is not is_retried


CHECKS: list[Check] = [
    each_work_is_done_once_and_handed_in_in_the_callers_loop,
    what_next_work_raises_ends_the_run_after_cancelling,
    what_on_done_raises_ends_the_run,
    cancelling_cancels_work_in_flight_and_a_later_run_resumes_it,
    relative_paths_of_scorers_begin_in_the_callers_folder,
    calls_at_once_are_bounded_over_all_processes,
    one_budget_holds_over_all_processes,
    what_is_only_judged_anew_makes_no_call,
    an_answer_that_a_result_counts_is_used_again_and_counts_nothing,
]


# -- engines of several processes -------------------------------------------------------------------------------------


def repeated(bench: Bench) -> int:
    """How many calls were made again."""
    return sum(times - 1 for times in bench.server.asked.values())


async def work_that_has_not_started_when_it_stops_is_handed_in_as_pending(bench: Bench) -> None:
    bench.is_stopping = True
    await bench.run(bench.works(10))
    assert {done.pending for done in bench.done} == {"stop requested"}
    assert len(bench.done) == 10 and not bench.server.asked


async def two_processes_share_the_work(bench: Bench) -> None:
    seen = bench.folder / "seen"
    seen.mkdir()

    @scorer(name="seen")
    def note_process(output: str) -> bool:
        (seen / str(os.getpid())).touch()
        return True

    bench.scorers = [note_process]
    bench.server.hold()
    # Fewer than may run at once: no process takes all of them before the other one is there.
    running = asyncio.ensure_future(bench.run(bench.works(4)))
    await bench.server.until(lambda: bench.server.open == 4)
    bench.server.let_go()
    await running
    assert bench.verdicts == {Verdict.PASSED: 4}
    assert len(list(seen.iterdir())) == 2 and str(os.getpid()) not in os.listdir(seen)


@scorer
def ends_the_process_for_s3(inputs: Any) -> bool:
    if inputs["question"] == "question 3":
        os._exit(3)
    return True


async def a_sample_that_ends_its_process_each_time_is_an_error(bench: Bench) -> None:
    bench.scorers = [ends_the_process_for_s3]
    await bench.run(bench.works(8))
    assert set(bench.samples.values()) == {1} and len(bench.done) == 8
    assert bench.verdicts == {Verdict.PASSED: 7, Verdict.ERROR: 1}
    [crashed] = [
        done.result for done in bench.done if done.result and done.result.verdict is Verdict.ERROR
    ]
    assert crashed.sample_id == "s3" and crashed.failure is not None
    assert "ended unexpectedly" in crashed.failure.message
    if crashed.task_id is not None:
        # It was answered once, and its scorer ended the process.
        assert (crashed.usage.turns, crashed.interrupted_calls) == (1, 0)
        # Its task is in a segment, and has no file that a person could open.
        assert crashed.task_file is None
        show = f"evaluator tasks show {crashed.task_id} --tasks {bench.folder / 'tasks'}"
        assert crashed.failure.message.endswith(show)
    # Steps that were complete before each of the three ends are not repeated.
    assert bench.server.asked["question 3"] == 1 and max(bench.server.asked.values()) <= 3


async def a_lost_process_gives_its_work_back(bench: Bench) -> None:
    ended = bench.folder / "ended"

    @scorer(name="ends_once")
    def ends_once(inputs: Any) -> bool:
        if inputs["question"] == "question 3":
            try:
                ended.touch(exist_ok=False)
            except FileExistsError:
                return True
            os._exit(3)
        return True

    bench.scorers = [ends_once]
    bench.template = "twice"
    await bench.run(bench.works(8))
    assert ended.exists()
    assert bench.verdicts == {Verdict.PASSED: 8} and set(bench.samples.values()) == {1}
    assert repeated(bench) <= CONCURRENCY and bench.server.asked["again: question 3"] == 1


async def a_line_that_is_lost_with_its_process_is_made_again_without_a_call(bench: Bench) -> None:
    ended = bench.folder / "ended"

    @scorer(name="ends_later")
    def ends_later(inputs: Any) -> bool:
        """The process ends when the line of sample 3 is made, and before it is sent."""
        add = ResultPacker.add

        def add_and_end(packer: ResultPacker, number: int, work: Any, result: Any) -> None:
            add(packer, number, work=work, result=result)
            if result.sample_id == "s3":
                try:
                    ended.touch(exist_ok=False)
                except FileExistsError:
                    return
                os._exit(3)

        if inputs["question"] == "question 3":
            ResultPacker.add = add_and_end
        return True

    bench.scorers = [ends_later]
    await bench.run(bench.works(8))
    assert ended.exists()
    assert bench.verdicts == {Verdict.PASSED: 8} and set(bench.samples.values()) == {1}
    assert bench.server.asked["question 3"] == 1
    [line] = [line for line in bench.lines if parse_line(line).sample_id == "s3"]
    assert is_sealed(line) and parse_line(line).content == "question 3"


async def the_calls_of_a_lost_process_are_released_and_count_as_in_doubt(bench: Bench) -> None:
    """Two calls may be in flight; if the lost process kept its permits, no further call could be made."""
    bench.limiter = RateLimiter(Pace(concurrency=2))
    bench.scorers = [ends_the_process_for_s3]
    await bench.run(bench.works(8))
    assert bench.verdicts == {Verdict.PASSED: 7, Verdict.ERROR: 1}
    [state] = bench.limiter.state()
    assert state.in_flight == 0 and bench.server.most_open <= 2


PROCESS_CHECKS: list[Check] = [
    work_that_has_not_started_when_it_stops_is_handed_in_as_pending,
    two_processes_share_the_work,
    a_lost_process_gives_its_work_back,
    a_sample_that_ends_its_process_each_time_is_an_error,
    a_line_that_is_lost_with_its_process_is_made_again_without_a_call,
    the_calls_of_a_lost_process_are_released_and_count_as_in_doubt,
]


async def task_files_are_sent_if_the_folder_is_not_shared(bench: Bench) -> None:
    bench.template = "twice"
    await bench.run(bench.works(12))
    assert bench.verdicts == {Verdict.PASSED: 12}
    tasks = list(bench.store.list())
    assert {task.status for task in tasks} == {"completed"} and len(tasks) == 12
    assert {done.result.task_id for done in bench.done if done.result} == {
        task.id for task in tasks
    }
    assert {task.path.stat().st_mode & 0o777 for task in tasks} == {0o600}


def answers(bench: Bench) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for done in bench.done:
        assert done.result is not None and done.work.sample.id not in found
        result = done.result
        found[result.sample_id] = (
            result.verdict,
            result.content,
            result.scores,
            result.usage,
            result.failure,
        )
    return found


async def killed_processes_lose_nothing(bench: Bench, kill: Callable[[], None], share: int) -> None:
    """Each sample has one result, the same as without the kill; at most `share` calls are repeated."""
    bench.template = "twice"

    def on_done(done: Done) -> None:
        before = len(bench.done)
        bench.keep(done)
        if before < 10 <= len(bench.done):
            kill()

    await bench.run(bench.works(60), None, on_done)
    assert set(bench.samples.values()) == {1} and len(bench.done) == 60
    assert repeated(bench) <= share
    undisturbed = Bench(
        LocalEngine(CONCURRENCY), bench.server, bench.folder / "local", template="twice"
    )
    undisturbed.folder.mkdir()
    await undisturbed.run(undisturbed.works(60))
    assert answers(bench) == answers(undisturbed)
    # A file without a header belongs to a task that had done nothing yet.
    assert {task.status for task in bench.store.list() if task.header is not None} == {"completed"}


async def a_batch_that_loses_all_processes_fails_and_can_be_resumed(
    bench: Bench, kill: Callable[[], None]
) -> None:
    def on_done(done: Done) -> None:
        before = len(bench.done)
        bench.keep(done)
        if before < 5 <= len(bench.done):
            bench.server.hold()
            kill()

    with pytest.raises(
        ClusterLost, match="no process is left to evaluate in; finished samples are stored"
    ):
        await bench.run(bench.works(30), None, on_done)
    assert 5 <= len(bench.done) < 30 and bench.engine.in_flight() == 0
    bench.server.let_go()
    bench.engine = LocalEngine(CONCURRENCY)
    done = set(bench.samples)
    await bench.run([work for work in bench.works(30) if work.sample.id not in done])
    assert bench.verdicts == {Verdict.PASSED: 30} and set(bench.samples.values()) == {1}


async def calls_of_processes_that_are_lost_with_their_task_files_are_counted(bench: Bench) -> None:
    """What a lost process has used cannot be known."""
    bench.scorers = [ends_the_process_for_s3]
    await bench.run(bench.works(8))
    assert bench.verdicts == {Verdict.PASSED: 7, Verdict.ERROR: 1}
    asked = bench.server.asked
    assert asked["question 3"] == 3
    for done in bench.done:
        result = done.result
        assert result is not None
        counted = result.usage.turns + result.interrupted_calls
        assert counted >= asked[f"question {result.sample_id[1:]}"], result
        if result.verdict is Verdict.ERROR:
            assert result.usage.cost_usd is None and result.usage.input_tokens is None
            assert result.task_id is None and result.task_file is None


GATHER_CHECKS: list[Check] = [
    task_files_are_sent_if_the_folder_is_not_shared,
    calls_of_processes_that_are_lost_with_their_task_files_are_counted,
]
"""For an engine that was made with `gather`."""
