"""The protocol that decides when a model call may be made: a Handler acquires a Permit before each
attempt.

A Handler knows what a call may use at most, and afterwards what it used. A CallLimiter knows which
other calls are made. `rate_limiter.RateLimiter` limits a batch in one event loop; another
CallLimiter may be in another process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from evaluator.errors import ProviderError
from evaluator.errors.results import Usage

UNUSED: Final = Usage()
"""The usage of a call that was permitted and not made: no turn, no token, no cost."""


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """One attempt, before it is made. `label` is the model as users name it, `endpoint` where it is
    reached.

    Tokens and cost (US dollars) are the most that the attempt may use, None where that is unknown.
    `connections` is how many connections the calling process opens at most, None without a limit.
    """

    label: str
    endpoint: str
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: float | None = None
    connections: int | None = None


class Permit(Protocol):
    """The permission to make one attempt."""

    def release(self, usage: Usage | None, error: ProviderError | None, latency_s: float) -> None:
        """Reports how the attempt ended; does not wait and does not raise. Only the first call
        counts.

        With `usage` the model answered (`UNUSED`: the call was not made); with `error` the attempt
        failed, and its `retry_after_s` holds the endpoint; with neither it was cancelled, and its
        usage is unknown. `latency_s` is from the request to the whole answer, in seconds.
        """
        ...


class CallLimiter(Protocol):
    """Permits attempts, for each model of an endpoint in the order in which they were requested."""

    async def acquire(self, call: PlannedCall) -> Permit:
        """Returns when the attempt may be made at once. The caller must release the permit,
        whatever happens.

        A cancelled `acquire` leaves the queue and needs no release.

        Raises: CallRejected, if a budget would be exceeded, if a budget exists and what the attempt
        may use is unknown, or if the limiter has stopped.
        """
        ...

    async def rest(self, seconds: float) -> None:
        """Waits before an attempt is repeated.

        Raises: CallRejected, as soon as it is known that the repetition would be rejected.
        """
        ...


class _Unlimited:
    __slots__ = ()

    def release(self, usage: Usage | None, error: ProviderError | None, latency_s: float) -> None:
        pass


UNLIMITED: Final[Permit] = _Unlimited()
"""The permit of every call where there is no limiter."""
