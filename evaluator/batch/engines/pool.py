"""Processes on nodes that share work out: who gets what, and what becomes of it when one of them is lost.

A lost process gives its samples back, and they are done by others. A sample that was aboard twice when a process was
lost is then done alone in one; where that ends the process too, the sample is what did it: its result is an error.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from math import ceil
from typing import Any, Protocol

from evaluator.batch.engines.calls import Entrance
from evaluator.batch.engines.host import VERSIONS, AtOnce, Opened, portable
from evaluator.batch.engines.link import Link, Lost, Remote
from evaluator.batch.engines.recipe import Recipe
from evaluator.batch.engines.taskfiles import IDS_EACH, Probe, begun_by, bring_home, highest_id
from evaluator.batch.records import Failure, SampleResult, Verdict
from evaluator.batch.work import Done, Work, Worker
from evaluator.errors import ConfigurationError, EvaluatorError, RecordError
from evaluator.record.journal import now
from evaluator.record.owner import current_owner
from evaluator.record.store import TaskStore

SUSPECT_AFTER = 2
MAX_FAILED_STARTS = 3
CLOSE_S = 10.0
_log = logging.getLogger("evaluator")


class ClusterLost(EvaluatorError):
    """No node is left to evaluate on. What was done is kept; the batch can be gone on with."""


@dataclass(frozen=True, slots=True)
class Node:
    """A machine of a cluster, and how many processes it is to have."""

    id: str
    name: str
    processes: int


class Cluster(Protocol):
    """Where processes can be started."""

    def start(self, node: Node) -> Remote:
        """A new Host on `node`; returns at once."""
        ...


@dataclass(slots=True, eq=False)
class _Job:
    number: int
    work: Work
    is_stopping: Callable[[], bool]
    begun: dict[str, int]
    done: asyncio.Future[Done]
    lost: int = 0


@dataclass(slots=True, eq=False)
class _Member:
    node: Node
    link: Link
    entrance: Entrance
    shares: bool
    jobs: dict[int, _Job] = field(default_factory=dict[int, _Job])
    alone: _Job | None = None
    is_kept: bool = False
    """Takes nothing new, so that a suspect can be done in it alone."""


class Pool:
    """`perform` shares works out over the processes of `nodes`, `concurrency` together at once. An async context:
    leaving it cancels what is in flight, and ends every process."""

    def __init__(
        self, worker: Worker, cluster: Cluster, recipe: bytes, parts: Recipe, concurrency: int, probe: Probe | None
    ) -> None:
        store = worker.evaluator.services.store
        assert store is not None
        self._worker, self._cluster, self._recipe, self._parts = worker, cluster, recipe, parts
        self._store: TaskStore = store
        self._concurrency, self._probe = concurrency, probe
        self._numbers = count(1)
        self._members: list[_Member] = []
        self._jobs: dict[int, _Job] = {}
        self._waiting: deque[_Job] = deque()
        self._suspects: deque[_Job] = deque()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._starting: set[asyncio.Task[Any]] = set()
        self._remotes: set[Remote] = set()
        self._failed_starts: dict[str, int] = {}
        self._newest = highest_id(store)
        self._blocks = count(self._newest // IDS_EACH + 1)
        self._failure: EvaluatorError | None = None
        self._is_open = True
        self._begun: dict[str, dict[str, int]] = {}
        for label, task_id in worker.unrecorded.items():
            self._begun.setdefault(label.partition("/")[0], {})[label] = task_id

    def start(self, nodes: list[Node]) -> None:
        """Begins to start processes. Raises: ClusterLost, where no node has a CPU for one."""
        for node in nodes:
            for _ in range(node.processes):
                self._start(node)
        if not self._starting:
            raise ClusterLost("no node of the cluster has a CPU to evaluate on")

    async def __aenter__(self) -> Pool:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_open = False
        for task in [*self._tasks]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for member in self._members:
            member.entrance.close()
        try:
            await asyncio.gather(*(member.link.stop() for member in self._members))
            await asyncio.gather(*(_closed(remote) for remote in self._remotes))
        finally:
            for remote in self._remotes:
                remote.kill()

    # -- works --------------------------------------------------------------------------------------------------

    async def perform(self, work: Work, is_stopping: Callable[[], bool]) -> Done:
        """What came of `work`; pending, where `is_stopping` says so before it is begun.

        Raises: ClusterLost, if no process is left to do it; what a Worker raises.
        """
        if self._failure is not None:
            raise self._failure
        job = _Job(
            next(self._numbers), work, is_stopping, self._begun.pop(work.identity.value, {}),
            asyncio.get_running_loop().create_future(),
        )  # fmt: skip
        if work.begun is not None:
            job.begun.setdefault(work.identity.value, work.begun)
        self._jobs[job.number] = job
        self._waiting.append(job)
        self._share_out()
        try:
            return await job.done
        finally:
            del self._jobs[job.number]

    def _share_out(self) -> None:
        self._keep_one_for_suspects()
        while self._waiting:
            open_members = [member for member in self._members if not member.is_kept]
            member = min(open_members, key=lambda each: len(each.jobs), default=None)
            if member is None or len(member.jobs) >= self._share():
                return
            job = self._waiting.popleft()
            if not job.done.done():
                self._give(job, member)

    def _share(self) -> int:
        """How many samples one process has at once: as many as it will when all that are starting are there."""
        return ceil(self._concurrency / max(1, len(self._members) + len(self._starting)))

    def _keep_one_for_suspects(self) -> None:
        kept = next((member for member in self._members if member.is_kept), None)
        if self._suspects and kept is None:
            kept = min(self._members, key=lambda each: len(each.jobs), default=None)
        if kept is None or kept.jobs:
            if kept is not None:
                kept.is_kept = True
            return
        kept.is_kept = bool(self._suspects)
        if self._suspects:
            job = self._suspects.popleft()
            kept.alone = job
            self._give(job, kept)

    def _give(self, job: _Job, member: _Member) -> None:
        if job.is_stopping() and not job.begun and not job.lost:
            job.done.set_result(Done(job.work, None, "asked to stop"))
        elif not member.shares and (job.begun or job.work.judged is not None):
            # Its task files are here and nowhere else.
            self._spawn(self._perform_here(job))
        else:
            member.jobs[job.number] = job
            member.link.send(("work", job.number, job.work, job.begun))

    async def _perform_here(self, job: _Job) -> None:
        worker = self._worker
        here = Worker(
            worker.evaluator, worker.scorers, AtOnce(), worker.budget_ended, worker.count_as_failed,
            {**worker.unrecorded, **job.begun}, worker.unfinished,
        )  # fmt: skip
        try:
            done = await here.perform(job.work)
        except Exception as error:
            _end(job, error)
        else:
            _end(job, done)

    # -- messages -----------------------------------------------------------------------------------------------

    def _heard(self, member: _Member, message: tuple[Any, ...]) -> None:
        kind, *rest = message
        if kind == "enter":
            member.entrance.enter(*rest)
        elif kind == "left":
            member.entrance.left(*rest)
        elif kind == "notice":
            _log.warning("%s: %s", member.node.name, rest[0])
        else:
            job = member.jobs.pop(rest[0])
            if member.alone is job:
                member.alone = None
            self._failed_starts.pop(member.node.id, None)
            if kind == "raised":
                _end(job, rest[1])
            else:
                self._bring(job, *rest[1:])
            self._share_out()

    def _bring(self, job: _Job, result: SampleResult | None, pending: str, files: list[tuple[int, bytes]]) -> None:
        try:
            if files:
                bring_home(self._store.root, files)
        except OSError as error:
            _end(job, RecordError(f"{self._store.root}: a task file cannot be written: {error.strerror}"))
        else:
            _end(job, Done(job.work, result, pending))

    def _refused(self) -> None:
        ended = self._worker.budget_ended()
        if ended is not None:
            for member in self._members:
                member.link.send(("spent", ended))

    # -- processes ----------------------------------------------------------------------------------------------

    def _spawn(self, work: Any) -> asyncio.Task[Any]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _start(self, node: Node) -> asyncio.Task[bool]:
        task = self._spawn(self._started(node))
        self._starting.add(task)
        return task

    async def _started(self, node: Node) -> bool:
        """Whether a new process of `node` is at work. One that is not ready for its work ends the run."""
        this = asyncio.current_task()
        assert this is not None
        remote = self._cluster.start(node)
        self._remotes.add(remote)
        try:
            opened = await self._opened(remote, node)
        except Lost as error:
            self._starting.discard(this)
            self._remotes.discard(remote)
            remote.kill()
            failed = self._failed_starts[node.id] = self._failed_starts.get(node.id, 0) + 1
            _log.info("a process on %s did not start: %s", node.name, error)
            if failed < MAX_FAILED_STARTS:
                self._start(node)
            self._look_for_anyone(error)
            self._share_out()
            return False
        except EvaluatorError as error:
            self._starting.discard(this)
            self._fail(error)
            return False
        self._starting.discard(this)
        self._join(node, remote, opened)
        return True

    async def _opened(self, remote: Remote, node: Node) -> Opened:
        there = await remote.versions()
        if there != VERSIONS:
            raise ConfigurationError(f"{node.name} has {there}, this process {VERSIONS}; install the same on all nodes")
        opened = await remote.open(self._recipe, self._probe, next(self._blocks) * IDS_EACH)
        if isinstance(opened, EvaluatorError):
            raise ConfigurationError(f"{node.name}: {opened}") from opened
        if self._parts.cache is not None and opened.machine != current_owner().boot_id:
            raise ConfigurationError(f"a cache is of one machine, and {node.name} is another; run without it")
        return opened

    def _join(self, node: Node, remote: Remote, opened: Opened) -> None:
        def send(message: tuple[Any, ...]) -> None:
            member.link.send(message)

        async def lost(error: BaseException) -> None:
            self._lose(member, error)

        link = Link(remote, lambda message: self._heard(member, message), lost)
        member = _Member(node, link, Entrance(self._worker.evaluator.gate, send, self._refused), opened.shares)
        self._members.append(member)
        ended = self._worker.budget_ended()
        if ended is not None:
            link.send(("spent", ended))
        self._share_out()

    def _lose(self, member: _Member, error: BaseException) -> None:
        if not self._is_open:
            return
        if not isinstance(error, Lost):
            self._fail(portable(error))
            return
        _log.info("a process on %s was lost: %s", member.node.name, error)
        self._members.remove(member)
        self._remotes.discard(member.link.remote)
        member.link.remote.kill()
        member.entrance.close()
        jobs, alone = list(member.jobs.values()), member.alone
        member.jobs = {}
        if not jobs:
            self._failed_starts[member.node.id] = self._failed_starts.get(member.node.id, 0) + 1
        replaced = None
        if self._failed_starts.get(member.node.id, 0) < MAX_FAILED_STARTS:
            replaced = self._start(member.node)
        self._look_for_anyone(error)
        if self._failure is None:
            self._spawn(self._give_back(jobs, alone, member.shares, replaced))

    async def _give_back(
        self, jobs: list[_Job], alone: _Job | None, shares: bool, replaced: asyncio.Task[bool] | None
    ) -> None:
        """What a lost process had is done by others, and not again what its task files hold."""
        if shares and jobs:
            try:
                found = await begun_by(self._store, self._newest, {job.work.identity.value for job in jobs})
            except RecordError as error:
                self._fail(error)
                return
            for job in jobs:
                job.begun |= found[job.work.identity.value]
        for job in reversed(jobs):
            job.lost += 1
            if job is alone:
                # A node that starts another process has not gone: the sample is what ended this one.
                if replaced is not None and await replaced:
                    _end(job, Done(job.work, _crashed(job)))
                else:
                    self._suspects.append(job)
            elif job.lost >= SUSPECT_AFTER:
                self._suspects.append(job)
            else:
                self._waiting.appendleft(job)
        self._share_out()

    def _look_for_anyone(self, error: BaseException) -> None:
        if not self._members and not self._starting:
            why = str(error).strip() or type(error).__name__
            self._fail(ClusterLost(f"no process is left to evaluate on; what was done is kept: run the rest: {why}"))

    def _fail(self, error: EvaluatorError) -> None:
        if self._failure is not None:
            return
        self._failure = error
        for job in self._jobs.values():
            _end(job, error)


def _end(job: _Job, outcome: Done | Exception) -> None:
    if job.done.done():
        return
    if isinstance(outcome, Exception):
        job.done.set_exception(outcome)
    else:
        job.done.set_result(outcome)


async def _closed(remote: Remote) -> None:
    with suppress(Lost, TimeoutError):
        await asyncio.wait_for(remote.close(), CLOSE_S)


def _crashed(job: _Job) -> SampleResult:
    work = job.work
    sample, cell, number = work.sample, work.cell, job.begun.get(work.identity.value)
    message = (
        "the process that evaluated this sample and no other ended without a word: it crashed, or ran out of memory"
    )
    return SampleResult(
        identity=work.identity.value, sample_id=sample.id, place=sample.place, epoch=work.epoch,
        template=cell.template, variant=cell.variant, verdict=Verdict.ERROR, inputs=sample.inputs,
        target=sample.target, metadata=sample.metadata, failure=Failure("TASK_FAILURE", "unexpected_error", message),
        started=now(), parts=work.identity.parts, scored_by=work.scored_by, task_id=number,
        task_file=None if number is None else f"tasks/active/TASK-{number}.md",
    )  # fmt: skip
