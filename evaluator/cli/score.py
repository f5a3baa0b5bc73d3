"""`evaluator score`: adds scorers to a batch whose answers exist."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evaluator.batch.definition import BatchDefinition
from evaluator.cli.batch import (
    EXIT_INCOMPLETE,
    EXIT_INTERRUPTED,
    ending_signals,
    make_display,
    make_evaluator,
    read_batch_definition,
    session_options,
)
from evaluator.cli.batch import batch as batch_command
from evaluator.cli.common import print_json, terminal_width
from evaluator.cli.echo import echo
from evaluator.cli.evaluator_options import flag_options, read_flags, trust_option
from evaluator.cli.results import batch_argument
from evaluator.errors import UsageError

if TYPE_CHECKING:
    from evaluator.batch import BatchOptions, BatchResult
    from evaluator.interpreter.evaluator import Evaluator

_MISSING = "some samples have no answer; resume the batch first"


_FLAGS = (
    "--scorer",
    "--library",
    "--model-role",
    "--cache",
    "--sandbox",
    "--concurrency",
    "--rpm",
    "--tpm",
    "--max-cost",
    "--max-tokens",
    "--max-time",
)


@click.command(
    epilog="Examples:\n\n\b\n  evaluator score batches/capitals --scorer f1\n"
    "  evaluator score batches/capitals --scorer reference --model-role grader=openai/gpt-4o\n"
    "  evaluator score batches/capitals --history\n\n"
    "Exit codes: 0 every answer has a score or an error of each scorer; 5 incomplete; "
    "2 wrong usage; 3 configuration; 130 interrupted."
)
@batch_argument
@flag_options(BatchDefinition, _FLAGS)
@click.option("--replace", is_flag=True, help="Put a scorer in the place of the one with its name.")
@click.option("--history", is_flag=True, help="Print which scorers scored when; score nothing.")
@click.option(
    "--progress",
    type=click.Choice(["auto", "live", "plain", "none"]),
    default="auto",
    show_default=True,
    help="On standard error; auto is live on a terminal, else plain.",
)
@trust_option
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def score(
    batch: Path, replace: bool, history: bool, progress: str, as_json: bool, **given: Any
) -> None:
    """Score the answers of a batch with more scorers. No model is asked for an answer.

    The scores of the other scorers stay. Earlier scores of a replaced scorer stay in the history,
    each with the scorer's version, its model and the time. After an interruption, run the same
    command again.
    """
    from evaluator.batch.options import Stop
    from evaluator.batch.reading import open_batch
    from evaluator.batch.scorers import make_scorers
    from evaluator.batch.scoring import history_table, run_scoring
    from evaluator.batch.summary.tables import as_text

    if history:
        echo(as_text([history_table(open_batch(batch))], terminal_width()), nl=False)
        return
    if not given["scorers"]:
        raise UsageError("name a scorer with --scorer; see: evaluator score --help")
    stop = Stop()
    display = make_display(progress)
    folder = batch.absolute()
    evaluator, options, arguments = _prepared(folder, given)

    async def run() -> BatchResult:
        with ending_signals(stop, display):
            return await run_scoring(
                evaluator,
                make_scorers(options.scorers),
                dataclasses.replace(options, output=str(folder), display=display, stop=stop),
                replaces=replace,
                arguments=arguments,
            )

    result = asyncio.run(run())
    if as_json:
        print_json(
            {
                "folder": str(result.folder),
                "state": result.ended.state,
                "reason": result.ended.reason,
                "scored": result.ended.ran,
                "summary": result.summary.to_dict(),
            }
        )
    else:
        echo(result.summary.to_text(terminal_width()), nl=False)
    if not result.is_complete:
        echo(f"{result.ended.state}: {result.ended.reason or _MISSING}", err=True)
        is_stopped = stop.state == "stopped"
        raise click.exceptions.Exit(EXIT_INTERRUPTED if is_stopped else EXIT_INCOMPLETE)


def _prepared(
    folder: Path, given: Mapping[str, Any]
) -> tuple[Evaluator, BatchOptions, dict[str, Any] | None]:
    """The evaluator and the options of a session, and the new definition of the batch; None for a
    batch of Python, which has none.
    """
    from evaluator.batch.folder import BatchFolder

    flags = dict(batch_command.make_context("batch", [], resilient_parsing=True).params)
    flags |= {**given, "resume": folder}
    before = BatchFolder.reader(folder).manifest().get("arguments")
    session = session_options(flags)
    if before:
        wanted = read_batch_definition(None, folder, given=flags)
    else:
        wanted = BatchDefinition.from_table(read_flags(BatchDefinition, flags))
    evaluator = make_evaluator(wanted, given, session.get("sandbox"))
    if not before:
        return evaluator, wanted.options, None
    table = wanted.to_dict()
    kept = {name: table[name] for name in ("library", "model_roles") if name in table}
    scorers = [*_others(before.get("scorers", ()), wanted), *table["scorers"]]
    return evaluator, wanted.options, {**before, **kept, "scorers": scorers}


def _others(specs: Iterable[Any], wanted: BatchDefinition) -> Iterable[Any]:
    """The scorers of a definition without those that have the name of a new one."""
    from evaluator.batch.scorers import make_scorer
    from evaluator.batch.scorers.function_scorer import without_code

    with without_code():
        new = {make_scorer(spec).name for spec in wanted.options.scorers}
        return [spec for spec in specs if make_scorer(spec).name not in new]
