"""Runs of earlier sessions that have no result yet. What they have used is not the spending of a
session that continues them, and it counts as the spending of earlier runs, in addition, where the
batch is complete without them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from evaluator.batch.folder import BatchFolder
from evaluator.batch.records import SampleResult, judge_tasks_of
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

_LINE_CALLS = "line_calls"


def abandoned_runs(
    store: TaskStore,
    unrecorded: Iterable[tuple[str, int]],
    folder: BatchFolder,
    before: Iterable[Any] = (),
) -> list[dict[str, Any]]:
    """The runs of earlier sessions, each a label and a task, that no sample of a complete batch
    continues: its row, template or model was changed before it had a result, its row was removed,
    or a command skipped it; or its result is still the error that the run was to replace. Runs of
    judges, too, where the scorers were changed before the score was stored. A result that another
    one has replaced is a result too: its own line says what it used.

    Each has its `label` and `task_id`, the `usage` of its calls as far as that is recorded, and
    `interrupted_calls`, which were in flight when a process ended and may be billed too. Where a
    result of the run was written before it was continued, they are those since, and `line_calls`
    is how many calls that result counts. `before` are those in the manifest: where a task file can
    no longer be read, its run has the usage that is stored there, as a lower bound.
    """
    stored = {label_and_task(run): mapping_of(run).get("usage") for run in before}
    runs: list[dict[str, Any]] = []
    for label, task_id, counted in uncounted_runs(store, unrecorded, folder):
        tree = _tree_of(store, task_id)
        used = _used_in(tree)
        if counted is not None:
            used = _since(used, counted, store)
        usage: Any = used.usage.to_dict()
        if (label, task_id) in stored and not _is_readable(tree):
            usage = stored[label, task_id]
        run: dict[str, Any] = {
            "label": label,
            "task_id": task_id,
            "usage": usage,
            INTERRUPTED_CALLS: used.interrupted_calls,
        }
        if counted is not None:
            run[_LINE_CALLS] = counted.calls
        runs.append(run)
    return runs


def still_abandoned(
    runs: Iterable[Any], folder: BatchFolder, besides: Iterable[Mapping[str, Any]] = ()
) -> list[Any]:
    """Those of the `abandoned_runs` in a manifest that no result has continued since, as where a
    removed row is back, without those `besides`. Entries that are not such runs are kept.
    """
    found = [(run, label_and_task(run)) for run in runs]
    written = _WrittenRuns(folder, [key for _, key in found if key is not None])
    replaced = set(map(label_and_task, besides))
    left: list[Any] = []
    for run, key in found:
        if key is None:
            left.append(run)
        elif key not in replaced:
            counted = written.counted(*key)
            calls = mapping_of(run).get(_LINE_CALLS)
            if counted is None or (type(calls) is int and counted.calls <= calls):
                left.append(run)
    return left


def label_and_task(run: Any) -> tuple[str, int] | None:
    """The label and the task of one of the `abandoned_runs` in a manifest; None for anything
    else.
    """
    entry = mapping_of(run)
    label = entry.get("label")
    task_id = entry.get("task_id")
    if isinstance(label, str) and type(task_id) is int and task_id >= 0:
        return label, task_id
    return None


@frozen
class _Counted:
    """What the last line of a run counts, or that of a judge's run, which is all of it."""

    usage: Usage = Usage()
    interrupted_calls: int = 0
    judge_tasks: Sequence[int] = ()
    may_continue: bool = False

    @property
    def calls(self) -> int:
        return self.usage.turns + self.interrupted_calls


_JUDGED = _Counted()


class _WrittenRuns:
    """What the lines of the results count of `runs`, each a label and a task: all lines, whether
    they count or were replaced. Those of the runs' samples are read, if there are runs.
    """

    def __init__(self, folder: BatchFolder, runs: Iterable[tuple[str, int]]) -> None:
        self._counted: dict[tuple[str, int], _Counted | None] = {
            (label.partition("/")[0], task_id): None for label, task_id in runs
        }
        # Results whose line does not say which judges it counts, as those of earlier versions.
        self._judged: set[tuple[str, str]] = set()
        if self._counted:
            identities = {identity.encode(errors="replace") for identity, _ in self._counted}
            folder.give_lines(self._note, identities)

    def _note(self, result: Mapping[str, Any]) -> None:
        identity = result["identity"]
        judge_tasks = judge_tasks_of(result)
        for task_id in judge_tasks:
            if (identity, task_id) in self._counted:
                self._counted[identity, task_id] = _JUDGED
        if not judge_tasks and any("usage" in score for score in result["scores"].values()):
            self._judged.add((identity, result["scored_by"]))
        run = (identity, result["task_id"])
        if run in self._counted:
            self._counted[run] = _Counted(
                Usage.from_dict(result["usage"]),
                result["interrupted_calls"],
                judge_tasks=judge_tasks,
                # The task of such a result is resumed when its sample is tried again.
                may_continue=bool(result["retryable"]),
            )

    def counted(self, label: str, task_id: int) -> _Counted | None:
        """None where no line comes from this run."""
        identity, is_judge, rest = label.partition("/")
        counted = self._counted.get((identity, task_id))
        if is_judge and (identity, rest.partition("/")[0]) in self._judged:
            counted = _JUDGED
        return counted


def uncounted_runs(
    store: TaskStore, runs: Iterable[tuple[str, int]], folder: BatchFolder
) -> Iterator[tuple[str, int, _Counted | None]]:
    """Those of `runs`, each a label and a task, whose calls the results do not count all, with what
    they do count.
    """
    given = list(runs)
    written = _WrittenRuns(folder, given)
    for label, task_id in given:
        counted = written.counted(label, task_id)
        if counted is None:
            yield label, task_id, None
        elif counted.may_continue and _has_own_file(store, task_id):
            tree = _tree_of(store, task_id)
            if _is_readable(tree) and _since(_used_in(tree), counted, store) != RecordedUse():
                yield label, task_id, counted


def _has_own_file(store: TaskStore, task_id: int) -> bool:
    """Whether the task may have been resumed: one in a segment gets a file of its own then."""
    try:
        store.path_of(task_id)
    except RecordError:
        return False
    return True


def _since(used: RecordedUse, counted: _Counted, store: TaskStore) -> RecordedUse:
    """What a run has used since the line that counted it was written."""
    before = counted.usage.to_dict()
    usage: dict[str, Any] = {}
    for name, figure in used.usage.to_dict().items():
        if figure == before[name]:
            usage[name] = 0
        elif figure is None or before[name] is None:
            usage[name] = None
        else:
            # Sums of floats leave a remainder.
            usage[name] = max(0, round(figure - before[name], 12))
    of_judges = recorded_use(store, counted.judge_tasks).interrupted_calls
    interrupted = used.interrupted_calls - max(0, counted.interrupted_calls - of_judges)
    return RecordedUse(Usage.from_dict(usage), interrupted_calls=max(0, interrupted))


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
