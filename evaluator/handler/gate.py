"""The seam between a model call and whoever says when it may be made: a Handler enters a Gate before each attempt.

A Handler knows what a call may use at most, and afterwards what it used; a Gate knows what else is going on. What
paces a batch in one event loop is `pacing.Pacer`; another Gate may stand in another process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from evaluator.errors import ProviderError
from evaluator.results import Usage

NOT_MADE: Final = Usage()
"""The usage of a call that was let in and then not made: no turn, no token, no cost."""


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """One attempt, before it is made. `label` is the model as users name it, `endpoint` where it is reached.

    Tokens and cost (US dollars) are the most that the attempt may use, None where that is unknown.
    """

    label: str
    endpoint: str
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: float | None = None


class Passage(Protocol):
    """One attempt that was let in."""

    def leave(self, usage: Usage | None, error: ProviderError | None, latency_s: float) -> None:
        """Says how the attempt ended; does not wait and does not raise. Only the first time counts.

        With `usage` it was answered (`NOT_MADE`: it was not made); with `error` it failed; with neither it was cut
        off, and nobody knows what it used. `latency_s` is from the request to the whole answer, in seconds.
        """
        ...


class Gate(Protocol):
    """Lets attempts in, in the order in which they came to each model of an endpoint."""

    async def enter(self, call: PlannedCall) -> Passage:
        """Returns when the attempt may be made at once; `leave` has to follow, whatever happens.

        Cancelling it takes the attempt out of the queue, and nothing has to be left then.

        Raises: NotLetIn, if a budget would be passed, or what the attempt may use is unknown and there is a budget for
        it, or nobody is to wait any more.
        """
        ...

    async def rest(self, seconds: float) -> None:
        """Waits before an attempt is made again.

        Raises: NotLetIn, as soon as it is known that it will not be.
        """
        ...


class _Unwatched:
    __slots__ = ()

    def leave(self, usage: Usage | None, error: ProviderError | None, latency_s: float) -> None:
        pass


UNWATCHED: Final[Passage] = _Unwatched()
"""What a call passes where there is no gate."""
