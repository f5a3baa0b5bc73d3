"""What an attempt delivers: its answer, and the file that the answer names, else the last one that
its tools wrote; and how the entries that follow see both.

Scripts and tools of other programs write files that nothing records; their answer names the file,
as `{"deliverable_path": "report.csv"}`. A file is below the roots of the evaluator, or it is not
delivered.

Verification of an attempt's result: what a check receives, and the check by a grader template.

A result that no check refuses is verified if its task is COMPLETE; its declared output format was
checked already.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

from evaluator import disk
from evaluator.errors import ToolError, UsageError, machine_error
from evaluator.errors.messages import cut
from evaluator.errors.results import Outcome, TaskError, TaskResult
from evaluator.files.atomic import write_atomic
from evaluator.interpreter.evaluation import evaluation_of
from evaluator.interpreter.evaluator import Evaluator
from evaluator.interpreter.frame import ContextItem
from evaluator.jobs.entries import TOOL, QueueEntry
from evaluator.lazy_dataclass import frozen
from evaluator.nodes import Function, Task
from evaluator.record.steps import Step
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
    names: dict[str, None] = {}
    for step in _steps(tree):
        if step.start.kind == "tool":
            names[step.start.name] = None
        elif step.start.kind == "script":
            names["script"] = None
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
        if isinstance(value, str) and value.strip():
            return value
    return None


def _steps(tree: TaskNode) -> Iterator[Step]:
    """The steps, in order, those of subtasks included."""
    for index, step in enumerate(() if tree.recording is None else tree.recording.steps):
        yield step
        if index in tree.children:
            yield from _steps(tree.children[index])


def _written(tree: TaskNode) -> Iterator[str]:
    """The paths that tools wrote."""
    for step in _steps(tree):
        if step.start.kind == "tool" and step.start.name in _WRITING and step.status == "success":
            arguments: Mapping[str, Any] = step.start.args
            if arguments.get("command") != "view":
                yield str(arguments["path"])


class EvaluateForVerifier(Protocol):
    """Evaluates a template for a check, as `Evaluator.evaluate` does."""

    def __call__(
        self,
        template: str,
        inputs: Mapping[str, Any],
        *,
        model_roles: Mapping[str, str] | None = None,
        epoch: int = 1,
    ) -> Awaitable[Outcome]: ...


@frozen
class ResultToVerify:
    """The result of an attempt. `evaluate`: as `Evaluator.evaluate`, for evaluations that a check
    makes; after an interruption they are resumed. `file`: the file that is delivered, None if the
    answer is all that there is.
    """

    entry: QueueEntry
    template: str
    inputs: Mapping[str, Any]
    outcome: TaskResult
    evaluator: Evaluator
    evaluate: EvaluateForVerifier
    file: Path | None = None


class Verifier(Protocol):
    """Checks a result: None if it is what the entry asks for, else one sentence about what is
    wrong.
    """

    async def __call__(self, result: ResultToVerify) -> str | None: ...


class GraderVerifier:
    """A template that grades: it gets those of its inputs that are named in `INPUTS`, and answers
    with `success`, true or false, and `feedback`, as an evaluator of a `director_evaluator_loop`
    does. `file` is the text of the file that is delivered, empty if there is none.

    Raises: UsageError or TemplateError, if the template cannot be used or needs other inputs.
    """

    INPUTS = ("description", "goal", "answer", "criteria", "template", "inputs", "file")

    def __init__(self, evaluator: Evaluator, template: str) -> None:
        self.template = template
        node = evaluator.library.get(template).node
        if isinstance(node, Function):
            raise UsageError(f"{template!r} is a function; a grader is a task")
        self._inputs = [declared.name for declared in node.inputs if declared.name in self.INPUTS]
        for i in node.inputs:
            if i.required and i.default is None and i.name not in self.INPUTS:
                raise UsageError(
                    f"the grader {template!r} needs the input {i.name!r}; a grader may need "
                    f"{', '.join(self.INPUTS)}"
                )

    async def __call__(self, result: ResultToVerify) -> str | None:
        entry = result.entry
        node = result.evaluator.library.get(result.template).node
        values: dict[str, Any] = {
            "description": entry.description,
            "goal": entry.goal,
            "answer": result.outcome.content,
            "criteria": "",
            "template": result.template,
            "inputs": dict(result.inputs),
            "file": "",
        }
        if isinstance(node, Task) and node.criteria is not None:
            values["criteria"] = node.criteria.value
        if "file" in self._inputs and result.file is not None:
            values["file"] = await asyncio.to_thread(text_of, result.evaluator, result.file)
        inputs = {name: values[name] for name in self._inputs}
        graded = await result.evaluate(self.template, inputs)
        if isinstance(graded, TaskError):
            return f"the grader {self.template!r} failed: {graded}"
        evaluation, _ = evaluation_of(graded)
        if evaluation["success"]:
            return None
        return (
            evaluation["feedback"] or f"the grader {self.template!r} says that it is not a success"
        )


async def failure_of(verifiers: Sequence[Verifier], result: ResultToVerify) -> str | None:
    """What the first check that refuses the result says; None if none does. A check that fails
    refuses it.

    Raises: MachineError.
    """
    if not result.outcome.ok:
        return f"the task ended with {result.outcome.status.value}, not COMPLETE"
    for verify in verifiers:
        try:
            found = await verify(result)
        except Exception as error:
            if (trouble := machine_error(error)) is not None:
                raise trouble from error
            return f"the check {verify!r:.100} failed: {type(error).__name__}: {error}"
        if found is not None:
            return found
    return None
