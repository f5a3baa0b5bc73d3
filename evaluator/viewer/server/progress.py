"""The progress of a batch: its counts and state, its running session, and how often a page asks.

A session is shown as its process writes it: calls by model, what is held and why, and the budget.
The file may be somebody else's: every value is checked, and what does not fit is left out.

The page sends commands to a running batch, as `evaluator batch pause` and the others do, and shows
their states. A command goes through the log in the batch's folder, see `evaluator.batch.control`.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

from evaluator import clock
from evaluator.batch import Batch, Decision, control_batch
from evaluator.batch.control import Action, ControlLog
from evaluator.batch.export.output_path import About
from evaluator.batch.folder import RESULTS, BatchFolder
from evaluator.batch.options import BatchLimits
from evaluator.batch.reading import open_batch
from evaluator.batch.wave_log import submissions_of
from evaluator.errors import BatchDamaged, RecordError, UsageError
from evaluator.fields.records import items_of, mapping_of
from evaluator.viewer.json_form import Query
from evaluator.viewer.server.batch_index import BatchIndex
from evaluator.viewer.server.state import COMPUTING_MS, LIVE_MS, State, minute

SLOW_LIVE_MS = 15_000
_SHARE = 100
_QUIET_S = 120.0
FRESH_S = 15.0
MAX_ENDPOINTS = 100


def live_session(batch: Batch) -> dict[str, Any] | None:
    """The session that runs now; None if there is none, or it has said nothing for some seconds.

    `stop` is why it ends soon; empty if it does not. `budget` has a text for each limit of the
    batch.
    """
    found = mapping_of(BatchFolder.reader(batch.folder).progress())
    at = _number(found.get("at"))
    if at is None or not 0 <= clock.wall() - at < FRESH_S:
        return None
    endpoints = items_of(found.get("endpoints"))[:MAX_ENDPOINTS]
    return {
        "endpoints": [_endpoint(mapping_of(each)) for each in endpoints],
        "stop": str(found.get("stop") or ""),
        "budget": _budget(found),
    }


def _endpoint(data: Mapping[str, Any]) -> dict[str, Any]:
    """Calls of one model at one endpoint. `why` is what new calls wait for; empty if they do
    not.
    """
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
    return {
        "name": str(data.get("name") or ""),
        "host": str(data.get("host") or ""),
        "in_flight": in_flight,
        "limit": limit,
        "waiting": waiting,
        "why": why,
    }


def _budget(data: Mapping[str, Any]) -> list[str]:
    limits = mapping_of(data.get("limits"))
    usage = mapping_of(data.get("usage"))
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
            part = "an unknown part" if value is None else form.format(value)
            lines.append(f"{part} of {form.format(limit)}")
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


def batch_state(about: About) -> str:
    state = about.text("state") or "complete"
    return state if state in ("complete", "running") else "stopped"


def resume_command(name: str) -> str:
    return f"evaluator batch --resume {shlex.quote(name)}"


def simulated_cells(batch: Batch) -> list[bool]:
    """Whether a simulated model answers, by cell."""
    return [mapping_of(cell).get("simulated") is True for cell in batch.manifest.get("cells", [])]


def progress_data(batch: Batch, name: str, index: BatchIndex, about: About) -> dict[str, Any]:
    counts = index.counts()
    results = sum(counts.values())
    if batch.totals is None:
        total = None
    else:
        total = sum(batch.totals.values())
    state = batch_state(about)
    rate = left_s = session = None
    if state == "running":
        session = live_session(batch)
        if not index.unread:
            rate = index.rate()
    decision = Decision.of(batch.manifest)
    if rate and total is not None:
        left_s = (total - results) / rate
    is_stopped = state != "complete" and session is None
    return {
        "state": state,
        "unfinished": about.unfinished,
        "resume": resume_command(name) if is_stopped else "",
        "counts": dict(counts),
        "results": results,
        "total": total,
        "cost": index.cost(),
        "cost_is_bound": index.has_interrupted_calls,
        "rate": rate,
        "left_s": left_s,
        "problem": index.problem,
        "session": session,
        "simulated": any(simulated_cells(batch)),
        "provider_batches": _provider_batches(batch),
        "decision": None if decision is None else decision.shown(),
    }


def _provider_batches(batch: Batch) -> list[str]:
    """A line for each provider batch."""
    try:
        found = submissions_of(batch.folder, str(batch.manifest.get("created")))
    except BatchDamaged as error:
        return [str(error)]
    return [str(each) for each in found]


def live_ms_of(folder: Path, *, is_running: bool, is_computing: bool, cost_ms: float) -> int:
    """How often the page asks again: so that it takes at most a 100th of a processor's time.

    A killed batch looks as if it was running: without news the page asks seldom.
    """
    if is_computing and not is_running:
        return COMPUTING_MS
    if not is_running:
        return 0
    try:
        quiet_s = clock.wall() - (folder / RESULTS).stat().st_mtime
    except OSError:
        return SLOW_LIVE_MS
    if quiet_s >= _QUIET_S:
        return SLOW_LIVE_MS
    return min(max(LIVE_MS, round(_SHARE * cost_ms)), SLOW_LIVE_MS)


MAX_COMMANDS = 10
WAIT_S = 2.0
"""How long an action waits for the answer of the session; its page shows it later too."""
_AT_ONCE = ("pause", "continue", "stop")
"""What a click is enough for: each of them can be taken back."""
_LIMIT = "limit."


def control_data(state: State, batch: Batch, *, is_running: bool, errors: list[str]) -> Any:
    """What can be commanded, and the last commands; None for a batch that is complete and never had
    any. `errors` are the kinds of errors of its results.
    """
    log = ControlLog(batch.folder, str(batch.manifest.get("created")))
    try:
        commands = log.read()
    except RecordError as error:
        return {"problem": str(error), "commands": [], "form": None}
    is_complete = batch.manifest.get("state") == "complete"
    if is_complete and not commands:
        return None
    form = None
    if not is_complete:
        limits = mapping_of(batch.manifest.get("limits"))
        form = {
            "is_running": is_running,
            "is_paused": any(each.action == "pause" and not each.is_final for each in commands),
            "limits": [(each.name, limits.get(each.name)) for each in fields(BatchLimits)],
            "errors": errors,
            "token": state.form_token,
        }
    shown = [
        {"text": str(each), "state": each.state, "message": each.message, "at": minute(each.at)}
        for each in reversed(commands[-MAX_COMMANDS:])
    ]
    return {"problem": "", "commands": shown, "form": form}


def control(state: State, query: Query) -> str:
    """Sends a command to a batch. Returns: the address of its page.

    Raises: UsageError, without the form's token, for a command that cannot be carried out, or
    without the confirmation of one that changes results or may cost money.
    """
    action = query.get("action", "")
    if action in _AT_ONCE:
        state.check_form(query)
    else:
        state.check_confirmed(query, "the command")
    folder = state.project.find("batches", query["folder"])
    for known in get_args(Action):
        if known == action:
            arguments = _arguments(open_batch(folder), action, query)
            control_batch(folder, known, arguments, wait_s=WAIT_S)
            return f"/batch/{query['folder']}"
    raise UsageError(f"the action is {action!r:.60}, expected {', '.join(get_args(Action))}")


def _arguments(batch: Batch, action: str, query: Query) -> list[str]:
    match action:
        case "set":
            current = mapping_of(batch.manifest.get("limits"))
            changed = [
                f"{name.removeprefix(_LIMIT)}={text.strip() or 'none'}"
                for name, text in query.items()
                if name.startswith(_LIMIT)
                and text.strip() != _text(current.get(name.removeprefix(_LIMIT)))
            ]
            if not changed:
                raise UsageError("no limit was changed")
            return changed
        case "retry":
            return [query["error"]] if query.get("error") else []
        case "skip":
            sample = query.get("sample", "").strip()
            return [sample] if sample else []
        case _:
            return []


def _text(limit: Any) -> str:
    """A limit as its field in the form has it."""
    if isinstance(limit, float) and limit.is_integer():
        return str(int(limit))
    return "" if limit is None else str(limit)
