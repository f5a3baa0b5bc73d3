"""Exports a batch's results to other formats, with one function in EXPORTERS for each format.

`csv`, `jsonl`, `parquet` and `junit` hold a bounded number of results in memory; `markdown` and
`inspect` also count them (see `summarise`) where no summary is given, and `inspect` holds an
archive's table of contents. Each reads the results once, in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from evaluator.batch.export.inspect import write_inspect
from evaluator.batch.export.output_path import About, Total
from evaluator.batch.export.reports import write_junit, write_markdown
from evaluator.batch.export.result_table import (
    to_pandas,
    to_polars,
    write_csv,
    write_jsonl,
    write_parquet,
)
from evaluator.batch.labels import CurrentLabels
from evaluator.batch.records import SampleResult
from evaluator.batch.summary import BatchSummary
from evaluator.errors import UsageError
from evaluator.errors.messages import did_you_mean, listed

Exporter = Callable[[Iterable[SampleResult], About, Path], Sequence[Path] | None]
"""Writes results to a path. Returns: the files, where these are others than the path."""

EXPORTERS: dict[str, Exporter] = {
    "csv": write_csv,
    "inspect": write_inspect,
    "jsonl": write_jsonl,
    "junit": write_junit,
    "markdown": write_markdown,
    "parquet": write_parquet,
}

SUMMARISED = ("inspect", "junit", "markdown")
"""Formats that have numbers of the whole batch."""


def export(
    results: Iterable[SampleResult],
    manifest: Mapping[str, Any],
    format: str,
    path: str | Path,
    *,
    total: Total = None,
    summary: BatchSummary | None = None,
    labels: CurrentLabels | None = None,
) -> list[Path]:
    """Writes `results` to `path`, completely or not at all; an existing file is replaced.

    `format` is a name in EXPORTERS. `total` is the number of results that there will be (see
    `summarise`): `markdown` counts pending ones, and `junit` has an error for them, and for a batch
    that its manifest calls unfinished. `summary` (`Batch.summarise`) has metrics, corrected numbers
    and the stability of judges for `markdown`, `junit` and `inspect`; without it, `markdown` and
    `inspect` count the results. `labels` (`Batch.labels`) are in the tables and lines.

    Returns: what was written: `path`, or the files of several templates or variants.
    Raises: UsageError, for an unknown format; RecordError, where the file cannot be written;
    MissingExtra.
    """
    exporter = EXPORTERS.get(format)
    if exporter is None:
        hint = did_you_mean(format, EXPORTERS) or f"formats: {listed(EXPORTERS, len(EXPORTERS))}"
        raise UsageError(f"unknown export format {format!r}; {hint}")
    written = exporter(results, About(manifest, total, summary=summary, labels=labels), Path(path))
    return [Path(path)] if written is None else list(written)


__all__ = ["EXPORTERS", "SUMMARISED", "About", "Exporter", "export", "to_pandas", "to_polars"]


def __dir__() -> list[str]:
    return __all__
