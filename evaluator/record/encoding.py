"""Writes the records of a task file; see `grammar` for the format and for reading them back.

A field of a record is a bullet with a short text, or a bullet and fenced blocks with a value.
A fence's info string gives the payload's language and its length in bytes. Reading takes exactly
that many bytes. The fence is one backtick longer than any run inside, for other readers of
Markdown. Readable text is written unchanged. Any other value is written as JSON; texts of several
lines in it are moved into separate blocks, each with its place:

    - **Args**:
    ```json 30
    {"role":"user","content":"↓"}
    ```
    ```text 11 /content
    two
    lines
    ```
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256
from json import encoder
from typing import Any, NamedTuple, cast, get_args
from zlib import crc32

from evaluator.errors import UsageError
from evaluator.patterns import Pattern
from evaluator.record.entries import Entry, Note
from evaluator.record.steps import (
    FinalStatus,
    Header,
    Resumption,
    RunStatus,
    StepEnd,
    StepStart,
    Summary,
    json_pieces,
)
from evaluator.store.owners import Owner

RULE = b"\n---\n\n"
"""What a record that is a new section begins with."""
_HINT_WIDTH = len("interrupted")
STATUS_HINTS: dict[RunStatus, bytes] = {
    status: b"- **Status**: " + status.ljust(_HINT_WIDTH).encode() + b"\n"
    for status in ("running", *get_args(FinalStatus))
}
_RUNNING = b"\n" + STATUS_HINTS["running"]


_compact = json_pieces((", ", ": "), ascii_only=False)
_ascii = json_pieces((", ", ": "), ascii_only=True)
_quoted = encoder.encode_basestring

# Control characters affect a terminal, \r is changed by editors, and surrogates have no UTF-8.
_UNPLAIN = Pattern("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_POINTER = Pattern(r"(?:/[A-Za-z0-9_.-]+)*")
_BACKTICKS = Pattern("`{3,}")
# Replaces a text that follows below; reading puts the text back.
_BELOW = "↓"
_LIFT_DEPTH = 4
_LIFT_ITEMS = 256
_PRETTY_KEYS = 16
_INLINE_CHARS = 240
_HASH_BLOCK = 64


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


@lru_cache(maxsize=4)
def _keyed_hashes(key: bytes) -> tuple[Any, Any]:
    """The inner and the outer hash of HMAC-SHA-256 (RFC 2104) after their first block, which is
    made of the key. A record copies them, which takes half the time that `hmac` does.
    """
    if len(key) > _HASH_BLOCK:
        key = sha256(key).digest()
    block = key.ljust(_HASH_BLOCK, b"\0")
    return sha256(bytes(byte ^ 0x36 for byte in block)), sha256(
        bytes(byte ^ 0x5C for byte in block)
    )


def record_signature(key: bytes, previous: bytes, line: bytes, body: bytes) -> bytes:
    """The signature of a record: over the one before, its opening line up to there, and its
    body.
    """
    inner, outer = _keyed_hashes(key)
    inner = inner.copy()
    inner.update(b"task record\0%b\0%b\n%b" % (previous, line, body))
    outer = outer.copy()
    outer.update(inner.digest())
    return outer.hexdigest()[:32].encode()


def _record(
    lead: bytes,
    heading: str,
    kind: str,
    number: int,
    body: str,
    chain: Chain,
    hint: bytes = b"",
) -> Encoded:
    """A record whose opening line ends with its signature and its checksum. `hint` stands between
    the line and the body, and neither signs nor checks it.
    """
    data = body.encode()
    line = f"{heading}<!-- {kind} {number} {len(data)} {crc32(data):08x} ".encode()
    signature = b""
    if chain.key is not None:
        signature = record_signature(chain.key, chain.signature, line=line, body=data)
        line = b"%b%b " % (line, signature)
    checksum = crc32(line, chain.checksum)
    return Encoded(
        b"%b%b%08x -->\n%b%b" % (lead, line, checksum, hint, data),
        Chain(checksum, signature, chain.key),
    )


def _is_plain(text: str) -> bool:
    """Whether a person can read `text` as it is, and no editor or terminal changes it."""
    # isprintable is several times faster than the expression and right for most texts.
    return text.replace("\n", "").isprintable() or _UNPLAIN.search(text) is None


def _inline(text: str) -> str:
    """`text` on one line: unchanged where that can be read back, else as a JSON string."""
    if text and text.isprintable() and text[0] not in '" ' and text[-1] != " ":
        return text
    return "".join(_ascii(text, False))


_repeated = lru_cache(maxsize=1024)(_inline)
"""As `_inline`, for a name or path that many records have."""


def _text_field(label: str, text: str) -> str:
    """A bullet with a text: on its own line where it is short and plain, else fenced."""
    if (
        len(text) <= _INLINE_CHARS
        and text
        and text.isprintable()
        and text[0] not in '" '
        and text[-1] != " "
    ):
        return f"- **{label}**: {text}\n"
    return f"- **{label}**:\n{_block(text)}"


def _value_field(label: str, value: Any) -> str:
    """A bullet and the blocks that contain `value` exactly.

    Raises: UsageError, if it is neither JSON nor text.
    """
    lifted: list[tuple[str, str]] = []
    try:
        if type(value) is str:
            return f"- **{label}**:\n{_block(value)}"
        blocks = _json(value)
        # A line end in a text is an escape in JSON: without one there is nothing to move.
        if "\\n" in blocks:
            blocks = _json(_lift(value, "", lifted=lifted, depth=_LIFT_DEPTH))
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"{label} of a step is not a JSON value: {error}") from error
    blocks = _fenced("json", blocks)
    for pointer, text in lifted:
        blocks += _fenced("text", text, suffix=" " + pointer)
    return f"- **{label}**:\n{blocks}"


def _json_field(label: str, value: Any) -> str:
    """A bullet with a small JSON value on its own line."""
    try:
        text = "".join(_ascii(value, False))
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"{label} is not a JSON value: {error}") from error
    return f"- **{label}**: {text}\n"


def _block(text: str) -> str:
    if _is_plain(text):
        return _fenced("text", text)
    return _fenced("json", _json(text))


def _fenced(language: str, payload: str, suffix: str = "") -> str:
    fence = "```"
    if fence in payload:
        fence = "`" * (max(map(len, _BACKTICKS.findall(payload))) + 1)
    if payload.isascii():
        size = len(payload)
    else:
        size = len(payload.encode())
    return f"{fence}{language} {size}{suffix}\n{payload}\n{fence}\n"


def _json(value: Any) -> str:
    """JSON that encodes to UTF-8; a small object gets a line for each key."""
    text = ""
    if type(value) is dict and 1 < len(value) <= _PRETTY_KEYS:
        members = cast("dict[Any, Any]", value)
        lines: list[str] = []
        for key, item in members.items():
            if type(key) is not str:
                break
            if type(item) is str:
                lines.append(f"  {_quoted(key)}: {_quoted(item)}")
            else:
                lines.append(f"  {_quoted(key)}: {''.join(_compact(item, False))}")
        if len(lines) == len(members):
            text = "{\n" + ",\n".join(lines) + "\n}"
    text = text or "".join(_compact(value, False))
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate
        return "".join(_ascii(value, False))
    return text


def _lift(value: Any, pointer: str, lifted: list[tuple[str, str]], depth: int) -> Any:
    """`value` without its texts of several lines, which are added to `lifted`. Copies only what it
    changes.
    """
    if type(value) is str:
        if (
            "\n" not in value
            or not pointer
            or not _is_plain(value)
            or not _POINTER.fullmatch(pointer)
        ):
            return value
        lifted.append((pointer, value))
        return _BELOW
    if depth == 0 or type(value) not in (dict, list):
        return value
    container = cast("dict[Any, Any] | list[Any]", value)
    if len(container) > _LIFT_ITEMS:
        return container
    copy: Any = None
    for key, item in container.items() if isinstance(container, dict) else enumerate(container):
        kind = type(item)
        if ("\n" not in item) if kind is str else (kind is not dict and kind is not list):
            continue
        # A key with a slash would read as two steps of a pointer.
        if isinstance(container, dict) and (type(key) is not str or "/" in key):
            continue
        rest = _lift(item, f"{pointer}/{key}", lifted=lifted, depth=depth - 1)
        if rest is not item:
            if copy is None:
                copy = container.copy()
            copy[key] = rest
    if copy is None:
        return container
    return copy


def encode(entry: Entry, chain: Chain) -> Encoded:
    """A record after the one that `chain` names. Raises: UsageError, if a value in it is not
    JSON.
    """
    first = entry.parts[0]
    match entry.kind:
        case "header":
            return encode_header(first, key=chain.key)[0]
        case "begin":
            return encode_begin(entry.number, first, chain)
        case "end":
            return encode_end(entry.number, first, chain, restate=entry.name)
        case "note":
            return encode_note(entry.number, entry.note or Note(*entry.parts), chain)
        case "resume":
            return encode_resumption(first, chain)
        case "summary":
            return encode_summary(first, chain, content_of=entry.number or None)


def encode_header(header: Header, *, key: bytes | None = None) -> tuple[Encoded, int]:
    """The file's first record, and the offset of its status line (see `STATUS_HINTS`). With `key`
    it is signed, and so are the records that are chained to it.
    """
    values = _header_values(header)
    fields = f"- **Created**: {_inline(header.created)}\n" + _template_fields(
        header.template, header.template_sha256, header.template_version, header.model
    )
    if header.parent is not None:
        fields += f"- **Parent**: TASK-{header.parent}\n"
    if header.owner is not None:
        fields += _owner_field(header.owner)
    record = _record(
        b"",
        f"# TASK-{header.task_id} ",
        kind="evaluator-task",
        number=header.version,
        body=fields + values,
        chain=Chain(key=key),
        hint=_RUNNING,
    )
    return record, record.data.index(_RUNNING) + 1


@lru_cache(maxsize=256)
def _template_fields(
    name: str | None, sha256: str | None, version: str | None, model: str | None
) -> str:
    """The fields that the headers of many tasks have."""
    texts = {
        "Template": name,
        "Template SHA-256": sha256,
        "Template Version": version,
        "Model": model,
    }
    return "".join(_text_field(label, text) for label, text in texts.items() if text is not None)


def _header_values(header: Header) -> str:
    text = ""
    if header.extra:
        text = _value_field("Extra", header.extra)
    if header.request:
        text += _text_field("Request", header.request)
    if header.inputs:
        text += _value_field("Inputs", header.inputs)
    return text


def _owner_field(owner: Owner) -> str:
    text = f"pid {owner.pid}, started {owner.started}, boot {owner.boot_id}, host {owner.host}"
    return f"- **Owner**: {_inline(text)}\n"


def encode_resumption(resumption: Resumption, chain: Chain) -> Encoded:
    """The record that a process took over the run."""
    body = f"\n- **At**: {_inline(resumption.at)}\n"
    if resumption.owner is not None:
        body += _owner_field(resumption.owner)
    if resumption.cut_bytes:
        body += f"- **Cut**: {resumption.cut_bytes} bytes\n"
    if resumption.allowed is not None:
        body += _text_field("Allowed", resumption.allowed)
    return _record(RULE, "## Resumed ", kind="resume", number=0, body=body, chain=chain)


def encode_begin(number: int, start: StepStart, chain: Chain) -> Encoded:
    """The record that a step begins, which is a new section.

    Raises: UsageError, if a value in it is not JSON.
    """
    args = ""
    if start.args is not None:
        args = _value_field("Args", start.args)
    retry = ""
    if start.attempt > 1:
        retry = " (retry)"
    return _record(
        RULE,
        f"## Step {number}{retry}: {_repeated(start.name)} ",
        kind="begin",
        number=number,
        body=_begin_fields(start) + args,
        chain=chain,
    )


def _begin_fields(start: StepStart) -> str:
    body = f"\n- **Attempt**: {start.attempt}/{start.max_attempts}\n"
    if start.started is not None:
        body += f"- **Started**: {_inline(start.started)}\n"
    if start.custom_id is not None:
        body += f"- **Custom id**: {_inline(start.custom_id)}\n"
    if start.backoff_s is not None:
        body += f"- **Backoff**: {milliseconds(start.backoff_s)}\n"
    body += f"- **Kind**: {start.kind}\n- **Path**: {_repeated(start.path)}\n"
    if start.fingerprint:
        body += f"- **Fingerprint**: {_inline(start.fingerprint)}\n"
    return body


def encode_end(number: int, end: StepEnd, chain: Chain, *, restate: str | None = None) -> Encoded:
    """The record that a step has ended. `restate` is the step's name where other records come
    between.

    Raises: UsageError, if a value in it is not JSON.
    """
    body = _end_body(end)
    if restate is None:
        return _record(b"", "", kind="end", number=number, body=body, chain=chain)
    return _record(
        RULE,
        f"## Step {number} (result): {_inline(restate)} ",
        kind="end",
        number=number,
        body="\n" + body,
        chain=chain,
    )


def encode_note(number: int, note: Note, chain: Chain) -> Encoded:
    """One record for a step that begins and ends at once, because it has no effect.

    Raises: UsageError, if a value in it is not JSON.
    """
    start = note.start
    if note.markdown is None:
        values = ""
        if start.args is not None:
            values = _value_field("Args", start.args)
        values += _end_body(note.end)
        note.markdown = _begin_fields(start) + values
    return _record(
        RULE,
        f"## Step {number}: {_repeated(start.name)} ",
        kind="note",
        number=number,
        body=note.markdown,
        chain=chain,
    )


def _end_body(end: StepEnd) -> str:
    body = ""
    if end.output is not None:
        body = _value_field("Output", end.output)
    body += f"- **Duration**: {milliseconds(end.duration_s)}\n- **Status**: {end.status}\n"
    if end.error is not None:
        body += _text_field("Reason" if end.status == "aborted" else "Error", end.error)
    if end.usage is not None:
        body += _json_field("Usage", end.usage)
    if end.extra is not None:
        body += _value_field("Extra", end.extra)
    return body


def encode_summary(summary: Summary, chain: Chain, *, content_of: int | None = None) -> Encoded:
    """The records that end a run: the result, then a short summary that ends the file.

    `content_of` is the step that has the result's content (see `grammar.content_text`), which is
    then not repeated.

    Raises: UsageError, if a value in it is not JSON.
    """
    result = _result_body(summary, content_of)
    end = _summary_body(summary)
    first = b""
    if result:
        first, chain = _record(
            RULE, "## Result ", kind="result", number=0, body=result, chain=chain
        )
    end += f"<!-- {len(end.encode())} bytes of summary end here -->\n"
    last = _record(RULE, "## Summary ", kind="summary", number=0, body=end, chain=chain)
    return Encoded(first + last.data, last.chain)


def _result_body(summary: Summary, content_of: int | None) -> str:
    if summary.result is None:
        return ""
    if content_of is None:
        return "\n" + _value_field("Result", summary.result)
    rest = {key: value for key, value in summary.result.items() if key != "content"}
    return f"\n- **Content**: see step {content_of}\n{_value_field('Result', rest)}"


def _summary_body(summary: Summary) -> str:
    total = f"{summary.steps}"
    if summary.planned is not None:
        total += f" of {summary.planned} planned"
    if summary.retries:
        total += f" ({summary.retries} {'retry' if summary.retries == 1 else 'retries'})"
    body = (
        f"\n- **Total Steps**: {total}\n- **Total Duration**: {milliseconds(summary.duration_s)}\n"
        f"- **Final Status**: {summary.status}\n"
    )
    if summary.models:
        body += _json_field("Models", list(summary.models))
    if summary.reason is not None:
        body += _text_field(
            "Abort Reason" if summary.status == "aborted" else "Reason", summary.reason
        )
    if summary.usage is not None:
        body += _json_field("Usage", summary.usage)
    if summary.interrupted_calls:
        body += f"- **Interrupted Calls**: {summary.interrupted_calls}\n"
    return body


def milliseconds(seconds: float) -> str:
    """A duration as records have it. Raises: UsageError, if it is not finite or negative."""
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
