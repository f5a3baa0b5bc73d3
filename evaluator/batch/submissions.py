"""The provider batches of a batch: submits files of requests, follows them at the provider, and
collects their answers.

The request that creates a batch is sent once. If its answer is lost, the batch is looked for, and
it is created again only if it is certainly absent. See `wave_log` for what is on the disk before
which effect.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import TypeVar

from evaluator import clock, disk
from evaluator.batch.answer_tally import AnswerTally, missing
from evaluator.batch.options import ProviderBatchRest, Stop
from evaluator.batch.wave_log import LoggedCall, Submission, WaveLog, cost_text, digest_of
from evaluator.errors import BatchDamaged, ProviderError, RecordNotWritten, UsageError, advice_on
from evaluator.errors.messages import amount
from evaluator.files.atomic import atomic_file
from evaluator.files.open_below import open_regular
from evaluator.interpreter.recovery import OnUnfinished
from evaluator.lazy_dataclass import dataclass
from evaluator.limits.rate_limiter import RateLimiter
from evaluator.models.failures import malformed
from evaluator.models.provider_batches import (
    BatchAnswer,
    ProviderBatch,
    ProviderBatches,
    is_certainly_absent,
)
from evaluator.record.steps import NOT_RUN, Scrub, StepEnd, abort_reason

_NAMES_ANOTHER = "the response to its creation names another batch, and it is not listed"
SETTLE_S = 60.0
"""After a lost answer a provider lists a new batch at the latest so many seconds later."""
_MAX_FOREIGN = 100
"""So many answers are read of a batch that may be another one."""
RETRY_AFTER_S = (2.0, 6.0, 18.0)
"""The waits before requests that may be repeated without harm."""

_T = TypeVar("_T")
Resolve = Callable[[str, str], ProviderBatches | None]
"""The batch API for a model, by its label, with a profile, by its name."""


class Undecided(UsageError):
    """Nobody can tell whether a provider batch exists."""


@dataclass(slots=True)
class Submissions:
    """The submissions of a batch, and the calls in them that wait.

    `rest`: how a call is made that a batch had no answer for. `keep`: the provider's files are not
    deleted. `is_past_deadline`: what runs is cancelled, and the rest is made interactively.
    """

    log: WaveLog
    limiter: RateLimiter
    stop: Stop
    resolve: Resolve
    notice: Callable[[str], None]
    scrub: Scrub | None = None
    rest: ProviderBatchRest = "batch"
    keep: bool = False
    unfinished: OnUnfinished = "stop"
    is_past_deadline: bool = False
    _samples: Counter[str] = field(default_factory=Counter[str])
    _waiting: set[str] = field(default_factory=set[str])
    _answers: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    _apis: dict[tuple[str, str], ProviderBatches] = field(
        default_factory=dict[tuple[str, str], ProviderBatches]
    )
    _room: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    _said: set[str] = field(default_factory=set[str])

    # -- calls -------------------------------------------------------------------------------------

    def waits_for(self, sample: str) -> bool:
        """Whether a call of the sample with this identity has no answer yet."""
        return sample in self._samples

    def has_paid(self, sample: str) -> bool:
        """Whether a call of the sample has an answer that was paid, or may still get one."""
        calls = (
            call
            for submission in self.log.submissions.values()
            for call in submission.calls.values()
            if call.sample == sample
        )
        ends = (self.end_of(call.custom_id) for call in calls)
        return any(end is None or end.status == "success" for end in ends)

    @property
    def calls(self) -> int:
        """The number of calls without an answer."""
        return len(self._waiting)

    def wait_for(self, call: LoggedCall) -> None:
        self._waiting.add(call.custom_id)
        self._samples[call.sample] += 1

    def _stop_waiting(self, submission: Submission) -> None:
        for call in submission.calls.values():
            self._waiting.discard(call.custom_id)
            self._samples[call.sample] -= 1
            if self._samples[call.sample] <= 0:
                del self._samples[call.sample]

    def end_of(self, custom_id: str) -> StepEnd | None:
        """The end of a parked call; None while it waits. A call that was never submitted was not
        run. Raises: BatchDamaged, if its answer cannot be read.
        """
        if custom_id in self._waiting:
            return None
        place = self._answers.get(custom_id)
        if place is None:
            reason = abort_reason(NOT_RUN, "the request was not submitted to the provider")
            return StepEnd("aborted", None, 0.0, reason)
        number, offset = place
        with open(open_regular(self._answers_of(number)), "rb") as file:
            file.seek(offset)
            return StepEnd.read_table(json.loads(file.readline())["end"])

    async def load(self) -> None:
        """Reads the log, finds out about what was interrupted, and collects what is over.

        Raises: BatchDamaged; Undecided.
        """
        log = self.log
        log.read()
        for submission in log.submissions.values():
            if submission.is_open:
                for call in submission.calls.values():
                    self.wait_for(call)
                    self.limiter.spending.reserve(submission.planned(call))
            elif submission.answers_digest:
                self._index(submission)
        self._remove_requests()
        for submission in list(log.submissions.values()):
            submission.is_upload_begun = submission.upload is None
            if submission.is_open and not submission.is_sent:
                self._check_requests(submission)
        if any(log.sent()):
            await self.collect()
        for submission in log.submissions.values():
            if submission.state == "collected":
                await self._clean_up(submission, None)

    def room(self, label: str, endpoint: str, api: ProviderBatches) -> int:
        """The most requests of one batch."""
        return min(api.max_requests, self._room.get((label, endpoint), api.max_requests))

    async def aclose(self) -> None:
        """Closes connections."""
        for api in self._apis.values():
            await api.aclose()

    # -- submitting --------------------------------------------------------------------------------

    async def submit(self) -> None:
        """Submits what waits for it. Raises: RecordNotWritten; Undecided."""
        for submission in list(self.log.submissions.values()):
            if submission.is_open and not submission.is_sent and not self._is_held(submission):
                await self._send(submission)

    def _is_held(self, submission: Submission) -> bool:
        """Whether a submission waits for another one, because too much was enqueued together."""
        key = (submission.label, submission.endpoint)
        return key in self._room and any(
            (each.label, each.endpoint) == key for each in self.log.sent()
        )

    async def _send(self, submission: Submission) -> None:
        number = submission.number
        path = self.requests_file(number)
        api = self._api(submission)
        is_earlier_upload = submission.upload is not None
        try:
            if submission.upload is None:
                upload = await _retried(partial(self._upload, submission))
                if upload is not None:
                    self.log.add(number, "uploaded", upload=upload)
            self.log.add(number, "creating", reason="")
            created = await api.create(path, submission.upload, submission.tag)
        except ProviderError as error:
            if submission.state == "creating" and not is_certainly_absent(error):
                await self._find_again(submission, error)
                return
            if submission.state == "creating":
                self.log.add(number, "absent")
                if is_earlier_upload and not error.retryable:
                    # Providers delete files after some days: it is sent again, once.
                    submission.upload = None
                    await self._send(submission)
                    return
            if not error.retryable:
                self.stop.ask("incomplete", self._failed(submission, "created", error))
            else:
                self._say(self._failed(submission, "created yet", error))
            return
        others = {each.batch for each in self.log.submissions.values() if each is not submission}
        if created.id in others or not submission.is_of(created):
            self.log.add(number, "creating", reason=_NAMES_ANOTHER)
            await self._find_again(submission)
            return
        self._created(submission, created)

    async def _upload(self, submission: Submission) -> str | None:
        is_repeated = submission.is_upload_begun
        submission.is_upload_begun = True
        path = self.requests_file(submission.number)
        return await self._api(submission).upload(path, submission.tag, is_repeated=is_repeated)

    def _created(self, submission: Submission, batch: ProviderBatch) -> None:
        self.log.add(
            submission.number,
            "created",
            batch=batch.id,
            expires=batch.expires,
            created=clock.wall(),
        )
        with contextlib.suppress(OSError):
            disk.remove(self.requests_file(submission.number))
        cost = cost_text(submission.max_cost_usd, "at most ")
        calls = amount(len(submission.calls), "call")
        self.notice(f"submitted {calls} of {submission.label} as {batch.id}, {cost}")

    async def _find_again(
        self, submission: Submission, failure: ProviderError | None = None
    ) -> None:
        """Finds out whether a batch exists whose creation had no answer. `failure`: the error of
        that creation, if it was in this session.

        Raises: Undecided, if that cannot be found out and `unfinished` does not decide.
        """
        await clock.sleep(SETTLE_S)
        try:
            found = await _retried(lambda: self._find(submission))
        except ProviderError as error:
            if error.retryable:
                self._say(self._failed(submission, "found yet", error))
                return
            await self._decide(submission, error.message)
            return
        if isinstance(found, ProviderBatch):
            self._created(submission, found)
        elif found and submission.reason:
            # It was created: the server only does not list it as it should.
            await self._decide(submission, submission.reason)
        elif found:
            self.log.add(submission.number, "absent")
            if failure is not None:
                self._say(self._failed(submission, "created yet", failure))

    async def _find(self, submission: Submission) -> ProviderBatch | bool:
        """The batch of a submission; True, if it is certainly absent; False, if that is known only
        when another batch is over.
        """
        api = self._api(submission)
        known = {each.batch for each in self.log.submissions.values() if each is not submission}
        uploads = () if submission.upload is None else (submission.upload,)
        is_absent = True
        async for batch in api.listed():
            if batch.tag is not None or batch.upload is not None:
                if batch.tag == submission.tag or batch.upload in uploads:
                    return batch
            elif batch.id not in known and submission.may_be(batch):
                if not batch.is_over:
                    if clock.wall() > submission.latest_end:
                        raise malformed(f"{batch.id} does not end", retryable=False)
                    is_absent = False
                    continue
                foreign = 0
                async for answer in api.answers(batch):
                    if answer.custom_id in submission.calls:
                        return batch
                    foreign += 1
                    if foreign == _MAX_FOREIGN:
                        break
        return is_absent

    async def _decide(self, submission: Submission, why: str) -> None:
        """Decides about a batch that may exist, as `unfinished` says."""
        if self.unfinished == "repeat":
            self.log.add(submission.number, "absent")
            return
        if self.unfinished == "tell":
            await self._end_unanswered(submission, "it is unknown whether its batch was created")
            return
        raise Undecided(
            f"{submission.label}: the answer to the creation of a provider batch was lost or is "
            f"wrong, and whether it exists cannot be found out: {why}. Look for {submission.tag} "
            "in the provider's list of batches; then resume with --unfinished repeat to create it "
            "again, or with --unfinished tell to count its calls as failed"
        )

    # -- collecting --------------------------------------------------------------------------------

    async def collect(self) -> bool:
        """Looks at each running batch, and collects those that are over. Returns: whether calls
        have stopped waiting.
        """
        before = self.calls
        for submission in list(self.log.sent()):
            if submission.batch is None:
                await self._find_again(submission)
                continue
            batch = await self._look(submission)
            if batch is None:
                continue
            is_late = clock.wall() > submission.latest_end
            try:
                if batch.is_over:
                    await self._end(submission, batch)
                elif (is_late or self.is_past_deadline) and submission.may_cancel(batch):
                    # What was answered until then is collected at the next look.
                    await self._cancel(submission)
                elif is_late:
                    reason = f"{batch.id} did not end: the provider says {batch.status}"
                    await self._end_unanswered(submission, reason)
            except ProviderError as error:
                await self._not_read(submission, error)
        return self.calls < before

    async def _look(self, submission: Submission) -> ProviderBatch | None:
        """The batch of a submission as it is now; None if it cannot be read now, or if the id that
        the provider gave is not that of the batch.
        """
        try:
            batch = await self._api(submission).look(submission.batch or "")
        except ProviderError as error:
            await self._not_read(submission, error)
            return None
        if submission.is_of(batch):
            return batch
        await self._find_other(submission, "is another batch")
        return None

    async def _not_read(self, submission: Submission, error: ProviderError) -> None:
        if error.kind == "not_found":
            await self._find_other(submission, "is gone")
        else:
            self._say(self._failed(submission, "read yet", error))

    async def _find_other(self, submission: Submission, why: str) -> None:
        """The id that the provider gave seems not to be that of the batch: takes the right one.
        Nothing is created again: without another batch the calls end with an error.
        """
        name = submission.batch
        try:
            found = await self._find(submission)
        except ProviderError as error:
            if error.retryable:
                self._say(self._failed(submission, "found yet", error))
                return
            found = True
        if isinstance(found, ProviderBatch) and found.id != name:
            self._created(submission, found)
            return
        if isinstance(found, ProviderBatch) and not found.is_over:
            # It is there: the server only does not show it.
            found = False
        if found or clock.wall() > submission.latest_end:
            await self._end_unanswered(submission, f"{name} {why}", is_known=False)

    async def cancel_all(self) -> None:
        """Cancels what runs, and drops what was not submitted."""
        for submission in list(self.log.submissions.values()):
            if submission.is_sent and submission.batch is not None:
                batch = None if submission.is_cancelled else await self._look(submission)
                if batch is not None and not batch.is_over and submission.may_cancel(batch):
                    await self._cancel(submission)
            elif submission.is_open and not submission.is_sent:
                self._drop(submission, "cancelled before it was submitted")

    async def _cancel(self, submission: Submission) -> None:
        self.log.add(submission.number, "cancelling")
        api = self._api(submission)
        try:
            await _retried(partial(api.cancel, submission.batch or ""))
        except ProviderError as error:
            # A batch that is over cannot be cancelled.
            self._say(self._failed(submission, "cancelled", error))

    async def _end(self, submission: Submission, batch: ProviderBatch) -> None:
        reason = batch.problem or batch.status
        # Its answers may be asked for at many looks, until they can be read.
        if (submission.state, submission.reason) != ("ended", reason):
            self.log.add(submission.number, "ended", reason=reason)
        if batch.problem is not None and batch.is_refused_now:
            key = (submission.label, submission.endpoint)
            self._room[key] = max(1, len(submission.calls) // 2)
            if len(submission.calls) == 1 and not any(
                each is not submission for each in self.log.sent()
            ):
                self.stop.ask("incomplete", f"{submission.label}: {batch.problem}")
            self._drop(submission, batch.problem)
        elif batch.problem is not None:
            await self._end_unanswered(submission, batch.problem, is_billed=False)
        else:
            answers = self._api(submission).answers(batch)
            await self._collect(submission, answers, submission.batch)
            await self._clean_up(submission, batch)

    def _drop(self, submission: Submission, reason: str) -> None:
        """Gives up a submission that was never run: its calls are made again."""
        self.log.add(submission.number, "dropped", reason=reason)
        self._stop_waiting(submission)
        for call in submission.calls.values():
            self.limiter.spending.settle(
                submission.planned(call), None, ProviderError(reason, kind="other")
            )
        with contextlib.suppress(OSError):
            disk.remove(self.requests_file(submission.number))
        calls = amount(len(submission.calls), "call")
        self.notice(f"{submission.label}: parks {calls} again: {reason}")

    async def _end_unanswered(
        self,
        submission: Submission,
        reason: str,
        *,
        is_billed: bool = True,
        is_known: bool = True,
    ) -> None:
        """Ends all calls of a submission whose answers nobody can read, with an error. Unless
        `is_known`, what has the id of its batch is another one, or gone.
        """
        kind = "other" if is_billed else "bad_request"

        async def errors() -> AsyncIterator[BatchAnswer]:
            for custom_id in submission.calls:
                error = ProviderError(reason, kind=kind, maybe_billed=is_billed)
                yield BatchAnswer(custom_id, error=error)

        await self._collect(submission, errors(), batch=submission.batch if is_known else None)

    async def _collect(
        self, submission: Submission, answers: AsyncIterator[BatchAnswer], batch: str | None
    ) -> None:
        """Writes the answers of a batch that is over. Without the id of its `batch`, nothing is
        deleted at the provider. Raises: ProviderError, if they cannot be read, and nothing has
        changed then.
        """
        path = self._answers_of(submission.number)
        tally = AnswerTally(submission, self._following, self.scrub)
        try:
            with atomic_file(path, error=None) as file:
                async for answer in answers:
                    file.write(tally.line(answer))
                if not tally.used and tally.counts["foreign"]:
                    raise ProviderError("the results are those of another batch", kind="not_found")
                for custom_id in submission.calls.keys() - tally.used.keys():
                    file.write(tally.line(BatchAnswer(custom_id, error=missing()), "missing"))
            digest = digest_of(path)
        except OSError as error:
            raise self.not_written("answers", error) from error
        self.log.add(
            submission.number,
            "collected",
            batch=batch,
            answers_digest=digest,
            counts=dict(tally.counts),
            cost_usd=tally.cost_usd,
        )
        self._stop_waiting(submission)
        for custom_id, (usage, error) in tally.used.items():
            planned = submission.planned(submission.calls[custom_id])
            self.limiter.spending.settle(planned, usage, error)
        self._index(submission)
        counts = ", ".join(f"{count:,} {cause}" for cause, count in tally.counts.items())
        cost = cost_text(tally.cost_usd)
        calls = amount(len(submission.calls), "call")
        name = submission.batch or submission.tag
        self.notice(f"{name} ({submission.label}): of {calls} {counts}; {cost}")

    def _following(self, call: LoggedCall, error: ProviderError, submission: Submission) -> str:
        """What follows a call that has no answer, see `record.steps.NEXT`."""
        if call.is_further or not error.retryable:
            return "error"
        if self.is_past_deadline and submission.is_cancelled:
            return "interactive"
        return self.rest

    async def _clean_up(self, submission: Submission, batch: ProviderBatch | None) -> None:
        """Deletes what the provider keeps; a failure is not an error."""
        if self.keep or submission.batch is None:
            return
        api = self._api(submission)
        try:
            if batch is None:
                batch = await api.look(submission.batch)
            await api.clean_up(batch, submission.upload)
        except ProviderError as error:
            if error.kind != "not_found":
                self._say(self._failed(submission, "deleted at the provider", error))
                return
        self.log.add(submission.number, "deleted")

    # -- files -------------------------------------------------------------------------------------

    def requests_file(self, number: int) -> Path:
        return self.log.folder / f"requests-{number}.jsonl"

    def _answers_of(self, number: int) -> Path:
        return self.log.folder / f"answers-{number}.jsonl"

    def _index(self, submission: Submission) -> None:
        """Notes where each answer is. Raises: BatchDamaged."""
        path = self._answers_of(submission.number)
        try:
            if digest_of(path) != submission.answers_digest:
                raise BatchDamaged(f"{path}: was changed after it was written; restore it")
            offset = 0
            with open(open_regular(path), "rb") as file:
                for line in file:
                    custom_id = line.split(b'"', 4)[3].decode()
                    self._answers[custom_id] = (submission.number, offset)
                    offset += len(line)
        except OSError as error:
            raise BatchDamaged(f"{path}: cannot be read: {error.strerror}; restore it") from error

    def _check_requests(self, submission: Submission) -> None:
        """Drops a submission whose file of requests is gone or was changed."""
        try:
            is_there = digest_of(self.requests_file(submission.number)) == submission.digest
        except OSError:
            is_there = False
        if not is_there:
            self._drop(submission, "its file of requests is gone or was changed")

    def _remove_requests(self) -> None:
        """Removes files of requests that no submission has: their runs begin the calls again."""
        if not self.log.folder.is_dir():
            return
        wanted = {
            self.requests_file(each.number).name
            for each in self.log.submissions.values()
            if each.is_open and each.batch is None
        }
        for name in os.listdir(self.log.folder):
            if name.startswith("requests-") and name not in wanted:
                with contextlib.suppress(OSError):
                    disk.remove(self.log.folder / name)

    def _api(self, submission: Submission) -> ProviderBatches:
        key = (submission.label, submission.profile)
        api = self._apis.get(key)
        if api is None:
            api = self.resolve(*key)
            if api is None or api.format != submission.format:
                raise UsageError(
                    f"{submission.label}: the profile {submission.profile!r} does not reach the "
                    "batch API any more that has calls of this batch; restore it, then resume"
                )
            self._apis[key] = api
        return api

    def _failed(self, submission: Submission, what: str, error: ProviderError) -> str:
        name = submission.batch or "a provider batch"
        return f"{submission.label}: {name} could not be {what}: {error.message}"

    def _say(self, text: str) -> None:
        """Shows a notice, once."""
        if text not in self._said:
            self._said.add(text)
            self.notice(text)

    def not_written(self, what: str, error: OSError) -> RecordNotWritten:
        return RecordNotWritten(
            f"{self.log.folder}: {what} cannot be written: {error.strerror}; {advice_on(error)}"
        )


async def _retried(request: Callable[[], Awaitable[_T]]) -> _T:
    """The answer to a request that may be repeated without harm. Raises: ProviderError."""
    for wait_s in RETRY_AFTER_S:
        try:
            return await request()
        except ProviderError as error:
            if not error.retryable:
                raise
            await clock.sleep(max(wait_s, error.retry_after_s or 0.0))
    return await request()
