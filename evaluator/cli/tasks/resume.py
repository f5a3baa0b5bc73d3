"""`evaluator tasks resume`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from evaluator.cli.common import echo_text, exit_code_of, json_option, print_json, read_inputs
from evaluator.cli.echo import echo
from evaluator.cli.evaluator_options import EvaluatorOptions, evaluator_options
from evaluator.cli.run import announce, output_of, print_outcome, print_resume_command
from evaluator.cli.tasks.common import parse_id, path_of, store_beside
from evaluator.errors import CorruptRecord, RecordError, StepChanged, StepUnfinished, UsageError
from evaluator.errors.results import Outcome, TaskError, TaskResult
from evaluator.record.store import TaskStore

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
@evaluator_options("library", "root", "memory", "ask-in", "tasks", "sync", "sandbox", "trust")
@json_option
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
    path = path_of(store, task)
    store = store_beside(path, store)
    number = parse_id(path.stem)
    try:
        was_completed = store.read(path, repair=repair).status == "completed"
    except CorruptRecord as error:
        raise RecordError(f"{error}\n{_REPAIR}") from error
    evaluator = replace(options, tasks_dir=store.root).make_evaluator()
    values = read_inputs(inputs, None)
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
    evaluator.close()
    if as_json:
        print_json(outcome.to_dict())
    elif was_completed and isinstance(outcome, TaskResult):
        echo(f"TASK-{number} is completed; this is its recorded result", err=True)
        echo_text(output_of(outcome))
    else:
        _print_progress(outcome)
        print_outcome(outcome, store.root, shown=False)
    if isinstance(outcome, TaskError):
        _print_hint(outcome)
        raise click.exceptions.Exit(
            2 if isinstance(outcome.cause, UsageError) else exit_code_of(outcome)
        )


def _print_progress(outcome: Outcome) -> None:
    resumed = outcome.notes.get("resumed", {})
    taken = resumed.get("steps_from_record", 0)
    ran = resumed.get("steps_run", 0)
    if taken or ran:
        echo(
            f"resumed: {taken} step{'' if taken == 1 else 's'} from the record, {ran} run", err=True
        )


def _print_hint(error: TaskError) -> None:
    if isinstance(error.cause, StepChanged):
        echo("hint: --allow-changed continues with the current version", err=True)
    elif isinstance(error.cause, CorruptRecord):
        echo(_REPAIR, err=True)
    elif isinstance(error.cause, StepUnfinished):
        if error.cause.can_tell:
            tell = ", --unfinished tell leaves it to the model"
        else:
            tell = ""
        echo(f"hint: --unfinished repeat runs it again{tell}", err=True)
