"""The file that an attempt delivers: the one that its answer names, else the last one that its
tools wrote.

Scripts and tools of other programs write files that nothing records; their answer names the file,
as `{"deliverable_path": "report.csv"}`. A file is below the roots of the evaluator, or it is not
delivered.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from evaluator.errors import ToolError
from evaluator.errors.results import TaskResult
from evaluator.interpreter.evaluator import Evaluator
from evaluator.record.tree import TaskNode, read_tree
from evaluator.tools.anthropic import TEXT_EDITOR

_WRITING = ("write_file", "edit_file", TEXT_EDITOR)


async def delivered_file(evaluator: Evaluator, outcome: TaskResult) -> Path | None:
    """The absolute path of the delivered file; None if the answer is all that there is.

    Raises: ToolError, if the answer names a file that does not exist or that tasks may not read.
    """
    files = evaluator.services.files
    named = answer_field(outcome, "deliverable_path")
    if named is not None:
        return await asyncio.to_thread(lambda: files.path_of(os.path.expanduser(named)))
    store = evaluator.services.store
    number = outcome.task_id
    if store is None or number is None or not outcome.usage.tool_calls:
        return None

    def last_file() -> Path | None:
        for path in reversed(list(_written(read_tree(store, store.read(number))))):
            try:
                return files.path_of(path)
            except ToolError:
                continue  # deleted since
        return None

    return await asyncio.to_thread(last_file)


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


def _written(tree: TaskNode) -> Iterator[str]:
    """The paths that tools wrote, in order, those of subtasks included."""
    for index, step in enumerate(() if tree.recording is None else tree.recording.steps):
        if step.start.kind == "tool" and step.start.name in _WRITING and step.status == "success":
            arguments: Mapping[str, Any] = step.start.args
            if arguments.get("command") != "view":
                yield str(arguments["path"])
        if index in tree.children:
            yield from _written(tree.children[index])
