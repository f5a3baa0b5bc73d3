"""Work and results as they are sent between processes.

The process that evaluates makes the lines of its results, and counts them; the batch's process
writes the lines and adds up the counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field, replace
from typing import Any

from evaluator.batch.identity import Identity, encode_results, parse_line
from evaluator.batch.progress import Totals
from evaluator.batch.records import Sample, SampleResult, Verdict
from evaluator.batch.summary.rows import ResultBlock, ResultRow, ResultRows
from evaluator.batch.work_items import WorkItem, WorkResult, used_now
from evaluator.lazy_dataclass import dataclass
from evaluator.record.steps import Scrub


@dataclass(slots=True, eq=False)
class Job:
    """A sample that a process evaluates. `unrecorded` and `counted`: task files of the sample, by
    label, as those of a Worker. `lost`: how many processes were lost with it, and `unseen` how many
    of them with its task files: each of these may have made calls.
    """

    number: int
    work: WorkItem
    unrecorded: dict[str, int]
    counted: dict[str, int] = field(default_factory=dict[str, int])
    lost: int = 0
    unseen: int = 0

    def with_unseen(self, done: WorkResult) -> WorkResult:
        """The end of its work, with a call in flight for each process that was lost with its task
        files.
        """
        result = done.result
        if not self.unseen or result is None:
            return done
        calls = result.interrupted_calls + self.unseen
        return replace(done, result=replace(result, interrupted_calls=calls))


PackedJobs = tuple[tuple[Any, ...], list[int], list[Any], list[Any]]
"""Jobs of one cell and epoch: these and what belongs to the cell; then for each job its number, its
sample, and the rest, if there is any.
"""


def pack_jobs(jobs: Iterable[Job]) -> list[PackedJobs]:
    """What `unpack_jobs` makes the jobs of, in their order. The samples that a work has as bytes
    are sent as they are.
    """
    packed: list[PackedJobs] = []
    common: tuple[Any, ...] = ()
    numbers: list[int] = []
    samples: list[Any] = []
    rests: list[Any] = []
    for job in jobs:
        work = job.work
        cell = (work.epoch, work.cell, work.variant, work.scoring_part)
        if cell != common:
            common = cell
            numbers = []
            samples = []
            rests = []
            packed.append((common, numbers, samples, rests))
        numbers.append(job.number)
        if not work.packed:
            samples.append(work.sample.to_values())
            rests.append((_rest_of(work), job.unrecorded, job.counted, job.unseen))
        else:
            samples.append(work.packed)
            if job.unrecorded or job.counted or job.unseen:
                rests.append((None, job.unrecorded, job.counted, job.unseen))
            else:
                rests.append(None)
    return packed


def _rest_of(work: WorkItem) -> tuple[Any, ...]:
    """What a work has besides its sample."""
    identity = work.identity
    if identity.made_of is None:
        made_by = (identity.key, identity.value, identity.parts)
    else:
        made_by = identity.made_of[-1]
    earlier = (work.resumes, work.retry_of, work.answered, work.keeps)
    return made_by, work.scored_by, earlier


def unpack_jobs(packed: Iterable[PackedJobs]) -> Iterator[Job]:
    """The jobs that `pack_jobs` was given."""
    for (epoch, cell, variant, scoring_part), numbers, samples, rests in packed:
        for number, sample, more in zip(numbers, samples, rests, strict=True):
            if isinstance(sample, bytes):
                _, unrecorded, counted, unseen = more or (None, {}, {}, 0)
                work = WorkItem.of(
                    sample, epoch, cell=cell, variant=variant, scoring_part=scoring_part
                )
                yield Job(number, work, unrecorded, counted=counted, unseen=unseen)
                continue
            (made_by, scored_by, earlier), unrecorded, counted, unseen = more
            unpacked = Sample.from_values(sample)
            if isinstance(made_by, str):
                identity = Identity.of(cell, unpacked, epoch, made_by)
            else:
                identity = Identity(*made_by)
            resumes, retry_of, answered, keeps = earlier
            work = WorkItem(
                unpacked,
                epoch,
                cell=cell,
                variant=variant,
                identity=identity,
                scored_by=scored_by,
                resumes=resumes,
                retry_of=retry_of,
                answered=answered,
                keeps=keeps,
                scoring_part=scoring_part,
            )
            yield Job(number, work, unrecorded, counted=counted, unseen=unseen)


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
        (line,), (stored,) = encode_results([result], self._scrub)
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
