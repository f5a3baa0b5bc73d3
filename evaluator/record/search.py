"""Finds task files by the values in a folder's list, and reads times in common notations.

Times without a zone are UTC, as in task files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from fnmatch import fnmatchcase
from itertools import islice
from typing import Annotated, cast

from evaluator import clock
from evaluator.errors import UsageError
from evaluator.fields import After, Checked, Natural, accept
from evaluator.lazy_dataclass import frozen
from evaluator.record.steps import RunStatus
from evaluator.record.store import TaskStore
from evaluator.record.task_folder import TaskSummary

_AGE = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*([smhdw])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def _first_instant(value: datetime | str, *, is_end: bool = False) -> datetime:
    if isinstance(value, datetime):
        if value.tzinfo:
            return value
        return value.replace(tzinfo=UTC)
    try:
        return read_time(value, is_end=is_end)
    except UsageError as error:
        raise ValueError(f": {error}") from error


def _last_instant(value: datetime | str) -> datetime:
    return _first_instant(value, is_end=True)


@frozen
class TaskFilter(Checked, error=UsageError):
    """Conditions that a task must fulfil together; None is no condition.

    `template` and `model` are shell patterns (`*`, `?`, `[…]`; case counts); `since` and `until`
    bound the time of creation, both included (a text is read by `read_time`; a day counts from its
    beginning and to its end); `error` is part of the reason why the task failed or its file cannot
    be read (case does not count); `parent` is a task id. A task whose file lacks the value does not
    match.

    Raises: UsageError, for an invalid value.
    """

    status: RunStatus | None = None
    template: str | None = None
    model: str | None = None
    since: Annotated[datetime | str | None, After(_first_instant)] = None
    until: Annotated[datetime | str | None, After(_last_instant)] = None
    error: str | None = None
    parent: int | None = None

    def matches(self, task: TaskSummary) -> bool:
        header = task.header
        return (
            (self.status is None or task.status == self.status)
            and (self.parent is None or (header is not None and header.parent == self.parent))
            and _fits(self.template, None if header is None else header.template)
            and (self.model is None or any(_fits(self.model, name) for name in models_of(task)))
            and (self.error is None or _has_error(self.error, task))
            and ((self.since is None and self.until is None) or self._is_in_time(task))
        )

    def _is_in_time(self, task: TaskSummary) -> bool:
        if task.header is None:
            created = None
        else:
            created = created_at(task.header.created)
        since, until = cast("tuple[datetime | None, datetime | None]", (self.since, self.until))
        return (
            created is not None
            and (since is None or since <= created)
            and (until is None or created <= until)
        )


def models_of(task: TaskSummary) -> tuple[str, ...]:
    """The models that an ended task called; for a running one the model that it was given."""
    if task.summary is not None and task.summary.models:
        return task.summary.models
    if task.header is None or task.header.model is None:
        return ()
    return (task.header.model,)


def find(
    store: TaskStore,
    *,
    status: RunStatus | None = None,
    template: str | None = None,
    model: str | None = None,
    since: datetime | str | None = None,
    until: datetime | str | None = None,
    error: str | None = None,
    parent: int | None = None,
    limit: int | None = None,
) -> Iterator[TaskSummary]:
    """The tasks that match all conditions (see `TaskFilter`), newest first, at most `limit`.

    Reads one file after the other, on demand.

    Raises: UsageError, as `TaskFilter` and for a negative limit; RecordError, while reading, if the
    folder cannot be listed.
    """
    accept(Natural | None, limit, "limit", UsageError)
    wanted = TaskFilter(
        status, template, model=model, since=since, until=until, error=error, parent=parent
    )
    return islice(filter(wanted.matches, store.list(status=wanted.status)), limit)


def read_time(text: str, *, is_end: bool = False, now: datetime | None = None) -> datetime:
    """The time that `text` means: `2026-03-01`, `2026-03-01T14:30`, with a zone or in UTC; or,
    before `now`, an age such as `90s`, `30m`, `2h`, `3d`, `1w`. A day is its first instant, with
    `is_end` its last.

    Raises: UsageError, if it is neither.
    """
    text = text.strip()
    age = _AGE.fullmatch(text)
    try:
        if age is not None:
            return (now or clock.now()) - timedelta(**{_UNITS[age[2]]: float(age[1])})
        try:
            return datetime.combine(date.fromisoformat(text), time.max if is_end else time.min, UTC)
        except ValueError:
            found = datetime.fromisoformat(text)
            if found.tzinfo:
                return found
            return found.replace(tzinfo=UTC)
    except (ValueError, OverflowError) as error:
        raise UsageError(
            f"{text!r} is not a time; write a date (2026-03-01), a date with a time "
            "(2026-03-01T14:30, UTC unless it "
            "has a zone) or an age (30m, 2h, 3d)"
        ) from error


def created_at(created: str) -> datetime | None:
    """When a task was created, by its header; None where that is not a time, as in some files of
    other writers.
    """
    try:
        found = datetime.fromisoformat(created)
    except ValueError:
        return None
    if found.tzinfo:
        return found
    return found.replace(tzinfo=UTC)


def _fits(pattern: str | None, name: str | None) -> bool:
    return pattern is None or (name is not None and fnmatchcase(name, pattern))


def _has_error(part: str, task: TaskSummary) -> bool:
    part = part.casefold()
    if task.summary is None:
        reason = None
    else:
        reason = task.summary.reason
    return any(text is not None and part in text.casefold() for text in (task.error, reason))
