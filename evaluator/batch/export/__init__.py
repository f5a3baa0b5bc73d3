"""A batch's results in other formats; one module a format.

`csv`, `jsonl`, `parquet` and `junit` hold a bounded number of results at a time; `markdown` and `inspect` count them
besides (see `summarise`), and `inspect` holds an archive's table of contents. Each takes results in the order in which
they come and reads them once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from evaluator.batch.export.about import About, Total
from evaluator.batch.export.delimited import write_csv
from evaluator.batch.export.frames import to_pandas, to_polars
from evaluator.batch.export.inspect import write_inspect
from evaluator.batch.export.jsonl import write_jsonl
from evaluator.batch.export.junit import write_junit
from evaluator.batch.export.markdown import write_markdown
from evaluator.batch.export.parquet import write_parquet
from evaluator.batch.records import SampleResult
from evaluator.errors import UsageError
from evaluator.library.near import did_you_mean, listed

Exporter = Callable[[Iterable[SampleResult], About, Path], None]

EXPORTERS: dict[str, Exporter] = {
    "csv": write_csv,
    "inspect": write_inspect,
    "jsonl": write_jsonl,
    "junit": write_junit,
    "markdown": write_markdown,
    "parquet": write_parquet,
}


def export(
    results: Iterable[SampleResult],
    manifest: Mapping[str, Any],
    format: str,
    path: str | Path,
    *,
    total: Total = None,
) -> None:
    """Writes `results` to `path`, whole or not at all; a file that is there is replaced.

    `format` is a name in EXPORTERS. `total` is how many results there will be (see `summarise`): `markdown` counts
    those that are pending, and `junit` has an error for them, and for a batch that is unfinished by its manifest.

    Raises: UsageError, for a format that is not known; RecordError, where the file cannot be written; MissingExtra.
    """
    exporter = EXPORTERS.get(format)
    if exporter is None:
        hint = did_you_mean(format, EXPORTERS) or f"known are {listed(sorted(EXPORTERS), len(EXPORTERS))}"
        raise UsageError(f"{format!r} is no format to export to; {hint}")
    exporter(results, About(manifest, total), Path(path))


__all__ = ["EXPORTERS", "About", "Exporter", "export", "to_pandas", "to_polars"]
