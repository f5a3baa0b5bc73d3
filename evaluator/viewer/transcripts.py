"""The transcripts of a result: the conversations of its task and of its judges, from the task files
of its batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from evaluator.batch.folder import TASKS
from evaluator.batch.records import SampleResult
from evaluator.errors import EvaluatorError
from evaluator.record.conversation import RecordedConversation, conversations
from evaluator.record.store import TaskStore

_MAX_JUDGES = 20


@dataclass(frozen=True, slots=True)
class Transcript:
    """A task file of a sample: of the task itself or of a judge. `problem` is why it is not
    shown.
    """

    title: str
    task_id: int
    conversations: Sequence[RecordedConversation]
    problem: str = ""

    def to_dict(self) -> dict[str, Any]:
        talks = [each.to_dict() for each in self.conversations]
        return {
            "title": self.title,
            "task": self.task_id,
            "problem": self.problem,
            "conversations": talks,
        }


def transcripts(folder: Path, result: SampleResult) -> list[Transcript]:
    """Those of the task first, then those of each scorer's judges; none for a result without a task
    file.
    """
    tasks: list[tuple[str, int]] = [] if result.task_id is None else [("Task", result.task_id)]
    for name, score in result.scores.items():
        found = score.metadata.get("task_ids")
        if isinstance(found, list):
            judges = [task for task in cast("list[Any]", found) if type(task) is int]
        else:
            judges = []
        tasks += [(f"Judge of {name}", task) for task in judges[:_MAX_JUDGES]]
    return [_transcript(folder, title, task=task) for title, task in tasks]


def _transcript(folder: Path, title: str, task: int) -> Transcript:
    if (folder / TASKS).is_symlink():
        return Transcript(
            title,
            task,
            conversations=(),
            problem=f"{folder / TASKS} is a link; links are not followed",
        )
    try:
        return Transcript(
            title, task, conversations=conversations(TaskStore(folder / TASKS).read(task))
        )
    except (EvaluatorError, OSError) as error:
        return Transcript(title, task, conversations=(), problem=str(error))
