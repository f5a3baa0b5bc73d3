"""The protocol that decides when a model call may be made: a Handler acquires a Permit before each
attempt.

A Handler knows what a call may use at most, and afterwards what it used. A CallLimiter knows which
other calls are made. `rate_limiter.RateLimiter` limits a batch in one event loop; another
CallLimiter may be in another process.

The limit on open files of this process: raised for a batch, and the concurrency that fits it.

The soft limit is 256 on macOS and 1,024 on most Linux systems. A process may raise it up to the
hard limit.
"""

from __future__ import annotations

import os
import resource
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from evaluator.errors import ProviderError
from evaluator.errors.results import Usage
from evaluator.lazy_dataclass import frozen

if TYPE_CHECKING:
    from evaluator.models.provider_batches import ProviderBatches


class CallUsage(NamedTuple):
    """What a limiter counts of the Usage of a call that was answered."""

    turns: int
    input_tokens: int | None
    output_tokens: int | None
    cost_usd: float | None


UNUSED: Final = Usage()
"""The usage of a call that was permitted and not made: no turn, no token, no cost."""


@frozen
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


@frozen
class ParkedCall:
    """A model call for a provider batch: `line` is its request, `planned` has the most that it may
    use there.

    `profile` is the name of its handler profile, `prices` are that profile's, in US dollars for a
    million tokens in and out. `is_further`: another batch had no answer for it.
    """

    custom_id: str
    line: bytes
    batches: ProviderBatches
    profile: str
    planned: PlannedCall
    prices: tuple[float, float] | None = None
    is_further: bool = False


class CallParking(Protocol):
    """Takes calls that wait for a provider batch. Their runs end, and are resumed with the
    answer.
    """

    @property
    def is_open(self) -> bool:
        """Whether calls are parked; otherwise they are made at once."""
        ...

    def new_id(self) -> str:
        """A custom id that no other request has."""
        ...

    def may_hold(self, line: bytes) -> bool:
        """Whether a request may be in a file: it holds no secret. Otherwise it is sent at once."""
        ...

    def reserve(self, call: ParkedCall) -> None:
        """Called before the step of `call` is begun. Raises: CallRejected, if the budget does not
        allow it.
        """
        ...

    def park(self, call: ParkedCall) -> None:
        """Writes a reserved call to a file of requests. Raises: MachineError, if it cannot be
        written.
        """
        ...


EACH_SAMPLE = 8
"""Descriptors of a sample in flight: its task file, a connection, those of a subtask or a judge, a
script's pipes.
"""
RESERVED = 64
"""Descriptors for everything else: folders, the results, the cache, libraries that are imported,
programs started.
"""


def fit_concurrency(wanted: int) -> int:
    """Raises the soft limit of open files as far as `wanted` concurrent samples need it.

    Returns: `wanted`, or how many samples fit if the hard limit is lower, at least 1.
    """
    used = _open_files() + RESERVED
    needed = used + wanted * EACH_SAMPLE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if _allows(soft, needed):
        return wanted
    target = needed if _allows(hard, needed) else hard
    with suppress(ValueError, OSError):  # some systems allow less than their hard limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
        soft = target
    if _allows(soft, needed):
        return wanted
    return max(1, (soft - used) // EACH_SAMPLE)


def _allows(limit: int, needed: int) -> bool:
    return limit == resource.RLIM_INFINITY or limit >= needed


def _open_files() -> int:
    """How many descriptors this process has open; 32 where the system does not say."""
    for folder in ("/proc/self/fd", "/dev/fd"):
        with suppress(OSError):
            return len(os.listdir(folder))
    return 32
