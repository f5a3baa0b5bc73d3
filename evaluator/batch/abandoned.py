"""Runs of earlier sessions that have no result yet. What they have used is not the spending of a
session that continues them, and it counts as the spending of earlier runs, in addition, where the
batch is complete without them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from evaluator.batch.folder import BatchFolder
from evaluator.batch.records import SampleResult
from evaluator.batch.work_items import WorkItem
from evaluator.errors import RecordError
from evaluator.errors.results import Usage
from evaluator.fields.records import mapping_of
from evaluator.handler.backends import is_free_model
from evaluator.lazy_dataclass import frozen
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
        used = _used_in(tree)
        usage: Any = used.usage.to_dict()
        if (label, task_id) in stored and not _is_readable(tree):
            usage = stored[label, task_id]
        runs.append(
            {
                "label": label,
                "task_id": task_id,
                "usage": usage,
                INTERRUPTED_CALLS: used.interrupted_calls,
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


@frozen
class RecordedUse:
    """What tasks record: their usage with that of their subtasks, how many calls the cache
    answered, and how many were in flight when a process ended.
    """

    usage: Usage = Usage()
    cached_calls: int = 0
    interrupted_calls: int = 0

    def __add__(self, other: RecordedUse) -> RecordedUse:
        return RecordedUse(
            self.usage + other.usage,
            self.cached_calls + other.cached_calls,
            interrupted_calls=self.interrupted_calls + other.interrupted_calls,
        )


def recorded_use(store: TaskStore, task_ids: Iterable[int]) -> RecordedUse:
    """What these tasks record. A task file that cannot be read counts as an interrupted call."""
    return sum((_used_in(_tree_of(store, task_id)) for task_id in task_ids), RecordedUse())


class ContinuedRuns:
    """The runs of earlier sessions that a session continues: what they had used before it.

    `unrecorded` are the task files that no result refers to when the session starts, by label.
    """

    def __init__(self, store: TaskStore | None, unrecorded: Mapping[str, int]) -> None:
        self._store = store
        self._tasks: dict[str, dict[str, int]] = {}
        for label, task_id in unrecorded.items():
            self._tasks.setdefault(label.partition("/")[0], {})[label] = task_id
        self._used: dict[str, tuple[int | None, RecordedUse]] = {}

    def begin(self, works: Iterable[WorkItem]) -> None:
        """Notes what the runs have used that `works` continue, before they do."""
        store = self._store
        if store is None:
            return
        for work in works:
            if not self._tasks and work.resumes is None:
                # The sample and the identity of most works are only made where they are done.
                continue
            identity = work.identity.value
            labelled = self._tasks.get(identity, {})
            answer = labelled.get(identity, work.resumes)
            # A failed run starts again, and an answer that is only judged again is not continued.
            if answer == work.retry_of or work.answered is not None:
                answer = None
            # Judges of other scorers are not continued.
            tasks: list[int] = []
            if labelled:
                judges = f"{identity}/{work.judged_by()}/"
                tasks += [task for label, task in labelled.items() if label.startswith(judges)]
            if answer is not None:
                tasks.append(answer)
            # A sample that waits for a provider batch begins again.
            if tasks and work.identity.key not in self._used:
                self._used[work.identity.key] = answer, recorded_use(store, tasks)

    def take(self, result: SampleResult) -> RecordedUse | None:
        """What the runs had used that `result` continues; None if it continues none."""
        answer, used = self._used.pop(result.key, (None, None))
        return used if answer is None or answer == result.task_id else None

    def __bool__(self) -> bool:
        return bool(self._used)


def _tree_of(store: TaskStore, task_id: int) -> TaskNode:
    try:
        return read_tree(store, store.read(task_id))
    except RecordError as error:
        return TaskNode(task_id, None, problem=str(error))


def _is_readable(tree: TaskNode) -> bool:
    return tree.recording is not None and all(map(_is_readable, tree.children.values()))


def _used_in(tree: TaskNode) -> RecordedUse:
    """See `recorded_use`."""
    if tree.recording is None:
        return RecordedUse(interrupted_calls=1)
    usage = Usage()
    cached = 0
    interrupted = 0
    for index, step in enumerate(tree.recording.steps):
        child = tree.children.get(index)
        end = step.end
        if end is not None and end.extra is not None and end.extra.get("cached") is True:
            cached += 1
        if end is not None and end.usage is not None:
            usage += Usage.from_dict(end.usage)
        elif child is not None:
            below = _used_in(child)
            usage += below.usage
            cached += below.cached_calls
            interrupted += below.interrupted_calls
        elif is_interrupted_call(step) and not is_free_model(step.start.name):
            interrupted += 1
    return RecordedUse(usage, cached, interrupted_calls=interrupted)
