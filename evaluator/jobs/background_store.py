"""The states of all background tasks of a folder, and their notifications: an SQLite database that
processes share.

Every change of a state is one transaction that first looks whether the change is allowed, so that
of several processes that end a task at once exactly one succeeds; it adds the notification in the
same transaction. A process that dies leaves the state of its tasks as it was; the next one that
looks finds that their owner is gone and ends them.

A row that this user's programs have not written is shown; its command does not run, and its
notifications and messages reach nobody.

A notification is claimed before it is delivered, in one statement. It is therefore never delivered
twice; if a process dies between the two, it stays readable here.

An ended task is evicted after some time, see `evict`; its output file stays.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, Literal

from evaluator import clock
from evaluator.errors import UsageError
from evaluator.fields import check_fields
from evaluator.files.open_below import open_private_folder
from evaluator.jobs.output import SUFFIXES
from evaluator.jobs.store import JobStore
from evaluator.jobs.tasks import (
    Activity,
    BackgroundTask,
    End,
    Notice,
    NoticeKind,
    Priority,
    check_id,
    end_notice,
)
from evaluator.store import database, leases
from evaluator.store.owners import Owner, current_owner, owner_text, parse_owner
from evaluator.store.rows import Row, Table

_NOUN = "background tasks"
_FIELDS = tuple(field.name for field in fields(BackgroundTask))


def _check_task(row: Mapping[str, Any]) -> None:
    task = _task(row)
    check_id(task.id)
    check_fields(task)
    if parse_owner(row["owner"]) is None:
        raise ValueError("owner has another type")


TASK = Table(
    "task",
    _NOUN,
    _FIELDS,
    name_of=lambda id: f"the task {id}",
    key_type="TEXT",
    check=_check_task,
)
_NOTICE = Table(
    "notice",
    _NOUN,
    ("number", "task_id", "kind", "session", "priority", "xml", "created", "claimed"),
    name_of=lambda number: f"the notification {number}",
)
_MESSAGE = Table(
    "message",
    _NOUN,
    ("number", "task_id", "text"),
    name_of=lambda number: f"the message {number}",
)
_TABLES = f"""
{TASK.statement};
CREATE INDEX task_status ON task (status);
CREATE INDEX task_session ON task (session);
CREATE INDEX task_ended ON task (ended_at) WHERE ended_at IS NOT NULL;
{_NOTICE.statement};
CREATE UNIQUE INDEX notice_end ON notice (task_id) WHERE kind = 'end';
CREATE UNIQUE INDEX notice_event ON notice (task_id) WHERE kind = 'event' AND claimed IS NULL;
CREATE INDEX notice_open ON notice (session) WHERE claimed IS NULL;
CREATE INDEX notice_task ON notice (task_id);
{_MESSAGE.statement};
{leases.TABLE}
"""
FORMAT = database.Format(
    _NOUN, 0x45764267, 4, _TABLES, "name another folder", is_checked=True, is_durable=True
)
FILE_NAME = "background.sqlite"
GONE = "the process that ran it is gone; its output up to then is kept"
LEASE_S = 30.0
"""Seconds after which a process of another machine or container that says nothing is gone."""
KEPT_ENDED = 10_000
"""Ended tasks that are kept at most; the latest ones."""
KEPT_LATEST = 100
"""Ended tasks that are kept however old they seem: a clock may have been set."""
KEPT_TOLD_S = 7 * 24 * 3600.0
KEPT_S = 30 * 24 * 3600.0
"""Seconds that an ended task is kept: one whose notification was delivered, and any other."""
MAX_MESSAGES = 100
MAX_MESSAGE_CHARS = 1_000_000
_LOST = {
    leases.GONE: GONE,
    leases.SILENT: "the process that ran it, on another machine or container, has said nothing for "
    f"{LEASE_S:g} s; its output up to then is kept",
}
_IS_OPEN = "status IN ('pending', 'running')"
_NOTED = ("task_file", "input_tokens", "output_tokens")
"""What was noted while a task ran, and stays if its end does not say."""
Requested = Literal["requested", "killed", "ended"]


class BackgroundStore(JobStore):
    """The background tasks of `folder`, which is created if it is missing, see `JobStore`.

    Raises: RecordError, also if other users may change the folder; ConfigurationError; OSError, if
    the folder cannot be created.
    """

    def __init__(self, folder: str | Path, *, is_snapshot: bool = False) -> None:
        self.folder = Path(folder).absolute()
        if not is_snapshot:
            os.close(open_private_folder(self.folder, "folder of background tasks", sync=True))
        # A process that lives and is slow still runs its tasks.
        super().__init__(
            self.folder / FILE_NAME, FORMAT, trusts_living=True, is_snapshot=is_snapshot
        )

    def version(self) -> int:
        """A number that changes when another process has changed something."""
        with self.transaction("DEFERRED") as db:
            return db.execute("PRAGMA data_version").fetchone()[0]

    # -- states ------------------------------------------------------------------------------------

    def add(self, task: BackgroundTask) -> None:
        """Records a new task, which is pending."""
        values = _row(task)
        with self.transaction() as db:
            TASK.put(db, values)
            leases.take(db, values["owner"], values["owner"], length_s=LEASE_S)

    def renew_lease(self) -> None:
        """Says that this process still runs its tasks; several times in LEASE_S."""
        with self.transaction(sync=False) as db:
            leases.renew(db, owner_text(current_owner()), LEASE_S)

    def begin(self, task_id: str) -> bool:
        """pending → running. False: the task was killed meanwhile, and must not be started."""
        with self.transaction() as db:
            row = TASK.get(db, task_id)
            if row is None or row["status"] != "pending":
                return False
            TASK.update(db, row, status="running", started_at=clock.wall())
        return True

    def end(self, task_id: str, end: End) -> BackgroundTask | None:
        """Ends a task and adds its notification. A task that somebody asked to kill ends as killed,
        however it ended.

        Returns: the ended task; None if it had ended before, which changes nothing.
        """
        with self.transaction():
            task = self.find(task_id)
            if task is None or task.has_ended:
                return None
            return self._end(task, end)

    def request_kill(self, task_id: str, reason: str) -> Requested:
        """Asks the owner of a task to kill it. A pending task, and one whose owner is gone, is
        killed at once.

        Raises: UsageError, if there is no such task.
        """
        with self.transaction():
            task = self.get(task_id)
            if task.has_ended:
                return "ended"
            reason = task.kill_reason or reason
            self.note(task_id, kill_reason=reason)
            if task.status == "running" and task.owner not in self._losses():
                return "requested"
            self._end(self.get(task_id), End("killed", reason=reason))
            return "killed"

    def end_orphans(self) -> list[BackgroundTask]:
        """Ends the tasks whose owner is gone: as failed, or as killed if somebody had asked for
        that.
        """
        losses = self._losses()
        orphans = [
            (task, losses[task.owner]) for task in self.list(ended=False) if task.owner in losses
        ]
        ended = [self.end(task.id, End("failed", reason=loss)) for task, loss in orphans]
        return [task for task in ended if task is not None]

    def as_seen(self, task: BackgroundTask) -> BackgroundTask:
        """The task as `end_orphans` would leave it; nothing is changed."""
        if task.has_ended:
            return task
        loss = self._losses().get(task.owner)
        if loss is None:
            return task
        return _with_end(task, End("failed", reason=loss))

    def _losses(self) -> dict[Owner, str]:
        """The owners of open tasks that are gone, and why."""
        with self.transaction("DEFERRED") as db:
            rows = db.execute(f"SELECT DISTINCT owner FROM task WHERE {_IS_OPEN}")
            owners: list[str] = [row[0] for row in rows.fetchall()]
            ended = self.leases.ended(db, owners)
        return {_owner(owner): _LOST[ended[owner]] for owner in owners if owner in ended}

    def note(self, task_id: str, **values: Any) -> None:
        """Notes fields of a task, such as `is_waiting`, or the `task_file` with which it can be
        resumed.
        """
        with self.transaction() as db:
            row = TASK.get(db, task_id)
            if row is not None:
                TASK.update(db, row, **values)

    def set_activity(self, task_id: str, activity: Activity | None) -> None:
        """Notes whether a session is answering. It is not idle while a message to it has not been
        taken.
        """
        with self.transaction():
            task = self.find(task_id)
            if task is None or task.status != "running":
                return
            if activity != "idle" or task_id not in self.addressees():
                self.note(task_id, activity=activity)

    def evict(self) -> None:
        """Removes the oldest ended tasks beyond KEPT_ENDED. Beyond KEPT_LATEST it removes those
        that ended a week ago, or a month ago if their notification is not claimed. What is kept of
        them is the output file.
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
            f"DELETE FROM task WHERE ended_at <= ({beyond}) OR ended_at <= ({beyond}) AND "
            f"(ended_at < ? OR (ended_at < ? AND {is_told}))"
        )
        now = clock.wall()
        used = f"SELECT owner FROM task WHERE {_IS_OPEN}"
        with self.transaction() as db:
            db.execute(f"DELETE FROM lease WHERE token NOT IN ({used})")
            if db.execute(sql, (KEPT_ENDED, KEPT_LATEST, now - KEPT_S, now - KEPT_TOLD_S)).rowcount:
                db.execute("DELETE FROM notice WHERE task_id NOT IN (SELECT id FROM task)")

    def _end(self, task: BackgroundTask, end: End) -> BackgroundTask:
        ended = replace(_with_end(task, end), ended_at=clock.wall())
        with self.transaction() as db:
            self.note(task.id, **_row(ended))
            db.execute("DELETE FROM message WHERE task_id = ?", (task.id,))
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
        with self.transaction() as db:
            task = self.get(task_id)
            if task.type != "t":
                raise UsageError(
                    f"{task_id} is not an interactive session; only a session takes messages"
                )
            if task.has_ended:
                raise UsageError(
                    f"the session {task_id} has ended ({task.status}); start a new one"
                )
            (waiting,) = db.execute(
                "SELECT count(*) FROM message WHERE task_id = ?", (task_id,)
            ).fetchone()
            if waiting >= MAX_MESSAGES:
                raise UsageError(
                    f"{waiting} messages wait for the session {task_id}; wait until it has answered"
                )
            number = _next_number(db, "message")
            _MESSAGE.put(db, {"number": number, "task_id": task_id, "text": text})
            self.note(task_id, activity="active")

    def addressees(self) -> list[str]:
        """The tasks that have messages which nobody has taken."""
        with self.transaction("DEFERRED") as db:
            return [row[0] for row in db.execute("SELECT DISTINCT task_id FROM message")]

    def take_messages(self, task_id: str) -> list[str | None]:
        """The messages to a task, oldest first; from now on they are taken."""
        with self.transaction() as db:
            rows = _MESSAGE.select(db, "WHERE task_id = ? ORDER BY number", (task_id,))
            db.execute("DELETE FROM message WHERE task_id = ?", (task_id,))
        return [row["text"] for row in rows if row.is_own]

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
        with self.transaction("DEFERRED") as db:
            row = TASK.get(db, check_id(task_id))
        if row is None:
            return None
        return _task(row)

    def output_of(self, task_id: str) -> Path:
        """The output file, also of a task that was evicted. Raises: UsageError, if there is
        none.
        """
        task = self.find(task_id)
        if task is not None:
            return self.folder / Path(task.output_file).name
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
        where = {None: "1", True: f"NOT {_IS_OPEN}", False: _IS_OPEN}[ended]
        values: tuple[str, ...] = ()
        if session is not None:
            where = f"{where} AND session = ?"
            values = (session,)
        with self.transaction("DEFERRED") as db:
            rows = TASK.select(db, f"WHERE {where} ORDER BY created_at, id", values)
        return [_task(row) for row in rows]

    def kill_requests(self, owner: Owner) -> list[str]:
        """The running tasks of `owner` that somebody asked to kill."""
        sql = (
            "SELECT id FROM task WHERE status = 'running' AND kill_reason IS NOT NULL AND owner = ?"
        )
        with self.transaction("DEFERRED") as db:
            return [row[0] for row in db.execute(sql, (_to_sql(owner),))]

    def is_own(self, task_id: str) -> bool:
        """Whether this user's programs have written the task as it is."""
        with self.transaction("DEFERRED") as db:
            row = TASK.get(db, task_id)
        return row is not None and row.is_own

    # -- notifications -----------------------------------------------------------------------------

    def add_notice(
        self, task: BackgroundTask, kind: NoticeKind, priority: Priority, xml: str
    ) -> None:
        """Adds a notification for the session of `task`. Raises: RecordError, for a second end."""
        with self.transaction() as db:
            values = {
                "number": _next_number(db, "notice"),
                "task_id": task.id,
                "kind": kind,
                "session": task.session,
                "priority": priority,
                "xml": xml,
                "created": clock.wall(),
                "claimed": None,
            }
            _NOTICE.put(db, values, is_own=self.is_own(task.id))

    def set_event(self, task: BackgroundTask, xml: str) -> None:
        """Notifies of what happened in a task that goes on. An earlier notice of that kind that
        nobody has claimed is replaced, so that each task has at most one.
        """
        with self.transaction() as db:
            db.execute(
                "DELETE FROM notice WHERE task_id = ? AND kind = 'event' AND claimed IS NULL",
                (task.id,),
            )
            if not self.get(task.id).has_ended:
                self.add_notice(task, "event", priority=task.priority, xml=xml)

    def notices(self, task_id: str) -> list[Notice]:
        """All notifications of a task, oldest first, claimed or not."""
        with self.transaction("DEFERRED") as db:
            rows = _NOTICE.select(db, "WHERE task_id = ? ORDER BY number", (task_id,))
        return [_notice(row) for row in rows]

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
        field, value = ("session", session) if task_id is None else ("task_id", task_id)
        marks = ", ".join("?" * len(priorities))
        where = f"WHERE claimed IS NULL AND {field} = ? AND priority IN ({marks}) ORDER BY number"
        open_ = f"SELECT 1 FROM notice {where} LIMIT 1"
        with self.transaction("DEFERRED") as db:
            if db.execute(open_, (value, *priorities)).fetchone() is None:
                return []
        with self.transaction() as db:
            rows = _NOTICE.select(db, where, (value, *priorities))
            rows = [row for row in rows if row.is_own]
            for row in rows:
                _NOTICE.update(db, row, claimed=clock.wall())
        return [_notice(row) for row in rows]


def _next_number(db: sqlite3.Connection, table: str) -> int:
    sql = f"SELECT coalesce(max(number), 0) + 1 FROM {table}"
    return db.execute(sql).fetchone()[0]


def _with_end(task: BackgroundTask, end: End) -> BackgroundTask:
    """The task as it is after this end: killed if somebody asked for that."""
    values = {**asdict(end), "is_waiting": False, "activity": None}
    values |= {name: getattr(task, name) for name in _NOTED if values[name] is None}
    if task.kill_reason is not None:
        values |= {"status": "killed", "reason": task.kill_reason}
    return replace(task, **values)


def _row(task: BackgroundTask) -> dict[str, Any]:
    return {name: _to_sql(getattr(task, name)) for name in _FIELDS}


def _to_sql(value: Any) -> Any:
    if isinstance(value, Owner):
        return owner_text(value)
    if isinstance(value, tuple):
        return json.dumps(value)
    return value


def _task(row: Mapping[str, Any]) -> BackgroundTask:
    values: dict[str, Any] = dict(row)
    command = values["notify_command"]
    if command is not None:
        values["notify_command"] = tuple(json.loads(command))
    values["owner"] = _owner(values["owner"])
    values["is_waiting"] = bool(values["is_waiting"])
    return BackgroundTask(**values)


def _owner(text: str) -> Owner:
    return parse_owner(text) or Owner(0, 0, "", "")


def _notice(row: Row) -> Notice:
    return Notice(**{field.name: row[field.name] for field in fields(Notice)})
