"""The samples of a page, with the transcripts of their conversations, and histograms of their
durations and tokens.

If there are more samples, errors come first, then failed, unscored and passed ones, each in their
order. They are collected in temporary files, not in memory. The transcripts are those of the task
and of its judges, from the task files of the batch.

The bins of a histogram are of equal width up to the 99th percentile, and all groups share them. The
last one holds everything above, so that a few slow results do not compress all others into one bar.
"""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import IO, Any, cast
from urllib.parse import quote

from evaluator.batch.export.result_table import clean
from evaluator.batch.folder import TASKS
from evaluator.batch.records import SampleResult, Verdict
from evaluator.batch.statistics import percentiles
from evaluator.errors import EvaluatorError
from evaluator.handler.backends import is_simulated_model
from evaluator.lazy_dataclass import frozen
from evaluator.record.conversation import RecordedConversation, conversations
from evaluator.record.steps import Step
from evaluator.record.store import TaskStore
from evaluator.viewer.json_form import encoded

_MAX_JUDGES = 20
_MAX_CALLS = 200
_TIMED = ("model", "tool", "script", "subtask")


@frozen
class Transcript:
    """A task file of a sample: of the task itself or of a judge. `problem` is why it is not
    shown.
    """

    title: str
    task_id: int
    conversations: Sequence[RecordedConversation]
    problem: str = ""
    steps: Sequence[Step] = ()

    def to_dict(self) -> dict[str, Any]:
        talks = [each.to_dict() for each in self.conversations]
        return {
            "title": self.title,
            "task": self.task_id,
            "problem": self.problem,
            "conversations": talks,
            "calls": [_call(step) for step in self.steps[:_MAX_CALLS]],
        }


def _call(step: Step) -> dict[str, Any]:
    """What a step did with its time: one attempt, and the wait before it."""
    start = step.start
    return {
        "path": start.path,
        "kind": start.kind,
        "name": start.name,
        "attempt": start.attempt,
        "status": step.status,
        "backoff_s": start.backoff_s,
        "duration_s": None if step.end is None else step.end.duration_s,
        "error": None if step.end is None else step.end.error,
    }


def transcripts(folder: Path, result: SampleResult) -> list[Transcript]:
    """Those of the task first, then those of each scorer's judges; none for a result without a task
    file.
    """
    tasks: list[tuple[str, int]] = []
    if result.task_id is not None:
        tasks.append(("Task", result.task_id))
    for name, score in result.scores.items():
        found = score.metadata.get("task_ids")
        if isinstance(found, list):
            judges = [task for task in cast("list[Any]", found) if type(task) is int]
            tasks += [(f"Judge of {name}", task) for task in judges[:_MAX_JUDGES]]
    return [_transcript(folder, title, task=task) for title, task in tasks]


def _transcript(folder: Path, title: str, task: int) -> Transcript:
    if (folder / TASKS).is_symlink():
        problem = f"{folder / TASKS} is a link; links are not followed"
        return Transcript(title, task, conversations=(), problem=problem)
    try:
        recording = TaskStore(folder / TASKS).read(task)
        return Transcript(
            title,
            task,
            conversations=conversations(recording),
            steps=[step for step in recording.steps if step.start.kind in _TIMED],
        )
    except (EvaluatorError, OSError) as error:
        return Transcript(title, task, conversations=(), problem=str(error))


ORDER = (Verdict.ERROR, Verdict.FAILED, Verdict.UNSCORED, Verdict.PASSED)
MAX_TEXT_CHARS = 50_000
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
        self.fields: tuple[str, ...] = ()
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
                read = self._transcripts
                transcripts = None if read is None else read(result)
                data = result_data(result, link_to(self._folder, result.task_file))
                # One name for all results, not one for each.
                self.fields = (*data, "cell", "transcripts")
                line = encoded([*data.values(), group, transcripts], MAX_TEXT_CHARS)
                self._files[result.verdict].write(line + b"\n")
                self._used[result.verdict] = (count + 1, size + len(line) + 2)
            yield result

    def shown(self) -> Iterator[bytes]:
        """The results that fit, encoded, by verdict."""
        count = 0
        # The page has the names of the fields once.
        size = len(encoded(list(self.fields), MAX_TEXT_CHARS))
        for verdict in ORDER:
            self._files[verdict].seek(0)
            for line in self._files[verdict]:
                count += 1
                size += len(line) + 1
                if count > self._max_samples or size > self._max_bytes:
                    return
                yield line.rstrip(b"\n")


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


def result_data(result: SampleResult, href: str | None) -> dict[str, Any]:
    """A result as a page shows it. `href` leads to it or to its task file; None: nowhere."""
    return {
        "id": result.sample_id,
        "title": result.title or "(empty id)",
        "place": result.place,
        "epoch": result.epoch,
        "template": result.template,
        "variant": result.variant,
        "verdict": result.verdict.value,
        "model": result.model,
        "simulated": result.model is not None and is_simulated_model(result.model),
        "inputs": result.inputs,
        "target": result.target,
        "metadata": result.metadata,
        "content": result.content,
        "parsed": result.parsed,
        "scores": {name: score.to_dict() for name, score in result.scores.items()},
        "failure": None if result.failure is None else result.failure.to_dict(),
        "usage": result.usage.non_zero(),
        "scoring_cost_usd": result.scoring_usage.cost_usd,
        "duration_s": round(result.duration_s, 6),
        "started": result.started,
        "task": result.task_id,
        "href": href,
        "cached_calls": result.cached_calls,
        "interrupted_calls": result.interrupted_calls,
        "warnings": result.warnings,
        "identity": result.identity,
    }


BINS = 24
QUANTITIES = ("duration_s", "input_tokens", "output_tokens")
Group = tuple[int, str, str]


class Distributions:
    """The values of each quantity by group (batch, template, variant), 8 bytes each."""

    def __init__(self) -> None:
        self._values: dict[str, dict[Group, array[float]]] = {name: {} for name in QUANTITIES}
        self._of: dict[Group, int] = {}

    def add(self, batch: int, result: SampleResult) -> None:
        """Adds a result."""
        group = (batch, result.template, result.variant)
        values = (result.duration_s, result.usage.input_tokens, result.usage.output_tokens)
        self.add_values(group, result.verdict, values=values)

    def add_values(self, group: Group, verdict: Verdict, values: Sequence[float | None]) -> None:
        """Adds the values of QUANTITIES of a result. Unknown counts are in no bin, and neither are
        errors.
        """
        self._of[group] = self._of.get(group, 0) + 1
        if verdict is Verdict.ERROR:
            return
        for name, value in zip(QUANTITIES, values, strict=True):
            if value is not None and math.isfinite(value):
                self._values[name].setdefault(group, array("d")).append(value)

    def to_list(self) -> list[dict[str, Any]]:
        """Each quantity with the `edges` of its bins (where each begins) and the counts of each
        group.
        """
        return [
            {"quantity": name, **_binned(groups, self._of)}
            for name, groups in self._values.items()
            if any(max(values) > 0 for values in groups.values())
        ]


def _binned(groups: Mapping[Group, array[float]], of: Mapping[Group, int]) -> dict[str, Any]:
    edges = _edges(array("d", (value for values in groups.values() for value in values)))
    counted: list[dict[str, Any]] = []
    for group, count in of.items():
        batch, template, variant = group
        values = groups.get(group, array("d"))
        counted.append(
            {
                "batch": batch,
                "template": template,
                "variant": variant,
                "counts": _counts(values, edges),
                "n": len(values),
                "of": count,
            }
        )
    return {"edges": edges, "groups": counted}


def _edges(values: array[float]) -> list[float]:
    """The beginnings of the bins; the last bin has no end."""
    (most,) = percentiles(values, (0.99,))
    least = min(values)
    if most is None or most <= least:
        return [least]
    step = _round((most - least) / BINS)
    start = math.floor(least / step) * step
    return [
        round(start + step * place, 10) for place in range(math.ceil((most - start) / step) + 1)
    ]


def _round(step: float) -> float:
    """The next 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= step * (1 - 1e-9))


def _counts(values: array[float], edges: list[float]) -> list[int]:
    counts = [0] * len(edges)
    for value in values:
        counts[max(0, bisect_right(edges, value) - 1)] += 1
    return counts
