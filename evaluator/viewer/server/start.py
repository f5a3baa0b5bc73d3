"""The start page: the project at a glance, and the search over everything in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from evaluator import clock
from evaluator.batch.folder import BatchFolder
from evaluator.errors import EvaluatorError
from evaluator.fields.records import items_of, mapping_of
from evaluator.queue import EntryStatus, QueueEntry, QueueView
from evaluator.record.steps import INTERRUPTED_CALLS
from evaluator.record.store import TaskStore
from evaluator.record.task_folder import TaskSummary
from evaluator.viewer.json_form import Page, Query
from evaluator.viewer.server.batches import BatchEntry, entries, entry_data
from evaluator.viewer.server.matrix import MatrixQuery
from evaluator.viewer.server.progress import live_session
from evaluator.viewer.server.queues import MAX_CARD_CHARS, background_tasks
from evaluator.viewer.server.runs import resume_command, run_data
from evaluator.viewer.server.state import State
from evaluator.viewer.server.templates import templates_page

LIVE_MS = 3_000
IDLE_MS = 15_000
_SHARE = 100
"""The page takes at most a 100th of a processor's time."""
MAX_SHOWN = 8
MAX_TREND = 12
MAX_FILES = 500
"""Task files that the page reads in each folder, the newest first."""
MAX_HITS = 10
MAX_SEARCHED_BATCHES = 4
_WEEK = timedelta(days=7)


def start_page(state: State, query: Query) -> Page:
    """What runs now, what needs a person, the last batches and runs, and the cost of the week."""
    begun_s = clock.cpu()
    project = state.project
    found = entries(state)
    batches = [entry_data(entry) for entry in found]
    running = [
        batch
        for entry, batch in zip(found, batches, strict=True)
        if batch.get("state") == "running" and entry.batch and live_session(entry.batch)
    ]
    is_now = {batch["id"] for batch in running}
    runs = list(_runs(state))
    recent = [run for run, _ in runs]
    tasks, problems = background_tasks(state)
    now = {
        "batches": running,
        "runs": [run for run in recent if run["status"] == "running"][:MAX_SHOWN],
        "tasks": [task for task in tasks if not task["has_ended"]][:MAX_SHOWN],
    }
    values = {
        "has_anything": bool(batches or runs or project.folders().queues or tasks),
        "running": now,
        "attention": {
            "batches": [
                batch
                for batch in batches
                if batch["problem"] or (batch.get("unfinished") and batch["id"] not in is_now)
            ][:MAX_SHOWN],
            "runs": [run for run in recent if run["status"] in _STOPPED][:MAX_SHOWN],
            "entries": list(islice(_blocked(state), MAX_SHOWN)),
            "tasks": [task for task in tasks if task["is_waiting"]][:MAX_SHOWN],
            "problems": problems,
        },
        "batches": batches[:MAX_SHOWN],
        "trends": _trends(batches),
        "runs": recent[:MAX_SHOWN],
        "cost": _cost_of_week(found, runs),
    }
    is_live = any(now.values())
    cost_ms = round(1_000 * (clock.cpu() - begun_s))
    live_ms = max(LIVE_MS if is_live else IDLE_MS, _SHARE * cost_ms)
    return Page("start", project.title, values, live_ms=live_ms)


_STOPPED = ("interrupted", "failed", "aborted", "unreadable")


def _runs(state: State) -> Iterator[tuple[dict[str, Any], TaskSummary]]:
    """The newest runs of the task folders, without subtasks."""
    found: list[tuple[dict[str, Any], TaskSummary]] = []
    for key, path in state.project.folders().stores.items():
        try:
            for task in islice(TaskStore(path).list(), MAX_FILES):
                if task.header is not None and task.header.parent:
                    continue
                run = run_data(task, key)
                if run["status"] in _STOPPED and task.header is not None:
                    run["resume"] = resume_command(state.project, path, task.id)
                found.append((run, task))
        except (EvaluatorError, OSError):
            continue
    return iter(sorted(found, key=lambda each: each[0]["created"], reverse=True))


def _blocked(state: State) -> Iterator[dict[str, Any]]:
    """The entries of queues that a person has to do something about."""
    for href, entry in _entries(state, "blocked"):
        yield {
            "id": entry.id,
            "href": href,
            "description": entry.description[:MAX_CARD_CHARS],
            "reason": entry.blocked_reason or "",
            "action": entry.user_action_required or "",
        }


def _entries(state: State, status: EntryStatus | None = None) -> Iterator[tuple[str, QueueEntry]]:
    """The entries of the queues that can be read, each with its address."""
    for key, path in state.project.folders().queues.items():
        try:
            with QueueView(path) as queue:
                listed = queue.list(status)
        except (EvaluatorError, OSError):
            continue
        for entry in listed:
            yield f"/queue/{key}/{entry.id}", entry


def _trends(batches: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The shares that passed in complete batches of the same name, the oldest first; by name, for
    names with several.
    """
    by_name: dict[str, list[dict[str, Any]]] = {}
    for batch in reversed(batches):
        groups = batch.get("groups") or []
        if groups and groups[0]["estimate"].get("mean") is not None:
            point = {"href": batch["href"], "created": batch["created"], **groups[0]}
            by_name.setdefault(batch["title"], []).append(point)
    return {name: points[-MAX_TREND:] for name, points in by_name.items() if len(points) > 1}


def _cost_of_week(
    found: list[BatchEntry], runs: list[tuple[dict[str, Any], TaskSummary]]
) -> dict[str, Any]:
    """What batches and runs of the last seven days cost, as far as it is known. `is_bound`: calls
    that were in flight when a process ended may be billed too.
    """
    since = datetime.fromtimestamp(clock.wall(), UTC) - _WEEK
    known = 0.0
    unknown = 0
    count = 0
    is_bound = False
    for entry in found:
        if entry.batch is None or not _is_after(entry.created, since):
            continue
        count += 1
        spendings = _spendings_of(entry.batch.folder)
        cost = _cost_of(spendings)
        known += cost or 0.0
        unknown += cost is None
        is_bound |= any(spending.get(INTERRUPTED_CALLS) for spending in spendings)
    for run, task in runs:
        if task.header is None or not _is_after(task.header.created, since):
            continue
        count += 1
        is_bound |= run["cost_is_bound"]
        cost = mapping_of(run["usage"]).get("cost_usd")
        if isinstance(cost, (int, float)):
            known += cost
        else:
            unknown += 1
    return {"known_usd": known, "unknown": unknown, "count": count, "is_bound": is_bound}


def _spendings_of(folder: Path) -> list[Mapping[str, Any]]:
    """The spending of each group of a batch."""
    summary = mapping_of(BatchFolder.reader(folder).summary())
    return [
        mapping_of(mapping_of(group).get("spending")) for group in items_of(summary.get("groups"))
    ]


def _cost_of(spendings: list[Mapping[str, Any]]) -> float | None:
    """What all groups cost with their judges; None if that is not known of all results, or no
    session has written the numbers yet.
    """
    if not spendings:
        return None
    total = 0.0
    for spending in spendings:
        for name in ("cost_usd", "scoring_cost_usd"):
            spent = mapping_of(spending.get(name))
            if spent.get("known_for") != spent.get("of"):
                return None
            total += float(spent.get("known") or 0.0)
    return total


def _is_after(time: str, since: datetime) -> bool:
    try:
        moment = datetime.fromisoformat(time)
    except ValueError:
        return False
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return moment >= since


def search_page(state: State, query: Query) -> Page:
    """What has a text in its name or its content: batches, samples of the last batches, runs,
    templates, entries of queues and background tasks.
    """
    text = query.get("text", "").strip()
    found = _hits(state, text.casefold()) if text else ()
    groups = [each for each in found if each["hits"]]
    return Page("search", "Search", {"text": text, "groups": groups})


def _hit(href: str, title: str, text: str) -> dict[str, str]:
    return {"href": href, "title": title, "text": text}


def _hits(state: State, text: str) -> Iterator[dict[str, Any]]:
    found = entries(state)
    batches = [entry_data(entry) for entry in found]
    named = [
        _hit(batch["href"], batch["name"], ", ".join(batch["templates"]))
        for batch in batches
        if "href" in batch
        and text in f"{batch['name']} {batch['title']} {batch['templates']}".casefold()
    ]
    yield {"title": "Batches", "hits": named[:MAX_HITS]}
    for entry in [each for each in found if each.batch is not None][:MAX_SEARCHED_BATCHES]:
        yield _sample_hits(state, entry, text)
    runs = [
        _hit(run["href"], f"TASK-{run['id']}", f"{run['template']} {run['text']}")
        for run, task in _runs(state)
        if text in f"{run['id']} {run['template']} {run['text']}".casefold()
        or (task.header is not None and text in str(task.header.inputs).casefold())
    ]
    yield {"title": "Runs", "hits": runs[:MAX_HITS]}
    templates = [
        _hit(row["href"], row["name"], row["description"])
        for row in templates_page(state, {}).values["rows"]
        if text in f"{row['name']} {row['description']}".casefold()
    ]
    yield {"title": "Templates", "hits": templates[:MAX_HITS]}
    queued = (
        _hit(href, entry.id, entry.description[:MAX_CARD_CHARS])
        for href, entry in _entries(state)
        if text in f"{entry.id} {entry.description}".casefold()
    )
    yield {"title": "Queue", "hits": list(islice(queued, MAX_HITS))}
    tasks = [
        _hit(task["href"], task["id"], task["description"])
        for task in background_tasks(state)[0]
        if text in f"{task['id']} {task['description']}".casefold()
    ]
    yield {"title": "Background tasks", "hits": tasks[:MAX_HITS]}


def _sample_hits(state: State, entry: BatchEntry, text: str) -> dict[str, Any]:
    hits: list[dict[str, Any]] = []
    batch = entry.batch
    if batch is None:
        return {"title": "", "hits": hits}
    matrix = state.matrix(batch.folder)
    left_out = batch.manifest.get("left_out", ())
    matrix.index.update(batch.cells, left_out, wait_s=state.wait_s, with_texts=True)
    samples = matrix.select(MatrixQuery(text=text), batch.cells).samples
    for sample in samples[:MAX_HITS]:
        row = matrix.index.results_of(sample)[0]
        result = matrix.index.result(row)
        href = f"/sample/{entry.id}/{matrix.index.key(row)}"
        hits.append(_hit(href, result.title, result.content[:MAX_CARD_CHARS]))
    more = f"/batch/{entry.id}?{urlencode({'text': text})}"
    return {"title": f"Samples of {entry.name}", "hits": hits, "more": more, "count": len(samples)}
