"""Reports and comparisons of batches, as a file and as JSON.

A report is one HTML file with the numbers, the plots and the samples of batches. It opens offline,
from a disk, and loads nothing else. The numbers are those of the summary; the page computes none.
If not all samples fit, passed ones are left out first, and the page says that it shows n of N.

A comparison of two batches has the result in words, the numbers, the verdicts as a matrix, and the
samples of one of its cells side by side. The report and the server show the same.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, field
from pathlib import Path
from typing import Any, BinaryIO, Literal, get_args

from evaluator import clock
from evaluator.batch import Batch
from evaluator.batch.compare import Comparison, compare
from evaluator.batch.compare.comparison import (
    compare_corrected,
    compare_metrics,
    corrected_tables,
    metric_tables,
)
from evaluator.batch.export.output_path import About, output_file
from evaluator.batch.preferences import preference_table, preferences
from evaluator.batch.records import SampleResult, Verdict
from evaluator.errors import UsageError
from evaluator.errors.messages import amount
from evaluator.lazy_dataclass import frozen
from evaluator.viewer.json_form import JsonForm, encoded, file_parts, with_title
from evaluator.viewer.samples import (
    MAX_TEXT_CHARS,
    Distributions,
    ReadTranscripts,
    SampleSpool,
    folder_url,
    result_data,
)
from evaluator.viewer.samples import transcripts as transcripts_of

Transcripts = Literal["none", "failed", "all"]
MAX_SAMPLES = 20_000
MAX_BYTES = 50_000_000
VERSION = 1


@frozen
class ReportBatch:
    """One batch of a report. `results` are read once, and must have one result per sample and
    epoch.

    `summary` is the JSON of a `BatchSummary`; None: it is computed from the results. `folder` is
    the batch's folder, for links to task files; None: no links. `name` is the name on the page;
    empty: the manifest's.
    """

    results: Iterable[SampleResult]
    manifest: Mapping[str, Any] = field(default_factory=dict[str, Any])
    summary: Mapping[str, Any] | None = None
    folder: str | Path | None = None
    name: str = ""


@frozen
class ReportWritten:
    """The number of samples in a report, the number of all samples, and its size in bytes."""

    shown: int
    total: int
    size_bytes: int


def write_report(
    path: str | Path,
    batches: Sequence[ReportBatch],
    *,
    title: str = "",
    max_samples: int = MAX_SAMPLES,
    max_bytes: int = MAX_BYTES,
    transcripts: Transcripts = "none",
    comparisons: Sequence[Mapping[str, Any]] = (),
) -> ReportWritten:
    """Writes the report atomically; replaces an existing file.

    `transcripts`: results that have those of their task and judges in the page, from the task files
    of the batch's
    folder: `failed` (with errors), `all` or `none`. `max_samples` and `max_bytes` limit the samples
    in the page, divided evenly among batches. `comparisons` are those of `compare_batches`. Memory
    grows by 32 bytes per result, and by what a summary takes if it is computed.

    Raises: UsageError, without a batch, for a limit below 0, or for unknown `transcripts`;
    RecordError, if the report cannot be written.
    """
    path = Path(path)
    if not batches:
        raise UsageError("a report needs a batch; name its folder")
    if max_samples < 0 or max_bytes < 0:
        raise UsageError(
            f"max_samples and max_bytes are {max_samples} and {max_bytes}, expected 0 or more"
        )
    names = _names(batches)
    title = title or " and ".join(names)
    if transcripts not in get_args(Transcripts):
        raise UsageError(
            f"transcripts is {transcripts!r}, expected one of {', '.join(get_args(Transcripts))}"
        )
    with contextlib.ExitStack() as open_spools:
        distributions = Distributions()
        shares = len(batches)
        spools: list[SampleSpool] = []
        heads: list[dict[str, Any]] = []
        for number, (batch, name) in enumerate(zip(batches, names, strict=True)):
            if batch.folder is None:
                folder = None
            else:
                folder = folder_url(Path(batch.folder), path)
            read = _reader(batch.folder, transcripts)
            spool = open_spools.enter_context(
                SampleSpool(
                    max_samples // shares, max_bytes // shares, folder=folder, transcripts=read
                )
            )
            summary = _read(batch, number, spool=spool, distributions=distributions)
            spools.append(spool)
            heads.append(
                {
                    "name": name,
                    "summary": summary,
                    "manifest": dict(batch.manifest),
                    "total": spool.total,
                }
            )
        with output_file(path) as file:
            before, after = file_parts()
            file.write(with_title(before, title).encode())
            shown = _write_data(
                file,
                title,
                heads=heads,
                spools=spools,
                distributions=distributions,
                comparisons=comparisons,
            )
            file.write(after.encode())
            size = file.tell()
        return ReportWritten(shown, sum(spool.total for spool in spools), size_bytes=size)


def _reader(folder: str | Path | None, wanted: Transcripts) -> ReadTranscripts | None:
    if folder is None or wanted == "none":
        return None
    path = Path(folder)
    if wanted == "all":
        verdicts = set(Verdict)
    else:
        verdicts = {Verdict.FAILED, Verdict.ERROR}

    def read(result: SampleResult) -> list[dict[str, Any]] | None:
        if result.verdict not in verdicts:
            return None
        return [each.to_dict() for each in transcripts_of(path, result)]

    return read


def _names(batches: Sequence[ReportBatch]) -> list[str]:
    """A unique name for each batch."""
    names: list[str] = []
    for batch in batches:
        name = batch.name or About(batch.manifest).name
        numbered = (f"{name} ({number})" for number in range(2, len(batches) + 1))
        names.append(next(text for text in (name, *numbered) if text not in names))
    return names


def _read(
    batch: ReportBatch, number: int, spool: SampleSpool, distributions: Distributions
) -> Mapping[str, Any]:
    def watched() -> Iterable[SampleResult]:
        for result in spool.watch(iter(batch.results)):
            distributions.add(number, result)
            yield result

    if batch.summary is None:
        return About(batch.manifest).summarise(watched()).to_dict()
    for _ in watched():
        pass
    return batch.summary


def _write_data(
    file: BinaryIO,
    title: str,
    heads: list[dict[str, Any]],
    spools: list[SampleSpool],
    distributions: Distributions,
    comparisons: Sequence[Mapping[str, Any]],
) -> int:
    """Writes the JSON piece by piece. Returns how many samples are in it."""
    head = {
        "version": VERSION,
        "title": title,
        "created": clock.now().isoformat(timespec="seconds"),
        "view": "report",
        "fields": next((spool.fields for spool in spools if spool.fields), ()),
        "distributions": distributions.to_list(),
        "comparisons": list(comparisons),
        "batches": [
            {**batch, "groups": [list(group) for group in spool.groups]}
            for batch, spool in zip(heads, spools, strict=True)
        ],
    }
    file.write(encoded(head, MAX_TEXT_CHARS)[:-1] + b',"samples":[')
    shown = 0
    for number, spool in enumerate(spools):
        file.write(b"[" if number == 0 else b",[")
        for place, line in enumerate(spool.shown()):
            file.write(line if place == 0 else b",\n" + line)
            shown += 1
        file.write(b"]")
    file.write(b"]}")
    return shown


MAX_FLIPS = 100
"""Flipped samples of each direction whose answers are in a report."""
MAX_ANSWER_CHARS = 20_000
FLIPS = ((Verdict.PASSED, Verdict.FAILED), (Verdict.FAILED, Verdict.PASSED))
Cell = tuple[str, str]


def in_words(comparison: Comparison) -> str:
    """The result in one sentence, with its interval and its size."""
    difference = comparison.difference
    if difference.mean is None:
        return "There is no difference to report: no sample has a value on both sides."
    size = abs(difference.mean)
    if comparison.scorer is None:
        scale = 100
        digits = ".0f"
        shown = f"{100 * size:.1f} points"
    else:
        scale = 1
        digits = ".3g"
        shown = f"{size:.3g} of {comparison.scorer}"
    rows = amount(comparison.n, "pair")
    if difference.low is not None and difference.high is not None:
        ends = [difference.low * scale, difference.high * scale]
        if difference.mean < 0:
            ends = [-end for end in reversed(ends)]
        low, high = (f"{end:{digits}}".replace("-", "−") for end in ends)
        rows = f"95 %: {low} to {high}, {rows}"
    flips = f"{amount(len(comparison.gained), 'row')} gained, {len(comparison.lost):,} lost"
    if difference.mean == 0:
        return f"b is as good as a ({rows}; {flips})."
    word = "better" if difference.mean > 0 else "worse"
    is_certain = difference.low is not None and difference.high is not None
    if is_certain and (difference.low or 0) <= 0 <= (difference.high or 0):
        return f"b is {word} by {shown}, which may be chance ({rows}; {flips})."
    return f"b is {word} by {shown} ({rows}; {flips})."


def numbers_data(
    a: Batch, b: Batch, cells: tuple[Cell, Cell], scorer: str | None = None
) -> dict[str, Any]:
    """The result in words, and the tables of `evaluator compare`.

    Raises: RecordError, if a line of the results was changed; UsageError, if results cannot be
    compared.
    """
    comparison = compare(a.results(cells[0]), b.results(cells[1]), scorer=scorer)
    metrics = compare_metrics(a.metrics_of(cells[0]), b.metrics_of(cells[1]))
    corrected = compare_corrected(a, b, cells, scorer=scorer, cluster=comparison.cluster or None)
    tables = [*comparison.tables(), *corrected_tables(corrected), *metric_tables(metrics)]
    if a.folder == b.folder:
        preferred = [one for one in preferences(a) if {one.a, one.b} == set(cells)]
        tables += [preference_table(preferred)] if preferred else []
    return {
        "words": in_words(comparison),
        "difference": asdict(comparison.difference),
        "sides": [comparison.a.mean, comparison.b.mean],
        "warnings": list(comparison.warnings),
        "tables": [asdict(table) for table in tables],
    }


def verdict_matrix(pairs: Iterable[tuple[Verdict, Verdict]]) -> list[dict[str, Any]]:
    """How many results have each pair of verdicts: that of a and that of b."""
    counted = Counter(pairs)
    return [
        {"a": one.value, "b": other.value, "count": counted[one, other]}
        for one in Verdict
        for other in Verdict
        if counted[one, other]
    ]


def pair_data(
    one: SampleResult, other: SampleResult, hrefs: Sequence[str | None]
) -> dict[str, Any]:
    """A sample and its two results."""
    form = JsonForm(MAX_ANSWER_CHARS)
    results = [result_data(result, href) for result, href in zip((one, other), hrefs, strict=True)]
    return form.plain(
        {
            "title": one.title or "(empty id)",
            "epoch": one.epoch,
            "inputs": one.inputs,
            "target": one.target,
            "results": results,
        }
    )


def compare_batches(a: Batch, b: Batch) -> list[dict[str, Any]]:
    """The comparison of each template × variant that both batches have, for a report; if each batch
    has only one, of these.

    Raises: as `numbers_data`.
    """
    pairs = [(cell, cell) for cell in a.cells if cell in b.cells]
    if len(a.cells) == len(b.cells) == 1:
        pairs = [(a.cells[0], b.cells[0])]
    return [_compared(a, b, pair) for pair in pairs]


def _compared(a: Batch, b: Batch, cells: tuple[Cell, Cell]) -> dict[str, Any]:
    verdicts = {
        (each.sample_id, each.epoch): (each.verdict, each.place) for each in a.results(cells[0])
    }
    pairs = [
        (key, *verdicts[key], each.verdict)
        for each in b.results(cells[1])
        if (key := (each.sample_id, each.epoch)) in verdicts
    ]
    shown: list[tuple[str, int]] = []
    for flip in FLIPS:
        flipped = [(place, key) for key, one, place, other in pairs if (one, other) == flip]
        shown += [key for _, key in sorted(flipped)[:MAX_FLIPS]]
    first, second = (
        _results_of(batch, cell, shown) for batch, cell in zip((a, b), cells, strict=True)
    )
    return {
        "names": [a.name, b.name],
        "cells": [" × ".join(part for part in cell if part) for cell in cells],
        "numbers": numbers_data(a, b, cells),
        "matrix": verdict_matrix((one, other) for _, one, _, other in pairs),
        "pairs": [pair_data(first[key], second[key], (None, None)) for key in shown],
    }


def _results_of(
    batch: Batch, cell: Cell, keys: Collection[tuple[str, int]]
) -> dict[tuple[str, int], SampleResult]:
    found = batch.results(cell) if keys else ()
    wanted = set(keys)
    return {key: each for each in found if (key := (each.sample_id, each.epoch)) in wanted}
