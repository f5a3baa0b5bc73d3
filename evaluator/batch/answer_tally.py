"""The answers of a provider batch as the ends of the calls that it has."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable

from evaluator.batch.wave_log import LoggedCall, Submission
from evaluator.errors import ProviderError
from evaluator.errors.results import Usage
from evaluator.limits.budget import UNKNOWN_USAGE
from evaluator.models import prices
from evaluator.models.provider_batches import BatchAnswer
from evaluator.record.steps import NEXT, Scrub, StepEnd

Following = Callable[[LoggedCall, ProviderError, Submission], str]


class AnswerTally:
    """Reads the answers of a submission, and counts its calls by their result."""

    def __init__(self, submission: Submission, following: Following, scrub: Scrub | None) -> None:
        self.counts: Counter[str] = Counter()
        self.cost_usd: float | None = 0.0
        self.used: dict[str, tuple[Usage | None, ProviderError | None]] = {}
        self._submission = submission
        self._following = following
        self._scrub = scrub

    def line(self, answer: BatchAnswer, cause: str = "") -> bytes:
        """The line for an answer; empty for that of another call, or a second one."""
        custom_id = answer.custom_id
        call = self._submission.calls.get(custom_id)
        if call is None or custom_id in self.used:
            self.counts["foreign" if call is None else "double"] += 1
            return b""
        self.counts[cause or answer.cause] += 1
        end = self._end(call, answer)
        data = {"custom_id": custom_id, "end": end.to_dict()}
        if self._scrub is not None:
            data = self._scrub.redact_value(data)
        return json.dumps(data).encode() + b"\n"

    def _end(self, call: LoggedCall, answer: BatchAnswer) -> StepEnd:
        response = answer.response
        error = answer.error
        if response is not None:
            usage = response.usage
            if usage.invalid():
                usage = usage.without_invalid()
            usage = prices.priced(
                self._submission.label, usage, profile=self._submission.prices, is_batch=True
            )
            self._add_cost(usage.cost_usd)
            self.used[call.custom_id] = (usage, None)
            return StepEnd("success", response.to_dict(), 0.0, usage=usage.non_zero())
        error = error or missing()
        self.used[call.custom_id] = (None, error)
        usage = None
        if error.maybe_billed:
            self._add_cost(None)
            usage = UNKNOWN_USAGE.non_zero()
        following = self._following(call, error, self._submission)
        reason = f"{error.kind}: {error.message}"
        return StepEnd("failed", "", 0.0, reason, usage, extra={NEXT: following})

    def _add_cost(self, cost: float | None) -> None:
        if cost is None or self.cost_usd is None:
            self.cost_usd = None
        else:
            self.cost_usd += cost


def missing() -> ProviderError:
    return ProviderError(
        "the results of the provider batch do not have this request",
        kind="malformed_response",
        retryable=True,
        maybe_billed=True,
    )
