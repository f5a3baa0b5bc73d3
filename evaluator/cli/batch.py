"""`evaluator batch`: evaluates rows with templates, scores the answers, and resumes interrupted
batches.
"""

from __future__ import annotations

import asyncio
import gc
import os
import re
import shlex
import signal
import sys
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from evaluator.batch.definition import DEFAULT_FILE, BatchDefinition, definition_from
from evaluator.cli import common
from evaluator.cli.dry_run import print_dry_run
from evaluator.cli.echo import echo, ignore_closed_reader, json_stderr
from evaluator.cli.ending import DeferredEnd, has_only_errors, report_ending, resume_command
from evaluator.cli.evaluator_options import (
    SectionedCommand,
    SectionOption,
    flag_options,
    read_flags,
    terminal_asker,
    trace_option,
    trust_option,
)
from evaluator.cli.trust import permit, permit_schemas, project_profiles, shown_profiles
from evaluator.errors import BatchDamaged, UsageError
from evaluator.errors.messages import visible
from evaluator.fields.listing import entries_of, merge

if TYPE_CHECKING:
    from evaluator.batch import BatchPlan, BatchResult, Display, Stop, ThresholdResult
    from evaluator.files.trust import ProjectFile
    from evaluator.interpreter.evaluator import Evaluator

EXIT_THRESHOLD = 4
EXIT_INCOMPLETE = 5
EXIT_WAITING = 6
EXIT_INTERRUPTED = 130
# A scorer that is a function in a file.
_FILE = re.compile(r"[^:]+\.py:")
_ADDED = ("templates", "models", "handlers")


@click.command(
    cls=SectionedCommand,
    epilog="Examples:\n\n\b\n  evaluator batch --template answer_question --rows questions.jsonl "
    "--scorer includes\n"
    "  evaluator batch capitals.toml --limit 20 --dry-run\n"
    "  evaluator batch --resume batches/capitals-20260102-150405 --retry-errors\n\n"
    "Exit codes: 0 complete and every threshold is met; 4 a threshold is missed; 5 incomplete; 6 "
    "waiting for provider batches; 2 wrong usage; 3 configuration; 130 interrupted.",
)
@click.argument("definition", required=False, type=common.PATH)
@flag_options(BatchDefinition)
@click.option(
    "--resume",
    cls=SectionOption,
    section="Where it runs",
    metavar="FOLDER",
    type=common.FOLDER,
    help="Resume the batch in this folder. --template, --model and --handler add to its own.",
)
@click.option(
    "--progress",
    type=click.Choice(["auto", "live", "plain", "json", "none"]),
    default="auto",
    show_default=True,
    help="On standard error; auto is live on a terminal, else plain.",
)
@trace_option
@trust_option
@click.option(
    "--dry-run",
    is_flag=True,
    help="Check all but code; print what the batch would take; run and send nothing.",
)
@click.option(
    "--strict",
    is_flag=True,
    help="Exit code 4 if a sample ends with an error: the threshold errors <= 0.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def batch(definition: Path | None, **given: Any) -> None:
    """Evaluate rows with templates and models, score the answers, and print a summary.

    DEFINITION is a TOML file, or a folder with an evaluator.toml: the batch then runs as if started
    in that folder (default: this folder, if it has an evaluator.toml and no --template is given).
    Options override what it says. The summary goes to standard output, progress to standard error.
    """
    run_batch_command(definition, given)


def run_batch_command(definition: Path | None, given: dict[str, Any]) -> None:
    """Runs or plans a batch; `given` are the options of `batch`. Raises: Exit."""
    from evaluator.batch import Stop, make_plan
    from evaluator.batch.rows.hf_rows import without_downloads
    from evaluator.batch.rows.object_rows import shard_of
    from evaluator.batch.run import new_folder
    from evaluator.batch.scorers.function_scorer import without_code

    if given["strict"]:
        given["thresholds"] = (*given["thresholds"], "errors <= 0")
    folder: Path | None = given["resume"] and given["resume"].absolute()
    dry_run = given["dry_run"]
    here = os.getcwd()
    session = session_options(given)
    wanted = read_batch_definition(definition, folder, given=given)
    if folder is not None and given["scorers"]:
        wanted = _with_own_scorers(wanted, folder)
    evaluator = make_evaluator(
        wanted,
        given,
        session.get("sandbox"),
        shows_progress=given["progress"] in ("auto", "live"),
        tracer=given["trace"] or None,
    )
    output = Path(
        folder or wanted.options.output or new_folder(wanted.name, shard_of(wanted.options.select))
    )
    options = replace(
        wanted.options,
        output=output if os.getcwd() == here else output.absolute(),
        resume=folder is not None,
        display=DeferredEnd(make_display(given["progress"])),
        stop=Stop(),
        **session,
    )
    if dry_run:
        planning = evaluator.without_network()
        with without_code(), without_downloads():
            plan = make_plan(planning, wanted.templates, rows=wanted.rows, options=options)
            can_start = print_dry_run(planning, plan, as_json=given["as_json"])
        raise click.exceptions.Exit(0 if can_start else EXIT_INCOMPLETE)
    plan = make_plan(evaluator, wanted.templates, rows=wanted.rows, options=options)
    raise click.exceptions.Exit(_run(evaluator, plan, wanted=wanted, as_json=given["as_json"]))


def make_evaluator(
    wanted: BatchDefinition,
    given: Mapping[str, Any],
    sandbox: Any,
    *,
    shows_progress: bool = True,
    tracer: Any = None,
) -> Evaluator:
    """The Evaluator of a definition and of the flags that were given. With --dry-run it sends
    nothing, so that nothing needs a permission.
    """
    from evaluator.interpreter.evaluator import Evaluator

    roles = wanted.model_roles or {}
    library = common.load_library(
        [Path(path) for path in wanted.library], shows_progress=shows_progress
    )
    common.warn_of_unknown_roles(library, roles)
    if given.get("dry_run"):
        profiles = shown_profiles()
    else:
        permit_schemas(library, given["trust"])
        profiles = project_profiles(given["trust"])
    evaluator = Evaluator(
        library,
        model_roles=roles,
        tasks_dir=None,
        roots=wanted.roots,
        notice=lambda line: echo(line, err=True),
        tracer=tracer,
        sandbox=sandbox,
        profiles=profiles,
        trust=given["trust"],
    )
    return click.get_current_context().with_resource(evaluator)


def _with_own_scorers(wanted: BatchDefinition, folder: Path) -> BatchDefinition:
    """`wanted` with the scorers of the batch. Raises: UsageError, if it names others."""
    from evaluator.batch.reading import open_batch

    own = open_batch(folder).manifest["arguments"].get("scorers", ())
    scorers = wanted.options.scorers
    others = " ".join(f"--scorer {shlex.quote(each)}" for each in scorers if each not in own)
    if others:
        raise UsageError(
            "--resume continues with the scorers of the batch; to add others: evaluator score "
            f"{shlex.quote(str(folder))} {others}"
        )
    return replace(wanted, options=replace(wanted.options, scorers=tuple(own)))


def session_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options that only this session has. Raises: UsageError, for one that has a meaning only
    with --resume, without it.
    """
    from evaluator.batch.options import RESUMING, BatchOptions

    session = read_flags(BatchOptions, given, is_stored=False)
    for entry in entries_of(BatchOptions):
        if entry.flag is None or entry.field.is_stored:
            continue
        if entry.section == RESUMING and entry.parameter in session and given["resume"] is None:
            raise UsageError(
                f"{entry.flag.name} is for a batch that is resumed: name it with --resume FOLDER"
            )
        if entry.flag.default is not None:
            session.setdefault(entry.parameter, entry.flag.default)
    return session


def _run(evaluator: Evaluator, plan: BatchPlan, wanted: BatchDefinition, *, as_json: bool) -> int:
    """Runs the session and prints its result. Returns: the exit code."""
    from evaluator.batch import Stop, run_plan

    options = plan.options
    stop = options.stop or Stop()
    display = cast("DeferredEnd", options.display)
    output = Path(options.output or "")

    async def run() -> BatchResult:
        checked = await evaluator.check_sandboxes(plan.evaluations, terminal_asker())
        with ending_signals(stop, display):
            return await run_plan(checked, plan, arguments=plan.pinned(wanted.to_dict()))

    gc.freeze()
    try:
        result = asyncio.run(run())
    except BaseException as error:
        command = resume_command(options, repair=isinstance(error, BatchDamaged))
        display.close(output, str(error) or "interrupted", command)
        if display.has_started and json_stderr() is None:
            echo(f"\nfinished samples are stored; resume with: {command}", err=True)
        raise
    try:
        with ignore_closed_reader(sys.stdout):
            _print(result, as_json=as_json)
    except BaseException as error:
        if result.is_complete:
            command = None
        else:
            command = resume_command(options)
        display.close(
            output, f"the summary could not be printed: {str(error) or 'interrupted'}", command
        )
        raise
    code = _exit_code(result, stop)
    if not as_json or json_stderr() is not None:
        report_ending(plan, result, display=display, code=code)
    return code


@contextmanager
def ending_signals(stop: Stop, display: Display) -> Generator[None]:
    """The first Ctrl-C, SIGTERM or SIGHUP asks the session to end; a second one cancels the samples
    in flight.

    SIGHUP never cancels, because a closed terminal may send it twice (the kernel and the shell),
    and after one it is ignored when the context ends. Signals that were ignored before stay
    ignored, as under nohup.
    """
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    got = set[int]()

    def react(number: int) -> None:
        if stop.state is None:
            stop.ask("stopped", "interrupted")
            display.notice("finishing the samples in flight; press Ctrl-C again to cancel them")
        elif task is not None and number != signal.SIGHUP:
            task.cancel()

    # Not loop.add_signal_handler: removing such a handler sets the signal's default first, which
    # ends the process.
    def handle(number: int, _frame: object) -> None:
        got.add(number)
        loop.call_soon_threadsafe(react, number)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {
        number: handler
        for number in numbers
        if (handler := signal.getsignal(number)) != signal.SIG_IGN
    }
    for number in before:
        signal.signal(number, handle)
    try:
        yield
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    finally:
        for number, handler in before.items():
            is_closed = number == signal.SIGHUP and number in got
            signal.signal(number, signal.SIG_IGN if is_closed else handler or signal.SIG_DFL)


def read_batch_definition(
    path: Path | None, folder: Path | None, given: dict[str, Any]
) -> BatchDefinition:
    """The definition in the file, or in the manifest of an earlier session, overridden by the
    flags.
    """
    from evaluator.batch.permissions import claims_of_manifest, signed_code

    known: frozenset[ProjectFile] = frozenset()
    if folder is not None:
        from evaluator.batch.folder import BatchFolder

        if path is not None or given["output"] is not None:
            raise UsageError(
                "--resume continues the batch in its folder: give neither a DEFINITION nor --output"
            )
        manifest = BatchFolder.reader(folder).manifest(repair=given["repair"])
        arguments = manifest.get("arguments")
        if not arguments:
            raise UsageError(
                f"{folder}: this batch was run from Python, with rows or scorers that no file "
                "has; resume it there: "
                f"run_batch(…, output={str(folder)!r}, resume=True)"
            )
        base = definition_from(arguments)
        _expect_permission(claims_of_manifest(folder, manifest, definition=base), given)
        known = signed_code(manifest, base)
        given = _enter_start_folder(manifest.get("cwd"), folder, base=base, given=given)
    elif path is not None and path.is_dir():
        file = path.absolute() / DEFAULT_FILE
        if not file.is_file():
            if (path / "manifest.json").is_file():
                raise UsageError(
                    f"{path} is the folder of a batch; to resume it: --resume "
                    f"{shlex.quote(str(path))}"
                )
            raise UsageError(
                f"{path} is a folder without {DEFAULT_FILE}; name the TOML file, or write "
                f"{DEFAULT_FILE}"
            )
        given = _enter_folder(str(path.absolute()), given)
        base = _read_trusted(file, given)
    elif path is not None:
        base = _read_trusted(path, given)
    elif not given["templates"] and Path(DEFAULT_FILE).is_file():
        base = _read_trusted(Path(DEFAULT_FILE), given)
    else:
        if given["templates"] and not given["rows"]:
            raise UsageError(
                "--template needs --rows FILE, the rows to evaluate; see: evaluator batch --help"
            )
        if not given["templates"]:
            raise UsageError(
                f"there is no {DEFAULT_FILE} in this folder; give a DEFINITION, or --template and "
                "--rows; "
                "see: evaluator batch --help"
            )
        base = definition_from({"templates": given["templates"], "rows": given["rows"]})
    wanted = _override(base, given, adds=folder is not None)
    _guard_code(base, wanted, known=known)
    return wanted


def _read_trusted(path: Path, given: Mapping[str, Any]) -> BatchDefinition:
    """The definition in a file. Raises: ConfigurationError, if the user has not allowed what it
    names.
    """
    from evaluator.batch.permissions import read_with_claims

    definition, claims = read_with_claims(path, os.getcwd())
    # A dry run neither imports the code nor writes anywhere.
    if not given["dry_run"]:
        _expect_permission(claims, given)
    return definition


def _expect_permission(files: Iterable[ProjectFile], given: Mapping[str, Any]) -> None:
    """Raises: ConfigurationError, if the user does not allow what `files` name."""
    from evaluator.files.trust import is_allowed

    refused = [file for file in files if not is_allowed(file)]
    if not permit(refused, given["trust"]):
        raise refused[0].refusal()


def _guard_code(
    base: BatchDefinition, wanted: BatchDefinition, known: frozenset[ProjectFile]
) -> None:
    """From now on only code runs that the user allowed or named with a flag, if a definition names
    code.
    """
    from evaluator.batch.permissions import named_code
    from evaluator.files.project_code import CodeGuard, code_files, guard_process

    places = named_code(base)
    if not places:
        return
    folder = os.getcwd()
    typed = named_code(wanted).keys() - places.keys()
    if typed:
        known = known.union(*(code_files(place.rpartition(":")[0], folder) for place in typed))
    files = [place.rpartition(":")[0] for place in places]
    folders = {folder, *(os.path.dirname(os.path.abspath(f)) for f in files if f.endswith(".py"))}
    guard_process([CodeGuard(each, known) for each in folders])


def _enter_start_folder(
    start: str | None, folder: Path, base: BatchDefinition, given: dict[str, Any]
) -> dict[str, Any]:
    """Changes to the folder where the batch was started: the paths in its definition are relative
    to that one.

    Returns: the flags; their paths still refer to the folder in which the command was started.
    Raises: UsageError, if the batch's folder is gone, unless --root says which folder tasks may
    read: then the current folder is used.
    """
    if start is None or start == os.getcwd():
        return given
    shown = visible(start)
    try:
        return _enter_folder(start, given)
    except (FileNotFoundError, NotADirectoryError):
        if given["roots"]:
            echo(
                f"{shown}, where the batch was started, does not exist; using files in this folder",
                err=True,
            )
            return given
        roots = " ".join(f"--root {shlex.quote(root)}" for root in base.roots or (".",))
        raise UsageError(
            f"the batch was started in {shown}, which does not exist; its rows, handlers/, "
            "templates/ and scorers were "
            f"found from there. In the folder where they are now, run: evaluator batch --resume "
            f"{shlex.quote(str(folder))} {roots}"
        ) from None
    except OSError as error:
        raise UsageError(
            f"the batch was started in {shown}, which cannot be entered: {error.strerror}"
        ) from error


def _enter_folder(folder: str, given: dict[str, Any]) -> dict[str, Any]:
    """Changes to `folder`. Returns: the flags, whose paths still refer to the folder in which the
    command was started.

    Raises: OSError, if the folder cannot be entered.
    """
    from evaluator.batch.decision import number_in
    from evaluator.batch.rows.hf_rows import place_in

    here = os.getcwd()
    if here == folder:
        return given
    os.chdir(folder)
    echo(f"in the folder {visible(folder)}", err=True)
    paths = {
        name: given[name] and place_in(here, given[name])
        for name in ("rows", "cache", "output", "fewshot_rows", "decide_like")
    }
    baseline = given["decide_baseline"]
    if baseline is not None and number_in(baseline) is None:
        paths["decide_baseline"] = place_in(here, baseline)
    paths |= {
        name: tuple(os.path.join(here, path) for path in given[name])
        for name in ("library", "roots")
    }
    code = {
        name: tuple(os.path.join(here, text) if _FILE.match(text) else text for text in given[name])
        for name in ("scorers", "metrics")
    }
    return {**given, **paths, **code}


def _override(base: BatchDefinition, given: Mapping[str, Any], *, adds: bool) -> BatchDefinition:
    """`base` with the flags. `adds`: templates, models and handlers are added to those of
    `base`.
    """
    table = base.to_dict()
    changes = read_flags(BatchDefinition, given)
    for name in (*(_ADDED if adds else ()), "thresholds"):
        if name in changes:
            changes[name] = list(dict.fromkeys([*table.get(name, ()), *changes[name]]))
    if changes.get("engine") == "local" and "workers" not in changes:
        table.pop("workers", None)
    table = merge(table, changes)
    if given["select_seed"] is not None and "sample" not in table["select"]:
        raise UsageError(
            "--seed is for rows that are drawn at random: say how many, with --sample N"
        )
    # Read as a file would be, so that the manifest can be read again.
    return definition_from(table)


def make_display(kind: str) -> Display:
    from evaluator.batch.display import JsonDisplay, LiveDisplay, NoDisplay, PlainDisplay

    if kind == "auto":
        if common.stderr_is_terminal():
            kind = "live"
        else:
            kind = "plain"
    if kind == "none" or sys.stderr is None:  # pyright: ignore[reportUnnecessaryComparison]
        return NoDisplay()
    stream = json_stderr()
    if stream is not None:
        return JsonDisplay(stream.lines)
    return {"live": LiveDisplay, "plain": PlainDisplay, "json": JsonDisplay}[kind](sys.stderr)


def _print(result: BatchResult, *, as_json: bool) -> None:
    ended = result.ended
    if as_json:
        common.print_json(
            {
                "folder": str(result.folder),
                "state": ended.state,
                "reason": ended.reason,
                "ran": ended.ran,
                "total": ended.total,
                "ok": result.ok,
                "summary": result.summary.to_dict(),
                "thresholds": [threshold.to_dict() for threshold in result.thresholds],
                "changed": [str(changed) for changed in ended.counts.explained],
            }
        )
        return
    echo(result.summary.to_text(common.terminal_width()), nl=False)
    for threshold in result.thresholds:
        echo(str(threshold))


def _exit_code(result: BatchResult, stop: Stop) -> int:
    if stop.state == "stopped":
        return EXIT_INTERRUPTED
    if result.ended.state == "waiting":
        return EXIT_WAITING
    return exit_code_of_thresholds(
        result.thresholds, is_complete=result.is_complete and not has_only_errors(result)
    )


def exit_code_of_thresholds(thresholds: Iterable[ThresholdResult], *, is_complete: bool) -> int:
    """4 if a threshold is missed; 5 if one cannot be decided or the batch is not complete; else
    0.
    """
    from evaluator.batch.thresholds import ThresholdStatus

    seen = list(thresholds)
    if any(threshold.status is ThresholdStatus.MISSED for threshold in seen):
        return EXIT_THRESHOLD
    if is_complete and all(threshold.met for threshold in seen):
        return 0
    return EXIT_INCOMPLETE
