"""The format of task files: a sequence of records; each is read back exactly or refused.

A record is an opening line and a body. The opening line is a heading that a person reads (or, where
a result directly follows its step's beginning, nothing) and a comment for the machine:

    ## Step 3: ask <!-- begin 3 412 6c1f09aa 90d5c1f3a87be2460d1f6b9a3c45e870 d2037e5b -->

with the record's kind, the step's number, the body's length in bytes, the body's CRC-32, a
signature, and the CRC-32 of everything before it in the line, seeded with that of the record
before. So the length can be trusted before the body is read, a record cannot be moved or left out,
and nothing inside a body can act as a record.

The checksums find damage. The signature, 32 hexadecimal digits, says whose record it is: it is made
with the user's key over the signature of the record before, the line up to there, and the body. A
file without signatures, or with those of another key, is read; `Recording.unsigned` names the first
such record. Code that continues a run checks it first (`Recording.check_signed`).

Any prefix of a file reads as a prefix of its records. A file that ends inside a record is *torn*
(cut by a crash, or its last disk blocks never written and therefore zero); anything else that
differs is *corrupt* and refused. The `Status` line below the title is a hint for readers and the
only part that is ever overwritten; the authoritative status is in the summary.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import field
from typing import Any, cast, get_args
from zlib import crc32

from evaluator.errors import CorruptRecord, RecordError
from evaluator.files.trust import signing_key
from evaluator.lazy_dataclass import dataclass
from evaluator.patterns import BytesPattern, Pattern
from evaluator.record.encoding import RULE, STATUS_HINTS, Chain, record_signature
from evaluator.record.steps import (
    FORMAT_VERSION,
    EndStatus,
    FinalStatus,
    Header,
    Recording,
    Resumption,
    RunStatus,
    Step,
    StepEnd,
    StepKind,
    StepStart,
    Summary,
    Tail,
)
from evaluator.store.owners import Owner

_scan_json = cast(
    "Callable[[str, int], tuple[Any, int]]",
    getattr(json.JSONDecoder(), "scan_once"),  # noqa: B009
)


def _loads(text: str) -> Any:
    """`json.loads` for JSON that this package wrote: without a mark or space around the value."""
    try:
        value, end = _scan_json(text, 0)
    except StopIteration:
        raise ValueError("a JSON value was expected") from None
    if end != len(text):
        raise ValueError("there is text after a JSON value")
    return value


_FENCE = BytesPattern(rb"(`{3,})(json|text) ([0-9]+)(?: ((?:/[A-Za-z0-9_.-]+)*))?\n")
_FIELD = BytesPattern(rb"\n*- \*\*([A-Z][A-Za-z0-9 -]*)\*\*:(?: ([^\n]*))?\n")
_BETWEEN = BytesPattern(rb"(?:\n|<!-- [^\n]*\n)*")


def _read_inline(data: bytes) -> str:
    text = data.decode()
    if not text.startswith('"'):
        return text
    value = _loads(text)
    if not isinstance(value, str):
        raise ValueError("a quoted text was expected")
    return value


def _read_fields(data: bytes, start: int, end: int) -> dict[str, Any]:
    """The fields written in `data[start:end]`, by label; short ones as text, fenced ones as their
    value.

    Raises: ValueError, if the bytes are anything else.
    """
    fields: dict[str, Any] = {}
    at = start
    while field := _FIELD.match(data, at, end):
        label, line = field.groups()
        if line is None:
            fields[label.decode()], at = _read_blocks(data, field.end(), end=end)
        else:
            fields[label.decode()] = _read_inline(line)
            at = field.end()
    rest = _BETWEEN.match(data, at, end)
    if rest is None or rest.end() != end:
        raise ValueError("a field was expected")
    return fields


def _read_blocks(data: bytes, at: int, end: int) -> tuple[Any, int]:
    value: Any = None
    first = True
    while fence := _FENCE.match(data, at, end):
        marks, language, size, pointer = fence.groups()
        begin = fence.end()
        stop = begin + int(size)
        at = stop + len(marks) + 2
        if at > end or data[stop:at] != b"\n%b\n" % marks:
            raise ValueError("a payload does not have the length that its fence gives")
        text = data[begin:stop].decode()
        if language == b"json":
            item = _loads(text)
        else:
            item = text
        if first:
            value = item
            first = False
        else:
            _put(value, (pointer or b"").decode(), item=item)
    if first:
        raise ValueError("a fenced payload was expected")
    return value, at


def _put(value: Any, pointer: str, item: Any) -> None:
    """Puts a text that was moved out back at `pointer` of `value`."""
    keys = pointer.split("/")[1:]
    if not keys:
        raise ValueError("a second payload without its place")
    for key in keys[:-1]:
        if isinstance(value, list):
            value = value[int(key)]
        else:
            value = value[key]
    if isinstance(value, list):
        value[int(keys[-1])] = item
    else:
        value[keys[-1]] = item


_TITLE = BytesPattern(
    rb"# TASK-([0-9]{1,18}) <!-- evaluator-task ([0-9]{1,4}) ([0-9]{1,12}) ([0-9a-f]{8}) "
    rb"(?:([0-9a-f]{32}) )?([0-9a-f]{8}) -->"
)
_OPEN = BytesPattern(
    rb"(?:## (?:Step [0-9]{1,12}(?: \((?:retry|result)\))?: (.+)|Resumed|Result|Summary) )?"
    rb"<!-- (begin|end|note|resume|result|summary) ([0-9]{1,12}) ([0-9]{1,12}) ([0-9a-f]{8}) "
    rb"(?:([0-9a-f]{32}) )?([0-9a-f]{8}) -->"
)
_MARK = BytesPattern(rb"<!-- evaluator-task |[0-9a-f]{8} [0-9a-f]{8} -->")
_TORN_TITLE = BytesPattern(rb"#?|# |# T|# TA|# TAS|# TASK|# TASK-[0-9]*(?: (?:<.*)?)?")
_OWNER = Pattern(r"pid ([0-9]+), started ([0-9]+), boot ([0-9a-f-]+), host (.*)", "s")
_STEP_KINDS = frozenset(get_args(StepKind))
_END_STATUSES = frozenset(get_args(EndStatus))
_FINAL_STATUSES = frozenset(get_args(FinalStatus))
_CHECKSUMS = len("00000000 -->")
_BLOCK = 512
_LEAST_RECORD = 32

_HINT_BYTES = len(STATUS_HINTS["running"])
_HINTED: dict[bytes, RunStatus] = {line: status for status, line in STATUS_HINTS.items()}


def content_text(end: StepEnd) -> str | None:
    """The text of a successful model call or script, which may be the content of the whole run."""
    output = end.output
    # A look at the type first: `isinstance` takes long for an abstract class.
    if end.status != "success" or not (type(output) is dict or isinstance(output, Mapping)):
        return None
    outputs: Mapping[str, Any] = output
    text = outputs.get("content", outputs.get("stdout"))
    if isinstance(text, str):
        return text
    return None


def _seconds(text: str) -> float:
    whole, _, part = text.removesuffix("ms").partition(".")
    return (int(whole) * 1000 + int(part.ljust(3, "0") if part else 0)) / 1e6


@dataclass(slots=True)
class JournalState:
    """The part of a file that was read, with everything that a writer needs to continue at
    `offset`.
    """

    path: str
    offset: int = 0
    chain: Chain = Chain()
    header: Header | None = None
    # None: a loss of power or an editor has damaged it.
    hint: RunStatus | None = "running"
    hint_offset: int = 0
    steps: list[Step] = field(default_factory=list[Step])
    open: dict[int, int] = field(default_factory=dict[int, int])
    result: Any = None
    summary: Summary | None = None
    resumptions: list[Resumption] = field(default_factory=list[Resumption])
    tail: Tail = "clean"
    damage: str | None = None
    # None: each record so far has the user's signature.
    unsigned: str | None = None

    def recording(self) -> Recording:
        """The steps and the rest that was read."""
        warnings: list[str] = []
        if self.damage is not None:
            warnings.append(f"{self.damage}; the whole records end at byte {self.offset}")
        elif self.tail == "torn":
            warnings.append(
                f"the file ends inside a record; the whole records end at byte {self.offset}"
            )
        status: RunStatus
        if self.summary is None:
            status = "running"
        else:
            status = self.summary.status
        if self.hint is None:
            warnings.append(f"the status below the title has been damaged; it is {status}")
        elif self.hint not in ("running", status):
            warnings.append(f"the title has the status {self.hint}, the records {status}")
        return Recording(
            header=self.header,
            steps=tuple(self.steps),
            summary=self.summary,
            status=status,
            tail=self.tail,
            torn_offset=self.offset if self.tail == "torn" else None,
            warnings=tuple(warnings),
            resumptions=tuple(self.resumptions),
            unsigned=self.unsigned,
        )


def is_own(data: bytes) -> bool:
    """Whether these are the bytes of a file of this package's format, or of one that was cut in its
    title or began with a page that was never written.
    """
    return (
        data.startswith(b"\0")
        or _MARK.search(data, 0, 200) is not None
        or _TORN_TITLE.fullmatch(data.rstrip(b"\0")) is not None
    )


def decode(
    data: bytes, path: str = "<bytes>", *, steps: bool = True, repair: bool = False
) -> Recording:
    """The recording in a task file: this package's own, or one of another writer (see
    `other_writers`).

    Without `steps` those of an own file are checked and left out, and so is the result. `repair`:
    see `scan`.

    Raises: CorruptRecord, if it is neither, or has been changed, with line and offset.
    """
    if is_own(data):
        return scan(data, path, steps=steps, repair=repair).recording()
    from evaluator.record.other_writers import read_other

    return read_other(data, path)


def scan(
    data: bytes, path: str = "<bytes>", *, steps: bool = True, repair: bool = False
) -> JournalState:
    """Reads records of this package's own format up to the last whole one; `steps` as in `decode`.

    With `repair` a file that has been changed after its header is read up to the change, as if it
    were torn there.

    Raises: CorruptRecord.
    """
    state = JournalState(path)
    try:
        _scan(state, data, steps=steps)
    except CorruptRecord as error:
        if not repair or state.header is None:
            raise
        state.tail = "torn"
        state.damage = str(error)
    return state


def _scan(state: JournalState, data: bytes, steps: bool) -> None:
    size = len(data)
    if data.endswith(b"\0"):
        # No record has a NUL byte. Blocks that were allocated and never written read as zeros.
        size = len(data.rstrip(b"\0"))
    if size < len(data):
        state.tail = "torn"
    key = None
    if steps:
        key = signing_key(create=False)
    whole = _read_header(state, data, size=size, key=key)
    # An append whose data was not written leaves as many zeros as it had bytes, or the rest of a
    # disk block.
    if 0 < len(data) - size < _LEAST_RECORD and -(-size // _BLOCK) * _BLOCK >= len(data):
        raise _corrupt(state, data, at=size, message="unexpected zero bytes at the end")
    while whole and state.offset < size:
        whole = _read_record(state, data, size=size, steps=steps, key=key)
    if not whole:
        state.tail = "torn"


def _corrupt(state: JournalState, data: bytes, at: int, message: str) -> CorruptRecord:
    return CorruptRecord(state.path, data.count(b"\n", 0, at) + 1, offset=at, message=message)


def _check_signature(
    state: JournalState, key: bytes | None, line: bytes, body: bytes, signature: bytes, name: str
) -> None:
    """Remembers the first record without the user's signature; those after it count for nothing."""
    if state.unsigned is None and (
        key is None
        or not hmac.compare_digest(
            record_signature(key, state.chain.signature, line=line, body=body), signature
        )
    ):
        state.unsigned = name


def _read_header(state: JournalState, data: bytes, size: int, key: bytes | None) -> bool:
    """Reads the first record. False, if the file ends inside."""
    newline = data.find(b"\n", 0, size)
    if newline < 0:
        return False
    title = _TITLE.fullmatch(data, 0, newline)
    if title is None or crc32(data[: newline - _CHECKSUMS]) != int(title[6], 16):
        raise _corrupt(state, data, at=0, message="the title line has been changed")
    if int(title[2]) > FORMAT_VERSION:
        raise RecordError(
            f"{state.path}: written in format {int(title[2])}; this version reads {FORMAT_VERSION}"
        )
    at = newline + 2
    body = at + _HINT_BYTES
    end = body + int(title[3])
    if data[newline : min(at, size)] != b"\n\n"[: size - newline]:
        raise _corrupt(state, data, at=newline, message="an empty line was expected")
    if end > size:
        return False
    if crc32(data[body:end]) != int(title[4], 16):
        raise _corrupt(state, data, at=body, message="the header has been changed")
    try:
        state.header = _header(
            int(title[1]), int(title[2]), fields=_read_fields(data, body, end=end)
        )
    except (ValueError, LookupError, TypeError) as error:
        raise _corrupt(
            state, data, at=body, message=f"the header cannot be read: {error}"
        ) from error
    state.hint = _HINTED.get(data[at:body])
    state.hint_offset = at
    signature = title[5] or b""
    line = data[: title.end(4) + 1]
    _check_signature(state, key, line, data[body:end], signature=signature, name="header")
    state.offset = end
    state.chain = Chain(int(title[6], 16), signature)
    return True


def _read_record(
    state: JournalState, data: bytes, size: int, steps: bool, key: bytes | None
) -> bool:
    """Reads the record at `state.offset`. False, if the file ends inside."""
    start = state.offset
    if data.startswith(RULE, start):
        line = start + len(RULE)
    elif data.startswith(b"<!-- ", start):
        line = start
    else:
        rest = data[start : min(size, start + len(RULE))]
        if RULE.startswith(rest) or b"<!-- ".startswith(rest):
            return False
        raise _corrupt(state, data, at=start, message="a record was expected")
    newline = data.find(b"\n", line, size)
    if newline < 0:
        return False
    opening = _OPEN.fullmatch(data, line, newline)
    if opening is None:
        raise _corrupt(state, data, at=line, message="a record's opening line has been changed")
    name, kind, number, length, checksum, signature, link = opening.groups(b"")
    chain = int(link, 16)
    if crc32(data[line : newline - _CHECKSUMS], state.chain.checksum) != chain:
        raise _corrupt(state, data, at=line, message="a record's opening line has been changed")
    body = newline + 1
    end = body + int(length)
    if end > size:
        return False
    if crc32(data[body:end]) != int(checksum, 16):
        raise _corrupt(state, data, at=body, message="a record's content has been changed")
    try:
        if steps or kind in (b"resume", b"summary"):
            _apply(
                state, kind, number=int(number), name=name, fields=_read_fields(data, body, end=end)
            )
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise _corrupt(state, data, at=body, message=f"a record cannot be read: {error}") from error
    _check_signature(
        state,
        key,
        data[line : opening.end(5) + 1],
        data[body:end],
        signature=signature,
        name=kind.decode() if number == b"0" else f"step {int(number)}",
    )
    state.offset = end
    state.chain = Chain(chain, signature)
    return True


def _apply(
    state: JournalState, kind: bytes, number: int, name: bytes, fields: dict[str, Any]
) -> None:
    if kind == b"begin":
        state.open[number] = len(state.steps)
        state.steps.append(Step(number, _start(_read_inline(name), fields)))
        state.summary = state.result = None
    elif kind == b"note":
        state.steps.append(Step(number, _start(_read_inline(name), fields), _end(fields)))
    elif kind == b"end":
        index = state.open.pop(number)
        state.steps[index] = Step(number, state.steps[index].start, _end(fields))
    elif kind == b"resume":
        state.resumptions.append(_resumption(fields))
        state.summary = state.result = None
    elif kind == b"result":
        state.result = fields["Result"]
        if "Content" in fields:
            state.result["content"] = _content(
                state, int(fields["Content"].removeprefix("see step "))
            )
    else:
        state.summary = _summary(fields, state.result)


def _content(state: JournalState, number: int) -> str:
    for step in reversed(state.steps):
        if step.number == number and step.end is not None:
            text = content_text(step.end)
        else:
            text = None
        if text is not None:
            return text
    raise ValueError(f"step {number} has no content")


def _resumption(fields: dict[str, Any]) -> Resumption:
    cut: str = fields.get("Cut", "0 bytes")
    return Resumption(
        fields["At"], _owner(fields), int(cut.removesuffix(" bytes")), fields.get("Allowed")
    )


def _header(task_id: int, version: int, fields: dict[str, Any]) -> Header:
    parent: str | None = fields.get("Parent")
    return Header(
        task_id=task_id,
        created=fields["Created"],
        request=fields.get("Request", ""),
        inputs=fields.get("Inputs", {}),
        template=fields.get("Template"),
        template_sha256=fields.get("Template SHA-256"),
        template_version=fields.get("Template Version"),
        model=fields.get("Model"),
        parent=None if parent is None else int(parent.removeprefix("TASK-")),
        owner=_owner(fields),
        version=version,
        extra=fields.get("Extra", {}),
    )


def _owner(fields: dict[str, Any]) -> Owner | None:
    if "Owner" not in fields:
        return None
    match = _OWNER.fullmatch(fields["Owner"])
    if match is None:
        raise ValueError("an owner was expected")
    return Owner(int(match[1]), int(match[2]), match[3], match[4])


def _start(name: str, fields: dict[str, Any]) -> StepStart:
    attempt, _, attempts = cast(str, fields["Attempt"]).partition("/")
    kind = fields["Kind"]
    backoff = fields.get("Backoff")
    if kind not in _STEP_KINDS:
        raise ValueError(f"{kind} is not a kind of step")
    return StepStart(
        path=fields["Path"],
        kind=kind,
        name=name,
        args=fields.get("Args"),
        fingerprint=fields.get("Fingerprint", ""),
        attempt=int(attempt),
        max_attempts=int(attempts),
        backoff_s=None if backoff is None else _seconds(backoff),
        started=fields.get("Started"),
        custom_id=fields.get("Custom id"),
    )


def _end(fields: dict[str, Any]) -> StepEnd:
    if fields["Status"] not in _END_STATUSES:
        raise ValueError(f"{fields['Status']} is not a status of a step")
    return StepEnd(
        status=fields["Status"],
        output=fields.get("Output"),
        duration_s=_seconds(fields["Duration"]),
        # Files of an earlier version have the reason of an aborted step as its error.
        error=fields.get("Error", fields.get("Reason")),
        usage=_mapping(fields.get("Usage")),
        extra=fields.get("Extra"),
    )


_TOTAL = Pattern(r"([0-9]+)(?: of ([0-9]+) planned)?(?: \(([0-9]+) retr(?:y|ies)\))?")
_COUNT = Pattern(r"[0-9]{1,12}")


def _summary(fields: dict[str, Any], result: Any) -> Summary:
    total = _TOTAL.fullmatch(fields["Total Steps"])
    interrupted = _COUNT.fullmatch(fields.get("Interrupted Calls", "0"))
    if total is None or interrupted is None or fields["Final Status"] not in _FINAL_STATUSES:
        raise ValueError("a summary was expected")
    return Summary(
        status=fields["Final Status"],
        steps=int(total[1]),
        retries=int(total[3] or 0),
        duration_s=_seconds(fields["Total Duration"]),
        usage=_mapping(fields.get("Usage")),
        result=result,
        reason=fields.get("Reason", fields.get("Abort Reason")),
        planned=None if total[2] is None else int(total[2]),
        models=tuple(json.loads(fields.get("Models", "[]"))),
        interrupted_calls=int(interrupted[0]),
    )


def _mapping(text: str | None) -> Mapping[str, Any] | None:
    if text is None:
        return None
    return _loads(text)


def header_of(data: bytes, path: str = "<bytes>") -> Header | None:
    """The header at the start of `data`; None where it cannot be read."""
    state = JournalState(path)
    with suppress(CorruptRecord):
        _read_header(state, data, size=len(data), key=None)
    return state.header
