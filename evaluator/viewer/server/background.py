"""Background tasks: the list, one task with its output as it grows, and its kill.

A page shows the end of an output, never all of it. The file is the one in the folder of the tasks,
whatever path their database names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from evaluator import clock
from evaluator.background import BackgroundStore, BackgroundTask
from evaluator.background.manager import with_tasks
from evaluator.background.output import read_output, window_start
from evaluator.background.tasks import TYPES
from evaluator.errors import UsageError
from evaluator.lazy_dataclass import dataclass
from evaluator.viewer.json_form import Page
from evaluator.viewer.server.state import NoSuchPage, State

MAX_TASKS = 500
WINDOW_BYTES = 64_000
LIVE_MS = 2_000
OUTPUT_MS = 1_000
KILL_WAIT_S = 5.0
_REASON = "killed in the viewer"


@dataclass(frozen=True, slots=True)
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
    return {
        "id": task.id,
        "href": f"/background/{folder}/{task.id}",
        "status": task.status,
        "has_ended": task.has_ended,
        "is_waiting": task.is_waiting,
        "type": TYPES[task.type],
        "description": task.description,
        "created": _minute(task.created_at),
        "duration_s": _duration(task),
        "input_tokens": task.input_tokens,
        "output_tokens": task.output_tokens,
        "reason": task.reason,
    }


def background_page(state: State, query: Mapping[str, str]) -> Page:
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


def task_page(state: State, query: Mapping[str, str]) -> Page:
    """One task: its state, the end of its output, and the form that kills it."""
    folder = state.project.background(query["folder"])
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


def kill_task(state: State, query: Mapping[str, str]) -> str:
    """Kills a task of any process with everything that it started.

    Returns: the address of its page. Raises: UsageError, without the form's token or the
    confirmation.
    """
    state.check_confirmed(query, "the kill")
    folder = state.project.background(query["folder"])
    with_tasks(folder, lambda tasks: tasks.kill(query["task"], _REASON, KILL_WAIT_S))
    return f"/background/{query['folder']}/{query['task']}"


def _duration(task: BackgroundTask) -> float | None:
    if task.started_at is None:
        return None
    return (clock.wall() if task.ended_at is None else task.ended_at) - task.started_at


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
    if isinstance(found, dict):
        return cast("dict[str, Any]", found)
    return line
