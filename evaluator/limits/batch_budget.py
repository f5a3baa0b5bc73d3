"""The budget of a batch: cost, tokens and time of all its calls, reserved before a call and settled
after it.
"""

from __future__ import annotations

from math import inf

from evaluator.errors import CallRejected, ProviderError
from evaluator.errors.results import Usage
from evaluator.lazy_dataclass import frozen
from evaluator.limits.call_limiter import CallUsage, PlannedCall

_ROUNDING = 1e-9


@frozen(kw_only=True)
class BatchBudget:
    """US dollars, tokens in and out together, and seconds from the first call on; None where there
    is no limit.

    The options of a batch check the values.
    """

    max_cost_usd: float | None = None
    max_tokens: int | None = None
    max_seconds: float | None = None


class BatchSpending:
    """The part of a BatchBudget that the calls of a batch have used and reserved.

    `cost_usd` and `tokens` are what answers reported, and the most that calls may have used whose
    usage is unknown and which may have been billed. Reservations count against the budget too.
    """

    def __init__(self, limits: BatchBudget) -> None:
        self.cost_usd = self._reserved_cost_usd = 0.0
        self.tokens = self._reserved_tokens = self._open = 0
        self._began: float | None = None
        self.change(limits)

    def change(self, limits: BatchBudget) -> None:
        """Sets other limits; what was used and reserved stays."""
        self._limits = limits
        # Whether a call may have to wait for what other calls have reserved, or may be rejected.
        self.has_shared_limit = limits.max_cost_usd is not None or limits.max_tokens is not None
        self.has_limit = self.has_shared_limit or limits.max_seconds is not None

    def ends_at(self, now: float) -> float:
        """The time from which no call may begin; inf where there is no limit. The first call starts
        the clock.
        """
        if self._began is None:
            self._began = now
        if self._limits.max_seconds is None:
            return inf
        return self._began + self._limits.max_seconds

    def check_time(self, begins_at: float, now: float) -> None:
        """Raises: CallRejected, for a call that cannot begin before the batch's time is up."""
        ends_at = self.ends_at(now)
        limit = self._limits.max_seconds
        if limit is not None and begins_at >= ends_at:
            used = limit - (ends_at - now)
            message = f"the batch has used its {limit:g} s"
            if now < ends_at:
                message = f"the next call may begin only when the {limit:g} s of the batch are over"
            raise CallRejected("time", round(max(0.0, used), 3), limit=limit, message=message)

    def fits(self, call: PlannedCall) -> bool:
        """Whether `call` may begin; False: it may when other calls use less than they have
        reserved.

        Raises: CallRejected, if it would pass a limit whatever others use, or what it may use is
        unknown.
        """
        cost = self._limits.max_cost_usd
        tokens = self._limits.max_tokens
        fits = True
        if cost is not None:
            fits = _fits(
                "cost",
                cost,
                used=self.cost_usd,
                reserved=self._reserved_cost_usd,
                needed=call.cost_usd,
                call=call,
            )
        if tokens is not None:
            fits &= _fits(
                "tokens",
                tokens,
                used=self.tokens,
                reserved=self._reserved_tokens,
                needed=_tokens_of(call),
                call=call,
            )
        return fits

    def reserve(self, call: PlannedCall) -> None:
        self._open += 1
        self._reserved_cost_usd += call.cost_usd or 0.0
        self._reserved_tokens += _tokens_of(call) or 0

    def settle(
        self, call: PlannedCall, usage: Usage | CallUsage | None, error: ProviderError | None
    ) -> None:
        """Ends the reservation of `call`, and counts what it used, or the most that it may have
        used.
        """
        tokens = _tokens_of(call) or 0
        cost_usd = call.cost_usd or 0.0
        self._open -= 1
        self._reserved_tokens -= tokens
        # A sum of floats does not return to 0 by itself.
        if self._open:
            self._reserved_cost_usd = self._reserved_cost_usd - cost_usd
        else:
            self._reserved_cost_usd = 0.0
        if usage is not None:
            self.renew(call, usage)
        elif error is None or error.maybe_billed:
            self.cost_usd += cost_usd
            self.tokens += tokens

    def renew(self, call: PlannedCall, usage: Usage | CallUsage) -> None:
        """Counts what `call` used, and where that is unknown the most that it may have used; its
        reservation is that of the same call again.
        """
        cost_usd = usage.cost_usd
        if cost_usd is None:
            cost_usd = call.cost_usd or 0.0
        self.cost_usd += cost_usd
        input_tokens = usage.input_tokens
        output_tokens = usage.output_tokens
        if input_tokens is None or output_tokens is None:
            self.tokens += _tokens_of(call) or 0
        else:
            self.tokens += input_tokens + output_tokens


def _fits(
    resource: str,
    limit: float,
    used: float,
    reserved: float,
    needed: float | None,
    call: PlannedCall,
) -> bool:
    if resource == "cost":
        unit = "${:.6f}"
    else:
        unit = "{:,} tokens"
    shown = ("${:g}" if resource == "cost" else unit).format(limit)
    if needed is None:
        unknown = "longest answer is unknown; give the profile <limits max_output_tokens=>"
        if resource == "cost" and call.output_tokens is None:
            unknown += " (and <prices input= output=> for a model that is in no price table)"
        elif resource == "cost":
            unknown = "price is unknown; give the profile <prices input= output=>"
        raise CallRejected(
            resource,
            used,
            limit=limit,
            message=f"the batch has a budget of {shown} but {call.label}'s {unknown} or remove "
            "the budget",
        )
    allowed = limit * (1 + _ROUNDING)
    if used + needed > allowed:
        raise CallRejected(
            resource,
            used,
            limit=limit,
            message=f"the next call may use {unit.format(needed)}, which would pass the batch's "
            "budget of "
            f"{shown} ({unit.format(used)} used)",
        )
    return used + reserved + needed <= allowed


def _tokens_of(call: PlannedCall) -> int | None:
    if call.input_tokens is None or call.output_tokens is None:
        return None
    return call.input_tokens + call.output_tokens
