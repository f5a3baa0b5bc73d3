"""`evaluator tasks resume`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from evaluator.cli.common import (
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
    root_option,
    sync_option,
)
from evaluator.cli.tasks.common import dir_option, parse_id
from evaluator.errors import StepChanged, StepUnfinished
from evaluator.results import TaskError


@click.command("resume", epilog="Example:  evaluator tasks resume 17")
@click.argument("task")
@click.option("--unfinished", type=click.Choice(["ask", "repeat", "tell", "stop"]), default="ask", show_default=True,
              help="What to do about a tool call or script that was begun and has no recorded end: repeat it, tell the "
              "model that its end is not known, or stop there. Without a terminal to ask at, ask is stop.")  # fmt: skip
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
@click.option("--reparse", is_flag=True, help="If the run was started with --reparse.")
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
    reparse: bool,
    as_json: bool,
) -> None:
    """Go on with a run that was interrupted, aborted or failed: TASK is its id.

    Steps that were completed are taken from the task file, without a call; the others run. Profile, model and
    inputs are those of the run. Exit code 1 if the task fails, 3 if it cannot be gone on with.
    """
    from evaluator.interpreter.evaluator import Evaluator

    evaluator = Evaluator(
        load_library(folders), tasks_dir=tasks_dir, roots=roots, reparse=reparse, sync=sync,
        memory=open_memory(memory), asker=asker_of(ask_in),
        notice=lambda line: click.echo(line, err=True),
    )  # fmt: skip
    outcome = evaluator.resume_sync(
        parse_id(task), read_inputs(inputs, None), unfinished=unfinished, allow_changed=allow_changed,
        on_event=None if as_json else announce,
    )  # fmt: skip
    evaluator.close()
    resumed = outcome.notes.get("resumed")
    if as_json:
        print_json(outcome.to_dict())
    else:
        if resumed is not None:
            click.echo(f"resumed: {resumed['steps_from_record']} steps from the record, {resumed['steps_run']} run",
                       err=True)  # fmt: skip
        print_outcome(outcome, tasks_dir, shown=False)
    if isinstance(outcome, TaskError):
        if isinstance(outcome.cause, StepChanged):
            click.echo("hint: --allow-changed goes on with what is there now", err=True)
        elif isinstance(outcome.cause, StepUnfinished):
            click.echo("hint: --unfinished repeat runs it again, --unfinished tell leaves it to the model", err=True)
        raise click.exceptions.Exit(exit_code_of(outcome))
