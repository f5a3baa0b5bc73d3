"""Notifications: what the session that started a task is told about it, as XML.

The end of a task has exactly one, with the task's status. A notice about a prompt that waits for an
answer, or about an event (an answer of a session, a change that a watch has seen), has no `status`
element, because the task has not ended.
"""

from __future__ import annotations

from typing import Literal

from evaluator.jobs.tasks import BackgroundTask, Priority
from evaluator.lazy_dataclass import dataclass
from evaluator.patterns import Pattern

NoticeKind = Literal["end", "stall", "event"]
# Characters that XML 1.0 does not allow, even escaped.
_NOT_XML = Pattern("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True)
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
    return (
        "Continue it with: evaluator "
        f"{'chat --resume' if task.type == 't' else 'tasks resume'} {number}"
    )


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
