"""`evaluator calibrate`: labels measure judges, and improve their templates."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path
from typing import Any

import click

from evaluator.cli.common import json_option, print_json, terminal_width
from evaluator.cli.echo import echo
from evaluator.cli.flags import SectionedCommand, refuse_flags
from evaluator.cli.improve import run_search_command, search_flags
from evaluator.cli.results import batch_argument
from evaluator.errors import UsageError


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
@click.option("--markdown", is_flag=True, help="Print Markdown.")
@json_option
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

    if markdown and as_json:
        raise UsageError("--json and --markdown are two formats; give one of them")
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
        print_json(
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
        echo(as_text(tables, terminal_width()), nl=False)
