"""`evaluator tasks resume`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from evaluator.cli.common import (
    echo_text,
    exit_code_of,
    json_option,
    library_option,
    load_library,
    print_json,
    read_inputs,
)
from evaluator.cli.run import (
    announce,
    ask_option,
    asker_of,
    memory_option,
    open_memory,
    print_outcome,
    printed,
    root_option,
    sync_option,
)
from evaluator.cli.tasks.common import dir_option, parse_id, path_of, store_beside
from evaluator.errors import StepChanged, StepUnfinished, UsageError
from evaluator.record.store import TaskStore
from evaluator.results import TaskError, TaskResult


@click.command("resume", epilog="Example:  evaluator tasks resume 17")
@click.argument("task")
@click.option("--unfinished", type=click.Choice(["ask", "repeat", "tell", "stop"]), default="ask", show_default=True,
              help="What to do about a tool call or script that was begun and has no recorded end: repeat it, tell the "
              "model that its end is not known (tool calls only), or stop there. Without a terminal to ask at, ask is "
              "stop.")  # fmt: skip
@click.option("--allow-changed", is_flag=True,
              help="Go on although a template, a file or the model is not what it was.")  # fmt: skip
@click.option("--input", "-i", "inputs", multiple=True, metavar="KEY=VALUE",
              help="An input that the record lacks because it is secret. May be repeated.")  # fmt: skip
@library_option
@root_option
@memory_option
@ask_option
@dir_option
@sync_option
@json_option
def resume(
    task: str,
    unfinished: Any,
    allow_changed: bool,
    inputs: tuple[str, ...],
    folders: tuple[Path, ...],
    roots: tuple[Path, ...],
    memory: Path | None,
    ask_in: Path | None,
    tasks_dir: Path,
    sync: Any,
    as_json: bool,
) -> None:
    """Go on with a run that was interrupted, aborted or failed: TASK is its id or its file.

    Steps that were completed are taken from the task file, without a call; the others run. Profile, model, inputs
    and --reparse are those of the run; --library and --root have to be given again. Exit code 1 if the task fails,
    2 for wrong usage, 3 if it cannot be gone on with.
    """
    from evaluator.interpreter.evaluator import Evaluator

    store = TaskStore(tasks_dir)
    path = path_of(store, task)
    store = store_beside(path, store)
    number = parse_id(path.stem)
    was_completed = store.read(path).status == "completed"
    evaluator = Evaluator(
        load_library(folders), tasks_dir=store.root, roots=roots, sync=sync,
        memory=open_memory(memory), asker=asker_of(ask_in),
        notice=lambda line: click.echo(line, err=True),
    )  # fmt: skip
    outcome = evaluator.resume_sync(
        number, read_inputs(inputs, None), unfinished=unfinished, allow_changed=allow_changed,
        on_event=None if as_json else announce,
    )  # fmt: skip
    evaluator.close()
    if as_json:
        print_json(outcome.to_dict())
    elif was_completed and isinstance(outcome, TaskResult):
        click.echo(f"TASK-{number} is completed; this is its recorded result", err=True)
        echo_text(printed(outcome))
    else:
        _say_how_far(outcome)
        print_outcome(outcome, store.root, shown=False)
    if isinstance(outcome, TaskError):
        _hint(outcome)
        raise click.exceptions.Exit(2 if isinstance(outcome.cause, UsageError) else exit_code_of(outcome))


def _say_how_far(outcome: TaskResult | TaskError) -> None:
    resumed = outcome.notes.get("resumed", {})
    taken, ran = resumed.get("steps_from_record", 0), resumed.get("steps_run", 0)
    if taken or ran:
        click.echo(f"resumed: {taken} step{'' if taken == 1 else 's'} from the record, {ran} run", err=True)


def _hint(error: TaskError) -> None:
    if isinstance(error.cause, StepChanged):
        click.echo("hint: --allow-changed goes on with what is there now", err=True)
    elif isinstance(error.cause, StepUnfinished):
        tell = ", --unfinished tell leaves it to the model" if error.cause.can_tell else ""
        click.echo(f"hint: --unfinished repeat runs it again{tell}", err=True)
