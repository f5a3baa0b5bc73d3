"""`evaluator tasks replay`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from evaluator.cli.common import json_option, print_json, stdout_is_terminal
from evaluator.cli.echo import echo
from evaluator.cli.evaluator_options import EvaluatorOptions, evaluator_options
from evaluator.cli.tasks.common import path_of, store_beside
from evaluator.record.store import TaskStore

if TYPE_CHECKING:
    from evaluator.interpreter.replay import Replay


@click.command("replay", epilog="Example:  evaluator tasks replay 17 --template-changes")
@click.argument("task")
@click.option(
    "--template-changes",
    is_flag=True,
    help="Continue past changed steps with the recorded answers, and show what the model would "
    "now see "
    "differently.",
)
@evaluator_options("library", "root", "tasks")
@json_option
def replay(task: str, template_changes: bool, options: EvaluatorOptions, as_json: bool) -> None:
    """Evaluate a recorded run again from its record alone: TASK is its id or its file.

    No call is made, no tool is run, nothing is written. Exit code 0 if everything is as recorded, 1
    if a step or the result differs: the first that differs is shown with both sides.
    """
    store = TaskStore(options.tasks_dir)
    path = path_of(store, task)
    evaluator = replace(options, tasks_dir=store_beside(path, store).root).make_evaluator(
        sends=False
    )
    found = evaluator.replay_sync(path, template_changes=template_changes)
    evaluator.close()
    if as_json:
        print_json(found.to_dict())
    else:
        _print(found)
    if not found.ok:
        raise click.exceptions.Exit(1)


def _print(found: Replay) -> None:
    from evaluator.record.json_difference import changed_lines

    if stdout_is_terminal():
        colours = {"-": "red", "+": "green"}
    else:
        colours = {}
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
    if found.task_id is None:
        name = "the record"
    else:
        name = f"TASK-{found.task_id}"
    steps = f"{found.steps} step{'' if found.steps == 1 else 's'}"
    if found.ok and found.ends_at is not None:
        echo(f"{name}: as recorded ({steps}) up to {found.ends_at}, where its record ends")
    elif found.ok:
        echo(f"{name}: as recorded ({steps})")
    else:
        many = len(found.changes)
        if many:
            what = f"{many} step{'' if many == 1 else 's'} changed"
        else:
            what = "not as recorded"
        echo(f"{name}: {what}; {found.steps} answers were taken from the record")
