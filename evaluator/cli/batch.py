"""`evaluator batch`: rows through templates, scored; gone on with where it was broken off."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
import sys
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

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
from evaluator.cli.dry_run import say_what_it_takes
from evaluator.cli.ending import Shown, is_nothing_but_errors, report_ending, resuming
from evaluator.cli.stderr import events, reader_may_go
from evaluator.errors import UsageError
from evaluator.record.render import visible

if TYPE_CHECKING:
    from evaluator.batch import BatchDefinition, BatchResult, BatchSettings, Display, Stop
    from evaluator.batch.gates import GateResult
    from evaluator.batch.plan import BatchPlan
    from evaluator.interpreter.evaluator import Evaluator

EXIT_GATE, EXIT_INCOMPLETE, EXIT_INTERRUPTED = 4, 5, 130
_MANY = "May be repeated."
# A scorer that is a function in a file.
_FILE = re.compile(r"[^:]+\.py:")


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
              help=f"How answers are judged: includes, numeric:abs_tol=0.01, FILE.py:FUNCTION … {_MANY}")  # fmt: skip
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
@click.option("--start", type=click.IntRange(min=0), help="Rows from this place on, counted from 0.")
@click.option("--stop", type=click.IntRange(min=0), help="Rows before this place.")
@click.option(
    "--metadata", multiple=True, metavar="FIELD", help=f"Keep these fields. Default: all that are left. {_MANY}"
)
@click.option("--cluster", metavar="FIELD", help="The metadata field whose equal values are not independent.")
@click.option("--group-by", metavar="FIELD", help="Show the numbers for each value of this metadata field.")
@click.option("--gate", "gates", multiple=True, metavar="CONDITION",
              help=f"What has to hold besides, e.g. 'accuracy >= 0.8'. {_MANY}")  # fmt: skip
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
    from evaluator.batch import Stop, make_plan
    from evaluator.batch.run import new_folder
    from evaluator.batch.scorers import parse_scorer
    from evaluator.front import Evaluator

    _check_resuming(options)
    folder: Path | None = options["resume"] and options["resume"].absolute()
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
        can_begin = say_what_it_takes(evaluator, plan, as_json=options["as_json"])
        raise click.exceptions.Exit(0 if can_begin else EXIT_INCOMPLETE)
    output, stop = folder or Path(wanted.output or new_folder(plan.name)), Stop()
    settings = _settings(plan, wanted, options, stop)
    raise click.exceptions.Exit(_run(evaluator, plan, output, settings, wanted, options["as_json"]))


def _check_resuming(options: dict[str, Any]) -> None:
    """Raises: UsageError, for what means something for a batch that is gone on with only, and no other is named."""
    if options["resume"] is not None:
        return
    source = click.get_current_context().get_parameter_source
    for name in ("retry_errors", "changed", "unfinished"):
        if source(name) is ParameterSource.COMMANDLINE:
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"{option} is of a batch that is gone on with: say which, with --resume FOLDER")


def _settings(plan: BatchPlan, wanted: BatchDefinition, options: dict[str, Any], stop: Stop) -> BatchSettings:
    from evaluator.batch import BatchSettings, make_engine

    if options["engine"] == "ray":
        from evaluator.batch.engines.ray_cluster import import_ray

        # Before there is a folder.
        import_ray()
    return BatchSettings(
        options["resume"] is not None, options["retry_errors"], options["changed"], options["unfinished"],
        make_engine(options["engine"], plan.limits), wanted.cache, Shown(_display(options["progress"])), stop,
    )  # fmt: skip


def _run(
    evaluator: Evaluator, plan: BatchPlan, output: Path, settings: BatchSettings, wanted: BatchDefinition, as_json: bool
) -> int:
    """Runs the session, and says what came of it. Returns: the exit code."""
    from evaluator.batch import run_plan

    shown = settings.display
    assert isinstance(shown, Shown)

    async def run() -> BatchResult:
        with _ctrl_c(settings.stop, shown):
            return await run_plan(evaluator, plan, output, settings, wanted.to_dict())

    try:
        result = asyncio.run(run())
    except BaseException as error:
        go_on = resuming(output, settings)
        shown.close(output, str(error) or "interrupted", go_on)
        if shown.has_begun and events() is None:
            click.echo(f"\nwhat is done is kept; go on with: {go_on}", err=True)
        raise
    try:
        with reader_may_go(sys.stdout):
            _print(result, as_json=as_json)
    except BaseException as error:
        go_on = None if result.is_complete else resuming(output, settings)
        shown.close(output, f"the numbers could not be printed: {str(error) or 'interrupted'}", go_on)
        raise
    code = _exit_code(result, settings.stop)
    if not as_json or events() is not None:
        report_ending(plan, result, output, settings, shown, code)
    return code


@contextmanager
def _ctrl_c(stop: Stop, display: Display) -> Generator[None]:
    """The first Ctrl-C, SIGTERM or closed terminal asks the session to end; a second one cancels what is in flight.

    A terminal that is closed may say so twice (the kernel does, and the shell), so that SIGHUP cancels nothing, and
    once it was heard it is ignored from the end of the session on. What is ignored stays ignored, as under nohup.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    got = set[int]()

    def heard(number: int) -> None:
        if stop.state is None:
            stop.ask("stopped", "interrupted")
            display.notice("finishing what is in flight; once more to cut it off")
        elif task is not None and number != signal.SIGHUP:
            task.cancel()

    # Not the loop's own handlers: taking one away sets the signal's default first, which ends the process.
    def came(number: int, _frame: object) -> None:
        got.add(number)
        loop.call_soon_threadsafe(heard, number)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: handler for number in numbers if (handler := signal.getsignal(number)) != signal.SIG_IGN}
    for number in before:
        signal.signal(number, came)
    try:
        yield
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    finally:
        for number, handler in before.items():
            is_over = number == signal.SIGHUP and number in got
            signal.signal(number, signal.SIG_IGN if is_over else handler or signal.SIG_DFL)


def _definition(path: Path | None, folder: Path | None, options: dict[str, Any]) -> BatchDefinition:
    """What the file, or the manifest of an earlier session, says, with the options above it."""
    from evaluator.batch.definition import DEFAULT_FILE, definition_from, read_definition

    if folder is not None:
        if path is not None or options["output"] is not None:
            raise UsageError("--resume goes on with what is in its folder: give neither a DEFINITION nor --output")
        from evaluator.batch.folder import BatchFolder

        manifest = BatchFolder.reader(folder).manifest()
        known = manifest.get("arguments")
        if not known:
            raise UsageError(
                f"{folder}: this batch was run from Python, with rows or scorers that no file holds; go on with it "
                f"there: evaluator.batch(…, output={str(folder)!r}, resume=True)"
            )
        base = definition_from(known)
        options = _in_its_place(manifest.get("cwd"), folder, base, options)
    elif path is not None:
        base = read_definition(path)
    elif not options["templates"] and Path(DEFAULT_FILE).is_file():
        base = read_definition(DEFAULT_FILE)
    else:
        if not options["templates"] or not options["rows"]:
            raise UsageError("give a DEFINITION, or --template and --rows; see: evaluator batch --help")
        base = definition_from({"templates": list(options["templates"]), "rows": options["rows"]})
    return _with_options(base, options, adds=folder is not None)


def _in_its_place(place: str | None, folder: Path, base: BatchDefinition, options: dict[str, Any]) -> dict[str, Any]:
    """Goes to where the batch was begun: its files, profiles and scorers are named from there.

    Returns: the options, with the files that they name from here still meant. Raises: UsageError, if the place is
    gone, unless --root says which folder tasks may read: then this one takes its place.
    """
    here = os.getcwd()
    if place is None or place == here:
        return options
    shown = visible(place)
    try:
        os.chdir(place)
    except (FileNotFoundError, NotADirectoryError):
        if options["roots"]:
            click.echo(f"{shown}, where the batch was begun, is not there; its files are looked for here", err=True)
            return options
        roots = " ".join(f"--root {shlex.quote(root)}" for root in base.roots or (".",))
        raise UsageError(
            f"the batch was begun in {shown}, which is not there; its rows, handlers/, templates/ and scorers were "
            f"named from there. Where they are now, give: {resuming(folder)} {roots}"
        ) from None
    except OSError as error:
        raise UsageError(f"the batch was begun in {shown}, which cannot be entered: {error.strerror}") from error
    click.echo(f"in the folder {shown}, where the batch was begun", err=True)
    named = {name: options[name] and os.path.join(here, options[name]) for name in ("rows", "cache")}
    named |= {name: tuple(Path(here, path) for path in options[name]) for name in ("folders", "roots")}
    scorers = tuple(os.path.join(here, text) if _FILE.match(text) else text for text in options["scorers"])
    return {**options, **named, "scorers": scorers}


def _with_options(base: BatchDefinition, options: dict[str, Any], *, adds: bool) -> BatchDefinition:
    from evaluator.batch.definition import definition_from

    changes: dict[str, Any] = {}
    for name, key in (("templates", "templates"), ("models", "models"), ("handlers", "handlers")):
        given = tuple(options[key])
        if given:
            before: tuple[str, ...] = getattr(base, name)
            changes[name] = tuple(dict.fromkeys((*before, *given))) if adds else given
    renamed = {"id": "id_field"}
    for name in ("rows", "id", "target", "epochs", "output", "cache", "cluster", "group_by"):
        key = renamed.get(name, name)
        if options[key] is not None:
            changes[name] = options[key]
    if options["mapped"]:
        changes["inputs"] = {**(base.inputs or {}), **dict(_pair("--map", text) for text in options["mapped"])}
    if options["model_roles"]:
        changes["model_roles"] = {**base.model_roles, **read_roles(options["model_roles"])}
    if options["scorers"]:
        changes["scorers"] = tuple(options["scorers"])
    for name in ("count_as_failed", "reducers", "metadata"):
        if options[name]:
            changes[name] = tuple(options[name])
    if options["gates"]:
        # A threshold of the file's is not taken away by another.
        changes["gates"] = tuple(dict.fromkeys((*base.gates, *options["gates"])))
    if options["folders"]:
        changes["library"] = tuple(map(str, options["folders"]))
    if options["roots"]:
        changes["roots"] = tuple(map(str, options["roots"]))
    selected = {
        name: options[name]
        for name in ("start", "stop", "limit", "sample", "seed", "where")
        if options[name] is not None
    }
    if selected:
        changes["select"] = {**base.select, **selected}
    if options["seed"] is not None and changes["select"].get("sample") is None:
        raise UsageError("--seed is of rows that are drawn: say how many, with --sample N")
    names = {"concurrency": "concurrency", "rpm": "requests_per_minute", "tpm": "tokens_per_minute",
             **{name: name for name in ("max_cost", "max_tokens", "max_time", "stop_after")}}  # fmt: skip
    limits = {name: options[key] for key, name in names.items() if options[key] is not None}
    if limits:
        changes["limits"] = replace(base.limits, **limits)
    # What an option says is held to what a file may say, so that the manifest can be read again.
    return definition_from(replace(base, **changes).to_dict())


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
    stream = events()
    if stream is not None:
        return JsonDisplay(stream.lines)
    return {"live": LiveDisplay, "plain": PlainDisplay, "json": JsonDisplay}[kind](sys.stderr)


def _print(result: BatchResult, *, as_json: bool) -> None:
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


def _exit_code(result: BatchResult, stop: Stop) -> int:
    if stop.state == "stopped":
        return EXIT_INTERRUPTED
    return exit_code_of_gates(result.gates, is_complete=result.is_complete and not is_nothing_but_errors(result))


def exit_code_of_gates(gates: Iterable[GateResult], *, is_complete: bool) -> int:
    """4 where a gate is missed; 5 where that cannot be told, or the batch is not complete; else 0."""
    from evaluator.batch.gates import GateStatus

    seen = list(gates)
    if any(gate.status is GateStatus.MISSED for gate in seen):
        return EXIT_GATE
    return 0 if is_complete and all(gate.met for gate in seen) else EXIT_INCOMPLETE
