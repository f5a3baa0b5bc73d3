"""`evaluator lint`."""

from __future__ import annotations

from pathlib import Path

import click

from evaluator.cli.common import json_option, print_json
from evaluator.library import TemplateLibrary
from evaluator.library.bounds import bound
from evaluator.nodes import Function


@click.command(epilog="Example:  evaluator lint templates/")
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path))
@click.option("--strict", is_flag=True, help="Warnings fail too.")
@json_option
def lint(paths: tuple[Path, ...], strict: bool, as_json: bool) -> None:
    """Check the templates in PATHS (default: templates/ here), offline and without a call.

    Prints each error and warning with file, line and column, and for each template an upper bound on the
    model calls that it can make. Exit code 1 if there is an error (with --strict: a warning).
    """
    library = TemplateLibrary.load(*paths)
    own = [t for t in library.templates.values() if not paths or any(_inside(t.file, p) for p in paths)]
    bounds = {t.name: bound(t.node, library) for t in own if not isinstance(t.node, Function)}
    errors, warnings = library.errors, library.warnings
    if as_json:
        print_json(
            {
                "diagnostics": [
                    {
                        "severity": d.severity, "code": d.code, "message": d.message, "hint": d.hint,
                        "file": d.span.file, "line": d.span.line, "column": d.span.column,
                    }
                    for d in library.diagnostics
                ],
                "templates": {
                    name: {"min_calls": b.min_calls, "max_calls": b.max_calls, "explanation": b.explanation}
                    for name, b in bounds.items()
                },
            }
        )  # fmt: skip
    else:
        for diagnostic in library.diagnostics:
            click.echo(library.format_diagnostic(diagnostic))
        for name, limit in sorted(bounds.items()):
            most = "no bound" if limit.max_calls is None else f"at most {limit.max_calls}"
            click.echo(f"{name}: {most} model calls ({limit.explanation})")
        click.echo(f"{len(own)} templates, {len(errors)} errors, {len(warnings)} warnings")
    if errors or (strict and warnings):
        raise click.exceptions.Exit(1)


def _inside(file: str | None, path: Path) -> bool:
    return file is not None and Path(file).resolve().is_relative_to(path.resolve())
