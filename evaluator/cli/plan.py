"""`evaluator plan`: what a template or a batch would cost, before anything is run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from evaluator.batch.definition import BatchDefinition
from evaluator.cli.batch import EXIT_INCOMPLETE, batch, run_batch_command
from evaluator.cli.common import input_option, json_option, load_library, read_inputs
from evaluator.cli.dry_run import print_dry_run
from evaluator.cli.echo import echo
from evaluator.cli.evaluator_options import (
    EvaluatorOptions,
    SectionedCommand,
    evaluator_options,
    flag_options,
    refuse_flags,
)
from evaluator.cli.trust import shown_profiles
from evaluator.errors import UsageError
from evaluator.nodes import Task

_DECISION_FLAGS = ("--scorer", "--detect", "--measure", "--power", "--baseline", "--stop-early")


@click.command(
    cls=SectionedCommand,
    epilog="Examples:\n\n\b\n  evaluator plan summarise --input document=@notes.md "
    "--model openai/gpt-4o-mini\n"
    "  evaluator plan answer_question --rows questions.jsonl\n"
    "  evaluator plan capitals.toml --detect 0.05 --measure f1 --baseline batches/before\n"
    "  evaluator plan capitals.toml --like batches/capitals-20260102-150405 --json\n\n"
    "Exit codes: 0 planned; 5 the budget allows no call; 2 wrong usage; 3 configuration.",
)
@click.argument("name", metavar="TEMPLATE|BATCH.toml")
@input_option
@click.option(
    "--rows", metavar="FILE", help="Plan a batch of these rows: JSONL, CSV, Parquet, hf:NAME."
)
@evaluator_options("--model", "--handler", "--model-role", "--library")
@click.option(
    "--like",
    metavar="FOLDER",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="An earlier batch of the same templates, whose recorded lengths are expected again.",
)
@flag_options(BatchDefinition, _DECISION_FLAGS)
@json_option
def plan(
    name: str,
    inputs: tuple[str, ...],
    rows: str | None,
    options: EvaluatorOptions,
    like: Path | None,
    as_json: bool,
    **decision: Any,
) -> None:
    """Show what would run and what it would cost, without a key and without a call.

    The table has the most that can happen, which no later run exceeds, and what is to be expected:
    turns (answers), calls (with retries), tokens, US dollars at the interactive price, with the
    provider's prompt cache, and at the price of its batch API, and the time at the given limits. ?
    is unknown; the lines below the table say which limit is missing and where to set it. `batch
    FILE --dry-run` prints the same.
    """
    path = Path(name)
    if like is not None:
        like = like.absolute()
    is_batch = path.suffix == ".toml" or path.is_dir()
    if inputs and (is_batch or rows is not None):
        raise UsageError("--input is for one run of a template; a batch has its rows")
    if not is_batch and rows is None:
        refuse_flags(decision, "is for a batch: give its rows with --rows")
        _plan_run(name, inputs, options, like=like, as_json=as_json)
        return
    given = dict(batch.make_context("batch", [], resilient_parsing=True).params)
    given |= {"dry_run": True, "progress": "none", "as_json": as_json, "rows": rows}
    given["library"] = tuple(map(str, options.folders))
    given["model_roles"] = tuple(f"{role}={model}" for role, model in options.model_roles.items())
    given["templates"] = () if is_batch else (name,)
    given["models"] = () if options.model is None else (options.model,)
    given["handlers"] = () if options.handler is None else (options.handler,)
    given |= decision
    given["decide_like"] = None if like is None else str(like)
    run_batch_command(path if is_batch else None, given)


def _plan_run(
    name: str,
    inputs: tuple[str, ...],
    options: EvaluatorOptions,
    *,
    like: Path | None,
    as_json: bool,
) -> None:
    """Prints the plan of one run of a template."""
    from evaluator.batch import BatchOptions, make_plan
    from evaluator.interpreter.evaluator import Evaluator

    library = load_library(options.folders)
    node = library.get(name).node
    values = read_inputs(inputs, node)
    if isinstance(node, Task):
        declared = node.inputs
    else:
        declared = ()
    if missing := [i.name for i in declared if i.must_be_given and i.name not in values]:
        raise UsageError(
            f"{name} needs the input {missing[0]!r}: give it with --input {missing[0]}=VALUE, or "
            "rows with --rows FILE"
        )
    evaluator = Evaluator(
        library,
        options.handler,
        model=options.model,
        model_roles=options.model_roles,
        tasks_dir=None,
        profiles=shown_profiles(),
        notice=lambda line: echo(line, err=True),
    ).without_network()
    click.get_current_context().with_resource(evaluator)
    planned = make_plan(evaluator, name, rows=[values], options=BatchOptions())
    can_start = print_dry_run(evaluator, planned, as_json=as_json, like=like)
    raise click.exceptions.Exit(0 if can_start else EXIT_INCOMPLETE)
