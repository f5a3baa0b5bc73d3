"""`evaluator tasks show`."""

from __future__ import annotations

from pathlib import Path

import click

from evaluator.cli.common import json_option, print_json, stdout_is_terminal
from evaluator.cli.echo import echo_raw
from evaluator.cli.evaluator_options import tasks_option
from evaluator.cli.tasks.common import path_of, store_beside
from evaluator.errors import UsageError
from evaluator.record.store import TaskStore


@click.command("show", epilog="Example:  evaluator tasks show 17 --messages")
@click.argument("task")
@click.option(
    "--tree", "as_tree", is_flag=True, help="Its steps, one line each, and those of its subtasks."
)
@click.option(
    "--messages",
    "as_messages",
    is_flag=True,
    help="Its conversations with the model, message by message.",
)
@tasks_option
@json_option
def show(task: str, as_tree: bool, as_messages: bool, tasks_dir: Path, as_json: bool) -> None:
    """Show one task file: TASK is its id or its path."""
    if as_tree and as_messages:
        raise UsageError("--tree and --messages exclude each other; give one of them")
    store = TaskStore(tasks_dir)
    path = path_of(store, task)
    recording = store.read(path)
    colour = stdout_is_terminal()
    if as_tree:
        from evaluator.record.tree import read_tree, render_tree

        tree = read_tree(store_beside(path, store), recording)
        _print(tree.to_dict() if as_json else render_tree(tree, colour))
    elif as_messages:
        from evaluator.record.conversation import conversations
        from evaluator.record.render import render_messages

        _print(
            {
                "id": None if recording.header is None else recording.header.task_id,
                "status": recording.status,
                "conversations": [
                    conversation.to_dict() for conversation in conversations(recording)
                ],
            }
            if as_json
            else render_messages(recording, colour)
        )
    else:
        from evaluator.record.render import render_text

        _print(recording.to_dict() if as_json else render_text(recording, colour))


def _print(shown: str | dict[str, object]) -> None:
    if isinstance(shown, str):
        echo_raw(shown, nl=False)
    else:
        print_json(shown)
