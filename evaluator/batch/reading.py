"""A batch as it lies in its folder, also while a process works on it, or after one was killed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evaluator.batch.folder import BatchFolder
from evaluator.batch.records import SampleResult
from evaluator.batch.summary import BatchSummary, summarise


@dataclass(frozen=True, slots=True)
class Batch:
    """What a folder holds of a batch. `totals` is how many results each template and variant will have; None where
    nobody knows, as of rows that come from an iterator that was not read to its end."""

    folder: Path
    manifest: Mapping[str, Any]
    totals: Mapping[tuple[str, str], int] | None

    @property
    def name(self) -> str:
        return self.manifest.get("name") or self.folder.name

    @property
    def cells(self) -> list[tuple[str, str]]:
        """The templates and variants that the last session asked for."""
        return [(cell["template"], cell["variant"]) for cell in self.manifest.get("cells", [])]

    @property
    def unfinished(self) -> str:
        """Why it is not complete: how its last session ended, or that it runs or was killed; empty where it is."""
        state = self.manifest.get("state")
        if state == "complete":
            return ""
        if state == "running":
            return "a session runs, or was killed"
        reason = (self.manifest.get("sessions") or [{}])[-1].get("reason")
        return f"the last session ended: {state}" + (f": {reason}" if reason else "")

    def lines(self) -> Iterator[SampleResult]:
        """As `results`, with those before them that later ones took the place of.

        Raises: as `results`.
        """
        yield from self._those(BatchFolder.reader(self.folder).lines(), set(self.cells))

    def results(self, cell: tuple[str, str] | None = None) -> Iterator[SampleResult]:
        """The current results of what the last session asked for, or of one cell of it, one at a time: neither
        those of rows that it did not have nor answers to other questions than its own.

        Raises: RecordError, where a line of the results was changed.
        """
        cells = set(self.cells) if cell is None else {cell}
        yield from self._those(BatchFolder.reader(self.folder).results(), cells)

    def _those(self, found: Iterator[SampleResult], cells: set[tuple[str, str]]) -> Iterator[SampleResult]:
        without = set(self.manifest.get("left_out", []))
        for result in found:
            if (result.template, result.variant) in cells and result.key not in without:
                yield result

    def summarise(self) -> BatchSummary:
        """The numbers as they are now. Raises: as `results`."""
        manifest = self.manifest
        return summarise(
            self.lines(),
            total=self.totals,
            unfinished=self.unfinished,
            cluster=manifest.get("cluster"),
            group_by=manifest.get("group_by"),
            reducers=manifest.get("reducers"),
        )


def open_batch(folder: str | Path) -> Batch:
    """The batch in `folder`.

    Raises: RecordError, if there is none or it cannot be read.
    """
    path = Path(folder)
    manifest = BatchFolder.reader(path).manifest()
    total, cells = manifest.get("total"), manifest.get("cells", [])
    totals = None
    if isinstance(total, int) and cells:
        totals = {(cell["template"], cell["variant"]): total // len(cells) for cell in cells}
    return Batch(path, manifest, totals)
