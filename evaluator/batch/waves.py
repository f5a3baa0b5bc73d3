"""The waves of a batch with provider batches: parks calls, and says when the runs go on.

A call is parked: its step is begun in the record, its request is a line of a file in the folder
`provider`, and its run ends. After each pass over the rows the files are submitted, each as one
provider batch (see `submissions`). When a provider batch is over, a further pass resumes the runs
with its answers. The calls that these make are the next wave.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from evaluator import clock, disk, randomness
from evaluator.batch.submissions import Submissions
from evaluator.batch.wave_log import LoggedCall, digest_of, waiting_text
from evaluator.batch.work import SAMPLE
from evaluator.errors import CallParked
from evaluator.files.open_below import open_private_folder, open_regular
from evaluator.lazy_dataclass import dataclass
from evaluator.limits.call_limiter import ParkedCall
from evaluator.record.steps import StepEnd

POLL_S = 30.0
"""Running provider batches are looked at so often."""


@dataclass(slots=True)
class _File:
    """A file of requests that is being written."""

    number: int
    path: Path
    file: BinaryIO
    first: ParkedCall
    calls: list[LoggedCall] = field(default_factory=list[LoggedCall])
    size: int = 0


@dataclass(slots=True)
class Waves:
    """The calls of a batch that wait for provider batches. It is the `CallParking` of its runs.

    `is_parking`: calls are parked, not made at once. `is_waiting`: `advance` waits for running
    batches. `deadline_s`: so long after the first submission what is still running is cancelled,
    and the rest is made interactively.
    """

    batches: Submissions
    is_parking: bool = True
    is_waiting: bool = False
    deadline_s: float | None = None
    is_cancelled: bool = False
    _tag: str = ""
    _files: dict[tuple[Any, ...], _File] = field(default_factory=dict[Any, _File])
    _wake: asyncio.Event = field(default_factory=asyncio.Event)

    # -- parking -----------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return self.is_parking and not self.batches.is_past_deadline

    def may_hold(self, line: bytes) -> bool:
        scrub = self.batches.scrub
        text = line.decode(errors="replace")
        return scrub is None or not scrub.suspects(text) or scrub.redact(text) == text

    def new_id(self) -> str:
        return f"{self._tag}-{randomness.token_hex(8)}"

    def reserve(self, call: ParkedCall) -> None:
        # Calls that wait may use less than is reserved for them: a later wave tries again.
        if self.is_cancelled or self._is_stopped or not self.batches.limiter.reserve(call.planned):
            raise CallParked

    def park(self, call: ParkedCall) -> None:
        planned = call.planned
        key = (planned.label, planned.endpoint, call.profile, call.prices)
        most = self.batches.room(planned.label, planned.endpoint, call.batches)
        file = self._files.get(key)
        if file is not None and (
            len(file.calls) >= most or file.size + len(call.line) > call.batches.max_bytes
        ):
            self._close_file(key)
            file = None
        try:
            if file is None:
                file = self._files[key] = self._new_file(call)
            file.file.write(call.line)
        except OSError as error:
            raise self.batches.not_written("a request", error) from error
        file.size += len(call.line)
        logged = LoggedCall(
            call.custom_id,
            SAMPLE.get(),
            call.is_further,
            planned.input_tokens,
            planned.output_tokens,
            planned.cost_usd,
        )
        file.calls.append(logged)
        self.batches.wait_for(logged)

    def _new_file(self, call: ParkedCall) -> _File:
        os.close(open_private_folder(self.batches.log.folder, sync=True))
        numbers = [*self.batches.log.submissions, *(file.number for file in self._files.values())]
        number = max(numbers, default=0) + 1
        path = self.batches.requests_file(number)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        fd = open_regular(path, flags=flags)
        return _File(number, path, disk.fdopen(fd), first=call)

    def waits_for(self, sample: str) -> bool:
        """Whether a call of the sample with this identity has no answer yet."""
        return self.batches.waits_for(sample)

    def has_paid(self, sample: str) -> bool:
        """See `Submissions.has_paid`."""
        return self.batches.has_paid(sample)

    def end_of(self, custom_id: str) -> StepEnd | None:
        """See `Submissions.end_of`."""
        return self.batches.end_of(custom_id)

    @property
    def calls(self) -> int:
        """The number of calls without an answer."""
        return self.batches.calls

    def reason(self) -> str:
        """What is waited for."""
        return waiting_text(self.calls, self.batches.log.submissions.values())

    def cancel_reason(self) -> str:
        """Why calls are left in a session that was cancelled; empty for another one."""
        if not self.is_cancelled:
            return ""
        return "its provider batches were cancelled; the calls without an answer are left"

    # -- sessions ----------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Finds out about earlier sessions, and collects what is over. Raises: as
        `Submissions.load`.
        """
        await self.batches.load()
        first = next(iter(self.batches.log.submissions.values()), None)
        self._tag = randomness.token_hex(6) if first is None else first.tag.partition(".")[0]

    async def advance(self) -> bool:
        """After a pass over the rows: submits what was parked, and waits for answers if it is to.

        Returns: whether a further pass has something to resume.
        Raises: RecordNotWritten; Undecided.
        """
        if self._is_stopped:
            return False
        for key in list(self._files):
            self._close_file(key)
        loop = asyncio.get_running_loop()
        with self.batches.stop.calling(partial(loop.call_soon_threadsafe, self._wake.set)):
            while self.calls and not self._is_stopped:
                before = self.calls
                self._check_deadline()
                await self.batches.submit()
                if self.is_cancelled:
                    await self.batches.cancel_all()
                if self._is_collecting and not self._is_stopped:
                    await self.batches.collect()
                if self.calls < before:
                    return True
                if not self._is_collecting:
                    return False
                self._wake.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(POLL_S):
                        await self._wake.wait()
        return False

    @property
    def _is_stopped(self) -> bool:
        return self.batches.stop.state not in (None, "budget")

    @property
    def _is_collecting(self) -> bool:
        """Whether this session waits until batches are over."""
        return self.is_waiting or self.is_cancelled or self.batches.is_past_deadline

    def cancel(self) -> None:
        """Cancels what runs, as soon as possible; from now on no call is parked."""
        self.is_cancelled = True
        self._wake.set()

    def _check_deadline(self) -> None:
        # The wall clock: a deadline holds for sessions on several days.
        first = next(iter(self.batches.log.submissions.values()), None)
        if first is not None and self.deadline_s is not None:
            self.batches.is_past_deadline = clock.wall() >= first.at + self.deadline_s

    async def aclose(self) -> None:
        """Closes files and connections."""
        for file in self._files.values():
            file.file.close()
        await self.batches.aclose()

    def _close_file(self, key: tuple[Any, ...]) -> None:
        """Logs the intent to submit a file of requests."""
        file = self._files.pop(key)
        try:
            file.file.flush()
            disk.fsync(file.file.fileno())
            file.file.close()
            disk.sync_folder(self.batches.log.folder)
            digest = digest_of(file.path)
        except OSError as error:
            raise self.batches.not_written("requests", error) from error
        costs = [call.cost_usd for call in file.calls]
        known = [cost for cost in costs if cost is not None]
        planned = file.first.planned
        self.batches.log.add(
            file.number,
            "intent",
            format=file.first.batches.format,
            label=planned.label,
            endpoint=planned.endpoint,
            profile=file.first.profile,
            prices=file.first.prices,
            tag=f"{self._tag}.{file.number}",
            digest=digest,
            calls=file.calls,
            max_cost_usd=sum(known) if len(known) == len(costs) else None,
            wall=clock.wall(),
        )
