"""The write-ahead log of the provider batches of a batch: `provider/log.jsonl` in its folder.

A submission is one provider batch, from its intent to its end. Each entry is on the disk before the
next effect:

    intent      which calls, the digest of the file of requests, the most that they may cost, a tag
    uploaded    the provider has the file of requests
    creating    the request that creates the batch is about to be sent
    absent      that request certainly had no effect
    created     the batch exists, under its id
    cancelling  the batch is about to be cancelled
    ended       nothing of the batch runs any more
    collected   every answer is on the disk, with the digest of the file of answers
    dropped     the batch was never run; its calls are made again
    deleted     the provider's files are deleted

Entries are signed for this batch: somebody else's can neither create nor cancel anything. A damaged
or foreign entry ends the session, since a call might be paid for twice without it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from evaluator import disk
from evaluator.batch.folder import PROVIDER
from evaluator.batch.identity import is_sealed, seal_line
from evaluator.errors import BatchDamaged, ConfigurationError, RecordNotWritten, advice_on
from evaluator.errors.messages import amount
from evaluator.files.open_below import open_private_folder, open_regular, read_regular
from evaluator.files.trust import signature, signature_check
from evaluator.lazy_dataclass import dataclass
from evaluator.limits.call_limiter import PlannedCall
from evaluator.models.provider_batches import ProviderBatch
from evaluator.record.journal import now

LOG = "log.jsonl"
_MAX_BYTES = 4_000_000_000
# How long a batch takes at most, as it is requested, and how much later its end is waited for.
_DAY_S = 86_400.0
# As long, where the provider names no end, or a later one.
_LONGEST_S = 14 * _DAY_S
# Clocks of providers differ by less.
_CLOCK_S = 3600.0


class LoggedCall(NamedTuple):
    """A call of a submission. `sample` is the identity of its sample; tokens and cost are the most
    that it may use.
    """

    custom_id: str
    sample: str
    is_further: bool
    input_tokens: int | None
    output_tokens: int | None
    cost_usd: float | None


@dataclass(slots=True)
class Submission:
    """A provider batch as the log has it. `state` is the last entry's event.

    `expires` is a Unix time, and so is `created`, when its id was known. `is_upload_begun`: the
    provider may have the file of requests.
    `counts` are its calls by their result; `cost_usd` is what the answers
    cost, None if that is unknown. `reason`: why it ended; while it is created, why the answer to
    that is wrong.
    """

    number: int
    format: str
    label: str
    endpoint: str
    profile: str
    prices: tuple[float, float] | None
    tag: str
    digest: str
    calls: Mapping[str, LoggedCall]
    max_cost_usd: float | None
    at: float
    state: str = "intent"
    upload: str | None = None
    batch: str | None = None
    expires: float | None = None
    created: float | None = None
    is_cancelled: bool = False
    counts: Mapping[str, int] = field(default_factory=dict[str, int])
    cost_usd: float | None = None
    answers_digest: str = ""
    reason: str = ""
    is_upload_begun: bool = False

    @property
    def is_sent(self) -> bool:
        """Whether the provider has it, or may have it, and its answers are still to come."""
        return self.state in ("creating", "created", "cancelling", "ended")

    @property
    def is_open(self) -> bool:
        """Whether its calls wait."""
        return self.is_sent or self.state in ("intent", "uploaded", "absent")

    @property
    def latest_end(self) -> float:
        """The Unix time after which its batch is not waited for, whatever the provider says."""
        since = self.at if self.created is None else self.created
        expires = since + _LONGEST_S
        if self.expires is not None:
            expires = min(max(self.expires, since + _DAY_S), expires)
        return expires + _DAY_S

    def is_of(self, batch: ProviderBatch) -> bool:
        """Whether `batch`, by what it was created with, can belong to this submission."""
        if batch.tag is not None:
            return batch.tag == self.tag
        return None in (batch.upload, self.upload) or batch.upload == self.upload

    def may_be(self, batch: ProviderBatch) -> bool:
        """Whether `batch`, which does not tell what it was created with, may belong here. A count
        alone proves nothing: servers may count while they work.
        """
        if batch.requests in (None, len(self.calls)):
            return True
        return batch.created is None or batch.created > self.at - _CLOCK_S

    def may_cancel(self, batch: ProviderBatch) -> bool:
        """Whether to cancel `batch`, which `is_of` this submission: only once, and not where it
        does not tell what it was created with and seems to be another one.
        """
        does_tell = batch.tag is not None or None not in (batch.upload, self.upload)
        return not self.is_cancelled and (does_tell or self.may_be(batch))

    def planned(self, call: LoggedCall) -> PlannedCall:
        return PlannedCall(
            self.label, self.endpoint, call.input_tokens, call.output_tokens, call.cost_usd
        )

    def to_dict(self) -> dict[str, Any]:
        """For people and programs."""
        return {
            "number": self.number,
            "model": self.label,
            "format": self.format,
            "state": self.state,
            "batch": self.batch,
            "calls": len(self.calls),
            "max_cost_usd": self.max_cost_usd,
            "cost_usd": self.cost_usd,
            "expires": self.expires,
            "counts": dict(self.counts),
            "reason": self.reason,
            "text": str(self),
        }

    def __str__(self) -> str:
        cost = f"at most {_dollars(self.max_cost_usd)}"
        if self.counts:
            cost = _dollars(self.cost_usd)
        counts = [f"{count:,} {cause}" for cause, count in self.counts.items()]
        what = ", ".join([self.state, amount(len(self.calls), "call"), *counts, cost])
        if self.is_sent and self.expires is not None:
            what += f", until {datetime.fromtimestamp(self.expires, UTC):%Y-%m-%d %H:%M} UTC"
        return f"provider batch {self.number}, {self.batch or self.tag} ({self.label}): {what}"


class WaveLog:
    """The log in a batch's folder; `created` is the manifest's. Only the process that holds the
    lock on the folder writes it.
    """

    def __init__(self, folder: str | Path, created: str) -> None:
        self.folder = Path(folder) / PROVIDER
        self.path = self.folder / LOG
        self._created = created
        self.submissions: dict[int, Submission] = {}

    def read(self, *, is_shown: bool = False) -> None:
        """Reads all submissions. `is_shown`: nothing is done because of them, so that those of
        somebody else are read too.

        Raises: BatchDamaged, for an entry that was changed, or that this user's programs did not
        write for this batch.
        """
        is_signed = signature_check()
        try:
            data = read_regular(self.path, _MAX_BYTES)
        except FileNotFoundError:
            return
        except OSError as error:
            raise BatchDamaged(f"{self.path}: cannot be read: {error.strerror}") from error
        # A line without its end was being written when its process was killed: nothing followed.
        lines = data[: data.rfind(b"\n") + 1].splitlines(keepends=True)
        for number, line in enumerate(lines, 1):
            if is_sealed(line):
                entry = json.loads(line)
            else:
                entry = {}
            if is_shown and entry:
                self._apply(entry)
                continue
            if not is_signed(self._signed(entry), entry.get("signature")):
                raise BatchDamaged(
                    f"{self.path}:{number}: was changed, or was not written by you for this batch; "
                    "restore it, or run the batch into a new folder: the provider batches in it "
                    "may be paid already"
                )
            self._apply(entry)

    def add(self, number: int, event: str, **fields: Any) -> Submission:
        """Appends an entry; it is on the disk when this returns. Raises: RecordNotWritten."""
        entry = {"number": number, "event": event, "at": now(), **fields}
        mark = signature(self._signed(entry))
        if mark is None:
            raise ConfigurationError(
                "the log of provider batches is signed with the key in your folder, which cannot "
                "be written; make it writable, or set EVALUATOR_CONFIG_DIR to a folder of your own"
            )
        line = seal_line(json.dumps({**entry, "signature": mark}))
        try:
            os.close(open_private_folder(self.folder, sync=True))
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            fd = open_regular(self.path, max_bytes=_MAX_BYTES, flags=flags)
            try:
                _append(fd, line)
                disk.fsync(fd)
            finally:
                disk.close(fd)
            disk.sync_folder(self.folder)
        except OSError as error:
            raise RecordNotWritten(
                f"{self.path}: cannot be written: {error.strerror}; {advice_on(error)}"
            ) from error
        return self._apply(entry)

    def sent(self) -> Iterator[Submission]:
        """The submissions whose answers are still to come."""
        return (each for each in self.submissions.values() if each.is_sent)

    def _apply(self, entry: Mapping[str, Any]) -> Submission:
        number = entry["number"]
        event = entry["event"]
        if event == "intent":
            calls = [LoggedCall(*call) for call in entry["calls"]]
            prices = entry["prices"]
            self.submissions[number] = Submission(
                number,
                entry["format"],
                entry["label"],
                entry["endpoint"],
                entry["profile"],
                prices=None if prices is None else (prices[0], prices[1]),
                tag=entry["tag"],
                digest=entry["digest"],
                calls={call.custom_id: call for call in calls},
                max_cost_usd=entry["max_cost_usd"],
                at=entry["wall"],
            )
            return self.submissions[number]
        found = self.submissions[number]
        found.state = event
        for name in (
            "upload",
            "batch",
            "expires",
            "created",
            "counts",
            "cost_usd",
            "answers_digest",
            "reason",
        ):
            if name in entry:
                setattr(found, name, entry[name])
        found.is_cancelled |= event == "cancelling"
        return found

    def _signed(self, entry: Mapping[str, Any]) -> bytes:
        content = {name: value for name, value in entry.items() if name not in _NOT_SIGNED}
        # Beside the entry: one of its own fields is called `batch`.
        return json.dumps({"batch": self._created, "entry": content}, sort_keys=True).encode()


def _dollars(cost: float | None) -> str:
    return "$?" if cost is None else f"${cost:,.4f}"


def cost_text(cost: float | None, before: str = "") -> str:
    """A cost for people, with the words `before` it where it is known."""
    return "unknown cost" if cost is None else f"{before}${cost:,.4f}"


def waiting_text(calls: int, submissions: Iterable[Submission]) -> str:
    """What `calls` without an answer wait for."""
    sent = [each for each in submissions if each.is_open]
    until = max((each.expires or 0.0 for each in sent), default=0.0)
    verb = "waits" if calls == 1 else "wait"
    text = f"{amount(calls, 'call')} {verb} in {amount(len(sent), 'provider batch')}"
    if until:
        text += f", at the latest until {datetime.fromtimestamp(until, UTC):%Y-%m-%d %H:%M} UTC"
    return text


def digest_of(path: Path) -> str:
    """The SHA-256 of a file of this program. Raises: OSError."""
    with open(open_regular(path), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def submissions_of(folder: str | Path, created: str) -> tuple[Submission, ...]:
    """The provider batches of the batch in `folder`, to be shown. Raises: BatchDamaged."""
    log = WaveLog(folder, created)
    try:
        log.read(is_shown=True)
    except (LookupError, TypeError, ValueError) as error:
        raise BatchDamaged(f"{log.path}: not a log of provider batches: {error}") from error
    return tuple(log.submissions.values())


_NOT_SIGNED = frozenset({"crc32", "signature"})


def _append(fd: int, line: bytes) -> None:
    """Writes `line` after the last whole line. Raises: OSError."""
    end = os.fstat(fd).st_size
    step = 65_536
    while end:
        start = max(0, end - step)
        newline = os.pread(fd, end - start, start).rfind(b"\n")
        if newline >= 0:
            end = start + newline + 1
            break
        end = start
    disk.ftruncate(fd, end)
    done = 0
    while done < len(line):
        done += disk.pwrite(fd, line[done:], end + done)
