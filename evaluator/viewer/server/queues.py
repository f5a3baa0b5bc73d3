"""A queue as a board, one of its entries, and the two actions of a person on an entry: retry and
skip.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from evaluator.errors import EvaluatorError, UsageError
from evaluator.queue import QueueBoard, QueueEntry, QueueView, StrategyAttempt, TaskQueue
from evaluator.queue.attempt_runs import ENTRY_LABEL
from evaluator.queue.queue_view import DATABASE, entry_details
from evaluator.viewer.server.project import NoSuchPage
from evaluator.viewer.server.rendering import Page, mapping
from evaluator.viewer.server.state import COMPUTING_MS, State

MAX_CARDS = 50
LIVE_MS = 2_000
_TASK = re.compile(r"TASK-([0-9]{1,18}): ")


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt with the address of its run; empty if that is not found."""

    attempt: StrategyAttempt
    run: str


def queue_page(state: State, query: Mapping[str, str]) -> Page:
    """The board of a queue."""
    project = state.project
    queues = project.folders().queues
    chosen = query.get("folder") or next(iter(queues), None)
    shown = {
        "title": "Queue",
        "folders": [(key, project.name_of(path)) for key, path in queues.items()],
        "chosen": chosen,
        "board": None,
        "live_ms": 0,
    }
    if chosen is None:
        return Page("queue.html", shown)
    folder = project.queue(chosen)
    board = state.boards.get(folder, _version(folder), lambda: _board(folder))
    live_ms = LIVE_MS if board.is_current else COMPUTING_MS
    return Page("queue.html", shown | {"board": board, "most": MAX_CARDS, "live_ms": live_ms})


def entry_page(state: State, query: Mapping[str, str]) -> Page:
    """One entry: what was tried and delivered, what it waits for, and what can be done."""
    folder = state.project.queue(query["folder"])
    with QueueView(folder) as queue:
        try:
            stored = queue.show(query["entry"])
        except UsageError as error:
            raise NoSuchPage(str(error)) from error
    entry = stored.entry
    attempts = [Attempt(each, _run(state, entry, attempt=each)) for each in entry.strategies_tried]
    details = {
        name: value
        for name, value in entry_details(stored).items()
        if value not in (None, "", 0, [], (), {})
    }
    return Page(
        "entry.html",
        {
            "title": entry.id,
            "folder": query["folder"],
            "name": state.project.name_of(folder),
            "entry": entry,
            "details": details,
            "attempts": attempts,
            "token": state.form_token,
            "live_ms": LIVE_MS if entry.status in ("running", "pending") else 0,
        },
    )


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


def _board(folder: Path) -> QueueBoard:
    with QueueView(folder) as queue:
        return queue.board(MAX_CARDS)


def _run(state: State, entry: QueueEntry, attempt: StrategyAttempt) -> str:
    """The address of the attempt's run, if the project's task folder has it."""
    found = _TASK.match(attempt.result)
    if found is None:
        return ""
    folder = state.project.id_of(state.project.root / "tasks")
    try:
        store = state.project.store(folder)
        header = store.read(int(found[1])).header
    except (EvaluatorError, OSError):
        return ""
    # Another folder's worker may have numbered its runs alike.
    is_same = (
        header is not None and mapping(header.extra.get("labels")).get(ENTRY_LABEL) == entry.id
    )
    if is_same:
        return f"/run/{folder}/{found[1]}"
    return ""
