"""Runs of earlier sessions that no result has, in a batch that is complete without them: what they
have used counts as the spending of earlier runs, unless a later session continues them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from evaluator.batch.folder import BatchFolder
from evaluator.errors import RecordError
from evaluator.errors.results import Usage
from evaluator.fields.records import mapping_of
from evaluator.handler.backends import is_free_model
from evaluator.record.recorded_steps import is_interrupted_call
from evaluator.record.steps import INTERRUPTED_CALLS
from evaluator.record.store import TaskStore
from evaluator.record.tree import TaskNode, read_tree


def abandoned_runs(
    store: TaskStore,
    unrecorded: Mapping[str, int],
    folder: BatchFolder,
    before: Iterable[Any] = (),
) -> list[dict[str, Any]]:
    """The runs of earlier sessions that no sample of a complete batch continues: its row, template
    or model was changed before it had a result, its row was removed, or a command skipped it; or
    its result is still the error that the run was to replace. Runs of judges, too, where the
    scorers were changed before the score was stored. A result that another one has replaced is a
    result too: its own line says what it used.

    Each has its `label` and `task_id`, the `usage` of its calls as far as that is recorded, and
    `interrupted_calls`, which were in flight when a process ended and may be billed too. `before`
    are those in the manifest: where a task file can no longer be read, its run has the usage that
    is stored there, as a lower bound.
    """
    stored = {_label_and_task(run): mapping_of(run).get("usage") for run in before}
    recorded = folder.index().by_identity()
    left: list[tuple[str, int]] = []
    for label, task_id in unrecorded.items():
        entry = recorded(label)
        # Most runs were continued, which the index tells without a pass over all lines.
        if entry is None or folder.read_at(entry.offset).task_id != task_id:
            left.append((label, task_id))
    runs: list[dict[str, Any]] = []
    for label, task_id in _without_line(left, folder):
        tree = _tree_of(store, task_id)
        used, interrupted = _used_in(tree)
        usage: Any = used.to_dict()
        if (label, task_id) in stored and not _is_readable(tree):
            usage = stored[label, task_id]
        runs.append(
            {
                "label": label,
                "task_id": task_id,
                "usage": usage,
                INTERRUPTED_CALLS: interrupted,
            }
        )
    return runs


def still_abandoned(
    runs: Iterable[Any], folder: BatchFolder, besides: Iterable[Mapping[str, Any]] = ()
) -> list[Any]:
    """Those of the `abandoned_runs` in a manifest that no result has continued since, as where a
    removed row is back, without those `besides`. Entries that are not such runs are kept.
    """
    found = [(run, _label_and_task(run)) for run in runs]
    left = set(_without_line([key for _, key in found if key is not None], folder))
    left -= set(map(_label_and_task, besides))
    return [run for run, key in found if key is None or key in left]


def tasks_of(runs: Iterable[Any]) -> dict[str, int]:
    """The newest task of each label in the `abandoned_runs` of a manifest."""
    tasks: dict[str, int] = {}
    for run in runs:
        key = _label_and_task(run)
        if key is not None:
            label, task_id = key
            tasks[label] = max(task_id, tasks.get(label, 0))
    return tasks


def _label_and_task(run: Any) -> tuple[str, int] | None:
    entry = mapping_of(run)
    label = entry.get("label")
    task_id = entry.get("task_id")
    if isinstance(label, str) and type(task_id) is int:
        return label, task_id
    return None


def _without_line(runs: Iterable[tuple[str, int]], folder: BatchFolder) -> list[tuple[str, int]]:
    """Those of `runs`, each a label and a task, that no line of the results comes from, whether it
    counts or was replaced. All lines are read, if there are runs.
    """
    given = list(runs)
    if not given:
        return []
    identities = {label.partition("/")[0] for label, _ in given}
    written: set[tuple[str, int | None]] = set()
    judged: set[tuple[str, str]] = set()

    def note(result: Mapping[str, Any]) -> None:
        identity = result["identity"]
        if identity in identities:
            written.add((identity, result["task_id"]))
            if result["scores"]:
                judged.add((identity, result["scored_by"]))

    folder.give_lines(note)
    left: list[tuple[str, int]] = []
    for label, task_id in given:
        identity, is_judge, rest = label.partition("/")
        if is_judge:
            is_written = (identity, rest.partition("/")[0]) in judged
        else:
            is_written = (identity, task_id) in written
        if not is_written:
            left.append((label, task_id))
    return left


def recorded_usage(store: TaskStore, task_ids: Iterable[int]) -> tuple[Usage, int]:
    """The usage that tasks record, with that of their subtasks, and how many of their calls were in
    flight when a process ended. A task file that cannot be read counts as one.
    """
    usage = Usage()
    interrupted = 0
    for task_id in task_ids:
        used, interrupted_there = _used_in(_tree_of(store, task_id))
        usage += used
        interrupted += interrupted_there
    return usage, interrupted


def _tree_of(store: TaskStore, task_id: int) -> TaskNode:
    try:
        return read_tree(store, store.read(task_id))
    except RecordError as error:
        return TaskNode(task_id, None, problem=str(error))


def _is_readable(tree: TaskNode) -> bool:
    return tree.recording is not None and all(map(_is_readable, tree.children.values()))


def _used_in(tree: TaskNode) -> tuple[Usage, int]:
    """See `recorded_usage`."""
    usage = Usage()
    if tree.recording is None:
        return usage, 1
    interrupted = 0
    for index, step in enumerate(tree.recording.steps):
        child = tree.children.get(index)
        if step.end is not None and step.end.usage is not None:
            usage += Usage.from_dict(step.end.usage)
        elif child is not None:
            below, interrupted_below = _used_in(child)
            usage += below
            interrupted += interrupted_below
        elif is_interrupted_call(step) and not is_free_model(step.start.name):
            interrupted += 1
    return usage, interrupted
