"""Work and results as they are sent between processes.

The process that evaluates makes the lines of its results, and counts them; the batch's process
writes the lines and adds up the counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from evaluator.batch.identity import Identity, encode_results, parse_line
from evaluator.batch.progress import Totals
from evaluator.batch.records import Sample, SampleResult, Verdict
from evaluator.batch.summary.rows import ResultBlock, ResultRow, ResultRows
from evaluator.batch.work_items import WorkItem, used_now
from evaluator.lazy_dataclass import dataclass
from evaluator.record.steps import Scrub

_NOTHING_EARLIER = (None, None, None, {})


def pack_work(work: WorkItem) -> tuple[Any, ...]:
    """What `unpack_work` makes the work of. It is pickled faster than the work."""
    earlier: tuple[Any, ...] | None = (work.resumes, work.retry_of, work.answered, work.keeps)
    if earlier == _NOTHING_EARLIER:
        earlier = None
    values = work.packed
    made_by: Any = ""
    if not values:
        values = work.sample.to_values()
        identity = work.identity
        if identity.made_of is None:
            made_by = (identity.key, identity.value, identity.parts)
        else:
            made_by = identity.made_of[-1]
    return (
        values,
        work.epoch,
        work.cell,
        work.variant,
        made_by,
        work.scored_by,
        work.scoring_part,
        earlier,
    )


def unpack_work(packed: tuple[Any, ...]) -> WorkItem:
    """The work that `pack_work` was given."""
    values, epoch, cell, variant, made_by, scored_by, scoring_part, earlier = packed
    sample = Sample.from_values(values)
    if isinstance(made_by, str):
        identity = Identity.of(cell, sample, epoch, made_by)
    else:
        identity = Identity(*made_by)
    work = WorkItem(
        sample,
        epoch,
        cell=cell,
        variant=variant,
        identity=identity,
        scored_by=scored_by,
        scoring_part=scoring_part,
    )
    if earlier is None:
        return work
    resumes, retry_of, answered, keeps = earlier
    return replace(work, resumes=resumes, retry_of=retry_of, answered=answered, keeps=keeps)


@dataclass(slots=True, eq=False)
class ResultLines:
    """The results of `works` as another process has made them, in this order: their lines, and what
    is counted of them: the state of Totals, and what the summary needs.
    """

    works: Sequence[WorkItem]
    lines: bytes
    totals: tuple[Any, ...]
    block: ResultBlock

    @property
    def has_errors(self) -> bool:
        """Whether one of them has the verdict `error`."""
        _, verdicts, *_ = self.totals
        return Verdict.ERROR.value in verdicts

    def results(self) -> list[SampleResult]:
        """The results, read from their lines."""
        return list(map(parse_line, self.lines.splitlines()))


class ResultPacker:
    """Makes the lines of results, without the secrets that `scrub` knows, and keeps them until they
    are sent. `rows` makes the rows of the summary.
    """

    def __init__(self, scrub: Scrub | None, rows: ResultRows) -> None:
        self._scrub = scrub
        self._rows = rows
        self._start()

    def _start(self) -> None:
        self._numbers: list[int] = []
        self._lines: list[bytes] = []
        self._totals = Totals()
        self._made_rows: list[ResultRow] = []

    def __len__(self) -> int:
        return len(self._numbers)

    def add(self, number: int, work: WorkItem, result: SampleResult) -> None:
        """Adds the result of a work, which has this number."""
        ((line, stored),) = encode_results([result], self._scrub)
        row = self._rows.row_of(stored)
        self._totals.add(used_now(work, stored))
        self._numbers.append(number)
        self._lines.append(line)
        self._made_rows.append(row)

    def take(self) -> tuple[list[int], bytes, tuple[Any, ...], ResultBlock]:
        """The numbers of the works, and the arguments of ResultLines after them. There is at least
        one.
        """
        block = ResultBlock.of(self._made_rows)
        taken = self._numbers, b"".join(self._lines), self._totals.state(), block
        self._start()
        return taken
