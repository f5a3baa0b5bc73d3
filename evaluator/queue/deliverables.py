"""What an attempt delivers: its answer, and the file that the answer names, else the last one that
its tools wrote; and how the entries that follow see both.

Scripts and tools of other programs write files that nothing records; their answer names the file,
as `{"deliverable_path": "report.csv"}`. A file is below the roots of the evaluator, or it is not
delivered.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from evaluator import disk
from evaluator.errors import ToolError
from evaluator.errors.messages import cut
from evaluator.errors.results import Outcome, TaskResult
from evaluator.files.atomic import write_atomic
from evaluator.interpreter.evaluator import Evaluator
from evaluator.interpreter.frame import ContextItem
from evaluator.queue.entries import TOOL, QueueEntry
from evaluator.record.tree import TaskNode, read_tree
from evaluator.tools import FileAccess
from evaluator.tools.anthropic import TEXT_EDITOR

DELIVERABLES = "deliverables"
_MAX_FILE_CHARS = 100_000
_MAX_TOOL_CHARS = 200
_WRITING = ("write_file", "edit_file", TEXT_EDITOR)


async def delivered_file(evaluator: Evaluator, outcome: TaskResult) -> Path | None:
    """The absolute path of the delivered file; None if the answer is all that there is.

    Raises: ToolError, if the answer names a file that does not exist or that tasks may not read.
    """
    files = evaluator.services.files
    named = answer_field(outcome, "deliverable_path")
    if named is not None:
        return await asyncio.to_thread(lambda: files.path_of(os.path.expanduser(named)))
    if not outcome.usage.tool_calls:
        return None

    def last_file() -> Path | None:
        for path in reversed(list(_written(_tree(evaluator, outcome)))):
            try:
                return files.path_of(path)
            except ToolError:
                continue  # deleted since
        return None

    return await asyncio.to_thread(last_file)


async def tools_used(evaluator: Evaluator, outcome: Outcome) -> str:
    """The names of the tools that the task and its subtasks called, in the order of their first
    call; `script` for a script, `model` if a model answered without a tool.
    """
    tree = await asyncio.to_thread(_tree, evaluator, outcome)
    names = dict.fromkeys(_used(tree))
    if names:
        return cut(", ".join(names), _MAX_TOOL_CHARS)
    if outcome.notes.get("models"):
        return "model"
    return TOOL


def write_answer(folder: Path, entry_id: str, outcome: TaskResult) -> Path:
    """Stores the whole answer of an entry in the folder of its queue."""
    path = folder / DELIVERABLES / f"{entry_id}.md"
    disk.make_folders(path.parent, 0o700, sync=True)
    write_atomic(path, outcome.content.encode(errors="backslashreplace"))
    return path


def delivered_items(
    entries: Sequence[QueueEntry], folder: Path, evaluator: Evaluator
) -> tuple[ContextItem, ...]:
    """What these entries delivered, as context of an entry that follows them: of each its answer,
    with the path of its file, and the text of that file if tasks may read it.
    """
    items: dict[str, ContextItem] = {}
    own = FileAccess([folder])
    for entry in entries:
        stored = f"{DELIVERABLES}/{entry.id}.md"
        try:
            answer = own.read_text(stored).text
        except ToolError:
            answer = entry.deliverable or ""
        path = entry.deliverable_path
        is_file = path is not None and Path(path) != folder / stored
        shown = _limited(answer)
        if is_file:
            shown = f"{shown}\n\nFile: {path}"
        items[entry.id] = ContextItem(entry.id, shown)
        if is_file and path is not None:
            path = os.path.expanduser(path)
            source = f"file:{evaluator.services.files.name_of(path)}"
            try:
                text = evaluator.services.files.read_text(path).text
            except ToolError:
                continue  # an image, or a file that only its path tells of
            items[source] = ContextItem(source, _limited(text))
    return tuple(items.values())


def text_of(evaluator: Evaluator, path: Path) -> str:
    """The text of a delivered file, or in parentheses why it cannot be read."""
    try:
        return _limited(evaluator.services.files.read_text(path).text)
    except ToolError as error:
        return f"({error})"


def _limited(text: str) -> str:
    if len(text) <= _MAX_FILE_CHARS:
        return text
    return f"{text[:_MAX_FILE_CHARS]}\n({len(text):,} characters in all)"


def _tree(evaluator: Evaluator, outcome: Outcome) -> TaskNode:
    """The record of the task; empty if there is none."""
    store = evaluator.services.store
    number = outcome.task_id
    if store is None or number is None:
        return TaskNode(number, None)
    return read_tree(store, store.read(number))


def answer_field(outcome: TaskResult, name: str) -> str | None:
    """A text in an answer that is a JSON object."""
    answer = outcome.parsed_data
    if isinstance(answer, Mapping):
        value = cast("Mapping[str, object]", answer).get(name)
    else:
        value = None
    if isinstance(value, str) and value.strip():
        return value
    return None


def _used(tree: TaskNode) -> Iterator[str]:
    for index, step in enumerate(() if tree.recording is None else tree.recording.steps):
        if step.start.kind == "tool":
            yield step.start.name
        elif step.start.kind == "script":
            yield "script"
        if index in tree.children:
            yield from _used(tree.children[index])


def _written(tree: TaskNode) -> Iterator[str]:
    """The paths that tools wrote, in order, those of subtasks included."""
    for index, step in enumerate(() if tree.recording is None else tree.recording.steps):
        if step.start.kind == "tool" and step.start.name in _WRITING and step.status == "success":
            arguments: Mapping[str, Any] = step.start.args
            if arguments.get("command") != "view":
                yield str(arguments["path"])
        if index in tree.children:
            yield from _written(tree.children[index])
