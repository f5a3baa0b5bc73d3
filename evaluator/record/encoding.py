"""Writes the records of a task file; see `grammar` for the format and for reading them back.

Each function removes the secrets that `scrub` knows. Without it, `Encoded.text` has what may hold
some: the journal looks through that once for all records that it writes together.
"""

from __future__ import annotations

import hmac
from functools import lru_cache
from typing import Any, NamedTuple, get_args
from zlib import crc32

from evaluator.errors import UsageError
from evaluator.record.payload import inline, json_field, text_field, value_field, without_fences
from evaluator.record.steps import (
    FinalStatus,
    Header,
    Owner,
    Resumption,
    RunStatus,
    Scrub,
    StepEnd,
    StepStart,
    Summary,
)

RULE = b"\n---\n\n"
"""What a record that is a new section begins with."""
_HINT_WIDTH = len("interrupted")
STATUS_HINTS: dict[RunStatus, bytes] = {
    status: b"- **Status**: " + status.ljust(_HINT_WIDTH).encode() + b"\n"
    for status in ("running", *get_args(FinalStatus))
}


class Chain(NamedTuple):
    """What the next record is chained to: checksum and signature of the one before, and the key
    that signs; None: records are not signed.
    """

    checksum: int = 0
    signature: bytes = b""
    key: bytes | None = None


class Encoded(NamedTuple):
    """A record's bytes, what the next record is chained to, and the parts of it that may hold a
    secret.
    """

    data: bytes
    chain: Chain
    text: str


@lru_cache(maxsize=4)
def _signer(key: bytes) -> hmac.HMAC:
    """With the key's schedule, which is half of the work on a short record."""
    return hmac.new(key, digestmod="sha256")


def record_signature(key: bytes, previous: bytes, line: bytes, body: bytes) -> bytes:
    """The signature of a record: over the one before, its opening line up to there, and its
    body.
    """
    signer = _signer(key).copy()
    signer.update(b"task record\0%b\0%b\n%b" % (previous, line, body))
    return signer.digest()[:16].hex().encode()


def _line(line: bytes, body: bytes, chain: Chain) -> tuple[bytes, Chain]:
    """An opening line that ends with its signature and checksum, and the chain that continues
    from it.
    """
    signature = b""
    if chain.key is not None:
        signature = record_signature(chain.key, chain.signature, line=line, body=body)
        line = b"%b%b " % (line, signature)
    checksum = crc32(line, chain.checksum)
    return b"%b%08x -->\n" % (line, checksum), Chain(checksum, signature, chain.key)


def _record(
    lead: bytes, heading: str, kind: str, number: int, body: str, chain: Chain, text: str
) -> Encoded:
    data = body.encode()
    start = f"{heading}<!-- {kind} {number} {len(data)} {crc32(data):08x} ".encode()
    line, chain = _line(start, data, chain)
    return Encoded(b"%b%b%b" % (lead, line, data), chain, text)


def encode_header(
    header: Header, scrub: Scrub | None = None, *, key: bytes | None = None
) -> tuple[Encoded, int]:
    """The file's first record, and the offset of its status line (see `STATUS_HINTS`). With `key`
    it is signed, and so are the records that are chained to it.
    """
    values = _header_values(header, scrub)
    data = (_header_fields(header) + values).encode()
    mark = f"<!-- evaluator-task {header.version} {len(data)} {crc32(data):08x} "
    line, chain = _line(f"# TASK-{header.task_id} {mark}".encode(), data, Chain(key=key))
    top = line + b"\n"
    return Encoded(top + STATUS_HINTS["running"] + data, chain, values), len(top)


def _header_fields(header: Header) -> str:
    parts = [f"- **Created**: {inline(header.created)}\n"]
    for label, text in (
        ("Template", header.template),
        ("Template SHA-256", header.template_sha256),
        ("Template Version", header.template_version),
        ("Model", header.model),
    ):
        if text is not None:
            parts.append(text_field(label, text))
    if header.parent is not None:
        parts.append(f"- **Parent**: TASK-{header.parent}\n")
    if header.owner is not None:
        parts.append(_owner_field(header.owner))
    return "".join(parts)


def _header_values(header: Header, scrub: Scrub | None) -> str:
    text = ""
    extra = header.extra
    if scrub is not None and header.parent is None:
        extra = {**extra, **_removed_secrets(header, scrub)}
    if extra:
        text = value_field("Extra", extra, scrub=scrub)
    if header.request:
        text += text_field("Request", header.request, scrub=scrub)
    if header.inputs:
        text += value_field("Inputs", header.inputs, scrub=scrub)
    return text


def _removed_secrets(header: Header, scrub: Scrub) -> dict[str, Any]:
    """Names what a run that starts again lacks, because it is secret."""
    removed: dict[str, Any] = {}
    inputs = [name for name, value in header.inputs.items() if scrub.redact_value(value) != value]
    if inputs:
        removed["redacted_inputs"] = inputs
    shots = header.extra.get("shots")
    if scrub.redact_value(shots) != shots:
        removed["redacted_shots"] = True
    return removed


@lru_cache(maxsize=4)
def _owner_field(owner: Owner) -> str:
    text = f"pid {owner.pid}, started {owner.started}, boot {owner.boot_id}, host {owner.host}"
    return f"- **Owner**: {inline(text)}\n"


def encode_resumption(resumption: Resumption, chain: Chain, scrub: Scrub | None = None) -> Encoded:
    """The record that a process took over the run."""
    body = f"\n- **At**: {inline(resumption.at)}\n"
    if resumption.owner is not None:
        body += _owner_field(resumption.owner)
    if resumption.cut_bytes:
        body += f"- **Cut**: {resumption.cut_bytes} bytes\n"
    if resumption.allowed is not None:
        body += text_field("Allowed", resumption.allowed, scrub=scrub)
    return _record(RULE, "## Resumed ", kind="resume", number=0, body=body, chain=chain, text=body)


def encode_begin(
    number: int, start: StepStart, chain: Chain, scrub: Scrub | None = None
) -> Encoded:
    """The record that a step begins, which is a new section.

    Raises: UsageError, if a value in it is not JSON.
    """
    name = start.name if scrub is None else scrub.redact(start.name)
    args = _args_field(start, scrub)
    retry = " (retry)" if start.attempt > 1 else ""
    return _record(
        RULE,
        f"## Step {number}{retry}: {inline(name)} ",
        kind="begin",
        number=number,
        body=_begin_fields(start) + args,
        chain=chain,
        text=f"{name}\n{without_fences(args)}",
    )


def _begin_fields(start: StepStart) -> str:
    body = f"\n- **Attempt**: {start.attempt}/{start.max_attempts}\n"
    if start.started is not None:
        body += f"- **Started**: {inline(start.started)}\n"
    if start.custom_id is not None:
        body += f"- **Custom id**: {inline(start.custom_id)}\n"
    if start.backoff_s is not None:
        body += f"- **Backoff**: {_milliseconds(start.backoff_s)}\n"
    body += f"- **Kind**: {start.kind}\n- **Path**: {inline(start.path)}\n"
    if start.fingerprint:
        body += f"- **Fingerprint**: {inline(start.fingerprint)}\n"
    return body


def _args_field(start: StepStart, scrub: Scrub | None) -> str:
    if start.args is None:
        return ""
    return value_field("Args", start.args, scrub=scrub)


def encode_end(
    number: int,
    end: StepEnd,
    chain: Chain,
    scrub: Scrub | None = None,
    *,
    restate: str | None = None,
) -> Encoded:
    """The record that a step has ended. `restate` is the step's name where other records come
    between.

    Raises: UsageError, if a value in it is not JSON.
    """
    body = _end_body(end, scrub)
    if restate is None:
        return _record(b"", "", kind="end", number=number, body=body, chain=chain, text=body)
    if scrub is not None:
        restate = scrub.redact(restate)
    return _record(
        RULE,
        f"## Step {number} (result): {inline(restate)} ",
        kind="end",
        number=number,
        body="\n" + body,
        chain=chain,
        text=f"{restate}\n{body}",
    )


def encode_note(
    number: int, start: StepStart, end: StepEnd, chain: Chain, scrub: Scrub | None = None
) -> Encoded:
    """One record for a step that begins and ends at once, because it has no effect.

    Raises: UsageError, if a value in it is not JSON.
    """
    name = start.name if scrub is None else scrub.redact(start.name)
    values = _args_field(start, scrub) + _end_body(end, scrub)
    return _record(
        RULE,
        f"## Step {number}: {inline(name)} ",
        kind="note",
        number=number,
        body=_begin_fields(start) + values,
        chain=chain,
        text=f"{name}\n{values}",
    )


def _end_body(end: StepEnd, scrub: Scrub | None) -> str:
    body = ""
    if end.output is not None:
        body = value_field("Output", end.output, scrub=scrub)
    body += f"- **Duration**: {_milliseconds(end.duration_s)}\n- **Status**: {end.status}\n"
    if end.error is not None:
        body += text_field("Reason" if end.status == "aborted" else "Error", end.error, scrub=scrub)
    if end.usage is not None:
        body += json_field("Usage", end.usage, scrub=scrub)
    if end.extra is not None:
        body += value_field("Extra", end.extra, scrub=scrub)
    return body


def encode_summary(
    summary: Summary, chain: Chain, scrub: Scrub | None = None, *, content_of: int | None = None
) -> Encoded:
    """The records that end a run: the result, then a short summary that ends the file.

    `content_of` is the step that has the result's content (see `grammar.content_text`), which is
    then not repeated.

    Raises: UsageError, if a value in it is not JSON.
    """
    result = _result_body(summary, content_of, scrub=scrub)
    end = _summary_body(summary, scrub)
    text = result + end
    first = b""
    if result:
        first, chain, _ = _record(
            RULE, "## Result ", kind="result", number=0, body=result, chain=chain, text=text
        )
    end += f"<!-- {len(end.encode())} bytes of summary end here -->\n"
    last = _record(RULE, "## Summary ", kind="summary", number=0, body=end, chain=chain, text=text)
    return Encoded(first + last.data, last.chain, text)


def _result_body(summary: Summary, content_of: int | None, scrub: Scrub | None) -> str:
    if summary.result is None:
        return ""
    if content_of is None:
        return "\n" + value_field("Result", summary.result, scrub=scrub)
    rest = {key: value for key, value in summary.result.items() if key != "content"}
    return f"\n- **Content**: see step {content_of}\n{value_field('Result', rest, scrub=scrub)}"


def _summary_body(summary: Summary, scrub: Scrub | None) -> str:
    total = f"{summary.steps}"
    if summary.planned is not None:
        total += f" of {summary.planned} planned"
    if summary.retries:
        total += f" ({summary.retries} {'retry' if summary.retries == 1 else 'retries'})"
    body = (
        f"\n- **Total Steps**: {total}\n- **Total Duration**: {_milliseconds(summary.duration_s)}\n"
        f"- **Final Status**: {summary.status}\n"
    )
    if summary.models:
        body += json_field("Models", list(summary.models), scrub=scrub)
    if summary.reason is not None:
        body += text_field(
            "Abort Reason" if summary.status == "aborted" else "Reason", summary.reason, scrub=scrub
        )
    if summary.usage is not None:
        body += json_field("Usage", summary.usage, scrub=scrub)
    return body


def _milliseconds(seconds: float) -> str:
    try:
        whole, part = divmod(round(seconds * 1e6), 1000)
    except (ValueError, OverflowError) as error:
        raise UsageError(
            f"a duration must be a finite number of seconds, not {seconds!r}"
        ) from error
    if whole < 0:
        raise UsageError(f"a duration cannot be negative: {seconds!r}")
    if part:
        return f"{whole}.{part:03d}ms"
    return f"{whole}ms"
