"""A queue as a board, one of its entries, and the two actions of a person on an entry: retry and
skip. Background tasks: the list, one task with its output as it grows, and its kill.

A page shows the end of an output, never all of it. The file is the one in the folder of the tasks,
whatever path their database names.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from evaluator import clock
from evaluator.background import BackgroundStore, BackgroundTask
from evaluator.errors import EvaluatorError, UsageError
from evaluator.fields.records import mapping_of
from evaluator.handler.backends import is_simulated_model
from evaluator.jobs.attempt_runs import ENTRY_LABEL
from evaluator.jobs.background_tasks import with_tasks
from evaluator.jobs.output import read_output, window_start
from evaluator.jobs.queue_view import DATABASE, entry_details
from evaluator.jobs.tasks import TYPES
from evaluator.lazy_dataclass import frozen
from evaluator.queue import QueueEntry, QueueView, StrategyAttempt, TaskQueue
from evaluator.viewer.json_form import Page, Query
from evaluator.viewer.server.state import COMPUTING_MS, LIVE_MS, NoSuchPage, State, minute

MAX_CARDS = 50
MAX_CARD_CHARS = 200
_TASK = re.compile(r"TASK-([0-9]{1,18}): ")


def queue_page(state: State, query: Query) -> Page:
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
    folder = project.find("queues", chosen)
    board = state.boards.get(folder, _version(folder), lambda: _board(state, folder, chosen))
    if board.is_current:
        live_ms = LIVE_MS
    else:
        live_ms = COMPUTING_MS
    return Page("queue", "Queue", shown | {"board": board}, live_ms=live_ms)


def entry_page(state: State, query: Query) -> Page:
    """One entry: what was tried and delivered, what it waits for, and what can be done."""
    folder = state.project.find("queues", query["folder"])
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
    is_live = entry.status in ("running", "pending")
    return Page("entry", entry.id, values, live_ms=LIVE_MS if is_live else 0)


def change_entry(state: State, query: Query) -> str:
    """Retries a blocked entry or skips a pending one.

    Returns: the address of its page. Raises: UsageError, without the form's token or the
    confirmation, or if the entry is in another state.
    """
    state.check_confirmed(query, "the change")
    folder = state.project.find("queues", query["folder"])
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
    if header is None or mapping_of(header.extra.get("labels")).get(ENTRY_LABEL) != entry.id:
        return nothing
    if recording.summary is None:
        models = ()
    else:
        models = recording.summary.models
    return {
        "href": f"/run/{folder}/{found[1]}",
        "simulated": any(map(is_simulated_model, models)),
    }


MAX_TASKS = 500
WINDOW_BYTES = 64_000
OUTPUT_MS = 1_000
KILL_WAIT_S = 5.0
_REASON = "killed in the viewer"


@frozen
class Window:
    """The end of an output: as text, or as the records of a transcript. `before` are the bytes that
    are not shown.
    """

    text: str = ""
    records: tuple[Any, ...] = ()
    before: int = 0
    problem: str = ""


def background_tasks(state: State) -> tuple[list[dict[str, Any]], list[str]]:
    """The tasks of all folders, those that run first, then the newest; and the folders that cannot
    be read.
    """
    found: list[tuple[str, BackgroundTask]] = []
    problems: list[str] = []
    for key, path in state.project.folders().background.items():
        try:
            with BackgroundStore(path, is_snapshot=True) as store:
                found += [(key, store.as_seen(task)) for task in store.list()]
        except Exception as error:  # a database that cannot be read leaves the other folders
            problems.append(f"{state.project.name_of(path)}: {error}")
    found.sort(key=lambda each: (not each[1].has_ended, each[1].created_at), reverse=True)
    return [_row(key, task) for key, task in found], problems


def _row(folder: str, task: BackgroundTask) -> dict[str, Any]:
    duration_s: float | None = None
    if task.started_at is not None:
        duration_s = (clock.wall() if task.ended_at is None else task.ended_at) - task.started_at
    return {
        "id": task.id,
        "href": f"/background/{folder}/{task.id}",
        "status": task.status,
        "has_ended": task.has_ended,
        "is_waiting": task.is_waiting,
        "type": TYPES[task.type],
        "description": task.description,
        "created": _minute(task.created_at),
        "duration_s": duration_s,
        "input_tokens": task.input_tokens,
        "output_tokens": task.output_tokens,
        "reason": task.reason,
    }


def background_page(state: State, query: Query) -> Page:
    """The tasks of all folders."""
    rows, problems = background_tasks(state)
    values = {
        "rows": rows[:MAX_TASKS],
        "total": len(rows),
        "has_folders": bool(state.project.folders().background),
        "problems": problems,
    }
    is_live = any(not row["has_ended"] for row in rows)
    return Page("background", "Background tasks", values, live_ms=LIVE_MS if is_live else 0)


def task_page(state: State, query: Query) -> Page:
    """One task: its state, the end of its output, and the form that kills it."""
    folder = state.project.find("background", query["folder"])
    try:
        with BackgroundStore(folder, is_snapshot=True) as store:
            task = store.as_seen(store.get(query["task"]))
    except UsageError as error:
        raise NoSuchPage(str(error)) from error
    number = (task.task_file or "").removeprefix("TASK-")
    run = ""
    if number.isdigit():
        run = f"/run/{state.project.id_of(folder.parent)}/{number}"
    values = {
        **_row(query["folder"], task),
        "name": state.project.name_of(folder),
        "exit_code": task.exit_code,
        "signal": task.signal,
        "process": task.owner.pid,
        "kill_reason": task.kill_reason,
        "summary": task.summary,
        "task_file": task.task_file,
        "run": run,
        "window": _window(folder, task),
        "token": state.form_token,
    }
    return Page("task", task.id, values, live_ms=0 if task.has_ended else OUTPUT_MS)


def kill_task(state: State, query: Query) -> str:
    """Kills a task of any process with everything that it started.

    Returns: the address of its page. Raises: UsageError, without the form's token or the
    confirmation.
    """
    state.check_confirmed(query, "the kill")
    folder = state.project.find("background", query["folder"])
    with_tasks(folder, lambda tasks: tasks.kill(query["task"], _REASON, KILL_WAIT_S))
    return f"/background/{query['folder']}/{query['task']}"


def _minute(seconds: float) -> str:
    """A moment in seconds since 1970, in UTC as the other times are."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")


def _window(folder: Path, task: BackgroundTask) -> Window:
    path = folder / Path(task.output_file).name
    try:
        size = path.stat(follow_symlinks=False).st_size
        is_transcript = path.suffix == ".jsonl"
        start = max(0, size - WINDOW_BYTES, window_start(path) if is_transcript else 0)
        data = read_output(path, start, max_bytes=WINDOW_BYTES)
    except OSError as error:
        return Window(problem=f"the output cannot be read: {error.strerror}")
    if (start and not is_transcript) or start == size - WINDOW_BYTES:
        # Begins with a whole line, unless there is none.
        cut = data.find(b"\n") + 1
        start = start + cut
        data = data[cut:]
    text = data.decode("utf-8", "replace")
    if not is_transcript:
        return Window(text, before=start)
    return Window(records=tuple(_record(line) for line in text.splitlines()), before=start)


def _record(line: str) -> Any:
    """A line of a transcript as a JSON object, or else as it is."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return line
    return cast("dict[str, Any]", found) if isinstance(found, dict) else line
