"""What all calls of a batch may use together: money, tokens and time, reserved before a call and settled after it."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from evaluator.errors import ConfigurationError, NotLetIn, ProviderError
from evaluator.handler.gate import PlannedCall
from evaluator.results import Usage

_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchBudget:
    """US dollars, tokens in and out together, and seconds from the first call on; None where there is no limit.

    Raises: ConfigurationError, for a limit that is no number, or below 0.
    """

    max_cost_usd: float | None = None
    max_tokens: int | None = None
    max_seconds: float | None = None

    def __post_init__(self) -> None:
        for name in ("max_cost_usd", "max_tokens", "max_seconds"):
            value = getattr(self, name)
            if value is not None and not (_is_number(value) and 0 <= value < inf):
                raise ConfigurationError(f"the batch's {name} is {value!r}, expected a number, 0 or more")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


class SharedBudget:
    """The account of a `BatchBudget`. `spent` is what answers said; `in_doubt` the most that calls may have used
    that may have been billed and came to no answer that says so. Both count, as does what is reserved.
    """

    __slots__ = (
        "_cost_usd", "_ends_at", "_limits", "_open", "_reserved_cost_usd", "_reserved_tokens", "_tokens", "in_doubt",
        "spent",
    )  # fmt: skip

    def __init__(self, limits: BatchBudget) -> None:
        self._limits = limits
        self.spent = Usage()
        self.in_doubt = Usage()
        self._cost_usd = self._reserved_cost_usd = 0.0
        self._tokens = self._reserved_tokens = self._open = 0
        self._ends_at: float | None = None

    @property
    def is_shared_out(self) -> bool:
        """Whether a call may have to wait for what others have reserved."""
        return self._limits.max_cost_usd is not None or self._limits.max_tokens is not None

    def ends_at(self, now: float) -> float:
        """When no more call may begin; inf where there is no limit."""
        if self._limits.max_seconds is None:
            return inf
        if self._ends_at is None:
            self._ends_at = now + self._limits.max_seconds
        return self._ends_at

    def check_time(self, begins_at: float, now: float) -> None:
        """Raises: NotLetIn, for a call that cannot begin before the batch's time is up."""
        ends_at, limit = self.ends_at(now), self._limits.max_seconds
        if limit is not None and begins_at >= ends_at:
            used = limit - (ends_at - now)
            message = f"the batch has used its {limit:g} s"
            if now < ends_at:
                message = f"the next call may begin only when the {limit:g} s of the batch are over"
            raise NotLetIn("time", round(max(0.0, used), 3), limit, message)

    def fits(self, call: PlannedCall) -> bool:
        """Whether `call` may begin; False: it may when others use less than they have reserved.

        Raises: NotLetIn, if it would pass a limit whatever others use, or what it may use is unknown.
        """
        money, tokens = self._limits.max_cost_usd, self._limits.max_tokens
        fits = True
        if money is not None:
            fits = self._fits("cost", money, self._cost_usd, self._reserved_cost_usd, call.cost_usd, call)
        if tokens is not None:
            fits &= self._fits("tokens", tokens, self._tokens, self._reserved_tokens, _tokens_of(call), call)
        return fits

    def _fits(
        self, resource: str, limit: float, used: float, reserved: float, needed: float | None, call: PlannedCall
    ) -> bool:
        unit = "${:.6f}" if resource == "cost" else "{:,} tokens"
        shown = ("${:g}" if resource == "cost" else unit).format(limit)
        if needed is None:
            unknown = "longest answer is unknown; give the profile <limits max_output_tokens=>"
            if resource == "cost" and call.output_tokens is None:
                unknown += " (and <prices input= output=> for a model that is in no price table)"
            elif resource == "cost":
                unknown = "price is unknown; give the profile <prices input= output=>"
            raise NotLetIn(
                resource, used, limit,
                f"the batch has a budget of {shown} but {call.label}'s {unknown} or remove the budget",
            )  # fmt: skip
        allowed = limit * (1 + _ROUNDING)
        if used + needed > allowed:
            raise NotLetIn(
                resource, used, limit,
                f"the next call may use {unit.format(needed)}, which would pass the batch's budget of "
                f"{shown} ({unit.format(used)} used)",
            )  # fmt: skip
        return used + reserved + needed <= allowed

    def reserve(self, call: PlannedCall) -> None:
        self._open += 1
        self._reserved_cost_usd += call.cost_usd or 0.0
        self._reserved_tokens += _tokens_of(call) or 0

    def settle(self, call: PlannedCall, usage: Usage | None, error: ProviderError | None) -> None:
        """Ends the reservation of `call`, and counts what it used, or the most that it may have."""
        self._open -= 1
        self._reserved_tokens -= _tokens_of(call) or 0
        # Sums of floats do not come back to 0 by themselves.
        self._reserved_cost_usd = self._reserved_cost_usd - (call.cost_usd or 0.0) if self._open else 0.0
        most, tokens = call.cost_usd, _tokens_of(call)
        if usage is not None:
            self.spent = self.spent + usage
            self._cost_usd += (usage.cost_usd if usage.cost_usd is not None else most) or 0.0
            told = usage.input_tokens is not None and usage.output_tokens is not None
            self._tokens += ((usage.input_tokens or 0) + (usage.output_tokens or 0) if told else tokens) or 0
        elif error is None or error.maybe_billed:
            self.in_doubt = self.in_doubt + Usage(call.input_tokens, call.output_tokens, None, None, most, 1)
            self._cost_usd += most or 0.0
            self._tokens += tokens or 0


def _tokens_of(call: PlannedCall) -> int | None:
    if call.input_tokens is None or call.output_tokens is None:
        return None
    return call.input_tokens + call.output_tokens
