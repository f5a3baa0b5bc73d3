"""`evaluator render`."""

from __future__ import annotations

from pathlib import Path

import click

from evaluator.cli.common import (
    cost_bound,
    describe_bound,
    echo_text,
    exit_code_of,
    handler_option,
    input_option,
    json_option,
    library_option,
    load_library,
    print_json,
    read_inputs,
)
from evaluator.cli.echo import echo
from evaluator.cli.permission import shown_profiles
from evaluator.errors.results import TaskError
from evaluator.library.bounds import bound


@click.command(epilog="Example:  evaluator render summarise --input document=@notes.md")
@click.argument("name")
@input_option
@library_option
@handler_option
@click.option("--model", metavar="MODEL", help="Also bound the cost with this model's price.")
@json_option
def render(
    name: str,
    inputs: tuple[str, ...],
    folders: tuple[Path, ...],
    handler: str | None,
    model: str | None,
    as_json: bool,
) -> None:
    """Show exactly what the model would see for the template NAME, without a call and without
    running a script.

    Where a later task depends on an earlier answer, that answer is simulated, and the output says
    so.
    """
    from evaluator.interpreter.evaluator import Evaluator

    library = load_library(folders)
    node = library.get(name).node
    evaluator = Evaluator(
        library,
        handler,
        tasks_dir=None,
        profiles=shown_profiles(),
        notice=lambda line: echo(line, err=True),
    )
    values = read_inputs(inputs, node)
    outcome, seen = evaluator.render(name, values)
    limit = bound(node, library, inputs=values)
    cost = cost_bound(limit, model)
    if as_json:
        print_json(
            {
                "requests": [preview.to_dict() for preview in seen],
                "max_calls": limit.max_calls,
                "max_cost_usd": cost,
                "error": outcome.to_dict() if isinstance(outcome, TaskError) else None,
            }
        )
    else:
        for number, preview in enumerate(seen, 1):
            if preview.exact:
                simulated = ""
            else:
                simulated = ", after simulated answers"
            echo(
                f"=== request {number}: {preview.task or 'task'} (about {preview.input_tokens} "
                f"tokens{simulated})"
            )
            if preview.tools:
                echo(f"tools: {', '.join(preview.tools)}")
            for message in preview.messages:
                echo_text(f"--- {message.role}\n{message.content}")
        echo(f"a run makes {describe_bound(limit, model, cost_usd=cost)}", err=True)
        if isinstance(outcome, TaskError):
            echo(f"error: {outcome}", err=True)
            for violation in outcome.violations:
                echo(library.format_diagnostic(violation), err=True)
    if isinstance(outcome, TaskError):
        raise click.exceptions.Exit(exit_code_of(outcome))
