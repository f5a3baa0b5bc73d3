"""`evaluator parse`."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, cast

import click

from evaluator.cli.common import json_option, print_json, read_text
from evaluator.cli.echo import echo
from evaluator.errors.messages import agree, amount

if TYPE_CHECKING:
    from evaluator.output import ParsedOutput

_FIELDS = ("text", "content", "output", "answer", "response")


@click.command(epilog="Example:  evaluator parse answer.txt --type json --schema 'string[]'")
@click.argument("file", default="-")
@click.option(
    "--type", "kind", type=click.Choice(["json", "xml", "text"]), default="json", show_default=True
)
@click.option(
    "--schema", help="object, array, string[], number, …, a .json file, or a JSON Schema."
)
@click.option("--strict", is_flag=True, help="Refuse every text that needs a repair.")
@click.option(
    "--stats",
    is_flag=True,
    help="FILE has one answer per line, as a JSON string or as an object with the field text, "
    "content, output, "
    "answer or response: count how many could be read, and how many needed each repair.",
)
@json_option
def parse(
    file: str, kind: str, schema: str | None, strict: bool, stats: bool, as_json: bool
) -> None:
    """Read a value from FILE (default: standard input) as the output of a task is read.

    The value goes to standard output as JSON, each repair to standard error. Exit code 1 if the
    value does not match the schema, 2 if the schema cannot be used.
    """
    from evaluator.output import parse_output

    def read(text: str) -> ParsedOutput:
        return parse_output(
            text,
            kind,  # pyright: ignore[reportArgumentType]
            schema=schema,
            strict=strict,
        )

    if stats:
        _print_stats([read(text) for text in _answers(read_text(file))], as_json)
        return
    parsed = read(read_text(file))
    error = parsed.error
    if as_json:
        shown = None if error is None else asdict(error)
        print_json({"value": parsed.value, "warnings": parsed.warnings, "error": shown})
    else:
        for warning in parsed.warnings:
            echo(f"warning: {warning}", err=True)
        if error is None:
            print_json(parsed.value)
        else:
            echo(f"error: {error.message}", err=True)
    if error is not None:
        raise click.exceptions.Exit(2 if error.kind == "bad_schema" else 1)


def _answers(lines: str) -> list[str]:
    """The answers in the lines of a JSON Lines file. Raises: UsageError, with the line of one that
    cannot be used.
    """
    import json

    from evaluator.errors import UsageError
    from evaluator.errors.messages import json_problem

    answers: list[str] = []
    for number, line in enumerate(lines.split("\n"), 1):
        if not line.strip():
            continue
        try:
            found: Any = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UsageError(
                f"line {number} is not JSON: {json_problem(error)}; --stats reads JSON Lines"
            ) from error
        if isinstance(found, dict):
            fields = cast(dict[str, Any], found)
            found = next(
                (fields[name] for name in _FIELDS if isinstance(fields.get(name), str)), None
            )
        if not isinstance(found, str):
            raise UsageError(
                f"line {number} has no answer: use a JSON string or an object with "
                f"{', '.join(_FIELDS)}"
            )
        answers.append(found)
    return answers


def _print_stats(answers: list[ParsedOutput], as_json: bool) -> None:
    errors = Counter(answer.error.kind for answer in answers if answer.error is not None)
    repairs = Counter(_kind_of(warning) for answer in answers for warning in set(answer.warnings))
    unchanged = sum(answer.error is None and not answer.warnings for answer in answers)
    if as_json:
        print_json(
            {
                "answers": len(answers),
                "unchanged": unchanged,
                "errors": dict(errors.most_common()),
                "repairs": dict(repairs.most_common()),
            }
        )
        return
    total = len(answers)
    echo(
        f"{unchanged} of {amount(total, 'answer')} {agree(unchanged, 'was', 'were')} read without "
        f"a repair, {sum(errors.values())} of {total} not read"
    )
    for title, counts in (("errors", errors), ("repairs", repairs)):
        if counts:
            echo(f"\n{title}:")
        for name, count in counts.most_common():
            echo(f"{count:8} of {total}  {name}")


def _kind_of(warning: str) -> str:
    """A warning without the places and the numbers in it."""
    import re

    return re.sub(r"\d+", "N", warning.partition(": $")[0])
