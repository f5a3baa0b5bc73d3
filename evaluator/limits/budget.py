"""Nested limits: the usage of a task counts against its own limits and against those of the tasks
above it.

A `Budget` belongs to one Handler or to a whole evaluation. Charging it charges its ancestors. A
turn is reserved before its call is made, so a call that is known to pass a limit is never made. The
clock of a budget stops while a call below it waits at a limiter. The budget of a batch, which all
its tasks share, is `batch_budget.BatchBudget`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any

from evaluator import clock
from evaluator.alarms import Alarms, alarms
from evaluator.errors import CallRejected, LimitReached, MachineError
from evaluator.errors.messages import amount
from evaluator.errors.results import Usage

WARN_AT = 0.8
_NOTHING = Usage()
UNKNOWN_USAGE = Usage(None, None, cached_tokens=None, reasoning_tokens=None, cost_usd=None)
"""The usage of a call that may have been billed and gave no answer."""


class Deadline:
    """See `Budget.deadline`. A context of the current task, entered once. Raises: TimeoutError,
    where it cancelled the task; `expired` is the budget whose time was up then.

    A class, since a closure that sets itself as a timer is a reference cycle, which only the
    garbage collector frees.
    """

    __slots__ = ("_alarms", "_cancelling", "_paused", "_scopes", "_task", "expired")

    def __init__(self, scopes: tuple[Budget, ...]) -> None:
        self._scopes = scopes
        # Those that are to ring.
        self._alarms: Alarms | None = None
        # The budget that calls `resume` when its clock runs again.
        self._paused: Budget | None = None
        self.expired: Budget | None = None

    def __enter__(self) -> Deadline:
        task: Any = asyncio.current_task()
        self._task = task
        self._cancelling: int = task.cancelling()
        self._start_waiting()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop_waiting()
        if self.expired is None:
            return
        # More requests to cancel than before are not from this deadline.
        is_own = self._task.uncancel() <= self._cancelling
        if is_own and isinstance(error, asyncio.CancelledError):
            raise TimeoutError from error

    def ring(self) -> None:
        """Cancels the task if its time is up."""
        self._stop_waiting()
        for scope in self._scopes:
            if scope.pauses:
                break
            if scope.timeout_s is not None and scope.elapsed_s() >= scope.timeout_s:
                self.expired = scope
                self._task.cancel()
                return
        self._start_waiting()

    def resume(self) -> None:
        """A paused budget resumes."""
        self._stop_waiting()
        self._start_waiting()

    def _start_waiting(self) -> None:
        """Sets the alarm to the nearest limit whose clock runs. It may be over: then the alarm
        rings in the next turn of the event loop, and not in the task itself.
        """
        paused: Budget | None = None
        remaining: float | None = None
        for scope in self._scopes:
            if scope.pauses:
                paused = scope  # so are all above it
                break
            if scope.timeout_s is not None:
                own = scope.timeout_s - scope.elapsed_s()
                if remaining is None or own < remaining:
                    remaining = own
        if remaining is not None:
            self._alarms = alarms()
            self._alarms.set(self, self._alarms.loop.time() + remaining)
        if paused is not None:
            self._paused = paused
            paused.resume_callbacks.add(self.resume)

    def _stop_waiting(self) -> None:
        if self._alarms is not None:
            self._alarms.clear(self)
        if self._paused is not None:
            self._paused.resume_callbacks.discard(self.resume)
            self._paused = None


class _Pause:
    """See `Budget.paused`. A context, entered once."""

    __slots__ = ("_scopes",)

    def __init__(self, scopes: tuple[Budget, ...]) -> None:
        self._scopes = scopes

    def __enter__(self) -> None:
        for scope in self._scopes:
            if scope.pauses == 0:
                scope.paused_at = clock.monotonic()
            scope.pauses += 1

    def __exit__(self, *_: object) -> None:
        for scope in self._scopes:
            scope.pauses -= 1
            if scope.pauses == 0:
                scope.paused_s += clock.monotonic() - scope.paused_at
                callbacks = scope.resume_callbacks
                scope.resume_callbacks = set()
                for callback in callbacks:
                    callback()


class Budget:
    """The limits of one scope on turns, wall time and cost, and its usage; a limit of None is no
    limit.

    `owner` names the scope in messages. `has_cost_limit` is about this scope and those above.
    `partial` is the last text that a model gave in this scope, for a task that fails;
    `maybe_billed` says that a call ended without an answer; `cached_calls` counts the calls that
    the response cache answered, `interrupted_calls` those that were in flight when an
    earlier process ended; `refused` is why a limiter rejected a call or this machine cannot
    continue, and ends the whole scope. `models` are those that answered, in order. `warnings` has
    one for each limit that is used to 80 %. Not thread-safe: one event loop.
    """

    __slots__ = (
        "_above",
        "_max_spent",
        "_reserved_cost",
        "_reserved_turns",
        "_started",
        "cached_calls",
        "has_cost_limit",
        "interrupted_calls",
        "max_cost_usd",
        "max_turns",
        "maybe_billed",
        "models",
        "owner",
        "partial",
        "paused_at",
        "paused_s",
        "pauses",
        "refused",
        "resume_callbacks",
        "timeout_s",
        "usage",
        "warnings",
    )

    def __init__(
        self,
        owner: str,
        *,
        max_turns: int | None = None,
        max_cost_usd: float | None = None,
        timeout_s: float | None = None,
        parent: Budget | None = None,
    ) -> None:
        self.owner = owner
        self.max_turns = max_turns
        self.max_cost_usd = max_cost_usd
        self.timeout_s = timeout_s
        self.usage = _NOTHING
        self.partial = ""
        self.maybe_billed = False
        self.cached_calls = 0
        self.interrupted_calls = 0
        self.refused: CallRejected | MachineError | None = None
        self.warnings: dict[str, str] = {}
        self.models: dict[str, None] = {}
        self.resume_callbacks: set[Callable[[], None]] = set()
        # The budgets above this one, the nearest first.
        self._above: tuple[Budget, ...] = () if parent is None else (parent, *parent._above)
        self.has_cost_limit = max_cost_usd is not None or (
            parent is not None and parent.has_cost_limit
        )
        self._reserved_turns = 0
        self._reserved_cost = 0.0
        # What counts against the cost limit: known costs, and the most that calls of unknown usage
        # may have cost.
        self._max_spent: float | None = 0.0
        self._started = clock.monotonic()
        # How many pauses are open; a number, because pauses overlap.
        self.pauses = 0
        self.paused_at = self.paused_s = 0.0

    # -- time --------------------------------------------------------------------------------------

    @property
    def is_paused(self) -> bool:
        return self.pauses > 0

    def elapsed_s(self) -> float:
        """Seconds since the budget was made, without pauses."""
        if self.pauses:
            now = self.paused_at
        else:
            now = clock.monotonic()
        return now - self._started - self.paused_s

    def waited_s(self) -> float:
        """Seconds of pauses."""
        return self.paused_s + (clock.monotonic() - self.paused_at if self.pauses else 0.0)

    def is_late(self) -> bool:
        """Whether the time of this task is up."""
        remaining = self.remaining_s()
        return remaining is not None and remaining <= 0

    def remaining_s(self) -> float | None:
        """Seconds left until the nearest time limit of this scope and those above; None without
        one.
        """
        nearest: float | None = None
        for scope in (self, *self._above):
            if scope.timeout_s is not None:
                remaining = scope.timeout_s - scope.elapsed_s()
                if nearest is None or remaining < nearest:
                    nearest = remaining
        return nearest

    def paused(self) -> _Pause:
        """Stops the clock here and above, for a wait that this task does not cause.

        Pauses of concurrent tasks may overlap: the clock above them runs again when the last of
        them has ended.
        """
        return _Pause((self, *self._above))

    def deadline(self) -> Deadline:
        """A timeout of the current task at the nearest time limit of this scope and those above;
        pauses postpone it.
        """
        return Deadline((self, *self._above))

    def own_deadline(self) -> Deadline:
        """As `deadline`; a scope without a limit of its own has none, since those above end their
        own tasks.
        """
        if self.timeout_s is None:
            return Deadline(())
        return Deadline((self, *self._above))

    def check_time(self) -> None:
        """Raises: LimitReached, if the time of this scope or one above is used up."""
        for scope in (self, *self._above):
            if scope.timeout_s is not None and scope.elapsed_s() >= scope.timeout_s:
                raise scope.time_is_up()

    def time_is_up(self) -> LimitReached:
        """The error of a scope whose time is used up."""
        limit = self.timeout_s or 0.0
        return LimitReached(
            "time",
            round(self.elapsed_s(), 3),
            limit=limit,
            message=f"{self.owner} has used its {limit:g} s; give its handler a longer timeout, or "
            "the task less to do",
        )

    # -- usage -------------------------------------------------------------------------------------

    def refuse(self, error: CallRejected | MachineError) -> None:
        """Records that a limiter rejected a call, or that this machine cannot continue: no other
        call is made in this scope and those above.
        """
        for scope in (self, *self._above):
            scope.refused = error

    def count_cached(self, calls: int = 1) -> None:
        """Adds to `cached_calls` here and above."""
        for scope in (self, *self._above):
            scope.cached_calls += calls

    def count_interrupted(self, calls: int) -> None:
        """Adds to `interrupted_calls` here and above. No limit counts them: what they cost, if
        anything, is not known, and a run that was killed has the same limits as another.
        """
        for scope in (self, *self._above):
            scope.interrupted_calls += calls

    def add_model(self, model: str) -> None:
        """Adds to `models` here and above."""
        self.models[model] = None
        for scope in self._above:
            scope.models[model] = None

    def charge(self, usage: Usage) -> None:
        """Adds `usage` here and above, and warns once where 80 % of a cost limit is used."""
        self._add(usage, usage.cost_usd)
        for scope in self._above:
            scope._add(usage, usage.cost_usd)

    def charge_unknown(self, max_cost_usd: float | None) -> None:
        """Adds, here and above, a call of unknown usage that may have been billed.

        Against cost limits it counts as `max_cost_usd`, the most that it may have cost, None where
        that is unknown.
        """
        for scope in (self, *self._above):
            scope._add(UNKNOWN_USAGE, max_cost_usd)

    def _add(self, usage: Usage, max_cost_usd: float | None) -> None:
        if self.usage is _NOTHING:
            self.usage = usage
        else:
            self.usage = self.usage + usage
        spent = self._max_spent
        if spent is None or max_cost_usd is None:
            self._max_spent = None
        else:
            self._max_spent = spent + max_cost_usd
        if self.max_cost_usd is not None and self._max_spent is not None:
            self._warn("cost", self._max_spent, limit=self.max_cost_usd)

    def reserve_turn(self, cost_usd: float | None = None) -> None:
        """Called before a turn, which then counts as used here and above until `release_turn`.

        So concurrent turns cannot pass a limit together. `cost_usd` is the most that the turn may
        cost, None if unknown. Warns once when 80 % of the turns are used, unless the limit is a
        single turn.

        Raises: LimitReached, if a limit of this scope or one above would be passed; nothing is
        reserved then.
        """
        scopes = (self, *self._above)
        cost = cost_usd or 0.0
        for scope in scopes:
            limit = scope.max_turns
            if limit is not None and scope.usage.turns + scope._reserved_turns >= limit:
                raise scope._out_of_turns(limit)
            if scope.max_cost_usd is not None:
                scope._check_cost(cost_usd, scope.max_cost_usd)
            if scope.timeout_s is not None and scope.elapsed_s() >= scope.timeout_s:
                raise scope.time_is_up()
        for scope in scopes:
            scope._reserved_turns += 1
            scope._reserved_cost += cost
            if scope.max_turns is not None:
                turns = scope.usage.turns + scope._reserved_turns
                if turns > 1:
                    scope._warn("turns", turns, scope.max_turns)

    def release_turn(self, cost_usd: float | None = None) -> None:
        """Ends a reservation, with the same `cost_usd`; `charge` then counts what was used."""
        cost = cost_usd or 0.0
        for scope in (self, *self._above):
            scope._reserved_turns -= 1
            scope._reserved_cost -= cost

    def check_reserved(self) -> None:
        """Called before an attempt is repeated within the reserved turn.

        Raises: LimitReached, if what may have been paid meanwhile and what is reserved pass a cost
        limit.
        """
        for scope in (self, *self._above):
            limit = scope.max_cost_usd
            spent = scope._max_spent
            if limit is not None and spent is not None and spent + scope._reserved_cost > limit:
                raise LimitReached(
                    "cost",
                    spent,
                    limit=limit,
                    message=f"another attempt of {scope.owner} may pass ${limit:g}: attempts "
                    "without an answer may have "
                    f"been billed (${spent:.6f} spent at most)",
                )

    def _out_of_turns(self, limit: int) -> LimitReached:
        turns = self.usage.turns + self._reserved_turns
        used = amount(limit, "turn")
        message = f"{self.owner} has used its {used}; give its handler a higher max_turns"
        return LimitReached("turns", turns, limit=limit, message=message)

    def _check_cost(self, cost_usd: float | None, limit: float) -> None:
        spent = self._max_spent
        if spent is None or cost_usd is None:
            raise LimitReached(
                "cost",
                spent or 0.0,
                limit=limit,
                message=f"{self.owner} has a cost limit of ${limit:g} but what a turn may cost is "
                "unknown: its "
                "price or its longest answer; give the profile <prices input= output=> and <limits "
                "max_output_tokens=>, or remove max_cost",
            )
        if spent + self._reserved_cost + cost_usd > limit:
            raise LimitReached(
                "cost",
                spent,
                limit=limit,
                message=f"the next turn of {self.owner} may cost ${cost_usd:.6f}, which would pass "
                f"${limit:g} (${spent:.6f} spent)",
            )

    def _warn(self, resource: str, used: float, limit: float) -> None:
        if used >= WARN_AT * limit:
            self.warnings.setdefault(
                resource, f"{self.owner} has used {used:g} of {limit:g} {resource}"
            )
