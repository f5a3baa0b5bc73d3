"""A queue as a board, one of its entries, and the two actions of a person on an entry: retry and
skip.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evaluator.errors import EvaluatorError, UsageError
from evaluator.handler.backends import is_simulated_model
from evaluator.queue import QueueEntry, QueueView, StrategyAttempt, TaskQueue
from evaluator.queue.attempt_runs import ENTRY_LABEL
from evaluator.queue.queue_view import DATABASE, entry_details
from evaluator.viewer.json_form import Page
from evaluator.viewer.server.state import COMPUTING_MS, NoSuchPage, State, mapping, minute

MAX_CARDS = 50
MAX_CARD_CHARS = 200
LIVE_MS = 2_000
_TASK = re.compile(r"TASK-([0-9]{1,18}): ")


def queue_page(state: State, query: Mapping[str, str]) -> Page:
    """The board of a queue."""
    project = state.project
    queues = project.folders().queues
    chosen = query.get("folder") or next(iter(queues), None)
    shown = {
        "folders": [(key, project.name_of(path)) for key, path in queues.items()],
        "chosen": chosen,
        "board": None,
    }
    if chosen is None:
        return Page("queue", "Queue", shown)
    folder = project.queue(chosen)
    board = state.boards.get(folder, _version(folder), lambda: _board(state, folder, chosen))
    if board.is_current:
        live_ms = LIVE_MS
    else:
        live_ms = COMPUTING_MS
    return Page("queue", "Queue", shown | {"board": board}, live_ms=live_ms)


def entry_page(state: State, query: Mapping[str, str]) -> Page:
    """One entry: what was tried and delivered, what it waits for, and what can be done."""
    folder = state.project.queue(query["folder"])
    with QueueView(folder) as queue:
        try:
            stored = queue.show(query["entry"])
        except UsageError as error:
            raise NoSuchPage(str(error)) from error
    entry = stored.entry
    details = {
        name: value
        for name, value in entry_details(stored).items()
        if value not in (None, "", 0, [], (), {})
    }
    values = {
        "href": f"/queue/{query['folder']}/{entry.id}",
        "queue": f"/queue?folder={query['folder']}",
        "name": state.project.name_of(folder),
        "entry": entry,
        "details": details,
        "attempts": [
            {"attempt": each, "run": _run(state, entry, attempt=each)}
            for each in reversed(entry.strategies_tried)
        ],
        "token": state.form_token,
    }
    if entry.status in ("running", "pending"):
        live_ms = LIVE_MS
    else:
        live_ms = 0
    return Page("entry", entry.id, values, live_ms=live_ms)


def change_entry(state: State, query: Mapping[str, str]) -> str:
    """Retries a blocked entry or skips a pending one.

    Returns: the address of its page. Raises: UsageError, without the form's token or the
    confirmation, or if the entry is in another state.
    """
    state.check_confirmed(query, "the change")
    folder = state.project.queue(query["folder"])
    with TaskQueue(folder, notice=lambda _line: None, takes_edits=False) as queue:
        match query.get("action"):
            case "retry":
                guidance = query.get("guidance", "").replace("\r\n", "\n").strip()
                queue.retry(query["entry"], guidance or None)
            case "skip":
                queue.skip(query["entry"])
            case other:
                raise UsageError(f"the action is {other!r:.60}, expected retry or skip")
    return f"/queue/{query['folder']}/{query['entry']}"


def _version(folder: Path) -> tuple[object, ...]:
    """Changes with every change of the database."""
    found: list[object] = []
    for name in (DATABASE, f"{DATABASE}-wal"):
        try:
            status = (folder / name).stat()
            found.append((status.st_ino, status.st_size, status.st_mtime_ns))
        except OSError:
            found.append(None)
    return tuple(found)


def _board(state: State, folder: Path, queue_id: str) -> dict[str, Any]:
    with QueueView(folder) as queue:
        board = queue.board(MAX_CARDS)
    return {
        "ready": board.ready,
        "archived": board.archived,
        "max_concurrent": board.max_concurrent,
        "columns": [
            {
                "status": column.status,
                "count": column.count,
                "cards": [_card(state, entry, queue_id) for entry in column.entries],
            }
            for column in board.columns
        ],
    }


def _card(state: State, entry: QueueEntry, queue_id: str) -> dict[str, Any]:
    return {
        "id": entry.id,
        "href": f"/queue/{queue_id}/{entry.id}",
        "status": entry.status,
        "type": entry.type,
        "description": entry.description[:MAX_CARD_CHARS],
        "deliverable": (entry.deliverable or "")[:MAX_CARD_CHARS],
        "blocked_reason": entry.blocked_reason,
        "attempts": len(entry.strategies_tried),
        "time": minute(entry.completed_at or entry.started_at or entry.added_at),
        "simulated": any(
            _run(state, entry, attempt=each)["simulated"] for each in entry.strategies_tried[-1:]
        ),
    }


def _run(state: State, entry: QueueEntry, attempt: StrategyAttempt) -> dict[str, Any]:
    """The address of the attempt's run, if the project's task folder has it, and whether its model
    was simulated.
    """
    nothing = {"href": "", "simulated": False}
    found = _TASK.match(attempt.result)
    if found is None:
        return nothing
    folder = state.project.id_of(state.project.root / "tasks")
    try:
        store = state.project.store(folder)
        recording = store.read(int(found[1]))
    except (EvaluatorError, OSError):
        return nothing
    header = recording.header
    # Another folder's worker may have numbered its runs alike.
    if header is None or mapping(header.extra.get("labels")).get(ENTRY_LABEL) != entry.id:
        return nothing
    if recording.summary is None:
        models = ()
    else:
        models = recording.summary.models
    return {
        "href": f"/run/{folder}/{found[1]}",
        "simulated": any(map(is_simulated_model, models)),
    }
