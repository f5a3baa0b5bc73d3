"""`evaluator tasks resume`, `replay` and `import`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evaluator.cli import common
from evaluator.cli.echo import echo
from evaluator.cli.evaluator_options import EvaluatorOptions, evaluator_options, tasks_option
from evaluator.cli.run import announce, output_of, print_outcome, print_resume_command
from evaluator.cli.tasks.list import find_task, parse_id, store_beside
from evaluator.errors import CorruptRecord, RecordError, StepChanged, StepUnfinished, UsageError
from evaluator.errors.messages import amount
from evaluator.errors.results import Outcome, TaskError, TaskResult
from evaluator.record.importing import ImportedFile, import_files
from evaluator.record.redact import Redactor
from evaluator.record.store import TaskStore

if TYPE_CHECKING:
    from evaluator.interpreter.recovery import Replay

_REPAIR = "hint: --repair continues from the whole records before the damage"


@click.command("resume", epilog="Example:  evaluator tasks resume 17")
@click.argument("task")
@click.option(
    "--unfinished",
    type=click.Choice(["ask", "repeat", "tell", "stop"]),
    default="ask",
    show_default=True,
    help="What to do about a tool call or script that was begun and has no recorded end: repeat "
    "it, tell the "
    "model that its end is not known (tool calls only), or stop there. Without a terminal to ask "
    "at, ask is "
    "stop.",
)
@click.option(
    "--allow-changed",
    is_flag=True,
    help="Continue although a template, a file or the model has changed.",
)
@click.option(
    "--repair",
    is_flag=True,
    help="Continue from the whole records before the first damage; the rest is saved beside the "
    "task file.",
)
@click.option(
    "--input",
    "-i",
    "inputs",
    multiple=True,
    metavar="KEY=VALUE",
    help="An input that the record lacks because it is secret. May be repeated.",
)
@evaluator_options(
    "--library", "--root", "--memory", "--ask-in", "--tasks", "--sync", "--sandbox", "--trust"
)
@common.json_option
def resume(
    task: str,
    unfinished: Any,
    allow_changed: bool,
    repair: bool,
    inputs: tuple[str, ...],
    options: EvaluatorOptions,
    as_json: bool,
) -> None:
    """Resume a run that was interrupted, aborted or failed: TASK is its id or its file.

    The results of completed steps are taken from the task file, without a call; the other steps
    run. Profile, model, inputs and --reparse are those of the run; --library and --root have to be
    given again. Exit code 1 if the task fails, 2 for wrong usage, 3 if it cannot be resumed.
    """
    store = TaskStore(options.tasks_dir)
    found = find_task(store, task)
    store = store_beside(found, store)
    number = found if isinstance(found, int) else parse_id(found.stem)
    try:
        was_completed = store.read(found, repair=repair).status == "completed"
    except CorruptRecord as error:
        raise RecordError(f"{error}\n{_REPAIR}") from error
    evaluator = replace(options, tasks_dir=store.root).make_evaluator()
    values = common.read_inputs(inputs, None)
    try:
        outcome = evaluator.resume_sync(
            number,
            values,
            unfinished=unfinished,
            allow_changed=allow_changed,
            repair=repair,
            on_event=None if as_json else announce,
        )
    except KeyboardInterrupt:
        if not as_json:
            print_resume_command(number, replace(options, tasks_dir=store.root))
        raise
    if as_json:
        common.print_json(outcome.to_dict())
    elif was_completed and isinstance(outcome, TaskResult):
        echo(f"TASK-{number} is completed; this is its recorded result", err=True)
        common.echo_text(output_of(outcome))
    else:
        _print_progress(outcome)
        print_outcome(outcome, store.root, shown=False)
    if isinstance(outcome, TaskError):
        _print_hint(outcome)
        raise click.exceptions.Exit(
            2 if isinstance(outcome.cause, UsageError) else common.exit_code_of(outcome)
        )


def _print_progress(outcome: Outcome) -> None:
    resumed = outcome.notes.get("resumed", {})
    taken = resumed.get("steps_from_record", 0)
    ran = resumed.get("steps_run", 0)
    if taken or ran:
        echo(f"resumed: {amount(taken, 'step')} from the record, {ran} run", err=True)


def _print_hint(error: TaskError) -> None:
    if isinstance(error.cause, StepChanged):
        echo("hint: --allow-changed continues with the current version", err=True)
    elif isinstance(error.cause, CorruptRecord):
        echo(_REPAIR, err=True)
    elif isinstance(error.cause, StepUnfinished):
        tell = ", --unfinished tell leaves it to the model" if error.cause.can_tell else ""
        echo(f"hint: --unfinished repeat runs it again{tell}", err=True)


@click.command("replay", epilog="Example:  evaluator tasks replay 17 --template-changes")
@click.argument("task")
@click.option(
    "--template-changes",
    is_flag=True,
    help="Continue past changed steps with the recorded answers, and show what the model would "
    "now see "
    "differently.",
)
@evaluator_options("--library", "--root", "--tasks")
@common.json_option
def replay(task: str, template_changes: bool, options: EvaluatorOptions, as_json: bool) -> None:
    """Evaluate a recorded run again from its record alone: TASK is its id or its file.

    No call is made, no tool is run, nothing is written. Exit code 0 if everything is as recorded, 1
    if a step or the result differs: the first that differs is shown with both sides.
    """
    store = TaskStore(options.tasks_dir)
    recorded = find_task(store, task)
    evaluator = replace(options, tasks_dir=store_beside(recorded, store).root).make_evaluator(
        sends=False
    )
    found = evaluator.replay_sync(recorded, template_changes=template_changes)
    if as_json:
        common.print_json(found.to_dict())
    else:
        _print_replay(found)
    if not found.ok:
        raise click.exceptions.Exit(1)


def _print_replay(found: Replay) -> None:
    from evaluator.record.json_difference import changed_lines

    colours = {"-": "red", "+": "green"} if common.stdout_is_terminal() else {}
    for change in found.changes:
        echo(f"{change.path}: {change.kind} {change.name} would now see")
        for line in changed_lines(change.recorded, change.now):
            echo(f"  {line}", colour=colours.get(line[0]))
    for path in found.gone:
        echo(f"{path}: is no longer reached")
    if found.divergence is not None:
        echo(f"diverges at {found.divergence.path}: {found.divergence.message}")
        sides = (("recorded", found.divergence.recorded), ("now", found.divergence.now))
        for label, side in sides if any(side is not None for _, side in sides) else ():
            echo(f"  {label}: {'nothing' if side is None else side}")
    name = "the record" if found.task_id is None else f"TASK-{found.task_id}"
    answers = amount(found.answers, "answer")
    steps = f"{amount(found.steps, 'step')}, {answers} from the record"
    if found.ok and found.ends_at is not None:
        echo(f"{name}: as recorded ({steps}) up to {found.ends_at}, where its record ends")
    elif found.ok:
        echo(f"{name}: as recorded ({steps})")
    else:
        what = "not as recorded"
        if found.changes:
            what = f"{amount(len(found.changes), 'step')} changed"
        echo(f"{name}: {what}; {answers} taken from the record")


@click.command("import", epilog="Example:  evaluator tasks import ~/other-program/tasks")
@click.argument("paths", nargs=-1, required=True, type=common.PATH)
@tasks_option
@common.json_option
def import_tasks(paths: tuple[Path, ...], tasks_dir: Path, as_json: bool) -> None:
    """Take over task files and task lists of other programs: PATHS are files or folders.

    Each file becomes a finished task with a number of its own; its source stays as it is. Standard
    error names each part of a file that is left out, with its line. Exit code 1 if a file cannot be
    read.
    """
    found: list[ImportedFile] = []
    for file in import_files(TaskStore(tasks_dir, redactor=Redactor.from_environment()), paths):
        found.append(file)
        if not as_json:
            _print_imported(file)
    if as_json:
        common.print_json([file.to_dict() for file in found])
    elif not found:
        echo("there is no file to import", err=True)
    if any(file.state == "unreadable" for file in found):
        raise click.exceptions.Exit(1)


def _print_imported(file: ImportedFile) -> None:
    place = str(file.path) if file.line is None else f"{file.path}:{file.line}"
    if file.state == "imported":
        echo(f"{file.name}  {place}")
    else:
        what = "not imported" if file.name is None else f"is {file.name}"
        echo(f"{place}: {what}: {file.reason}", err=True)
    for warning in file.warnings:
        echo(f"{place}: {warning}", err=True)
