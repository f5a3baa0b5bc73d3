"""The contents of a task file as values: header, steps, summary, and the recording of all three."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, fields
from json import encoder
from typing import Any, Literal, Protocol, cast

from evaluator.errors import RecordError, UsageError
from evaluator.fields import JsonForm, to_dict
from evaluator.lazy_dataclass import frozen
from evaluator.record.redact import BETWEEN_TEXTS, find_texts
from evaluator.store.owners import Owner

FORMAT_VERSION = 2
"""Files of version 1 have no signatures."""

StepKind = Literal[
    "resolve", "model", "tool", "script", "subtask", "parse", "match", "bind", "context"
]
EndStatus = Literal["success", "failed", "aborted"]
StepStatus = Literal["running", "success", "failed", "aborted"]
FinalStatus = Literal["completed", "failed", "aborted"]
# "unreadable" is the status of a file in a list of tasks, never of what was read.
RunStatus = Literal["running", "interrupted", "completed", "failed", "aborted", "unreadable"]
Tail = Literal["clean", "torn"]


@frozen
class StepStart(JsonForm):
    """One attempt at a step, before its effect.

    `path` is stable across runs of the same template. `fingerprint` identifies all inputs. `args`
    is a JSON value, None if there is nothing to show. `backoff_s` is the wait before this attempt,
    in seconds with microsecond precision. A retry has the path of the attempt before it and
    `attempt` above 1. `started` is an ISO time, UTC; None for a step without an effect, which takes
    no time, and in files of earlier versions. `custom_id` names the request in a provider batch,
    for a model call that is not sent by itself.
    """

    path: str
    kind: StepKind
    name: str
    args: Any = None
    fingerprint: str = ""
    attempt: int = 1
    max_attempts: int = 1
    backoff_s: float | None = None
    started: str | None = None
    custom_id: str | None = None


# The words with which the reason of an aborted step begins. After the first three the step had no
# effect.
DENIED = "safety.denied"
NOT_RUN = "timeout.not_run"
STOPPED = "cancelled.not_run"
TIMEOUT = "timeout"
CANCELLED = "cancelled"
FAILED = "failed"


REASON_SEPARATOR = " — "
INTERRUPTED_CALLS = "interrupted_calls"
"""The key of notes, and of a subtask's `StepEnd.extra`, for how many calls were in flight when a
process ended; they may be billed, and the usage does not have them.
"""
NEXT = "next"
"""The key of `StepEnd.extra` that says what follows where a provider batch had no answer: another
"batch", an "interactive" call, or "error".
"""


def abort_reason(word: str, text: str) -> str:
    """The `error` of an aborted step: a word for programs, and a text for readers."""
    if text:
        return f"{word}{REASON_SEPARATOR}{text}"
    return word


def cut_off_reason(error: BaseException, *, is_late: bool = False) -> str:
    """The reason of a step that `error` cut off: the time of its task was up (`is_late`), somebody
    cancelled it, or what went wrong.
    """
    text = str(error)
    if isinstance(error, (asyncio.CancelledError, KeyboardInterrupt)):
        return abort_reason(TIMEOUT if is_late else CANCELLED, "" if is_late else text)
    return abort_reason(FAILED, text or type(error).__name__)


@frozen
class StepEnd(JsonForm):
    """The end of an attempt. `output` is a JSON value or text; `duration_s` has microsecond
    precision.

    The `error` of an aborted step is its reason, see `abort_reason`. `extra` has `retry_after_s`
    where a failed tool call was to be made again after so many seconds, and `interrupted_calls`
    for a subtask.
    """

    status: EndStatus
    output: Any
    duration_s: float
    error: str | None = None
    usage: Mapping[str, Any] | None = None
    extra: Mapping[str, Any] | None = None

    @property
    def reason_word(self) -> str:
        """The word with which the reason of an aborted step begins; empty for other steps."""
        if self.status == "aborted":
            return (self.error or "").partition(REASON_SEPARATOR)[0]
        return ""

    @property
    def is_retried(self) -> bool:
        """Whether another attempt was to follow."""
        return self.extra is not None and "retry_after_s" in self.extra


@frozen
class Step(JsonForm):
    """One attempt as read from a task file. `number` is shared by the attempts at one step."""

    number: int
    start: StepStart
    end: StepEnd | None = None

    @property
    def status(self) -> StepStatus:
        if self.end is None:
            return "running"
        return self.end.status

    @property
    def is_retry(self) -> bool:
        return self.start.attempt > 1

    @property
    def subtask_id(self) -> int | None:
        """The id of the task that a step of kind "subtask" ran; None for other steps."""
        args = self.start.args
        if self.start.kind != "subtask" or not isinstance(args, Mapping):
            return None
        number = cast("Mapping[str, Any]", args).get("task_id")
        if type(number) is int and number > 0:
            return number
        return None

    @property
    def is_answer(self) -> bool:
        """Whether the end is an answer that the run continues from.

        A success is, and so is what a model is told about a tool or subtask: its last failure, or
        that it was denied.
        """
        if self.end is None or self.start.kind not in ("tool", "subtask"):
            return self.status == "success"
        if self.status == "failed":
            return not self.end.is_retried
        return self.status == "success" or self.end.reason_word == DENIED

    def to_dict(self) -> dict[str, Any]:
        if self.end is None:
            end = dict.fromkeys(field.name for field in fields(StepEnd))
        else:
            end = self.end.to_dict()
        return {"number": self.number, **self.start.to_dict(), **end, "status": self.status}


@frozen
class Resumption(JsonForm):
    """The takeover of an interrupted run by a process.

    `at` is ISO 8601 in UTC; `cut_bytes` is the length of the torn end that it cut off, `allowed`
    describes the changes that it was allowed to accept (None: no change).
    """

    at: str
    owner: Owner | None = None
    cut_bytes: int = 0
    allowed: str | None = None


@frozen
class Header(JsonForm):
    """The start of a run. `created` is ISO 8601 in UTC with milliseconds; `parent` is a task id.

    `task_id` is 0 for a file of another writer whose id is not a number; `extra["ID"]` has that id.
    """

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


@frozen
class Summary(JsonForm):
    """The end of a run.

    `steps` does not include the `retries`; `planned` is how many steps a complete run has, None
    where that is unknown; `result` is the TaskResult or TaskError as JSON; `models` are those that
    were called. `interrupted_calls` were in flight when a process ended and may be billed too: the
    usage does not have them.
    """

    status: FinalStatus
    steps: int
    retries: int
    duration_s: float
    usage: Mapping[str, Any] | None = None
    result: Any = None
    reason: str | None = None
    planned: int | None = None
    models: tuple[str, ...] = ()
    interrupted_calls: int = 0


@frozen
class Recording(JsonForm):
    """The content of a task file.

    `header` is None only where the file ends before its header does. `tail` is "torn" where the
    file ends inside a record, as after a crash; all records before `torn_offset` (bytes) are whole.
    `status` is "interrupted" only where the store saw that the owner is gone: the bytes alone say
    "running". `resumptions` are in the order in which they happened. `unsigned` names the first
    record that no program of this user wrote, "header" also where the steps were left out; None:
    this user's programs wrote all of it.
    """

    header: Header | None
    steps: tuple[Step, ...] = ()
    summary: Summary | None = None
    status: RunStatus = "running"
    tail: Tail = "clean"
    torn_offset: int | None = None
    warnings: tuple[str, ...] = ()
    resumptions: tuple[Resumption, ...] = ()
    unsigned: str | None = "header"

    @property
    def owner(self) -> Owner | None:
        """The process that wrote last: the one that took the run over, else the one that began
        it.
        """
        if self.resumptions:
            return self.resumptions[-1].owner
        if self.header is None:
            return None
        return self.header.owner

    def known_header(self) -> Header:
        """The header. Raises: RecordError, if the file ends inside it."""
        if self.header is None:
            raise RecordError(
                "the task file ends inside its header: no step was begun; run the task again"
            )
        return self.header

    def check_signed(self, trust: bool) -> None:
        """Raises: RecordError, if somebody else wrote a part of it, and the caller does not
        `trust` it.
        """
        if self.unsigned is not None and not trust:
            if self.header is None:
                task = "the task file"
            else:
                task = f"TASK-{self.header.task_id}"
            raise RecordError(
                f"{task}: no program of yours wrote its {self.unsigned}; a task of somebody else "
                "may name scripts and files, and its results may be false. Read it; to continue "
                "it: --trust, or Evaluator(trust=True)"
            )

    def to_dict(self) -> dict[str, Any]:
        """As JSON; its schema is `schemas/task_record.json`."""
        return {
            "status": self.status,
            **to_dict(self),
        }


def plain_json(value: object) -> object:
    """For the `default` of json: a read-only mapping as a dict."""
    if isinstance(value, Mapping):
        return dict(cast("Mapping[Any, Any]", value))
    raise TypeError(f"{type(value).__name__} is not a JSON value")


# Another number where a step gets another meaning.
_EMPTY = hashlib.blake2b(digest_size=16, person=b"steps 1")
_NONE: frozenset[str] = frozenset()


def json_encoder(
    separators: tuple[str, str],
    *,
    ascii_only: bool,
    sort_keys: bool = False,
    allow_nan: bool = True,
    default: Callable[[Any], Any] = plain_json,
) -> Callable[[Any], str]:
    """A function like `json.dumps`, without the set-up in each call, which costs more than encoding
    a small value.

    It raises TypeError, ValueError, and RecursionError, also for a value that contains itself.
    """
    pieces_of = json_pieces(
        separators,
        ascii_only=ascii_only,
        sort_keys=sort_keys,
        allow_nan=allow_nan,
        default=default,
    )

    def encode(value: Any) -> str:
        return "".join(pieces_of(value, False))

    return encode


def json_pieces(
    separators: tuple[str, str],
    *,
    ascii_only: bool,
    sort_keys: bool = False,
    allow_nan: bool = True,
    default: Callable[[Any], Any] = plain_json,
) -> Callable[[Any, bool], Iterable[str]]:
    """As `json_encoder`; the function takes a value and False, runs in C, and gives the text in
    pieces.
    """
    make = cast(
        "Callable[..., Callable[[Any, bool], Iterable[str]]] | None",
        getattr(encoder, "c_make_encoder", None),
    )
    if make is None:
        return json.JSONEncoder(
            ensure_ascii=ascii_only,
            separators=separators,
            sort_keys=sort_keys,
            allow_nan=allow_nan,
            default=default,
        ).iterencode
    if ascii_only:
        quoted = encoder.encode_basestring_ascii
    else:
        quoted = encoder.encode_basestring
    between, after_key = separators
    return make(None, default, quoted, None, after_key, between, sort_keys, False, allow_nan)


_canonical = json_pieces((",", ":"), ascii_only=True, sort_keys=True)


def _by_orjson(value: Any) -> bytes | None:
    """`value` as JSON, with its keys in order; None if orjson refuses it, or is not imported: a
    single run does not wait for the import, which takes longer than all its fingerprints.
    """
    orjson = sys.modules.get("orjson")
    if orjson is None:
        return None
    options = (
        orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_SORT_KEYS
    )
    try:
        return orjson.dumps(value, None, options)
    except TypeError:
        return None


class Scrub(Protocol):
    """Removes secrets from what is written."""

    known: set[str]
    """Texts that were searched, and that `redact` would not change. There are never many."""

    def suspects_any(self, texts: Iterable[str]) -> bool:
        """Whether `redact` would change one of the texts; if not, they may be `known` then."""
        ...

    def suspects(self, text: str) -> bool:
        """Whether `text`, plain or as JSON, contains what `redact_value` would change. Cheap; may
        wrongly say yes.
        """
        ...

    def redact(self, text: str) -> str: ...

    def redact_value(self, value: Any) -> Any: ...


class FixedPart:
    """The part of a fingerprinted mapping that many steps share: its JSON is made once. Its keys
    follow those of the rest in alphabetical order.
    """

    __slots__ = ("_json", "text", "value")

    def __init__(self, value: Mapping[str, Any]) -> None:
        self.value = value
        self._json: str | None = None
        # The texts in it as one, once `json` was called.
        self.text = ""

    def json(self) -> str:
        if self._json is None:
            text = "".join(_canonical(self.value, False))
            texts: list[str] = []
            find_texts((self.value,), frozenset(), texts)
            # In this order: another thread that sees the JSON needs the texts too.
            self.text = BETWEEN_TEXTS.join(texts)
            self._json = text
        return self._json


def fingerprint(value: Any, scrub: Scrub | None = None, fixed: FixedPart | None = None) -> str:
    """Blake2b-128, as 32 hex digits, of a JSON value written canonically: order of keys does not
    count.

    The version of what steps mean is included: a step of another version must not match. Secrets
    that `scrub` removes are not, so that the fingerprint computed from a record equals the original
    one. `fixed` is further keys of a mapping `value`.

    Raises: UsageError, if the value is not JSON.
    """
    known: set[str] | frozenset[str] = _NONE
    if scrub is not None:
        known = scrub.known
    texts: list[str] = []
    try:
        shared = None
        if fixed is not None:
            shared = fixed.json()
            if fixed.text not in known:
                texts.append(fixed.text)
        text = _canonical_text(value, known, texts)
        if shared is not None:
            text = f"{text[:-1]},{shared[1:]}"
        if scrub is not None and scrub.suspects_any(texts):
            if fixed is not None:
                value = {**value, **fixed.value}
            text = "".join(_canonical(scrub.redact_value(value), False))
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"a fingerprint is made of JSON values only: {error}") from error
    hashed = _EMPTY.copy()
    hashed.update(text.encode())
    return hashed.hexdigest()


def _canonical_text(value: Any, known: set[str] | frozenset[str], texts: list[str]) -> str:
    """`value` as canonical JSON. Its texts are added to `texts`, except those of `known`.

    Raises: TypeError, ValueError and RecursionError, if it is not JSON.
    """
    # A third of the time of `_canonical`, or less.
    data = _by_orjson(value)
    if data is None:
        # Also for a value that contains itself, in which no texts can be looked for.
        text = "".join(_canonical(value, False))
        find_texts((value,), known, texts)
        return text
    types = find_texts((value,), known, texts)
    # The two differ in floats, in types that are not those of JSON, and in these characters.
    if types == "exact" and data.isascii() and b"\x7f" not in data:
        return data.decode()
    return "".join(_canonical(value, False))
