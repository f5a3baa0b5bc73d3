"""A pool of processes on nodes: distributes work, and repeats the work of a process that is lost.

Each process gets its share of the samples that are at hand.

The samples of a lost process are done by others. A sample that was in two lost processes is then
done alone in one. If that one is lost too, the sample is the cause: its result is an error.
"""

from __future__ import annotations

import asyncio
import pickle
from collections import deque
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import suppress
from dataclasses import field, replace
from itertools import count
from math import ceil
from pathlib import Path
from typing import Any

from evaluator import clock
from evaluator.batch.abandoned import recorded_use
from evaluator.batch.engines.base import (
    ClusterLost,
    ConcurrentRun,
    HostLost,
    IsStopping,
    LimiterProxy,
    Link,
    Remote,
    unanswered_result,
)
from evaluator.batch.engines.host import VERSIONS, Opened, Recipe, portable_error
from evaluator.batch.engines.packing import Job, ResultLines, pack_jobs
from evaluator.batch.engines.taskfiles import IDS_EACH, Probe, find_unrecorded, store_files
from evaluator.batch.progress import SilentProcess
from evaluator.batch.records import Failure, SampleResult
from evaluator.batch.work import Worker
from evaluator.batch.work_items import WorkItem, WorkResult
from evaluator.errors import ConfigurationError, EvaluatorError, RecordError
from evaluator.errors.messages import LOGGER
from evaluator.lazy_dataclass import dataclass, frozen
from evaluator.limits.budget import UNKNOWN_USAGE
from evaluator.limits.call_limiter import UNUSED
from evaluator.processes.concurrency import cancel_all
from evaluator.record.store import TaskStore
from evaluator.store.owners import Owner, current_owner

SUSPECT_AFTER = 2
MAX_FAILED_STARTS = 3
CLOSE_S = 10.0
ASK_S = 5.0
"""Each process is asked for a sign of life so often."""
SILENT_S = 30.0
"""A process without a sign of life for so long is named."""
_NO_PROCESS = "no process is left to evaluate in; finished samples are stored: resume the batch"


@frozen
class Node:
    """A machine, and the number of processes to run on it."""

    id: str
    name: str
    processes: int


StartHost = Callable[[Node], Remote]
"""Starts a Host on a node; returns at once."""


@dataclass(slots=True, eq=False)
class _Member:
    """A process at work. `is_reserved`: it takes no further jobs, so that a suspect can run `alone`
    in it. `silent_s`: the time since its last message, counted in intervals of this process's event
    loop, so that neither a step of a clock nor a pause of this process counts.
    """

    node: Node
    link: Link
    proxy: LimiterProxy
    shares_folder: bool
    owner: Owner
    jobs: dict[int, Job] = field(default_factory=dict[int, Job])
    alone: Job | None = None
    is_reserved: bool = False
    silent_s: float = 0.0
    owes_sign: bool = False

    def close_proxy(self) -> None:
        """Without jobs it makes no call; otherwise the usage of its calls in flight is unknown."""
        self.proxy.close(None if self.jobs else UNUSED)


def _load(member: _Member) -> int:
    return len(member.jobs)


def shares_of(loads: Sequence[int], further: int) -> list[int]:
    """How many of `further` jobs each process gets, so that those with the lowest loads get them.
    The loads ascend; the last processes may get none, and are left out.
    """
    jobs = loads[0] + further
    count = 1
    while count < len(loads) and loads[count] * count < jobs:
        jobs += loads[count]
        count += 1
    shares: list[int] = []
    for place in range(count):
        share = ceil(jobs / (count - place))
        jobs -= share
        shares.append(share - loads[place])
    return shares


class Pool:
    """Distributes the work of `run` over the processes of nodes. An async context: leaving it
    cancels everything in flight and ends every process.

    Work that has not started when `is_stopping` becomes true stays pending. The run fails with
    ClusterLost, if no process is left to do it, and with what a Worker raises.
    """

    def __init__(
        self,
        worker: Worker,
        start_host: StartHost,
        recipe: Recipe,
        store: TaskStore,
        run: ConcurrentRun,
        is_stopping: IsStopping,
        probe: Probe | None,
    ) -> None:
        self._worker = worker
        self._start_host = start_host
        self._recipe = recipe
        self._store = store
        self._packed_recipe = pickle.dumps(recipe)
        self._run = run
        self._is_stopping = is_stopping
        self._probe = probe
        self._numbers = count(1)
        self._members: list[_Member] = []
        self._waiting: deque[Job] = deque()
        self._suspects: deque[Job] = deque()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._starting: set[asyncio.Task[bool]] = set()
        self._remotes: set[Remote] = set()
        self._links: list[Link] = []
        self._failed_starts: dict[str, int] = {}
        self._newest = store.last_id()
        self._id_blocks = count(self._newest // IDS_EACH + 1)
        self._has_failed = False
        self._is_open = True
        self._is_distributing = False
        self._unrecorded = _by_sample(worker.unrecorded)
        self._counted = _by_sample(worker.counted)

    def start(self, nodes: Collection[Node]) -> None:
        """Starts the processes; returns at once. Raises: ClusterLost, if no node has a CPU for
        one.
        """
        for node in nodes:
            for _ in range(node.processes):
                self._start(node)
        if not self._starting:
            raise ClusterLost("no node of the cluster has a CPU to evaluate on")
        self._spawn(self._ask_for_signs())

    async def _ask_for_signs(self) -> None:
        while True:
            await clock.sleep(ASK_S)
            for member in self._members:
                member.silent_s += ASK_S
                if not member.owes_sign:
                    member.owes_sign = True
                    member.link.send(("sign",))

    def silent(self) -> list[SilentProcess]:
        """The processes without a sign of life for at least SILENT_S."""
        return [
            SilentProcess(
                member.owner.pid,
                member.node.name,
                silent_s=member.silent_s,
                samples=len(member.jobs),
            )
            for member in self._members
            if member.silent_s >= SILENT_S
        ]

    def lose_all(self, reason: str) -> None:
        """Ends the run: no process can be reached any more."""
        self._fail(ClusterLost(f"{_NO_PROCESS}: {reason}"))

    async def __aenter__(self) -> Pool:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_open = False
        await cancel_all(self._tasks)
        for member in self._members:
            member.close_proxy()
        try:
            await asyncio.gather(*(link.stop() for link in self._links))
            await asyncio.gather(*(_close(remote) for remote in self._remotes))
        finally:
            for remote in self._remotes:
                remote.kill()

    # -- jobs --------------------------------------------------------------------------------------

    def begin(self, works: Iterable[WorkItem]) -> None:
        """Takes works, and sends those that a process has room for; returns at once. The run gets
        their results.
        """
        for work in works:
            job = Job(next(self._numbers), work, {})
            if self._unrecorded:
                job.unrecorded |= self._unrecorded.pop(work.identity.value, {})
            if self._counted:
                job.counted |= self._counted.pop(work.identity.value, {})
            if work.resumes is not None:
                job.unrecorded.setdefault(work.identity.value, work.resumes)
            self._waiting.append(job)
        self._distribute()

    def _distribute_soon(self) -> None:
        """Distributes once for all that changes in this turn of the event loop."""
        if not self._is_distributing:
            self._is_distributing = True
            asyncio.get_running_loop().call_soon(self._distribute_now)

    def _distribute_now(self) -> None:
        self._is_distributing = False
        self._distribute()

    def _distribute(self) -> None:
        if not self._is_open:
            return
        self._run_suspects()
        members = [member for member in self._members if not member.is_reserved]
        if not self._waiting or not members:
            return
        # As many of the samples at hand as each process gets when all that are starting are there.
        processes = len(self._members) + len(self._starting)
        share = ceil(self._run.in_flight / max(1, processes))
        members.sort(key=_load)
        further = shares_of(list(map(_load, members)), len(self._waiting))
        for member, jobs in zip(members, further, strict=False):
            count = min(jobs, share - _load(member))
            if count > 0:
                self._assign([self._waiting.popleft() for _ in range(count)], member)

    def _run_suspects(self) -> None:
        """Reserves a process for suspects, one after the other, until there are none."""
        member = next((each for each in self._members if each.is_reserved), None)
        if member is None and self._suspects:
            member = min(self._members, key=_load, default=None)
        if member is None:
            return
        member.is_reserved = bool(self._suspects or member.jobs)
        if self._suspects and not member.jobs:
            member.alone = self._suspects.popleft()
            self._assign([member.alone], member)

    def _assign(self, jobs: Iterable[Job], member: _Member) -> None:
        is_stopping = self._is_stopping()
        sent: list[Job] = []
        for job in jobs:
            if is_stopping and not job.unrecorded and not job.lost:
                self._run.hand_in(WorkResult(job.work, None, pending="stop requested"))
            elif not member.shares_folder and (
                job.unrecorded or job.counted or job.work.answered is not None
            ):
                # Its task files are only here.
                self._spawn(self._perform_here(job))
            else:
                member.jobs[job.number] = job
                sent.append(job)
        if sent:
            member.link.send(("work", pack_jobs(sent)))

    async def _perform_here(self, job: Job) -> None:
        worker = replace(self._worker, unrecorded={**self._worker.unrecorded, **job.unrecorded})
        try:
            self._run.hand_in(job.with_unseen(await worker.perform(job.work)))
        except Exception as error:
            self._run.fail(error)

    # -- messages ----------------------------------------------------------------------------------

    def _receive(self, member: _Member, message: tuple[Any, ...]) -> None:
        kind = message[0]
        member.silent_s = 0.0
        if kind == "done":
            _, numbers, lines, totals, block = message
            jobs = self._take_back(member, numbers)
            self._run.hand_in(ResultLines([job.work for job in jobs], lines, totals, block))
        elif kind == "pending":
            _, number, reason = message
            for job in self._take_back(member, [number]):
                self._run.hand_in(WorkResult(job.work, None, pending=reason))
        elif kind == "files":
            self._store_files(message[1])
        elif kind == "renew":
            member.proxy.renew(message[1])
        elif kind == "acquire":
            member.proxy.acquire(*message[1:])
        elif kind == "release":
            member.proxy.release(*message[1:])
        elif kind == "sign":
            member.owes_sign = False
        elif kind == "notice":
            LOGGER.warning("%s: %s", member.node.name, message[1])
        elif kind == "failed":
            self._fail(message[1])
        else:
            _, number, error = message
            self._take_back(member, [number])
            self._fail(error)

    def _take_back(self, member: _Member, numbers: Sequence[int]) -> list[Job]:
        """The jobs of these numbers, which have ended in `member`."""
        jobs = list(map(member.jobs.pop, numbers))
        if member.alone in jobs:
            member.alone = None
        if self._failed_starts:
            self._failed_starts.pop(member.node.id, None)
        if self._waiting or self._suspects or member.is_reserved:
            self._distribute_soon()
        return jobs

    def _store_files(self, files: list[tuple[int, bytes]]) -> None:
        try:
            store_files(self._store.root, files)
        except OSError as error:
            self._fail(
                RecordError(f"{self._store.root}: a task file cannot be written: {error.strerror}")
            )

    def _send_budget_ended(self, members: Collection[_Member]) -> None:
        reason = self._worker.budget_ended()
        if reason is not None:
            for member in members:
                member.link.send(("budget_ended", reason))

    # -- processes ---------------------------------------------------------------------------------

    def _spawn(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _start(self, node: Node) -> asyncio.Task[bool]:
        """Starts a process. The task returns whether it is at work; one that cannot be used ends
        the run.
        """
        remote = self._start_host(node)
        self._remotes.add(remote)
        task = self._spawn(self._open(remote, node))
        self._starting.add(task)
        return task

    async def _open(self, remote: Remote, node: Node) -> bool:
        opened = error = None
        try:
            opened = await self._open_remote(remote, node)
        except (HostLost, EvaluatorError) as raised:
            error = raised
        finally:
            self._starting.discard(asyncio.current_task())  # pyright: ignore[reportArgumentType]
        if opened is not None:
            self._join(node, remote, opened=opened)
        elif isinstance(error, EvaluatorError):
            self._fail(error)
        else:
            LOGGER.info("a process on %s did not start: %s", node.name, error)
            self._discard(remote)
            self._restart(node, has_failed=True)
            self._check_anyone_left(error)
            self._distribute_soon()
        return opened is not None

    async def _open_remote(self, remote: Remote, node: Node) -> Opened:
        versions = await remote.call("versions")
        if versions != VERSIONS:
            raise ConfigurationError(
                f"{node.name} has {versions}, this process {VERSIONS}; install the same everywhere"
            )
        first_id = next(self._id_blocks) * IDS_EACH
        opened: Opened | EvaluatorError = await remote.call(
            "open", self._packed_recipe, self._probe, first_id
        )
        if isinstance(opened, EvaluatorError):
            raise ConfigurationError(f"{node.name}: {opened}") from opened
        if self._recipe.cache is not None and opened.owner.boot_id != current_owner().boot_id:
            raise ConfigurationError(
                f"{node.name} is another machine, which cannot use the cache; run without a cache"
            )
        return opened

    def _join(self, node: Node, remote: Remote, opened: Opened) -> None:
        def receive(message: tuple[Any, ...]) -> None:
            self._receive(member, message)

        link = Link(remote, receive, on_lost=lambda error: self._lose(member, error))
        proxy = LimiterProxy(
            self._worker.evaluator.limiter,
            link.send,
            on_rejected=lambda: self._send_budget_ended(self._members),
        )
        member = _Member(
            node, link, proxy=proxy, shares_folder=opened.shares_folder, owner=opened.owner
        )
        self._members.append(member)
        self._links.append(link)
        self._send_budget_ended([member])
        self._distribute_soon()

    def _discard(self, remote: Remote) -> None:
        self._remotes.discard(remote)
        remote.kill()

    def _restart(self, node: Node, *, has_failed: bool) -> asyncio.Task[bool] | None:
        """Starts another process on `node`, unless too many have failed there without a result."""
        failed = self._failed_starts[node.id] = self._failed_starts.get(node.id, 0) + has_failed
        if failed < MAX_FAILED_STARTS:
            return self._start(node)
        return None

    def _lose(self, member: _Member, error: Exception) -> None:
        if not self._is_open:
            return
        if not isinstance(error, HostLost):
            self._fail(portable_error(error))
            return
        LOGGER.info("a process on %s was lost: %s", member.node.name, error)
        self._members.remove(member)
        self._discard(member.link.remote)
        member.close_proxy()
        replacement = self._restart(member.node, has_failed=not member.jobs)
        self._check_anyone_left(error)
        if not self._has_failed:
            self._spawn(self._give_back(member, replacement))

    async def _give_back(self, member: _Member, replacement: asyncio.Task[bool] | None) -> None:
        """Others do the jobs of a lost process, and resume its task files, so that no finished step
        is repeated.
        """
        jobs = list(member.jobs.values())
        if member.shares_folder and jobs:
            try:
                found = await find_unrecorded(
                    self._store,
                    self._newest,
                    identities={job.work.identity.value for job in jobs},
                    owner=member.owner,
                )
            except RecordError as error:
                self._fail(error)
                return
            for job in jobs:
                job.unrecorded |= found[job.work.identity.value]
        for job in reversed(jobs):
            job.lost += 1
            job.unseen += not member.shares_folder
            # If the node can start another process, it is not the node that was lost: the sample is
            # the cause.
            if job is member.alone and await _succeeds(replacement):
                self._run.hand_in(WorkResult(job.work, _crash_result(job, self._store)))
            elif job is member.alone or job.lost >= SUSPECT_AFTER:
                self._suspects.append(job)
            else:
                self._waiting.appendleft(job)
        self._distribute_soon()

    def _check_anyone_left(self, error: Exception | None) -> None:
        if not self._members and not self._starting:
            reason = str(error).strip() or type(error).__name__
            self.lose_all(reason)

    def _fail(self, error: EvaluatorError) -> None:
        if not self._has_failed:
            self._has_failed = True
            self._run.fail(error)


def _crash_result(job: Job, store: TaskStore) -> SampleResult:
    """The error of a sample whose process ended while it evaluated only that sample, with the usage
    that its task and those of its judges record. It is unknown, where records were lost with a
    process.
    """
    message = (
        "the process that evaluated only this sample ended unexpectedly: it crashed, or ran "
        "out of memory"
    )
    number = job.unrecorded.get(job.work.identity.value)
    task_file = None
    if number is not None:
        try:
            task_file = str(Path("tasks", store.path_of(number).relative_to(store.root)))
        except RecordError:
            # A task in a segment has no file of its own.
            message += f"; what it recorded: evaluator tasks show {number}{store.option}"
    used = recorded_use(store, job.unrecorded.values())
    if job.unseen:
        usage = used.usage + UNKNOWN_USAGE
    else:
        usage = used.usage
    failure = Failure("TASK_FAILURE", "unexpected_error", message=message)
    return replace(
        unanswered_result(job.work, failure),
        task_id=number,
        task_file=task_file,
        usage=usage,
        cached_calls=used.cached_calls,
        interrupted_calls=used.interrupted_calls + job.unseen,
        judge_tasks=tuple(task for label, task in job.unrecorded.items() if "/" in label),
    )


def _by_sample(tasks: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """Tasks by the identities of their samples, and by their labels."""
    found: dict[str, dict[str, int]] = {}
    for label, task_id in tasks.items():
        found.setdefault(label.partition("/")[0], {})[label] = task_id
    return found


async def _succeeds(start: Awaitable[bool] | None) -> bool:
    return start is not None and await start


async def _close(remote: Remote) -> None:
    with suppress(HostLost, TimeoutError):
        await asyncio.wait_for(remote.call("close"), CLOSE_S)
