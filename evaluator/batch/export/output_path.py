"""What an export knows of a batch besides its results, and its output file."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Generator, Iterable, Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Any, BinaryIO, cast

from evaluator.batch.decision import Decision
from evaluator.batch.folder import (
    CHANGED,
    DAMAGED,
    LABELS,
    MANIFEST,
    MAX_MANIFEST_BYTES,
    RESULTS,
    SUMMARY,
    TASKS,
)
from evaluator.batch.identity import SCHEMA, unfinished_reason
from evaluator.batch.labels import CurrentLabels
from evaluator.batch.records import SampleResult
from evaluator.batch.summary import BatchSummary, GroupSummary, summarise
from evaluator.errors import UsageError
from evaluator.files.atomic import atomic_file
from evaluator.files.open_below import read_regular
from evaluator.lazy_dataclass import frozen

Total = int | Mapping[tuple[str, str], int] | None


@frozen
class About:
    """A batch's manifest, its total number of results (see `summarise`), its summary, and the
    labels of people; None where one is unknown.
    """

    manifest: Mapping[str, Any] = field(default_factory=dict[str, Any])
    total: Total = None
    summary: BatchSummary | None = None
    labels: CurrentLabels | None = None

    @property
    def name(self) -> str:
        return self.text("name") or "batch"

    def text(self, key: str) -> str:
        """The text under `key` in the manifest; empty without one."""
        value = self.manifest.get(key)
        if isinstance(value, str):
            return value
        return ""

    @property
    def unfinished(self) -> str:
        """Why the batch is unfinished, see `unfinished_reason`."""
        return unfinished_reason(self.manifest)

    def summarise(self, results: Iterable[SampleResult]) -> BatchSummary:
        """The summary of the batch, or else of `results`, which are read to their end. Raises: as
        `summarise`.
        """
        if self.summary is not None:
            for _ in results:
                pass
            return self.summary
        found = summarise(
            results,
            total=self.total,
            cluster=self.text("cluster") or None,
            unfinished=self.unfinished,
        )
        decision = self.decision
        if decision is None:
            notes = found.notes
        else:
            notes = (*found.notes, decision.status)
        return replace(found, decision=decision, notes=notes)

    def group(self, template: str, variant: str) -> GroupSummary | None:
        """The numbers of a template and variant, if they are known without reading the results."""
        for group in () if self.summary is None else self.summary.groups:
            if (group.template, group.variant) == (template, variant):
                return group
        return None

    @property
    def decision(self) -> Decision | None:
        """What the batch had to decide. Raises: RecordError, if its record is damaged."""
        return Decision.of(self.manifest)


_RECORDS = frozenset({MANIFEST, RESULTS, SUMMARY, LABELS, CHANGED, DAMAGED})


@contextlib.contextmanager
def output_file(path: str | Path) -> Generator[BinaryIO]:
    """`atomic_file`, except for a file of a batch's record.

    Raises: UsageError, as `check_not_record`; RecordError, if it cannot be written.
    """
    check_not_record(path)
    with atomic_file(path) as file:
        yield file


def check_not_record(path: str | Path) -> None:
    """Raises: UsageError, where `path` is a file of a batch's record, or a link to one: the batch
    could not be opened without it.
    """
    path = Path(path)
    try:
        places = {path.parent.resolve() / path.name, path.resolve()}
    except (OSError, RuntimeError, ValueError):
        # Links in a circle lead to no file.
        return
    for place in places:
        for folder in place.parents:
            below = place.relative_to(folder).parts
            if (below[0] == TASKS or (len(below) == 1 and below[0] in _RECORDS)) and _is_batch(
                folder
            ):
                raise UsageError(
                    f"{path}: belongs to the record of the batch {folder}; choose another "
                    "output file"
                )


def _is_batch(folder: Path) -> bool:
    try:
        manifest = json.loads(read_regular(folder / MANIFEST, MAX_MANIFEST_BYTES))
    except (OSError, ValueError, RecursionError):
        return False
    if isinstance(manifest, dict):
        schema = cast("dict[str, Any]", manifest).get("schema")
    else:
        schema = None
    return isinstance(schema, str) and schema.partition("/")[0] == SCHEMA.partition("/")[0]
