"""`evaluator label` and `calibrate`: people label answers, and labels measure judges."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from evaluator import clock
from evaluator.cli.common import json_option, print_json, terminal_width
from evaluator.cli.echo import echo
from evaluator.cli.results import batch_argument
from evaluator.errors import UsageError
from evaluator.errors.messages import did_you_mean, listed

if TYPE_CHECKING:
    from evaluator.batch.label_sheet import Answer
    from evaluator.batch.labels import Label
    from evaluator.batch.reading import Batch
    from evaluator.batch.records import SampleResult


@click.command(
    epilog="Examples:\n\n\b\n  evaluator label batches/capitals --labeller ada\n"
    "  evaluator label batches/capitals --export labels.csv"
)
@batch_argument
@click.option("--labeller", metavar="NAME", help="Who labels, or whose labels are imported.")
@click.option(
    "--scorer", metavar="NAME", help="The scorer to check. Default: the only one that asks a model."
)
@click.option(
    "--precision",
    type=click.FloatRange(min=0, min_open=True, max=50),
    default=3.0,
    show_default=True,
    metavar="POINTS",
    help="Stop when the share that passed is known to ± this many points.",
)
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Stop after N labels.")
@click.option(
    "--import",
    "source",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Add the labels of a .csv, .json or .jsonl file; .json and .jsonl as Label Studio "
    "writes them.",
)
@click.option(
    "--export",
    "target",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the labels into such a file; replaces it.",
)
def label(
    batch: Path,
    labeller: str | None,
    scorer: str | None,
    precision: float,
    limit: int | None,
    source: Path | None,
    target: Path | None,
) -> None:
    """Label answers of a batch by hand, so that its judge can be measured and corrected.

    Samples are drawn at random within each verdict of the judge. The verdict, the model and the
    labels of others are hidden. Each label is stored at once: stop at any time, and continue with
    the same command.
    """
    from evaluator.batch.label_files import export_labels, import_labels
    from evaluator.batch.reading import open_batch
    from evaluator.record.redact import Redactor

    found = open_batch(batch)
    if target is not None:
        if source is not None or labeller is not None:
            raise UsageError("give --export alone, without --import and --labeller")
        count = export_labels(found, target)
        echo(f"{target}: {count:,} labels")
        return
    scorer = _scorer(found, scorer)
    if source is not None:
        count = import_labels(
            found, source, scorer=scorer, labeller=labeller, scrub=Redactor.from_environment()
        )
        echo(f"{source}: {count:,} labels")
        return
    if labeller is None:
        raise UsageError("who labels? name the person with --labeller NAME")
    _Labelling(found, scorer, labeller, precision=precision).run(limit)


class _Labelling:
    """A session of one labeller, at a terminal or with answers from a pipe."""

    def __init__(self, batch: Batch, scorer: str, labeller: str, precision: float) -> None:
        from evaluator.batch.folder import BatchFolder
        from evaluator.batch.label_sheet import LabelSheet
        from evaluator.batch.labelling import LabelQueue
        from evaluator.batch.labels import CurrentLabels, read_labels
        from evaluator.batch.reading import judged_results

        self._batch = batch
        self._scorer = scorer
        self._labeller = labeller
        self._precision = precision
        self._folder = BatchFolder.reader(batch.folder)
        labels = CurrentLabels(read_labels(batch.folder))
        judged = {
            cell: found[scorer]
            for cell, found in judged_results(batch, {scorer: scorer}, labels).items()
            if len(found[scorer])
        }
        if not judged:
            raise UsageError(f"{batch.folder}: the scorer {scorer!r} has judged no result yet")
        # After the results were read: a batch that is running adds results.
        self._index = self._folder.index()
        self._queue = LabelQueue(judged, labeller, precision=precision)
        given = (each.get(labeller) for each in labels.of(scorer).values())
        self._given = sorted((each for each in given if each), key=lambda each: each.at)
        self._sheet = LabelSheet.of(batch.manifest.get("scorers", {}).get(scorer) or {})

    def run(self, limit: int | None) -> None:
        """Asks until the labeller quits, the wanted width is reached, or `limit` labels are
        given.
        """
        skipped: list[str] = []
        count = 0
        again: str | None = None
        while limit is None or count < limit:
            key = again or self._queue.next(skipped)
            again = None
            if key is None:
                break
            result = self._folder.read_at(self._index[key].offset)
            self._show(result)
            begun = clock.monotonic()
            answer, note = self._ask()
            if answer == "q":
                break
            if answer == "s":
                skipped.append(key)
            elif answer == "u":
                again = self._undo()
                count -= again is not None and count > 0
                again = again or key
            else:
                self._store(result, answer, note=note, seconds=clock.monotonic() - begun)
                count += 1
        echo()
        for progress in self._queue.progress():
            echo(progress.line(self._precision))
        echo(f"see: evaluator calibrate {shlex.quote(str(self._batch.folder))}")

    def _show(self, result: SampleResult) -> None:
        echo("─" * min(terminal_width(), 80), dim=True)
        for title, text in self._sheet.sections(result):
            echo(f"{title}:", colour="cyan")
            for line in text.splitlines() or ["(empty)"]:
                echo(f"  {line}")
        echo(self._sheet.keys, dim=True)

    def _ask(self) -> tuple[Answer | Literal["s", "u", "q"], str]:
        """The answer and its note. A closed input quits."""
        while True:
            echo("> ", nl=False)
            line = sys.stdin.readline()
            word, _, note = line.strip().partition(" ")
            if not line:
                return "q", ""
            if word in ("s", "u", "q"):
                return word, ""
            try:
                return self._sheet.read(word), note.strip()
            except ValueError as error:
                echo(f"{error}; {self._sheet.keys}", err=True)

    def _undo(self) -> str | None:
        """Withdraws the labeller's last label. Returns: the key of its result; None without
        one.
        """
        from evaluator.batch.label_sheet import Answer
        from evaluator.batch.labels import LabelVerdict

        while self._given:
            last = self._given.pop()
            if last.key in self._index:
                result = self._folder.read_at(self._index[last.key].offset)
                self._write(self._label(result, Answer(LabelVerdict.REMOVED)))
                return last.key
        echo("there is no label to undo", err=True)
        return None

    def _store(self, result: SampleResult, answer: Answer, *, note: str, seconds: float) -> None:
        given = self._label(result, answer, note=note, seconds=seconds)
        self._write(given)
        self._given.append(given)

    def _write(self, given: Label) -> None:
        from evaluator.batch.labels import append_labels
        from evaluator.record.redact import Redactor

        append_labels(self._batch.folder, [given], Redactor.from_environment())
        self._queue.add(given)

    def _label(
        self, result: SampleResult, answer: Answer, *, note: str = "", seconds: float = 0.0
    ) -> Label:
        from evaluator.batch.labels import Label, shown_digest
        from evaluator.record.journal import now

        return Label(
            result.key,
            result.identity,
            shown_digest(result),
            scorer=self._scorer,
            labeller=self._labeller,
            verdict=answer.verdict,
            value=answer.value,
            grade=answer.grade,
            note=note,
            at=now(),
            seconds=seconds,
        )


def _scorer(batch: Batch, scorer: str | None) -> str:
    """The scorer that is checked. Raises: UsageError, if the batch has no such scorer, or several
    to choose from.
    """
    known = list(batch.manifest.get("scorers") or {})
    if scorer is not None:
        if scorer not in known:
            hint = did_you_mean(scorer, known) or f"its scorers are {listed(known)}"
            raise UsageError(f"{batch.folder} has no scorer {scorer!r}; {hint}")
        return scorer
    if not known:
        raise UsageError(f"{batch.folder} has no scorer, so there is no verdict to check")
    judges = [name for name in known if name in (batch.manifest.get("judges") or {})]
    candidates = judges or known
    if len(candidates) > 1:
        raise UsageError(
            f"{batch.folder} has several scorers; name one with --scorer: {listed(candidates)}"
        )
    return candidates[0]


@click.command(epilog="Example:  evaluator calibrate batches/capitals --scorer reference")
@batch_argument
@click.option(
    "--scorer",
    metavar="NAME",
    help="Measure this one. Default: each scorer with labels. One without labels of its own is "
    "measured against those of the only other one.",
)
@click.option("--markdown", is_flag=True, help="Print Markdown.")
@json_option
def calibrate(batch: Path, scorer: str | None, markdown: bool, as_json: bool) -> None:
    """Show how often a judge is right, by the labels of people, and its corrected numbers.

    Prints the confusion matrix, sensitivity and specificity, kappa and alpha with the base rate,
    the agreement of people with each other, and the share that passed as the judge says and as
    corrected by the labels, each with its interval and n of N.
    """
    from evaluator.batch.reading import open_batch
    from evaluator.batch.summary.calibrated import calibration_tables
    from evaluator.batch.summary.tables import as_markdown, as_text

    found = open_batch(batch)
    if scorer is not None:
        scorer = _scorer(found, scorer)
    calibrations = found.calibrations(scorer)
    if not any(calibrations.values()):
        raise UsageError(
            f"{batch}: no answer is labelled for one of its scorers; label some with: "
            f"evaluator label {shlex.quote(str(batch))} --labeller NAME"
        )
    if as_json:
        print_json(
            {
                "calibrations": [
                    {"template": template, "variant": variant, **one.to_dict()}
                    for (template, variant), cell in calibrations.items()
                    for one in cell.values()
                ]
            }
        )
        return
    tables = [
        table
        for (template, variant), cell in calibrations.items()
        for one in cell.values()
        for table in calibration_tables(" × ".join(filter(None, (template, variant))), one)
    ]
    if markdown:
        echo(as_markdown(tables), nl=False)
    else:
        echo(as_text(tables, terminal_width()), nl=False)
