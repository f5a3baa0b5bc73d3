"""`evaluator queue`: hand over work, have it done, and look at it later."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evaluator.cli import common
from evaluator.cli.echo import echo
from evaluator.cli.evaluator_options import EvaluatorOptions, evaluator_options
from evaluator.errors import UsageError
from evaluator.errors.messages import amount, visible

if TYPE_CHECKING:
    from evaluator.errors.results import Outcome
    from evaluator.queue import QueueEntry, QueueView, StuckEntry, TaskQueue, Verifier

queue_option = click.option(
    "--queue",
    "folder",
    metavar="FOLDER",
    type=common.FOLDER,
    help="The folder of the queue. Default: the variable TASK_RUNNER_DIR, else queue.",
)
EXIT_INCOMPLETE = 5
_MAX_STUCK = 10
_STATUSES = ("pending", "running", "done", "blocked", "skipped")


@click.group(epilog='Example:  evaluator queue add "summarise the minutes of today"')
def queue() -> None:
    """Keep a persistent queue of tasks: add texts, let workers do them, and see what was delivered.

    Its state is in FOLDER/queue.sqlite, and published in FOLDER/task-queue.json within a second of
    a change.
    """


@queue.command(
    epilog='Example:  evaluator queue add "summarise the minutes" --after T-03 --priority 5'
)
@click.argument("text")
@click.option(
    "--goal",
    help="The objective in one sentence. Default: the first of TEXT that asks for something.",
)
@click.option(
    "--read",
    is_flag=True,
    help="Ask a model to read TEXT: goals, types, dates, priority, and several entries.",
)
@click.option(
    "--type", "kind", metavar="TYPE", help="The type. Default: by the words of TEXT, else unknown."
)
@click.option("--priority", default=0, show_default=True, help="Higher runs first.")
@click.option(
    "--not-before",
    metavar="TIME",
    help="Do not run it before this time (ISO 8601; local without a zone).",
)
@click.option(
    "--after",
    "needs",
    multiple=True,
    metavar="ID",
    help="Run it when this entry is done. May be repeated.",
)
@click.option(
    "--every",
    metavar="CRON",
    help="Repeat it at these times in UTC, e.g. '0 7 * * 1'. Needs evaluator[queue].",
)
@click.option(
    "--template",
    metavar="NAME",
    help="The template to evaluate. Default: those that fit TEXT, best first.",
)
@common.input_option
@click.option(
    "--max-retries", type=click.IntRange(min=0), help="Failed attempts until it is blocked."
)
@click.option(
    "--key", help="Add nothing if an entry was ever added with this key; print that entry."
)
@evaluator_options("--library", "--handler", "--model", "--tasks")
@queue_option
@common.json_option
def add(
    text: str,
    read: bool,
    options: EvaluatorOptions,
    folder: Path | None,
    as_json: bool,
    **fields: Any,
) -> None:
    """Add an entry for TEXT; - reads it from standard input.

    The options of models are for --read, which may add several entries.
    """
    fields["inputs"] = common.read_inputs(fields["inputs"], None)
    fields["type"] = fields.pop("kind")
    fields["not_before"] = _time(fields["not_before"])
    text = common.read_text("-") if text == "-" else text
    if read:
        _add_message(text, options, folder, as_json, fields)
        return
    with _open(folder) as found:
        _print_entry(found.add(text, **fields), as_json)


def _add_message(
    text: str,
    options: EvaluatorOptions,
    folder: Path | None,
    as_json: bool,
    fields: dict[str, Any],
) -> None:
    """Adds what a model reads out of the text; every other option is for each entry."""
    for name in ("goal", "type", "not_before", "priority", "every", "key"):
        if fields.pop(name):
            option = name.replace("_", "-")
            raise UsageError(f"--read and --{option} cannot be combined; the model reads it")
    from evaluator.jobs.intake import READER

    evaluator = options.make_evaluator()

    def check(outcome: Outcome) -> None:
        common.refuse_simulated(
            evaluator.library, READER, model=outcome.notes.get("model"), what="read a message"
        )

    with _open(folder) as found:
        entries = asyncio.run(found.add_message(evaluator, text, check=check, **fields))
        _print_entries(entries, as_json)


@queue.command("list", epilog="Example:  evaluator queue list --status blocked")
@click.option("--status", type=click.Choice(_STATUSES), help="Only entries with this status.")
@click.option("--limit", type=click.IntRange(min=1), help="At most this many, the newest.")
@queue_option
@common.json_option
def list_(status: Any, limit: int | None, folder: Path | None, as_json: bool) -> None:
    """List the entries that are not in the archive."""
    with _look(folder) as found:
        if as_json:
            common.print_json_text(found.list_json(status, limit=limit))
            _warn_of_stuck(found.stuck())
            return
        entries = found.list(status, limit=limit)
        stuck = found.stuck()
    if not entries:
        echo("The queue has no such entry." if status else "The queue is empty.")
    else:
        rows = [[e.id, e.status, e.type, f"{e.retries}/{e.max_retries}", e.goal] for e in entries]
        common.print_table(["id", "status", "type", "retries", "goal"], rows)
        _warn_of_stuck(stuck)


@queue.command(epilog="Example:  evaluator queue show T-03")
@click.argument("id_", metavar="ID")
@queue_option
@common.json_option
def show(id_: str, folder: Path | None, as_json: bool) -> None:
    """Show an entry: what was tried, what was delivered, what it waits for."""
    from evaluator.jobs.queue_view import entry_details

    with _look(folder) as found:
        stored = found.show(id_)
    fields = stored.entry.to_dict()
    details = entry_details(stored)
    if as_json:
        common.print_json({**fields, "options": details})
        return
    attempts = fields.pop("strategies_tried")
    for name, value in {**fields, **details}.items():
        if value not in (None, [], (), {}, 0, ""):
            if isinstance(value, (dict, list, tuple)):
                value = json.dumps(value, ensure_ascii=False)
            echo(f"{name}: {value}")
    for attempt in attempts:
        echo(f"attempt {attempt['attempt']} at {attempt['attempted_at']}: {attempt['strategy']}")
        echo(f"  {attempt['result']}")
        if attempt["verification_failure"] is not None:
            echo(f"  not accepted: {attempt['verification_failure']}")


@queue.command(
    epilog="Example:  evaluator queue work --workers 2 --until-empty --verify "
    "includes:ignore_case=true"
)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    help="Entries at once. Default: maxConcurrent of the queue.",
)
@click.option(
    "--max-concurrent",
    type=click.IntRange(min=1),
    help="Change maxConcurrent: entries at once in all processes.",
)
@click.option("--until-empty", is_flag=True, help="End when no entry runs and none could run now.")
@click.option(
    "--verify",
    "scorers",
    multiple=True,
    metavar="SCORER",
    help="Accept results that this scorer passes.",
)
@click.option(
    "--grader", metavar="TEMPLATE", help="Accept results that this template grades as success."
)
@click.option(
    "--classify", is_flag=True, help="Ask a model for the type of entries whose type is unknown."
)
@click.option(
    "--unfinished",
    type=click.Choice(["ask", "repeat", "tell", "stop"]),
    default="stop",
    show_default=True,
    help="What to do about a side effect of an interrupted attempt that was started and has no "
    "recorded end.",
)
@evaluator_options(
    "--library",
    "--handler",
    "--model",
    "--model-role",
    "--tasks",
    "--root",
    "--memory",
    "--ask-in",
    "--sync",
    "--sandbox",
)
@queue_option
@common.json_option
def work(
    workers: int | None,
    max_concurrent: int | None,
    until_empty: bool,
    scorers: tuple[str, ...],
    grader: str | None,
    classify: bool,
    unfinished: Any,
    options: EvaluatorOptions,
    folder: Path | None,
    as_json: bool,
) -> None:
    """Work on the queue. Several processes may do so at once; Ctrl-C and SIGTERM return what runs
    to the queue.

    With --until-empty, the exit code is 5 if entries are left that wait for one that was skipped or
    is blocked.

    Entries have the authority of this command: its profile, roots, sandbox and trust. The text of
    an entry is data.
    """
    evaluator = options.make_evaluator()
    verifiers: list[Verifier] = []
    if scorers:
        from evaluator.batch.queue_verifier import ScorerVerifier

        verifiers.append(ScorerVerifier(scorers))
    if grader is not None:
        from evaluator.queue import GraderVerifier

        verifiers.append(GraderVerifier(evaluator, grader))

    def show(entry: QueueEntry) -> None:
        if not as_json:
            what = entry.deliverable_path or entry.blocked_reason or entry.goal
            echo(f"{entry.id} {entry.status}: {visible(what, one_line=True)}", err=True)

    with _open(folder) as found:
        if max_concurrent is not None:
            found.configure(max_concurrent=max_concurrent)
        summary = found.work_sync(
            evaluator,
            workers=workers,
            until_empty=until_empty,
            verifiers=verifiers,
            ask_model=classify,
            unfinished=unfinished,
            on_start=show,
            on_end=show,
        )
        if as_json:
            common.print_json({**asdict(summary), "stats": asdict(found.stats())})
        stuck = found.stuck() if until_empty else ()
    if stuck:
        _warn_of_stuck(stuck)
        raise click.exceptions.Exit(EXIT_INCOMPLETE)


@queue.command(epilog='Example:  evaluator queue retry T-03 "use the channel #research"')
@click.argument("id_", metavar="ID")
@click.argument("guidance", nargs=-1)
@queue_option
@common.json_option
def retry(id_: str, guidance: tuple[str, ...], folder: Path | None, as_json: bool) -> None:
    """Return a blocked entry to the queue. GUIDANCE is added to its text for the next attempts."""
    with _open(folder) as found:
        _print_entry(found.retry(id_, " ".join(guidance) or None), as_json)


@queue.command(epilog='Example:  evaluator queue tell "retry T-03 use the channel #research"')
@click.argument("words", nargs=-1, required=True)
@queue_option
@common.json_option
def tell(words: tuple[str, ...], folder: Path | None, as_json: bool) -> None:
    """Control the queue in words, also while it runs; - reads them from standard input.

    "skip T-02" cancels a pending entry, and "retry T-03 use …" returns a blocked one with guidance.
    Several are written on several lines; all of them are done, or none.
    """
    text = " ".join(words)
    if text == "-":
        text = common.read_text("-")
    with _open(folder) as found:
        _print_entries(found.tell(text), as_json)


@queue.command(epilog="Example:  evaluator queue skip T-04")
@click.argument("id_", metavar="ID")
@queue_option
@common.json_option
def skip(id_: str, folder: Path | None, as_json: bool) -> None:
    """Cancel a pending entry."""
    with _open(folder) as found:
        _print_entry(found.skip(id_), as_json)


@queue.command(epilog="Example:  evaluator queue archive --days 30")
@click.option("--days", type=click.FloatRange(min=0), help="Default: archiveDays of the queue.")
@queue_option
@common.json_option
def archive(days: float | None, folder: Path | None, as_json: bool) -> None:
    """Move entries that ended long ago into FOLDER/archive/YYYY-MM.json."""
    with _open(folder) as found:
        moved = found.archive(days)
    if as_json:
        common.print_json(moved)
        return
    if not moved:
        echo("No entry is old enough for the archive.")
    for month, ids in moved.items():
        echo(f"archive/{month}.json: {amount(len(ids), 'entry')}")


@queue.command(epilog="Example:  evaluator queue export backup.json")
@click.argument("file", required=False, type=common.FILE)
@queue_option
@common.json_option
def export(file: Path | None, folder: Path | None, as_json: bool) -> None:
    """Write the queue as JSON to FILE, or to standard output.

    With FILE, --json prints the name of the file and the number of entries.
    """
    from evaluator.files.atomic import write_atomic

    with _look(folder) as found:
        data = found.export()
        count = sum(found.stats().types.values())
    if file is None:
        common.print_json_text(data.decode().removesuffix("\n"))
        return
    write_atomic(file, data)
    if as_json:
        common.print_json({"file": str(file), "entries": count})
    else:
        echo(f"{file}: {amount(count, 'entry')}")


@queue.command("import", epilog="Example:  evaluator queue import old-task-queue.json")
@click.argument("file", required=False, type=common.FILE)
@queue_option
@common.json_option
def import_(file: Path | None, folder: Path | None, as_json: bool) -> None:
    """Import a task-queue.json: everything in it, or nothing.

    Without FILE: shows what this command has taken over of the published file of this queue, after
    you have edited it. Every command takes such an edit over, entry by entry.
    """
    with _open(folder) as found:
        imported = found.import_file(file)
    if as_json:
        common.print_json(asdict(imported))
        return
    for what in ("added", "changed", "unchanged", "dated"):
        ids: Sequence[str] = getattr(imported, what)
        shown = ""
        if ids:
            shown = f" ({', '.join(ids[:10])}{', …' if len(ids) > 10 else ''})"
        echo(f"{what}: {len(ids)}{shown}")


@queue.command(epilog="Example:  evaluator queue stats --json")
@queue_option
@common.json_option
def stats(folder: Path | None, as_json: bool) -> None:
    """Show how many entries there are, by status and type, and the settings of the queue."""
    with _look(folder) as found:
        numbers = found.stats()
    rows = [["status", name, f"{count:,}"] for name, count in numbers.entries.items()]
    rows += [["type", name, f"{count:,}"] for name, count in sorted(numbers.types.items())]
    rows += [["ready to run", "", f"{numbers.ready:,}"], ["attempts", "", f"{numbers.attempts:,}"]]
    if numbers.stuck:
        rows.insert(-1, ["wait for a skipped or blocked entry", "", f"{numbers.stuck:,}"])
    rows += [
        ["setting", "maxConcurrent", str(numbers.max_concurrent)],
        ["setting", "maxRetries", str(numbers.max_retries)],
        ["setting", "archiveDays", str(numbers.archive_days)],
    ]
    common.print_json_or_table(
        as_json, asdict(numbers), head=["what", "which", "number"], rows=rows
    )


def _warn_of_stuck(stuck: Sequence[StuckEntry]) -> None:
    """Says on standard error which entries cannot run, and why."""
    from evaluator.jobs.task_queue import STUCK_ADVICE

    for entry in stuck[:_MAX_STUCK]:
        echo(f"{entry}", err=True)
    if len(stuck) > _MAX_STUCK:
        echo(f"and {len(stuck) - _MAX_STUCK:,} more", err=True)
    if stuck:
        echo(f"to change that: {STUCK_ADVICE}", err=True)


def _look(folder: Path | None) -> QueueView:
    from evaluator.queue import QueueView

    view = QueueView(folder)
    if view.is_edited():
        echo(
            f"{view.folder}: task-queue.json was edited. The next command that changes the queue "
            "takes that over, or: evaluator queue import",
            err=True,
        )
    return view


def _open(folder: Path | None) -> TaskQueue:
    from evaluator.queue import TaskQueue

    return TaskQueue(folder, notice=lambda line: echo(line, err=True))


def _time(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(
            f"--not-before {text!r:.60}: expected a time such as 2026-03-09T07:00"
        ) from error


def _print_entry(entry: QueueEntry, as_json: bool) -> None:
    if as_json:
        common.print_json(entry.to_dict())
    else:
        common.echo_text(
            f"{entry.id} {entry.status} ({entry.type}): {visible(entry.goal, one_line=True)}"
        )


def _print_entries(entries: Sequence[QueueEntry], as_json: bool) -> None:
    if as_json:
        common.print_json([entry.to_dict() for entry in entries])
        return
    for entry in entries:
        _print_entry(entry, as_json)
