"""`evaluator lint`."""

from __future__ import annotations

from pathlib import Path

import click

from evaluator.cli.common import cost_bound, describe_bound, json_option, print_json, read_library
from evaluator.cli.echo import echo
from evaluator.cli.permission import shown_profiles
from evaluator.errors import UsageError
from evaluator.interpreter.preflight import check_surroundings
from evaluator.library.bounds import CallCounter
from evaluator.tools import builtin_tools


@click.command(epilog="Example:  evaluator lint templates/")
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path))
@click.option("--strict", is_flag=True, help="Warnings fail too.")
@click.option("--model", metavar="MODEL", help="Also bound the cost with this model's price.")
@json_option
def lint(paths: tuple[Path, ...], strict: bool, model: str | None, as_json: bool) -> None:
    """Check the templates in PATHS (default: templates/ here), offline and without a model call.

    Prints each error and warning with file, line and column, and for each template an upper bound
    on the model calls that it can make, with --model also on their cost. The bound assumes calls as
    long as the model's window allows, so the real cost is far lower; retries after a failed call
    are not counted. Exit code 1 if there is an error (with --strict: a warning).
    """
    if not paths and not Path("templates").is_dir():
        raise UsageError("there is no templates/ here; name what to check: evaluator lint FOLDER")
    paths = paths or (Path("templates"),)
    library = read_library(paths)
    own = [t for t in library.templates.values() if any(_inside(t.file, p) for p in paths)]
    counter = CallCounter(library)
    bounds = {t.name: counter.bound(t.node) for t in own}
    costs = {name: cost_bound(limit, model) for name, limit in bounds.items()}
    profiles = shown_profiles()
    servers = [server for profile in profiles.values() for server in profile.mcp]
    sandboxes = {name: profile.sandbox for name, profile in profiles.items()}
    names = [*profiles, *profiles.broken]
    surroundings = check_surroundings(
        library, builtin_tools().names(), profiles=names, servers=servers, sandboxes=sandboxes
    )
    diagnostics = [*library.diagnostics, *surroundings]
    errors = [d for d in diagnostics if d.severity == "error"]
    warnings = [d for d in diagnostics if d.severity == "warning"]
    if as_json:
        print_json(
            {
                "diagnostics": [diagnostic.to_dict() for diagnostic in diagnostics],
                "templates": {
                    name: {
                        "min_calls": b.min_calls,
                        "max_calls": b.max_calls,
                        "max_cost_usd": costs[name],
                        "explanation": b.explanation,
                    }
                    for name, b in bounds.items()
                },
            }
        )
    else:
        for diagnostic in diagnostics:
            echo(library.format_diagnostic(diagnostic))
        for name, limit in sorted(bounds.items()):
            echo(f"{name}: {describe_bound(limit, model, cost_usd=costs[name])}")
        counts = [(len(own), "template"), (len(errors), "error"), (len(warnings), "warning")]
        echo(", ".join(f"{count} {noun}{'' if count == 1 else 's'}" for count, noun in counts))
    if errors or (strict and warnings):
        raise click.exceptions.Exit(1)


def _inside(file: str | None, path: Path) -> bool:
    return file is not None and Path(file).resolve().is_relative_to(path.resolve())
