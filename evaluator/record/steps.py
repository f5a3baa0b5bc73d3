"""What a task file holds, as values: header, steps, summary, and the recording of all three."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

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
RunStatus = Literal["running", "interrupted", "completed", "failed", "aborted"]
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
class Header:
    """What a run started from. `created` is ISO 8601 in UTC with milliseconds; `parent` a task id."""

    task_id: int
    created: str
    request: str = ""
    inputs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    template: str | None = None
    template_sha256: str | None = None
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
            "model": self.model,
            "parent": self.parent,
            "owner": None if self.owner is None else self.owner.to_dict(),
            "version": self.version,
            "extra": dict(self.extra),
        }


@dataclass(frozen=True, slots=True)
class Summary:
    """How a run ended. `steps` leaves the `retries` out; `planned` is how many steps there would have been,
    None where nobody knew; `result` is the TaskResult or TaskError as JSON."""

    status: FinalStatus
    steps: int
    retries: int
    duration_s: float
    usage: Mapping[str, Any] | None = None
    result: Any = None
    reason: str | None = None
    planned: int | None = None

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
        }


@dataclass(frozen=True, slots=True)
class Recording:
    """A task file, read.

    `header` is None only where the file ends before its header does. `tail` is "torn" where the file ends
    inside a record, as after a crash; all records before `torn_offset` (bytes) are whole. `status` is
    "interrupted" only where the store saw that the owner is gone: the bytes alone say "running".
    """

    header: Header | None
    steps: tuple[Step, ...] = ()
    summary: Summary | None = None
    status: RunStatus = "running"
    tail: Tail = "clean"
    torn_offset: int | None = None
    warnings: tuple[str, ...] = ()
    _index: dict[tuple[str, str], Step] | None = field(default=None, init=False, repr=False, compare=False)

    def completed(self, path: str, fingerprint: str) -> Step | None:
        """The last successful attempt at `path` with that fingerprint. Constant time after the first call."""
        index = self._index
        if index is None:
            index = {(s.start.path, s.start.fingerprint): s for s in self.steps if s.status == "success"}
            object.__setattr__(self, "_index", index)
        return index.get((path, fingerprint))

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
        }


def plain_json(value: object) -> object:
    """For json's `default`: read-only mappings and other sequences as what JSON has for them."""
    if isinstance(value, Mapping):
        return dict(cast("Mapping[Any, Any]", value))
    raise TypeError(f"{type(value).__name__} is not a JSON value")


_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":"), default=plain_json).encode


def fingerprint(value: Any) -> str:
    """Blake2b-128, as 32 hex digits, of a JSON value written canonically: order of keys does not count.

    Raises: UsageError, if the value is not JSON.
    """
    try:
        text = _canonical(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"a fingerprint is made of JSON values only: {error}") from error
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
