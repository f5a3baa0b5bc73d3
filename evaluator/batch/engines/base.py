"""The protocol of an engine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from evaluator.batch.work import Done, Work, Worker

NextWork = Callable[[], Awaitable[Work | None]]


class Engine(Protocol):
    """Takes work until there is none, has each done by a Worker, and hands in what came of it.

    `next_work` gives the next Work, or None at the end and from then on; it is never called twice at once.
    `on_done` is called once for each Work that was taken, in the caller's event loop, as soon as it is done, in any
    order; it does not block for long. Work that was taken and is not begun yet when `is_stopping` becomes true is
    handed in as pending. What either of them raises ends the run, and is raised by `run` after
    everything in flight was cancelled.

    Of what a Worker does nothing is lost: a node or a process that dies gives its work back, to be done again by
    another, and at most what was in flight there is repeated. Cancelling `run` cancels what is in flight.
    """

    @property
    def name(self) -> str: ...

    async def run(
        self, worker: Worker, next_work: NextWork, on_done: Callable[[Done], None], is_stopping: Callable[[], bool]
    ) -> None: ...

    def in_flight(self) -> int:
        """How many samples are being evaluated now."""
        ...
