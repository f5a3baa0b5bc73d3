"""Entries of the queue, their states, and the transitions between them.

A transition is a function that returns a changed copy of the entry. `TRANSITIONS` is the published
table: a function that would leave it raises UsageError. The functions know no store and no clock.

The times of recurring entries, from cron expressions, in UTC. Needs the package `croniter`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, field, replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Annotated, Any, Literal, get_args

from evaluator.errors import MissingExtra, UsageError
from evaluator.fields import REQUIRED, After, Expected, JsonForm, Key, Range
from evaluator.lazy_dataclass import frozen

EntryStatus = Literal["pending", "running", "done", "blocked", "skipped"]
EntryType = Literal[
    "info-lookup",
    "file-creation",
    "code-execution",
    "agent-delegation",
    "reminder-scheduling",
    "messaging",
    "unknown",
]
STATUSES: tuple[EntryStatus, ...] = get_args(EntryStatus)
TYPES: tuple[EntryType, ...] = get_args(EntryType)
TRANSITIONS: Mapping[EntryStatus, frozenset[EntryStatus]] = MappingProxyType(
    {
        "pending": frozenset({"running", "skipped"}),
        "running": frozenset({"done", "pending", "blocked"}),
        "done": frozenset(),
        "blocked": frozenset({"pending"}),
        "skipped": frozenset(),
    }
)
"""The states that may follow each state."""
TERMINAL: frozenset[EntryStatus] = frozenset({"done", "blocked", "skipped"})
"""The states in which an entry has `completed_at` and can be archived."""

TOOL = "evaluator"
"""The `tool` of the attempts that this package records."""

INTERRUPTED = "interrupted"
RELEASED = "released"
"""The words with which the result of an attempt begins that was stopped before its end."""

MAX_INTEGER = 2**53 - 1
"""The highest integer that every reader of JSON takes; an id has fewer digits."""

_ID = re.compile(r"T-(0[1-9]|[1-9][0-9]{1,14})")


def entry_id(number: int) -> str:
    """The id with this number: `T-01`, `T-99`, `T-100`."""
    return f"T-{number:02d}"


def entry_number(text: str) -> int:
    """The number in an id, of at most 15 digits. Raises: UsageError, for anything else than
    `entry_id` writes.
    """
    match = _ID.fullmatch(text)
    if match is None:
        raise UsageError(
            f"{text!r:.60} is not an id of the queue; ids are T-01, T-02, … T-99, T-100"
        )
    return int(match[1])


def timestamp(seconds: float) -> str:
    """ISO 8601 in UTC, to the second, of a time in seconds since the epoch."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_timestamp(text: str) -> datetime:
    """The time of an ISO 8601 text with date and time; without a zone it is in UTC. Raises:
    ValueError.
    """
    if "T" not in text[:20]:
        raise ValueError("no time of day")
    found = datetime.fromisoformat(text)
    if found.tzinfo is None:
        return found.replace(tzinfo=UTC)
    return found


def _check_text(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("holds half of a surrogate pair; write the character whole") from None
    return text


def _check_time(text: str) -> str:
    parse_timestamp(text)
    return text


def _check_id(text: str) -> str:
    if _ID.fullmatch(text) is None:
        raise ValueError
    return text


def _check_seconds(seconds: float) -> float:
    try:
        timestamp(seconds)
    except (OverflowError, OSError) as error:
        raise ValueError(f"is {seconds!r}, expected seconds since the epoch") from error
    return seconds


QueueText = Annotated[str, After(_check_text)]
QueueTime = Annotated[
    str,
    After(_check_text),
    After(_check_time),
    Expected("a time in ISO 8601, such as 2026-02-17T09:00:00Z"),
]
EntryId = Annotated[str, After(_check_id), Expected("an id such as T-01, T-99 or T-100")]
QueueNumber = Annotated[int, Range(least=0, most=MAX_INTEGER)]


@frozen
class StrategyAttempt(JsonForm):
    """One attempt of an entry. `attempted_at` is ISO 8601. `verification_failure`: what a check of
    the result found; None if the result passed or there was none.
    """

    attempt: Annotated[int, Range(least=1, most=MAX_INTEGER)]
    strategy: QueueText
    tool: QueueText
    attempted_at: QueueTime
    result: QueueText
    verification_failure: QueueText | None = None

    @property
    def has_ended(self) -> bool:
        """Whether the attempt came to its end, so that it says something about its strategy."""
        return not self.result.startswith((f"{INTERRUPTED}: ", f"{RELEASED}: "))


@frozen
class BegunAttempt:
    """An attempt since its begin: what a worker needs to resume it after an interruption. Kept in
    the store only.

    `key` is in the labels of its task files; they are in the folder `tasks` (absolute; empty: none
    are written), and their ids are above `after`. `interruptions`: how often a worker was stopped
    in it.
    """

    number: int
    strategy: str
    began_at: str
    key: str = ""
    tasks: str = ""
    after: int = 0
    interruptions: int = 0

    def is_open(self, entry: QueueEntry) -> bool:
        """Whether the attempt is the last one of the entry and was interrupted, so that it can be
        resumed.
        """
        return any(
            not last.has_ended and (last.attempt, last.strategy) == (self.number, self.strategy)
            for last in entry.strategies_tried[-1:]
        )

    def stopped(self, result: str) -> StrategyAttempt:
        """The attempt as it is listed after it was stopped before its end."""
        return StrategyAttempt(
            self.number, self.strategy, tool=TOOL, attempted_at=self.began_at, result=result
        )

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | None) -> BegunAttempt | None:
        """The attempt that `to_json` wrote; None for None."""
        if text is None:
            return None
        return cls(**json.loads(text))


@frozen(kw_only=True)
class QueueEntry(JsonForm):
    """An entry as `task-queue.json` shows it.

    Times are ISO 8601 texts. `retries` counts the failed attempts since the entry was added or
    retried by the user.
    """

    id: EntryId
    description: QueueText
    goal: QueueText
    type: EntryType
    status: EntryStatus
    retries: QueueNumber
    max_retries: Annotated[QueueNumber, Key("maxRetries")]
    subagent_session: QueueText | None = None
    strategies_tried: Annotated[tuple[StrategyAttempt, ...], REQUIRED] = ()
    deliverable: QueueText | None = None
    deliverable_path: QueueText | None = None
    blocked_reason: QueueText | None = None
    user_action_required: QueueText | None = None
    added_at: QueueTime
    started_at: QueueTime | None = None
    completed_at: QueueTime | None = None


@frozen
class EntryOptions(JsonForm, error=ValueError):
    """When and how an entry runs. Kept in the store only: `task-queue.json` has no fields for it.

    Higher `priority` first. `not_before`: seconds since the epoch. `needs`: ids of entries that
    must be done first.
    `every`: a cron expression; the end of an entry adds the next one. `template` and `inputs`: what
    is evaluated, in place of a template that fits the words. `guidance`: what the user added with
    each retry. `tried`: the templates that failed since the entry was added or retried.
    """

    priority: int = 0
    not_before: Annotated[float, After(_check_seconds)] = 0.0
    needs: tuple[EntryId, ...] = ()
    every: str | None = None
    template: str | None = None
    inputs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    guidance: tuple[str, ...] = ()
    tried: tuple[str, ...] = ()

    def without_choices(self) -> EntryOptions:
        """What another person may say: when the entry runs, and words."""
        return replace(self, template=None, inputs={}, every=None, tried=())

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> EntryOptions:
        """Raises: ValueError, for a value of another type, as somebody else may have written it."""
        return cls.from_table(json.loads(text))


@frozen(kw_only=True)
class QueueDocument(JsonForm):
    """The content of `task-queue.json`, or of one file of the archive."""

    max_concurrent: Annotated[int, Range(least=1, most=MAX_INTEGER), Key("maxConcurrent")] = 2
    max_retries: Annotated[QueueNumber, Key("maxRetries")] = 3
    archive_days: Annotated[QueueNumber, Key("archiveDays")] = 7
    task_runner_dir: Annotated[QueueText, Key("taskRunnerDir")] = ""
    last_id: Annotated[EntryId | None, Key("lastId")] = None
    tasks: tuple[QueueEntry, ...]


def start(entry: QueueEntry, session: str, now: str) -> QueueEntry:
    """pending → running."""
    _check(entry, "running")
    return replace(
        entry, status="running", subagent_session=session, started_at=entry.started_at or now
    )


def complete(
    entry: QueueEntry, attempt: StrategyAttempt, now: str, *, deliverable: str, path: str | None
) -> QueueEntry:
    """running → done, with what the attempt delivered."""
    return replace(
        _end_attempt(entry, "done", attempt=attempt),
        deliverable=deliverable,
        deliverable_path=path,
        completed_at=now,
    )


def fail(
    entry: QueueEntry,
    attempt: StrategyAttempt,
    now: str,
    *,
    reason: str,
    action: str,
    final: bool = False,
) -> QueueEntry:
    """running → pending, or → blocked after the last attempt; `final`: no further attempt makes
    sense.
    """
    retries = entry.retries + 1
    if retries < entry.max_retries and not final:
        return replace(_end_attempt(entry, "pending", attempt=attempt), retries=retries)
    return replace(
        block(entry, now, reason=reason, action=action, attempt=attempt), retries=retries
    )


def block(
    entry: QueueEntry, now: str, *, reason: str, action: str, attempt: StrategyAttempt | None = None
) -> QueueEntry:
    """running → blocked, with what the user has to do; without `attempt` nothing could be tried."""
    return replace(
        _end_attempt(entry, "blocked", attempt=attempt),
        blocked_reason=reason,
        user_action_required=action,
        completed_at=now,
    )


def release(entry: QueueEntry, attempt: StrategyAttempt) -> QueueEntry:
    """running → pending, for an attempt that was stopped before its end. It does not count as a
    retry.
    """
    return _end_attempt(entry, "pending", attempt=attempt)


def give_up_attempt(entry: QueueEntry, reason: str) -> QueueEntry:
    """The entry with the reason why its last attempt, which was interrupted, is not resumed."""
    *earlier, last = entry.strategies_tried
    last = replace(last, result=f"{last.result}; not resumed: {reason}")
    return replace(entry, strategies_tried=(*earlier, last))


def skip(entry: QueueEntry, now: str) -> QueueEntry:
    """pending → skipped."""
    _check(entry, "skipped", rule="only a pending entry can be skipped")
    return replace(entry, status="skipped", completed_at=now)


def retry(entry: QueueEntry) -> QueueEntry:
    """blocked → pending, because the user asks for it. What was tried stays; retries are counted
    from 0 again.
    """
    if entry.status != "blocked":
        raise UsageError(f"{entry.id} is {entry.status}; only a blocked entry can be retried")
    return replace(
        entry,
        status="pending",
        retries=0,
        blocked_reason=None,
        user_action_required=None,
        completed_at=None,
    )


def _end_attempt(
    entry: QueueEntry, status: EntryStatus, attempt: StrategyAttempt | None
) -> QueueEntry:
    if entry.status != "running":
        raise UsageError(f"{entry.id} is {entry.status}, not running")
    _check(entry, status)
    tried = entry.strategies_tried
    if attempt is not None:
        if tried and tried[-1].attempt == attempt.attempt and not tried[-1].has_ended:
            tried = tried[:-1]  # the attempt was resumed
        tried += (attempt,)
    return replace(entry, status=status, subagent_session=None, strategies_tried=tried)


def _check(entry: QueueEntry, status: EntryStatus, rule: str | None = None) -> None:
    if status not in TRANSITIONS[entry.status]:
        raise UsageError(f"{entry.id} is {entry.status}; {rule or f'it cannot become {status}'}")


def check_expression(expression: str) -> None:
    """Raises: UsageError, for a text that is not a cron expression or that no time fits;
    MissingExtra.
    """
    if not _croniter().is_valid(expression):
        raise UsageError(
            f"{expression!r:.80} is not a cron expression; write five fields, such as '0 7 * * "
            "1-5' for 7:00 UTC "
            "on weekdays"
        )
    next_time(expression, 0.0)


def next_time(expression: str, after: float) -> float:
    """The first time after `after` that fits the expression. Raises: UsageError, if there is none;
    MissingExtra.
    """
    library = _croniter()
    start = datetime.fromtimestamp(after, UTC)
    try:
        return library(expression, start).get_next(datetime).timestamp()
    except (ValueError, KeyError) as error:  # croniter's errors are ValueErrors
        raise UsageError(f"the cron expression {expression!r:.80} fits no time: {error}") from error


def _croniter() -> Any:
    try:
        from croniter import croniter
    except ImportError as error:
        raise MissingExtra("croniter", "queue") from error
    return croniter
