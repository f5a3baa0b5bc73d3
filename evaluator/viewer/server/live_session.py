"""The running session of a batch as its process writes it: calls by model, what is held and why,
and the budget.

The file may be somebody else's: every value is checked, and what does not fit is left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from evaluator import clock
from evaluator.batch import Batch
from evaluator.batch.folder import BatchFolder
from evaluator.viewer.server.rendering import items, mapping

FRESH_S = 15.0
MAX_ENDPOINTS = 100


@dataclass(frozen=True, slots=True)
class EndpointRow:
    """Calls of one model at one endpoint. `why` is what new calls wait for; empty if they do
    not.
    """

    name: str
    host: str
    in_flight: int
    limit: int | None
    waiting: int
    why: str


@dataclass(frozen=True, slots=True)
class LiveSession:
    """`stop` is why the session ends soon; empty if it does not. `budget` has a text for each limit
    of the batch.
    """

    endpoints: tuple[EndpointRow, ...]
    stop: str
    budget: tuple[str, ...]


def live_session(batch: Batch) -> LiveSession | None:
    """The session that runs now; None if there is none, or it has said nothing for some seconds."""
    found = mapping(BatchFolder.reader(batch.folder).progress())
    at = _number(found.get("at"))
    if at is None or not 0 <= clock.wall() - at < FRESH_S:
        return None
    rows = [_endpoint(mapping(each)) for each in items(found.get("endpoints"))[:MAX_ENDPOINTS]]
    return LiveSession(tuple(rows), str(found.get("stop") or ""), budget=tuple(_budget(found)))


def _endpoint(data: Mapping[str, Any]) -> EndpointRow:
    in_flight = _whole(data.get("in_flight")) or 0
    waiting = _whole(data.get("waiting")) or 0
    limit = _whole(data.get("limit"))
    held_s = _number(data.get("held_s")) or 0.0
    if held_s > 0:
        why = f"the provider asked for a pause: {math.ceil(held_s):,} s left"
    elif not waiting:
        why = ""
    elif limit is not None and in_flight >= limit:
        why = "as many calls as permitted are in flight"
    else:
        why = "the rate limit"
    return EndpointRow(
        str(data.get("name") or ""),
        str(data.get("host") or ""),
        in_flight=in_flight,
        limit=limit,
        waiting=waiting,
        why=why,
    )


def _budget(data: Mapping[str, Any]) -> list[str]:
    limits = mapping(data.get("limits"))
    usage = mapping(data.get("usage"))
    tokens = [_number(usage.get(name)) for name in ("input_tokens", "output_tokens")]
    used = {
        "max_cost": (_number(usage.get("cost_usd")), "${:,.4f}"),
        "max_tokens": (
            None if None in tokens else sum(each or 0 for each in tokens),
            "{:,.0f} tokens",
        ),
        "max_time": (_number(data.get("elapsed_s")), "{:,.0f} s"),
    }
    lines: list[str] = []
    for name, (value, form) in used.items():
        limit = _number(limits.get(name))
        if limit is not None:
            lines.append(
                f"{'an unknown part' if value is None else form.format(value)} of "
                f"{form.format(limit)}"
            )
    rates = {"requests_per_minute": "requests", "tokens_per_minute": "tokens"}
    for name, what in rates.items():
        limit = _number(limits.get(name))
        if limit is not None:
            lines.append(f"at most {limit:,.0f} {what} per minute to each model")
    return lines


def _number(value: Any) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if is_number and abs(value) < 1e15:
        return float(value)
    return None


def _whole(value: Any) -> int | None:
    found = _number(value)
    if found is None or not math.isfinite(found):
        return None
    return int(found)
