"""`evaluator render`."""

from __future__ import annotations

from pathlib import Path

import click

from evaluator.cli.common import (
    exit_code_of,
    handler_option,
    input_option,
    json_option,
    library_option,
    load_library,
    print_json,
    read_inputs,
)
from evaluator.library.bounds import bound
from evaluator.nodes import Function
from evaluator.results import TaskError


@click.command(epilog="Example:  evaluator render summarise --input document=@notes.md")
@click.argument("name")
@input_option
@library_option
@handler_option
@json_option
def render(
    name: str, inputs: tuple[str, ...], folders: tuple[Path, ...], handler: str | None, as_json: bool
) -> None:
    """Show exactly what the model would see for the template NAME; makes no call and runs no script.

    Where a later task depends on an earlier answer, that answer is simulated, and the output says so.
    """
    from evaluator.interpreter.evaluator import Evaluator

    library = load_library(folders)
    node = library.get(name).node
    evaluator = Evaluator(library, handler, tasks_dir=None)
    outcome, seen = evaluator.render(name, read_inputs(inputs, node))
    limit = None if isinstance(node, Function) else bound(node, library)
    if as_json:
        print_json(
            {
                "requests": [preview.to_dict() for preview in seen],
                "max_calls": None if limit is None else limit.max_calls,
                "error": outcome.to_dict() if isinstance(outcome, TaskError) else None,
            }
        )
    else:
        for number, preview in enumerate(seen, 1):
            simulated = "" if preview.exact else ", after simulated answers"
            click.echo(f"=== request {number}: {preview.task or 'task'} (about {preview.input_tokens} tokens{simulated})")
            if preview.tools:
                click.echo(f"tools: {', '.join(preview.tools)}")
            for message in preview.messages:
                click.echo(f"--- {message.role}\n{message.content}")
        if limit is not None:
            most = "no bound" if limit.max_calls is None else f"at most {limit.max_calls}"
            click.echo(f"model calls of a run: {most} ({limit.explanation})", err=True)
        if isinstance(outcome, TaskError):
            click.echo(f"error: {outcome}", err=True)
            for violation in outcome.violations:
                click.echo(library.format_diagnostic(violation), err=True)
    if isinstance(outcome, TaskError):
        raise click.exceptions.Exit(exit_code_of(outcome))
