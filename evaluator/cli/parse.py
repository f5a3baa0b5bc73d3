"""`evaluator parse`."""

from __future__ import annotations

import click

from evaluator.cli.common import json_option, print_json, read_text
from evaluator.cli.echo import echo


@click.command(epilog="Example:  evaluator parse answer.txt --type json --schema 'string[]'")
@click.argument("file", default="-")
@click.option("--type", "kind", type=click.Choice(["json", "xml", "text"]), default="json", show_default=True)
@click.option("--schema", help="object, array, string[], number, …, a .json file, or a JSON Schema.")
@json_option
def parse(file: str, kind: str, schema: str | None, as_json: bool) -> None:
    """Read a value from FILE (default: standard input) as the output of a task is read.

    The value goes to standard output as JSON, each repair to standard error. Exit code 1 if the value does not
    match the schema, 2 if the schema cannot be used.
    """
    from evaluator.output import parse_output

    parsed = parse_output(read_text(file), kind, schema)  # pyright: ignore[reportArgumentType]
    error = parsed.error
    if as_json:
        print_json(
            {
                "value": parsed.value,
                "warnings": list(parsed.warnings),
                "error": None
                if error is None
                else {
                    "kind": error.kind, "message": error.message, "path": error.path,
                    "expected": error.expected, "actual": error.actual,
                },
            }
        )  # fmt: skip
    else:
        for warning in parsed.warnings:
            echo(f"warning: {warning}", err=True)
        if error is None:
            print_json(parsed.value)
        else:
            echo(f"error: {error.message}", err=True)
    if error is not None:
        raise click.exceptions.Exit(2 if error.kind == "bad_schema" else 1)
