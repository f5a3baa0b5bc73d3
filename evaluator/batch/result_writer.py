"""Writes the results of a session, many in one write, and counts what is written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter

from evaluator.batch.abandoned import ContinuedRuns
from evaluator.batch.engines.base import Done
from evaluator.batch.engines.packing import ResultLines
from evaluator.batch.folder import BatchFolder
from evaluator.batch.identity import encode_results
from evaluator.batch.progress import Tally
from evaluator.batch.records import SampleResult
from evaluator.batch.summary import Columns
from evaluator.batch.work_items import WorkItem, used_now
from evaluator.errors import UsageError
from evaluator.record.steps import Scrub

_lines_of: Callable[[ResultLines], bytes] = attrgetter("lines")


class ResultWriter:
    """Collects results until `write`. Those of other processes are lines already.

    `tally` counts what is written, without what the runs of earlier sessions that it continues
    (`continued`) had used. `columns` has earlier results and gets each one that is written;
    None after an error, which the summary raises again. Lines are written without the secrets that
    `scrub` knows.
    """

    def __init__(
        self,
        folder: BatchFolder,
        tally: Tally,
        columns: Columns | None,
        scrub: Scrub | None,
        continued: ContinuedRuns,
    ) -> None:
        self.tally = tally
        self.columns = columns
        self.continued = continued
        self._folder = folder
        self._scrub = scrub
        self._made: list[SampleResult] = []
        self._works: list[WorkItem] = []
        self._lines: list[ResultLines] = []

    def __len__(self) -> int:
        return len(self._made) + len(self._lines)

    def add(self, done: Done) -> None:
        """Adds what has ended, if it has results."""
        if isinstance(done, ResultLines):
            self._lines.append(done)
        elif done.result is not None:
            self._made.append(done.result)
            self._works.append(done.work)

    def write(self) -> None:
        """Writes what was added since. Raises: RecordError, if it cannot be written."""
        parts = self._lines
        works = self._works
        made = self._made
        if not made and not parts:
            return
        lines, results = encode_results(made, self._scrub)
        self._made = []
        self._works = []
        self._lines = []
        lines += map(_lines_of, parts)
        self._folder.append_lines(b"".join(lines))
        for part in parts:
            self.tally.merge(part.totals)
        for work, result in zip(works, results, strict=True):
            self.tally.add(used_now(work, result))
        if self.continued:
            self._take_back_continued(works, made)
            for part in parts:
                self._take_back_continued(part.works, part.results())
        columns = self.columns
        if columns is None:
            return
        try:
            for part in parts:
                columns.put_block(part.block)
            for result in results:
                columns.add(result)
        except UsageError:
            self.columns = None

    def _take_back_continued(
        self, works: Sequence[WorkItem], results: Sequence[SampleResult]
    ) -> None:
        for work, result in zip(works, results, strict=True):
            before = self.continued.take(result)
            if before is not None:
                counted = SampleResult.from_dict(used_now(work, result.to_dict()))
                self.tally.take_back(counted, before)


def results_of(done: Done) -> Sequence[SampleResult]:
    """The results of what has ended."""
    if isinstance(done, ResultLines):
        return done.results()
    return [] if done.result is None else [done.result]
