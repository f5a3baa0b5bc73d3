"""Limits that nest: what a task uses counts against its own limits and against those of the tasks above it.

A `Budget` belongs to one Handler or to a whole evaluation. Charging it charges its ancestors; `check_*` are
called before the call that would pass a limit, so a limit is never overshot by a call that was known to pass it.
Its clock stands still while a call below it waits for its turn at a gate.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import TracebackType

from evaluator.errors import LimitReached, NotLetIn
from evaluator.results import Usage

WARN_AT = 0.8
_NOTHING = Usage()
IN_DOUBT = Usage(None, None, None, None, None)
"""What a call used that may have been billed and came to no answer."""


class Deadline:
    """See `Budget.deadline`. An async context, entered once; it gives the `asyncio.Timeout`.

    A class, as a closure that sets itself as a timer is a cycle, which only the search for garbage would free.
    """

    __slots__ = ("_budget", "_limit", "_loop", "_timer")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._limit = asyncio.timeout(None)
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> asyncio.Timeout:
        limit = await self._limit.__aenter__()
        self.look()
        return limit

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        scope: Budget | None = self._budget
        while scope is not None:
            scope.dormant.discard(self.look)
            scope = scope.parent
        await self._limit.__aexit__(kind, error, trace)

    def look(self) -> None:
        """Sets the timer anew: to the nearest limit whose clock runs."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        left, paused = self._budget.left()
        if left is not None and left <= 0:
            self._limit.reschedule(self._loop.time())
            return
        if left is not None:
            self._timer = self._loop.call_later(left, self.look)
        if paused is not None:
            paused.dormant.add(self.look)


class Budget:
    """Turns, output tokens, wall time and cost of one scope; None where there is no limit.

    `owner` names whose limit it is in messages. `partial` is the last text that came in this scope, kept for
    a task that does not end well; `maybe_billed` says that a call was cut off; `cached_calls` are those that the
    cache of responses answered; `dormant` are told when a pause has ended; `refused`
    ends whatever goes on in it. Not thread-safe: one event loop.
    """

    __slots__ = (
        "_at_most", "_clock", "_paused_at", "_paused_s", "_pauses", "_reserved_cost", "_reserved_turns", "_started",
        "_warned", "cached_calls", "dormant", "max_cost_usd", "max_turns", "maybe_billed", "owner", "parent",
        "partial", "refused", "timeout_s", "usage", "warnings",
    )  # fmt: skip

    def __init__(
        self,
        owner: str,
        *,
        max_turns: int | None = None,
        max_cost_usd: float | None = None,
        timeout_s: float | None = None,
        parent: Budget | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.owner = owner
        self.max_turns = max_turns
        self.max_cost_usd = max_cost_usd
        self.timeout_s = timeout_s
        self.parent = parent
        self.usage = _NOTHING
        self.partial = ""
        self.maybe_billed = False
        self.cached_calls = 0
        self.refused: NotLetIn | None = None
        self.warnings: list[str] = []
        self._warned: set[str] = set()
        self._reserved_turns = 0
        self._reserved_cost = 0.0
        # What counts against the cost limit: what was paid, and the most that calls in doubt may have cost.
        self._at_most: float | None = 0.0
        self._clock = clock
        self._started = clock()
        self._pauses = 0
        self._paused_at = self._paused_s = 0.0
        self.dormant: set[Callable[[], None]] = set()

    def elapsed_s(self) -> float:
        """Seconds since it was made, without those that it was paused."""
        now = self._paused_at if self._pauses else self._clock()
        return now - self._started - self._paused_s

    def waited_s(self) -> float:
        """Seconds that it was paused."""
        return self._paused_s + (self._clock() - self._paused_at if self._pauses else 0.0)

    def remaining_s(self) -> float | None:
        """Seconds left until the nearest time limit of this scope and those above; None without one."""
        own = None if self.timeout_s is None else self.timeout_s - self.elapsed_s()
        above = None if self.parent is None else self.parent.remaining_s()
        if own is None or above is None:
            return above if own is None else own
        return min(own, above)

    def pause(self) -> None:
        """Stops the clock here and above until `resume`, for a wait that is not this task's doing.

        Pauses of tasks side by side overlap: the clock above them goes on when the last of them has ended.
        """
        scope: Budget | None = self
        while scope is not None:
            if scope._pauses == 0:
                scope._paused_at = scope._clock()
            scope._pauses += 1
            scope = scope.parent

    def resume(self) -> None:
        """Ends one `pause`."""
        scope: Budget | None = self
        while scope is not None:
            scope._pauses -= 1
            if scope._pauses == 0:
                scope._paused_s += scope._clock() - scope._paused_at
                woken, scope.dormant = scope.dormant, set()
                for look in woken:
                    look()
            scope = scope.parent

    def deadline(self) -> Deadline:
        """`asyncio.timeout` until the nearest time limit of this scope and those above; pauses put it off."""
        return Deadline(self)

    def left(self) -> tuple[float | None, Budget | None]:
        """Seconds until the nearest limit whose clock runs, and the first scope upwards whose clock does not."""
        left: float | None = None
        scope: Budget | None = self
        while scope is not None and not scope._pauses:
            if scope.timeout_s is not None:
                own = scope.timeout_s - scope.elapsed_s()
                left = own if left is None else min(left, own)
            scope = scope.parent
        return left, scope

    def refuse(self, error: NotLetIn) -> None:
        """A call in this scope was not let in: no other will be, here and above."""
        scope: Budget | None = self
        while scope is not None:
            scope.refused = error
            scope = scope.parent

    def count_cached(self, calls: int = 1) -> None:
        """Adds to `cached_calls` here and above."""
        scope: Budget | None = self
        while scope is not None:
            scope.cached_calls += calls
            scope = scope.parent

    def charge(self, usage: Usage) -> None:
        """Adds `usage` here and above, and warns once where 80 % of a cost limit is used."""
        scope: Budget | None = self
        while scope is not None:
            scope._add(usage, usage.cost_usd)
            scope = scope.parent

    def charge_in_doubt(self, most_usd: float | None) -> None:
        """Adds, here and above, a call that may have been billed and came to no answer: what it used is unknown.

        Against cost limits it counts as `most_usd`, the most that it may have cost; None where that is unknown too.
        """
        scope: Budget | None = self
        while scope is not None:
            scope._add(IN_DOUBT, most_usd)
            scope = scope.parent

    def _add(self, usage: Usage, most_usd: float | None) -> None:
        self.usage = usage if self.usage is _NOTHING else self.usage + usage
        self._at_most = None if self._at_most is None or most_usd is None else self._at_most + most_usd
        if self.max_cost_usd is not None and self._at_most is not None:
            self._warn("cost", self._at_most, self.max_cost_usd)

    def check_reserved(self) -> None:
        """Called before an attempt is repeated within the turn that is reserved.

        Raises: LimitReached, if what may have been paid meanwhile and what is reserved pass a cost limit.
        """
        scope: Budget | None = self
        while scope is not None:
            limit, spent = scope.max_cost_usd, scope._at_most
            if limit is not None and spent is not None and spent + scope._reserved_cost > limit:
                raise LimitReached(
                    "cost", spent, limit,
                    f"another attempt of {scope.owner} may pass ${limit:g}: attempts that came to no answer may have "
                    f"been billed (${spent:.6f} spent at most)",
                )  # fmt: skip
            scope = scope.parent

    def reserve_turn(self, cost_usd: float | None = None) -> None:
        """Called before a turn, which then counts as used here and above until `release_turn`.

        So turns that run side by side cannot pass a limit together. `cost_usd` is the most that the turn may
        cost, None where unknown.

        Raises: LimitReached, if a limit of this scope or one above would be passed; nothing is reserved then.
        """
        scope: Budget | None = self
        while scope is not None:
            turns = scope.usage.turns + scope._reserved_turns
            if scope.max_turns is not None and turns >= scope.max_turns:
                raise LimitReached(
                    "turns", turns, scope.max_turns, f"{scope.owner} has used its {scope.max_turns} turns"
                )
            if scope.max_cost_usd is not None:
                scope._check_cost(cost_usd)
            scope.check_time()
            scope = scope.parent
        self._reserve(1, cost_usd or 0.0)
        self._warn_of_turns()

    def release_turn(self, cost_usd: float | None = None) -> None:
        """Ends a reservation, with the same `cost_usd`; what was used is then told to `charge`."""
        self._reserve(-1, -(cost_usd or 0.0))

    def _warn_of_turns(self) -> None:
        """Once a scope is at 80 % of its turns with a turn after the first: one that ends in time says nothing."""
        scope: Budget | None = self
        while scope is not None:
            turns = scope.usage.turns + scope._reserved_turns
            if scope.max_turns is not None and turns > 1:
                scope._warn("turns", turns, scope.max_turns)
            scope = scope.parent

    def _reserve(self, turns: int, cost_usd: float) -> None:
        scope: Budget | None = self
        while scope is not None:
            scope._reserved_turns += turns
            scope._reserved_cost += cost_usd
            scope = scope.parent

    def check_time(self) -> None:
        if self.timeout_s is not None and self.elapsed_s() >= self.timeout_s:
            raise LimitReached(
                "time", round(self.elapsed_s(), 3), self.timeout_s,
                f"{self.owner} has used its {self.timeout_s:g} s",
            )  # fmt: skip

    def _check_cost(self, cost_usd: float | None) -> None:
        assert self.max_cost_usd is not None
        spent = self._at_most
        if spent is None or cost_usd is None:
            raise LimitReached(
                "cost", spent or 0.0, self.max_cost_usd,
                f"{self.owner} has a cost limit of ${self.max_cost_usd:g} but what a turn may cost is unknown: its "
                "price or its longest answer; give the profile <prices input= output=> and <limits "
                "max_output_tokens=>, or remove max_cost",
            )  # fmt: skip
        if spent + self._reserved_cost + cost_usd > self.max_cost_usd:
            raise LimitReached(
                "cost", spent, self.max_cost_usd,
                f"the next turn of {self.owner} may cost ${cost_usd:.6f}, which would pass "
                f"${self.max_cost_usd:g} (${spent:.6f} spent)",
            )  # fmt: skip

    def _warn(self, resource: str, used: float, limit: float) -> None:
        if used >= WARN_AT * limit and resource not in self._warned:
            self._warned.add(resource)
            self.warnings.append(f"{self.owner} has used {used:g} of {limit:g} {resource}")
