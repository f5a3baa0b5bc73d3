"""A batch as it lies in its folder, also while a process works on it, or after one was killed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evaluator.batch.export.about import About
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

    def results(self, cell: tuple[str, str] | None = None) -> Iterator[SampleResult]:
        """The current results of what the last session asked for, or of one cell of it, one at a time: neither
        those of rows that it did not have nor answers to other questions than its own.

        Raises: RecordError, where a line of the results was changed.
        """
        is_left_out = self._left_out(set(self.cells) if cell is None else {cell})
        return (result for result in BatchFolder.reader(self.folder).results() if not is_left_out(result))

    def _left_out(self, cells: set[tuple[str, str]]) -> Callable[[SampleResult], bool]:
        keys = set(self.manifest.get("left_out", []))
        return lambda result: (result.template, result.variant) not in cells or result.key in keys

    def summarise(self) -> BatchSummary:
        """The numbers as they are now. Raises: as `results`."""
        manifest = self.manifest
        return summarise(
            BatchFolder.reader(self.folder).lines(),
            total=self.totals,
            unfinished=About(manifest).unfinished,
            left_out=self._left_out(set(self.cells)),
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
