"""`evaluator improve`: searches for a better version of a template, and proves the gain."""

from __future__ import annotations

import asyncio
import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evaluator.batch.definition import BatchDefinition
from evaluator.cli import common
from evaluator.cli.batch import EXIT_INCOMPLETE, EXIT_THRESHOLD, make_evaluator
from evaluator.cli.dry_run import first_call_refusals
from evaluator.cli.echo import echo
from evaluator.cli.evaluator_options import (
    SectionedCommand,
    SectionOption,
    flag_options,
    read_flags,
    trust_option,
)
from evaluator.errors import UsageError
from evaluator.errors.messages import json_problem
from evaluator.fields.listing import entries_of
from evaluator.improve.run import ImproveOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from evaluator.batch.reading import Batch
    from evaluator.improve.certificate import Certificate
    from evaluator.improve.run import SearchPlan
    from evaluator.interpreter.evaluator import Evaluator

    JudgedBatch = tuple[Batch, str | None]

_BATCH_FLAGS = (
    "--rows",
    "--library",
    "--root",
    "--map",
    "--id",
    "--target",
    "--metadata",
    "--where",
    "--limit",
    "--shuffle-choices",
    "--cluster",
    "--model",
    "--handler",
    "--model-role",
    "--scorer",
    "--count-as-failed",
    "--limited",
    "--max-cost",
    "--concurrency",
    "--rpm",
    "--tpm",
    "--cache",
    "--engine",
    "--workers",
    "--sandbox",
)


_JUDGE_FLAGS = (
    "--library",
    "--model",
    "--handler",
    "--model-role",
    "--max-cost",
    "--concurrency",
    "--rpm",
    "--tpm",
    "--cache",
    "--sandbox",
)
"""The flags of a search for a better judge, whose rows and scorer are those of a batch."""


def search_flags(command: Callable[..., Any], *, of_judge: bool = False) -> Callable[..., Any]:
    """Gives a command the flags of a search, or of one for a better judge."""
    own = [entry.flag.name for entry in entries_of(ImproveOptions) if entry.flag is not None]
    flags = _BATCH_FLAGS
    if of_judge:
        own.remove("--measure")
        flags = _JUDGE_FLAGS
    for option in (
        trust_option,
        click.option("--dry-run", is_flag=True, help="Print what can be found and what it costs."),
        click.option(
            "--write", is_flag=True, help="Write the template if a candidate is accepted."
        ),
        click.option(
            "--proposals",
            cls=SectionOption,
            section="Search",
            metavar="FILE",
            help="Proposals of your own, as JSON; no model is asked for others.",
        ),
    ):
        command = option(command)
    return flag_options(BatchDefinition, flags)(flag_options(ImproveOptions, own)(command))


@click.command(
    cls=SectionedCommand,
    epilog="Examples:\n\n\b\n  evaluator improve classify --rows tickets.jsonl --scorer exact "
    "--model openai/gpt-4o-mini\n      --proposer openai/gpt-4o --max-cost 5 --dry-run\n"
    "  evaluator improve --verify improvements/classify-20260102-150405/certificate.json\n\n"
    "Exit codes: 0 a better template was accepted, or the certificate is valid; 4 no gain is "
    "significant; 5 incomplete; 2 wrong usage; 3 configuration, or changed records; "
    "130 interrupted.",
)
@click.argument("template", required=False)
@search_flags
@click.option(
    "--verify",
    metavar="CERTIFICATE",
    type=common.FILE,
    help="Recompute a certificate from the records in its folder, without a call.",
)
@common.markdown_option
@click.option("--json", "as_json", is_flag=True, help="Print the certificate as JSON.")
def improve(
    template: str | None, verify: Path | None, markdown: bool, as_json: bool, **given: Any
) -> None:
    """Search for a better version of TEMPLATE, and prove on rows that the search has not seen
    whether it is better.

    The rows are split into train rows, which the proposer sees, selection rows, on which candidates
    race, and sealed rows, which decide once. All calls are recorded in the folder of the search.
    """
    from evaluator.improve.certificate import verify as verified

    common.refuse_two_formats(markdown, as_json)
    if verify is not None:
        if template is not None:
            raise UsageError("--verify takes no TEMPLATE: the certificate names it")
        verification = asyncio.run(verified(verify))
        _print(verification.certificate, markdown=markdown, as_json=as_json)
        if verification.is_own:
            whose = "this user's"
        else:
            whose = "another user's, or another machine's"
        echo(f"valid: the records give this certificate; it has {whose} signature", err=True)
        return
    if template is None or not given["rows"]:
        raise UsageError("name a TEMPLATE, and the rows with --rows FILE")
    run_search_command(template, given, markdown=markdown, as_json=as_json)


def run_search_command(
    searched: str | JudgedBatch, given: dict[str, Any], *, markdown: bool, as_json: bool
) -> None:
    """Searches for a better version of a template, or of a batch's judge, with the flags that were
    given.
    """
    from evaluator.improve.run import write_template

    evaluator, planned = _plan(searched, given)
    if given["dry_run"]:
        plan = asyncio.run(planned)
        for line in plan.lines():
            echo(line)
        refused = first_call_refusals(evaluator.without_network(), plan.batch)
        for reason in refused:
            echo(f"no call is possible: {reason}", err=True)
        if refused:
            raise click.exceptions.Exit(EXIT_INCOMPLETE)
        return
    certificate = _run(evaluator, planned, write=given["write"])
    _print(certificate, markdown=markdown, as_json=as_json)
    echo(f"records: {certificate.folder}", err=True)
    if not certificate.is_accepted:
        raise click.exceptions.Exit(EXIT_THRESHOLD)
    if given["write"]:
        echo(f"written: {write_template(certificate, evaluator)}", err=True)
    else:
        echo("nothing is written; to write the template, resume with --write", err=True)


def _plan(searched: str | JudgedBatch, given: dict[str, Any]) -> tuple[Evaluator, Any]:
    """The evaluator, and the coroutine that plans the search."""
    from evaluator.improve.judges import AGREEMENT, judge_search
    from evaluator.improve.run import plan_search

    own = read_flags(ImproveOptions, given)
    session = read_flags(ImproveOptions, given, is_stored=False)
    table = {name: value for name, value in given.items() if name not in (*own, *session)}
    session_of_batch = read_flags(BatchDefinition, table, is_stored=False)
    wanted = BatchDefinition.from_table(read_flags(BatchDefinition, table))
    options = ImproveOptions.from_table(own)
    options = replace(options, proposals=_read_proposals(given["proposals"]), **session)
    evaluator = make_evaluator(wanted, given, session_of_batch.get("sandbox"))
    batch = replace(wanted.options, **session_of_batch)
    if given["dry_run"]:
        planning = evaluator.without_network()
    else:
        planning = evaluator
    if isinstance(searched, str):
        return evaluator, plan_search(planning, searched, wanted.rows, options, batch)
    judged = judge_search(planning, *searched)
    options = replace(options, measure=AGREEMENT)
    models = batch.models or judged.options["models"]
    batch = replace(batch, **{**judged.options, "models": models})
    return evaluator, plan_search(planning, judged.template, judged.rows, options, batch)


def _run(evaluator: Evaluator, planned: Any, *, write: bool) -> Certificate:
    from evaluator.improve.run import check_writable, run_search, searched_folder
    from evaluator.improve.search import OutOfBudget

    folder: list[Path] = []
    plans: list[SearchPlan] = []

    async def run() -> Certificate:
        plan = await planned
        plans.append(plan)
        if write:
            check_writable(plan.checker)
        for line in plan.lines():
            echo(line, err=True)
        folder.append(searched_folder(plan))
        return await run_search(replace(plan, options=replace(plan.options, output=str(folder[0]))))

    try:
        return asyncio.run(run())
    except (OutOfBudget, KeyboardInterrupt) as error:
        if folder:
            place = shlex.quote(str(folder[0]))
            echo(f"\nresume with the same options and --output {place} --resume", err=True)
        if isinstance(error, KeyboardInterrupt):
            raise
        hint = "; it needs a larger --max-cost"
        if any(first_call_refusals(evaluator, plan.batch) for plan in plans):
            hint = ""  # The error says what the first call needs, such as a known price.
        echo(f"incomplete: {error}{hint}", err=True)
        raise click.exceptions.Exit(EXIT_INCOMPLETE) from None


def _read_proposals(path: str | None) -> tuple[Any, ...]:
    """The proposals in a file: a list, or an object with the member `proposals`."""
    if path is None:
        return ()
    try:
        found = json.loads(common.read_text(path))
    except ValueError as error:
        raise UsageError(f"--proposals {path}: invalid JSON: {json_problem(error)}") from error
    if isinstance(found, dict):
        found = found.get("proposals")
    if not isinstance(found, list) or not found:
        raise UsageError(
            f"--proposals {path}: expected a list of objects with the members why and edits"
        )
    return tuple(found)


def _print(certificate: Certificate, *, markdown: bool, as_json: bool) -> None:
    from evaluator.improve.certificate import as_lines, as_page

    if as_json:
        common.print_json(certificate.to_dict())
    elif markdown:
        echo(as_page(certificate), nl=False)
    else:
        echo(as_lines(certificate, common.terminal_width()), nl=False)
