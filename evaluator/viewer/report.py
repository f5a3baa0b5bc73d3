"""Writes a report: one HTML file with the numbers, the plots and the samples of batches.

It opens offline, from a disk, and loads nothing else. The numbers are those of the summary; the
page computes none. If not all samples fit, passed ones are left out first, and the page says that
it shows n of N.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, BinaryIO, Literal, get_args

from evaluator import clock
from evaluator.batch.export.output_path import About, output_file
from evaluator.batch.records import SampleResult, Verdict
from evaluator.errors import UsageError
from evaluator.lazy_dataclass import dataclass
from evaluator.viewer.histograms import Distributions
from evaluator.viewer.json_form import encoded, file_parts, with_title
from evaluator.viewer.samples import MAX_TEXT_CHARS, ReadTranscripts, SampleSpool, folder_url
from evaluator.viewer.samples import transcripts as transcripts_of

Transcripts = Literal["none", "failed", "all"]
MAX_SAMPLES = 20_000
MAX_BYTES = 50_000_000
VERSION = 1


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
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
        again = next(
            text
            for n in range(1, len(batches) + 1)
            if (text := name if n == 1 else f"{name} ({n})") not in names
        )
        names.append(again)
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
