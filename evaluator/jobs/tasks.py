"""A background task: its id, its type, its states and its end.

    pending ──> running ──> completed | failed | killed
       └──────────────────> failed | killed

The last three states are final. An id is the letter of the type and eight characters from a
cryptographic source, so that nobody can guess the name of an output file before it is created.

Notifications: what the session that started a task is told about it, as XML. The end of a task has
exactly one, with the task's status. A notice about a prompt that waits for an answer, or about an
event (an answer of a session, a change that a watch has seen), has no `status` element, because the
task has not ended.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import string
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, get_args

from evaluator import randomness
from evaluator.errors import UsageError
from evaluator.jobs.output import Output
from evaluator.lazy_dataclass import frozen
from evaluator.patterns import Pattern
from evaluator.store.owners import Owner

TaskType = Literal["b", "a", "r", "t", "w", "m", "d"]
TaskStatus = Literal["pending", "running", "completed", "failed", "killed"]
FinalStatus = Literal["completed", "failed", "killed"]
Activity = Literal["idle", "active"]
Priority = Literal["next", "later"]
TYPES: Mapping[TaskType, str] = {
    "b": "script process",
    "a": "Handler of one atomic task",
    "r": "run on another node",
    "t": "interactive session",
    "w": "composite template",
    "m": "watch on an MCP server",
    "d": "memory consolidation",
}
FINAL: tuple[FinalStatus, ...] = get_args(FinalStatus)
PRIORITIES: tuple[Priority, ...] = get_args(Priority)
_CHARACTERS = string.digits + string.ascii_lowercase
_ID = re.compile(rf"[{''.join(TYPES)}][0-9a-z]{{8}}")


def new_id(kind: TaskType) -> str:
    """A new id of this type."""
    return kind + "".join(randomness.choice(_CHARACTERS) for _ in range(8))


def check_id(text: str) -> str:
    """`text`, which is a task's id. Raises: UsageError, if it is not."""
    if not _ID.fullmatch(text):
        raise UsageError(
            f"{text[:40]!r} is not a background task; an id looks like b3f9k2m1x. See: evaluator "
            "ps --all"
        )
    return text


@frozen
class End:
    """How a task ended. A process has an exit code or a signal; `reason` says why a task failed or
    was killed.

    `input_tokens` is what the last request of each session held, which includes everything before
    it; `output_tokens` is the sum over all turns. None: unknown.
    """

    status: FinalStatus
    exit_code: int | None = None
    signal: int | None = None
    reason: str | None = None
    summary: str = ""
    task_file: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None


@frozen
class BackgroundTask:
    """The recorded state of a task. Times are seconds since 1970.

    `session` identifies what started the task and gets its notifications; `tool_use_id` is the call
    of a model. `kill_reason` is set as soon as somebody asks to kill the task. `is_waiting`: its
    output stopped growing at a prompt. `activity` is that of a running session: idle as soon as
    everything that was sent to it is answered. `notify_command` gets its notifications on standard
    input; without one, the session gets them. `notify_error` says why that command failed the last
    time.
    """

    id: str
    type: TaskType
    description: str
    status: TaskStatus
    output_file: str
    created_at: float
    owner: Owner
    session: str | None = None
    tool_use_id: str | None = None
    priority: Priority = "later"
    notify_command: tuple[str, ...] | None = None
    started_at: float | None = None
    ended_at: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    reason: str | None = None
    kill_reason: str | None = None
    summary: str = ""
    task_file: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    is_waiting: bool = False
    activity: Activity | None = None
    notify_error: str | None = None

    @property
    def has_ended(self) -> bool:
        return self.status in FINAL

    def to_dict(self) -> dict[str, Any]:
        """The fields for JSON; `owner` is the id of the process."""
        return {**asdict(self), "owner": self.owner.pid}


class Work(ABC):
    """What a task of one type does. `run` ends only when nothing of it is running any more.

    After `kill`, which may be called at any time and more than once, `run` returns soon.
    """

    type: TaskType
    priority: Priority = "later"
    """That of its notifications."""
    is_watched: bool = False
    """Whether a prompt at the end of an output that stopped growing is worth a notice."""
    activity: Activity | None = None
    """Whether a session is answering; None for everything else."""
    task_file: str | None = None
    """The task file of an evaluation, as soon as there is one."""
    on_task_file: Callable[[], None] | None = None
    """Called as soon as `task_file` is known."""
    _is_killed = False
    _running: asyncio.Future[Any] | None = None
    """What `kill` cancels."""
    _event = ""

    @property
    def tokens(self) -> tuple[int | None, int | None]:
        """The input and output tokens so far, see `End`."""
        return None, None

    def take_event(self) -> str:
        """What happened since the last call that is worth a notice while the task runs; empty:
        nothing.
        """
        event = self._event
        self._event = ""
        return event

    def receive(self, message: str | None) -> None:
        """Takes a message that was sent to the task; None: the last one was the last."""
        raise UsageError(f"a {TYPES[self.type]} takes no messages")

    def is_waiting(self) -> bool | None:
        """Whether a program of the task waits for an answer now; None where nothing tells."""
        return None

    @abstractmethod
    async def run(self, output: Output) -> End: ...

    def kill(self, reason: str = "") -> None:
        """Ends the task soon; `reason` is recorded in the task file of what it runs."""
        self._is_killed = True
        if self._running is not None:
            self._running.cancel(reason or None)


NoticeKind = Literal["end", "stall", "event"]
# Characters that XML 1.0 does not allow, even escaped.
_NOT_XML = Pattern("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@frozen
class Notice:
    """A notification. `next` is delivered with the next tool result, `later` with the next message
    of the user.
    """

    number: int
    task_id: str
    kind: NoticeKind
    session: str | None
    priority: Priority
    xml: str


def end_notice(task: BackgroundTask) -> str:
    """The notification of a task that has ended."""
    return _xml(task, task.status, summary=end_summary(task))


def running_notice(task: BackgroundTask, summary: str) -> str:
    """A notification of a task that goes on: about a prompt that waits for an answer, or about an
    event.
    """
    return _xml(task, None, summary=summary)


def end_summary(task: BackgroundTask) -> str:
    """One line about the end of a task."""
    facts = [task.reason or ""]
    facts += [] if task.exit_code is None else [f"exit code {task.exit_code}"]
    facts += [] if task.signal is None else [f"signal {task.signal}"]
    how = "; ".join(fact for fact in facts if fact)
    line = (
        f"{task.description!r} "
        f"{'was killed' if task.status == 'killed' else task.status}{f' ({how})' if how else ''}"
    )
    return "\n".join(part for part in (line, task.summary, _continuation(task)) if part)


def _continuation(task: BackgroundTask) -> str:
    """How the user continues an evaluation that has not completed. One that a model started
    continues with its task.
    """
    if task.status == "completed" or task.task_file is None or task.session is not None:
        return ""
    number = task.task_file.removeprefix("TASK-")
    command = "chat --resume" if task.type == "t" else "tasks resume"
    return f"Continue it with: evaluator {command} {number}{_tasks_option(task)}"


def _tasks_option(task: BackgroundTask) -> str:
    """The option with the folder of the task file: commands keep background tasks in a folder of
    it. Empty for the default, and where the task file is elsewhere.
    """
    folder = Path(task.output_file).parent.parent
    files = [folder / state / f"{task.task_file}.md" for state in ("active", "done")]
    if not any(map(os.path.isfile, files)):
        return ""
    if os.path.isdir("tasks") and os.path.samefile("tasks", folder):
        return ""
    return f" --tasks {shlex.quote(str(folder))}"


def _xml(task: BackgroundTask, status: str | None, summary: str) -> str:
    fields = {
        "task_id": task.id,
        "tool_use_id": task.tool_use_id,
        "output_file": task.output_file,
        "status": status,
        "summary": summary,
    }
    lines = [
        f"<{name}>{_text(value)}</{name}>" for name, value in fields.items() if value is not None
    ]
    return "\n".join(["<task_notification>", *lines, "</task_notification>"])


def _text(value: str) -> str:
    # Imports urllib.request and http.client.
    from xml.sax.saxutils import escape

    # A carriage return that is not escaped is read as a line feed.
    return escape(_NOT_XML.sub("\ufffd", value), {"\r": "&#13;"})
