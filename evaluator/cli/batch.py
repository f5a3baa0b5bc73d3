"""`evaluator batch`: rows through templates, scored; gone on with where it was broken off."""

from __future__ import annotations

import asyncio
import shlex
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evaluator.cli.common import (
    library_option,
    load_library,
    print_json,
    read_roles,
    role_option,
    stderr_is_terminal,
    terminal_width,
    trace_option,
    warn_of_unknown_roles,
)
from evaluator.errors import UsageError
from evaluator.record.render import visible

if TYPE_CHECKING:
    from evaluator.batch import BatchDefinition, BatchResult, Display, Stop
    from evaluator.batch.plan import BatchPlan
    from evaluator.interpreter.evaluator import Evaluator

EXIT_GATE, EXIT_INCOMPLETE = 4, 5
_MANY = "May be repeated."


@click.command(
    epilog="Examples:\n\n\b\n  evaluator batch --template answer_question --rows questions.jsonl --scorer includes\n"
    "  evaluator batch capitals.toml --limit 20 --dry-run\n"
    "  evaluator batch --resume batches/capitals-20260102-150405 --retry-errors\n\n"
    "Exit codes: 0 complete and every gate holds; 4 a gate does not hold; 5 incomplete; 2 wrong usage; "
    "3 configuration; 130 interrupted."
)
@click.argument("definition", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.option("--template", "templates", multiple=True, metavar="NAME", help=f"Evaluate this template. {_MANY}")
@click.option("--rows", metavar="FILE", help="JSONL, JSON, CSV, TSV or Parquet.")
@click.option("--map", "mapped", multiple=True, metavar="INPUT=FIELD",
              help=f"Take an input from this field, or from an expression in {{{{ … }}}}. {_MANY}")  # fmt: skip
@click.option("--id", "id_field", metavar="FIELD", help="The field that identifies a row. Default: id, or its content.")
@click.option("--target", metavar="FIELD", help="The field with the right answer. Default: target.")
@click.option("--scorer", "scorers", multiple=True, metavar="NAME[:ARG=VALUE,…]",
              help=f"How answers are judged: includes, numeric:tolerance=0.01, FILE.py:FUNCTION … {_MANY}")  # fmt: skip
@click.option("--epochs", type=click.IntRange(min=1), help="How often each sample is evaluated.")
@click.option("--epochs-by", "reducers", multiple=True, metavar="REDUCER",
              help=f"How epochs become one number: mean, mode, max, pass@3, pass^3, … {_MANY}")  # fmt: skip
@click.option("--model", "models", multiple=True, metavar="MODEL", help=f"A model to evaluate with. {_MANY}")
@click.option("--handler", "handlers", multiple=True, metavar="NAME", help=f"A handler profile. {_MANY}")
@role_option
@library_option
@click.option("--root", "roots", multiple=True, type=click.Path(path_type=Path, exists=True, file_okay=False),
              help="A folder that tasks may read; the first is where scripts run. Default: here.")  # fmt: skip
@click.option("--limit", type=click.IntRange(min=1), help="At most so many rows.")
@click.option("--sample", type=click.IntRange(min=1), help="So many rows, drawn with --seed.")
@click.option("--seed", type=int, help="Of the drawing. Default: 0.")
@click.option("--where", metavar="EXPRESSION", help="Only rows for which this holds, e.g. \"subject == 'physics'\".")
@click.option("--gate", "gates", multiple=True, metavar="CONDITION",
              help=f"What has to hold, e.g. 'accuracy >= 0.8'. {_MANY}")  # fmt: skip
@click.option("--count-as-failed", multiple=True, metavar="REASON",
              help=f"Errors with this reason count as failed answers, e.g. output_format_failure. {_MANY}")  # fmt: skip
@click.option("--concurrency", type=click.IntRange(min=1), help="Tasks at once. Default: 64.")
@click.option("--rpm", type=click.FloatRange(min=0, min_open=True), help="Requests a minute to each model.")
@click.option("--tpm", type=click.FloatRange(min=0, min_open=True), help="Tokens a minute to each model.")
@click.option("--max-cost", type=click.FloatRange(min=0, min_open=True), help="US dollars for the whole session.")
@click.option("--max-tokens", type=click.IntRange(min=1), help="Tokens for the whole session.")
@click.option("--max-time", type=click.FloatRange(min=0, min_open=True), help="Seconds for the whole session.")
@click.option("--stop-after", type=click.IntRange(min=0),
              help="End when so many samples in a row have the same error; 0 never. Default: 20.")  # fmt: skip
@click.option("--output", metavar="FOLDER", help="Where everything goes. Default: a new folder in batches/.")
@click.option("--resume", metavar="FOLDER", type=click.Path(path_type=Path, file_okay=False),
              help="Go on with this batch. Templates, models and handlers given besides are added.")  # fmt: skip
@click.option("--retry-errors", is_flag=True, help="With --resume: run samples again that ended with an error.")
@click.option("--changed", type=click.Choice(["leave", "run", "keep"]), default="leave", show_default=True,
              help="With --resume: what becomes of results whose template, row or model has changed.")  # fmt: skip
@click.option("--unfinished", type=click.Choice(["ask", "repeat", "tell", "stop"]), default="stop", show_default=True,
              help="With --resume: what becomes of a side effect that was begun and has no recorded end.")  # fmt: skip
@click.option("--cache", metavar="FILE", help="Answer calls that were made before from this file; see: evaluator cache")
@click.option("--engine", type=click.Choice(["local", "ray"]), default="local", show_default=True,
              help="Where samples are evaluated.")  # fmt: skip
@click.option("--progress", type=click.Choice(["auto", "live", "plain", "json", "none"]), default="auto",
              show_default=True, help="On standard error; auto is live on a terminal, else plain.")  # fmt: skip
@trace_option
@click.option("--dry-run", is_flag=True, help="Check everything and say what it would take; make no call.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def batch(definition: Path | None, **options: Any) -> None:
    """Evaluate rows with templates and models, score the answers, and say what came of it.

    DEFINITION is a TOML file (default: evaluator.toml here, if there is one and no --template is given). Options
    stand above what it says. The summary goes to standard output, progress to standard error.
    """
    from evaluator.batch import BatchSettings, Stop, make_engine, make_plan, run_plan
    from evaluator.batch.scorers import parse_scorer
    from evaluator.front import Evaluator

    folder: Path | None = options["resume"]
    wanted = _definition(definition, folder, options)
    library = load_library([Path(path) for path in wanted.library])
    warn_of_unknown_roles(library, wanted.model_roles)
    evaluator = Evaluator(
        library, model_roles=wanted.model_roles, tasks_dir=None, roots=wanted.roots,
        notice=lambda line: click.echo(line, err=True), tracer=options["trace"] or None,
    )  # fmt: skip
    scorers = [parse_scorer(scorer) if isinstance(scorer, str) else scorer for scorer in wanted.scorers]
    plan = make_plan(
        evaluator, wanted.templates, wanted.rows, name=wanted.name, inputs=wanted.inputs, id=wanted.id,
        target=wanted.target, metadata=wanted.metadata, select=wanted.select, epochs=wanted.epochs,
        models=wanted.models, handlers=wanted.handlers, scorers=scorers, gates=wanted.gates,
        count_as_failed=wanted.count_as_failed, limits=wanted.limits, cluster=wanted.cluster,
        group_by=wanted.group_by, reducers=wanted.reducers,
    )  # fmt: skip
    if options["dry_run"]:
        _say_what_it_takes(plan, options["as_json"])
        return
    stop = Stop()
    settings = BatchSettings(
        folder is not None, options["retry_errors"], options["changed"], options["unfinished"],
        make_engine(options["engine"], plan.limits), wanted.cache, _display(options["progress"]), stop,
    )  # fmt: skip
    output = str(folder) if folder is not None else wanted.output
    result = asyncio.run(_run(evaluator, plan, output, settings, wanted.to_dict(), stop, run_plan))
    _report(plan, result, as_json=options["as_json"])
    raise click.exceptions.Exit(_exit_code(result, stop))


async def _run(
    evaluator: Evaluator, plan: BatchPlan, output: Any, settings: Any, arguments: Any, stop: Stop, run_plan: Any
) -> BatchResult:
    with _ctrl_c(stop, settings.display):
        return await run_plan(evaluator, plan, output, settings, arguments)


@contextmanager
def _ctrl_c(stop: Stop, display: Display) -> Generator[None]:
    """The first Ctrl-C, or SIGTERM, asks the session to end; the second cancels what is in flight."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()

    def heard() -> None:
        if stop.state is None:
            stop.ask("stopped", "interrupted")
            display.notice("finishing what is in flight; once more to cut it off")
        elif task is not None:
            task.cancel()

    numbers = [number for number in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(number) != signal.SIG_IGN]
    for number in numbers:
        loop.add_signal_handler(number, heard)
    try:
        yield
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def _definition(path: Path | None, folder: Path | None, options: dict[str, Any]) -> BatchDefinition:
    """What the file, or the manifest of an earlier session, says, with the options above it."""
    from evaluator.batch.definition import DEFAULT_FILE, definition_from, read_definition

    if folder is not None:
        if path is not None or options["output"] is not None:
            raise UsageError("--resume goes on with what is in its folder: give neither a DEFINITION nor --output")
        from evaluator.batch.folder import BatchFolder

        known = BatchFolder.reader(folder).manifest().get("arguments")
        if not known:
            raise UsageError(
                f"{folder}: this batch was run from Python, with rows or scorers that no file holds; go on with it "
                f"there: evaluator.batch(…, output={str(folder)!r}, resume=True)"
            )
        base = definition_from(known)
    elif path is not None:
        base = read_definition(path)
    elif not options["templates"] and Path(DEFAULT_FILE).is_file():
        base = read_definition(DEFAULT_FILE)
    else:
        if not options["templates"] or not options["rows"]:
            raise UsageError("give a DEFINITION, or --template and --rows; see: evaluator batch --help")
        base = definition_from({"templates": list(options["templates"]), "rows": options["rows"]})
    return _with_options(base, options, adds=folder is not None)


def _with_options(base: BatchDefinition, options: dict[str, Any], *, adds: bool) -> BatchDefinition:
    changes: dict[str, Any] = {}
    for name, key in (("templates", "templates"), ("models", "models"), ("handlers", "handlers")):
        given = tuple(options[key])
        if given:
            before: tuple[str, ...] = getattr(base, name)
            changes[name] = tuple(dict.fromkeys((*before, *given))) if adds else given
    for name, key in (("rows", "rows"), ("id", "id_field"), ("target", "target"), ("epochs", "epochs"),
                      ("output", "output"), ("cache", "cache")):  # fmt: skip
        if options[key] is not None:
            changes[name] = options[key]
    if options["mapped"]:
        changes["inputs"] = {**(base.inputs or {}), **dict(_pair("--map", text) for text in options["mapped"])}
    if options["model_roles"]:
        changes["model_roles"] = {**base.model_roles, **read_roles(options["model_roles"])}
    if options["scorers"]:
        changes["scorers"] = tuple(options["scorers"])
    for name in ("gates", "count_as_failed", "reducers"):
        if options[name]:
            changes[name] = tuple(options[name])
    if options["folders"]:
        changes["library"] = tuple(map(str, options["folders"]))
    if options["roots"]:
        changes["roots"] = tuple(map(str, options["roots"]))
    selected = {name: options[name] for name in ("limit", "sample", "seed", "where") if options[name] is not None}
    if selected:
        changes["select"] = {**base.select, **selected}
    names = {"concurrency": "concurrency", "rpm": "requests_per_minute", "tpm": "tokens_per_minute",
             **{name: name for name in ("max_cost", "max_tokens", "max_time", "stop_after")}}  # fmt: skip
    limits = {name: options[key] for key, name in names.items() if options[key] is not None}
    if limits:
        changes["limits"] = replace(base.limits, **limits)
    return replace(base, **changes)


def _pair(option: str, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip() or not value.strip():
        raise UsageError(f"{option} {text!r}: expected INPUT=FIELD, as in question=prompt")
    return name.strip(), value.strip()


def _display(kind: str) -> Display:
    from evaluator.batch.progress import JsonDisplay, LiveDisplay, NoDisplay, PlainDisplay

    if kind == "auto":
        kind = "live" if stderr_is_terminal() else "plain"
    if kind == "none" or sys.stderr is None:  # pyright: ignore[reportUnnecessaryComparison]
        return NoDisplay()
    return {"live": LiveDisplay, "plain": PlainDisplay, "json": JsonDisplay}[kind](sys.stderr)


def _say_what_it_takes(plan: BatchPlan, as_json: bool) -> None:
    bound, total = plan.call_bound, plan.total
    rows = None if total is None else total // len(plan.cells)
    most = None if rows is None or bound.max_calls is None else rows * bound.max_calls
    least = None if rows is None else rows * bound.min_calls
    if as_json:
        print_json({"samples": total, "min_calls": least, "max_calls": most, "cells": len(plan.cells),
                    "epochs": plan.epochs, "scorers": [scorer.name for scorer in plan.scorers]})  # fmt: skip
        return
    click.echo(f"{plan.name}: {'?' if total is None else f'{total:,}'} samples")
    click.echo(bound.explanation)
    said = "?" if least is None else f"{least:,}"
    click.echo(f"model calls: at least {said}, at most {'?' if most is None else f'{most:,}'}, judges' not counted")


def _report(plan: BatchPlan, result: BatchResult, *, as_json: bool) -> None:
    from evaluator.batch.summary import render_summary

    ended = result.ended
    if as_json:
        print_json({
            "folder": str(result.folder), "state": ended.state, "reason": ended.reason, "ran": ended.ran,
            "total": ended.total, "ok": result.ok, "summary": result.summary.to_dict(),
            "gates": [gate.to_dict() for gate in result.gates],
            "changed": [str(changed) for changed in ended.counts.explained],
        })  # fmt: skip
        return
    click.echo(render_summary(result.summary, terminal_width()), nl=False)
    for gate in result.gates:
        click.echo(str(gate))
    counts = ended.counts
    if counts.changed:
        click.echo(f"{counts.changed:,} results answer another question than the one asked now:", err=True)
        for changed in counts.explained[:20]:
            click.echo(f"  {visible(str(changed))}", err=True)
        if counts.changed > 20:
            click.echo(f"  and {counts.changed - 20:,} more", err=True)
        click.echo(
            "They were left alone. --changed run runs them again, --changed keep counts them as they are.", err=True
        )
    if ended.orphans:
        click.echo(f"{len(ended.orphans):,} results in the folder are of rows that were not asked for", err=True)
    if any(cell.is_simulated for cell, _ in plan.cells):
        click.echo("note: answers are simulated", err=True)
    click.echo(f"results: {result.folder}", err=True)
    if not result.is_complete:
        click.echo(f"{ended.state}: {visible(ended.reason)}" if ended.reason else ended.state, err=True)
        click.echo(f"go on with: evaluator batch --resume {shlex.quote(str(result.folder))}", err=True)


def _exit_code(result: BatchResult, stop: Stop) -> int:
    if stop.state == "stopped":
        return 130
    if not result.is_complete:
        return EXIT_INCOMPLETE
    return 0 if result.ok else EXIT_GATE
