"""`evaluator label` and `evaluator calibrate`: people label answers; labels measure judges, and
improve their templates.
"""

from __future__ import annotations

import shlex
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evaluator import clock
from evaluator.cli import common
from evaluator.cli.echo import echo
from evaluator.cli.evaluator_options import SectionedCommand, refuse_flags
from evaluator.cli.improve import run_search_command, search_flags
from evaluator.cli.results import batch_argument, cell_of
from evaluator.errors import UsageError
from evaluator.errors.messages import amount

if TYPE_CHECKING:
    from evaluator.batch.label_session import LabelSession, Question
    from evaluator.batch.reading import Batch


@click.command(
    epilog="Examples:\n\n\b\n  evaluator label batches/capitals --labeller ada\n"
    "  evaluator label batches/both --labeller ada --variant small --variant large\n"
    "  evaluator label batches/capitals --export labels.csv"
)
@batch_argument
@click.option("--labeller", metavar="NAME", help="Who labels, or whose labels are imported.")
@click.option(
    "--scorer", metavar="NAME", help="The scorer to check. Default: the only one that asks a model."
)
@click.option(
    "--template",
    "templates",
    multiple=True,
    metavar="NAME",
    help="Two of them: choose the better of their answers to a row.",
)
@click.option(
    "--variant",
    "variants",
    multiple=True,
    metavar="NAME",
    help="Two of them: choose the better of their answers to a row.",
)
@click.option(
    "--precision",
    type=click.FloatRange(min=0, min_open=True, max=50),
    default=3.0,
    show_default=True,
    metavar="POINTS",
    help="Stop when the share that passed, or is preferred, is known to ± this many points.",
)
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Stop after N labels.")
@click.option(
    "--import",
    "source",
    type=common.FILE,
    metavar="FILE",
    help="Add the labels of a .csv file, of a .json or .jsonl file of Label Studio, or of a .eval "
    "log of Inspect AI.",
)
@click.option(
    "--export",
    "target",
    type=common.FILE,
    metavar="FILE",
    help="Write the labels into such a file; replaces it.",
)
def label(
    batch: Path,
    labeller: str | None,
    scorer: str | None,
    templates: tuple[str, ...],
    variants: tuple[str, ...],
    precision: float,
    limit: int | None,
    source: Path | None,
    target: Path | None,
) -> None:
    """Label answers of a batch by hand, so that its judge can be measured and corrected.

    Samples are drawn at random within each verdict of the judge. The verdict, the model and the
    labels of others are hidden. Each label is stored at once: stop at any time, and continue with
    the same command. `evaluator view` has the same on a page.
    """
    from evaluator.batch.label_files import export_labels, import_labels
    from evaluator.batch.label_session import label_answers, scorer_to_label
    from evaluator.batch.preferences import label_pairs
    from evaluator.batch.reading import open_batch
    from evaluator.record.redact import Redactor

    found = open_batch(batch)
    if target is not None:
        if source or labeller or scorer or templates or variants or limit:
            raise UsageError(
                "give --export alone, without --import, --labeller, --scorer, --template, "
                "--variant and --limit: it writes the labels of all"
            )
        count, written = export_labels(found, target)
        echo(f"{', '.join(map(str, written))}: {amount(count, 'label')}")
        return
    if templates or variants:
        if source is not None or scorer is not None:
            raise UsageError("--template and --variant compare answers, without --scorer, --import")
        if len(templates) != 2 and len(variants) != 2:
            raise UsageError("give two --variant or two --template, whose answers are compared")
        sides = (
            cell_of(
                found,
                templates[end] if templates else None,
                variants[end] if variants else None,
            )
            for end in (0, -1)
        )
        session = label_pairs(found, (*sides,), _named(labeller), precision=precision)
        _Terminal(session, found).run(limit)
        return
    if source is not None:
        if limit is not None:
            raise UsageError("--limit ends a session of labelling; --import adds the whole file")
        if scorer is not None:
            scorer = scorer_to_label(found, scorer)
        count = import_labels(
            found, source, scorer=scorer, labeller=labeller, scrub=Redactor.from_environment()
        )
        echo(f"{source}: {amount(count, 'label')}")
        return
    scorer = scorer_to_label(found, scorer)
    session = label_answers(found, scorer, _named(labeller), precision=precision)
    _Terminal(session, found).run(limit)


def _named(labeller: str | None) -> str:
    if labeller is None:
        raise UsageError("who labels? name the person with --labeller NAME")
    return labeller


class _Terminal:
    """A session of one labeller at a terminal, or with answers from a pipe."""

    def __init__(self, session: LabelSession, batch: Batch) -> None:
        self._session = session
        self._batch = batch

    def run(self, limit: int | None) -> None:
        """Asks until the labeller quits, the wanted width is reached, or `limit` labels are
        given.
        """
        session = self._session
        count = 0
        again: Question | None = None
        while limit is None or count < limit:
            question = again or session.next()
            again = None
            if question is None:
                break
            self._show(question)
            begun = clock.monotonic()
            word, note = self._ask(question)
            if word == "q":
                break
            if word == "s":
                session.skip(question)
            elif word == "u":
                again = session.undo()
                if again is None:
                    echo("there is no label to undo", err=True)
                    again = question
                elif count:
                    count -= 1
            else:
                session.answer(question, word, note=note, seconds=clock.monotonic() - begun)
                count += 1
        echo()
        for line in session.subject.lines():
            echo(line)
        echo(f"see: evaluator calibrate {shlex.quote(str(self._batch.folder))}")

    def _show(self, question: Question) -> None:
        echo("─" * min(common.terminal_width(), 80), dim=True)
        for title, text in question.sections:
            echo(f"{title}:", colour="cyan")
            for line in text.splitlines() or ["(empty)"]:
                echo(f"  {line}")
        echo(question.help, dim=True)

    def _ask(self, question: Question) -> tuple[str, str]:
        """A word that answers, or s, u or q, and the note. A closed input quits."""
        while True:
            echo("> ", nl=False)
            line = sys.stdin.readline()
            word, _, note = line.strip().partition(" ")
            if not line:
                return "q", ""
            if word in ("s", "u", "q"):
                return word, ""
            try:
                self._session.subject.answer(question, word)
            except ValueError as error:
                echo(f"{error}; {question.help}", err=True)
            else:
                return word, note.strip()


@click.command(
    cls=SectionedCommand,
    epilog="Examples:\n\n\b\n  evaluator calibrate batches/capitals --scorer reference\n"
    "  evaluator calibrate batches/capitals --improve --proposer openai/gpt-4o --max-cost 5\n"
    "      --dry-run\n\n"
    "Exit codes with --improve: as those of evaluator improve, whose --verify reads its "
    "certificates.",
)
@batch_argument
@click.option(
    "--scorer",
    metavar="NAME",
    help="Measure this one. Default: each scorer with labels. One without labels of its own is "
    "measured against those of the only other one. With --improve also a definition, such as "
    "graded:template=NAME.",
)
@click.option(
    "--improve",
    is_flag=True,
    help="Search for a version of the judge's template that agrees with more labels; the decision "
    "is made on labels that the search has not seen. The options of the search need it.",
)
@partial(search_flags, of_judge=True)
@common.markdown_option
@common.json_option
def calibrate(
    batch: Path,
    scorer: str | None,
    improve: bool,
    markdown: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Show how often a judge is right, by the labels of people, and its corrected numbers.

    Prints the confusion matrix, sensitivity and specificity, kappa and alpha with the base rate,
    the agreement of people with each other, and the share that passed as the judge says and as
    corrected by the labels, each with its interval and n of N.

    With --improve it searches for a better template of the judge instead, as evaluator improve
    does.
    """
    from evaluator.batch.label_session import scorer_to_label
    from evaluator.batch.preferences import preference_table, preferences
    from evaluator.batch.reading import open_batch
    from evaluator.batch.summary.calibrated import calibration_tables
    from evaluator.batch.summary.tables import as_markdown, as_text

    common.refuse_two_formats(markdown, as_json)
    found = open_batch(batch)
    if improve:
        run_search_command((found, scorer), given, markdown=markdown, as_json=as_json)
        return
    refuse_flags(given, "is an option of a search; give --improve with it")
    if scorer is not None:
        scorer = scorer_to_label(found, scorer)
    calibrations = found.calibrations(scorer)
    if scorer is None:
        preferred = preferences(found)
    else:
        preferred = []
    if not any(calibrations.values()) and not preferred:
        raise UsageError(
            f"{batch}: no answer is labelled for one of its scorers; label some with: "
            f"evaluator label {shlex.quote(str(batch))} --labeller NAME"
        )
    if as_json:
        common.print_json(
            {
                "calibrations": [
                    {"template": template, "variant": variant, **one.to_dict()}
                    for (template, variant), cell in calibrations.items()
                    for one in cell.values()
                ],
                "preferences": [one.to_dict() for one in preferred],
            }
        )
        return
    tables = [
        table
        for (template, variant), cell in calibrations.items()
        for one in cell.values()
        for table in calibration_tables(" × ".join(filter(None, (template, variant))), one)
    ]
    if preferred:
        tables.append(preference_table(preferred))
    if markdown:
        echo(as_markdown(tables), nl=False)
    else:
        echo(as_text(tables, common.terminal_width()), nl=False)
