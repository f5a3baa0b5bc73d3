"""The states of all background tasks of a folder, and their notifications: an SQLite database that
processes share.

Every change of a state is one transaction that first looks whether the change is allowed, so that
of several processes that end a task at once exactly one succeeds; it adds the notification in the
same transaction. A process that dies leaves the state of its tasks as it was; the next one that
looks finds that their owner is gone and ends them.

A notification is claimed before it is delivered, in one statement. It is therefore never delivered
twice; if a process dies between the two, it stays readable here.

An ended task is evicted after some time, see `evict`; its output file stays.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Literal

from evaluator.background.notifications import Notice, NoticeKind, end_notice
from evaluator.background.output import SUFFIXES
from evaluator.background.tasks import FINAL, Activity, BackgroundTask, End, Priority, check_id
from evaluator.errors import UsageError
from evaluator.files.private_folder import open_private_folder
from evaluator.record.owner import is_gone
from evaluator.record.steps import Owner
from evaluator.store import database
from evaluator.store.database import transaction

_FIELDS = tuple(field.name for field in fields(BackgroundTask))
_TABLES = f"""
CREATE TABLE task ({", ".join("id TEXT PRIMARY KEY" if name == "id" else name for name in _FIELDS)}) WITHOUT ROWID;
CREATE INDEX task_status ON task (status);
CREATE INDEX task_session ON task (session);
CREATE INDEX task_ended ON task (ended_at) WHERE ended_at IS NOT NULL;
CREATE TABLE notice (
    number INTEGER PRIMARY KEY AUTOINCREMENT, task_id TEXT NOT NULL, kind TEXT NOT NULL, session TEXT,
    priority TEXT NOT NULL, xml TEXT NOT NULL, created REAL NOT NULL, claimed REAL
);
CREATE UNIQUE INDEX notice_end ON notice (task_id) WHERE kind = 'end';
CREATE UNIQUE INDEX notice_event ON notice (task_id) WHERE kind = 'event' AND claimed IS NULL;
CREATE INDEX notice_open ON notice (session) WHERE claimed IS NULL;
CREATE INDEX notice_task ON notice (task_id);
CREATE TABLE message (number INTEGER PRIMARY KEY AUTOINCREMENT, task_id TEXT NOT NULL, text TEXT)
"""
FORMAT = database.Format("background tasks", 0x45764267, 3, _TABLES, "name another folder")
FILE_NAME = "background.sqlite"
GONE = "the process that ran it is gone; its output up to then is kept"
KEPT_ENDED = 10_000
"""Ended tasks that are kept at most; the latest ones."""
KEPT_TOLD_S = 7 * 24 * 3600.0
KEPT_S = 30 * 24 * 3600.0
"""Seconds that an ended task is kept: one whose notification was delivered, and any other."""
MAX_MESSAGES = 100
MAX_MESSAGE_CHARS = 1_000_000
_BUSY_S = 30.0
_NOTED = ("task_file", "input_tokens", "output_tokens")
"""What was noted while a task ran, and stays if its end does not say."""
_NOTICE = "number, task_id, kind, session, priority, xml"
Requested = Literal["requested", "killed", "ended"]


class BackgroundStore:
    """The background tasks of `folder`, which is created if it is missing.

    Raises: RecordError, if other users may change the folder; ConfigurationError; OSError;
    sqlite3.Error.
    """

    def __init__(self, folder: str | Path, *, now: Callable[[], float] = time.time) -> None:
        self.folder = Path(folder).absolute()
        os.close(open_private_folder(self.folder, "folder of background tasks"))
        self._connection = database.connect(self.folder / FILE_NAME, FORMAT, _BUSY_S)
        self._now = now

    def close(self) -> None:
        self._connection.close()

    def version(self) -> int:
        """A number that changes when another process has changed something."""
        return self._connection.execute("PRAGMA data_version").fetchone()[0]

    # -- states ------------------------------------------------------------------------------------

    def add(self, task: BackgroundTask) -> None:
        """Records a new task, which is pending."""
        values = [_to_sql(getattr(task, name)) for name in _FIELDS]
        self._connection.execute(
            f"INSERT INTO task VALUES ({', '.join('?' * len(values))})", values
        )

    def begin(self, task_id: str) -> bool:
        """pending → running. False: the task was killed meanwhile, and must not be started."""
        sql = (
            "UPDATE task SET status = 'running', started_at = ? WHERE id = ? AND status = 'pending'"
        )
        return self._connection.execute(sql, (self._now(), task_id)).rowcount == 1

    def end(self, task_id: str, end: End) -> BackgroundTask | None:
        """Ends a task and adds its notification. A task that somebody asked to kill ends as killed,
        however it ended.

        Returns: the ended task; None if it had ended before, which changes nothing.
        """
        with transaction(self._connection):
            task = self._find(task_id)
            if task is None or task.has_ended:
                return None
            return self._end(task, end)

    def request_kill(self, task_id: str, reason: str) -> Requested:
        """Asks the owner of a task to kill it. A pending task, and one whose owner is gone, is
        killed at once.

        Raises: UsageError, if there is no such task.
        """
        with transaction(self._connection):
            task = self.get(task_id)
            if task.has_ended:
                return "ended"
            reason = task.kill_reason or reason
            self.note(task_id, kill_reason=reason)
            if task.status == "running" and not is_gone(task.owner):
                return "requested"
            self._end(self.get(task_id), End("killed", reason=reason))
            return "killed"

    def end_orphans(self) -> list[BackgroundTask]:
        """Ends the tasks whose owner is gone: as failed, or as killed if somebody had asked for
        that.
        """
        orphans = [task for task in self.list(ended=False) if is_gone(task.owner)]
        ended = [self.end(task.id, End("failed", reason=GONE)) for task in orphans]
        return [task for task in ended if task is not None]

    def note(self, task_id: str, **values: Any) -> None:
        """Notes fields of a task, such as `is_waiting`, or the `task_file` with which it can be
        resumed.
        """
        names = ", ".join(f"{name} = ?" for name in values)
        self._connection.execute(
            f"UPDATE task SET {names} WHERE id = ?", (*values.values(), task_id)
        )

    def set_activity(self, task_id: str, activity: Activity | None) -> None:
        """Notes whether a session is answering. It is not idle while a message to it has not been
        taken.
        """
        sql = (
            "UPDATE task SET activity = ?1 WHERE id = ?2 AND status = 'running'"
            " AND (?1 IS NOT 'idle' OR NOT EXISTS (SELECT 1 FROM message WHERE task_id = ?2))"
        )
        self._connection.execute(sql, (activity, task_id))

    def evict(self) -> None:
        """Removes tasks that ended a week ago, or a month ago if their notification is not claimed,
        and the oldest beyond KEPT_ENDED. What is kept of them is the output file.
        """
        is_told = (
            "EXISTS (SELECT 1 FROM notice WHERE task_id = task.id AND kind = 'end' AND "
            "claimed IS NOT NULL)"
        )
        beyond = (
            "SELECT ended_at FROM task WHERE ended_at IS NOT NULL ORDER BY ended_at DESC "
            "LIMIT 1 OFFSET ?"
        )
        sql = (
            f"DELETE FROM task WHERE ended_at <= ({beyond}) OR ended_at < ? OR (ended_at < ? "
            f"AND {is_told})"
        )
        now = self._now()
        with transaction(self._connection):
            if self._connection.execute(
                sql, (KEPT_ENDED, now - KEPT_S, now - KEPT_TOLD_S)
            ).rowcount:
                self._connection.execute(
                    "DELETE FROM notice WHERE task_id NOT IN (SELECT id FROM task)"
                )

    def _end(self, task: BackgroundTask, end: End) -> BackgroundTask:
        values = {**asdict(end), "ended_at": self._now(), "is_waiting": False, "activity": None}
        values |= {name: getattr(task, name) for name in _NOTED if values[name] is None}
        if task.kill_reason is not None:
            values |= {"status": "killed", "reason": task.kill_reason}
        self.note(task.id, **values)
        self._connection.execute("DELETE FROM message WHERE task_id = ?", (task.id,))
        ended = self.get(task.id)
        self.add_notice(ended, "end", priority=ended.priority, xml=end_notice(ended))
        return ended

    # -- messages to sessions ----------------------------------------------------------------------

    def send(self, task_id: str, text: str | None) -> None:
        """Leaves a message to a session, which its process takes; None ends the session after what
        was sent before.

        Raises: UsageError, if it is not a session, has ended, or has not taken MAX_MESSAGES
        messages yet.
        """
        if text is not None and len(text) > MAX_MESSAGE_CHARS:
            raise UsageError(
                f"the message has {len(text):,} characters; at most {MAX_MESSAGE_CHARS:,} can "
                "be sent"
            )
        with transaction(self._connection):
            task = self.get(task_id)
            if task.type != "t":
                raise UsageError(
                    f"{task_id} is not an interactive session; only a session takes messages"
                )
            if task.has_ended:
                raise UsageError(
                    f"the session {task_id} has ended ({task.status}); start a new one"
                )
            (waiting,) = self._connection.execute(
                "SELECT count(*) FROM message WHERE task_id = ?", (task_id,)
            ).fetchone()
            if waiting >= MAX_MESSAGES:
                raise UsageError(
                    f"{waiting} messages wait for the session {task_id}; wait until it has answered"
                )
            self._connection.execute(
                "INSERT INTO message (task_id, text) VALUES (?, ?)", (task_id, text)
            )
            self.note(task_id, activity="active")

    def addressees(self) -> list[str]:
        """The tasks that have messages which nobody has taken."""
        return [row[0] for row in self._connection.execute("SELECT DISTINCT task_id FROM message")]

    def take_messages(self, task_id: str) -> list[str | None]:
        """The messages to a task, oldest first; from now on they are taken."""
        rows = self._connection.execute(
            "DELETE FROM message WHERE task_id = ? RETURNING number, text", (task_id,)
        )
        return [text for _, text in sorted(rows.fetchall(), key=lambda row: row[0])]

    # -- reading -----------------------------------------------------------------------------------

    def get(self, task_id: str) -> BackgroundTask:
        """The task. Raises: UsageError, if there is none of that id."""
        task = self.find(task_id)
        if task is None:
            raise self._unknown(task_id)
        return task

    def find(self, task_id: str) -> BackgroundTask | None:
        """The task; None if there is none of that id. Raises: UsageError, for a text that is not an
        id.
        """
        return self._find(check_id(task_id))

    def output_of(self, task_id: str) -> Path:
        """The output file, also of a task that was evicted. Raises: UsageError, if there is
        none.
        """
        task = self.find(task_id)
        if task is not None:
            return Path(task.output_file)
        for suffix in SUFFIXES:
            path = self.folder / f"{task_id}.{suffix}"
            if path.is_file():
                return path
        raise self._unknown(task_id)

    def _unknown(self, task_id: str) -> UsageError:
        return UsageError(
            f"there is no background task {task_id} in {self.folder}. See: evaluator ps --all"
        )

    def list(
        self, *, ended: bool | None = None, session: str | None = None
    ) -> list[BackgroundTask]:
        """The tasks, oldest first: all, only those that have ended or not, only those of a
        session.
        """
        marks = ", ".join("?" * len(FINAL))
        where = {None: "1", True: f"status IN ({marks})", False: f"status NOT IN ({marks})"}[ended]
        values: list[Any] = [] if ended is None else list(FINAL)
        if session is not None:
            where = f"{where} AND session = ?"
            values = [*values, session]
        rows = self._connection.execute(
            f"SELECT * FROM task WHERE {where} ORDER BY created_at, id", values
        )
        return [_task(row) for row in rows]

    def kill_requests(self, owner: Owner) -> list[str]:
        """The running tasks of `owner` that somebody asked to kill."""
        sql = (
            "SELECT id FROM task WHERE status = 'running' AND kill_reason IS NOT NULL AND owner = ?"
        )
        return [row[0] for row in self._connection.execute(sql, (_to_sql(owner),))]

    def _find(self, task_id: str) -> BackgroundTask | None:
        row = self._connection.execute("SELECT * FROM task WHERE id = ?", (task_id,)).fetchone()
        if row is None:
            return None
        return _task(row)

    # -- notifications -----------------------------------------------------------------------------

    def add_notice(
        self, task: BackgroundTask, kind: NoticeKind, priority: Priority, xml: str
    ) -> None:
        """Adds a notification for the session of `task`. Raises: sqlite3.IntegrityError, for a
        second end.
        """
        self._connection.execute(
            "INSERT INTO notice (task_id, kind, session, priority, xml, created) VALUES (?, ?, ?, "
            "?, ?, ?)",
            (task.id, kind, task.session, priority, xml, self._now()),
        )

    def set_event(self, task: BackgroundTask, xml: str) -> None:
        """Notifies of what happened in a task that goes on. An earlier notice of that kind that
        nobody has claimed is replaced, so that each task has at most one.
        """
        with transaction(self._connection):
            self._connection.execute(
                "DELETE FROM notice WHERE task_id = ? AND kind = 'event' AND claimed IS NULL",
                (task.id,),
            )
            if not self.get(task.id).has_ended:
                self.add_notice(task, "event", priority=task.priority, xml=xml)

    def notices(self, task_id: str) -> list[Notice]:
        """All notifications of a task, oldest first, claimed or not."""
        sql = f"SELECT {_NOTICE} FROM notice WHERE task_id = ? ORDER BY number"
        return [Notice(*row) for row in self._connection.execute(sql, (task_id,))]

    def claim(
        self,
        *,
        session: str | None = None,
        task_id: str | None = None,
        priorities: Sequence[Priority] = ("next", "later"),
    ) -> list[Notice]:
        """The notifications of a session, or of a task, that nobody has claimed; from now on they
        are claimed.
        """
        if task_id is not None:
            field, value = ("task_id", task_id)
        else:
            field, value = ("session", session)
        marks = ", ".join("?" * len(priorities))
        sql = (
            f"UPDATE notice SET claimed = ? WHERE claimed IS NULL AND {field} = ? AND priority IN "
            f"({marks}) "
            f"RETURNING {_NOTICE}"
        )
        rows = self._connection.execute(sql, (self._now(), value, *priorities)).fetchall()
        return sorted((Notice(*row) for row in rows), key=lambda notice: notice.number)


def _to_sql(value: Any) -> Any:
    if isinstance(value, Owner):
        return json.dumps(asdict(value))
    if isinstance(value, tuple):
        return json.dumps(value)
    return value


def _task(row: Sequence[Any]) -> BackgroundTask:
    values = dict(zip(_FIELDS, row, strict=True))
    command = values["notify_command"]
    if command is None:
        values["notify_command"] = None
    else:
        values["notify_command"] = tuple(json.loads(command))
    values |= {
        "owner": Owner(**json.loads(values["owner"])),
        "is_waiting": bool(values["is_waiting"]),
    }
    return BackgroundTask(**values)
