"""`evaluator tasks import`."""

from __future__ import annotations

from pathlib import Path

import click

from evaluator.cli.common import json_option, print_json
from evaluator.cli.echo import echo
from evaluator.cli.evaluator_options import tasks_option
from evaluator.record.importing import ImportedFile, import_files
from evaluator.record.redact import Redactor
from evaluator.record.store import TaskStore


@click.command("import", epilog="Example:  evaluator tasks import ~/other-program/tasks")
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@tasks_option
@json_option
def import_tasks(paths: tuple[Path, ...], tasks_dir: Path, as_json: bool) -> None:
    """Take over task files and task lists of other programs: PATHS are files or folders.

    Each file becomes a finished task with a number of its own; its source stays as it is. Standard
    error names each part of a file that is left out, with its line. Exit code 1 if a file cannot be
    read.
    """
    found: list[ImportedFile] = []
    for file in import_files(TaskStore(tasks_dir, redactor=Redactor.from_environment()), paths):
        found.append(file)
        if not as_json:
            _print(file)
    if as_json:
        print_json([file.to_dict() for file in found])
    elif not found:
        echo("there is no file to import", err=True)
    if any(file.state == "unreadable" for file in found):
        raise click.exceptions.Exit(1)


def _print(file: ImportedFile) -> None:
    if file.line is None:
        place = str(file.path)
    else:
        place = f"{file.path}:{file.line}"
    if file.state == "imported":
        echo(f"{file.name}  {place}")
    else:
        if file.name is None:
            what = "not imported"
        else:
            what = f"is {file.name}"
        echo(f"{place}: {what}: {file.reason}", err=True)
    for warning in file.warnings:
        echo(f"{place}: {warning}", err=True)
