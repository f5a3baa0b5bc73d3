"""Writes the records of a task file; see `grammar` for the format and for reading them back."""

from __future__ import annotations

import hmac
from functools import lru_cache
from typing import NamedTuple, get_args
from zlib import crc32

from evaluator.errors import UsageError
from evaluator.record.payload import inline, json_field, text_field, value_field
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
    """A record's bytes, and what the next record is chained to."""

    data: bytes
    chain: Chain


def record_signature(key: bytes, previous: bytes, line: bytes, body: bytes) -> bytes:
    """The signature of a record: over the one before, its opening line up to there, and its
    body.
    """
    digest = hmac.digest(key, b"task record\0%b\0%b\n%b" % (previous, line, body), "sha256")
    return digest[:16].hex().encode()


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


def _record(lead: bytes, heading: str, kind: str, number: int, body: str, chain: Chain) -> Encoded:
    data = body.encode()
    start = f"{heading}<!-- {kind} {number} {len(data)} {crc32(data):08x} ".encode()
    line, chain = _line(start, data, chain)
    return Encoded(b"%b%b%b" % (lead, line, data), chain)


def encode_header(
    header: Header, scrub: Scrub | None = None, *, key: bytes | None = None
) -> tuple[Encoded, int]:
    """The file's first record, and the offset of its status line (see `STATUS_HINTS`). With `key`
    it is signed, and so are the records that are chained to it.
    """
    body = _header_body(header, None)
    if scrub is not None and scrub.suspects(body):
        body = _header_body(header, scrub)
    data = body.encode()
    mark = f"<!-- evaluator-task {header.version} {len(data)} {crc32(data):08x} "
    line, chain = _line(f"# TASK-{header.task_id} {mark}".encode(), data, Chain(key=key))
    top = line + b"\n"
    return Encoded(top + STATUS_HINTS["running"] + data, chain), len(top)


def _header_body(header: Header, scrub: Scrub | None) -> str:
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
    if header.extra:
        parts.append(value_field("Extra", header.extra, scrub=scrub))
    if header.request:
        parts.append(text_field("Request", header.request, scrub=scrub))
    if header.inputs:
        parts.append(value_field("Inputs", header.inputs, scrub=scrub))
    return "".join(parts)


@lru_cache(maxsize=4)
def _owner_field(owner: Owner) -> str:
    text = f"pid {owner.pid}, started {owner.started}, boot {owner.boot_id}, host {owner.host}"
    return f"- **Owner**: {inline(text)}\n"


def encode_resumption(resumption: Resumption, chain: Chain) -> Encoded:
    """The record that a process took over the run."""
    body = f"\n- **At**: {inline(resumption.at)}\n"
    if resumption.owner is not None:
        body += _owner_field(resumption.owner)
    if resumption.cut_bytes:
        body += f"- **Cut**: {resumption.cut_bytes} bytes\n"
    if resumption.allowed is not None:
        body += text_field("Allowed", resumption.allowed)
    return _record(RULE, "## Resumed ", kind="resume", number=0, body=body, chain=chain)


def encode_begin(
    number: int, start: StepStart, chain: Chain, scrub: Scrub | None = None
) -> Encoded:
    """The record that a step begins, which is a new section.

    Raises: UsageError, if a value in it is not JSON.
    """
    name = start.name
    body = _begin_body(start, None)
    if scrub is not None and scrub.suspects(f"{name}\n{body}"):
        name = scrub.redact(name)
        body = _begin_body(start, scrub)
    heading = f"## Step {number}{' (retry)' if start.attempt > 1 else ''}: {inline(name)} "
    return _record(RULE, heading, kind="begin", number=number, body=body, chain=chain)


def _begin_body(start: StepStart, scrub: Scrub | None) -> str:
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
    if start.args is not None:
        body += value_field("Args", start.args, scrub=scrub)
    return body


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
    body = _end_body(end, None)
    if scrub is not None and scrub.suspects(body):
        body = _end_body(end, scrub)
    if restate is None:
        return _record(b"", "", kind="end", number=number, body=body, chain=chain)
    if scrub is not None:
        restate = scrub.redact(restate)
    return _record(
        RULE,
        f"## Step {number} (result): {inline(restate)} ",
        kind="end",
        number=number,
        body="\n" + body,
        chain=chain,
    )


def encode_note(
    number: int, start: StepStart, end: StepEnd, chain: Chain, scrub: Scrub | None = None
) -> Encoded:
    """One record for a step that begins and ends at once, because it has no effect.

    Raises: UsageError, if a value in it is not JSON.
    """
    name = start.name
    body = _begin_body(start, None) + _end_body(end, None)
    if scrub is not None and scrub.suspects(f"{name}\n{body}"):
        name = scrub.redact(name)
        body = _begin_body(start, scrub) + _end_body(end, scrub)
    return _record(
        RULE,
        f"## Step {number}: {inline(name)} ",
        kind="note",
        number=number,
        body=body,
        chain=chain,
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
    result = _result_body(summary, content_of, scrub=None)
    end = _summary_body(summary, None)
    if scrub is not None and scrub.suspects(result + end):
        result = _result_body(summary, content_of, scrub=scrub)
        end = _summary_body(summary, scrub)
    first = b""
    if result:
        first, chain = _record(
            RULE, "## Result ", kind="result", number=0, body=result, chain=chain
        )
    end += f"<!-- {len(end.encode())} bytes of summary end here -->\n"
    last, chain = _record(RULE, "## Summary ", kind="summary", number=0, body=end, chain=chain)
    return Encoded(first + last, chain)


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
