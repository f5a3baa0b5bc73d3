"""The work on one sample, before it is done and after."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from evaluator.batch.identity import Cell, Identity, digest
from evaluator.batch.records import NOTHING, Failure, Sample, SampleResult, Score, Verdict
from evaluator.errors.results import Usage
from evaluator.lazy_dataclass import dataclass, frozen


@frozen
class Variant:
    """A model, or a handler profile, or both, under one name."""

    name: str
    model: str | None = None
    handler: str | None = None


_KEEPS_NONE: Mapping[str, Score] = {}


def scored_by(scoring_part: str, sample: Sample) -> str:
    """The hash of everything that judges a sample; empty without scorers."""
    if not scoring_part:
        return ""
    return digest([scoring_part, sample.target, sample.metadata])[:16]


@dataclass(slots=True)
class WorkItem:
    """A sample to evaluate in a cell; it is not changed. `scored_by` is the hash of everything that
    judges it; empty, until it is made of `scoring_part`, the hash of the scorers: it is computed
    where the work is done.

    `resumes`: the task to resume, if there is one. `retry_of`: a failed task, which is started
    again. `answered`: an earlier result, which is only judged again. `keeps`: the scores of an
    earlier session that stay, by name; their scorers are not called. `packed`: the sample as
    bytes (see `Sample.pack`), if it was given as such and there is nothing but it, the cell and the
    epoch.
    """

    sample: Sample
    epoch: int
    cell: Cell
    variant: Variant
    identity: Identity
    scored_by: str = ""
    resumes: int | None = None
    retry_of: int | None = None
    answered: SampleResult | None = None
    keeps: Mapping[str, Score] = field(default_factory=dict[str, Score])
    scoring_part: str = ""
    packed: bytes = field(default=b"", init=False, repr=False, compare=False)

    @classmethod
    def of(
        cls,
        sample: Sample | bytes,
        epoch: int,
        cell: Cell,
        variant: Variant,
        scoring_part: str,
    ) -> WorkItem:
        """The work for a sample without an earlier result. Of a packed sample (see `Sample.pack`),
        and of the identity, the objects are made when they are first read, which may be in another
        process.
        """
        work = cls.__new__(cls)
        if isinstance(sample, Sample):
            work.sample = sample
            work.packed = b""
        else:
            work.packed = sample
        work.epoch = epoch
        work.cell = cell
        work.variant = variant
        work.scored_by = ""
        work.resumes = None
        work.retry_of = None
        work.answered = None
        work.keeps = _KEEPS_NONE
        work.scoring_part = scoring_part
        return work

    def __getattr__(self, name: str) -> Any:
        """Called for an attribute that has no value yet."""
        if name == "sample":
            self.sample = Sample.unpack(self.packed)
            return self.sample
        if name == "identity":
            self.identity = Identity.of(self.cell, self.sample, self.epoch)
            return self.identity
        raise AttributeError(name)

    def judged_by(self) -> str:
        """The hash of everything that judges it; empty without scorers."""
        if not self.scored_by:
            self.scored_by = scored_by(self.scoring_part, self.sample)
        return self.scored_by

    def result(
        self,
        verdict: Verdict,
        *,
        started: str,
        task_id: int | None,
        task_file: str | None,
        model: str | None = None,
        content: str = "",
        parsed: Any = None,
        scores: Mapping[str, Score] = _KEEPS_NONE,
        failure: Failure | None = None,
        usage: Usage = NOTHING,
        duration_s: float = 0.0,
        cached_calls: int = 0,
        interrupted_calls: int = 0,
        warnings: tuple[str, ...] = (),
        judge_tasks: tuple[int, ...] = (),
    ) -> SampleResult:
        """A result of this work, with these values of its other fields."""
        sample = self.sample
        cell = self.cell
        identity = self.identity
        return SampleResult(
            identity.value,
            sample.id,
            place=sample.place,
            epoch=self.epoch,
            template=cell.template,
            variant=cell.variant,
            verdict=verdict,
            inputs=sample.inputs,
            target=sample.target,
            metadata=sample.metadata,
            model=model,
            content=content,
            parsed=parsed,
            scores=scores,
            failure=failure,
            usage=usage,
            duration_s=duration_s,
            started=started,
            task_id=task_id,
            task_file=task_file,
            cached_calls=cached_calls,
            interrupted_calls=interrupted_calls,
            warnings=warnings,
            parts=identity.parts,
            scored_by=self.judged_by(),
            judge_tasks=judge_tasks,
        )


def used_now(work: WorkItem, result: Mapping[str, Any]) -> Mapping[str, Any]:
    """The result of `work`, as JSON, with the usage and the calls of this session only: without
    those of an answer that is only judged again, and of the scores that it keeps.
    """
    answered = work.answered
    if answered is None:
        return result
    scores: dict[str, Any] = {}
    for name, score in result["scores"].items():
        if name in work.keeps:
            score = {key: value for key, value in score.items() if key != "usage"}
        scores[name] = score
    interrupted = max(0, result["interrupted_calls"] - answered.interrupted_calls)
    return {
        **result,
        "usage": {},
        "scores": scores,
        "cached_calls": 0,
        "interrupted_calls": interrupted,
    }


@frozen
class WorkResult:
    """The end of a work: its result, or the reason in `pending` why it has none.

    `parked`: it waits for a provider batch; its tasks and those of its judges by label.
    """

    work: WorkItem
    result: SampleResult | None
    pending: str = ""
    parked: Mapping[str, int] | None = None
