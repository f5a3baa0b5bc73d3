"""What a task file holds, as values: header, steps, summary, and the recording of all three."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from json import encoder
from typing import Any, Literal, Protocol, cast

from evaluator.errors import UsageError

FORMAT_VERSION = 1

StepKind = Literal["resolve", "model", "tool", "script", "subtask", "parse", "match", "bind", "context"]
STEP_KINDS: tuple[StepKind, ...] = (
    "resolve", "model", "tool", "script", "subtask", "parse", "match", "bind", "context",
)  # fmt: skip
EndStatus = Literal["success", "failed", "aborted"]
END_STATUSES: tuple[EndStatus, ...] = ("success", "failed", "aborted")
StepStatus = Literal["running", "success", "failed", "aborted"]
FinalStatus = Literal["completed", "failed", "aborted"]
FINAL_STATUSES: tuple[FinalStatus, ...] = ("completed", "failed", "aborted")
# "unreadable" is said of a file, by who looks into the folder; never of what was read.
RunStatus = Literal["running", "interrupted", "completed", "failed", "aborted", "unreadable"]
Tail = Literal["clean", "torn"]


@dataclass(frozen=True, slots=True)
class StepStart:
    """One attempt at a step, before its effect.

    `path` is stable across runs of the same template; `fingerprint` stands for all that went in. `args` is a
    JSON value, None where there is nothing to show. `backoff_s` is the wait before this attempt, in seconds,
    kept to the microsecond. A retry has the path of the attempt before it and `attempt` above 1.
    """

    path: str
    kind: StepKind
    name: str
    args: Any = None
    fingerprint: str = ""
    attempt: int = 1
    max_attempts: int = 1
    backoff_s: float | None = None


@dataclass(frozen=True, slots=True)
class StepEnd:
    """How an attempt ended. `output` is a JSON value or text; `duration_s` is kept to the microsecond."""

    status: EndStatus
    output: Any
    duration_s: float
    error: str | None = None
    usage: Mapping[str, Any] | None = None
    extra: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One attempt as read from a task file. `number` is shared by the attempts at one step."""

    number: int
    start: StepStart
    end: StepEnd | None = None

    @property
    def status(self) -> StepStatus:
        return "running" if self.end is None else self.end.status

    @property
    def is_retry(self) -> bool:
        return self.start.attempt > 1

    def to_dict(self) -> dict[str, Any]:
        start, end = self.start, self.end
        return {
            "number": self.number,
            "path": start.path,
            "kind": start.kind,
            "name": start.name,
            "args": start.args,
            "fingerprint": start.fingerprint,
            "attempt": start.attempt,
            "max_attempts": start.max_attempts,
            "backoff_s": start.backoff_s,
            "status": self.status,
            "output": None if end is None else end.output,
            "duration_s": None if end is None else end.duration_s,
            "error": None if end is None else end.error,
            "usage": None if end is None or end.usage is None else dict(end.usage),
            "extra": None if end is None or end.extra is None else dict(end.extra),
        }


@dataclass(frozen=True, slots=True)
class Owner:
    """The process that writes a task file. `started` is its start in the kernel's clock ticks since boot."""

    pid: int
    started: int
    boot_id: str
    host: str

    def to_dict(self) -> dict[str, Any]:
        return {"pid": self.pid, "started": self.started, "boot_id": self.boot_id, "host": self.host}


@dataclass(frozen=True, slots=True)
class Resumption:
    """That a process took an interrupted run over. `at` is ISO 8601 in UTC; `cut_bytes` is what it cut off a
    torn end, `allowed` which changes it was told to accept (None: there were to be none)."""

    at: str
    owner: Owner | None = None
    cut_bytes: int = 0
    allowed: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            "at": self.at,
            "owner": None if self.owner is None else self.owner.to_dict(),
            "cut_bytes": self.cut_bytes,
            "allowed": self.allowed,
        }


@dataclass(frozen=True, slots=True)
class Header:
    """What a run started from. `created` is ISO 8601 in UTC with milliseconds; `parent` a task id."""

    task_id: int
    created: str
    request: str = ""
    inputs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    template: str | None = None
    template_sha256: str | None = None
    template_version: str | None = None
    model: str | None = None
    parent: int | None = None
    owner: Owner | None = None
    version: int = FORMAT_VERSION
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def to_dict(self) -> dict[str, Any]:
        return {
            "task_id": self.task_id,
            "created": self.created,
            "request": self.request,
            "inputs": dict(self.inputs),
            "template": self.template,
            "template_sha256": self.template_sha256,
            "template_version": self.template_version,
            "model": self.model,
            "parent": self.parent,
            "owner": None if self.owner is None else self.owner.to_dict(),
            "version": self.version,
            "extra": dict(self.extra),
        }


@dataclass(frozen=True, slots=True)
class Summary:
    """How a run ended. `steps` leaves the `retries` out; `planned` is how many steps there would have been,
    None where nobody knew; `result` is the TaskResult or TaskError as JSON; `models` are those that were called."""

    status: FinalStatus
    steps: int
    retries: int
    duration_s: float
    usage: Mapping[str, Any] | None = None
    result: Any = None
    reason: str | None = None
    planned: int | None = None
    models: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {
            "status": self.status,
            "steps": self.steps,
            "retries": self.retries,
            "duration_s": self.duration_s,
            "usage": None if self.usage is None else dict(self.usage),
            "result": self.result,
            "reason": self.reason,
            "planned": self.planned,
            "models": list(self.models),
        }


@dataclass(frozen=True, slots=True)
class Recording:
    """A task file, read.

    `header` is None only where the file ends before its header does. `tail` is "torn" where the file ends
    inside a record, as after a crash; all records before `torn_offset` (bytes) are whole. `status` is
    "interrupted" only where the store saw that the owner is gone: the bytes alone say "running".
    `resumptions` are in the order in which they happened.
    """

    header: Header | None
    steps: tuple[Step, ...] = ()
    summary: Summary | None = None
    status: RunStatus = "running"
    tail: Tail = "clean"
    torn_offset: int | None = None
    warnings: tuple[str, ...] = ()
    resumptions: tuple[Resumption, ...] = ()

    @property
    def owner(self) -> Owner | None:
        """The process that wrote last: the one that took the run over, else the one that began it."""
        if self.resumptions:
            return self.resumptions[-1].owner
        return None if self.header is None else self.header.owner

    def running(self) -> Iterator[Step]:
        """The attempts that were begun and have no end."""
        return (step for step in self.steps if step.end is None)

    def to_dict(self) -> dict[str, Any]:
        """As JSON; its schema is `schemas/task_record.json`."""
        return {
            "status": self.status,
            "header": None if self.header is None else self.header.to_dict(),
            "steps": [step.to_dict() for step in self.steps],
            "summary": None if self.summary is None else self.summary.to_dict(),
            "tail": self.tail,
            "torn_offset": self.torn_offset,
            "warnings": list(self.warnings),
            "resumptions": [resumption.to_dict() for resumption in self.resumptions],
        }


def plain_json(value: object) -> object:
    """For json's `default`: read-only mappings and other sequences as what JSON has for them."""
    if isinstance(value, Mapping):
        return dict(cast("Mapping[Any, Any]", value))
    raise TypeError(f"{type(value).__name__} is not a JSON value")


_PERSON = b"steps %d" % FORMAT_VERSION


def json_encoder(
    separators: tuple[str, str],
    *,
    ascii_only: bool,
    sort_keys: bool = False,
    allow_nan: bool = True,
    default: Callable[[Any], Any] = plain_json,
) -> Callable[[Any], str]:
    """`json.dumps` without what each call of it sets up anew, which costs more than encoding a small value.

    What it returns raises TypeError, ValueError, and RecursionError also for a value that holds itself.
    """
    make = cast("Callable[..., Callable[[Any, int], tuple[str, ...]]] | None", getattr(encoder, "c_make_encoder", None))
    if make is None:
        return json.JSONEncoder(
            ensure_ascii=ascii_only, separators=separators, sort_keys=sort_keys, allow_nan=allow_nan, default=default
        ).encode
    quoted = encoder.encode_basestring_ascii if ascii_only else encoder.encode_basestring
    between, after_key = separators
    fast = make(None, default, quoted, None, after_key, between, sort_keys, False, allow_nan)

    def encode(value: Any) -> str:
        return "".join(fast(value, 0))

    return encode


_canonical = json_encoder((",", ":"), ascii_only=True, sort_keys=True)


class Scrub(Protocol):
    """What takes secrets out of what is written."""

    def suspects(self, text: str) -> bool:
        """Whether `text`, plain or as JSON, holds what `redact_value` would change. Cheap; may err to yes."""
        ...

    def redact(self, text: str) -> str: ...

    def redact_value(self, value: Any) -> Any: ...


def fingerprint(value: Any, scrub: Scrub | None = None) -> str:
    """Blake2b-128, as 32 hex digits, of a JSON value written canonically: order of keys does not count.

    The version of the format counts too: a later one that means another thing by a step must not match. Nor do
    secrets that `scrub` takes out, so that what is computed from a record is what was computed before it.

    Raises: UsageError, if the value is not JSON.
    """
    try:
        text = _canonical(value)
        if scrub is not None and scrub.suspects(text):
            text = _canonical(scrub.redact_value(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"a fingerprint is made of JSON values only: {error}") from error
    return hashlib.blake2b(text.encode(), digest_size=16, person=_PERSON).hexdigest()
