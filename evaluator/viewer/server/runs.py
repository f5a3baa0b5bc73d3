"""The list of runs, and one run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, cast, get_args

from evaluator.errors import EvaluatorError, RecordError, UsageError
from evaluator.record.conversation import RecordedConversation, conversations
from evaluator.record.render import total_usage
from evaluator.record.search import TaskFilter, models_of
from evaluator.record.steps import Recording, RunStatus, Step
from evaluator.record.store import TaskStore, TaskSummary
from evaluator.record.tree import TaskNode, read_tree, step_rows
from evaluator.viewer.server.attempts import Bar, Timeline, changes, enclosing, percents
from evaluator.viewer.server.project import NoSuchPage, Project, ProjectFolders
from evaluator.viewer.server.rendering import Page, mapping, pretty
from evaluator.viewer.server.sources import (
    PromptSpan,
    answer_sources,
    findings,
    input_sources,
    line_numbers,
    read_lines,
    spans,
)
from evaluator.viewer.server.state import State
from evaluator.viewer.server.templates import template_id

RUNS_PER_PAGE = 50
MAX_FILES = 5_000
"""Files that one request reads; a page says where it stopped, and the next continues there."""
MAX_ROWS = 2_000
MAX_CONVERSATIONS = 50
MAX_PROMPTS = 50
"""Conversations, and messages of each, whose parts are shown with their sources."""
FILTERS = ("status", "template", "model", "since", "until", "cost", "text")
LIVE_MS = 2_000


@dataclass(frozen=True, slots=True)
class StepRow:
    """A line of the tree: a step, a subtask's file, or a part of a path. `bar` is its place on the
    time axis; None where it has no times.
    """

    depth: int
    label: str
    step: Step | None = None
    task: TaskNode | None = None
    anchor: str = ""
    bar: Bar | None = None


def runs_page(state: State, query: Mapping[str, str]) -> Page:
    """Runs of a task folder, the newest first."""
    project = state.project
    folders = project.folders()
    chosen = query.get("folder") or _first(project, folders)
    conditions = {name: query.get(name, "").strip() for name in FILTERS}
    shown: dict[str, Any] = {
        "title": "Runs",
        "folders": [(key, project.name_of(path)) for key, path in folders.stores.items()],
        "chosen": chosen,
        "conditions": conditions,
        "statuses": get_args(RunStatus),
        "runs": [],
        "more": None,
        "searched": 0,
        "unnumbered": [],
        "problem": "",
        "live_ms": 0,
        "models_of": models_of,
        "is_cut": folders.is_cut,
        "name": "",
    }
    if chosen is None:
        return Page("runs.html", shown)
    store = project.store(chosen)
    shown["name"] = project.name_of(store.root)
    try:
        shown |= _listed(store, conditions, before=query.get("before", ""))
    except UsageError as error:
        shown["problem"] = str(error)
    return Page("runs.html", shown)


def _first(project: Project, folders: ProjectFolders) -> str | None:
    """The folder `tasks`, else the first one."""
    usual = project.id_of(project.root / "tasks")
    if usual in folders.stores:
        return usual
    return next(iter(folders.stores), None)


def _listed(store: TaskStore, conditions: Mapping[str, str], before: str) -> dict[str, Any]:
    """Raises: UsageError, for a condition that is not valid."""
    wanted = TaskFilter(
        status=cast("RunStatus | None", conditions["status"] or None),
        template=_pattern(conditions["template"]),
        model=_pattern(conditions["model"]),
        since=conditions["since"] or None,
        until=conditions["until"] or None,
    )
    least = _cost(conditions["cost"])
    text = conditions["text"].casefold()
    if before and not (before.isascii() and before.isdigit() and len(before) <= 18):
        raise UsageError(f"before is {before[:50]!r}, expected a task id")
    found: list[TaskSummary] = []
    searched = 0
    more = None
    tasks: Iterator[TaskSummary] = store.list(
        status=wanted.status, before=int(before) if before else None
    )
    for task in tasks:
        if searched == MAX_FILES or len(found) == RUNS_PER_PAGE:
            more = task.id + 1
            break
        searched += 1
        if wanted.matches(task) and _costs(task) >= least and (not text or text in _text_of(task)):
            found.append(task)
    is_live = any(task.status == "running" for task in found) and not before
    return {
        "runs": found,
        "more": more,
        "searched": searched,
        "unnumbered": store.unnumbered(),
        "live_ms": LIVE_MS if is_live else 0,
    }


def _pattern(text: str) -> str | None:
    """A text without wildcards may be any part of the name."""
    if not text:
        return None
    if any(sign in text for sign in "*?["):
        return text
    return f"*{text}*"


def _cost(text: str) -> float:
    if not text:
        return float("-inf")
    try:
        return float(text.removeprefix("$"))
    except ValueError:
        raise UsageError(
            f"the least cost is {text[:50]!r}, expected US dollars, as in 0.05"
        ) from None


def _costs(task: TaskSummary) -> float:
    """The cost of an ended run; unknown costs count as 0 here, so that a least cost leaves them
    out.
    """
    cost = mapping(None if task.summary is None else task.summary.usage).get("cost_usd")
    if isinstance(cost, (int, float)):
        return float(cost)
    return 0.0


def _text_of(task: TaskSummary) -> str:
    header = task.header
    summary = task.summary
    parts: list[Any] = [task.error, summary and summary.reason]
    if header is not None:
        parts += [header.request, header.template, pretty(header.inputs)]
    return "\n".join(str(part) for part in parts if part).casefold()


def run_page(state: State, query: Mapping[str, str]) -> Page:
    """One run: its outcome, steps and conversations."""
    project = state.project
    folder = query["folder"]
    store = project.store(query["folder"])
    recording = store.read(_task(store, query["task"]))
    tree = read_tree(store, recording)
    rows = list(islice(_rows(tree, 0, timeline=Timeline(recording)), MAX_ROWS + 1))
    shown = _with_groups(rows[:MAX_ROWS])
    result = mapping(None if recording.summary is None else recording.summary.result)
    header = recording.header
    found = conversations(recording)
    template, lines = _template(state, recording)
    return Page(
        "run.html",
        {
            "title": f"TASK-{query['task']}",
            "folder": folder,
            "name": project.name_of(store.root),
            "recording": recording,
            "header": header,
            "summary": recording.summary,
            "result": result,
            "notes": mapping(result.get("notes")),
            "findings": findings(result, project.root),
            "usage": recording.summary.usage if recording.summary else total_usage(recording.steps),
            "tree": tree,
            "rows": shown,
            "axis_s": _axis_s(shown, recording),
            "percents": percents,
            "is_cut": len(rows) > MAX_ROWS,
            "conversations": found,
            "template": template,
            "sources": _sources(recording, found[:MAX_CONVERSATIONS], lines=lines),
            "changes": changes(recording, found[:MAX_CONVERSATIONS]),
            "parses": [step for step in recording.steps if step.start.kind == "parse"],
            "live_ms": LIVE_MS if recording.status == "running" else 0,
        },
    )


@dataclass(frozen=True, slots=True)
class UsedTemplate:
    """The template of a run as the library has it now. `is_same`: as it was then."""

    id: str
    is_same: bool


def _template(state: State, recording: Recording) -> tuple[UsedTemplate | None, dict[str, int]]:
    """The template of a run, if there is one of that name, and the numbers of its lines, if it has
    not changed.
    """
    header = recording.header
    if header is None or header.template is None:
        return None, {}
    try:
        template = state.library.read().templates.get(header.template)
    except (EvaluatorError, OSError):
        return None, {}
    if template is None:
        return None, {}
    is_same = template.sha256 == header.template_sha256
    if is_same and template.file is not None:
        text = read_lines(Path(template.file))
    else:
        text = []
    return UsedTemplate(template_id(header.template), is_same), line_numbers(text)


def _sources(
    recording: Recording, found: Sequence[RecordedConversation], lines: Mapping[str, int]
) -> dict[str, dict[int, list[PromptSpan]]]:
    """The parts of each system and user message, by the conversation's path and the message's
    place.
    """
    inputs = input_sources({} if recording.header is None else recording.header.inputs)
    marked: dict[str, dict[int, list[PromptSpan]]] = {}
    for number, conversation in enumerate(found):
        known = [*inputs, *answer_sources(found[:number])]
        for place, message in enumerate(conversation.messages[:MAX_PROMPTS]):
            content = message.get("content")
            if message.get("role") in ("system", "user") and isinstance(content, str):
                marked.setdefault(conversation.path, {})[place] = spans(content, known, lines=lines)
    return marked


def _task(store: TaskStore, name: str) -> Path | int:
    """What `store.read` takes for a task. Raises: NoSuchPage."""
    if name.isascii() and name.isdigit() and len(name) <= 18:
        try:
            store.check(int(name))
        except RecordError as error:
            raise NoSuchPage(str(error)) from error
        return int(name)
    if f"TASK-{name}.md" in store.unnumbered():
        return store.root / f"TASK-{name}.md"
    raise NoSuchPage(f"{store.root}: there is no task {name[:100]!r}")


def _rows(tree: TaskNode, depth: int, timeline: Timeline) -> Iterator[StepRow]:
    recording: Recording | None = tree.recording
    if recording is None:
        return
    steps = recording.steps
    is_running = recording.status == "running"
    for level, label, index in step_rows(steps):
        at = depth + level
        if index is None:
            yield StepRow(at, label)
            continue
        bar = timeline.of_step(steps[index], is_running=is_running)
        yield StepRow(
            at, label, step=steps[index], anchor="" if depth else f"step-{index}", bar=bar
        )
        child = tree.children.get(index)
        if child is not None:
            if child.recording is None:
                bar = None
            else:
                bar = timeline.of_task(child.recording)
            yield StepRow(at + 1, f"TASK-{child.id}", task=child, bar=bar)
            yield from _rows(child, at + 2, timeline=timeline)


def _with_groups(rows: list[StepRow]) -> list[StepRow]:
    """Adds the bars of parts of paths: from the start of the first step below to the end of the
    last one.
    """
    found: list[StepRow] = []
    for place, row in enumerate(rows):
        if row.step is None and row.task is None:
            below = takewhile(
                lambda each, depth=row.depth: each.depth > depth, islice(rows, place + 1, None)
            )
            row = replace(row, bar=enclosing(each.bar for each in below if each.bar is not None))
        found.append(row)
    return found


def _axis_s(rows: list[StepRow], recording: Recording) -> float:
    """The length of the axis: to the end of the last bar, and of the run itself if one process ran
    all of it.
    """
    whole = enclosing(row.bar for row in rows if row.bar is not None)
    if whole is None:
        return 0.0
    is_whole = recording.summary is not None and not recording.resumptions
    return max(whole.end_s, recording.summary.duration_s if is_whole and recording.summary else 0.0)
