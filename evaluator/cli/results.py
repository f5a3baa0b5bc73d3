"""`evaluator summary`, `compare`, `report`, `export`, `view` and `batch merge`: the results of
batches.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import shlex
import shutil
import stat
import tempfile
from collections.abc import Generator, Iterable, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from evaluator import disk
from evaluator.cli import common
from evaluator.cli.batch import EXIT_INCOMPLETE, EXIT_THRESHOLD, exit_code_of_thresholds
from evaluator.cli.echo import echo
from evaluator.errors import UsageError
from evaluator.errors.messages import amount, listed
from evaluator.files.atomic import lock, try_lock

if TYPE_CHECKING:
    from evaluator.batch import Batch
    from evaluator.batch.compare.comparison import Comparison, CorrectedComparison, MetricDifference
    from evaluator.viewer.report import Transcripts


_FORMATS = ("csv", "inspect", "jsonl", "junit", "markdown", "parquet")

batch_argument = click.argument("batch", type=common.FOLDER)


@click.command(
    epilog="Examples:\n\n\b\n  evaluator compare batches/small batches/large\n"
    "  evaluator compare batches/both --variant openai/gpt-4o-mini --variant openai/gpt-4o "
    "--scorer f1"
)
@click.argument("batches", nargs=-1, required=True, type=common.FOLDER)
@click.option(
    "--template",
    "templates",
    multiple=True,
    metavar="NAME",
    help="The template of each side, if a batch has several. Once, or twice.",
)
@click.option(
    "--variant",
    "variants",
    multiple=True,
    metavar="NAME",
    help="The model or handler of each side, if a batch has several. Once, or twice.",
)
@click.option(
    "--scorer", metavar="NAME", help="Compare its values. Default: whether the whole result passed."
)
@click.option(
    "--by", default="id", show_default=True, metavar="FIELD", help="id, inputs, or metadata.NAME."
)
@click.option(
    "--cluster",
    metavar="FIELD",
    help="A metadata field whose equal values are not independent. Default: that of both batches.",
)
@click.option(
    "--no-cluster", is_flag=True, help="Treat samples as independent, whatever the batches declare."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the bootstrap.")
@click.option(
    "--min-difference",
    type=float,
    metavar="D",
    help="Exit with 4 unless the whole interval of B - A is at least D, e.g. -0.02; with 5 if that "
    "cannot be decided.",
)
@common.markdown_option
@common.json_option
def compare(
    batches: tuple[Path, ...],
    templates: tuple[str, ...],
    variants: tuple[str, ...],
    scorer: str | None,
    by: str,
    cluster: str | None,
    no_cluster: bool,
    seed: int,
    min_difference: float | None,
    markdown: bool,
    as_json: bool,
) -> None:
    """Compare two batches, or two variants of one, sample by sample.

    Prints how many samples are in both, the difference B - A with its interval and p-value, the
    samples whose verdict differs, and how many samples it takes to detect a smaller difference.
    """
    from evaluator.batch.compare import clusters_differ
    from evaluator.batch.compare import compare as compared
    from evaluator.batch.compare.comparison import compare_corrected, compare_metrics
    from evaluator.batch.reading import Results, open_batch
    from evaluator.batch.thresholds import ThresholdStatus

    paths = list(batches)
    if len(paths) > 2:
        raise UsageError(f"give one or two batches, not {len(paths)}")
    if len(paths) == 1 and len(variants) != 2 and len(templates) != 2:
        raise UsageError("give two batches, or one with two --variant or two --template")
    if no_cluster and cluster is not None:
        raise UsageError("give --cluster or --no-cluster, not both")
    common.refuse_two_formats(markdown, as_json)
    if min_difference is not None and not math.isfinite(min_difference):
        raise UsageError(f"--min-difference is {min_difference}, expected a finite number")
    a = open_batch(paths[0])
    b = open_batch(paths[-1])
    if no_cluster:
        cluster = ""
    first = cell_of(
        a, templates[0] if templates else None, variant=variants[0] if variants else None
    )
    second = cell_of(
        b, templates[-1] if templates else None, variant=variants[-1] if variants else None
    )
    sides = a.results(first), b.results(second)
    with common.WorkProgress(
        "comparing", "result", total=_total(side.declared.total for side in sides)
    ) as progress:
        counted = (Results(progress.each(side), side.declared) for side in sides)
        found = compared(*counted, by=by, scorer=scorer, cluster=cluster, seed=seed)
    if min_difference is not None and found.is_at_odds:
        raise UsageError(
            f"{clusters_differ(a.cluster, b.cluster)}; with --min-difference give --cluster FIELD "
            "or --no-cluster"
        )
    metrics = compare_metrics(a.metrics_of(first), b.metrics_of(second))
    corrected: list[CorrectedComparison] = []
    if by == "id":
        corrected = compare_corrected(
            a, b, (first, second), scorer=scorer, cluster=found.cluster or None
        )
    for name, batch, cell in (("a", a, first), ("b", b, second)):
        if _is_simulated(batch, cell):
            echo(f"note: answers of {name} are simulated", err=True)
    titles = f"a: {a.folder!s}, {' × '.join(first)}", f"b: {b.folder!s}, {' × '.join(second)}"
    _print_comparison(found, metrics, corrected, titles=titles, as_json=as_json, markdown=markdown)
    if min_difference is not None:
        status, why = found.at_least(min_difference)
        if status is not ThresholdStatus.MET:
            echo(f"{status}: {why}", err=True)
            raise click.exceptions.Exit(
                EXIT_THRESHOLD if status is ThresholdStatus.MISSED else EXIT_INCOMPLETE
            )


def _print_comparison(
    found: Comparison,
    metrics: Sequence[MetricDifference],
    corrected: Sequence[CorrectedComparison],
    *,
    titles: Sequence[str],
    as_json: bool,
    markdown: bool,
) -> None:
    from evaluator.batch.compare.comparison import corrected_tables, metric_tables
    from evaluator.batch.summary.tables import as_markdown, as_text

    tables = list(corrected_tables(corrected))
    if metrics:
        tables += metric_tables(metrics)
    if as_json:
        common.print_json(
            {
                **found.to_dict(),
                "corrected": {each.scorer: each.to_dict() for each in corrected},
                "metrics": {each.name: each.to_dict() for each in metrics},
            }
        )
    elif markdown:
        echo(found.to_markdown(), nl=False)
        if tables:
            echo("\n" + as_markdown(tables), nl=False)
    else:
        for title in titles:
            echo(title)
        echo(found.to_text(common.terminal_width()), nl=False)
        if tables:
            echo("\n" + as_text(tables, common.terminal_width()), nl=False)


def _is_simulated(batch: Batch, cell: tuple[str, str]) -> bool:
    return any(
        each.get("simulated") is True
        for each in batch.manifest.get("cells", [])
        if (each["template"], each["variant"]) == cell
    )


def _total(totals: Iterable[int | None]) -> int | None:
    """The sum, None if a total is unknown."""
    known = list(totals)
    if None in known:
        return None
    return sum(total or 0 for total in known)


def cell_of(batch: Batch, template: str | None, variant: str | None) -> tuple[str, str]:
    """The only cell with this template and variant, or with these words in their names.

    Raises: UsageError, if there are several, or none.
    """
    template = _named(template, [cell[0] for cell in batch.cells])
    variant = _named(variant, [cell[1] for cell in batch.cells])
    fitting = [
        cell
        for cell in batch.cells
        if (template is None or cell[0] == template) and (variant is None or cell[1] == variant)
    ]
    if len(fitting) == 1:
        return fitting[0]
    templates = {cell[0] for cell in batch.cells}
    variants = {cell[1] for cell in batch.cells}
    near = [
        cell for cell in batch.cells if (template or "") in cell[0] and (variant or "") in cell[1]
    ]
    if near:
        what = "has several fitting"
    else:
        what = "has no such"
    raise UsageError(
        f"{batch.folder} {what} template and variant; choose with --template "
        f"({listed(templates)}) and --variant "
        f"({listed(variants)})"
    )


def _named(part: str | None, names: Sequence[str]) -> str | None:
    """The only one of `names` that contains `part`, else `part` itself."""
    fitting = {name for name in names if part and part in name}
    if part not in names and len(fitting) == 1:
        return fitting.pop()
    return part


@click.command(epilog="Example:  evaluator report batches/capitals-20260102-150405")
@click.argument("batches", nargs=-1, required=True, type=common.FOLDER)
@click.option(
    "--output",
    "-o",
    type=common.FILE,
    metavar="FILE",
    help="The HTML file. Default: report.html in the first batch's folder.",
)
@click.option("--title", default="", help="Title of the page. Default: the names of the batches.")
@click.option(
    "--max-samples",
    type=click.IntRange(min=0),
    help="Samples in the page, at most. Default: 20,000.",
)
@click.option(
    "--transcripts",
    type=click.Choice(["none", "failed", "all"]),
    default="none",
    show_default=True,
    help="Results whose conversations are in the page: failed ones and errors, or all.",
)
def report(
    batches: tuple[Path, ...],
    output: Path | None,
    title: str,
    max_samples: int | None,
    transcripts: Transcripts,
) -> None:
    """Write one self-contained HTML page with numbers, plots and samples, which opens offline.

    Two batches are compared, as `evaluator compare` does, with the answers of flipped samples side
    by side.
    """
    from evaluator.batch.export.output_path import check_not_record
    from evaluator.batch.reading import open_batch
    from evaluator.viewer import MAX_SAMPLES, ReportBatch, compare_batches, write_report

    found = [open_batch(path) for path in batches]
    names = [each.name for each in found]
    if len(set(names)) < len(names):
        names = [str(folder) for folder in batches]
    path = output or batches[0] / "report.html"
    check_not_record(path)
    results = [each.results() for each in found]
    with common.WorkProgress(
        "writing the report", "result", total=_total(each.declared.total for each in results)
    ) as progress:
        parts = [
            ReportBatch(
                progress.each(own),
                each.manifest,
                summary=each.summarise().to_dict(),
                folder=each.folder,
                name=name,
            )
            for each, own, name in zip(found, results, names, strict=True)
        ]
        if max_samples is None:
            limit = MAX_SAMPLES
        else:
            limit = max_samples
        if len(found) == 2:
            compared = [each | {"names": names} for each in compare_batches(*found)]
        else:
            compared = []
        written = write_report(
            path,
            parts,
            title=title,
            max_samples=limit,
            transcripts=transcripts,
            comparisons=compared,
        )
    echo(
        f"{path}: {written.shown:,} of {amount(written.total, 'sample')}, "
        f"{written.size_bytes / 1e6:.1f} MB"
    )


@click.command(
    epilog="Example:  evaluator export batches/capitals-20260102-150405 --format junit -o junit.xml"
)
@batch_argument
@click.option("--format", "-f", "kind", type=click.Choice(_FORMATS), required=True)
@click.option("--output", "-o", type=common.PATH, required=True, metavar="FILE")
def export(batch: Path, kind: str, output: Path) -> None:
    """Write a batch's results in another format; replaces an existing file."""
    from evaluator.batch.export import SUMMARISED
    from evaluator.batch.export import export as exported
    from evaluator.batch.export.output_path import check_not_record
    from evaluator.batch.reading import open_batch

    found = open_batch(batch)
    check_not_record(output)
    results = found.results()
    with common.WorkProgress("exporting", "result", total=results.declared.total) as progress:
        if kind in SUMMARISED:
            summary = found.summarise()
        else:
            summary = None
        written = exported(
            progress.each(results),
            found.manifest,
            format=kind,
            path=output,
            total=found.totals,
            summary=summary,
            labels=found.labels(),
        )
    for path in written:
        echo(str(path))


@click.command(
    epilog="Example:  evaluator summary batches/capitals-20260102-150405 --threshold 'accuracy "
    ">= 0.8'"
)
@batch_argument
@click.option(
    "--threshold",
    "thresholds",
    multiple=True,
    metavar="CONDITION",
    help="A condition on the numbers. May be repeated.",
)
@common.markdown_option
@common.json_option
def summary(batch: Path, thresholds: tuple[str, ...], markdown: bool, as_json: bool) -> None:
    """Show a batch's numbers as they are now, and check thresholds; makes no call."""
    from evaluator.batch.reading import open_batch

    common.refuse_two_formats(markdown, as_json)
    _print_summary(open_batch(batch), thresholds, markdown=markdown, as_json=as_json)


@click.command(epilog="Example:  evaluator batch merge shards/1 shards/2 shards/3 -o merged")
@click.argument("folders", nargs=-1, required=True, type=common.FOLDER)
@click.option(
    "--output",
    "-o",
    type=common.PATH,
    required=True,
    metavar="FOLDER",
    help="A new folder for the merged batch.",
)
@common.json_option
def merge(folders: tuple[Path, ...], output: Path, as_json: bool) -> None:
    """Merge batches that were run with --shard into one folder, print its summary and check its
    thresholds.

    FOLDERS are those of the shards; they stay as they are. If some are missing or incomplete, so is
    the merged batch; resume it to run the rest.
    """
    from evaluator.batch.merge import merge_shards

    merged = merge_shards(folders, output)
    reason = merged.manifest["sessions"][-1]["reason"]
    echo(f"results: {output}", err=True)
    if reason:
        echo(f"incomplete: {reason}", err=True)
        echo(f"run the rest with: evaluator batch --resume {shlex.quote(str(output))}", err=True)
    _print_summary(merged, as_json=as_json)


def _print_summary(
    found: Batch, thresholds: Sequence[str] = (), *, markdown: bool = False, as_json: bool
) -> None:
    """Prints the numbers of a batch and the outcome of `thresholds`, or of its own; those of a
    shard are left to its whole batch.

    Raises: Exit, unless the batch is complete and meets them.
    """
    from evaluator.batch.scorers import is_bounded
    from evaluator.batch.thresholds import (
        check_fit,
        check_thresholds,
        measured_scorers,
        parse_threshold,
    )

    if found.manifest.get("shard"):
        own = []
    else:
        own = found.manifest.get("thresholds", [])
    wanted = [parse_threshold(threshold) for threshold in thresholds or own]
    numbers = found.summarise(measured=measured_scorers(wanted))
    scorers = found.manifest.get("scorers", {})
    check_fit(
        wanted,
        scorers=scorers,
        cells=found.cells,
        epochs=found.manifest.get("epochs", 1),
        reducers=None,
        bounded=[name for name, part in scorers.items() if is_bounded(part)],
        metrics={name for group in numbers.groups for name in group.metrics},
    )
    checked = check_thresholds(numbers, wanted)
    if as_json:
        common.print_json(
            {
                "summary": numbers.to_dict(),
                "thresholds": [threshold.to_dict() for threshold in checked],
            }
        )
    else:
        if markdown:
            shown = numbers.to_markdown()
        else:
            shown = numbers.to_text(common.terminal_width())
        echo(shown, nl=False)
        for threshold in checked:
            echo(str(threshold))
    if any(_is_simulated(found, cell) for cell in found.cells):
        echo("note: answers are simulated", err=True)
    code = exit_code_of_thresholds(checked, is_complete=numbers.complete)
    if code:
        raise click.exceptions.Exit(code)


_PREFIX = "evaluator-view-"
_PAGE = "open.html"


@click.command(epilog="Example:  evaluator view")
@click.argument(
    "folder",
    default=".",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="[DIR]",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    show_default=True,
    help="The port; 0 is any free one.",
)
@click.option("--no-browser", is_flag=True, help="Print the address only.")
def view(folder: Path, port: int, no_browser: bool) -> None:
    """Show the runs and batches in DIR (default: here) in the browser, also while they run.

    Serves pages on 127.0.0.1, to the holder of the address only, until Ctrl-C. Opens the browser if
    there is a terminal. Changes nothing in the folder, except what you ask for on a page: a
    label, a command to a batch, a simulated run, the retry of an entry, a kill.
    """
    from evaluator.viewer.server import serve

    with ExitStack() as until_stopped:

        def ready(address: str) -> None:
            echo(address)
            echo("Ctrl-C ends the server", err=True)
            if common.stdout_is_terminal() and not no_browser:
                until_stopped.enter_context(_opened(address))

        _remove_left_files()
        os.chdir(folder)
        try:
            asyncio.run(serve(Path(), port, ready=ready))
        except KeyboardInterrupt:
            echo("stopped", err=True)


@contextmanager
def _opened(address: str) -> Generator[None]:
    """Opens the address in the browser by way of a private file: other users see a program's
    arguments. The file is removed at the end of the block; while it is locked, its server runs.
    """
    import webbrowser

    private = Path(disk.make_temporary_folder(_PREFIX))
    page = private / _PAGE
    try:
        with disk.create(private / "new") as file:
            lock(file.fileno())
            file.write(
                f'<!DOCTYPE html><meta http-equiv="refresh" content="0;url={address}">'.encode()
            )
            file.flush()
            disk.rename(private / "new", page)
            webbrowser.open(page.as_uri())
            yield
    finally:
        shutil.rmtree(private, ignore_errors=True)


def _remove_left_files() -> None:
    """Removes the files of servers that were killed: they hold a token."""
    for private in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            status = private.lstat()
            if status.st_uid != os.getuid() or not stat.S_ISDIR(status.st_mode):
                continue
            page = private / _PAGE
            descriptor = os.open(page, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                if try_lock(descriptor):
                    disk.unlink(page)
                    disk.rmdir(private)
            finally:
                os.close(descriptor)
