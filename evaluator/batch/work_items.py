"""The work on one sample, before it is done and after."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from evaluator.batch.identity import Cell, Identity, digest
from evaluator.batch.records import Sample, SampleResult, Score, Verdict
from evaluator.lazy_dataclass import frozen


@frozen
class Variant:
    """A model, or a handler profile, or both, under one name."""

    name: str
    model: str | None = None
    handler: str | None = None


_set = object.__setattr__
_KEEPS_NONE: Mapping[str, Score] = {}


def scored_by(scoring_part: str, sample: Sample) -> str:
    """The hash of everything that judges a sample; empty without scorers."""
    if not scoring_part:
        return ""
    return digest([scoring_part, sample.target, sample.metadata])[:16]


@frozen
class WorkItem:
    """A sample to evaluate in a cell. `scored_by` is the hash of everything that judges it; empty,
    if it is made of `scoring_part`, the hash of the scorers: it is computed where the work is done.

    `resumes`: the task to resume, if there is one. `retry_of`: a failed task, which is started
    again. `answered`: an earlier result, which is only judged again. `keeps`: the scores of an
    earlier session that stay, by name; their scorers are not called. `packed`: the sample as data,
    if it was given as such.
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
    packed: tuple[Any, ...] = field(default=(), init=False, repr=False, compare=False)

    @classmethod
    def of(
        cls,
        sample: Sample | tuple[Any, ...],
        epoch: int,
        cell: Cell,
        variant: Variant,
        scoring_part: str,
    ) -> WorkItem:
        """The work for a sample without an earlier result. Of a sample as data (see
        `Sample.to_values`), and of the identity, the objects are made when they are first read,
        which may be in another process.
        """
        work = cls.__new__(cls)
        if isinstance(sample, Sample):
            _set(work, "sample", sample)
            _set(work, "packed", ())
        else:
            _set(work, "packed", sample)
        _set(work, "epoch", epoch)
        _set(work, "cell", cell)
        _set(work, "variant", variant)
        _set(work, "scored_by", "")
        _set(work, "resumes", None)
        _set(work, "retry_of", None)
        _set(work, "answered", None)
        _set(work, "keeps", _KEEPS_NONE)
        _set(work, "scoring_part", scoring_part)
        return work

    def __getattr__(self, name: str) -> Any:
        """Called for an attribute that has no value yet."""
        if name == "sample":
            value = Sample.from_values(self.packed)
        elif name == "identity":
            value = Identity.of(self.cell, self.sample, self.epoch)
        else:
            raise AttributeError(name)
        _set(self, name, value)
        return value

    def judged_by(self) -> str:
        """The hash of everything that judges it; empty without scorers."""
        return self.scored_by or scored_by(self.scoring_part, self.sample)

    def result(self, verdict: Verdict, **values: Any) -> SampleResult:
        """A result of this work; `values` are its other fields."""
        sample = self.sample
        cell = self.cell
        return SampleResult(
            self.identity.value,
            sample.id,
            place=sample.place,
            epoch=self.epoch,
            template=cell.template,
            variant=cell.variant,
            verdict=verdict,
            inputs=sample.inputs,
            target=sample.target,
            metadata=sample.metadata,
            parts=self.identity.parts,
            scored_by=self.judged_by(),
            **values,
        )


@frozen
class WorkResult:
    """The end of a work: its result, or the reason in `pending` why it has none.

    `parked`: it waits for a provider batch; its tasks and those of its judges by label.
    """

    work: WorkItem
    result: SampleResult | None
    pending: str = ""
    parked: Mapping[str, int] | None = None
