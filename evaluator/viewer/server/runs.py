"""The list of runs, and one run."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, cast, get_args

from evaluator.errors import EvaluatorError, RecordError, UsageError
from evaluator.errors.results import Usage
from evaluator.fields.records import mapping_of
from evaluator.handler.backends import is_free_model, is_simulated_model
from evaluator.lazy_dataclass import frozen
from evaluator.record.conversation import RecordedConversation, conversations
from evaluator.record.recorded_steps import is_interrupted_call
from evaluator.record.render import total_usage
from evaluator.record.search import TaskFilter, models_of
from evaluator.record.steps import Recording, RunStatus, Step
from evaluator.record.store import TaskStore
from evaluator.record.task_folder import TaskSummary
from evaluator.record.tree import TaskNode, read_tree, step_rows
from evaluator.viewer.json_form import Page, Query
from evaluator.viewer.server.sources import (
    Bar,
    PromptSpan,
    Timeline,
    answer_sources,
    changes,
    enclosing,
    findings,
    input_sources,
    line_numbers,
    read_lines,
    spans,
)
from evaluator.viewer.server.state import (
    LIVE_MS,
    NoSuchPage,
    Project,
    ProjectFolders,
    State,
    minute,
    pretty,
    with_query,
)
from evaluator.viewer.server.templates import template_id

RUNS_PER_PAGE = 50
MAX_FILES = 5_000
"""Files that one request reads; a page says where it stopped, and the next continues there."""
MAX_ROWS = 2_000
MAX_STEPS = 1_000
MAX_CONVERSATIONS = 100
MAX_TEXT_CHARS = 500
MAX_PROMPTS = 50
"""Conversations, and messages of each, whose parts are shown with their sources."""
FILTERS = ("status", "template", "model", "since", "until", "cost", "text")


@frozen
class StepRow:
    """A line of the tree: a step, a subtask's file, or a part of a path. `bar` is its place on the
    time axis; None where it has no times. `index` is the step's place in the run's own file.
    """

    depth: int
    label: str
    path: str
    step: Step | None = None
    task: TaskNode | None = None
    index: int | None = None
    bar: Bar | None = None

    def to_dict(self, folder: str) -> dict[str, Any]:
        data: dict[str, Any] = {
            "depth": self.depth,
            "label": self.label,
            "path": self.path,
            "index": self.index,
            "bar": self.bar,
        }
        if self.task is not None:
            return data | _task_row(self.task, folder)
        if self.step is None:
            return data | {"kind": "group"}
        end = self.step.end
        return data | {
            "kind": self.step.start.kind,
            "status": self.step.status,
            "name": self.step.start.name,
            "attempt": self.step.start.attempt,
            "max_attempts": self.step.start.max_attempts,
            "wait_s": self.step.start.backoff_s,
            "cached": end is not None and bool(mapping_of(end.extra).get("cached")),
            "duration_s": None if end is None else end.duration_s,
            "usage": None if end is None else end.usage,
        }


def _task_row(task: TaskNode, folder: str) -> dict[str, Any]:
    recording = task.recording
    data: dict[str, Any] = {"kind": "task", "href": f"/run/{folder}/{task.id}"}
    if recording is None:
        return data | {"status": "unreadable", "problem": task.problem}
    return data | {
        "status": recording.status,
        "name": "" if recording.header is None else recording.header.template,
        "duration_s": None if recording.summary is None else recording.summary.duration_s,
        "usage": None if recording.summary is None else recording.summary.usage,
        "cost_is_bound": _has_interrupted_calls(recording),
    }


def runs_page(state: State, query: Query) -> Page:
    """Runs of a task folder, the newest first."""
    project = state.project
    folders = project.folders()
    chosen = query.get("folder") or _first(project, folders)
    conditions = {name: query.get(name, "").strip() for name in FILTERS}
    shown: dict[str, Any] = {
        "folders": [(key, project.name_of(path)) for key, path in folders.stores.items()],
        "chosen": chosen,
        "conditions": conditions,
        "statuses": get_args(RunStatus),
        "runs": [],
        "is_cut": folders.is_cut,
    }
    if chosen is None:
        return Page("runs", "Runs", shown)
    store = project.store(chosen)
    shown["name"] = project.name_of(store.root)
    try:
        listed = _listed(store, chosen, conditions, before=query.get("before", ""))
    except UsageError as error:
        return Page("runs", "Runs", shown | {"problem": str(error)})
    is_live = any(run["status"] == "running" for run in listed["runs"]) and "before" not in query
    return Page("runs", "Runs", shown | listed, live_ms=LIVE_MS if is_live else 0)


def _first(project: Project, folders: ProjectFolders) -> str | None:
    """The folder `tasks`, else the first one."""
    usual = project.id_of(project.root / "tasks")
    if usual in folders.stores:
        return usual
    return next(iter(folders.stores), None)


def _listed(
    store: TaskStore, folder: str, conditions: Mapping[str, str], before: str
) -> dict[str, Any]:
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
    older = ""
    if more is not None:
        older = with_query("/runs", folder=folder, before=more, **conditions)
    return {
        "runs": [run_data(task, folder) for task in found],
        "older": older,
        "searched": searched,
        "unnumbered": [
            {"name": name, "href": f"/run/{folder}/{name[5:-3]}"} for name in store.unnumbered()
        ],
    }


def run_data(task: TaskSummary, folder: str) -> dict[str, Any]:
    """A run in a list."""
    header = task.header
    summary = task.summary
    models = models_of(task)
    reason = task.error or (summary.reason if summary else None)
    return {
        "id": task.id,
        "href": f"/run/{folder}/{task.id}",
        "status": task.status,
        "template": "" if header is None else header.template,
        "text": (reason or ("" if header is None else header.request))[:MAX_TEXT_CHARS],
        "created": "" if header is None else minute(header.created),
        "duration_s": None if summary is None else summary.duration_s,
        "usage": None if summary is None else counted(summary.usage),
        "cost_is_bound": summary is not None and summary.interrupted_calls > 0,
        "models": models,
        "simulated": any(map(is_simulated_model, models)),
    }


def _has_interrupted_calls(recording: Recording) -> bool:
    """Whether calls that were in flight when a process ended may be billed too, so that the cost is
    a lower bound.
    """
    if recording.summary is not None:
        return recording.summary.interrupted_calls > 0
    return recording.status == "interrupted" and any(
        is_interrupted_call(step) and not is_free_model(step.start.name) for step in recording.steps
    )


def counted(usage: Any) -> Mapping[str, Any] | None:
    """The usage in a record with the figures that it leaves out, which are 0; None stays
    unknown.
    """
    if isinstance(usage, Mapping):
        return {**Usage().to_dict(), **mapping_of(usage)}
    return None


def _pattern(text: str) -> str | None:
    """A text without wildcards may be any part of the name."""
    if not text or any(sign in text for sign in "*?["):
        return text or None
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
    cost = mapping_of(None if task.summary is None else task.summary.usage).get("cost_usd")
    return float(cost) if isinstance(cost, (int, float)) else 0.0


def _text_of(task: TaskSummary) -> str:
    header = task.header
    summary = task.summary
    parts: list[Any] = [task.error, summary and summary.reason]
    if header is not None:
        parts += [header.request, header.template, pretty(header.inputs)]
    return "\n".join(str(part) for part in parts if part).casefold()


def run_page(state: State, query: Query) -> Page:
    """One run: its outcome, steps and conversations."""
    project = state.project
    folder = query["folder"]
    store = project.store(query["folder"])
    recording = store.read(_task(store, query["task"]))
    tree = read_tree(store, recording)
    rows = list(islice(_rows(tree, 0, timeline=Timeline(recording)), MAX_ROWS + 1))
    shown = _with_groups(rows[:MAX_ROWS])
    summary = recording.summary
    result = mapping_of(None if summary is None else summary.result)
    header = recording.header
    talks = conversations(recording)
    template, lines = _template(state, recording)
    if summary is None:
        usage = total_usage(recording.steps)
    else:
        usage = summary.usage
    models = () if summary is None else summary.models
    values = {
        "href": f"/run/{folder}/{query['task']}",
        "runs": f"/runs?folder={folder}",
        "attachments": f"/attachment/{folder}/",
        "name": project.name_of(store.root),
        "status": recording.status,
        "resume": _resume(project, store, recording),
        "created": "" if header is None else minute(header.created),
        "template": template,
        "parent": None,
        "summary": None if summary is None else {**summary.to_dict(), "result": None},
        "usage": counted(usage),
        "cost_is_bound": _has_interrupted_calls(recording),
        "simulated": any(map(is_simulated_model, models)),
        "warnings": recording.warnings,
        "resumptions": [
            {"at": minute(each.at), "allowed": each.allowed} for each in recording.resumptions
        ],
        "result": result,
        "findings": findings(result, project.root),
        "request": "" if header is None else header.request,
        "inputs": {} if header is None else header.inputs,
        "rows": [row.to_dict(folder) for row in shown],
        "axis_s": _axis_s(shown, recording),
        "is_cut": len(rows) > MAX_ROWS,
        "steps": [step.to_dict() for step in recording.steps[:MAX_STEPS]],
        "conversations": _talks(recording, talks, lines),
    }
    if header is not None and header.parent:
        values["parent"] = {"href": f"/run/{folder}/{header.parent}", "id": header.parent}
    is_live = recording.status == "running"
    return Page("run", f"TASK-{query['task']}", values, live_ms=LIVE_MS if is_live else 0)


def _resume(project: Project, store: TaskStore, recording: Recording) -> str:
    """The command that continues the run; empty where nothing is left to do."""
    if recording.header is None or recording.status not in ("interrupted", "failed", "aborted"):
        return ""
    return resume_command(project, store.root, recording.header.task_id)


def resume_command(project: Project, folder: Path, task: int) -> str:
    name = project.name_of(folder)
    option = "" if name == "tasks" else f"--tasks {shlex.quote(name)} "
    return f"evaluator tasks resume {option}{task}"


def _talks(
    recording: Recording, talks: Sequence[RecordedConversation], lines: Mapping[str, int]
) -> list[dict[str, Any]]:
    """The conversations by turn, each with the step that it is, the sources of its prompts and what
    changed between its attempts.
    """
    talks = talks[:MAX_CONVERSATIONS]
    places = {id(step): place for place, step in enumerate(recording.steps)}
    sources = _sources(recording, talks, lines=lines)
    changed = changes(recording, talks)
    return [
        {
            "path": talk.path,
            "model": talk.model,
            "settings": talk.settings,
            "turns": [
                {"step": places.get(id(turn.step)), "sent": turn.sent, "answer": turn.answer}
                for turn in talk.turns
            ],
            "unanswered": talk.to_dict()["unanswered"],
            "sources": sources.get(talk.path, {}),
            "changes": changed.get(talk.path, []),
        }
        for talk in talks
    ]


@frozen
class UsedTemplate:
    """The template of a run as the library has it now; `href` is empty if it has none of that name.
    `is_same`: as it was then.
    """

    name: str
    href: str
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
        template = None
    if template is None:
        return UsedTemplate(header.template, "", is_same=True), {}
    is_same = template.sha256 == header.template_sha256
    text: list[str] = []
    if is_same and template.file is not None:
        text = read_lines(Path(template.file))
    href = f"/template/{template_id(header.template)}"
    return UsedTemplate(header.template, href, is_same), line_numbers(text)


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
    above: list[str] = []
    for level, label, index in step_rows(steps):
        at = depth + level
        path = "/".join([*above[:level], label])
        above[level:] = [label]
        if index is None:
            yield StepRow(at, label, path)
            continue
        bar = timeline.of_step(steps[index], is_running=is_running)
        own = None if depth else index
        yield StepRow(at, label, path, step=steps[index], index=own, bar=bar)
        child = tree.children.get(index)
        if child is not None:
            bar = None
            if child.recording is not None:
                bar = timeline.of_task(child.recording)
            yield StepRow(at + 1, f"TASK-{child.id}", path, task=child, bar=bar)
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
