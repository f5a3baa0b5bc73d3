"""The samples of a page, with the transcripts of their conversations.

The transcripts of a result: the conversations of its task and of its judges, from the task files
of its batch.

If there are more, errors come first, then failed, unscored and passed ones, each in their order.
They are collected in temporary files, not in memory.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import IO, Any, cast
from urllib.parse import quote

from evaluator.batch.export.result_table import clean
from evaluator.batch.folder import TASKS
from evaluator.batch.records import SampleResult, Verdict
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


FIELDS = (
    "group",
    "verdict",
    "id",
    "title",
    "place",
    "epoch",
    "model",
    "inputs",
    "target",
    "metadata",
    "content",
    "parsed",
    "scores",
    "failure",
    "usage",
    "scoring_cost_usd",
    "duration_s",
    "started",
    "task",
    "link",
    "cached_calls",
    "warnings",
    "identity",
    "transcripts",
)
ORDER = (Verdict.ERROR, Verdict.FAILED, Verdict.UNSCORED, Verdict.PASSED)
MAX_TEXT_CHARS = 50_000
_EXACT = 2**53
ReadTranscripts = Callable[[SampleResult], list[dict[str, Any]] | None]
_SPOOL_BYTES = 1_000_000


class SampleSpool:
    """Collects the encoded results of one batch, to be read when all are added. A context
    manager.
    """

    def __init__(
        self,
        max_samples: int,
        max_bytes: int,
        folder: str | None,
        transcripts: ReadTranscripts | None = None,
    ) -> None:
        """`folder`: the batch's folder, as a relative URL from the report; None: no links to task
        files. `transcripts` reads those of a result, None where it is to have none.
        """
        self._transcripts = transcripts
        self.groups: dict[tuple[str, str], int] = {}
        self.total = 0
        self._max_samples = max_samples
        self._max_bytes = max_bytes
        self._folder = folder
        self._open = contextlib.ExitStack()
        self._files: dict[Verdict, IO[bytes]] = {}
        self._used: dict[Verdict, tuple[int, int]] = dict.fromkeys(ORDER, (0, 0))

    def __enter__(self) -> SampleSpool:
        for verdict in ORDER:
            self._files[verdict] = self._open.enter_context(
                tempfile.SpooledTemporaryFile(_SPOOL_BYTES)
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._open.close()

    def watch(self, results: Iterator[SampleResult]) -> Iterator[SampleResult]:
        """Yields `results`, and adds each of them."""
        for result in results:
            self.total += 1
            group = self.groups.setdefault((result.template, result.variant), len(self.groups))
            count, size = self._used[result.verdict]
            if count < self._max_samples and size < self._max_bytes:
                if self._transcripts is None:
                    transcripts = None
                else:
                    transcripts = self._transcripts(result)
                line = encoded([*_cells(result, group, folder=self._folder), transcripts])
                self._files[result.verdict].write(line + b"\n")
                self._used[result.verdict] = (count + 1, size + len(line) + 2)
            yield result

    def shown(self) -> Iterator[bytes]:
        """The results that fit, encoded, by verdict."""
        count = size = 0
        for verdict in ORDER:
            self._files[verdict].seek(0)
            for line in self._files[verdict]:
                count = count + 1
                size = size + len(line) + 1
                if count > self._max_samples or size > self._max_bytes:
                    return
                yield line.rstrip(b"\n")


def encoded(value: Any) -> bytes:
    """JSON for a script element: without `<` and without NaN, as UTF-8."""
    text = json.dumps(_plain(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return clean(text).replace("<", "\\u003c").encode()


def link_to(folder: str | None, task_file: str | None) -> str | None:
    """A task file as a relative URL; None if there is none, or it is outside the batch's folder."""
    if folder is None or not task_file:
        return None
    path = PurePosixPath(task_file)
    if path.is_absolute() or ".." in path.parts or "\\" in task_file:
        return None
    return f"{folder}/{quote(clean(path.as_posix()))}"


def folder_url(folder: Path, report: Path) -> str:
    """The batch's folder as a relative URL from the report's."""
    relative = os.path.relpath(folder.resolve(), report.parent.resolve())
    return f"./{quote(clean(Path(relative).as_posix()))}"


def _cells(result: SampleResult, group: int, folder: str | None) -> list[Any]:
    values = result.to_dict()
    values |= {
        "group": group,
        "verdict": ORDER.index(result.verdict),
        "id": result.sample_id,
        "title": result.title,
        "scores": {
            name: {key: value for key, value in score.items() if value is not None}
            for name, score in values["scores"].items()
        },
        "scoring_cost_usd": result.scoring_usage.cost_usd,
        "task": result.task_id,
        "link": link_to(folder, result.task_file),
    }
    return [values[name] for name in FIELDS[:-1]]


def _plain(value: Any) -> Any:
    """`value` in a form that a browser reads without loss, except that texts are cut after 50,000
    characters.
    """
    match value:
        case str():
            if len(value) <= MAX_TEXT_CHARS:
                return value
            return (
                f"{value[:MAX_TEXT_CHARS]}… (the first {MAX_TEXT_CHARS:,} of {len(value):,} "
                "characters)"
            )
        case bool() | None:
            return value
        case int():
            if abs(value) <= _EXACT:
                return value
            return str(value)
        case float():
            if math.isfinite(value):
                return value
            return repr(value)
        case dict():
            return {
                _plain(str(name)): _plain(inner)
                for name, inner in cast("dict[Any, Any]", value).items()
            }
        case list() | tuple():
            return [_plain(inner) for inner in cast("list[Any]", value)]
        case _:
            return str(value)
