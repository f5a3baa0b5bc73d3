"""A task file's steps as a tree, with the files of its subtasks below the steps that started them.

Each file is shown once, however often it is linked, and at most MAX_DEPTH files deep. A file that
is not followed, is missing or cannot be read is shown with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any

from evaluator.errors import RecordError
from evaluator.errors.messages import duration_text, visible
from evaluator.lazy_dataclass import dataclass, frozen
from evaluator.record.render import Painter, cost_text, tokens_text
from evaluator.record.steps import Recording, Step
from evaluator.record.store import TaskStore

MAX_DEPTH = 50


@frozen
class TaskNode:
    """A task file in the tree. `problem` is why there is no recording.

    `children` are the files of subtasks, by the step's index in the recording; only the topmost
    file has a `parent`.
    """

    id: int | None
    recording: Recording | None
    problem: str | None = None
    children: Mapping[int, TaskNode] = field(default_factory=dict[int, "TaskNode"])
    parent: TaskNode | None = None

    def to_dict(self) -> dict[str, Any]:
        """As JSON: `parent` is an id, and `subtask` in each step is such an object again, or
        null.
        """
        recording = self.recording
        if recording is None or recording.header is None:
            header = {}
        else:
            header = recording.header.to_dict()
        if recording is None or recording.summary is None:
            summary = {}
        else:
            summary = recording.summary.to_dict()
        return {
            "id": self.id,
            "status": None if recording is None else recording.status,
            "problem": self.problem,
            **{name: header.get(name) for name in ("parent", "template", "created")},
            **{name: summary.get(name) for name in ("duration_s", "usage")},
            "steps": []
            if recording is None
            else [self._step(*entry) for entry in enumerate(recording.steps)],
        }

    def _step(self, index: int, step: Step) -> dict[str, Any]:
        child = self.children.get(index)
        whole = step.to_dict()
        names = ("number", "path", "kind", "name", "attempt", "status", "duration_s", "usage")
        return {
            **{name: whole[name] for name in names},
            "subtask": None if child is None else child.to_dict(),
        }


def read_tree(store: TaskStore, recording: Recording) -> TaskNode:
    """The tree of `recording`, with its parent and subtasks from `store`."""
    own = None
    parent = None
    if recording.header is not None:
        own = recording.header.task_id
        parent = recording.header.parent
    seen = {number for number in (own, parent) if number is not None}
    above = None
    if parent is not None:
        above = _read(store, parent)
    return TaskNode(
        own,
        recording,
        problem=None,
        children=_children(store, recording, seen=seen, depth=1),
        parent=above,
    )


def _read(store: TaskStore, number: int) -> TaskNode:
    try:
        return TaskNode(number, store.read(number))
    except (RecordError, OSError) as error:
        return TaskNode(number, None, problem=str(error))


def _children(
    store: TaskStore, recording: Recording, seen: set[int], depth: int
) -> dict[int, TaskNode]:
    links = ((index, step.subtask_id) for index, step in enumerate(recording.steps))
    return {
        index: _child(store, number, seen=seen, depth=depth)
        for index, number in links
        if number is not None
    }


def _child(store: TaskStore, number: int, seen: set[int], depth: int) -> TaskNode:
    if number in seen:
        return TaskNode(number, None, problem="shown above")
    seen.add(number)
    if depth >= MAX_DEPTH:
        return TaskNode(number, None, problem=f"not followed: {MAX_DEPTH} files deep")
    found = _read(store, number)
    if found.recording is None:
        return found
    return TaskNode(
        number,
        found.recording,
        problem=None,
        children=_children(store, found.recording, seen=seen, depth=depth + 1),
    )


def render_tree(tree: TaskNode, colour: bool = False) -> str:
    """A line for each step, indented by its path; the parent's line first. Escaped as
    `render_text`.
    """
    painter = Painter(colour)
    lines = [_task_line(tree, painter)]
    if tree.parent is not None:
        lines.insert(0, f"{_task_line(tree.parent, painter)}  {painter.paint('(parent)', 'label')}")
    lines += _step_lines(tree, painter, indent="  ")
    return "\n".join(lines) + "\n"


def _task_line(node: TaskNode, painter: Painter) -> str:
    recording = node.recording
    if recording is None:
        return (
            f"{painter.paint(f'TASK-{node.id}', 'heading')}  "
            f"{visible(node.problem or '', one_line=True)}"
        )
    facts = [painter.title(recording)]
    if recording.header is not None and recording.header.template:
        facts.append(visible(recording.header.template, one_line=True))
    if recording.summary is not None:
        summary = recording.summary
        facts += _figures(summary.duration_s, summary.usage, summary.interrupted_calls)
    return "  ".join(facts)


def _step_lines(node: TaskNode, painter: Painter, indent: str) -> Iterator[str]:
    if node.recording is None:
        steps = ()
    else:
        steps = node.recording.steps
    for depth, label, index in step_rows(steps):
        margin = indent + "  " * depth
        label = painter.paint(visible(label, one_line=True), "label")
        if index is None:
            yield f"{margin}{label}"
            continue
        yield f"{margin}{label}  {_step_text(steps[index], painter)}"
        child = node.children.get(index)
        if child is not None:
            yield f"{margin}  {_task_line(child, painter)}"
            yield from _step_lines(child, painter, indent=margin + "    ")


def _step_text(step: Step, painter: Painter) -> str:
    start = step.start
    end = step.end
    name = visible(start.name, one_line=True)
    if step.is_retry:
        name = f"{name} (retry {start.attempt}/{start.max_attempts})"
    facts = [f"{step.number}", start.kind, name, painter.paint(step.status, step.status)]
    if end is not None:
        facts += _figures(end.duration_s, end.usage)
    return "  ".join(fact for fact in facts if fact)


def _figures(
    duration_s: float, usage: Mapping[str, Any] | None, interrupted_calls: int = 0
) -> list[str]:
    tokens = tokens_text(usage)
    cost = cost_text(usage, interrupted_calls)
    figures = [duration_text(duration_s)]
    if tokens:
        figures.append(f"{tokens} token" + ("" if tokens == "1" else "s"))
    if cost and cost != "?":
        figures.append(cost)
    return figures


@dataclass(slots=True)
class _Place:
    """A segment of the steps' paths: the steps at it, and the segments below it."""

    label: str
    steps: list[int] = field(default_factory=list[int])
    below: dict[str, _Place] = field(default_factory=dict[str, "_Place"])


def step_rows(steps: tuple[Step, ...]) -> Iterator[tuple[int, str, int | None]]:
    """Depth, label and step index (None for a segment without a step), from the top down."""
    top = _Place("")
    for index, step in enumerate(steps):
        place = top
        for part in step.start.path.split("/"):
            place = place.below.setdefault(part, _Place(part))
        place.steps.append(index)
    waiting = [(0, place) for place in reversed(top.below.values())]
    while waiting:
        depth, place = waiting.pop()
        labels = [place.label]
        while not place.steps and len(place.below) == 1:
            (place,) = place.below.values()
            labels.append(place.label)
        label = "/".join(labels)
        if not place.steps:
            yield depth, label, None
        for index in place.steps:
            yield depth, label, index
        waiting += [(depth + 1, below) for below in reversed(place.below.values())]
