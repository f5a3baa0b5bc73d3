"""The types of background task that run in this process.

Types `a` and `w`: a Handler of one atomic task, and a composite template, in this process.

The output file is a transcript in JSON lines: each message of each conversation as it is added,
then the outcome. The task file, which the last line names, has the whole record. A kill aborts the
evaluation, which closes its record as aborted and ends the scripts and subtasks that it runs.

Type `t`: an interactive session, which answers the messages that are sent to it, one after the
other.

It is active while it answers, and idle otherwise. The output file is a transcript as that of other
evaluations, with a line for each query that failed. A session ends when it is told to (completed),
or is killed.

Type `m`: watches an MCP server: its resources, its lists and its log messages.

The output file has a line of JSON for each event, and one with the text of a watched resource after
each change. The task goes on until it is killed, has seen `max_events` events (completed), or the
server is lost (failed).

Type `d`: brings a memory index up to date with its folders, in the background.

A lock file beside the index holds the lock of the consolidation that runs, and its modification
time says when the last one completed. The time is set when a consolidation starts, so that no other
session starts one. A consolidation that is killed or fails sets it back; one whose process died is
recognised by the former time in the file.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from evaluator import clock, disk
from evaluator.errors import ToolError
from evaluator.errors.messages import amount, cut
from evaluator.errors.results import Outcome, TaskError, TaskId, TaskResult
from evaluator.files.atomic import try_lock
from evaluator.handler.conversation import OnMessage
from evaluator.interpreter.chat import ChatReply
from evaluator.interpreter.frame import OnBegin
from evaluator.jobs.output import Output
from evaluator.jobs.tasks import End, TaskType, Work
from evaluator.memory import GlobalIndex
from evaluator.nodes import Atomic, Node, TopLevel
from evaluator.record.redact import Redactor
from evaluator.tools.mcp import McpServer
from evaluator.tools.mcp.content import EventWatch, text_of_contents

if TYPE_CHECKING:
    from evaluator.tools.mcp.connection import Connection

_SUMMARY_CHARS = 500
Evaluate = Callable[[OnMessage, OnBegin], Awaitable[Outcome]]
EvaluationType = Literal["a", "w", "t"]


def type_of(node: Node | TopLevel) -> Literal["a", "w"]:
    """The type of the background task that evaluates `node`."""
    if isinstance(node, Atomic):
        return "a"
    return "w"


class EvaluationWork(Work):
    """Evaluates one task: `evaluate` gets the callbacks for messages and for the id of its task
    file, and returns the outcome.
    """

    def __init__(self, kind: EvaluationType, evaluate: Evaluate, redactor: Redactor) -> None:
        self.type = kind
        self._evaluate = evaluate
        self._redactor = redactor
        self._inputs: dict[str, int | None] = {}
        self._outputs: list[int | None] = []

    @property
    def tokens(self) -> tuple[int | None, int | None]:
        """Input tokens of the last request of each session, summed; output tokens of all turns.
        None: unknown.
        """
        return _sum(self._inputs.values()), _sum(self._outputs)

    async def run(self, output: Output) -> End:
        """Evaluates the task to its end."""
        if self._is_killed:
            return End("killed")

        def note(path: str, message: Mapping[str, Any]) -> None:
            usage = message.get("usage")
            if usage is not None:
                self._inputs[path] = usage["input_tokens"]
                self._outputs.append(usage["output_tokens"])
            output.write_record({"type": "message", "path": path, **message}, self._redactor)

        evaluation = self._running = asyncio.ensure_future(self._evaluate(note, self._begin))
        try:
            await asyncio.wait([evaluation])
        except asyncio.CancelledError:
            evaluation.cancel()
            raise
        if evaluation.cancelled():
            output.write_record({"type": "aborted"}, self._redactor)
            used, made = self.tokens
            return End("killed", task_file=self.task_file, input_tokens=used, output_tokens=made)
        outcome = evaluation.result()
        output.write_record({"type": "outcome", **outcome.to_dict()}, self._redactor)
        return self._end(outcome)

    def _begin(self, task_id: TaskId) -> None:
        self.task_file = f"TASK-{task_id}"
        if self.on_task_file is not None:
            self.on_task_file()

    def _end(self, outcome: Outcome) -> End:
        used, made = self.tokens
        if outcome.task_id is None:
            number = None
        else:
            number = f"TASK-{outcome.task_id}"
        if isinstance(outcome, TaskError):
            end = End("failed", reason=self._redactor.redact(str(outcome)))
        else:
            end = End("completed", summary=self.shortened(outcome.content))
        return replace(end, task_file=number, input_tokens=used, output_tokens=made)

    def shortened(self, content: str) -> str:
        """The beginning of `content`, redacted."""
        return cut(self._redactor.redact(content), _SUMMARY_CHARS + 1)


def _sum(counts: Any) -> int | None:
    found = list(counts)
    if not found or None in found:
        return None
    return sum(found)


Converse = Callable[
    [Callable[[], Awaitable[str | None]], Callable[[ChatReply], None], OnMessage, OnBegin],
    Awaitable[Outcome],
]


class SessionWork(EvaluationWork):
    """A session: `converse` gets the functions that give the next query and take a reply, as those
    of `Evaluator.chat`, and the callbacks for messages and for the id of the task file.
    """

    priority = "next"

    def __init__(self, converse: Converse, redactor: Redactor) -> None:
        super().__init__(
            "t",
            lambda on_message, on_begin: converse(self._ask, self._show, on_message, on_begin),
            redactor,
        )
        self._inbox: asyncio.Queue[str | None] = asyncio.Queue()
        self._output: Output | None = None
        self.activity = "active"

    def receive(self, message: str | None) -> None:
        self.activity = "active"
        self._inbox.put_nowait(message)

    async def run(self, output: Output) -> End:
        self._output = output
        return await super().run(output)

    async def _ask(self) -> str | None:
        self.activity = "idle" if self._inbox.empty() else "active"
        query = await self._inbox.get()
        self.activity = "active"
        return query

    def _show(self, reply: ChatReply) -> None:
        outcome = reply.outcome
        if isinstance(outcome, TaskResult):
            self._event = (
                f"it has answered and waits for the next message\n{self.shortened(outcome.content)}"
            )
            return
        self._event = f"it has not answered: {self.shortened(outcome.message)}"
        if self._output is not None:
            self._output.write_record({"type": "failure", **outcome.to_dict()}, self._redactor)


class WatchWork(Work):
    """Watches the resources `uris` of `server`, whose program starts in `cwd`, and what it
    announces by itself.
    """

    type: TaskType = "m"
    priority = "next"

    def __init__(
        self,
        server: McpServer,
        uris: tuple[str, ...] = (),
        *,
        cwd: Path | None = None,
        max_events: int | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._server = server
        self._uris = uris
        self._cwd = cwd
        self._max_events = max_events
        self._environ = os.environ if environ is None else environ
        self._redactor = Redactor.from_environment(self._environ)
        self._is_done = False
        self._changed: dict[str, None] = {}
        self._wake = asyncio.Event()
        self._failure: OSError | None = None
        self._output: Output | None = None
        self._events = 0

    async def run(self, output: Output) -> End:
        """Watches the server until its end. Its program and all that it started have ended then."""
        from evaluator.tools.mcp.connection import Connection

        if self._is_killed:
            return End("killed")
        self._output = output
        connection = Connection(
            self._server, self._environ, cwd=self._cwd, watch=EventWatch(self._uris, self._note)
        )
        following = self._running = asyncio.ensure_future(self._follow(connection))
        try:
            await asyncio.wait([following])
        finally:
            following.cancel()
            await connection.aclose("it was killed" if self._is_killed else "")
        if self._is_killed:
            return End("killed", summary=self._summary())
        if why := following.result():
            reason = self._redactor.redact(f"MCP server {self._server.name!r}: {why}")
            return End("failed", reason=reason, summary=self._summary())
        return End("completed", summary=self._summary())

    async def _follow(self, connection: Connection) -> str:
        """Reads resources that have changed. Returns: why the server is lost; "" after the last
        event.
        """
        ended = asyncio.ensure_future(connection.ended())
        while not self._is_done or self._changed:
            waking = asyncio.ensure_future(self._wake.wait())
            await asyncio.wait([waking, ended], return_when=asyncio.FIRST_COMPLETED)
            waking.cancel()
            self._wake.clear()
            if self._failure is not None:
                raise self._failure
            if ended.done():
                return ended.result()
            while self._changed and not ended.done():
                await self._read(connection, next(iter(self._changed)))
        return ""

    async def _read(self, connection: Connection, uri: str) -> None:
        """Writes the text of a changed resource. Changes during the read cause another one."""
        del self._changed[uri]
        try:
            answer = await connection.request(
                uri, lambda client: client.read_resource(uri), self._server.timeout_s
            )
            self._write({"event": "resource", "uri": uri, "text": text_of_contents(answer)})
        except ToolError as error:
            self._write({"event": "resource", "uri": uri, "error": str(error)})

    def _note(self, event: Mapping[str, Any]) -> None:
        if self._is_done:
            return
        self._events += 1
        self._is_done = self._events == self._max_events
        try:
            self._write(event)
        except OSError as error:
            self._failure = error
        if event.get("uri") in self._uris:
            self._changed[event["uri"]] = None
        what = self._redactor.redact(
            " ".join(str(event[key]) for key in ("event", "uri", "data") if key in event)
        )
        self._event = f"event {self._events}: {what[:500]}"
        self._wake.set()

    def _write(self, record: Mapping[str, Any]) -> None:
        if self._output is not None:
            self._output.write_record(record, self._redactor)

    def _summary(self) -> str:
        return amount(self._events, "event")


DUE_S = 24 * 3600.0
"""Seconds after which an index is due again."""
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class ConsolidationLock:
    """The lock file of the index at `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path.with_name(f"{path.name}.consolidated")

    def is_due(self, now: float | None = None) -> bool:
        """Whether the last consolidation completed more than a day ago and none is running.

        False also if the lock cannot be written.
        """
        try:
            descriptor = self.acquire()
        except OSError:
            return False
        if descriptor is None:
            return False
        try:
            # A time in the future is from a clock that was wrong.
            return (
                abs((clock.wall() if now is None else now) - os.fstat(descriptor).st_mtime) > DUE_S
            )
        finally:
            disk.close(descriptor)

    def acquire(self) -> int | None:
        """A descriptor that holds the lock until it is closed; None if another process has it.
        Raises: OSError.

        The time that a process left behind when it died is set back.
        """
        is_new = not self.path.exists()
        descriptor = disk.open(self.path, _FLAGS, 0o600)
        if not try_lock(descriptor):
            disk.close(descriptor)
            return None
        former = 0.0 if is_new else _former(descriptor)
        if former is not None:
            self.rewind(descriptor, former)
        return descriptor

    def begin(self, descriptor: int) -> float:
        """Sets the time to now. Returns: the former time."""
        former = os.fstat(descriptor).st_mtime
        disk.pwrite(descriptor, json.dumps(former).encode(), 0)
        disk.utime(descriptor)
        return former

    def complete(self, descriptor: int) -> None:
        """Sets the time to now, for good."""
        disk.ftruncate(descriptor, 0)
        disk.utime(descriptor)

    def rewind(self, descriptor: int, former: float) -> None:
        """Sets the time back."""
        disk.ftruncate(descriptor, 0)
        disk.utime(descriptor, (former, former))


def _former(descriptor: int) -> float | None:
    """The time in the file of a consolidation that has not ended; None if there is none."""
    try:
        return float(json.loads(os.pread(descriptor, 100, 0)))
    except ValueError:
        return None


class ConsolidationWork(Work):
    """Consolidates the index at `path`, see `GlobalIndex.consolidate`."""

    type: TaskType = "d"

    def __init__(self, path: Path) -> None:
        self._path = path

    async def run(self, output: Output) -> End:
        """Consolidates the index, unless another process does."""
        lock = ConsolidationLock(self._path)
        descriptor = lock.acquire()
        if descriptor is None:
            return End("failed", reason="another process consolidates this index")
        try:
            if self._is_killed:
                return End("killed")
            former = lock.begin(descriptor)
            consolidation = self._running = asyncio.ensure_future(self._consolidate())
            try:
                await asyncio.wait([consolidation])
                summary = consolidation.result()
            except BaseException:
                lock.rewind(descriptor, former)
                if consolidation.cancelled():
                    return End("killed")
                raise
            lock.complete(descriptor)
            output.write(f"{summary}\n".encode())
            return End("completed", summary=summary)
        finally:
            disk.close(descriptor)

    async def _consolidate(self) -> str:
        with GlobalIndex(self._path) as index:
            return str(await index.consolidate())
